//! What `status` and `/metrics` show, read back from the kernel after the plan was written.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use health_common::{ABI_VERSION, event::Event, map::Count};
use health_core::{
    Span, Timestamp,
    model::{LocalReason, OriginId, Outcome, ServiceSpec, State},
};

mod shares;

use shares::shares;

use super::{Daemon, counted::Counted};
use crate::{
    config::{Detail, ServiceConfig},
    control::Published,
    datapath::{OriginReading, report::trip},
    probe::{self, Report},
    report::{DaemonReport, HookReport, ServiceReport, StatusReport},
    telemetry::{
        AttachedScrape, BuildScrape, CheckScrape, Histogram, NodeScrape, OriginScrape, ReloadScrape, Scrape,
        ServiceScrape,
        histogram::{LATE_BOUNDS, RTT_BOUNDS, STEP_BOUNDS, TTFB_BOUNDS},
    },
};

/// Time between two publications without an occasion.
const PUBLISH: Span = Span::from_millis(500);

/// A publication is followed by a pause of so many times its length: ten thousand origins take a while to show.
const PUBLISH_FACTOR: u64 = 19;

/// Time over which a rate of new connections is measured.
const RATE: Span = Span::from_secs(1);

/// What this process counts by itself.
#[derive(Debug, Default)]
pub(super) struct Tallies {
    pub(super) write_errors: u64,
    pub(super) reload: Option<ReloadScrape>,
    publish_next: Timestamp,
    checks: BTreeMap<(OriginId, u16), CheckTally>,
    lateness: Option<Histogram>,
    /// Rounds that were dropped, or say nothing, because this node was late.
    late: u64,
    failovers: BTreeMap<String, u64>,
    steps: BTreeMap<(String, &'static str), Histogram>,
    /// First bad packet of each origin's trip.
    first_bad: BTreeMap<u16, u64>,
    /// Times that the next hop of each origin was not found on its link.
    unreachable: BTreeMap<u16, u64>,
    rates: BTreeMap<u16, Rate>,
    tiers: BTreeMap<String, (Option<u8>, Timestamp)>,
    pub(super) held: Counted,
    pub(super) resets: Counted,
}

#[derive(Debug, Default)]
struct CheckTally {
    pass: u64,
    slow: u64,
    fail: u64,
    local: u64,
    last: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    at: Timestamp,
    syns: u64,
    per_s: Option<f64>,
}

impl Tallies {
    /// Nothing counted yet; the start counts as a reload that succeeded.
    pub(super) fn started() -> Self {
        Self { reload: Some(ReloadScrape { success: true, applied_at: epoch_seconds() }), ..Self::default() }
    }

    pub(super) fn check(&mut self, Report { result, late, .. }: &Report) {
        if let Some(late) = late {
            let lateness = self.lateness.get_or_insert_with(|| Histogram::new(LATE_BOUNDS));
            lateness.observe(Duration::from_nanos(late.0));
        }
        let tally = self.checks.entry((result.origin, result.check)).or_default();
        match result.outcome {
            Outcome::Pass => tally.pass += 1,
            Outcome::Slow => tally.slow += 1,
            Outcome::Fail(_) => tally.fail += 1,
            Outcome::Local(_) => tally.local += 1,
        }
        self.late += u64::from(result.outcome == Outcome::Local(LocalReason::Late));
        tally.last = Duration::from_nanos(result.ended.since(result.began).0);
    }

    /// Forgets results whose places mean other checks now.
    pub(super) fn forget_checks(&mut self) {
        self.checks.clear();
    }

    pub(super) fn failover(&mut self, service: &str) {
        *self.failovers.entry(service.to_owned()).or_default() += 1;
    }

    pub(super) fn tripped(&mut self, event: &Event) {
        self.first_bad.insert(event.origin, event.first_bad_ns);
    }

    pub(super) fn first_bad(&self, origin: u16) -> Option<u64> {
        self.first_bad.get(&origin).copied()
    }

