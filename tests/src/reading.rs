//! What `sluice`'s commands and metrics print, as far as the lab reads it. Unknown fields pass: the contract may grow.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::Value;

use crate::clock::WallClock;

/// `sluice status --json`. What only the daemon knows is `None` when it is gone.
#[derive(Clone, Debug, Deserialize)]
pub struct Status {
    /// `enforce` or `observe`.
    pub mode: Option<String>,
    /// Whether the maps hold what was planned.
    pub in_sync: Option<bool>,
    /// All services.
    pub services: Vec<ServiceStatus>,
}

/// One service of [`Status`].
#[derive(Clone, Debug, Deserialize)]
pub struct ServiceStatus {
    /// Its name.
    pub name: String,
    /// Worst state of its origins, or as the daemon sees it.
    pub state: Option<String>,
    /// The tier that serves.
    pub active_tier: Option<u32>,
    /// Its origins.
    pub origins: Vec<OriginStatus>,
}

/// One origin of [`ServiceStatus`].
#[derive(Clone, Debug, Deserialize)]
pub struct OriginStatus {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: String,
    /// One of the seven states.
    pub state: Option<String>,
    /// Its share of the service's new flows.
    pub share_percent: Option<f64>,
    /// Whether the kernel has tripped it.
    pub tripped: Option<Value>,
    /// Why it is in this state.
    #[serde(default)]
    pub reasons: Option<Vec<Value>>,
}

impl Status {
    /// The origin called `SERVICE/ORIGIN`.
    #[must_use]
    pub fn origin(&self, service: &str, origin: &str) -> Option<&OriginStatus> {
        let service = self.services.iter().find(|candidate| candidate.name == service)?;
        service.origins.iter().find(|candidate| candidate.name == origin)
    }

    /// State of an origin, or `None` if unknown to the reader.
    #[must_use]
    pub fn state(&self, service: &str, origin: &str) -> Option<&str> {
        self.origin(service, origin)?.state.as_deref()
    }
}

/// `sluice maps --json`.
#[derive(Clone, Debug, Deserialize)]
pub struct MapsView {
    /// ABI of the pins.
    pub abi: u64,
    /// The daemon's process, if it runs.
    pub daemon_pid: Option<u32>,
    /// `{"name","attached"}` each.
    pub programs: Vec<Value>,
    /// `{"name","type","used","max","memory_bytes"}` each.
    pub maps: Vec<Value>,
    /// `{"abi","flows"}` each: other layouts that still serve flows.
    pub handovers: Vec<Value>,
    /// `{"address","service","generation","slots":{},"armed":[],"tripped":[],"override"}` each.
    pub frontends: Vec<Value>,
    /// `{"id","address","service","name","counters":{}}` each.
    pub origins: Vec<Value>,
}

impl MapsView {
    /// The origin called `SERVICE/ORIGIN`.
    #[must_use]
    pub fn origin(&self, service: &str, name: &str) -> Option<&Value> {
        self.origins.iter().find(|origin| origin["service"] == service && origin["name"] == name)
    }

    /// Counters of that origin that are whole numbers.
    #[must_use]
    pub fn counters(&self, service: &str, name: &str) -> BTreeMap<String, u64> {
        let counters = self.origin(service, name).and_then(|origin| origin["counters"].as_object());
        let numbers = |(name, value): (&String, &Value)| Some((name.clone(), value.as_u64()?));
        counters.into_iter().flatten().filter_map(numbers).collect()
    }

    /// The frontend at `address`.
    #[must_use]
    pub fn frontend(&self, address: &str) -> Option<&Value> {
        self.frontends.iter().find(|frontend| frontend["address"] == address)
    }
}

/// One line of `sluice events --json`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// On the clock of [`crate::now_ns`].
    pub at_ns: u64,
    /// `trip`, `trial`, `rescue`, `state`, `failover`, …
    pub what: String,
    /// `SERVICE/ORIGIN`, or what else it is about.
    pub object: String,
    /// For people; a trial names its source as `port N`.
    pub detail: String,
    /// `kernel`, `judge`, or who.
    pub by: String,
}

impl Event {
    /// Reads one line.
    ///
    /// # Errors
    ///
    /// When a field of the contract is missing.
    pub fn parse(line: &str, wall: WallClock) -> Result<Self> {
        Self::read(&serde_json::from_str(line)?, wall)
    }

    pub(crate) fn read(value: &Value, wall: WallClock) -> Result<Self> {
        let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
        let stamp = &value["time_ns"];
        let stamp = stamp.as_u64().or_else(|| stamp.as_str()?.parse().ok());
        let stamp = stamp.with_context(|| format!("no time_ns in {value}"))?;
        let what = value["what"].as_str().with_context(|| format!("no what in {value}"))?.to_owned();
        let at_ns = wall.to_monotonic(stamp);
        Ok(Self { at_ns, what, object: text("object"), detail: text("detail"), by: text("by") })
    }

    /// N of `port N` in the detail.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        let mut words = self.detail.split(|letter: char| !letter.is_ascii_alphanumeric());
        words.find(|&word| word == "port")?;
        words.find(|word| !word.is_empty())?.parse().ok()
    }
}

/// A scrape of `/metrics`.
#[derive(Clone, Debug)]
pub struct MetricsText(String);

impl MetricsText {
    pub(crate) const fn new(text: String) -> Self {
        Self(text)
    }

    /// The text as scraped.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Sum of the series called `name` (with its `sluice_`) that carry all of `labels`; `None` if there is none.
    #[must_use]
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let wanted: Vec<String> = labels.iter().map(|(key, value)| format!("{key}=\"{value}\"")).collect();
        let mut values = self.0.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            let (labels, value) = match rest.strip_prefix('{') {
                Some(rest) => rest.rsplit_once("} ")?,
                None => ("", rest.strip_prefix(' ')?),
            };
            let has_all = wanted.iter().all(|pair| labels.split(',').any(|label| label == pair));
            has_all.then_some(value.split(' ').next()?.parse::<f64>().ok()?)
        });
        let first = values.next()?;
        Some(values.fold(first, |sum, value| sum + value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_names_its_port() {
        let line = r#"{"time_ns":5,"what":"trial","object":"shop4/a","detail":"port 40123, won","by":"kernel"}"#;
        let event = Event::parse(line, WallClock::read()).expect("a whole line");
        assert_eq!((event.at_ns, event.port()), (5, Some(40123)));
    }

    #[test]
    fn series_are_summed_by_label() {
        let text =
            "# TYPE x counter\nsluice_x_total{hook=\"connect\"} 2\nsluice_x_total{hook=\"tc_egress\"} 3\nsluice_y 1\n";
        let metrics = MetricsText::new(text.to_owned());
        assert_eq!(metrics.value("sluice_x_total", &[]), Some(5.0));
        assert_eq!(metrics.value("sluice_x_total", &[("hook", "tc_egress")]), Some(3.0));
        assert_eq!(metrics.value("sluice_y", &[]), Some(1.0));
        assert_eq!(metrics.value("sluice_z", &[]), None);
    }
}
