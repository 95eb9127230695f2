//! The flow table.

use serde::{Deserialize, Serialize};

/// An origin that the maps have a name for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OriginName {
    /// The kernel's number.
    pub id: u16,
    /// Its service.
    pub service: String,
    /// Its name there.
    pub name: String,
}

/// `sluice flows --json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowsReport {
    /// Those that wait longest first, then by the node's side.
    pub flows: Vec<FlowEntry>,
    /// How many more there are.
    pub more: u64,
}

/// One flow of the flow table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowEntry {
    /// Address and port on the node's side; of forwarded flows the client's.
    pub node: String,
    /// Address and port that the node's side talks to.
    pub asked: String,
    /// Service of the origin that serves it.
    pub service: String,
    /// That origin.
    pub origin: String,
    /// Its address and port. Differs from `asked` where packets are redirected.
    pub served_by: String,
    /// The node's port as that origin sees it, where its own was taken on the way there.
    #[serde(default)]
    pub translated_port: Option<u16>,
    /// `half_open`: a SYN without an answer; `established`; `closing`: a side has sent FIN.
    pub state: String,
    /// Age of the SYN or of the request that waits for an answer; `null` when nothing waits. Unit: ms.
    pub unanswered_ms: Option<u64>,
    /// Handshake RTT; `null` when not known. Unit: µs.
    pub rtt_us: Option<u32>,
    /// Packets are rewritten on their way to another origin than the one asked for.
    pub redirected: bool,
    /// The trial of a tripped origin.
    pub trial: bool,
    /// Of a client whose packets the node forwards, not of a socket of this host.
    #[serde(default)]
    pub forwarded: bool,
}
