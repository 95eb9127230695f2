//! A [`Scrape`] as the text of `/metrics`.

use super::{
    histogram::Histogram,
    scrape::{NodeScrape, OriginScrape, Scrape, ServiceScrape},
};
use health_core::model::State;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, NoLabelSet, prometheus_text, text},
    metrics::MetricType,
    registry::Registry,
};
use std::{
    fmt::{Error, Result},
    sync::{Arc, Mutex, PoisonError},
};

/// The newest scrape, and its encoder. Clones are the same.
#[derive(Clone, Debug)]
pub struct Metrics {
    newest: Newest,
    registry: Arc<Registry>,
}

#[derive(Clone, Debug, Default)]
struct Newest(Arc<Mutex<Arc<Scrape>>>);

impl Default for Metrics {
    fn default() -> Self {
        let newest = Newest::default();
        let mut registry = Registry::with_prefix("sluice");
        registry.register_collector(Box::new(newest.clone()));
        Self { newest, registry: Arc::new(registry) }
    }
}

impl Metrics {
    /// Replaces what the next scrape shows.
    pub fn replace(&self, scrape: Scrape) {
        *self.newest.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(scrape);
    }

    /// In the classic text format 0.0.4.
    ///
    /// # Errors
    ///
    /// None in practice: writing to a string doesn't fail.
    pub fn text(&self) -> std::result::Result<String, Error> {
        let mut text = String::new();
        prometheus_text::encode(&mut text, &self.registry)?;
        Ok(text)
    }

    /// In the OpenMetrics format 1.0.0.
    ///
    /// # Errors
    ///
    /// None in practice: writing to a string doesn't fail.
    pub fn openmetrics(&self) -> std::result::Result<String, Error> {
        let mut text = String::new();
        text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

impl Collector for Newest {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result {
        let scrape = Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let mut out = Families(encoder);
        origins(&mut out, &scrape)?;
        checks(&mut out, &scrape)?;
        services(&mut out, &scrape)?;
        node(&mut out, &scrape.node)
    }
}

/// Writes one family at a time; one without a series is left out, descriptor and all.
struct Families<'a>(DescriptorEncoder<'a>);

impl Families<'_> {
    fn counter<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        series: impl IntoIterator<Item = (L, u64)>,
    ) -> Result {
        let mut series = series.into_iter().peekable();
        if series.peek().is_none() {
            return Ok(());
        }
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        series.try_for_each(|(labels, value)| {
            family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&value, None)
        })
    }

    fn gauge<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        series: impl IntoIterator<Item = (L, f64)>,
    ) -> Result {
        let mut series = series.into_iter().peekable();
        if series.peek().is_none() {
            return Ok(());
        }
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        series.try_for_each(|(labels, value)| family.encode_family(&labels)?.encode_gauge(&value))
    }

    fn histogram<'h, L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        series: impl IntoIterator<Item = (L, &'h Histogram)>,
    ) -> Result {
        let mut series = series.into_iter().peekable();
        if series.peek().is_none() {
            return Ok(());
        }
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        series.try_for_each(|(labels, histogram)| {
            let mut one = family.encode_family(&labels)?;
            one.encode_histogram::<NoLabelSet>(histogram.sum_seconds(), histogram.count(), &histogram.buckets(), None)
        })
    }
}

type Origin<'a> = (&'a str, &'a OriginScrape);

fn each_origin(scrape: &Scrape) -> impl Iterator<Item = Origin<'_>> + Clone {
    scrape.services.iter().flat_map(|service| service.origins.iter().map(|origin| (service.name.as_str(), origin)))
}

fn of_origin((service, origin): Origin<'_>) -> [(&'static str, &str); 2] {
    [("service", service), ("origin", &origin.name)]
}

const fn truth(value: bool) -> f64 {
    if value { 1.0 } else { 0.0 }
}

#[allow(clippy::cast_precision_loss, reason = "gauges are floats; counts of entries stay far below 2^53")]
const fn count(value: u64) -> f64 {
    value as f64
}

