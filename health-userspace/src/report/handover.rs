//! Pins of other versions.

use serde::{Deserialize, Serialize};

/// Pins of another ABI beside ours: an upgrade or a downgrade is under way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandoverReport {
    /// Its number.
    pub abi: u32,
    /// Redirected flows that its programs serve until those end.
    pub flows: u64,
}
