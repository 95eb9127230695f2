//! What a worker is and is not, and what many rounds leave: pk24, pk25, P31. One daemon, four slots.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::patience::{wait_for, wait_until};
use anyhow::{Context, Result, ensure};
use lab::hsm::KeyKind;
use lab::is_long;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::notes::{Notes, broken};
use crate::slot::{Checks, KEY, Slot, paced, seconds};
use crate::solo::{Solo, descriptors, is_alive, proc_status, rss_kib};
use crate::together::{self, Turn};

const EC: &[(KeyKind, &str)] = &[(KeyKind::Ec, KEY)];
const SLOTS: usize = 4;
const LIMIT: Duration = Duration::from_mins(1);

const PK25: &str = "pk25";
const PK25_SOAK: &str = "pk25-soak";
const PK24_KILLS: &str = "pk24-kills";
const P31: &str = "p31";
const ALL: [&str; 4] = [PK25, PK25_SOAK, PK24_KILLS, P31];

/// Many rounds in little time, whose pinned key would be that of one slot only.
fn quick(slot: &Slot) -> Checks {
    let business = Checks::depth2().business("sign_verify", "ecdsa-sha256", &slot.pin_file, "");
    Checks { interval: paced(seconds(10)), ..business }
}

fn play() -> Notes {
    let mut notes = Notes::default();
    let played = Solo::start(SLOTS, EC, quick).map(|mut solo| {
        notes.part(PK25, || confined(&solo));
        notes.part(PK25_SOAK, || soak(&solo));
        notes.part(PK24_KILLS, || killed_at_random(&solo));
        notes.part(P31, || hangs(&mut solo));
    });
    match played {
        Ok(()) => notes,
        Err(error) => broken(notes, &ALL, &error),
    }
}

fn confined(solo: &Solo) -> Result<()> {
    let worker = solo.worker(0)?;
    for (field, want) in [("NoNewPrivs", "1"), ("CapEff", "0000000000000000"), ("CapPrm", "0000000000000000")] {
        ensure!(proc_status(worker, field)? == want, "{field} is {}", proc_status(worker, field)?);
    }
    for field in ["Uid", "Gid"] {
        let ids = proc_status(worker, field)?;
        ensure!(ids.split_whitespace().all(|id| id != "0"), "{field} is {ids}");
    }
    let limits = fs::read_to_string(format!("/proc/{worker}/limits"))?;
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).context("a limit of core files")?;
    ensure!(core.split_whitespace().filter(|word| *word == "0").count() == 2, "{core}");
    // A process that may not be dumped belongs to root in /proc (proc(5)).
    ensure!(fs::metadata(format!("/proc/{worker}/mem"))?.uid() == 0, "the worker may be dumped");
    let mut shown = Vec::new();
    for entry in fs::read_dir(format!("/proc/{worker}/fd"))? {
        shown.push(fs::read_link(entry?.path())?.display().to_string());
    }
    // Three of every process, socket with its duplicate, slate, and the module's log.
    ensure!(shown.len() <= 8, "{shown:?}");
    ensure!(shown.iter().all(|target| !target.contains("bpf")), "{shown:?}");
    let environment = fs::read_to_string(format!("/proc/{worker}/environ"))?;
    let names: Vec<&str> = environment.split('\0').filter_map(|pair| Some(pair.split_once('=')?.0)).collect();
    ensure!(names.len() == 2, "more than what is configured is in its environment: {names:?}");
    Ok(())
}

/// Memory, descriptors and threads of a process.
fn size(pid: u32) -> Result<(u64, usize, String)> {
    Ok((rss_kib(pid)?, descriptors(pid)?, proc_status(pid, "Threads")?))
}

