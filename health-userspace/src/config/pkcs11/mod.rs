//! `[service.origin.pkcs11]` and checks of `type = "pkcs11"`.

mod join;
mod read;
#[cfg(test)]
mod tests;
mod write;

pub(super) use join::{add_clocks, cross, interval, timing};
pub(super) use read::{check, origin};
pub(super) use write::partition;

use crate::probe::pkcs11::{Operation, Token};
use health_core::Span;
use std::{collections::BTreeMap, fmt, path::PathBuf};

/// Time between rounds where the file says nothing: the seed's 15 s. An HSM's sessions are for business.
const INTERVAL_DEFAULT: Span = Span::from_secs(15);
/// And while an origin is out: the seed's 10 s.
const RECOVER_DEFAULT: Span = Span::from_secs(10);
/// Sessions and orphans where the file says nothing.
const LIMITS_DEFAULT: (u32, Span) = (10, Span::from_secs(60));
/// The word in the name of the check that watches the clock for another.
pub(super) const CLOCK_SUFFIX: &str = ".clock";

/// Keys that only `type = "pkcs11"` has.
pub(super) const KEYS: &[&str] = &[
    "firmware",
    "hardware",
    "flags_forbid",
    "clock",
    "sessions_max",
    "orphan_ttl",
    "removed_fall",
    "operation",
    "key",
    "mechanism",
    "public_key",
    "pin_file",
    "deadlines",
    "confirm",
    "on_auth_failure",
];

/// The partition that an origin is judged by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pkcs11Origin {
    /// Library that workers load.
    pub module: PathBuf,
    /// Which token.
    pub token: Token,
    /// All that a worker's environment holds.
    pub env: BTreeMap<String, String>,
    /// Whom workers run as, where the daemon is root. Default `nobody`.
    pub user: String,
    /// Address space of a worker. Default 1 GiB. Unit: bytes.
    pub memory_max: u64,
}

/// A check of an HSM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pkcs11Check {
    /// Which token; the origin's, put in by [`CheckConfig::of`](super::CheckConfig::of).
    pub partition: Option<Pkcs11Origin>,
    /// How deep it looks.
    pub depth: Depth,
    /// Versions of the token's firmware that are right.
    pub firmware: Option<Versions>,
    /// Versions of the token's hardware that are right.
    pub hardware: Option<Versions>,
    /// Flags of slot or token that must not be set. Default `error_state`.
    pub flags_forbid: Vec<Flag>,
    /// What is asked of the token's clock, by a check of its own (`NAME.clock`); `None`: another one does.
    pub clock: Option<ClockRule>,
    /// Sessions that all checks of the service may hold, orphans included. Default 10.
    pub sessions_max: u32,
    /// How long a killed worker's sessions are taken to live on. Default 60 s.
    pub orphan_ttl: Span,
    /// `CKR_DEVICE_REMOVED` so many times in a row removes the origin, whatever `fall` says. Default 2.
    pub removed_fall: u8,
    /// How long each step may take.
    pub deadlines: Deadlines,
    /// A failure is confirmed, in a fresh worker, after this. Default 2 s.
    pub confirm: Span,
    /// Whether a refused credential is the HSM's fault (`fault`) or ours (`alarm`, the default).
    pub auth_is_fault: bool,
}

/// How deep a check looks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Depth {
    /// C_GetSlotInfo and C_GetTokenInfo.
    Info,
    /// The same, for the clock's sake alone.
    Clock,
    /// An operation.
    Business(BusinessRule),
}

/// What is done, and with what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BusinessRule {
    /// The operation.
    pub operation: Operation,
    /// `CKA_LABEL` of the key; empty for `random`.
    pub key: String,
    /// PEM of the public key that signatures are held against.
    pub public_key: Option<PathBuf>,
    /// Where the user's PIN stands; none: no login.
    pub pin_file: Option<PathBuf>,
}

/// `clock`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockRule {
    /// Time between looks. Default 10 s.
    pub interval: Span,
    /// How far it may be off. Default 5 s.
    pub drift_max: Span,
    /// Whether a token without a clock is a fault. Default false.
    pub require: bool,
}

