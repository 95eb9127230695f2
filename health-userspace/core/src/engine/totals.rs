//! What the kernel has counted of one origin.

use crate::{
    clients::Clients,
    time::{Span, Timestamp},
};

/// Cumulative counters of one origin. A counter that goes back means that the maps are new.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficTotals {
    /// First SYNs.
    pub syn: u64,
    /// Repeats of them.
    pub syn_retrans: u64,
    /// Accepted answers to them.
    pub synack: u64,
    /// Those of them that came after the SYN timeout.
    pub synack_late: u64,
    /// RST answering a SYN.
    pub refused: u64,
    /// SYNs that outlived the origin's timeout unanswered.
    pub syn_timeout: u64,
    /// ICMP errors that say that the host or its network can't be reached.
    pub unreachable: u64,
    /// Requests sent.
    pub request: u64,
    /// First response bytes.
    pub response: u64,
    /// Those of them that came after the response timeout.
    pub response_late: u64,
    /// Those of them that were read as an HTTP status from 200 to 499.
    pub http_good: u64,
    /// Those of them that were read as an HTTP status from 500 on.
    pub http_5xx: u64,
    /// Requests that outlived the response timeout unanswered.
    pub no_response: u64,
    /// RST after the handshake and before the first response byte.
    pub reset_early: u64,
    /// RST in the middle of a response.
    pub reset_mid: u64,
    /// Whose connections failed, as far as that is known.
    pub connect_by: Clients,
    /// Whose requests failed, likewise.
    pub request_by: Clients,
    /// Who waits for a first answer since the last one: a bit for each client.
    pub syn_waits: u32,
    /// Who waits for a response since the last one.
    pub request_waits: u32,
    /// Connections that are open.
    pub open: u64,
    /// When its last packet came.
    pub last_seen: Timestamp,
    /// Handshake RTT: samples since the beginning, and p99 of the recent past.
    pub rtt: Quantile,
    /// Time to first byte, likewise.
    pub ttfb: Quantile,
    /// Times to first byte since the beginning.
    pub ttfb_all: Sum,
}

/// Times that were measured since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// How many.
    pub samples: u64,
    /// All of them together, as exact as the histogram that they come from.
    pub total: Span,
}

/// A percentile of the recent past, by the shell's histogram maths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quantile {
    /// Samples that it rests on.
    pub samples: u64,
    /// 99th percentile.
    pub p99: Span,
}
