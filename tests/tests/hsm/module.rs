//! The fault module, asked by OpenSC's tool, which knows nothing of it.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use lab::Namespace;
use lab::hsm::{FaultModule, HsmClient, KeyKind, Module, NetworkHsm, PIN, SoftHsm};
use lab::{Finished, wait_until};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(20);
const KEY: &str = "probe";

/// A token with a key, the module before it, and a namespace to ask from.
struct Bench {
    ns: Arc<Namespace>,
    dir: TempDir,
    token: SoftHsm,
    fault: FaultModule,
}

impl Bench {
    fn new() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let token = SoftHsm::create(&dir.path().join("token"), "edge")?;
        token.generate(KeyKind::Ec, KEY)?;
        let fault = FaultModule::before(&token, &dir.path().join("fault"))?;
        Ok(Self { ns: Arc::new(Namespace::new("tool")?), dir, token, fault })
    }

    /// Signs a file with `module`; returns how that ended and the signature.
    fn sign(&self, module: &Module) -> Result<(Finished, Vec<u8>)> {
        sign(&self.ns, module, self.dir.path())
    }

    fn outcomes(&self, function: &str) -> Result<Vec<String>> {
        let calls = self.fault.calls()?.into_iter().filter(|call| call.function == function);
        Ok(calls.map(|call| call.outcome).collect())
    }
}

fn sign(ns: &Namespace, module: &Module, dir: &Path) -> Result<(Finished, Vec<u8>)> {
    let (data, signature) = (dir.join("data"), dir.join("signature"));
    fs::write(&data, [7; 32])?;
    fs::remove_file(&signature).ok();
    let (data, out) = (data.to_str().context("letters")?, signature.to_str().context("letters")?);
    let arguments = ["--login", "--pin", PIN, "--sign", "--mechanism", "ECDSA", "--label", KEY, "-i", data, "-o", out];
    let finished = module.tool(ns, LIMIT, &arguments)?;
    Ok((finished, fs::read(&signature).unwrap_or_default()))
}

#[test]
fn without_rules_it_is_the_module_behind_it() -> Result<()> {
    let bench = Bench::new()?;

    let (finished, signature) = bench.sign(&bench.fault.module())?;
    finished.success()?;

    assert_eq!(signature.len(), 64);
    let calls = bench.fault.calls()?;
    let functions: Vec<&str> = calls.iter().map(|call| call.function.as_str()).collect();
    for function in ["C_Initialize", "C_OpenSession", "C_Login", "C_FindObjects", "C_SignInit", "C_Sign"] {
        assert!(functions.contains(&function), "{function} is not in {functions:?}");
    }
    assert!(calls.iter().any(|call| call.function == "C_Sign" && call.sessions == 1), "{calls:?}");
    assert!(!fs::read_to_string(bench.fault.dir().join("log"))?.contains(PIN), "the log holds the PIN");
    Ok(())
}

#[test]
fn a_call_fails_as_often_as_the_rule_says_across_processes() -> Result<()> {
    let bench = Bench::new()?;
    bench.fault.set(&["C_SignInit rv=0x32 times=2"])?;

    for want in [false, false, true] {
        let (finished, _) = bench.sign(&bench.fault.module())?;
        assert_eq!(finished.code == Some(0), want, "{}", finished.stderr);
    }

    assert_eq!(bench.outcomes("C_SignInit")?, ["0x32", "0x32", "0x0"]);
    Ok(())
}

#[test]
fn a_corrupted_signature_is_found_wrong_unless_verification_lies() -> Result<()> {
    let bench = Bench::new()?;
    let (data, signature) = (bench.dir.path().join("data"), bench.dir.path().join("signature"));
    let verify = |module: &Module| -> Result<bool> {
        let (data, signature) = (data.to_str().context("letters")?, signature.to_str().context("letters")?);
        let arguments = ["--verify", "--mechanism", "ECDSA", "--label", KEY, "-i", data, "--signature-file", signature];
        Ok(module.tool(&bench.ns, LIMIT, &arguments)?.stdout.contains("Signature is valid"))
    };

    bench.sign(&bench.fault.module())?.0.success()?;
    assert!(verify(&bench.token.module()?)?, "a good signature");
    bench.fault.set(&["C_Sign corrupt"])?;
    bench.sign(&bench.fault.module())?.0.success()?;
    assert!(!verify(&bench.token.module()?)?, "a corrupted one");
    bench.fault.set(&["C_Verify lie"])?;
    assert!(verify(&bench.fault.module())?, "a corrupted one that is lied about");
    Ok(())
}

#[test]
fn a_hanging_call_goes_on_when_its_rule_is_gone() -> Result<()> {
    let bench = Bench::new()?;
    for call in ["load", "C_Initialize", "C_Sign"] {
        bench.fault.set(&[&format!("{call} hang")])?;
        bench.fault.forget()?;
        thread::scope(|scope| -> Result<()> {
            let signing = scope.spawn(|| bench.sign(&bench.fault.module()));
            wait_until("the call hangs", LIMIT, || {
                bench.outcomes(call).is_ok_and(|outcomes| outcomes.iter().any(|outcome| outcome == "hang"))
            })?;
            assert!(!signing.is_finished(), "{call}");
            bench.fault.set(&[])?;
            let (finished, _) = signing.join().expect("no panic")?;
            finished.success().map(drop)
        })?;
    }
    Ok(())
}

