//! One lab with everything in it that a group of episodes needs, and what is read off it.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use lab::{
    Daemon, Event, HaProxy, Lab, LabConfig, LabOptions, Load, LoadOptions, Namespace, Nginx, PROXY_PORT, ProxyKind,
};
use lab::{now_ns, stop};

use super::figures::Steered;
use super::plan::{Group, Route};
use super::view::{self, Frame, Second};

/// Between two looks at the daemon. Each look is a process.
const LOOK: Duration = Duration::from_millis(500);
/// Connections of the last second, a little ago so that they have ended. Unit: ns.
const JUST_NOW_NS: std::ops::Range<u64> = 200_000_000..1_200_000_000;

/// The proxy of a path that has one; ends on drop.
#[derive(Debug)]
enum Proxy {
    Nginx { _running: Nginx },
    HaProxy { _running: HaProxy },
}

/// Everything that one group of episodes needs. Field order is drop order.
pub(super) struct Scene<'a> {
    pub(super) load: Load,
    daemon: Option<Daemon>,
    _proxy: Option<Proxy>,
    pub(super) lab: Lab,
    pub(super) group: &'a Group,
    pub(super) title: String,
    pub(super) phase: &'static str,
    /// Zero of the shown seconds: the fault, once it is there.
    pub(super) zero_ns: u64,
    pub(super) states: String,
    events: Vec<String>,
    looked: Instant,
    /// Whether the node was seen to have lost a's address since [`Self::watch_neighbour`].
    neighbour_lost: bool,
    neighbour_looked: Instant,
}

impl<'a> Scene<'a> {
    /// Builds the lab and starts the daemon, the proxy and the load in it.
    pub(super) fn set(group: &'a Group, binary: Option<&Path>) -> Result<Self> {
        let family = group.family;
        let lab = Lab::new(LabOptions { two_links: group.two_links })?;
        let config = match group.route {
            Route::Packet => LabConfig::of(&lab).without_socket_steering(),
            Route::Forwarded => {
                lab.forward()?;
                LabConfig::of(&lab).with_forwarded(&lab)
            }
            Route::Local | Route::Nginx | Route::Haproxy => LabConfig::of(&lab),
        };
        let daemon = match binary {
            None => None,
            Some(binary) => {
                let mut daemon = Daemon::with_binary(&lab, &config, binary.to_owned())?;
                daemon.start()?;
                Some(daemon)
            }
        };
        let upstream = lab.origin_a(family);
        let proxy = match group.route {
            Route::Local | Route::Packet | Route::Forwarded => None,
            Route::Nginx => {
                let running = Nginx::proxy(&lab.node, lab.dir(), PROXY_PORT, upstream, ProxyKind::Defaults)?;
                Some(Proxy::Nginx { _running: running })
            }
            Route::Haproxy => {
                Some(Proxy::HaProxy { _running: HaProxy::start(&lab.node, lab.dir(), PROXY_PORT, upstream)? })
            }
        };
        let (from, target): (&Namespace, _) = match group.route {
            Route::Local | Route::Packet => (&lab.node, upstream),
            Route::Forwarded => (&lab.client, upstream),
            Route::Nginx | Route::Haproxy => (&lab.client, lab.node_for_client(family, PROXY_PORT)),
        };
        // Through a proxy all clients are one.
        let sources = (group.route == Route::Forwarded).then(|| lab.clients(family));
        let options = LoadOptions { method: group.method, sources, ..LoadOptions::figures(target) };
        let load = Load::start(from, options)?;
        Ok(Self {
            load,
            daemon,
            _proxy: proxy,
            lab,
            group,
            title: String::new(),
            phase: "",
            zero_ns: now_ns(),
            states: String::new(),
            events: Vec::new(),
            looked: Instant::now(),
            neighbour_lost: false,
            neighbour_looked: Instant::now(),
        })
    }

    /// Records since `from_ns`, by start.
    pub(super) fn records(&self, from_ns: u64) -> Vec<lab::Record> {
        let mut records = self.load.pick(|record| record.start_ns >= from_ns);
        records.sort_by_key(|record| record.start_ns);
        records
    }

