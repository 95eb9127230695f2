//! The acceptance checks that share one daemon. Times are those of the default configuration, as [`paced`] has them.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::patience::{wait_for, wait_until};
use anyhow::{Context, Result, anyhow, ensure};
use lab::hsm::{Call, KeyKind};
use lab::{is_long, now_ns};

use crate::several;
use crate::slot::{Checks, KEY, Slot, paced, seconds};
use crate::stage::{Custom, Play, READY, Results, SLACK, Scene, play};
use crate::together::{self, Turn};

const EC: &[(KeyKind, &str)] = &[(KeyKind::Ec, KEY)];
const NO_KEYS: &[(KeyKind, &str)] = &[];
/// Until a slot is back that has lost several workers: the pause before the next grows to 8 s, at any pace.
const BACK: Duration = Duration::from_secs(40);
/// The module's answers that the checks ask for.
const DEVICE_ERROR: &str = "rv=0x30";
const DEVICE_REMOVED: &str = "rv=0x32";

/// Checked at all depths.
const SIGNING: Scene =
    Scene { name: "", keys: EC, checks: unpinned, has_bystander: true, rules: &[], play: |_| Ok(()) };
/// Slot and token alone.
const DEPTH2: Scene = Scene { keys: NO_KEYS, checks: |_| Checks::depth2(), ..SIGNING };
/// Checked at all depths, one of many that differ in one word.
const ONE: Scene = Scene { has_bystander: false, ..SIGNING };

/// All scenes.
const SCENES: &[Scene] = &[
    Scene { name: "pk03", play: pk03, ..DEPTH2 },
    Scene { name: "pk04", checks: |_| Checks::depth2().with("firmware = \"2.5-2.10\"\n"), play: pk04, ..DEPTH2 },
    Scene { name: "pk05", rules: &["token clock=on"], play: pk05, ..DEPTH2 },
    Scene { name: "pk06", rules: &["token clock=on"], play: pk06, ..DEPTH2 },
    Scene { name: "pk08-ec", play: pk08, ..SIGNING },
    Scene {
        name: "pk08-rsa",
        keys: &[(KeyKind::Rsa, KEY)],
        checks: |slot| Checks::depth2().business("sign_verify", "rsa-pkcs-sha256", &slot.pin_file, ""),
        play: pk08,
        ..SIGNING
    },
    Scene {
        name: "pk08-aes",
        keys: &[(KeyKind::Aes, KEY)],
        checks: |slot| Checks::depth2().business("encrypt_decrypt", "aes-cbc-pad", &slot.pin_file, ""),
        play: pk08_aes,
        ..SIGNING
    },
    Scene { name: "pk08-twins", play: pk08_twins, ..SIGNING },
    Scene { name: "pk09", checks: Checks::signing, play: |play| pk09(play, &["C_Sign corrupt"]), ..ONE },
    Scene {
        name: "pk09-lie",
        checks: Checks::signing,
        play: |play| pk09(play, &["C_Sign corrupt", "C_Verify lie"]),
        ..ONE
    },
    Scene { name: "pk10", checks: |slot| Checks { fall: 3, ..unpinned(slot) }, play: pk10, ..SIGNING },
    Scene { name: "pk11", play: pk11, ..SIGNING },
    Scene { name: "pk12", checks: |slot| Checks { interval: seconds(1), ..unpinned(slot) }, play: pk12, ..SIGNING },
    Scene { name: "pk13", play: pk13, ..SIGNING },
    Scene { name: "pk14", rules: &["session max=1000"], play: pk14, ..SIGNING },
    Scene { name: "pk16-load", play: |play| hang_at_start(play, "load"), ..ONE },
    Scene { name: "pk16-c_initialize", play: |play| hang_at_start(play, "C_Initialize"), ..ONE },
    Scene { name: "pk16-c_getslotlist", play: |play| hang_at_start(play, "C_GetSlotList"), ..ONE },
    Scene { name: "pk16-c_getslotinfo", play: |play| hang(play, "C_GetSlotInfo", seconds(2)), ..ONE },
    Scene { name: "pk16-c_gettokeninfo", play: |play| hang(play, "C_GetTokenInfo", seconds(2)), ..ONE },
    Scene { name: "pk16-c_opensession", play: |play| hang(play, "C_OpenSession", seconds(5)), ..ONE },
    Scene { name: "pk16-c_login", play: |play| hang_at_start(play, "C_Login"), ..ONE },
    Scene { name: "pk16-c_findobjects", play: |play| hang_at_start(play, "C_FindObjects"), ..ONE },
    Scene { name: "pk16-c_sign", play: |play| hang(play, "C_Sign", seconds(5)), ..ONE },
    Scene { name: "pk16-c_verify", play: |play| hang(play, "C_Verify", seconds(5)), ..ONE },
    Scene { name: "pk16-c_closesession", play: |play| hang(play, "C_CloseSession", seconds(5)), ..ONE },
    Scene { name: "pk16-c_finalize", play: pk16_finalize, ..ONE },
    Scene { name: "pk17", play: pk17, ..SIGNING },
    Scene { name: "pk19-segv", play: |play| dies(play, "segv", "segv"), ..ONE },
    Scene { name: "pk19-abort", play: |play| dies(play, "abort", "abort"), ..ONE },
    Scene { name: "pk19-exit-0", play: |play| dies(play, "exit=0", "exit"), ..ONE },
    Scene { name: "pk19-exit-1", play: |play| dies(play, "exit=1", "exit"), ..ONE },
    Scene { name: "pk19-huge", play: |play| dies(play, "huge", ""), ..ONE },
    Scene { name: "pk20", play: pk20, ..SIGNING },
    Scene { name: "pk21-away", play: pk21_away, ..SIGNING },
    Scene { name: "pk21-key", play: pk21_key, ..SIGNING },
    Scene { name: "p32-removed", play: |play| never_again(play, "C_SignInit", "0x32"), ..ONE },
    Scene { name: "p32-handle", play: |play| never_again(play, "C_Sign", "0xb3"), ..ONE },
    Scene { name: "p32-device", play: |play| never_again(play, "C_Sign", "0x30"), ..ONE },
    Scene { name: "p32-absent", play: |play| never_again(play, "C_GetTokenInfo", "0xe0"), ..ONE },
    Scene { name: "p32-finalised", play: |play| never_again(play, "C_Sign", "0x190"), ..ONE },
];

