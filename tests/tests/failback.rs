//! The way back: stages, an approval, a restart in the middle, a rollback.
//!
//! Needs a built `sluice` (`SLUICE_BIN`, or the workspace's own).

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lab::{Daemon, Family, Fault, Lab, LabConfig, LabOptions, http_get, wait_until};

const ONE_LINK: LabOptions = LabOptions { two_links: false };
const SECOND: Duration = Duration::from_secs(1);
/// Where the `verify` check asks.
const VERIFY_PORT: u16 = 9001;
/// New connections that show a share.
const SAMPLES: usize = 300;

/// A daemon with the lab's file, but with this way back and `more` at its end.
fn start(lab: &Lab, failback: &str, more: &str) -> Result<Daemon> {
    let config = LabConfig::of(lab).only(Family::Ipv4);
    let mut daemon = Daemon::prepare(lab, &config)?;
    let text = daemon.config_text(&config);
    let line = text.lines().find(|line| line.starts_with("failback = ")).context("the lab's file has no failback")?;
    let text = text.replace(line, &format!("failback = {{ {failback} }}"));
    daemon.write_config(&format!("{text}{more}"))?;
    daemon.start()?;
    let is_healthy = |name| state(&daemon, name).as_deref() == Some("healthy");
    wait_until("both origins are healthy", 15 * SECOND, || is_healthy("a") && is_healthy("b"))
        .with_context(|| daemon.log_tail())?;
    Ok(daemon)
}

fn state(daemon: &Daemon, origin: &str) -> Option<String> {
    daemon.status().ok()?.state("shop4", origin).map(str::to_owned)
}

/// Places of a in the slot table of its own address.
fn slots(daemon: &Daemon, lab: &Lab) -> Result<u64> {
    let maps = daemon.maps()?;
    let address = lab.origin_a(Family::Ipv4).to_string();
    let frontend = maps.frontend(&address).context("no frontend")?;
    Ok(frontend["slots"]["a"].as_u64().unwrap_or(0))
}

fn has_event(daemon: &Daemon, what: &str, detail: &str) -> bool {
    let events = daemon.events().unwrap_or_default();
    events.iter().any(|event| event.what == what && event.detail.contains(detail))
}

fn fall_and_rise(lab: &mut Lab, daemon: &Daemon) -> Result<()> {
    lab.a.fail(Fault::Refused)?;
    wait_until("a is in fault", 15 * SECOND, || state(daemon, "a").as_deref() == Some("fault"))?;
    lab.a.restore()?;
    wait_until("a comes back", 15 * SECOND, || state(daemon, "a").as_deref() == Some("recovering"))
        .with_context(|| daemon.log_tail())
}

#[test]
fn a_manual_failback_in_stages_goes_on_behind_a_restart() -> Result<()> {
    let mut lab = Lab::new(ONE_LINK)?;
    let stages = "observe_for = \"1s\", stages = [20, 60, 100], stage_for = \"4s\", approval = \"manual\"";
    let mut daemon = start(&lab, stages, "")?;
    let early = daemon.cli(&["failback", "shop4", "approve"])?;
    assert_eq!(early.code, Some(3), "nothing is on its way back: {early:?}");
    fall_and_rise(&mut lab, &daemon)?;
    wait_until("it asks", 15 * SECOND, || has_event(&daemon, "approval_needed", "20%"))?;
    let status = daemon.cli(&["status"])?;
    assert!(status.stdout.contains("APPROVAL WAITING"), "{}", status.stdout);
    assert_eq!(slots(&daemon, &lab)?, 0);
    let approved = daemon.cli(&["failback", "shop4", "approve", "--reason", "seen the graphs"])?;
    assert_eq!(approved.code, Some(0), "{approved:?}");
    wait_until("a fifth", 5 * SECOND, || slots(&daemon, &lab).is_ok_and(|slots| slots == 50))?;
    let on_a = served_by_a(&lab)?;
    // Binomial with p = 0.2: five standard deviations are 35.
    assert!((25..=95).contains(&on_a), "{on_a} of {SAMPLES} new connections came to a");
    wait_until("the second stage", 10 * SECOND, || slots(&daemon, &lab).is_ok_and(|slots| slots == 151))?;
    let memory = lab.dir().join("sluice/state/judgement.json");
    wait_until("it is remembered", 5 * SECOND, || {
        std::fs::read_to_string(&memory).is_ok_and(|text| text.contains("\"percent\": 60"))
    })?;
    daemon.kill()?;
    assert_eq!(slots(&daemon, &lab)?, 151, "the kernel keeps what it has");
    daemon.start()?;
    assert_eq!(slots(&daemon, &lab)?, 151, "and so does the next daemon");
    assert!(!has_event(&daemon, "stage", "20%"), "it does not begin anew");
    wait_until("all of it", 10 * SECOND, || slots(&daemon, &lab).is_ok_and(|slots| slots == 251))
        .with_context(|| daemon.log_tail())?;
    wait_until("a is healthy", 10 * SECOND, || state(&daemon, "a").as_deref() == Some("healthy"))?;
    daemon.stop()
}

