//! Two HSMs behind TCP, an application that signs through the node, and everything that happens to HSMs.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::patience::wait_until;
use anyhow::{Context, Result, ensure};
use lab::hsm::{FaultModule, HsmClient, KeyKind, Module, NetworkHsm, PIN, SoftHsm};
use lab::{Daemon, Family, Lab, LabConfig, LabOptions, Namespace};

use crate::slot::{KEY, write_pin};
use crate::together::Turn;

const PORT: u16 = 5657;
/// Both have a clock: one that is right says that the other is wrong, and not this node.
const CLOCK: &str = "token clock=on";
const LIMIT: Duration = Duration::from_secs(30);
/// Between two signatures of the application: it shall not take the machine from those who check.
const PAUSE: Duration = Duration::from_millis(300);
/// For one signature of the application, its connection included.
const PATIENCE: Duration = Duration::from_secs(3);

/// An HSM: token, faults and network.
struct Hsm {
    token: SoftHsm,
    fault: FaultModule,
    server: NetworkHsm,
}

impl Hsm {
    fn start(ns: &Arc<Namespace>, dir: &Path, name: &str, address: SocketAddr) -> Result<Self> {
        let token = SoftHsm::create(&dir.join(format!("{name}-token")), name)?;
        token.generate(KeyKind::Ec, KEY)?;
        token.save()?;
        let fault = FaultModule::before(&token, &dir.join(format!("{name}-fault")))?;
        fault.set(&[CLOCK])?;
        let server = NetworkHsm::start(ns, address, fault.module())?;
        Ok(Self { token, fault, server })
    }

    /// How often the application logged in: a check logs in once in a worker's life, the application for each signature.
    fn logins(&self) -> usize {
        self.fault.count("C_Login").unwrap_or_default()
    }
}

/// Signs again and again through the node, with a new connection each time.
struct Application {
    over: Arc<AtomicBool>,
    signed: Arc<AtomicUsize>,
    thread: Option<thread::JoinHandle<Result<()>>>,
}

impl Application {
    fn start(node: &Arc<Namespace>, module: Module, dir: &Path) -> Result<Self> {
        let (over, signed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (stop, count, ns) = (Arc::clone(&over), Arc::clone(&signed), Arc::clone(node));
        let data = dir.join("document");
        fs::write(&data, [9; 32])?;
        let work = move || {
            while !stop.load(Ordering::Relaxed) {
                if sign(&ns, &module, &data).unwrap_or(false) {
                    count.fetch_add(1, Ordering::Relaxed);
                }
                thread::park_timeout(PAUSE);
            }
            Ok(())
        };
        let thread = thread::Builder::new().name("application".to_owned()).spawn(work)?;
        Ok(Self { over, signed, thread: Some(thread) })
    }

    fn signed(&self) -> usize {
        self.signed.load(Ordering::Relaxed)
    }
}

impl Drop for Application {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        self.thread.take().map(thread::JoinHandle::join);
    }
}

fn sign(ns: &Namespace, module: &Module, data: &Path) -> Result<bool> {
    let (data, out) = (data.display().to_string(), data.with_extension("signature").display().to_string());
    let arguments =
        ["--login", "--pin", PIN, "--sign", "--mechanism", "ECDSA", "--label", KEY, "-i", &data, "-o", &out];
    Ok(module.tool(ns, PATIENCE, &arguments)?.code == Some(0))
}

/// The pool with everything around it. Fields are dropped in their order.
struct Pool {
    application: Application,
    _clients: [HsmClient; 3],
    daemon: Daemon,
    a: Hsm,
    b: Hsm,
    _lab: Lab,
}

impl Pool {
    fn start() -> Result<Self> {
        let lab = Lab::new(LabOptions::default())?;
        let dir = lab.dir().join("hsm");
        fs::create_dir(&dir)?;
        let address = |origin: SocketAddr| SocketAddr::new(origin.ip(), PORT);
        let (at_a, at_b) = (address(lab.origin_a(Family::Ipv4)), address(lab.origin_b(Family::Ipv4)));
        let a = Hsm::start(lab.a.namespace(), &dir, "hsm-a", at_a)?;
        let b = Hsm::start(lab.b.namespace(), &dir, "hsm-b", at_b)?;
        let pin_file = dir.join("pin");
        write_pin(&pin_file, PIN)?;

        let bare = LabConfig::of(&lab).bare();
        let mut daemon = Daemon::prepare(&lab, &bare)?;
        let socket = |name: &str| dir.join(name);
        let config = format!(
            "{}\n[[service]]\nname = \"hsm\"\n{}{}{}",
            daemon.config_text(&bare),
            origin("a", at_a, 0, &a, &socket("check-a"))?,
            origin("b", at_b, 1, &b, &socket("check-b"))?,
            checks(&pin_file),
        );
        daemon.write_config(&config)?;
        // What checks an HSM must reach that HSM, wherever the application's connections are sent.
        let binary = lab::sluice_binary()?.display().to_string();
        let config = daemon.config().display().to_string();
        let direct = [binary, "direct".to_owned(), "-c".to_owned(), config, "--".to_owned()];
        let clients = [
            HsmClient::start(&lab.node, &socket("check-a"), at_a, &direct)?,
            HsmClient::start(&lab.node, &socket("check-b"), at_b, &direct)?,
            HsmClient::start(&lab.node, &socket("application"), at_a, &[])?,
        ];
        daemon.start()?;
        let application = Application::start(&lab.node, clients[2].module()?, &dir)?;
        Ok(Self { application, _clients: clients, daemon, a, b, _lab: lab })
    }

    fn state(&self, origin: &str) -> Option<String> {
        self.daemon.status().ok()?.state("hsm", origin).map(str::to_owned)
    }