/// Played by `cargo xtask test --long` only: their times need a machine that forty others do not share.
pub(crate) const LONG: &[&str] = &[
    "pk16-c_initialize",
    "pk16-c_getslotlist",
    "pk16-c_getslotinfo",
    "pk16-c_gettokeninfo",
    "pk16-c_opensession",
    "pk16-c_login",
    "pk16-c_findobjects",
    "pk16-c_verify",
    "pk16-c_closesession",
    "pk16-c_finalize",
];

/// Scenes with other services than two slots.
const CUSTOM: &[Custom] = &[
    Custom { name: "pk01-2", begin: |lab, port| Ok(several::pk01(lab, port, 2, Duration::from_millis(7500))) },
    Custom { name: "pk01-3", begin: |lab, port| Ok(several::pk01(lab, port, 3, Duration::from_millis(10_500))) },
    Custom { name: "pk02", begin: several::pk02 },
    Custom { name: "pk15", begin: several::pk15 },
    Custom { name: "pk18", begin: several::pk18 },
    Custom { name: "p33", begin: several::p33 },
    Custom { name: "p34", begin: several::p34 },
];

fn played() -> &'static Results {
    static PLAYED: OnceLock<Results> = OnceLock::new();
    PLAYED.get_or_init(|| {
        let _turn = Turn::take();
        play(SCENES, CUSTOM)
    })
}

/// Plays them all, if nobody has.
pub(crate) fn begin() {
    played();
}