fn soak(solo: &Solo) -> Result<()> {
    let (warm, rounds) = if is_long() { (500, 20_000) } else { (12, 60) };
    let daemon = solo.daemon.pid().context("it runs")?;
    let signs = || solo.slots.iter().map(|slot| slot.fault.count("C_Sign").unwrap_or_default()).sum::<usize>();
    let wait = |count: usize| wait_until(&format!("{count} rounds"), seconds(4 * 3600), || signs() >= count);
    wait(warm)?;
    let workers: Vec<u32> = (0..SLOTS).map(|slot| solo.worker(slot)).collect::<Result<_>>()?;
    let before = (size(daemon)?, workers.iter().map(|pid| size(*pid)).collect::<Result<Vec<_>>>()?);
    wait(warm + rounds)?;

    let after = size(daemon)?;
    ensure!(after.0 < before.0.0 + 5 * 1024, "memory: {:?} to {after:?}", before.0);
    // A connection of the control socket may be there.
    ensure!(after.1 <= before.0.1 + 2 && after.2 == before.0.2, "{:?} to {after:?}", before.0);
    for (pid, before) in workers.iter().zip(&before.1) {
        let after = size(*pid).context("no worker was replaced")?;
        ensure!(after.0 < before.0 + 1024 && (after.1, &after.2) == (before.1, &before.2), "{before:?} to {after:?}");
    }
    for slot in &solo.slots {
        let calls = slot.fault.calls()?;
        let most = calls.iter().map(|call| call.sessions).max().unwrap_or_default();
        ensure!(most <= 2, "{most} sessions");
        let last = calls.iter().rev().find(|call| call.function == "C_CloseSession").context("sessions were closed")?;
        ensure!(last.sessions == 1, "{} sessions between rounds", last.sessions);
    }
    let held = solo.daemon.metrics()?.value("sluice_pkcs11_sessions", &[]).context("the ledger is exported")?;
    ensure!(held <= 2.0 * 4.0, "{held} sessions in the ledger");
    Ok(())
}

fn killed_at_random(solo: &Solo) -> Result<()> {
    let fault = &solo.slots[1].fault;
    let kills = if is_long() { 300 } else { 4 };
    let mut former = 0;
    for _kill in 0..kills {
        let caught = wait_for("a worker signs", LIMIT, || {
            let calls = fault.calls().ok()?;
            // It has logged in, and never does so again.
            calls.into_iter().rev().find(|call| call.function == "C_Sign").filter(|call| call.pid != former)
        })
        .with_context(|| solo.reasons(1))?;
        former = caught.pid;
        if is_alive(caught.pid) {
            kill(Pid::from_raw(i32::try_from(caught.pid)?), Signal::SIGKILL)?;
        }
    }
    wait_until("a worker signs", LIMIT, || {
        fault.calls().is_ok_and(|calls| calls.iter().any(|call| call.function == "C_Verify" && call.pid > former))
    })?;
    solo.slots[1].token.public_key(KEY)?;
    Ok(())
}

/// P31, with four slots instead of three HSMs and 100 web servers: what hangs delays nothing else.
fn hangs(solo: &mut Solo) -> Result<()> {
    solo.slots[0].fault.set(&["C_Sign rv=0x30 times=1", "C_Initialize hang"])?;
    wait_for("it hangs", LIMIT, || {
        let calls = solo.slots[0].fault.calls().ok()?;
        calls.into_iter().find(|call| call.outcome == "hang")
    })?;
    for slot in [2, 3] {
        let before = solo.slots[slot].fault.calls()?.len();
        solo.wait_calls(slot, "C_Sign", 5, LIMIT)?;
        let calls = solo.slots[slot].fault.calls()?;
        let signs: Vec<u64> =
            calls[before..].iter().filter(|call| call.function == "C_Sign").map(|call| call.at_ns).collect();
        let interval = u64::try_from(paced(seconds(10)).as_nanos())?;
        let worst = signs.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default();
        // A tenth of jitter, and 0.2 s.
        ensure!(worst < interval / 100 * 125 + 200_000_000, "a round came {worst} ns after the one before");
    }
    let begun = Instant::now();
    ensure!(solo.daemon.cli(&["reload"])?.code == Some(0), "reload");
    ensure!(begun.elapsed() < seconds(3), "reload took {:?}", begun.elapsed());
    let begun = Instant::now();
    solo.daemon.stop()?;
    ensure!(begun.elapsed() < seconds(3) + Duration::from_millis(300), "the stop took {:?}", begun.elapsed());
    Ok(())
}

fn played() -> &'static Notes {
    static PLAYED: OnceLock<Notes> = OnceLock::new();
    PLAYED.get_or_init(|| {
        let _turn = Turn::take();
        play()
    })
}

/// Plays all of it, if nobody has.
pub(crate) fn begin() {
    played();
}

fn came_of(name: &str) -> Result<()> {
    together::begin();
    played().came_of(name)
}

#[test]
fn pk24_workers_killed_at_random_leave_the_token_whole() -> Result<()> {
    came_of(PK24_KILLS)
}

#[test]
fn pk25_a_worker_can_hurt_nobody() -> Result<()> {
    came_of(PK25)
}

#[test]
fn pk25_many_rounds_leave_everything_as_it_was() -> Result<()> {
    came_of(PK25_SOAK)
}

#[test]
fn p31_a_module_that_hangs_delays_nothing_else() -> Result<()> {
    came_of(P31)
}