#[test]
fn a_hard_hang_only_ends_with_its_process() -> Result<()> {
    let bench = Bench::new()?;
    bench.fault.set(&["C_Sign hardhang"])?;
    let begun = Instant::now();
    let limit = Duration::from_millis(300);

    let ended = bench.fault.module().tool(
        &bench.ns,
        limit,
        &["--login", "--pin", PIN, "--sign", "--mechanism", "ECDSA", "--label", KEY, "-i", "/etc/hostname"],
    );

    assert!(ended.is_err_and(|error| error.to_string().contains("did not end")));
    assert!(begun.elapsed() < Duration::from_secs(5), "SIGKILL is not to be blocked");
    Ok(())
}

#[test]
fn it_kills_its_process_in_every_way() -> Result<()> {
    let bench = Bench::new()?;
    for (rule, want) in [("segv", None), ("abort", None), ("exit=0", Some(0)), ("exit=1", Some(1)), ("huge", None)] {
        bench.fault.set(&[&format!("C_GetSlotList {rule}")])?;
        let finished = bench.fault.module().tool(&bench.ns, LIMIT, &["--list-slots"])?;
        // What a caller makes of an absurd length is its own affair, but it can't be slots.
        assert!(!finished.stdout.contains("edge"), "{rule}: {}", finished.stdout);
        assert!(rule == "huge" || finished.code == want, "{rule}: {:?}", finished.code);
    }
    Ok(())
}

#[test]
fn the_token_says_what_it_is_told_to() -> Result<()> {
    let bench = Bench::new()?;
    let shows = |what: &str| -> Result<bool> {
        let finished = bench.fault.module().tool(&bench.ns, LIMIT, &["--list-token-slots"])?;
        Ok(finished.success()?.contains(what))
    };
    assert!(shows("firmware version   : 2.6")?);
    bench.fault.set(&["token fw=9.9 serial=feed"])?;
    assert!(shows("firmware version   : 9.9")?);
    assert!(shows("serial num         : feed")?);
    bench.fault.set(&["* stdout"])?;
    assert!(shows("edge")?);
    Ok(())
}

#[test]
fn sessions_run_out_and_wrong_pins_lock() -> Result<()> {
    let bench = Bench::new()?;
    bench.fault.set(&["session max=16 foreign=16"])?;
    let (finished, _) = bench.sign(&bench.fault.module())?;
    assert_ne!(finished.code, Some(0));
    assert_eq!(bench.outcomes("C_OpenSession")?, ["0xb1"]);

    bench.fault.set(&["pin tries=3"])?;
    let log_in = |pin: &str| -> Result<String> {
        bench.fault.forget()?;
        bench.fault.module().tool(&bench.ns, LIMIT, &["--login", "--pin", pin, "--list-objects"])?;
        bench.outcomes("C_Login").map(|outcomes| outcomes.join(" "))
    };
    for want in ["0xa0", "0xa0"] {
        assert_eq!(log_in("wrong")?, want);
    }
    assert_eq!(log_in(PIN)?, "0x0", "the third try is right, and the count starts anew");
    for want in ["0xa0", "0xa0", "0xa0", "0xa4"] {
        assert_eq!(log_in("wrong")?, want);
    }
    assert_eq!(log_in(PIN)?, "0xa4", "locked is locked");
    Ok(())
}

#[test]
fn by_itself_it_has_the_slots_that_it_is_given() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let ns = Namespace::new("tool")?;
    let slots = ["slot id=3 uninitialised", "slot id=9 label=edge-sign serial=0A pin=1234"];
    let fault = FaultModule::alone(dir.path(), &slots)?;

    let listed = fault.module().tool(&ns, LIMIT, &["--list-slots"])?.success()?;
    assert!(listed.contains("uninitialized") && listed.contains("edge-sign"), "{listed}");
    let random = ["--token-label", "edge-sign", "--generate-random", "16"];
    assert!(fault.module().tool(&ns, LIMIT, &random)?.code == Some(0));
    Ok(())
}

/// The second real path: everything above with a network in between.
#[test]
fn a_network_hsm_signs_and_its_death_is_an_error() -> Result<()> {
    let bench = Bench::new()?;
    let address = "127.0.0.1:5657".parse()?;
    let mut hsm = NetworkHsm::start(&bench.ns, address, bench.fault.module())?;
    let client = HsmClient::start(&bench.ns, &bench.dir.path().join("hsm.sock"), address, &[])?;

    let (finished, signature) = bench.sign(&client.module()?)?;
    finished.success()?;
    assert_eq!(signature.len(), 64);
    assert_eq!(bench.outcomes("C_Sign")?, ["0x0"], "the call came through the network");

    hsm.kill()?;
    let (finished, _) = bench.sign(&client.module()?)?;
    assert_ne!(finished.code, Some(0));
    hsm.resume()?;
    bench.sign(&client.module()?)?.0.success()?;
    Ok(())
}
