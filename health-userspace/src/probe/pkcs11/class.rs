//! What a `CK_RV` means.

use super::{slate::Call, trouble::Trouble};
use cryptoki::error::{Rv, RvError};

/// Classes of failure (`reference/pkcs11.md` §4 of the design), by what has to be done about them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// The token has gone.
    Removed,
    /// The device, or what lies between, is ill.
    Device,
    /// Something that this process holds is worth nothing any more; a fresh process may work.
    Stale,
    /// No session to be had.
    Sessions,
    /// Our credential.
    Auth,
    /// A wrong answer: worse than none.
    Integrity,
    /// What was configured isn't there or isn't possible.
    Config,
}

/// `CKR_DEVICE_ERROR`, or the number where the standard has no name.
pub(super) fn rv_name(rv: u64) -> String {
    match Rv::from(rv) {
        Rv::Ok => "CKR_OK".to_owned(),
        Rv::Error(RvError::VendorDefined(_) | RvError::UnknownErrorCode(_)) => format!("{rv:#x}"),
        Rv::Error(known) => format!("CKR_{}", screaming(&format!("{known:?}"))),
    }
}

/// `DeviceError` to `DEVICE_ERROR`.
fn screaming(camel: &str) -> String {
    let mut out = String::with_capacity(camel.len() + 8);
    for letter in camel.chars() {
        if letter.is_ascii_uppercase() && !out.is_empty() {
            out.push('_');
        }
        out.push(letter.to_ascii_uppercase());
    }
    out
}

/// The class of what a module returned.
pub(super) fn of_rv(call: Call, rv: u64) -> Class {
    use RvError as E;
    let Rv::Error(error) = Rv::from(rv) else { return Class::Device };
    match error {
        E::DeviceRemoved | E::TokenNotPresent | E::TokenNotRecognized | E::SlotIdInvalid => Class::Removed,
        E::SessionHandleInvalid
        | E::SessionClosed
        | E::UserNotLoggedIn
        | E::ObjectHandleInvalid
        | E::KeyHandleInvalid
        | E::OperationActive
        | E::OperationNotInitialized
        | E::CryptokiNotInitialized => Class::Stale,
        E::SessionCount => Class::Sessions,
        // One vendor says so when all its sessions are taken (cases.md P33).
        E::ArgumentsBad if call == Call::OpenSession => Class::Sessions,
        E::PinIncorrect
        | E::PinLocked
        | E::PinExpired
        | E::PinInvalid
        | E::PinLenRange
        | E::PinTooWeak
        | E::UserPinNotInitialized
        | E::UserTypeInvalid
        | E::UserAnotherAlreadyLoggedIn => Class::Auth,
        E::SignatureInvalid | E::SignatureLenRange | E::EncryptedDataInvalid | E::EncryptedDataLenRange => {
            Class::Integrity
        }
        E::MechanismInvalid
        | E::MechanismParamInvalid
        | E::KeyFunctionNotPermitted
        | E::KeyTypeInconsistent
        | E::KeySizeRange
        | E::CurveNotSupported
        | E::FunctionNotSupported
        | E::SessionReadOnly
        | E::SessionParallelNotSupported => Class::Config,
        _ => Class::Device,
    }
}

/// The class of what a worker reports.
pub(super) fn of(trouble: &Trouble) -> Class {
    match trouble {
        Trouble::Returned { call, rv } => of_rv(*call, *rv),
        Trouble::NoToken => Class::Removed,
        Trouble::Wrong(_) => Class::Integrity,
        Trouble::Absent { .. }
        | Trouble::Unloadable { .. }
        | Trouble::TokenAmbiguous { .. }
        | Trouble::NoKey { .. }
        | Trouble::KeyAmbiguous { .. }
        | Trouble::Unconfined { .. }
        | Trouble::OutOfOrder => Class::Config,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_names_and_classes() {
        let table = [
            (0x32, "CKR_DEVICE_REMOVED", Class::Removed),
            (0xe0, "CKR_TOKEN_NOT_PRESENT", Class::Removed),
            (0x03, "CKR_SLOT_ID_INVALID", Class::Removed),
            (0x30, "CKR_DEVICE_ERROR", Class::Device),
            (0x05, "CKR_GENERAL_ERROR", Class::Device),
            (0x02, "CKR_HOST_MEMORY", Class::Device),
            (0x8000_0001, "0x80000001", Class::Device),
            (0x7fff_ffff, "0x7fffffff", Class::Device),
            (0xb3, "CKR_SESSION_HANDLE_INVALID", Class::Stale),
            (0x190, "CKR_CRYPTOKI_NOT_INITIALIZED", Class::Stale),
            (0xb1, "CKR_SESSION_COUNT", Class::Sessions),
            (0xa0, "CKR_PIN_INCORRECT", Class::Auth),
            (0xa4, "CKR_PIN_LOCKED", Class::Auth),
            (0xc0, "CKR_SIGNATURE_INVALID", Class::Integrity),
            (0x70, "CKR_MECHANISM_INVALID", Class::Config),
        ];
        for (rv, name, class) in table {
            assert_eq!((rv_name(rv).as_str(), of_rv(Call::Sign, rv)), (name, class));
        }
        assert_eq!(of_rv(Call::OpenSession, 0x07), Class::Sessions);
        assert_eq!(of_rv(Call::Sign, 0x07), Class::Device);
    }
}
