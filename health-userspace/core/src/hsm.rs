//! Why a check of an HSM failed.

/// The failures that only HSMs have. Stable codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hsm {
    /// The token or its device has gone: `CKR_DEVICE_REMOVED` and its like.
    Removed,
    /// The device, or the way to it, is ill: `CKR_DEVICE_ERROR` and its like.
    Device,
    /// Handles that were good are not, in a fresh process either.
    Stale,
    /// No session is to be had.
    Sessions,
    /// The credential is refused, and the operator has said that this is the HSM's fault.
    Auth,
    /// A wrong signature, or something decrypted to something else.
    Integrity,
    /// The key has gone, or there are several of its name.
    Key,
    /// What once worked is not possible any more: mechanism, permission.
    Unsupported,
    /// Firmware of a version that the operator does not want.
    Firmware,
    /// Hardware of such a version.
    Hardware,
    /// A flag that the operator forbids.
    Flag,
    /// The token's clock is off.
    ClockSkew,
    /// The token's clock was never set.
    ClockUnset,
    /// The token's time is no time.
    ClockMalformed,
    /// The token's time is a time that does not exist.
    ClockImpossible,
    /// The token's clock stands still.
    ClockFrozen,
    /// The token has no clock though the operator requires one.
    ClockMissing,
    /// The module killed the process that had loaded it.
    Worker,
}

impl Hsm {
    /// The word for it in output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Removed => "removed",
            Self::Device => "device_error",
            Self::Stale => "stale",
            Self::Sessions => "sessions_exhausted",
            Self::Auth => "auth",
            Self::Integrity => "integrity",
            Self::Key => "key_missing",
            Self::Unsupported => "unsupported",
            Self::Firmware => "firmware_out_of_range",
            Self::Hardware => "hardware_out_of_range",
            Self::Flag => "flag_forbidden",
            Self::ClockSkew => "clock_skew",
            Self::ClockUnset => "clock_unset",
            Self::ClockMalformed => "clock_malformed",
            Self::ClockImpossible => "clock_impossible",
            Self::ClockFrozen => "clock_frozen",
            Self::ClockMissing => "clock_not_offered",
            Self::Worker => "worker_died",
        }
    }

    /// Whether what the HSM serves is wrong, however much traffic it answers.
    pub(crate) const fn is_integrity(self) -> bool {
        matches!(
            self,
            Self::Integrity
                | Self::Firmware
                | Self::Hardware
                | Self::Flag
                | Self::ClockSkew
                | Self::ClockUnset
                | Self::ClockMalformed
                | Self::ClockImpossible
                | Self::ClockFrozen
                | Self::ClockMissing
        )
    }
}
