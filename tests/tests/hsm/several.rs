//! Scenes with more than two slots, without the fault module, or without any HSM: pk01, pk02, pk15, pk18, P33, P34.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::patience::wait_until;
use anyhow::{Context, Result, ensure};
use lab::hsm::{FaultModule, HsmClient, KeyKind, Module, NetworkHsm};
use lab::{Lab, Namespace, is_long, run_with_input};
use nix::fcntl::{FcntlArg, fcntl};

use crate::slot::{Checks, KEY, Slot, paced, seconds};
use crate::solo::place;
use crate::stage::{IN, OUT, READY, SLACK, Service, Story};

const EC: &[(KeyKind, &str)] = &[(KeyKind::Ec, KEY)];

/// A port that accepts connections and says nothing, until it is dropped.
struct Door {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Door {
    fn new(ns: &Namespace, address: SocketAddr) -> Result<Self> {
        let listener = ns.enter(|| -> io::Result<TcpListener> {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        })??;
        let over = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&over);
        let thread = thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                while listener.accept().is_ok() {}
                thread::park_timeout(Duration::from_millis(5));
            }
        });
        Ok(Self { over, thread: Some(thread) })
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

/// Swallows what comes to `port`, until it is dropped.
struct BlackHole {
    ns: Arc<Namespace>,
    port: u16,
}

impl BlackHole {
    fn new(ns: &Arc<Namespace>, port: u16) -> Result<Self> {
        let rules = format!(
            "table inet hole{port} {{ \n chain input {{ type filter hook prerouting priority -300; tcp dport {port} drop; }}\n}}\n"
        );
        run_with_input(ns, "nft", &["-f", "-"], &rules)?.success()?;
        Ok(Self { ns: Arc::clone(ns), port })
    }
}

impl Drop for BlackHole {
    fn drop(&mut self) {
        run_with_input(&self.ns, "nft", &["-f", "-"], &format!("delete table inet hole{}\n", self.port)).ok();
    }
}

/// One origin called `a` at `address` and its TCP checks at the pace of the defaults.
fn tcp_service(address: SocketAddr, fall: u32) -> String {
    format!(
        "[[service.origin]]\nname = \"a\"\naddress = \"{address}\"\n[[service.check]]\nname = \"port\"\ntype = \"tcp\"\n\
         interval = \"{}ms\"\ntimeout = \"{}ms\"\n[service.policy]\nfall = {fall}\n",
        paced(seconds(3)).as_millis(),
        paced(seconds(1)).as_millis()
    )
}

pub(crate) fn pk01(lab: &Lab, port: u16, fall: u32, within: Duration) -> (String, Story) {
    let (address, ns) = (place(lab, port), Arc::clone(lab.a.namespace()));
    let story = move |service: &Service<'_>| -> Result<()> {
        let door = Door::new(&ns, address)?;
        service.wait_for("a", &IN, READY)?;
        let hole = BlackHole::new(&ns, port)?;
        let took = service.wait_for("a", &OUT, READY)?;
        ensure!(took <= paced(within) + SLACK, "silent: {took:?}");
        service.wait_why("a", "timeout")?;
        drop(hole);
        service.wait_for("a", &IN, READY)?;
        drop(door);
        let took = service.wait_for("a", &OUT, READY)?;
        let within = seconds(3) * fall + Duration::from_millis(500);
        ensure!(took <= paced(within) + SLACK, "shut: {took:?}");
        service.wait_why("a", "refused")?;
        Ok(())
    };
    (tcp_service(address, fall), Box::new(story))
}

pub(crate) fn pk02(lab: &Lab, port: u16) -> Result<(String, Story)> {
    let (address, ns, node) = (place(lab, port), Arc::clone(lab.a.namespace()), Arc::clone(&lab.node));
    let mut text = format!("[[service.origin]]\nname = \"a\"\naddress = \"{address}\"\n");
    for number in 0..10 {
        writeln!(
            text,
            "[[service.check]]\nname = \"port{number}\"\ntype = \"tcp\"\ninterval = \"100ms\"\ntimeout = \"{}ms\"",
            100 - number
        )?;
    }
    let story = move |service: &Service<'_>| -> Result<()> {
        let _door = Door::new(&ns, address)?;
        wait_until("200 rounds", READY, || {
            let metrics = service.daemon().metrics().ok();
            let passed = metrics
                .and_then(|metrics| metrics.value("sluice_check_total", &[("service", "pk02"), ("result", "pass")]));
            passed.is_some_and(|count| count >= 200.0)
        })?;
        // Rounds go on, so a connection may be there; one that is left would be there for ever.
        wait_until("no connection is left", READY, || {
            node.enter(|| connections_to(address)).is_ok_and(|count| count.is_ok_and(|count| count == 0))
        })
    };
    Ok((text, Box::new(story)))
}

/// Connections of this namespace to `address` that are established or wait to be closed.
fn connections_to(address: SocketAddr) -> Result<usize> {
    let table = fs::read_to_string("/proc/thread-self/net/tcp")?;
    let port = format!(":{:04X}", address.port());
    let left = table.lines().skip(1).filter(|line| {
        let mut fields = line.split_whitespace().skip(2);
        let (remote, state) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
        remote.ends_with(&port) && ["01", "08"].contains(&state)
    });
    Ok(left.count())
}

