//! From one layout of the maps to another and back, under load: no connection is lost.
//!
//! What another version leaves behind is made by renaming the pins of a daemon that has stopped: its programs run on, its
//! links and maps are as another layout's would be, and their number is another. So both sides of the contract of
//! `datapath/handover.rs` are held to it by the same programs.
//!
//! Needs a built `sluice` (`SLUICE_BIN`, or the workspace's own).

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use lab::{Daemon, Family, Lab, LabConfig, LabOptions, Load, LoadOptions, Record, wait_until};

const ONE_LINK: LabOptions = LabOptions { two_links: false };
const SECOND: Duration = Duration::from_secs(1);
/// Long flows on the standby, redirected packet by packet.
const FLOWS: usize = 20;
/// New connections that end between two steps.
const BETWEEN: usize = 500;

/// Answers every byte, in a namespace, until it is dropped.
struct Echo {
    stop: Arc<AtomicBool>,
}

impl Echo {
    fn start(lab: &Lab, address: SocketAddr, standby: bool) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let ns = if standby { lab.b.namespace() } else { lab.a.namespace() };
        let listener = ns.enter(|| TcpListener::bind(address))??;
        let asked = Arc::clone(&stop);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if asked.load(Ordering::Relaxed) {
                    return;
                }
                std::thread::spawn(move || echo(stream, standby));
            }
        });
        Ok(Self { stop })
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Each byte comes back as the letter of who answers.
fn echo(mut stream: TcpStream, standby: bool) {
    let mut byte = [0];
    while stream.read_exact(&mut byte).is_ok() {
        if stream.write_all(if standby { b"b" } else { b"a" }).is_err() {
            return;
        }
    }
}

/// Flows that live through everything.
struct Long(Vec<TcpStream>);

impl Long {
    fn open(lab: &Lab, to: SocketAddr) -> Result<Self> {
        let open = || -> Result<Vec<TcpStream>> {
            let mut streams = Vec::new();
            for _ in 0..FLOWS {
                let stream = TcpStream::connect_timeout(&to, 5 * SECOND)?;
                stream.set_read_timeout(Some(5 * SECOND))?;
                stream.set_nodelay(true)?;
                streams.push(stream);
            }
            Ok(streams)
        };
        lab.node.enter(open)?.map(Self)
    }

    /// Every flow asks, and says who answered.
    fn ask(&mut self, when: &str) -> Result<Vec<u8>> {
        let mut answers = Vec::new();
        for (number, stream) in self.0.iter_mut().enumerate() {
            let mut byte = [0];
            stream.write_all(b"?").with_context(|| format!("flow {number} {when}"))?;
            stream.read_exact(&mut byte).with_context(|| format!("flow {number} {when}"))?;
            answers.push(byte[0]);
        }
        Ok(answers)
    }

    fn must_be_on_b(&mut self, when: &str) -> Result<()> {
        let answers = self.ask(when)?;
        ensure!(answers.iter().all(|&who| who == b'b'), "{when}: {}", String::from_utf8_lossy(&answers));
        Ok(())
    }
}

/// The pins of the layout with this number.
fn home(daemon: &Daemon, abi: u64) -> PathBuf {
    daemon.pin_dir().join(format!("v{abi}"))
}

fn wait_more(load: &Load, count: usize) -> Result<()> {
    let before = load.look(<[Record]>::len);
    wait_until("more connections end", 30 * SECOND, || load.look(<[Record]>::len) >= before + count)
}

/// Stops the daemon, and makes what it leaves another layout's.
fn leave_as(daemon: &mut Daemon, own: u64, other: u64) -> Result<()> {
    daemon.stop()?;
    fs::rename(home(daemon, own), home(daemon, other)).context("cannot rename the pins")
}

fn handover(daemon: &Daemon, abi: u64, word: &str) -> bool {
    let is_it = |event: &lab::Event| {
        event.what == "handover" && event.object == format!("v{abi}") && event.detail.starts_with(word)
    };
    daemon.events().is_ok_and(|events| events.iter().any(is_it))
}

