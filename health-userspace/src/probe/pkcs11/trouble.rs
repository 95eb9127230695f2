//! Why a worker could not do what it was asked.

use super::slate::Call;
use serde::{Deserialize, Serialize};

/// Why a request was not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum Trouble {
    /// The module said no.
    #[error("{} returned {}", call.name(), super::class::rv_name(*rv))]
    Returned {
        /// By this function.
        call: Call,
        /// With this `CK_RV`.
        rv: u64,
    },
    /// The module has no such function.
    #[error("the module has no {}", call.name())]
    Absent {
        /// This one.
        call: Call,
    },
    /// dlopen or dlsym failed.
    #[error("the module cannot be loaded: {why}")]
    Unloadable {
        /// In the linker's words.
        why: String,
    },
    /// No token is the one that is meant.
    #[error("no token has that serial or label")]
    NoToken,
    /// Several are.
    #[error("{count} tokens have that label; name the serial")]
    TokenAmbiguous {
        /// So many.
        count: u32,
    },
    /// No key has the label.
    #[error("no {kind} key has that label")]
    NoKey {
        /// `private`, `public` or `secret`.
        kind: KeyKind,
    },
    /// Several have.
    #[error("{count} {kind} keys have that label")]
    KeyAmbiguous {
        /// `private`, `public` or `secret`.
        kind: KeyKind,
        /// So many, or more.
        count: u32,
    },
    /// The token gave something that cannot be right.
    #[error("wrong answer: {0}")]
    Wrong(Wrong),
    /// This process could not be confined.
    #[error("the worker cannot be confined: {why}")]
    Unconfined {
        /// Step and error.
        why: String,
    },
    /// The request makes no sense now.
    #[error("out of order")]
    OutOfOrder,
}

/// A wrong answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum Wrong {
    /// A length that no such output has.
    #[error("an impossible length")]
    Length,
    /// What was decrypted is not what was encrypted.
    #[error("decrypted to something else")]
    Decrypted,
    /// The ciphertext is the plain text.
    #[error("did not encrypt")]
    Plain,
    /// Two random numbers are equal, or empty of chance.
    #[error("random numbers that are not")]
    Random,
}

/// Class of a key object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyKind {
    /// CKO_PRIVATE_KEY.
    Private,
    /// CKO_PUBLIC_KEY.
    Public,
    /// CKO_SECRET_KEY.
    Secret,
}

impl std::fmt::Display for KeyKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Private => "private",
            Self::Public => "public",
            Self::Secret => "secret",
        })
    }
}
