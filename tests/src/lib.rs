//! The lab: network namespaces with real servers, faults and load in them.
//!
//! ```text
//!  client ──cli0── node ──orig0──┬── a        one link: a and b on one L2
//!                                └── b
//!  client ──cli0── node ──orig0───── a        two links
//!                       ──orig1───── b
//! ```
//!
//! What is deliberately absent: names in `/run/netns`. A namespace lives exactly as long as a descriptor of this process
//! or a process that it started, and every such process dies with it (`process`), so a killed run leaves nothing behind
//! but pins and temporary files, which the next run sweeps (`sweep`). To look inside while a lab runs:
//! `nsenter --net=PATH`, with the path that [`Namespace::path`] gives.
//!
//! Nothing here sleeps for a fixed time and hopes: [`wait_until`] and [`wait_for`] wait for a condition, with a deadline,
//! and give up at once on Ctrl-C ([`stop`]).

mod addr;
mod clock;
mod config;
mod control;
mod daemon;
pub mod guest;
mod haproxy;
pub mod hsm;
mod http;
mod load;
mod nginx;
mod ns;
mod origin;
mod process;
mod reading;
pub mod stop;
mod sweep;
mod topology;
mod tunnel;
mod wrk;

pub use addr::{CLIENTS, Family, HTTP_PORT, PROXY_PORT};
pub use clock::{WallClock, now_ns, wait_for, wait_until};
pub use config::LabConfig;
pub use daemon::{Daemon, sluice_binary};
pub use haproxy::HaProxy;
pub use http::{HttpAnswer, http_get};
pub use load::{Load, LoadOptions, Method, Outcome, Record};
pub use nginx::{Manner, Nginx, ProxyKind};
pub use ns::Namespace;
pub use origin::{Fault, Origin};
pub use process::{Finished, Process, run, run_with_input, spawn};
pub use reading::{Event, MapsView, MetricsText, OriginStatus, ServiceStatus, Status};
pub use sweep::{pin_dir_name, sweep};
pub use topology::{Lab, LabOptions, require_root};
pub use tunnel::{End, Tunnel};
pub use wrk::{Wrk, WrkReport};

/// Whether scenarios are played at full length (`cargo xtask test --long`), where the ordinary run has a shorter version.
#[must_use]
pub fn is_long() -> bool {
    std::env::var_os("LAB_LONG").is_some()
}