/// P12 (b).
#[test]
fn upgrade_and_downgrade_under_load_lose_no_connection() -> Result<()> {
    let lab = Lab::new(ONE_LINK)?;
    let [a, b] = [lab.origin_a(Family::Ipv4), lab.origin_b(Family::Ipv4)];
    // A second service, whose flows live long.
    let at = |address: SocketAddr| SocketAddr::new(address.ip(), 7);
    let _echoes = [Echo::start(&lab, at(a), false)?, Echo::start(&lab, at(b), true)?];
    let config = LabConfig::of(&lab).without_socket_steering();
    let mut daemon = Daemon::prepare(&lab, &config)?;
    let text = daemon.config_text(&config);
    daemon.write_config(&format!(
        "{text}\n[[service]]\nname = \"long\"\n[[service.origin]]\nname = \"a\"\naddress = \"{}\"\n\
         [[service.origin]]\nname = \"b\"\naddress = \"{}\"\npriority = 1\ncapacity_cps = 5000\n",
        at(a),
        at(b)
    ))?;
    daemon.start()?;
    let own = daemon.maps()?.abi;
    daemon.cli(&["origin", "drain", "long/a", "--reason", "test", "--for", "10m"])?.success()?;
    let on_b =
        || Long::open(&lab, at(a)).and_then(|mut long| long.ask("at first")).is_ok_and(|who| who == [b'b'; FLOWS]);
    wait_until("new flows go to b", 20 * SECOND, on_b)?;
    let mut long = Long::open(&lab, at(a)).context("before all")?;
    long.must_be_on_b("before")?;
    let load = Load::start(&lab.node, LoadOptions::figures(a))?;
    wait_more(&load, BETWEEN)?;

    // The upgrade: what is left has a smaller number.
    let older = own - 1;
    leave_as(&mut daemon, own, older)?;
    wait_more(&load, BETWEEN)?;
    long.must_be_on_b("between the daemons")?;
    daemon.start()?;
    wait_more(&load, BETWEEN)?;
    long.must_be_on_b("after the upgrade")?;
    assert!(handover(&daemon, older, "begun"), "{}", daemon.log());
    assert!(home(&daemon, older).exists(), "its flows live");
    assert_eq!(daemon.maps()?.handovers, [serde_json::json!({ "abi": older, "flows": FLOWS })]);
    // Its choices are over, and the new daemon remembers whom an operator had drained.
    Long::open(&lab, at(a)).context("new after the upgrade")?.must_be_on_b("new after the upgrade")?;
    daemon.cli(&["origin", "clear", "long/a"])?.success()?;
    let on_a =
        || Long::open(&lab, at(a)).and_then(|mut long| long.ask("cleared")).is_ok_and(|who| who == [b'a'; FLOWS]);
    wait_until("new flows go to a", 20 * SECOND, on_a)?;

    // And on, with flows of both: what is left now has a greater number, as after a downgrade.
    daemon.cli(&["origin", "drain", "long/a", "--reason", "test", "--for", "10m"])?.success()?;
    wait_until("new flows go to b", 20 * SECOND, on_b)?;
    let mut later = Long::open(&lab, at(a)).context("before the downgrade")?;
    later.must_be_on_b("before the downgrade")?;
    let newer = own + 1;
    leave_as(&mut daemon, own, newer)?;
    daemon.start()?;
    wait_more(&load, BETWEEN)?;
    long.must_be_on_b("after the downgrade")?;
    later.must_be_on_b("after the downgrade")?;
    Long::open(&lab, at(a)).context("new after the downgrade")?.must_be_on_b("new after the downgrade")?;

    // The programs of each go with their last flow.
    drop(long);
    wait_until("the older one ends", 20 * SECOND, || handover(&daemon, older, "ended"))?;
    assert!(!home(&daemon, older).exists() && home(&daemon, newer).exists());
    later.must_be_on_b("after the older one has gone")?;
    drop(later);
    wait_until("the newer one ends", 20 * SECOND, || handover(&daemon, newer, "ended"))?;
    assert!(!home(&daemon, newer).exists());
    assert!(daemon.maps()?.handovers.is_empty());
    wait_more(&load, BETWEEN)?;
    let records = load.finish()?;
    assert_eq!(records.iter().find(|record| !record.outcome.is_ok()), None, "a connection was lost");
    judged_once(&daemon)
}