/// So many slots `s0`, `s1`, … with a P-256 key.
fn many(lab: &Lab, port: u16, name: &str, count: usize) -> Result<(Vec<Slot>, String)> {
    let dir = lab.dir().join("slots");
    let mut text = String::new();
    let mut slots = Vec::new();
    for (number, port) in (0..count).zip(port..) {
        let slot = Slot::create(&dir, &format!("{name}-s{number}"), EC)?;
        text.push_str(&slot.origin_toml(&format!("s{number}"), place(lab, port)));
        slots.push(slot);
    }
    Ok((slots, text))
}

/// Signing with a PIN and no pinned key: each slot of `many` has its own.
fn signing(slot: &Slot) -> Checks {
    Checks::depth2().business("sign_verify", "ecdsa-sha256", &slot.pin_file, "")
}

pub(crate) fn pk15(lab: &Lab, port: u16) -> Result<(String, Story)> {
    let (slots, mut text) = many(lab, port, "pk15", 5)?;
    for slot in &slots {
        slot.fault.set(&["C_Sign hang"])?;
    }
    text.push_str(&signing(&slots[0]).with("sessions_max = 10\n").toml());
    let story = move |service: &Service<'_>| -> Result<()> {
        let window = paced(seconds(if is_long() { 600 } else { 200 }));
        let begun = Instant::now();
        let mut most = 0.0_f64;
        wait_until("the time is over", window + READY, || {
            let metrics = service.daemon().metrics().ok();
            let held = metrics.and_then(|metrics| metrics.value("sluice_pkcs11_sessions", &[("service", "pk15")]));
            most = most.max(held.unwrap_or_default());

            begun.elapsed() >= window
        })?;
        ensure!(most <= 10.0 && most > 0.0, "{most} sessions in the ledger");
        // The same from what the modules saw: a hung worker's sessions last until its end, and then the token's patience.
        let held = u64::try_from((paced(seconds(5)) + paced(seconds(60))).as_nanos())?;
        let mut hangs = Vec::new();
        for slot in &slots {
            let calls = slot.fault.calls()?;
            hangs.extend(calls.iter().filter(|call| call.outcome == "hang").map(|call| (call.at_ns, call.sessions)));
        }
        for (at, _) in &hangs {
            let overlapping = hangs.iter().filter(|(begun, _)| begun <= at && *at < begun + held);
            let sessions: u64 = overlapping.map(|(_, sessions)| sessions).sum();
            ensure!(sessions <= 10, "{sessions} sessions at once");
        }
        ensure!(hangs.len() >= 5, "only {} hangs", hangs.len());
        let told = |origin: &&str| service.wait_event(origin, "pkcs11_budget").is_ok();
        ensure!(["s0", "s1", "s2", "s3", "s4"].iter().any(told), "nobody was told of skipped checks");
        Ok(())
    };
    Ok((text, Box::new(story)))
}

fn origin(lab: &Lab, name: &str, port: u16, serial: &str, module: &Module) -> String {
    format!(
        "[[service.origin]]\nname = \"{name}\"\naddress = \"{}\"\n\
         pkcs11 = {{ module = {:?}, serial = {serial:?}, env = {} }}\n",
        place(lab, port),
        module.library.display().to_string(),
        module.environment_toml()
    )
}

/// A lock of SoftHSM's, as another program could hold it.
struct Lock(File);

impl Lock {
    fn new(path: &Path) -> Result<Self> {
        let lock = Self(File::options().read(true).write(true).open(path)?);
        lock.set(libc::F_WRLCK)?;
        Ok(lock)
    }

    fn set(&self, kind: i32) -> Result<()> {
        let lock = libc::flock {
            l_type: i16::try_from(kind)?,
            l_whence: i16::try_from(libc::SEEK_SET)?,
            l_start: 0,
            l_len: 0,
            l_pid: 0,
        };
        fcntl(&self.0, FcntlArg::F_OFD_SETLKW(&lock))?;
        Ok(())
    }
}