/// What came of the scene called `name`. The first that asks plays them all.
#[track_caller]
fn came_of(name: &str) -> Result<()> {
    together::begin();
    let result = played().get(name);
    result.ok_or_else(|| anyhow!("no scene is called {name}"))?.clone().map_err(|error| anyhow!(error))
}

/// Signing without a pinned key, so that the token may get another one.
fn unpinned(slot: &Slot) -> Checks {
    Checks::depth2().business("sign_verify", "ecdsa-sha256", &slot.pin_file, "")
}

/// Processes that called a's module since `at_ns`.
fn pids_since(play: &Play<'_>, at_ns: u64) -> Result<BTreeSet<u32>> {
    Ok(play.a.fault.calls()?.iter().filter(|call| call.at_ns >= at_ns).map(|call| call.pid).collect())
}

fn outcomes<'a>(calls: &'a [Call], function: &str) -> Vec<&'a str> {
    calls.iter().filter(|call| call.function == function).map(|call| call.outcome.as_str()).collect()
}

fn is_alive(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

fn pk03(play: &Play<'_>) -> Result<()> {
    play.stays_in_for("C_GetTokenInfo", 20)?;

    ensure!(play.state("a").as_deref() == Some("healthy"), "{}", play.reasons("a"));
    for function in ["C_OpenSession", "C_Login"] {
        ensure!(play.a.fault.count(function)? == 0, "a check of depth 2 calls {function}");
    }
    let shown = play.doctor()?;
    for word in [play.a.token.label(), play.a.token.serial(), "2.6", "login_required"] {
        ensure!(shown.contains(word), "the doctor does not say {word}: {shown}");
    }
    Ok(())
}

fn pk04(play: &Play<'_>) -> Result<()> {
    play.a.fault.set(&["token fw=9.9"])?;
    play.wait_out("firmware_out_of_range", paced(seconds(18)))?;
    play.a.fault.set(&["token fw=2.5"])?;
    play.wait_in(BACK)?;
    play.a.fault.set(&["token fw=2.10"])?;
    play.stays_in_for("C_GetTokenInfo", 5)?;
    play.a.fault.set(&["token fw=2.11"])?;
    play.wait_out("firmware_out_of_range", paced(seconds(18))).map(drop)
}

fn pk05(play: &Play<'_>) -> Result<()> {
    let runs = if is_long() { 10 } else { 2 };
    for run in 0..runs {
        for skew in [120, -120] {
            // Any phase of the clock's cadence.
            let phase = paced(seconds(10)) / 7 * (run % 7 + 1);
            let begun = Instant::now();
            wait_until("the phase", READY, || begun.elapsed() >= phase)?;
            play.a.fault.set(&[&format!("token clock=on skew={skew}")])?;
            play.wait_out("clock_skew", paced(seconds(30)))?;
            play.a.fault.set(&["token clock=on"])?;
            play.wait_in(BACK)?;
        }
    }
    Ok(())
}

fn pk06(play: &Play<'_>) -> Result<()> {
    let begun = now_ns();
    let table = [
        ("0000000000000000", "clock_unset"),
        ("garbage!garbage!", "clock_malformed"),
        ("2026133112304500", "clock_impossible"),
        ("frozen", "clock_frozen"),
    ];
    for (clock, reason) in table {
        // What stands still must be right when it begins to.
        let clock = if clock == "frozen" { utc_now()? } else { clock.to_owned() };
        play.a.fault.set(&[&format!("token clock={clock} fw=3.7")])?;
        play.wait_out(reason, paced(seconds(30)))?;
        if reason == "clock_malformed" {
            let shown = play.doctor()?;
            ensure!(shown.contains("3.7"), "the firmware is lost with the clock: {shown}");
        }
        play.a.fault.set(&["token clock=on"])?;
        play.wait_in(BACK)?;
    }
    let pids = pids_since(play, begun)?;
    ensure!(pids.iter().filter(|pid| is_alive(**pid)).count() == 1, "{pids:?}");
    Ok(())
}

/// Now, as a token writes it.
fn utc_now() -> Result<String> {
    let output = std::process::Command::new("date").args(["--utc", "+%Y%m%d%H%M%S00"]).output()?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

fn pk08(play: &Play<'_>) -> Result<()> {
    play.stays_in_for("C_Verify", 3)?;
    let calls = play.a.fault.calls()?;
    let challenges = outcomes(&calls, "C_Sign:data");
    let different: BTreeSet<&str> = challenges.iter().copied().collect();
    ensure!(different.len() == challenges.len(), "a challenge came twice: {challenges:?}");
    Ok(())
}

fn pk08_aes(play: &Play<'_>) -> Result<()> {
    play.stays_in_for("C_Decrypt", 3)
}

fn pk08_twins(play: &Play<'_>) -> Result<()> {
    play.a.token.generate(KeyKind::Ec, KEY)?;
    // Handles are kept as long as a worker lives; the next one looks for the key.
    play.a.fault.set(&["C_Sign rv=0x30 times=1"])?;
    play.wait_reason("key_missing")?;
    let signs = play.a.fault.count("C_SignInit")?;
    play.until_asked_again(2)?;
    ensure!(play.a.fault.count("C_SignInit")? == signs, "one of two keys was picked");
    Ok(())
}

fn pk09(play: &Play<'_>, rules: &[&str]) -> Result<()> {
    play.a.fault.set(rules)?;
    play.wait_out("integrity", paced(seconds(20)))?;
    play.a.fault.set(&[])?;
    play.wait_in(BACK).map(drop)
}

fn pk10(play: &Play<'_>) -> Result<()> {
    play.a.fault.set(&[&format!("C_Sign {DEVICE_REMOVED} times=1")])?;
    play.stays_in_for("C_Sign", 4)?;
    play.a.fault.set(&[&format!("C_Sign {DEVICE_REMOVED} every=2 times=2")])?;
    play.stays_in_for("C_Sign", 6)?;
    play.a.fault.set(&[&format!("C_Sign {DEVICE_REMOVED}")])?;
    play.wait_out("removed", paced(seconds(20))).map(drop)
}

fn pk11(play: &Play<'_>) -> Result<()> {
    play.a.fault.set(&["session max=0"])?;
    play.wait_out("sessions_exhausted", paced(seconds(45)))?;
    let begun = now_ns();
    let window = paced(seconds(60));
    wait_until("a minute", window + READY, || now_ns() - begun >= u64::try_from(window.as_nanos()).unwrap_or(0))?;
    let calls: Vec<Call> = play.a.fault.calls()?.into_iter().filter(|call| call.at_ns >= begun).collect();
    let opens = outcomes(&calls, "C_OpenSession").len();
    let loads = outcomes(&calls, "C_Initialize").len();
    // A recovery check every 10 s.
    ensure!(opens <= 8, "{opens} sessions were asked for in a minute");
    ensure!(loads <= 8, "{loads} workers in a minute");
    play.a.fault.set(&[])?;
    play.wait_in(BACK).map(drop)
}

fn pk12(play: &Play<'_>) -> Result<()> {
    let rules = ["C_SignInit", "C_Sign", "C_VerifyInit", "C_Verify", "C_FindObjectsInit", "C_FindObjects"]
        .map(|function| format!("{function} {DEVICE_ERROR} share=12"));
    play.a.fault.forget()?;
    play.a.fault.set(&rules.each_ref().map(String::as_str))?;
    let probes = if is_long() { 1000 } else { 10 };
    wait_until("probes", seconds(1800), || play.a.fault.count("C_SignInit").is_ok_and(|count| count >= probes))?;
    let calls = play.a.fault.calls()?;
    let failed = calls.iter().filter(|call| call.outcome == "0x30").count();
    ensure!(failed >= probes / 4, "only {failed} calls failed");
    let peak = calls.iter().map(|call| call.sessions).max().unwrap_or_default();
    ensure!(peak <= 2, "{peak} sessions at once");
    for call in calls.iter().filter(|call| call.function == "C_CloseSession") {
        ensure!(call.sessions <= 1, "after a probe there were {} sessions", call.sessions);
    }
    one_login_per_worker(&calls)
}

fn one_login_per_worker(calls: &[Call]) -> Result<()> {
    let logins: Vec<u32> = calls.iter().filter(|call| call.function == "C_Login").map(|call| call.pid).collect();
    let workers: BTreeSet<u32> = logins.iter().copied().collect();
    ensure!(workers.len() == logins.len(), "{} logins of {} workers", logins.len(), workers.len());
    Ok(())
}

/// The worker that could not close, or only said so, ends by C_Finalize.
fn retired(play: &Play<'_>, since: u64) -> Result<()> {
    wait_until("the worker is retired", paced(seconds(60)) + SLACK, || {
        play.a.fault.calls().is_ok_and(|calls| {
            calls.iter().any(|call| call.at_ns >= since && call.function == "C_Finalize" && call.outcome == "0x0")
        })
    })?;
    let calls = play.a.fault.calls()?;
    let finalised = calls.iter().find(|call| call.at_ns >= since && call.function == "C_Finalize");
    ensure!(finalised.is_some_and(|call| call.sessions == 0), "{finalised:?}");
    Ok(())
}

fn pk13(play: &Play<'_>) -> Result<()> {
    let begun = now_ns();
    play.a.fault.set(&[&format!("C_CloseSession {DEVICE_ERROR} times=1")])?;
    retired(play, begun)?;
    play.wait_event("a", "pkcs11_leak")
}

fn pk14(play: &Play<'_>) -> Result<()> {
    let begun = now_ns();
    play.a.fault.set(&["session max=1000", "C_CloseSession leak times=3"])?;
    retired(play, begun)?;
    let calls = play.a.fault.calls()?;
    let leaked = calls.iter().filter(|call| call.at_ns >= begun && call.function == "C_CloseSession").count();
    ensure!(leaked <= 5, "{leaked} sessions were closed before anybody wondered");
    play.wait_event("a", "pkcs11_leak")
}

/// Waits until `function` hangs, and then until that process is gone; how long it hung.
fn hung_for(play: &Play<'_>, function: &str, word: &str) -> Result<Duration> {
    let caught = wait_for(&format!("{function} hangs"), READY, || {
        let calls = play.a.fault.calls().ok()?;
        calls.into_iter().find(|call| call.function == function && call.outcome == word)
    })?;
    wait_until(&format!("the worker in {function} is gone"), READY, || !is_alive(caught.pid))?;
    let hung = Duration::from_nanos(now_ns().saturating_sub(caught.at_ns));
    ensure!(play.zombies()? == 0, "a zombie is left");
    Ok(hung)
}

fn not_after(hung: Duration, deadline: Duration) -> Result<()> {
    let late = if is_long() { Duration::from_millis(250) } else { seconds(1) };
    ensure!(hung <= deadline + late, "killed after {hung:?} of {deadline:?}");
    Ok(())
}

fn close_to(hung: Duration, deadline: Duration) -> Result<()> {
    not_after(hung, deadline)?;
    // What went before in the same step has used some of its time.
    ensure!(hung + Duration::from_millis(200) >= deadline, "killed after {hung:?} already, of {deadline:?}");
    Ok(())
}

/// A hang in a call that a worker makes again and again.
fn hang(play: &Play<'_>, function: &str, deadline: Duration) -> Result<()> {
    play.a.fault.set(&[&format!("{function} hang")])?;
    close_to(hung_for(play, function, "hang")?, paced(deadline))?;
    play.wait_out("timeout", paced(seconds(40)))?;
    play.wait_event("a", function)?;
    play.a.fault.set(&[])?;
    play.wait_in(BACK).map(drop)
}

/// A hang in a call that only a fresh worker makes.
fn hang_at_start(play: &Play<'_>, function: &str) -> Result<()> {
    let deadline = match function {
        "load" | "C_Initialize" => seconds(10),
        "C_Login" => seconds(15),
        _ => seconds(5),
    };
    play.a.fault.set(&[&format!("C_Sign {DEVICE_ERROR} times=1"), &format!("{function} hang")])?;
    close_to(hung_for(play, function, "hang")?, paced(deadline))?;
    let shown = if function == "load" { "dlopen" } else { function };
    play.wait_event("a", shown)?;
    if function == "C_Login" {
        // Nobody knows whether the token has counted that attempt, so there is no other until an operator says so.
        play.until_asked_again(2)?;
        return one_login_per_worker(&play.a.fault.calls()?);
    }
    play.a.fault.set(&[])?;
    play.wait_in(BACK).map(drop)
}

fn pk16_finalize(play: &Play<'_>) -> Result<()> {
    // A worker that could not close is retired, which is when it finalises.
    play.a.fault.set(&["C_CloseSession rv=0x30 times=1", "C_Finalize hang times=1"])?;
    // One deadline is for all of the end: on a busy machine what comes before this call takes a good part of it.
    not_after(hung_for(play, "C_Finalize", "hang")?, seconds(2))?;
    play.a.fault.set(&[])?;
    play.stays_in_for("C_Sign", 2)
}

fn pk17(play: &Play<'_>) -> Result<()> {
    play.a.fault.set(&["C_Sign hardhang"])?;
    close_to(hung_for(play, "C_Sign", "hardhang")?, paced(seconds(5)))?;
    play.wait_out("timeout", paced(seconds(40))).map(drop)
}

fn dies(play: &Play<'_>, fault: &str, word: &str) -> Result<()> {
    let daemon = play.daemon().pid();
    play.a.fault.set(&[&format!("C_Sign {fault}")])?;
    play.wait_out("worker_died", paced(seconds(60)))?;
    let calls = play.a.fault.calls()?;
    ensure!(word.is_empty() || outcomes(&calls, "C_Sign").contains(&word), "nothing was struck by {fault}");
    play.a.fault.set(&[])?;
    play.wait_in(BACK)?;
    ensure!(play.daemon().pid() == daemon && play.zombies()? == 0, "the daemon did not stay what it was");
    Ok(())
}

fn pk20(play: &Play<'_>) -> Result<()> {
    play.a.fault.set(&["* stdout"])?;
    play.stays_in_for("C_Verify", 4)
}

fn pk21_away(play: &Play<'_>) -> Result<()> {
    let before = pids_since(play, 0)?;
    play.a.token.remove()?;
    play.wait_out("", if is_long() { seconds(45) } else { BACK })?;
    play.a.token.restore()?;
    let restored = now_ns();
    play.wait_in(if is_long() { seconds(30) } else { BACK })?;
    let fresh = pids_since(play, restored)?;
    ensure!(fresh.iter().any(|pid| !before.contains(pid)), "no new worker in {fresh:?}");
    Ok(())
}

fn pk21_key(play: &Play<'_>) -> Result<()> {
    play.a.token.delete(KEY)?;
    play.wait_out("key_missing", if is_long() { seconds(45) } else { BACK })?;
    play.a.token.generate(KeyKind::Ec, KEY)?;
    play.wait_in(BACK).map(drop)
}

/// Group G, P32: a value that means "what you hold is worth nothing" is answered until a fresh start.
fn never_again(play: &Play<'_>, function: &str, value: &str) -> Result<()> {
    let begun = now_ns();
    play.a.fault.set(&[&format!("{function} rv={value} times=5")])?;
    let struck = |call: &Call| call.at_ns >= begun && call.function == function && call.outcome == value;
    let first = wait_for("the value was answered", READY, || play.a.fault.calls().ok()?.into_iter().find(struck))?;
    let signs = |call: &Call| {
        call.at_ns > first.at_ns && call.pid != first.pid && call.function == "C_Verify" && call.outcome == "0x0"
    };
    wait_until("a fresh worker signs", BACK, || play.a.fault.calls().is_ok_and(|calls| calls.iter().any(signs)))?;
    play.wait_in(BACK)?;
    let calls = play.a.fault.calls()?;
    if function != "C_GetTokenInfo" {
        only_ends(&calls, value)?;
    }
    ensure!(outcomes(&calls, "C_CloseAllSessions").is_empty(), "other applications' sessions would be closed");
    one_login_per_worker(&calls)
}

/// A process whose session was answered so may close it and end, and nothing else.
fn only_ends(calls: &[Call], value: &str) -> Result<()> {
    let struck: BTreeSet<u32> = calls.iter().filter(|call| call.outcome == value).map(|call| call.pid).collect();
    for pid in struck {
        let last =
            calls.iter().rposition(|call| call.pid == pid && call.outcome == value).context("it was answered")?;
        for call in calls[last + 1..].iter().filter(|call| call.pid == pid) {
            let ends = ["C_CloseSession", "C_Logout", "C_Finalize"].contains(&call.function.as_str());
            ensure!(ends, "{} was called after {value} had been returned", call.function);
        }
    }
    Ok(())
}

macro_rules! scenes {
    ($($test:ident: $($name:literal),+;)*) => {
        $(#[test]
        fn $test() -> Result<()> {
            for name in [$($name),+] {
                if is_long() || !LONG.contains(&name) {
                    came_of(name).context(name)?;
                }
            }
            Ok(())
        })*
    };
}

scenes! {
    pk03_depth_2_opens_no_session_and_reports_the_token: "pk03";
    pk04_firmware_out_of_range_is_a_fault: "pk04";
    pk05_a_skewed_clock_is_a_fault_in_time: "pk05";
    pk06_four_kinds_of_wrong_clock_have_four_reasons: "pk06";
    pk08_every_operation_passes_and_no_challenge_comes_twice: "pk08-ec", "pk08-rsa", "pk08-aes", "pk08-twins";
    pk09_a_corrupted_signature_is_found_even_if_verification_lies: "pk09", "pk09-lie";
    pk10_removed_once_is_nothing_removed_twice_is_gone: "pk10";
    pk11_exhausted_sessions_are_not_made_worse: "pk11";
    pk12_errors_anywhere_leave_no_session: "pk12";
    pk13_a_session_that_does_not_close_retires_its_worker: "pk13";
    pk14_a_session_that_only_says_it_closed_is_noticed: "pk14";
    pk16_a_hang_in_any_call_is_killed_at_its_deadline_and_named: "pk16-load", "pk16-c_sign", "pk16-c_initialize",
        "pk16-c_getslotlist",
        "pk16-c_getslotinfo", "pk16-c_gettokeninfo", "pk16-c_opensession", "pk16-c_login",
        "pk16-c_findobjects", "pk16-c_verify", "pk16-c_closesession", "pk16-c_finalize";
    pk17_a_hard_hang_ends_as_soon: "pk17";
    pk19_a_dying_worker_is_not_the_daemons_death: "pk19-segv", "pk19-abort", "pk19-exit-0", "pk19-exit-1", "pk19-huge";
    pk20_what_a_module_prints_changes_nothing: "pk20";
    pk21_a_token_that_comes_back_is_found_without_a_restart: "pk21-away", "pk21-key";
    p32_what_failed_is_never_used_again: "p32-removed", "p32-handle", "p32-device", "p32-absent", "p32-finalised";
    pk01_a_port_that_is_shut_or_silent_is_found_in_time: "pk01-2", "pk01-3";
    pk02_hundreds_of_connections_leave_none: "pk02";
    pk15_hanging_slots_never_hold_more_than_ten_sessions: "pk15";
    pk18_a_locked_token_and_a_silent_network_hang_for_real: "pk18";
    p33_sixteen_sessions_are_enough_for_four_slots_and_stay_so: "p33";
    p34_the_token_is_found_by_name_whatever_its_slot: "p34";
}
