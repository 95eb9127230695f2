//! What `/metrics` shows, as plain data.
//!
//! Counters are cumulative, since the maps were made or since the daemon began, and never step back while it runs.
//! `None` and empty lists make no series: what isn't measured is absent, not zero. Words that become label values
//! are `&'static str` in `snake_case`, which keeps labels bounded and clients' addresses out of them.

use super::histogram::Histogram;
use health_core::model::State;
use std::time::Duration;

/// Everything.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scrape {
    /// One entry a service.
    pub services: Vec<ServiceScrape>,
    /// The node itself.
    pub node: NodeScrape,
}

/// A cumulative counter with one word for a label.
pub type Tally = (&'static str, u64);

/// One service.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServiceScrape {
    /// Its name.
    pub name: String,
    /// One entry an origin.
    pub origins: Vec<OriginScrape>,
    /// Handshake round trips; [`super::histogram::RTT_BOUNDS`].
    pub rtt: Option<Histogram>,
    /// Times to first byte; [`super::histogram::TTFB_BOUNDS`].
    pub ttfb: Option<Histogram>,
    /// Rescues by kind: `turn_around`, `re_steer`.
    pub rescues: Vec<Tally>,
    /// Trips by reason: `refused`, `syn_timeout`, `reset_early`, `no_response`, `unreachable`, `http_5xx`.
    pub trips: Vec<Tally>,
    /// Moves to another tier.
    pub failovers: Option<u64>,
    /// Steps of those moves: `trip`, `map_written`, `first_flow`; each since the first bad packet.
    pub failover_steps: Vec<(&'static str, Histogram)>,
    /// Nothing is usable, so all are used.
    pub panic: Option<bool>,
    /// Origins that may be chosen.
    pub usable_origins: Option<u64>,
    /// Standbys that could take what others lose.
    pub standby_ready: Option<u64>,
    /// New flows that an origin had no capacity for.
    pub overflow: Option<u64>,
    /// Established connections to origins in fault that were ended, by kind: `idle`, `socket`, `forwarded`.
    pub resets: Vec<Tally>,
    /// What was computed and not done, by reason: `trip`, `move`, `rescue`, and the governor's words.
    pub withheld: Vec<Tally>,
}

/// One origin.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OriginScrape {
    /// Its name.
    pub name: String,
    /// Condition.
    pub state: Option<State>,
    /// Health, 0 to 100.
    pub score: Option<u8>,
    /// Share of the service's new flows, 0 to 1.
    pub weight_ratio: Option<f64>,
    /// What the kernel measured: `syn`, `synack`, `refused`, …
    pub signals: Vec<Tally>,
    /// Clients behind the failures of its traffic in the window.
    pub failure_spread: Option<u8>,
    /// Its checks.
    pub checks: Vec<CheckScrape>,
    /// Age of the newest evidence of any kind.
    pub evidence_age: Option<Duration>,
    /// Time until the operator's order ends by itself.
    pub override_expiry: Option<Duration>,
    /// Handshake round trips, where the configuration wants them per origin; then the service's is `None`.
    pub rtt: Option<Histogram>,
    /// Times to first byte, likewise.
    pub ttfb: Option<Histogram>,
}

/// One check of one origin.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CheckScrape {
    /// Its name.
    pub name: String,
    /// Rounds by result: `pass`, `slow`, `fail`, `local`.
    pub results: Vec<Tally>,
    /// How long the last round took.
    pub last_duration: Option<Duration>,
}

/// The node itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeScrape {
    /// New flows sent elsewhere, by hook.
    pub steered: Vec<Tally>,
    /// Hooks that should be held.
    pub attached: Vec<AttachedScrape>,
    /// Pinned maps.
    pub maps: Vec<MapScrape>,
    /// Flows pushed out of a full table, by table.
    pub flow_evictions: Vec<Tally>,
    /// Writes to maps that failed; each is planned again.
    pub map_write_errors: Option<u64>,
    /// Whether the kernel has what was planned.
    pub in_sync: Option<bool>,
    /// Kernel events that found the ring buffer full.
    pub events_lost: Option<u64>,
    /// Packets passed without a look, by reason.
    pub parse_skipped: Vec<Tally>,
    /// Flows not moved, because the translated tuple was taken.
    pub nat_collisions: Option<u64>,
    /// Rounds of checks that this node was too late for: dropped, or no evidence.
    pub checks_late: Option<u64>,
    /// How late rounds began, those that were hurried left out.
    pub check_lateness: Option<Histogram>,
    /// How late the last tick was.
    pub loop_lag: Option<Duration>,
    /// The last reload.
    pub reload: Option<ReloadScrape>,
    /// Sessions on the HSMs of each service: of living workers, and orphans of killed ones.
    pub pkcs11_sessions: Vec<(String, u32, u32)>,
    /// What runs here.
    pub build: Option<BuildScrape>,
}

/// One hook.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttachedScrape {
    /// Interface, or cgroup path.
    pub interface: String,
    /// `tc_ingress`, `tc_egress`, `connect4`, …
    pub hook: &'static str,
    /// Whether it is held.
    pub attached: bool,
}

/// One pinned map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MapScrape {
    /// Its name.
    pub name: &'static str,
    /// Entries in use, where the kind can be counted.
    pub entries: Option<u64>,
    /// Most entries.
    pub max: u64,
}

/// The last reload; the start counts as one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ReloadScrape {
    /// Whether it was applied.
    pub success: bool,
    /// When the configuration in force was applied. Unit: seconds since the epoch.
    pub applied_at: f64,
}

/// What runs here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BuildScrape {
    /// Version of the binary.
    pub version: String,
    /// ABI of the pinned maps.
    pub abi: u32,
}
