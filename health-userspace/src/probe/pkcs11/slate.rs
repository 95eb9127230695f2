//! Where a worker is: eight bytes of shared memory (a memfd).
//!
//! The worker notes each call before it is made; the daemon reads when a deadline has passed or the worker has died.

use serde::{Deserialize, Serialize};
use std::{fs::File, os::unix::fs::FileExt};

/// Eight bytes that worker and daemon share: the call that is being made, and the sessions held or about to be.
#[derive(Debug)]
pub(super) struct Slate(File);

/// What a slate says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct At {
    pub(super) call: Option<Call>,
    pub(super) sessions: u32,
}

impl Slate {
    pub(super) const fn new(file: File) -> Self {
        Self(file)
    }

    /// A failed write would only make a later message less exact.
    pub(super) fn write(&self, call: Option<Call>, sessions: u32) {
        let number = call.map_or(0, |call| call as u32 + 1);
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&number.to_le_bytes());
        bytes[4..].copy_from_slice(&sessions.to_le_bytes());
        drop(self.0.write_at(&bytes, 0));
    }

    pub(super) fn read(&self) -> At {
        let mut bytes = [0; 8];
        if self.0.read_exact_at(&mut bytes, 0).is_err() {
            return At::default();
        }
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let call = word(0).checked_sub(1).and_then(|number| Call::ALL.get(number as usize).copied());
        At { call, sessions: word(4) }
    }
}

macro_rules! calls {
    ($($variant:ident $name:literal)*) => {
        /// A call into the module.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum Call {
            $(
                #[doc = $name]
                #[serde(rename = $name)]
                $variant,
            )*
        }

        impl Call {
            /// All of them, by number.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// As in PKCS#11; `dlopen` for the loading itself.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

calls! {
    Dlopen "dlopen"
    GetFunctionList "C_GetFunctionList"
    Initialize "C_Initialize"
    Finalize "C_Finalize"
    GetInfo "C_GetInfo"
    GetSlotList "C_GetSlotList"
    GetSlotInfo "C_GetSlotInfo"
    GetTokenInfo "C_GetTokenInfo"
    GetMechanismList "C_GetMechanismList"
    OpenSession "C_OpenSession"
    CloseSession "C_CloseSession"
    Login "C_Login"
    FindObjectsInit "C_FindObjectsInit"
    FindObjects "C_FindObjects"
    FindObjectsFinal "C_FindObjectsFinal"
    SignInit "C_SignInit"
    Sign "C_Sign"
    VerifyInit "C_VerifyInit"
    Verify "C_Verify"
    EncryptInit "C_EncryptInit"
    Encrypt "C_Encrypt"
    DecryptInit "C_DecryptInit"
    Decrypt "C_Decrypt"
    GenerateRandom "C_GenerateRandom"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slate_says_where() {
        let slate = Slate::new(tempfile::tempfile().expect("a file"));
        assert_eq!(slate.read(), At::default());
        for (number, &call) in Call::ALL.iter().enumerate() {
            assert_eq!(call as usize, number);
            slate.write(Some(call), 2);
            assert_eq!(slate.read(), At { call: Some(call), sessions: 2 });
        }
        slate.write(None, 1);
        assert_eq!(slate.read(), At { call: None, sessions: 1 });
    }
}