    /// Why a is in its state, as the event of its last transition says.
    fn why(&self) -> String {
        let events = self.daemon.events().unwrap_or_default();
        let last = events.iter().rev().find(|event| event.object == "hsm/a" && event.what == "state");
        last.map(|event| event.detail.clone()).unwrap_or_default()
    }

    /// Waits until the application's signatures come from `which`, and from the other no more.
    fn signs_on(&self, which: &Hsm, other: &Hsm) -> Result<()> {
        wait_until("the application signs elsewhere", LIMIT, || {
            let (before, elsewhere) = (which.logins(), other.logins());
            let signed = self.application.signed();
            let enough = wait_until("four signatures", PATIENCE * 2, || self.application.signed() >= signed + 4);
            enough.is_ok() && which.logins() >= before + 3 && other.logins() <= elsewhere + 1
        })
    }

    /// One episode: a fails, is found out for the right reason, b signs; a is mended, and signs again.
    fn episode(
        &mut self,
        name: &str,
        reason: &str,
        fail: impl Fn(&mut Hsm) -> Result<()>,
        mend: impl Fn(&mut Hsm) -> Result<()>,
    ) -> Result<()> {
        fail(&mut self.a).context("the fault")?;
        wait_until(&format!("{name}: a is in fault"), LIMIT, || self.state("a").as_deref() == Some("fault"))
            .with_context(|| format!("the last transition: {}", self.why()))?;
        wait_until(&format!("{name}: the reason is {reason}"), LIMIT, || self.why().contains(reason))
            .with_context(|| format!("the last transition: {}", self.why()))?;
        self.signs_on(&self.b, &self.a).with_context(|| format!("{name}: on b"))?;
        mend(&mut self.a).context("the mending")?;
        wait_until(&format!("{name}: a is healthy again"), LIMIT * 2, || self.state("a").as_deref() == Some("healthy"))
            .with_context(|| format!("the last transition: {}", self.why()))?;
        self.signs_on(&self.a, &self.b).with_context(|| format!("{name}: back on a"))?;
        ensure!(self.state("b").as_deref() == Some("healthy"), "{name}: b, which nothing happened to, is not healthy");
        Ok(())
    }
}

fn origin(name: &str, address: SocketAddr, priority: u8, hsm: &Hsm, socket: &Path) -> Result<String> {
    let module = HsmClient::module_at(socket)?;
    Ok(format!(
        "[[service.origin]]\nname = \"{name}\"\naddress = \"{address}\"\npriority = {priority}\ncapacity_cps = 1000\n\
         pkcs11 = {{ module = {:?}, serial = {:?}, env = {} }}\n",
        module.library.display().to_string(),
        hsm.token.serial(),
        module.environment_toml()
    ))
}

fn checks(pin_file: &Path) -> String {
    format!(
        "[[service.check]]\nname = \"port\"\ntype = \"tcp\"\ninterval = \"500ms\"\ntimeout = \"300ms\"\n\
         [[service.check]]\nname = \"token\"\ntype = \"pkcs11\"\nneeds = [\"port\"]\ninterval = \"1s\"\n\
         interval_recover = \"500ms\"\nconfirm = \"200ms\"\nclock = {{ interval = \"500ms\", drift_max = \"5s\" }}\n\
         [[service.check]]\nname = \"sign\"\ntype = \"pkcs11\"\nneeds = [\"token\"]\ninterval = \"1s\"\n\
         interval_recover = \"500ms\"\nconfirm = \"200ms\"\norphan_ttl = \"1s\"\noperation = \"sign_verify\"\n\
         key = \"{KEY}\"\nmechanism = \"ecdsa-sha256\"\npin_file = \"{}\"\n\
         deadlines = {{ business = \"1s\" }}\n[service.policy]\nfall = 2\n\
         hold_down = {{ base = \"100ms\", max = \"200ms\" }}\n",
        pin_file.display()
    )
}

/// A pool at work: both HSMs are healthy, and the application signs on a.
fn at_work() -> Result<(Turn, Pool)> {
    let turn = Turn::take();
    let pool = Pool::start()?;
    for origin in ["a", "b"] {
        wait_until(&format!("{origin} is healthy"), LIMIT, || pool.state(origin).as_deref() == Some("healthy"))
            .with_context(|| pool.why())?;
    }
    pool.signs_on(&pool.a, &pool.b).context("at first")?;
    Ok((turn, pool))
}

fn rule(rule: &'static str) -> impl Fn(&mut Hsm) -> Result<()> {
    move |hsm| hsm.fault.set(&[CLOCK, rule])
}

fn clear(hsm: &mut Hsm) -> Result<()> {
    hsm.fault.set(&[CLOCK])
}

#[test]
fn a_pool_of_hsms_survives_whatever_happens_to_one() -> Result<()> {
    let (_turn, mut pool) = at_work()?;
    let restart = |hsm: &mut Hsm| {
        // What was killed may have been writing the token.
        hsm.token.roll_back()?;
        hsm.server.resume()
    };
    pool.episode("killed", "refused", |hsm| hsm.server.kill(), restart)?;
    pool.episode("hung", "timeout", rule("C_Sign hang"), clear)?;
    pool.episode("wrong clock", "skew", rule("token skew=-7200"), clear)
}

/// The same, with what else happens: a slot that has lost three workers waits longer for its fourth.
#[test]
fn a_pool_of_hsms_survives_whatever_else_happens_to_one() -> Result<()> {
    let (_turn, mut pool) = at_work()?;
    pool.episode("corrupted signatures", "integrity", rule("C_Sign corrupt"), clear)?;
    pool.episode("no session left", "sessions_exhausted", rule("session max=0"), clear)?;
    pool.episode("removed", "removed", rule("C_GetTokenInfo rv=0xe0"), clear)
}