    /// The kernel half counts what ICMP says; what the neighbour table says is counted here.
    pub(super) fn unreachable(&mut self, origin: u16) {
        *self.unreachable.entry(origin).or_default() += 1;
    }

    /// A fault was judged; the map follows within the same tick.
    pub(super) fn judged(&mut self, origin: u16, at: Timestamp, service: &str) {
        if let Some(bad) = self.first_bad(origin) {
            self.step(service, "map_written", Duration::from_nanos(at.0.saturating_sub(bad)));
        }
    }

    pub(super) fn step(&mut self, service: &str, step: &'static str, took: Duration) {
        let key = (service.to_owned(), step);
        self.steps.entry(key).or_insert_with(|| Histogram::new(STEP_BOUNDS)).observe(took);
    }

    fn rate(&mut self, origin: u16, syns: u64, now: Timestamp) -> Option<f64> {
        let rate = self.rates.entry(origin).or_default();
        let span = now.since(rate.at);
        if span >= RATE {
            if rate.at != Timestamp::NEVER {
                // Counts and times of a second are far below 2^53.
                #[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
                let per_s = syns.saturating_sub(rate.syns) as f64 / (span.0 as f64 / 1e9);
                rate.per_s = Some((per_s * 10.0).round() / 10.0);
            }
            (rate.at, rate.syns) = (now, syns);
        }
        rate.per_s
    }

    fn tier_ms(&mut self, service: &str, tier: Option<u8>, now: Timestamp) -> u64 {
        let entry = self.tiers.entry(service.to_owned()).or_insert((tier, now));
        if entry.0 != tier {
            *entry = (tier, now);
        }
        now.since(entry.1).as_millis()
    }
}

impl Daemon {
    /// Publishes, if there is an occasion or it was long ago.
    pub(super) fn publish(&mut self, now: Timestamp, occasion: bool) {
        if !occasion && now < self.tallies.publish_next {
            return;
        }
        let status = self.status_report(now);
        self.metrics.replace(self.scrape(&status));
        // Without a reader, nothing is lost.
        self.status.send_replace(Some(Arc::new(Published { status })));
        let pause = probe::now().since(now).times(PUBLISH_FACTOR).max(PUBLISH);
        self.tallies.publish_next = now.after(pause);
    }

    fn status_report(&mut self, now: Timestamp) -> StatusReport {
        let views = self.last.as_ref().map(|step| step.view.clone()).unwrap_or_default();
        let mut services = Vec::with_capacity(self.specs.len());
        for (spec, config) in self.specs.iter().zip(&self.config.services) {
            let Some(view) = views.iter().find(|view| view.id == spec.id) else { continue };
            let mut report = ServiceReport::from_view(spec, view, now);
            report.active_tier_ms = Some(self.tallies.tier_ms(&spec.name, view.active_tier, now));
            let shares = shares(&self.datapath, spec);
            for (origin, own) in report.origins.iter_mut().zip(&spec.origins) {
                let reading = self.readings.get(&own.id.0);
                let address = config.origins.iter().find(|candidate| candidate.name == own.name);
                origin.address = address.map_or_else(String::new, |found| found.address.to_string());
                origin.share_percent = shares.get(&own.id.0).copied();
                origin.open = reading.map(OriginReading::open);
                origin.trip = reading.and_then(|reading| trip(reading, now));
                let syns = reading.map_or(0, |reading| reading.signals.syn);
                origin.conns_per_s = self.tallies.rate(own.id.0, syns, now);
            }
            services.push(report);
        }
        StatusReport {
            node: Some(self.config.node.name.clone()),
            time: jiff::Timestamp::now(),
            mode: Some(self.config.node.mode.name().to_owned()),
            in_sync: Some(self.applied.in_sync()),
            services,
            hooks: self.hook_reports(),
            daemon: Some(DaemonReport { pid: std::process::id(), version: env!("CARGO_PKG_VERSION").to_owned() }),
        }
    }