fn served_by_a(lab: &Lab) -> Result<usize> {
    let address = lab.origin_a(Family::Ipv4);
    let mut on_a = 0;
    for _ in 0..SAMPLES {
        let answer = lab.node.enter(|| http_get(address, "/", SECOND))??;
        ensure!(answer.status == 200, "{answer:?}");
        on_a += usize::from(answer.origin.as_deref() == Some("a"));
    }
    Ok(on_a)
}

#[test]
fn a_failing_verify_check_takes_the_stage_back() -> Result<()> {
    let mut lab = Lab::new(ONE_LINK)?;
    let shop = Shop::open(&lab, SocketAddr::new(lab.origin_a(Family::Ipv4).ip(), VERIFY_PORT))?;
    let check = format!(
        "[[service.check]]\nname = \"pay\"\ntype = \"http\"\nverify = true\nurl = \"http://lab.test:{VERIFY_PORT}/pay\"\n\
         interval = \"1s\"\n"
    );
    let stages = "observe_for = \"0s\", stages = [20, 100], stage_for = \"2s\"";
    let mut daemon = start(&lab, stages, &check)?;
    assert_eq!(shop.asked(), 0, "it is asked in stages only");
    fall_and_rise(&mut lab, &daemon)?;
    wait_until("the rollback", 15 * SECOND, || has_event(&daemon, "state", "failed_in_stage"))
        .with_context(|| daemon.log_tail())?;
    wait_until("nothing goes there", 5 * SECOND, || slots(&daemon, &lab).is_ok_and(|slots| slots == 0))?;
    assert!(has_event(&daemon, "stage", "20%") && !has_event(&daemon, "stage", "100%"));
    shop.sell();
    wait_until("a is healthy", 40 * SECOND, || state(&daemon, "a").as_deref() == Some("healthy"))
        .with_context(|| daemon.log_tail())?;
    daemon.stop()?;
    shop.close(&lab)
}

/// A server beside the origin's own, which answers 500 until it sells.
struct Shop {
    address: SocketAddr,
    sells: Arc<AtomicBool>,
    ends: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
    server: JoinHandle<Result<()>>,
}

impl Shop {
    fn open(lab: &Lab, address: SocketAddr) -> Result<Self> {
        let ns = lab.a.namespace();
        let listener = ns.enter(|| TcpListener::bind(address))??;
        let (sells, ends, asked) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default(), Arc::default());
        let (selling, ending, counted) = (Arc::clone(&sells), Arc::clone(&ends), Arc::<AtomicUsize>::clone(&asked));
        let server = ns.thread("shop", move || {
            for client in listener.incoming() {
                if ending.load(Ordering::Relaxed) {
                    break;
                }
                let mut client = client?;
                client.set_read_timeout(Some(SECOND))?;
                counted.fetch_add(1, Ordering::Relaxed);
                let status = if selling.load(Ordering::Relaxed) { "200 OK" } else { "500 Sold Out" };
                // A client that has gone is none of the server's business.
                drop(client.read(&mut [0; 4096]));
                drop(write!(client, "HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"));
            }
            Ok(())
        })?;
        Ok(Self { address, sells, ends, asked, server })
    }

    fn sell(&self) {
        self.sells.store(true, Ordering::Relaxed);
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }

    fn close(self, lab: &Lab) -> Result<()> {
        self.ends.store(true, Ordering::Relaxed);
        drop(lab.a.namespace().enter(|| TcpStream::connect(self.address))??);
        self.server.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}
