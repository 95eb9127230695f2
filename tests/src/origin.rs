//! An origin that can fail in the ways that matter.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, bail};
use nix::sys::signal::Signal;
use serde::Serialize;

use crate::addr::HTTP_PORT;
use crate::clock::now_ns;
use crate::nginx::Nginx;
use crate::ns::Namespace;
use crate::process::run_with_input;

/// TCP only, before anything else sees it: ARP and ND are answered, and established connections fall silent too.
const BLACK_HOLE: &str = "table inet lab_black_hole {
  chain input { type filter hook prerouting priority -300; meta l4proto tcp drop; }
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
}

impl Fault {
    /// In the order of the reports.
    pub const ALL: [Self; 3] = [Self::Refused, Self::Blackhole, Self::Hang];

    /// As in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Blackhole => "blackhole",
            Self::Hang => "hang",
        }
    }
}

/// A namespace with one nginx in it, and at most one fault.
#[derive(Debug)]
pub struct Origin {
    ns: Arc<Namespace>,
    nginx: Nginx,
    fault: Option<Fault>,
}

impl Origin {
    pub(crate) fn start(ns: &Arc<Namespace>, dir: &Path, name: &str) -> Result<Self> {
        Ok(Self { ns: Arc::clone(ns), nginx: Nginx::origin(ns, dir, name, HTTP_PORT)?, fault: None })
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
            Fault::Blackhole => drop(run_with_input(&self.ns, "nft", &["-f", "-"], BLACK_HOLE)?.success()?),
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
            Some(Fault::Blackhole) => {
                let delete = "delete table inet lab_black_hole\n";
                run_with_input(&self.ns, "nft", &["-f", "-"], delete)?.success()?;
            }
        }
        self.fault = None;
        Ok(now_ns())
    }
}
