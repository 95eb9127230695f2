//! What commands print as JSON (design.md §8), and what the daemon hands to them.
//!
//! A field that only the daemon knows is an `Option`: `null` means "not known here", never "zero". Fields beyond those
//! that design.md names are additions; none of the named ones is missing or means something else.

mod failback;
mod flows;
mod handover;
mod probe;
mod view;

pub use failback::{FailbackReport, OrderReport};
pub use flows::{FlowEntry, FlowsReport, OriginName};
pub use handover::HandoverReport;
pub use probe::{ProbeCheck, ProbeOrigin, ProbeReport, ProbeStep};

use health_core::model::State;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// `sluice status --json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatusReport {
    /// The node's name.
    pub node: Option<String>,
    /// When this was true. RFC 3339.
    pub time: Timestamp,
    /// `enforce` or `observe`.
    pub mode: Option<String>,
    /// Whether every write of the last plan reached the kernel and was read back.
    pub in_sync: Option<bool>,
    /// In the configuration's order; `null` fields where the maps don't know.
    pub services: Vec<ServiceReport>,
    /// Where the programs are attached.
    #[serde(default)]
    pub hooks: Vec<HookReport>,
    /// The daemon that wrote this; `null` when the answer is taken from the maps.
    #[serde(default)]
    pub daemon: Option<DaemonReport>,
}

/// The daemon behind a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonReport {
    /// Its process.
    pub pid: u32,
    /// Its version.
    pub version: String,
}

/// One hook that Sluice should hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookReport {
    /// Interface, or cgroup path.
    pub interface: String,
    /// `tc_ingress`, `tc_egress`, `connect4`, …
    pub hook: String,
    /// Whether the program is there.
    pub attached: bool,
    /// Why not, in words.
    #[serde(default)]
    pub detail: Option<String>,
}

/// One service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServiceReport {
    /// Unique name.
    pub name: String,
    /// `enforce` or `observe`.
    #[serde(default)]
    pub mode: Option<String>,
    /// Worst state of any origin that has traffic planned.
    #[serde(with = "state_word")]
    pub state: Option<State>,
    /// Too few are usable, so all are used.
    pub panic: Option<bool>,
    /// Nothing is usable, so new connections are refused.
    #[serde(default)]
    pub refuses: Option<bool>,
    /// Lowest tier that has a share.
    pub active_tier: Option<u8>,
    /// Automatic moves are stopped.
    pub frozen: Option<bool>,
    /// In the configuration's order.
    pub origins: Vec<OriginReport>,
    /// How long `active_tier` has been so. Unit: ms.
    #[serde(default)]
    pub active_tier_ms: Option<u64>,
}

/// One origin of a service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OriginReport {
    /// Unique in its service.
    pub name: String,
    /// Address and port.
    pub address: String,
    /// Tier; 0 is preferred.
    pub priority: Option<u8>,
    /// Condition.
    #[serde(with = "state_word")]
    pub state: Option<State>,
    /// Health, 0 to 100.
    pub score: Option<u8>,
    /// Configured share inside its tier.
    pub weight: Option<u16>,
    /// Share of the service's new flows by the kernel's slot tables, as read back. Unit: percent.
    pub share_percent: Option<f64>,
    /// New connections per second.
    pub conns_per_s: Option<f64>,
    /// New connections per second that it can take.
    pub capacity_cps: Option<u32>,
    /// Open connections.
    pub open: Option<u64>,
    /// Whether the kernel has tripped it.
    pub tripped: Option<bool>,
    /// Stage of its return: `observe`, `waits`, or the percentage of its weight that it has.
    pub stage: Option<String>,
    /// Where the failure sits.
    pub location: Option<String>,
    /// Highest layer that traffic proves to this node.
    pub sees: Option<String>,
    /// Why it is so, worst first.
    pub reasons: Vec<String>,
    /// Age of the newest evidence of any kind. Unit: ms.
    pub evidence_age_ms: Option<u64>,
    /// How long `state` has been so. Unit: ms.
    #[serde(default)]
    pub state_ms: Option<u64>,
    /// What is left of the hold-down. Unit: ms.
    #[serde(default)]
    pub hold_down_ms: Option<u64>,
    /// The kernel's trip, while it lasts.
    #[serde(default)]
    pub trip: Option<TripReport>,
    /// Of a standby: `ready`, or why it could not take what others lose: `unusable`, `certificate`, `unproved`, `stale`, `full`.
    #[serde(default)]
    pub ready: Option<String>,
    /// Why the governor holds its flows where they are, though it should lose them.
    #[serde(default)]
    pub withheld: Option<String>,
    /// How far on its way back it is, behind its hold-down.
    pub failback: Option<FailbackReport>,
    /// The operator's order in force.
    #[serde(default, rename = "override")]
    pub order: Option<OrderReport>,
}