fn origins(out: &mut Families<'_>, scrape: &Scrape) -> Result {
    let all = each_origin(scrape);
    let states = all.clone().filter_map(|(service, origin)| Some((service, origin, origin.state?)));
    let states = states.flat_map(|(service, origin, now)| {
        State::ALL.map(|state| {
            ([("service", service), ("origin", &origin.name), ("state", state.name())], truth(state == now))
        })
    });
    out.gauge("origin_state", "Condition of an origin: exactly one state is 1", states)?;
    let scores = all.clone().filter_map(|at| Some((of_origin(at), f64::from(at.1.score?))));
    out.gauge("origin_score", "Health of an origin, 0 to 100", scores)?;
    let weights = all.clone().filter_map(|at| Some((of_origin(at), at.1.weight_ratio?)));
    out.gauge("origin_weight_ratio", "Share of the service's new flows, 0 to 1", weights)?;
    let signals = all.clone().flat_map(|(service, origin)| {
        let labels = move |signal| [("service", service), ("origin", origin.name.as_str()), ("signal", signal)];
        origin.signals.iter().map(move |&(signal, total)| (labels(signal), total))
    });
    out.counter("signal", "What the kernel measured of an origin", signals)?;
    let spreads = all.clone().filter_map(|at| Some((of_origin(at), f64::from(at.1.failure_spread?))));
    out.gauge(
        "failure_spread",
        "Clients behind the failures of an origin's traffic in the window, of at most 20",
        spreads,
    )?;
    let ages = all.clone().filter_map(|at| Some((of_origin(at), at.1.evidence_age?.as_secs_f64())));
    out.gauge("evidence_age_seconds", "Age of the newest evidence of any kind", ages)?;
    let expiries = all.filter_map(|at| Some((of_origin(at), at.1.override_expiry?.as_secs_f64())));
    out.gauge("override_expiry_seconds", "Time until an operator's order ends by itself", expiries)
}

fn checks(out: &mut Families<'_>, scrape: &Scrape) -> Result {
    let all = each_origin(scrape).flat_map(|at| at.1.checks.iter().map(move |check| (at, check)));
    let results = all.clone().flat_map(|((service, origin), check)| {
        check.results.iter().map(move |&(result, total)| {
            let origin = origin.name.as_str();
            ([("service", service), ("origin", origin), ("check", &check.name), ("result", result)], total)
        })
    });
    out.counter("check", "Rounds of an active check by result; local is a shortage here, no evidence", results)?;
    let durations = all.filter_map(|((service, origin), check)| {
        let labels = [("service", service), ("origin", origin.name.as_str()), ("check", &check.name)];
        Some((labels, check.last_duration?.as_secs_f64()))
    });
    out.gauge("check_duration_seconds", "How long the last round of a check took", durations)
}

/// The series of one list of tallies of every service.
fn tallies<'a>(
    scrape: &'a Scrape,
    label: &'static str,
    of: impl Fn(&ServiceScrape) -> &[(&'static str, u64)] + 'a,
) -> impl Iterator<Item = ([(&'static str, &'a str); 2], u64)> {
    scrape.services.iter().flat_map(move |service| {
        let labels = move |word: &'static str| [("service", service.name.as_str()), (label, word)];
        of(service).to_vec().into_iter().map(move |(word, total)| (labels(word), total))
    })
}

/// The histograms of services, and of origins where the configuration wants them so.
fn latencies<'a>(
    scrape: &'a Scrape,
    of_service: impl Fn(&'a ServiceScrape) -> Option<&'a Histogram>,
    of_one: impl Fn(&'a OriginScrape) -> Option<&'a Histogram>,
) -> Vec<(Vec<(&'static str, &'a str)>, &'a Histogram)> {
    let services = scrape.services.iter();
    let services = services.filter_map(|one| Some((vec![("service", one.name.as_str())], of_service(one)?)));
    let origins = each_origin(scrape).filter_map(|at| Some((of_origin(at).to_vec(), of_one(at.1)?)));
    services.chain(origins).collect()
}

fn services(out: &mut Families<'_>, scrape: &Scrape) -> Result {
    let name = |service: &'_ ServiceScrape| service.name.clone();
    let all = || scrape.services.iter();
    let rtt = latencies(scrape, |service| service.rtt.as_ref(), |origin| origin.rtt.as_ref());
    out.histogram("rtt_seconds", "Round trips of handshakes with origins", rtt)?;
    let ttfb = latencies(scrape, |service| service.ttfb.as_ref(), |origin| origin.ttfb.as_ref());
    out.histogram("ttfb_seconds", "Last byte of a request to first byte of its response", ttfb)?;
    let rescues = tallies(scrape, "kind", |service| &service.rescues);
    out.counter("rescue", "Connection attempts that the kernel saved, by what it did", rescues)?;
    let trips = tallies(scrape, "reason", |service| &service.trips);
    out.counter("trip", "Origins that the kernel took out by itself, by streak", trips)?;
    let failovers = all().filter_map(|service| Some(([("service", name(service))], service.failovers?)));
    out.counter("failover", "Moves of a service to another tier", failovers)?;
    let steps = all().flat_map(|service| {
        let labels = move |step: &'static str| [("service", service.name.as_str()), ("step", step)];
        service.failover_steps.iter().map(move |(step, histogram)| (labels(step), histogram))
    });
    out.histogram("failover_duration_seconds", "First bad packet to each step of a failover", steps)?;
    let panic = all().filter_map(|service| Some(([("service", name(service))], truth(service.panic?))));
    out.gauge("panic", "1 while nothing is usable and all are used", panic)?;
    let usable = all().filter_map(|service| Some(([("service", name(service))], count(service.usable_origins?))));
    out.gauge("usable_origins", "Origins that may be chosen", usable)?;
    let ready = all().filter_map(|service| Some(([("service", name(service))], count(service.standby_ready?))));
    out.gauge("standby_ready", "Standbys that could take what others lose", ready)?;
    let overflow = all().filter_map(|service| Some(([("service", name(service))], service.overflow?)));
    out.counter("overflow", "New flows that an origin had no capacity for", overflow)?;
    let resets = tallies(scrape, "kind", |service| &service.resets);
    out.counter("connection_reset", "Established connections to origins in fault that were ended", resets)?;
    let withheld = tallies(scrape, "reason", |service| &service.withheld);
    out.counter("withheld", "What was decided and not done, by reason", withheld)
}

fn words(label: &'static str, list: &[(&'static str, u64)]) -> Vec<([(&'static str, &'static str); 1], u64)> {
    list.iter().map(|&(word, total)| ([(label, word)], total)).collect()
}