    pub(super) fn all_on_a(&self) -> bool {
        let now = now_ns();
        let just_now = self.load.pick(|record| JUST_NOW_NS.contains(&now.saturating_sub(record.start_ns)));
        !just_now.is_empty() && just_now.iter().all(|record| record.outcome.is_ok() && record.origin == Some('a'))
    }

    pub(super) fn both_healthy(&mut self) -> bool {
        self.look();
        self.daemon.is_none() || self.states == "a healthy, b healthy"
    }

    /// Reads states and the last events, at most every [`LOOK`].
    pub(super) fn look(&mut self) {
        let Some(daemon) = &self.daemon else { return };
        if self.looked.elapsed() < LOOK && !self.states.is_empty() {
            return;
        }
        self.looked = Instant::now();
        let service = self.group.family.service();
        self.states = match daemon.status() {
            Err(error) => format!("no status: {error:#}"),
            Ok(status) => {
                let state = |origin| status.state(service, origin).unwrap_or("?").to_owned();
                format!("a {}, b {}", state("a"), state("b"))
            }
        };
        if let Ok(mut events) = daemon.events() {
            events.sort_by_key(|event| event.at_ns);
            self.events =
                events.iter().rev().take(view::EVENTS_MAX).rev().map(|event| self.event_line(event)).collect();
        }
    }

    fn event_line(&self, event: &Event) -> String {
        let Event { at_ns, what, object, detail, by } = event;
        let since = Duration::from_nanos(at_ns.saturating_sub(self.zero_ns)).as_secs_f64();
        let before = if *at_ns < self.zero_ns { "before".to_owned() } else { format!("+{since:.3}s") };
        format!("{before:>9}  {what:<9} {object:<9} {detail}  {by}")
    }

    pub(super) fn frame(&self, since_begin: Duration) -> Frame {
        let (zero_ns, now) = (self.zero_ns, now_ns());
        let current = now.saturating_sub(zero_ns) / 1_000_000_000;
        let mut seconds: Vec<Second> = (current.saturating_sub(view::SECONDS_MAX)..=current).map(Second::new).collect();
        self.load.look(|records| {
            for record in records.iter().filter(|record| record.start_ns >= zero_ns) {
                let second = (record.start_ns - zero_ns) / 1_000_000_000;
                if let Some(shown) = seconds.iter_mut().find(|shown| shown.number == second) {
                    shown.count(record);
                }
            }
        });
        Frame {
            title: self.title.clone(),
            phase: self.phase,
            phase_for: Duration::from_nanos(now.saturating_sub(zero_ns)),
            run_for: since_begin,
            states: self.states.clone(),
            seconds,
            events: self.events.clone(),
        }
    }

    pub(super) fn all_events(&self) -> Result<Vec<Event>> {
        let mut events = self.daemon.as_ref().map_or_else(|| Ok(Vec::new()), Daemon::events)?;
        events.sort_by_key(|event| event.at_ns);
        Ok(events)
    }

    /// Looks now and then whether the node has lost a's address, until it was seen once.
    pub(super) fn watch_neighbour(&mut self, anew: bool) -> Result<bool> {
        if anew {
            self.neighbour_lost = false;
        }
        if !self.neighbour_lost && (anew || self.neighbour_looked.elapsed() >= LOOK) {
            self.neighbour_looked = Instant::now();
            self.neighbour_lost = self.lab.neighbour_lost(self.group.family)?;
        }
        Ok(self.neighbour_lost)
    }

    /// What the metrics have counted so far. A series that is not there has not counted yet.
    pub(super) fn steered(&self) -> Option<Steered> {
        let metrics = self.daemon.as_ref()?.metrics().ok()?;
        let count = |name, label| {
            let value = metrics.value(name, &[label]).unwrap_or_default();
            format!("{value:.0}").parse().unwrap_or_default()
        };
        let steered = |hook| count("sluice_steered_total", ("hook", hook));
        Some(Steered {
            connect: steered("connect"),
            tc_egress: steered("tc_egress"),
            tc_client: steered("tc_client"),
            rescued: count("sluice_rescue_total", ("service", self.group.family.service())),
        })
    }

    pub(super) fn log_tail(&self) -> String {
        match &self.daemon {
            // After Ctrl-C nobody asks why.
            Some(daemon) if !stop::requested() => format!("\nthe end of the daemon's log:\n{}", daemon.log_tail()),
            _ => String::new(),
        }
    }
}