/// A trip in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TripReport {
    /// `connect` or `request`.
    pub streak: String,
    /// How long it has lasted. Unit: ms.
    pub for_ms: Option<u64>,
    /// Time to the next half-open trial. Unit: ms.
    pub trial_in_ms: Option<u64>,
    /// The wait before that trial. Unit: ms.
    pub backoff_ms: Option<u64>,
    /// Trials that failed since.
    pub trials_failed: u32,
}

/// `sluice maps --json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MapsReport {
    /// ABI of the pinned maps.
    pub abi: u32,
    /// The daemon that is alive now. Filled by the command line from the control socket.
    pub daemon_pid: Option<u32>,
    /// Programs that a pinned link or filter should hold.
    pub programs: Vec<ProgramReport>,
    /// All pinned maps.
    pub maps: Vec<MapReport>,
    /// Other layouts whose programs still serve redirected flows.
    #[serde(default)]
    pub handovers: Vec<HandoverReport>,
    /// Frontends, decoded.
    pub frontends: Vec<FrontendReport>,
    /// Origins, decoded.
    pub origins: Vec<OriginEntry>,
    /// The daemon that wrote the maps last, alive or not.
    #[serde(default)]
    pub last_daemon_pid: Option<u32>,
    /// Age of its last sign of life in the maps. Unit: ms.
    #[serde(default)]
    pub daemon_gone_ms: Option<u64>,
}

/// One program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramReport {
    /// Its name in the kernel.
    pub name: String,
    /// Whether it is attached.
    pub attached: bool,
    /// Interface, or cgroup path.
    #[serde(default)]
    pub interface: Option<String>,
    /// Hook.
    #[serde(default)]
    pub hook: Option<String>,
}

/// One map.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapReport {
    /// Name of the pin.
    pub name: String,
    /// Kind of map, in the kernel's words, such as `lru_hash`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Entries in use; `null` where the kind can't be counted (ring buffers).
    pub used: Option<u64>,
    /// Most entries.
    pub max: u64,
    /// What the kernel charges for it. Unit: bytes.
    pub memory_bytes: Option<u64>,
    /// What else is known, such as `evicted 0`.
    #[serde(default)]
    pub note: Option<String>,
}

/// One frontend, from its slot table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrontendReport {
    /// Address and port.
    pub address: String,
    /// Its service.
    pub service: String,
    /// Generation of the slot table in force.
    pub generation: u64,
    /// Slots of each origin, by name.
    pub slots: BTreeMap<String, u32>,
    /// Where flows of a tripped origin go, best first.
    pub armed: Vec<String>,
    /// Which of its origins are tripped.
    pub tripped: Vec<String>,
    /// An operator's order that the kernel knows of, in words.
    #[serde(rename = "override")]
    pub order: Option<String>,
}

/// One origin, from the maps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OriginEntry {
    /// The kernel's number.
    pub id: u32,
    /// Address and port.
    pub address: String,
    /// Its service.
    pub service: String,
    /// Its name there.
    pub name: String,
    /// Every counter that the kernel keeps for it, summed over CPUs.
    pub counters: BTreeMap<String, u64>,
    /// Whether userspace has taken it out.
    #[serde(default)]
    pub blocked: Option<bool>,
    /// The kernel's trip, while it lasts.
    #[serde(default)]
    pub trip: Option<TripReport>,
}

/// One entry of a map that has no report of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapEntry {
    /// Key, decoded.
    pub key: String,
    /// Value, decoded.
    pub value: String,
}