pub(crate) fn pk18(lab: &Lab, port: u16) -> Result<(String, Story)> {
    let dir = lab.dir().join("slots");
    let (near, far) = (Slot::create(&dir, "pk18-near", EC)?, Slot::create(&dir, "pk18-far", EC)?);
    let (at, ns) = (place(lab, port + 5), Arc::clone(lab.a.namespace()));
    let server = NetworkHsm::start(&ns, at, far.token.module()?)?;
    let client = HsmClient::start(&lab.node, &dir.join("pk18.sock"), at, &[])?;
    let text = format!(
        "{}{}{}",
        origin(lab, "near", port, near.token.serial(), &near.token.module()?),
        origin(lab, "far", port + 1, far.token.serial(), &client.module()?),
        signing(&near).toml()
    );
    let story = move |service: &Service<'_>| -> Result<()> {
        let daemon = service.daemon().pid();
        for name in ["near", "far"] {
            service.wait_for(name, &IN, READY)?;
        }
        thread::scope(|scope| -> Result<()> {
            let near = scope.spawn(|| -> Result<()> {
                let lock = Lock::new(&near.token.generation()?)?;
                service.wait_for("near", &OUT, READY * 2)?;
                service.wait_why("near", "timeout")?;
                lock.set(libc::F_UNLCK)?;
                service.wait_for("near", &IN, READY * 2).map(drop)
            });
            let hole = BlackHole::new(&ns, at.port())?;
            service.wait_for("far", &OUT, READY * 2)?;
            service.wait_why("far", "timeout")?;
            drop(hole);
            service.wait_for("far", &IN, READY * 2)?;
            near.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        ensure!(service.daemon().pid() == daemon, "the daemon was replaced");
        drop((client, server, far));
        Ok(())
    };
    Ok((text, Box::new(story)))
}

pub(crate) fn p33(lab: &Lab, port: u16) -> Result<(String, Story)> {
    let (slots, mut text) = many(lab, port, "p33", 4)?;
    for slot in &slots {
        // Twelve of the sixteen are others'.
        slot.fault.set(&["session max=16 foreign=12", "C_Sign rv=0x30 every=7"])?;
    }
    text.push_str(&Checks { interval: seconds(1), ..signing(&slots[0]) }.toml());
    let story = move |service: &Service<'_>| -> Result<()> {
        let rounds = if is_long() { 3600 } else { 60 };
        let signs = || slots.iter().map(|slot| slot.fault.count("C_Sign").unwrap_or_default()).sum::<usize>();
        wait_until("rounds", seconds(3700), || signs() >= rounds)?;
        for slot in &slots {
            let calls = slot.fault.calls()?;
            let most = calls.iter().map(|call| call.sessions).max().unwrap_or_default();
            ensure!(most <= 2, "{most} sessions of one slot");
            ensure!(!calls.iter().any(|call| call.function == "C_CloseAllSessions"), "other people's sessions");
        }
        // Another user has them all, and one vendor has its own word for it.
        slots[0].fault.set(&["session max=16 foreign=16"])?;
        slots[1].fault.set(&["C_OpenSession rv=0x7"])?;
        for origin in ["s0", "s1"] {
            wait_until("sessions are exhausted", READY * 2, || service.why(origin).contains("sessions_exhausted"))
                .with_context(|| service.why(origin))?;
        }
        Ok(())
    };
    Ok((text, Box::new(story)))
}

pub(crate) fn p34(lab: &Lab, port: u16) -> Result<(String, Story)> {
    let dir = lab.dir().join("slots");
    fs::create_dir_all(&dir)?;
    let label = "a-label-of-thirty-two-bytes-long";
    ensure!(label.len() == 32);
    let bad_first: &[&str] = &["slot id=0 uninitialised", "slot id=5 label=edge-sign serial=01"];
    let table: [(&str, &[&str], &str); 5] = [
        ("behind-a-bad-slot", bad_first, "edge-sign"),
        ("of-32-bytes", &["slot id=1331691202 label=a-label-of-thirty-two-bytes-long serial=02"], label),
        ("padded-with-zeros", &["slot id=1 label=edge-sign serial=03 pad=nul"], "edge-sign"),
        ("one-of-two", &["slot id=1 label=edge-sign serial=04", "slot id=2 label=edge-sign serial=05"], "edge-sign"),
        ("of-nobody", &["slot id=1 label=edge-sign-2 serial=06"], "edge-sign"),
    ];
    let mut text = String::new();
    let mut modules = Vec::new();
    for (port, (name, slots, label)) in (port..).zip(&table) {
        let module = FaultModule::alone(&dir.join(format!("p34-{name}")), slots)?;
        writeln!(
            text,
            "[[service.origin]]\nname = \"{name}\"\naddress = \"{}\"\n\
             pkcs11 = {{ module = {:?}, label = {label:?}, env = {} }}",
            place(lab, port),
            module.module().library.display().to_string(),
            module.module().environment_toml()
        )?;
        modules.push(module);
    }
    text.push_str(&Checks::depth2().toml());
    let story = move |service: &Service<'_>| -> Result<()> {
        for name in ["behind-a-bad-slot", "of-32-bytes", "padded-with-zeros"] {
            service.wait_for(name, &IN, READY)?;
        }
        service.wait_event("one-of-two", "serial")?;
        service.wait_event("of-nobody", "pkcs11_config")?;
        // The slot's number changes, and a token comes while the module is loaded.
        modules[0].set(&["slot id=9 label=edge-sign serial=01"])?;
        modules[4].set(&["slot id=2 label=edge-sign serial=07"])?;
        service.wait_for("of-nobody", &IN, READY)?;
        let asked = modules[0].count("C_GetTokenInfo")?;
        wait_until("it is asked again", READY, || {
            modules[0].count("C_GetTokenInfo").is_ok_and(|calls| calls >= asked + 6)
        })?;
        ensure!(
            service.state("behind-a-bad-slot").as_deref() == Some("healthy"),
            "{}",
            service.reasons("behind-a-bad-slot")
        );
        Ok(())
    };
    Ok((text, Box::new(story)))
}
