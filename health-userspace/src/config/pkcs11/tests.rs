use super::{Depth, Versions};
use crate::config::{CheckConfig, CheckKind, Config, parse};
use health_core::Span;

const HEAD: &str = r#"
[node]
interfaces = ["lo"]
[[service]]
name = "hsm"
[[service.origin]]
name = "h1"
address = "10.0.5.11:5657"
pkcs11 = { module = "/opt/hsm/lib.so", serial = "0A1B2C", env = { CS_PKCS11_R3_CFG = "/etc/hsm/h1.cfg" } }
[[service.origin]]
name = "h2"
address = "10.0.5.12:5657"
priority = 1
pkcs11 = { module = "/opt/hsm/lib.so", label = "edge-sign", user = "hsm", memory_max = "2GiB" }
"#;

fn config(checks: &str) -> Config {
    parse(&format!("{HEAD}{checks}"), "f").expect("it is right").config
}

fn errors(checks: &str) -> String {
    parse(&format!("{HEAD}{checks}"), "f").expect_err("it is wrong").to_string()
}

fn hsm(check: &CheckConfig) -> &super::Pkcs11Check {
    let CheckKind::Pkcs11(rule) = &check.kind else { panic!("{check:?}") };
    rule
}

const FULL: &str = r#"
[[service.check]]
name = "token"
type = "pkcs11"
firmware = "2.5-2.10"
hardware = "1.0-2.99"
flags_forbid = ["error_state", "removable_device"]
clock = { interval = "10s", drift_max = "5s", require = true }
sessions_max = 10
orphan_ttl = "60s"
removed_fall = 2
[[service.check]]
name = "sign"
type = "pkcs11"
needs = ["token"]
operation = "sign_verify"
key = "sluice-probe"
mechanism = "ecdsa-sha256"
public_key = "/etc/sluice/hsm-probe.pem"
pin_file = "/run/credentials/sluice.service/hsm-pin"
interval = "30s"
deadlines = { load = "10s", select = "5s", login = "15s", info = "2s", business = "5s", close = "2s" }
confirm = "2s"
on_auth_failure = "fault"
"#;

#[test]
fn the_contracts_example_is_read_and_written_again() {
    let config = config(FULL);
    let [token, sign, clock] = config.services[0].checks.as_slice() else { panic!("three checks") };
    assert_eq!((token.name.as_str(), sign.name.as_str(), clock.name.as_str()), ("token", "sign", "token.clock"));
    assert_eq!((token.interval, token.plan.recover, token.plan.fast), seconds(15, 10, 2));
    assert_eq!((clock.interval, clock.plan.recover, clock.plan.fast), seconds(10, 10, 2));
    assert_eq!((sign.interval, sign.plan.recover, sign.plan.fast), seconds(30, 10, 2));
    assert_eq!(hsm(token).firmware, Some(Versions { first: (2, 5), last: (2, 10) }));
    assert_eq!((&hsm(token).depth, &hsm(clock).depth), (&Depth::Info, &Depth::Clock));
    assert!(hsm(sign).auth_is_fault && hsm(sign).clock.is_none());
    let again = parse(&config.resolved(), "again").expect("what is written reads back").config;
    assert_eq!(again, config);
}

const fn seconds(interval: u64, recover: u64, fast: u64) -> (Span, Span, Span) {
    (Span::from_secs(interval), Span::from_secs(recover), Span::from_secs(fast))
}

#[test]
fn the_seeds_numbers_are_the_defaults() {
    let config = config("[[service.check]]\ntype = \"pkcs11\"\n");
    let [check, clock] = config.services[0].checks.as_slice() else { panic!("two checks") };
    assert_eq!((check.interval, check.plan.recover), (Span::from_secs(15), Span::from_secs(10)));
    assert_eq!(clock.interval, Span::from_secs(10));
    let rule = hsm(check);
    assert_eq!((rule.sessions_max, rule.removed_fall, rule.confirm), (10, 2, Span::from_secs(2)));
    assert_eq!(rule.flags_forbid.iter().map(|flag| flag.name).collect::<Vec<_>>(), ["error_state"]);
    assert!(!rule.clock.expect("the first check watches the clock").require);
    assert!(!rule.auth_is_fault);
}