    fn hook_reports(&self) -> Vec<HookReport> {
        let hooks = self.datapath.hooks().into_iter();
        hooks
            .map(|hook| HookReport {
                interface: hook.target,
                hook: hook.hook.to_owned(),
                attached: hook.missing.is_none(),
                detail: hook.missing,
            })
            .collect()
    }

    fn scrape(&self, status: &StatusReport) -> Scrape {
        let services = self.specs.iter().zip(&self.config.services);
        Scrape {
            services: services.filter_map(|(spec, config)| self.service_scrape(spec, config, status)).collect(),
            node: self.node_scrape(),
        }
    }

    fn service_scrape(
        &self,
        spec: &ServiceSpec,
        config: &ServiceConfig,
        status: &StatusReport,
    ) -> Option<ServiceScrape> {
        let report = status.services.iter().find(|report| report.name == spec.name)?;
        let metrics = self.config.node.metrics;
        let readings: Vec<&OriginReading> =
            spec.origins.iter().filter_map(|origin| self.readings.get(&origin.id.0)).collect();
        let sum = |value: fn(&OriginReading) -> u64| readings.iter().map(|reading| value(reading)).sum::<u64>();
        let mut service = ServiceScrape {
            name: spec.name.clone(),
            rescues: vec![
                ("turn_around", sum(|reading| reading.signals.turned_around)),
                ("re_steer", sum(|reading| reading.signals.resteered)),
            ],
            trips: vec![
                ("refused", sum(|reading| reading.signals.trips_refused)),
                ("syn_timeout", sum(|reading| reading.signals.trips_syn_timeout)),
                ("reset_early", sum(|reading| reading.signals.trips_reset_early)),
                ("no_response", sum(|reading| reading.signals.trips_no_response)),
                ("unreachable", sum(|reading| reading.signals.trips_unreachable)),
                ("http_5xx", sum(|reading| reading.signals.trips_http_5xx)),
            ],
            withheld: vec![
                ("trip", sum(|reading| reading.signals.withheld_trips)),
                ("move", sum(|reading| reading.signals.withheld_moves)),
                ("rescue", sum(|reading| reading.signals.withheld_rescues)),
            ],
            overflow: Some(sum(|reading| reading.signals.overflow)),
            failovers: Some(self.tallies.failovers.get(&spec.name).copied().unwrap_or(0)),
            panic: report.panic,
            standby_ready: Some(
                report.origins.iter().filter(|one| one.ready.as_deref() == Some("ready")).count() as u64
            ),
            usable_origins: Some(report.origins.iter().filter(|origin| is_usable(origin)).count() as u64),
            ..ServiceScrape::default()
        };
        service.withheld.extend(self.tallies.held.of(&spec.name));
        service.resets = self.tallies.resets.of(&spec.name);
        let steps = self.tallies.steps.iter().filter(|((name, _), _)| *name == spec.name);
        service.failover_steps = steps.map(|((_, step), histogram)| (*step, histogram.clone())).collect();
        if metrics.histograms == Detail::Brief {
            service.rtt = Some(histogram(RTT_BOUNDS, readings.iter().map(|reading| &reading.rtt)));
            service.ttfb = Some(histogram(TTFB_BOUNDS, readings.iter().map(|reading| &reading.ttfb)));
        }
        if metrics.origin_detail != Detail::Off {
            service.origins = spec
                .origins
                .iter()
                .zip(&report.origins)
                .map(|(own, report)| self.origin_scrape(own.id, config, report))
                .collect();
        }
        Some(service)
    }

