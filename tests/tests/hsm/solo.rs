//! A daemon for one test, with one service of slots.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use crate::patience::wait_until;
use anyhow::{Context, Result, ensure};
use lab::hsm::{FaultModule, KeyKind};
use lab::{Daemon, Family, Lab, LabConfig, LabOptions};

use crate::slot::{Checks, Slot};
use crate::stage::SLACK;

/// The service that is checked.
pub(crate) const SERVICE: &str = "hsm";
const READY: Duration = Duration::from_secs(20);

/// Slots `s0`, `s1`, …, and their daemon. Fields are dropped in their order.
pub(crate) struct Solo {
    pub(crate) daemon: Daemon,
    pub(crate) slots: Vec<Slot>,
    _lab: Lab,
}

impl Solo {
    /// `count` slots with `keys`, and a daemon that isn't started.
    pub(crate) fn prepare(count: usize, keys: &[(KeyKind, &str)], checks: impl Fn(&Slot) -> Checks) -> Result<Self> {
        let lab = Lab::new(LabOptions::default())?;
        let dir = lab.dir().join("slots");
        let slots: Vec<Slot> =
            (0..count).map(|number| Slot::create(&dir, &format!("s{number}"), keys)).collect::<Result<_>>()?;
        let checks = checks(slots.first().context("at least one slot")?).toml();
        let origins: Vec<String> = (7000..)
            .zip(&slots)
            .enumerate()
            .map(|(number, (port, slot))| slot.origin_toml(&format!("s{number}"), place(&lab, port)))
            .collect();
        let daemon = write(&lab, &format!("{}{checks}", origins.concat()))?;
        Ok(Self { daemon, slots, _lab: lab })
    }

    /// The same, with the daemon started and all slots healthy.
    pub(crate) fn start(count: usize, keys: &[(KeyKind, &str)], checks: impl Fn(&Slot) -> Checks) -> Result<Self> {
        let mut solo = Self::prepare(count, keys, checks)?;
        solo.daemon.start()?;
        for number in 0..count {
            solo.wait_state(number, "healthy", READY)?;
        }
        Ok(solo)
    }

    pub(crate) fn state(&self, slot: usize) -> Option<String> {
        self.daemon.status().ok()?.state(SERVICE, &format!("s{slot}")).map(str::to_owned)
    }

    pub(crate) fn reasons(&self, slot: usize) -> String {
        let status = self.daemon.status().ok();
        let origin = status.as_ref().and_then(|status| status.origin(SERVICE, &format!("s{slot}")));
        origin.and_then(|origin| serde_json::to_string(&origin.reasons).ok()).unwrap_or_default()
    }

    pub(crate) fn wait_state(&self, slot: usize, state: &str, limit: Duration) -> Result<()> {
        wait_until(&format!("s{slot} is {state}"), limit + SLACK, || self.state(slot).as_deref() == Some(state))
            .with_context(|| {
                format!("it is {:?}: {}; {}", self.state(slot), self.reasons(slot), self.daemon.log_tail())
            })
    }

    /// Waits until `slot`'s module has had `count` more calls of `function`.
    pub(crate) fn wait_calls(&self, slot: usize, function: &str, count: usize, limit: Duration) -> Result<()> {
        let fault = &self.slots[slot].fault;
        let before = fault.count(function)?;
        wait_until(&format!("{count} more calls of {function}"), limit + SLACK, || {
            fault.count(function).is_ok_and(|calls| calls >= before + count)
        })
        .with_context(|| format!("it is {:?}: {}", self.state(slot), self.reasons(slot)))
    }

    /// The worker that answers for `slot` now.
    pub(crate) fn worker(&self, slot: usize) -> Result<u32> {
        last_alive(&self.slots[slot].fault).context("no worker is there")
    }
}

/// The process that called last, if it lives.
fn last_alive(fault: &FaultModule) -> Option<u32> {
    let pid = fault.calls().ok()?.last()?.pid;
    is_alive(pid).then_some(pid)
}

pub(crate) fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

/// A port of a that nobody needs to listen at.
pub(crate) fn place(lab: &Lab, port: u16) -> SocketAddr {
    SocketAddr::new(lab.origin_a(Family::Ipv4).ip(), port)
}

/// A daemon whose one service holds `text`.
pub(crate) fn write(lab: &Lab, text: &str) -> Result<Daemon> {
    let bare = LabConfig::of(lab).bare();
    let daemon = Daemon::prepare(lab, &bare)?;
    daemon.write_config(&format!("{}\n[[service]]\nname = \"{SERVICE}\"\n{text}", daemon.config_text(&bare)))?;
    Ok(daemon)
}

/// Field `name` of `/proc/PID/status`.
pub(crate) fn proc_status(pid: u32, name: &str) -> Result<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    Ok(line.with_context(|| format!("no {name} in the status of {pid}"))?.trim().to_owned())
}

/// Open descriptors of a process.
pub(crate) fn descriptors(pid: u32) -> Result<usize> {
    Ok(fs::read_dir(format!("/proc/{pid}/fd"))?.count())
}

/// Resident memory. Unit: KiB.
pub(crate) fn rss_kib(pid: u32) -> Result<u64> {
    let text = proc_status(pid, "VmRSS")?;
    let number = text.split(' ').next().unwrap_or_default();
    let read: u64 = number.parse().with_context(|| format!("VmRSS is {text}"))?;
    ensure!(read > 0, "no memory at all");
    Ok(read)
}