/// `deadlines`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// dlopen and C_Initialize. Default 10 s.
    pub load: Span,
    /// Finding the token. Default 5 s.
    pub select: Span,
    /// C_Login, the only call that must not be cut off lightly: SoftHSM rewrites its token in it. Default 15 s.
    pub login: Span,
    /// C_GetSlotInfo and C_GetTokenInfo. Default 2 s.
    pub info: Span,
    /// The operation. Default 5 s.
    pub business: Span,
    /// Closing and C_Finalize. Default 2 s.
    pub close: Span,
}

impl Deadlines {
    const DEFAULT: Self = Self {
        load: Span::from_secs(10),
        select: Span::from_secs(5),
        login: Span::from_secs(15),
        info: Span::from_secs(2),
        business: Span::from_secs(5),
        close: Span::from_secs(2),
    };

    /// A round is over within this even if it begins a worker twice; each of its steps has its own, shorter deadline.
    fn round(&self) -> Span {
        let Self { load, select, login, info, business, close } = *self;
        let sum = [load, select, login, info, business, close].iter().fold(Span::ZERO, |sum, step| sum.plus(*step));
        sum.times(2).plus(Span::from_secs(30))
    }
}

/// A range of versions, each a pair of two numbers: 2.10 is above 2.9.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    /// The least.
    pub first: (u8, u8),
    /// The greatest.
    pub last: (u8, u8),
}

impl Versions {
    /// Whether `version` lies inside.
    #[must_use]
    pub fn contains(&self, version: (u8, u8)) -> bool {
        (self.first..=self.last).contains(&version)
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}-{}.{}", self.first.0, self.first.1, self.last.0, self.last.1)
    }
}

/// A flag of a slot or a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flag {
    /// The word for it: PKCS#11's, without `CKF_`, in small letters.
    pub name: &'static str,
    /// Its bit.
    pub bit: u64,
    /// Whether the slot has it, and not the token.
    pub of_slot: bool,
}

const fn slot(name: &'static str, bit: u64) -> Flag {
    Flag { name, bit, of_slot: true }
}

const fn token(name: &'static str, bit: u64) -> Flag {
    Flag { name, bit, of_slot: false }
}

/// All flags of PKCS#11 v2.40 §3.2 and §3.3.
pub const FLAGS: &[Flag] = &[
    slot("token_present", cryptoki_sys::CKF_TOKEN_PRESENT),
    slot("removable_device", cryptoki_sys::CKF_REMOVABLE_DEVICE),
    slot("hw_slot", cryptoki_sys::CKF_HW_SLOT),
    token("rng", cryptoki_sys::CKF_RNG),
    token("write_protected", cryptoki_sys::CKF_WRITE_PROTECTED),
    token("login_required", cryptoki_sys::CKF_LOGIN_REQUIRED),
    token("user_pin_initialized", cryptoki_sys::CKF_USER_PIN_INITIALIZED),
    token("restore_key_not_needed", cryptoki_sys::CKF_RESTORE_KEY_NOT_NEEDED),
    token("clock_on_token", cryptoki_sys::CKF_CLOCK_ON_TOKEN),
    token("protected_authentication_path", cryptoki_sys::CKF_PROTECTED_AUTHENTICATION_PATH),
    token("dual_crypto_operations", cryptoki_sys::CKF_DUAL_CRYPTO_OPERATIONS),
    token("token_initialized", cryptoki_sys::CKF_TOKEN_INITIALIZED),
    token("secondary_authentication", cryptoki_sys::CKF_SECONDARY_AUTHENTICATION),
    token("user_pin_count_low", cryptoki_sys::CKF_USER_PIN_COUNT_LOW),
    token("user_pin_final_try", cryptoki_sys::CKF_USER_PIN_FINAL_TRY),
    token("user_pin_locked", cryptoki_sys::CKF_USER_PIN_LOCKED),
    token("user_pin_to_be_changed", cryptoki_sys::CKF_USER_PIN_TO_BE_CHANGED),
    token("so_pin_count_low", cryptoki_sys::CKF_SO_PIN_COUNT_LOW),
    token("so_pin_final_try", cryptoki_sys::CKF_SO_PIN_FINAL_TRY),
    token("so_pin_locked", cryptoki_sys::CKF_SO_PIN_LOCKED),
    token("so_pin_to_be_changed", cryptoki_sys::CKF_SO_PIN_TO_BE_CHANGED),
    token(ERROR_STATE, cryptoki_sys::CKF_ERROR_STATE),
];

/// The token says itself that it is broken.
pub const ERROR_STATE: &str = "error_state";