fn node(out: &mut Families<'_>, node: &NodeScrape) -> Result {
    let bare = |total: Option<u64>| total.map(|total| (NO_LABELS, total));
    let one = |value: Option<f64>| value.map(|value| (NO_LABELS, value));
    out.counter("steered", "New flows sent to another origin than the addressed one", words("hook", &node.steered))?;
    let attached = node
        .attached
        .iter()
        .map(|hook| ([("interface", hook.interface.as_str()), ("hook", hook.hook)], truth(hook.attached)));
    out.gauge("attached", "1 while a program is attached to a hook", attached)?;
    let entries = node.maps.iter().filter_map(|map| Some(([("map", map.name)], count(map.entries?))));
    out.gauge("map_entries", "Entries in use of a pinned map", entries)?;
    let most = node.maps.iter().map(|map| ([("map", map.name)], count(map.max)));
    out.gauge("map_max", "Most entries of a pinned map", most)?;
    let evictions = words("table", &node.flow_evictions);
    out.counter("flow_evictions", "Flows pushed out of a full table", evictions)?;
    out.counter("map_write_errors", "Writes to maps that failed and are planned again", bare(node.map_write_errors))?;
    out.gauge("steering_in_sync", "1 while the kernel has what was planned", one(node.in_sync.map(truth)))?;
    out.counter("events_lost", "Kernel events that found the ring buffer full", bare(node.events_lost))?;
    let skipped = words("reason", &node.parse_skipped);
    out.counter("parse_skipped", "Packets passed without a look, by reason", skipped)?;
    let collisions = bare(node.nat_collisions);
    out.counter("nat_collision", "Flows not moved because the translated tuple was taken", collisions)?;
    out.counter("check_late", "Rounds of checks that say nothing because this node was late", bare(node.checks_late))?;
    let lateness = node.check_lateness.iter().map(|histogram| (NO_LABELS, histogram));
    out.histogram("check_lateness_seconds", "How late rounds of checks began", lateness)?;
    let lag = one(node.loop_lag.map(|lag| lag.as_secs_f64()));
    out.gauge("loop_lag_seconds", "How late the last tick of the daemon was", lag)?;
    let reload = one(node.reload.map(|reload| truth(reload.success)));
    out.gauge("config_reload_success", "1 if the last reload was applied", reload)?;
    let applied = one(node.reload.map(|reload| reload.applied_at));
    out.gauge("config_reload_timestamp_seconds", "When the configuration in force was applied", applied)?;
    let sessions = node.pkcs11_sessions.iter().flat_map(|(service, live, orphan)| {
        let labels = move |state: &'static str| [("service", service.as_str()), ("state", state)];
        [(labels("live"), f64::from(*live)), (labels("orphan"), f64::from(*orphan))]
    });
    out.gauge("pkcs11_sessions", "Sessions on HSMs that checks hold, or killed workers may have left", sessions)?;
    let build =
        node.build.as_ref().map(|build| ([("version", build.version.clone()), ("abi", build.abi.to_string())], 1.0));
    out.gauge("build_info", "What runs here; always 1", build)
}

const NO_LABELS: [(&str, &str); 0] = [];

#[cfg(test)]
mod tests;