/// One line of `sluice events --json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventLine {
    /// When, on the wall clock. Unit: ns since the epoch.
    pub time_ns: u64,
    /// A stable word, such as `trip`, `rescue`, `state`, `failover`, `override`.
    pub what: String,
    /// `SERVICE`, `SERVICE/ORIGIN`, or `node`.
    pub object: String,
    /// Why, in words.
    pub detail: String,
    /// `kernel`, `judge`, or the operator's name.
    pub by: String,
    /// When, by `CLOCK_MONOTONIC`, for measurements. Unit: ns.
    #[serde(default)]
    pub mono_ns: u64,
}

/// What became of a removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DetachOutcome {
    /// Programs and pins are gone.
    Removed {
        /// Programs detached.
        programs: u64,
        /// Maps unpinned.
        maps: u64,
        /// Redirected flows that were cut.
        flows_cut: u64,
    },
    /// Redirected flows live, so nothing was removed.
    FlowsLive {
        /// How many.
        flows: u64,
    },
    /// Nothing was pinned.
    Nothing,
}

impl StatusReport {
    /// What the maps alone can tell: who gets which share, what is tripped, what is open.
    ///
    /// States are not in the maps, so they stay unknown. Shares count the slots of all frontends of a service alike.
    #[must_use]
    pub fn from_maps(maps: &MapsReport, time: Timestamp) -> Self {
        let mut services: Vec<ServiceReport> = Vec::new();
        for origin in &maps.origins {
            let known = services.iter().position(|service| service.name == origin.service);
            let place = known.unwrap_or_else(|| {
                services.push(ServiceReport { name: origin.service.clone(), ..ServiceReport::default() });
                services.len() - 1
            });
            services[place].origins.push(OriginReport::from_maps(maps, origin));
        }
        Self { node: None, time, mode: None, in_sync: None, services, hooks: maps.hooks(), daemon: None }
    }
}

impl OriginReport {
    fn from_maps(maps: &MapsReport, origin: &OriginEntry) -> Self {
        let mut own = 0.0;
        let mut all = 0.0;
        let mut tripped = origin.trip.is_some();
        for frontend in maps.frontends.iter().filter(|frontend| frontend.service == origin.service) {
            own += f64::from(frontend.slots.get(&origin.name).copied().unwrap_or(0));
            all += f64::from(frontend.slots.values().copied().sum::<u32>());
            tripped |= frontend.tripped.contains(&origin.name);
        }
        let mut reasons = Vec::new();
        if origin.blocked == Some(true) {
            reasons.push("taken out by the daemon before it ended".to_owned());
        }
        Self {
            name: origin.name.clone(),
            address: origin.address.clone(),
            share_percent: (all > 0.0).then(|| own * 100.0 / all),
            open: origin.counters.get("conns_open").copied(),
            tripped: Some(tripped),
            reasons,
            trip: origin.trip.clone(),
            ..Self::default()
        }
    }
}

impl MapsReport {
    /// The programs that say where they belong.
    #[must_use]
    pub fn hooks(&self) -> Vec<HookReport> {
        let placed = self.programs.iter().filter_map(|program| {
            let (Some(interface), Some(hook)) = (&program.interface, &program.hook) else { return None };
            Some(HookReport {
                interface: interface.clone(),
                hook: hook.clone(),
                attached: program.attached,
                detail: None,
            })
        });
        placed.collect()
    }
}

