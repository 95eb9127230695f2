//! An origin that can fail in the ways that matter.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, bail};
use nix::sys::signal::Signal;
use serde::Serialize;

use crate::addr::HTTP_PORT;
use crate::clock::now_ns;
use crate::nginx::{Manner, Nginx};
use crate::ns::Namespace;
use crate::process::run_with_input;

/// TCP only, before anything else sees it: ARP and ND are answered, and established connections fall silent too.
const BLACK_HOLE: &str = "table inet lab_black_hole {
  chain input { type filter hook prerouting priority -300; meta l4proto tcp drop; }
}
";

/// All of the host's packets, both ways, but not what keeps its neighbours' entries: ARP, which this table does not see,
/// and ND.
const SILENCE: &str = "table inet lab_black_hole {
  chain input { type filter hook prerouting priority -300; \
    icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept; drop; }
  chain output { type filter hook output priority -300; \
    icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept; drop; }
}
";

/// A way to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Fault {
    /// The server is killed: its kernel answers RST.
    Refused,
    /// TCP packets vanish; the host still answers ARP and ND.
    Blackhole,
    /// The server is stopped: handshakes succeed, requests are never answered.
    Hang,
    /// Every request is answered with 503.
    Errors,
    /// Every request is answered, 2 s late.
    Slow,
    /// None of its packets arrive or leave; meant to be short.
    Flap,
    /// The switch port of its link is down: its neighbours resolve its address no more.
    LinkDown,
}

impl Fault {
    /// In the order of the reports.
    pub const ALL: [Self; 7] =
        [Self::Refused, Self::Blackhole, Self::Hang, Self::Errors, Self::Slow, Self::Flap, Self::LinkDown];

    /// As in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Blackhole => "blackhole",
            Self::Hang => "hang",
            Self::Errors => "errors",
            Self::Slow => "slow",
            Self::Flap => "flap",
            Self::LinkDown => "linkdown",
        }
    }
}

/// A namespace with one nginx in it, and at most one fault.
#[derive(Debug)]
pub struct Origin {
    ns: Arc<Namespace>,
    nginx: Nginx,
    port: SwitchPort,
    fault: Option<Fault>,
}

/// Where the origin's link ends: the namespace that switches, and the interface there.
#[derive(Clone, Debug)]
pub(crate) struct SwitchPort {
    pub(crate) ns: Arc<Namespace>,
    pub(crate) interface: &'static str,
}

impl SwitchPort {
    fn set(&self, state: &str) -> Result<()> {
        self.ns.ip(&format!("link set dev {} {state}\n", self.interface))
    }
}

impl Origin {
    /// Where it is.
    #[must_use]
    pub fn ns(&self) -> &Namespace {
        &self.ns
    }

    pub(crate) fn start(ns: &Arc<Namespace>, dir: &Path, name: &str, port: SwitchPort) -> Result<Self> {
        Ok(Self { ns: Arc::clone(ns), nginx: Nginx::origin(ns, dir, name, HTTP_PORT)?, port, fault: None })
    }

    /// The namespace that it runs in.
    #[must_use]
    pub const fn namespace(&self) -> &Arc<Namespace> {
        &self.ns
    }

    /// The fault that is on.
    #[must_use]
    pub const fn failing(&self) -> Option<Fault> {
        self.fault
    }

    /// Turns `fault` on; returns [`now_ns`] when it had taken effect.
    ///
    /// # Errors
    ///
    /// When a fault is on already, or a tool fails.
    pub fn fail(&mut self, fault: Fault) -> Result<u64> {
        if let Some(present) = self.fault {
            bail!("origin in {} already fails: {}", self.ns.name(), present.name());
        }
        // Noted first: a half-done fault is to be undone as well.
        self.fault = Some(fault);
        match fault {
            Fault::Refused => self.nginx.kill()?,
            Fault::Hang => self.nginx.signal(Signal::SIGSTOP)?,
            Fault::Blackhole => self.nft(BLACK_HOLE)?,
            Fault::Flap => self.nft(SILENCE)?,
            Fault::Errors => self.nginx.switch(Manner::Errors, true)?,
            Fault::Slow => self.nginx.switch(Manner::Slow, true)?,
            Fault::LinkDown => self.port.set("down")?,
        }
        Ok(now_ns())
    }

    /// Turns the fault off; returns [`now_ns`] when the origin served again.
    ///
    /// # Errors
    ///
    /// When no fault is on, or a tool fails.
    pub fn restore(&mut self) -> Result<u64> {
        match self.fault {
            None => bail!("origin in {} does not fail", self.ns.name()),
            Some(Fault::Refused) => self.nginx.resume()?,
            Some(Fault::Hang) => self.nginx.signal(Signal::SIGCONT)?,
            Some(Fault::Blackhole | Fault::Flap) => self.nft("delete table inet lab_black_hole\n")?,
            Some(Fault::Errors) => self.nginx.switch(Manner::Errors, false)?,
            Some(Fault::Slow) => self.nginx.switch(Manner::Slow, false)?,
            Some(Fault::LinkDown) => self.port.set("up")?,
        }
        self.fault = None;
        Ok(now_ns())
    }

    fn nft(&self, rules: &str) -> Result<()> {
        run_with_input(&self.ns, "nft", &["-f", "-"], rules)?.success().map(drop)
    }
}