    fn origin_scrape(
        &self,
        id: OriginId,
        config: &ServiceConfig,
        report: &crate::report::OriginReport,
    ) -> OriginScrape {
        let metrics = self.config.node.metrics;
        let reading = self.readings.get(&id.0);
        let mut origin = OriginScrape {
            name: report.name.clone(),
            state: report.state,
            score: report.score,
            weight_ratio: report.share_percent.map(|percent| percent / 100.0),
            evidence_age: report.evidence_age_ms.map(Duration::from_millis),
            failure_spread: self.view(id).map(|view| view.failure_spread),
            override_expiry: report.order.as_ref().and_then(|order| order.ends_in_ms).map(Duration::from_millis),
            ..OriginScrape::default()
        };
        if let Some(reading) = reading {
            let missed = self.tallies.unreachable.get(&id.0).copied().unwrap_or(0);
            let own = |(name, n)| (name, if name == "unreachable" { n + missed } else { n });
            origin.signals = reading.counted().map(own).collect();
            if metrics.histograms == Detail::Full {
                origin.rtt = Some(histogram(RTT_BOUNDS, [&reading.rtt].into_iter()));
                origin.ttfb = Some(histogram(TTFB_BOUNDS, [&reading.ttfb].into_iter()));
            }
        }
        for (place, check) in (0u16..).zip(&config.checks) {
            if let Some(tally) = self.tallies.checks.get(&(id, place)) {
                origin.checks.push(CheckScrape {
                    name: check.name.clone(),
                    results: vec![
                        ("pass", tally.pass),
                        ("slow", tally.slow),
                        ("fail", tally.fail),
                        ("local", tally.local),
                    ],
                    last_duration: Some(tally.last),
                });
            }
        }
        origin
    }

    fn node_scrape(&self) -> NodeScrape {
        let counts = self.datapath.counts().unwrap_or_default();
        let of = |count: Count| counts.iter().find(|(c, _)| *c == count).map(|(_, n)| *n);
        let words = |pairs: &[(&'static str, Count)]| {
            pairs.iter().filter_map(|(word, count)| Some((*word, of(*count)?))).collect::<Vec<_>>()
        };
        NodeScrape {
            steered: words(&[
                ("connect", Count::SteeredConnect),
                ("tc_egress", Count::SteeredEgress),
                ("tc_client", Count::SteeredClient),
            ]),
            attached: self
                .datapath
                .hooks()
                .into_iter()
                .map(|hook| AttachedScrape {
                    interface: hook.target,
                    hook: hook.hook,
                    attached: hook.missing.is_none(),
                })
                .collect(),
            maps: self.map_scrapes(),
            flow_evictions: self.evictions(),
            map_write_errors: Some(self.tallies.write_errors),
            in_sync: Some(self.applied.in_sync()),
            events_lost: of(Count::EventLost),
            parse_skipped: words(&[
                ("link", Count::SkippedLink),
                ("vlan", Count::SkippedVlan),
                ("fragment", Count::SkippedFragment),
                ("ipv6_extension", Count::SkippedExtension),
                ("short", Count::SkippedShort),
                ("undeliverable", Count::SkippedUndeliverable),
                ("picked_up", Count::PickedUp),
            ]),
            nat_collisions: of(Count::NatCollision),
            checks_late: Some(self.tallies.late),
            check_lateness: self.tallies.lateness.clone(),
            loop_lag: Some(self.lag),
            pkcs11_sessions: self.hub.sessions(),
            reload: self.tallies.reload,
            build: Some(BuildScrape { version: env!("CARGO_PKG_VERSION").to_owned(), abi: ABI_VERSION }),
        }
    }
}

fn is_usable(origin: &crate::report::OriginReport) -> bool {
    let state = matches!(origin.state, Some(State::Unknown | State::Healthy | State::Degraded | State::HighRisk));
    state && origin.tripped != Some(true) && origin.weight.is_some_and(|weight| weight > 0)
}

fn histogram<'a>(
    bounds: &'static [f64],
    counts: impl Iterator<Item = &'a [u64; health_common::histogram::BUCKETS]>,
) -> Histogram {
    let mut histogram = Histogram::new(bounds);
    counts.for_each(|counts| histogram.add_kernel(counts));
    histogram
}

/// Seconds since the epoch, by the wall clock.
pub(super) fn epoch_seconds() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