/// [`State`] as its word, so that the pure core needs no serde.
mod state_word {
    use super::State;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    #[allow(
        clippy::ref_option,
        clippy::trivially_copy_pass_by_ref,
        reason = "the signature that serde's `with` asks for"
    )]
    pub(super) fn serialize<S: Serializer>(state: &Option<State>, serializer: S) -> Result<S::Ok, S::Error> {
        state.map(State::name).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<State>, D::Error> {
        let Some(word) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
        let state = State::ALL.into_iter().find(|state| state.name() == word);
        state.map(Some).ok_or_else(|| D::Error::custom(format!("unknown state `{word}`")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(value: &serde_json::Value) -> Vec<&str> {
        value.as_object().map(|object| object.keys().map(String::as_str).collect()).unwrap_or_default()
    }

    /// Every key that design.md §8 names is there, `null` where it isn't known.
    #[test]
    fn documents_have_the_keys_of_the_contract() {
        let status = StatusReport {
            node: None,
            time: Timestamp::UNIX_EPOCH,
            mode: None,
            in_sync: None,
            services: vec![ServiceReport { origins: vec![OriginReport::default()], ..ServiceReport::default() }],
            hooks: Vec::new(),
            daemon: None,
        };
        let maps = MapsReport {
            programs: vec![ProgramReport::default()],
            maps: vec![MapReport::default()],
            frontends: vec![FrontendReport::default()],
            origins: vec![OriginEntry::default()],
            ..MapsReport::default()
        };
        let status = serde_json::to_value(status).expect("serialises");
        let maps = serde_json::to_value(maps).expect("serialises");
        let event = serde_json::to_value(EventLine::default()).expect("serialises");
        let table: [(&serde_json::Value, &[&str]); 8] = [
            (&status, &["node", "time", "mode", "in_sync", "services"]),
            (&status["services"][0], &["name", "state", "panic", "active_tier", "frozen", "origins"]),
            (
                &status["services"][0]["origins"][0],
                &[
                    "name",
                    "address",
                    "priority",
                    "state",
                    "score",
                    "weight",
                    "share_percent",
                    "conns_per_s",
                    "capacity_cps",
                    "open",
                    "tripped",
                    "stage",
                    "location",
                    "sees",
                    "reasons",
                    "evidence_age_ms",
                ],
            ),
            (&maps, &["abi", "daemon_pid", "programs", "maps", "frontends", "origins"]),
            (&maps["maps"][0], &["name", "type", "used", "max", "memory_bytes"]),
            (&maps["frontends"][0], &["address", "service", "generation", "slots", "armed", "tripped", "override"]),
            (&maps["origins"][0], &["id", "address", "service", "name", "counters"]),
            (&event, &["time_ns", "what", "object", "detail", "by"]),
        ];
        for (document, wanted) in table {
            let have = keys(document);
            for key in wanted {
                assert!(have.contains(key), "`{key}` is missing in {have:?}");
            }
        }
        assert!(status["services"][0]["state"].is_null());
    }

    #[test]
    fn a_state_goes_there_and_back_as_its_word() {
        for state in State::ALL {
            let service = ServiceReport { state: Some(state), ..ServiceReport::default() };
            let text = serde_json::to_string(&service).expect("serialises");
            assert!(text.contains(state.name()), "{text}");
            assert_eq!(serde_json::from_str::<ServiceReport>(&text).expect("parses"), service);
        }
        assert!(serde_json::from_str::<ServiceReport>(r#"{"name":"x","state":"up","origins":[]}"#).is_err());
    }

    #[test]
    fn shares_are_the_slots_of_all_frontends_of_the_service() {
        let frontend = |service: &str, slots: &[(&str, u32)], tripped: &[&str]| FrontendReport {
            service: service.to_owned(),
            slots: slots.iter().map(|&(name, count)| (name.to_owned(), count)).collect(),
            tripped: tripped.iter().map(|&name| name.to_owned()).collect(),
            ..FrontendReport::default()
        };
        let origin = |service: &str, name: &str| OriginEntry {
            service: service.to_owned(),
            name: name.to_owned(),
            counters: BTreeMap::from([("conns_open".to_owned(), 3)]),
            ..OriginEntry::default()
        };
        let maps = MapsReport {
            frontends: vec![
                frontend("shop", &[("a", 0), ("b", 251)], &["a"]),
                frontend("shop", &[("a", 251)], &[]),
                frontend("news", &[("a", 251)], &[]),
            ],
            origins: vec![origin("shop", "a"), origin("shop", "b"), origin("idle", "z")],
            ..MapsReport::default()
        };
        let status = StatusReport::from_maps(&maps, Timestamp::UNIX_EPOCH);
        let shop = &status.services[0].origins;
        assert_eq!((shop[0].share_percent, shop[0].tripped, shop[0].open), (Some(50.0), Some(true), Some(3)));
        assert_eq!((shop[1].share_percent, shop[1].tripped), (Some(50.0), Some(false)));
        assert_eq!(shop[0].state, None, "the maps don't hold states");
        assert_eq!(status.services[1].origins[0].share_percent, None, "no frontend, no share");
    }
}