#[test]
fn a_clock_that_cannot_be_found_wrong_in_time_is_refused_with_the_sum() {
    let with = |rest: &str| format!("[[service.check]]\ntype = \"pkcs11\"\n{rest}\n");
    let said = errors(&with("clock = { interval = \"30s\" }"));
    assert!(said.contains("only after 43s") && said.contains("clock.interval 30s"), "{said}");
    let said = errors(&with("confirm = \"10s\""));
    assert!(said.contains("only after 37s"), "{said}");
    config(&with("clock = { interval = \"15s\" }"));
}

#[test]
fn mistakes_are_named() {
    let table = [
        ("operation = \"sign_verify\"", "this operation needs a key"),
        ("key = \"x\"", "`key` means nothing without an operation"),
        ("operation = \"random\"\npublic_key = \"/a\"", "only signatures are held against a public key"),
        ("operation = \"sign_verify\"\nkey = \"k\"\npin_file = \"pin\"", "`pin_file` is no absolute path"),
        ("firmware = \"2.10-2.9\"", "is no range of versions"),
        ("firmware = \"2\"", "is no range of versions"),
        ("flags_forbid = [\"eror_state\"]", "did you mean \"error_state\"?"),
        ("timeout = \"1s\"", "`timeout` means nothing to a pkcs11 check"),
        ("url = \"http://a/\"", "`url` means nothing to a check of type pkcs11"),
    ];
    for (lines, want) in table {
        let said = errors(&format!("[[service.check]]\ntype = \"pkcs11\"\n{lines}\n"));
        assert!(said.contains(want), "{lines}: {said}");
    }
    let said = errors("[[service.check]]\ntype = \"tcp\"\npin_file = \"/x\"\n");
    assert!(said.contains("`pin_file` means nothing to a check of type tcp"), "{said}");
}

#[test]
fn an_origin_says_which_token_and_nobody_runs_it_as_root() {
    let table = [
        ("{ module = \"/l\" }", "does not say which token"),
        ("{ serial = \"1\" }", "pkcs11 has no module"),
        ("{ module = \"l\", serial = \"1\" }", "`module` is no absolute path"),
        ("{ module = \"/l\", serial = \"1\", label = \"x\" }", "not by both"),
        ("{ module = \"/l\", serial = \"12345678901234567\" }", "`serial` cannot be"),
        ("{ module = \"/l\", serial = \"1\", user = \"root\" }", "must not run as root"),
        ("{ module = \"/l\", serial = \"1\", memory_max = \"1MiB\" }", "`memory_max` cannot be"),
    ];
    for (partition, want) in table {
        let text = format!(
            "[node]\ninterfaces = [\"lo\"]\n[[service]]\nname = \"s\"\n[[service.origin]]\nname = \"a\"\naddress = \
             \"10.0.0.1:1\"\npkcs11 = {partition}\n[[service.check]]\ntype = \"pkcs11\"\n"
        );
        let said = parse(&text, "f").expect_err("it is wrong").to_string();
        assert!(said.contains(want), "{partition}: {said}");
    }
    let text = "[node]\ninterfaces = [\"lo\"]\n[[service]]\nname = \"s\"\norigin = [{ name = \"a\", address = \
                \"10.0.0.1:1\" }]\n[[service.check]]\ntype = \"pkcs11\"\n";
    let said = parse(text, "f").expect_err("it is wrong").to_string();
    assert!(said.contains("origin `a` does not say which token it is"), "{said}");
}

#[test]
fn the_preset_lies_between_the_defaults_and_the_services_own_keys() {
    let with = |rest: &str| {
        let text = format!("[defaults.policy]\nfall = 5\nrise = 4\n{HEAD}[service.policy]\n{rest}\n");
        parse(&text, "f").expect("it is right").config.services[0].policy.clone()
    };
    let policy = with("preset = \"hsm\"");
    assert_eq!((policy.fall, policy.rise, policy.rescue), (2, 4, false));
    assert_eq!(policy.trip.silence_min, Span::from_millis(700));
    let policy = with("preset = \"hsm\"\nfall = 3\nrescue = true");
    assert_eq!((policy.fall, policy.rescue), (3, true));
    assert_eq!(with("preset = \"stateless\"").fall, 5);
    let said = parse("[defaults.policy]\npreset = \"hsm\"\n", "f").expect_err("it is wrong").to_string();
    assert!(said.contains("a preset belongs to a service"), "{said}");
}
