//! Metrics, `/healthz`, logs.
//!
//! The daemon fills one plain [`Scrape`] a tick and replaces the last; a scrape encodes what is there. So counters are
//! exactly the kernel's, and the series of a removed object are gone at the next scrape.

pub mod collect;
pub mod health;
pub mod histogram;
pub mod http;
pub mod logs;
pub mod scrape;

pub use collect::Metrics;
pub use health::Heartbeat;
pub use histogram::Histogram;
pub use http::{Server, TelemetryError};
pub use logs::LogFormat;
pub use scrape::{
    AttachedScrape, BuildScrape, CheckScrape, MapScrape, NodeScrape, OriginScrape, ReloadScrape, Scrape, ServiceScrape,
};