/// No packet of the load was taken for another attempt: what was sent was answered.
fn judged_once(daemon: &Daemon) -> Result<()> {
    let maps = daemon.maps()?;
    for origin in ["a", "b"] {
        let counters = maps.counters("long", origin);
        let count = |name: &str| counters.get(name).copied().unwrap_or_default();
        assert_eq!(count("syn"), count("synack"), "{origin}: {counters:?}");
        assert_eq!(count("trips"), 0, "{origin}: {counters:?}");
    }
    Ok(())
}

/// A downgrade before the upgrade was over: the old pins are taken over again, and are no longer the last in the chain.
#[test]
fn back_in_the_middle_of_an_upgrade() -> Result<()> {
    let lab = Lab::new(ONE_LINK)?;
    let [a, b] = [lab.origin_a(Family::Ipv4), lab.origin_b(Family::Ipv4)];
    let at = |address: SocketAddr| SocketAddr::new(address.ip(), 7);
    let _echoes = [Echo::start(&lab, at(a), false)?, Echo::start(&lab, at(b), true)?];
    let config = LabConfig::of(&lab).without_socket_steering();
    let mut daemon = Daemon::prepare(&lab, &config)?;
    let text = daemon.config_text(&config);
    daemon.write_config(&format!(
        "{text}\n[[service]]\nname = \"long\"\n[[service.origin]]\nname = \"a\"\naddress = \"{}\"\n\
         [[service.origin]]\nname = \"b\"\naddress = \"{}\"\npriority = 1\ncapacity_cps = 5000\n",
        at(a),
        at(b)
    ))?;
    daemon.start()?;
    let own = daemon.maps()?.abi;
    let drain =
        |daemon: &Daemon| daemon.cli(&["origin", "drain", "long/a", "--reason", "test", "--for", "10m"])?.success();
    let on_b =
        || Long::open(&lab, at(a)).and_then(|mut long| long.ask("at first")).is_ok_and(|who| who == [b'b'; FLOWS]);
    drain(&daemon)?;
    wait_until("new flows go to b", 20 * SECOND, on_b)?;
    let mut first = Long::open(&lab, at(a))?;
    leave_as(&mut daemon, own, own + 1)?;
    daemon.start()?;
    drain(&daemon)?;
    wait_until("new flows go to b", 20 * SECOND, on_b)?;
    let mut second = Long::open(&lab, at(a))?;
    first.must_be_on_b("after the upgrade")?;
    // Back: what was left first is ours again, and the other's programs hang before it in the chains.
    leave_as(&mut daemon, own, own + 2)?;
    fs::rename(home(&daemon, own + 1), home(&daemon, own)).context("cannot rename the pins")?;
    daemon.start()?;
    drain(&daemon)?;
    wait_until("new flows go to b", 20 * SECOND, on_b)?;
    first.must_be_on_b("after the way back")?;
    second.must_be_on_b("after the way back")?;
    let before = daemon.maps()?.counters("long", "b");
    let mut third = Long::open(&lab, at(a))?;
    third.must_be_on_b("new after the way back")?;
    let after = daemon.maps()?.counters("long", "b");
    let more = |name: &str| after.get(name).unwrap_or(&0) - before.get(name).unwrap_or(&0);
    let flows = u64::try_from(FLOWS)?;
    assert_eq!((more("syn"), more("synack")), (flows, flows), "each attempt is judged once: {after:?}");
    drop(second);
    wait_until("the other one ends", 20 * SECOND, || handover(&daemon, own + 2, "ended"))?;
    first.must_be_on_b("after the other one has gone")
}

#[test]
fn a_daemon_of_another_layout_that_runs_is_not_disturbed() -> Result<()> {
    let lab = Lab::new(ONE_LINK)?;
    let daemon = Daemon::start_in(&lab, &LabConfig::of(&lab))?;
    let own = daemon.maps()?.abi;
    fs::rename(home(&daemon, own), home(&daemon, own + 1)).context("cannot rename the pins")?;
    let second = daemon.cli(&["run"])?;
    fs::remove_dir_all(home(&daemon, own)).ok();
    fs::rename(home(&daemon, own + 1), home(&daemon, own)).context("cannot rename the pins")?;
    assert_ne!(second.code, Some(0), "{second:?}");
    assert!(second.stderr.contains(&format!("v{}", own + 1)) && second.stderr.contains("stop it first"), "{second:?}");
    assert_eq!(daemon.status()?.in_sync, Some(true));
    Ok(())
}
