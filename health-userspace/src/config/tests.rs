//! Whole files in, messages out.
#![allow(clippy::needless_raw_string_hashes, reason = "expect-test writes snapshots with hashes")]
#![allow(clippy::too_many_lines, reason = "tables and snapshots are long and flat")]
#![allow(clippy::format_push_string, clippy::format_collect, reason = "a test may allocate")]

use super::*;
use expect_test::{Expect, expect};
use health_core::{
    Span,
    model::{Family, FrontendId, Mode, OriginId, ServiceId},
};
use proptest::prelude::*;
use std::net::SocketAddr;

const EXAMPLE: &str = include_str!("../../../deploy/sluice.toml");

const GOOD: &str = r#"[node]
interfaces = ["eth1"]

[[service]]
name = "shop"
[[service.origin]]
name = "a"
address = "10.0.1.10:443"
[[service.origin]]
name = "b"
address = "10.0.1.11:443"
priority = 1
capacity_cps = 5000
[[service.check]]
type = "tcp"
"#;

fn good(text: &str) -> Loaded {
    match parse(text, "sluice.toml") {
        Ok(loaded) => loaded,
        Err(errors) => panic!("{errors}"),
    }
}

fn check(text: &str, expected: &Expect) {
    match parse(text, "sluice.toml") {
        Ok(_) => panic!("accepted:\n{text}"),
        Err(errors) => expected.assert_eq(&format!("{errors}\n")),
    }
}

fn warnings(text: &str) -> String {
    let messages: Vec<_> = good(text).warnings.into_iter().map(|warning| warning.message + "\n").collect();
    messages.concat()
}

/// `GOOD` with one of its lines replaced.
fn with(line: &str, instead: &str) -> String {
    assert_eq!(GOOD.matches(line).count(), 1, "{line}");
    GOOD.replace(line, instead)
}

#[test]
fn the_minimum_of_the_design_is_accepted() {
    let minimum = GOOD.replace("capacity_cps = 5000\n[[service.check]]\ntype = \"tcp\"\n", "");
    let config = good(&minimum).config;
    assert_eq!(config.services[0].checks[0].name, "tcp");
    assert_eq!(config.services[0].checks[0].interval, Span::from_secs(5));
    assert_eq!(config.node.mode, Mode::Enforce);
    assert_eq!(config.services[0].policy, health_core::policy::Policy::default());
    assert_eq!(
        warnings(&minimum),
        "service `shop` has no check; each origin gets `tcp` every 5s\n\
         standby `shop/b` has no capacity: a failover may send it more than it can take\n"
    );
}

#[test]
fn the_shipped_example_has_neither_errors_nor_warnings() {
    assert_eq!(warnings(EXAMPLE), "");
}

#[test]
fn a_resolved_configuration_reads_back_as_itself() {
    let all = r#"
[node]
name = "N-1"
interfaces = ["eth?", "gre-*"]
client_interfaces = ["eth0", "br-*"]
xdp = ["eth1"]
cgroup = "/sys/fs/cgroup/web"
netns = ["/run/netns/blue"]
mode = "observe"
bypass = { uids = [33] }
metrics = { origin_detail = "all", histograms = "off" }
[[service]]
name = "s"
vips = ["[2001:db8::9]:80"]
balance = "weighted"
[[service.origin]]
name = "a"
address = "[2001:db8::1]:80"
capacity_scope = "cluster"
capacity_conns = 7
[[service.check]]
type = "http"
url = "http://s.example:8080/h?q=%20\u0022"
method = "POST"
headers = { X-Probe = "a\"b" }
expect = { status = [200, "300-399"], body = "regex:^登录|\\d+$", body_max = "1KiB" }
slow = "1s"
[service.policy]
response_timeout = { off = true }
syn_timeout = { sockets = false, sockets_min = "300ms" }
rescue = false
return_path = "none"
overflow = "exceed"
trip = { on_5xx = false }
window = "1h 30m"
"#;
    for text in [GOOD, EXAMPLE, &all.replace("\\u0022", "")] {
        let first = good(text).config;
        let resolved = first.resolved();
        assert_eq!(good(&resolved).config, first, "{resolved}");
        assert_eq!(good(&resolved).config.resolved(), resolved);
    }
}

#[test]
fn resolved_shows_every_default() {
    let resolved = good(&with("interfaces = [\"eth1\"]", "name = \"n\"\ninterfaces = [\"eth1\"]")).config.resolved();
    expect![[r#"
        [node]
        name = "n"
        interfaces = ["eth1"]
        client_interfaces = []
        xdp = []
        cgroup = "auto"
        netns = []
        mode = "enforce"
        state_dir = "/var/lib/sluice"
        pin_dir = "/sys/fs/bpf/sluice"
        bypass = { mark = 0x5311, uids = [], cgroups = ["/sluice-direct"] }

        [node.limits]
        origins = 10000
        frontends = 10000
        half_open = 262144
        flows = 1048576
        moved = 262144
        checks_per_s = 4000

        [node.governor]
        causes_at_once = 3
        moves_per_min = 60
        per_standby_at_once = 2

        [node.metrics]
        origin_detail = "states"
        histograms = "service"

        [control]
        listen = "127.0.0.1:9911"
        socket = "/run/sluice/control.sock"

        [[service]]
        name = "shop"
        mode = "enforce"
        vips = []
        balance = "maglev"
        guard = true

        [[service.origin]]
        name = "a"
        address = "10.0.1.10:443"
        priority = 0
        weight = 100
        guard = true
        capacity_scope = "node"

        [[service.origin]]
        name = "b"
        address = "10.0.1.11:443"
        priority = 1
        weight = 100
        guard = true
        capacity_cps = 5000
        capacity_scope = "node"

        [[service.check]]
        name = "tcp"
        type = "tcp"
        interval = "5s"
        timeout = "1s"
        interval_fast = "1s"
        interval_recover = "5s"
        interval_max = "30s"
        needs = []
        critical = true
        verify = false

        [service.policy]
        fall = 3
        rise = 2
        passive = true
        rescue = true
        window = "30s"
        samples_min = { passive = 20, active = 3 }
        success_below_percent = { degraded = 80, high_risk = 50, fault = 20 }
        state_weight_percent = { unknown = 100, healthy = 100, degraded = 50, high_risk = 10, fault = 0 }
        hold_down = { base = "30s", max = "5m" }
        response_timeout = { learn = true, min = "200ms", initial = "5s", max = "10s" }
        syn_timeout = { learn = true, min = "100ms", initial = "1s", max = "3s", sockets = true, sockets_min = "200ms" }
        return_path = "auto"
        overflow = "refuse"
        min_usable_percent = 70
        fault_rule = "either"
        panic_percent = 1
        move = "share"
        on_fault = "reset_stalled"
        stalled_for = "3s"
        reset_after = "30s"
        resets_per_s = 1000

        [service.policy.failback]
        observe_for = "5m"
        stages = [10, 50, 100]
        stage_for = "5m"
        approval = "auto"
        approval_expires = "12h"
        canary = { fail_over_standby_percent = 1, ttfb_factor_percent = 130, flows_min = 200 }

        [service.policy.latency]
        learn = true
        history = "1h"
        factor_percent = 300
        add = "50ms"
        buckets = 3
        samples_min = 200
        high_risk = { factor_percent = 2000, add = "1s" }

        [service.policy.mitigation]
        file = ""
        expires = "2h"
        evidence_percent = 200
        reset_spread_min = 20

        [service.policy.trip]
        kernel = true
        after = 5
        within = "10s"
        spread_min = 3
        silence_min = "0s"
        on_5xx = true
        half_open_after = "1s"
        half_open_max = "30s"
        max_percent = 50
    "#]]
    .assert_eq(&resolved);
}

#[test]
fn defaults_merge_key_by_key() {
    let text = format!(
        "{GOOD}[service.policy]\nhold_down = {{ max = \"60s\" }}\nfall = 2\n\
         [defaults.policy]\nhold_down = {{ base = \"2s\", max = \"20s\" }}\nrise = 4\nresponse_timeout = {{ off = true }}\n"
    );
    let policy = good(&text).config.services[0].policy.clone();
    assert_eq!((policy.fall, policy.rise), (2, 4));
    assert_eq!((policy.hold_down.base, policy.hold_down.max), (Span::from_secs(2), Span::from_secs(60)));
    assert_eq!(policy.response_timeout, None);
}

#[test]
fn all_mistakes_of_a_file_are_reported_each_with_place_and_cure() {
    check(
        r#"[node]
interfacs = ["eth1"]
governor = {}
mode = "observ"

[[service]]
name = "shop"
fall = 3
[[service.origin]]
name = "a"
address = "10.0.1.10"
weight = 65536
[[service.origin]]
name = "a"
address = "a.example:443"
vips = 3
[[service]]
name = "shop"
	# 登录
"#,
        &expect![[r#"
            sluice.toml:1:1: `[node]` names no interface
               |
             1 | [node]
               | ^^^^^^
            fix: name the interfaces that lead to the origins, for example interfaces = ["eth1", "gre-*"]

            sluice.toml:2:1: unknown key `interfacs` in `node`
               |
             2 | interfacs = ["eth1"]
               | ^^^^^^^^^
            fix: did you mean `interfaces`?

            sluice.toml:4:8: `mode` cannot be "observ"
               |
             4 | mode = "observ"
               |        ^^^^^^^^
            fix: write "enforce" or "observe"

            sluice.toml:8:1: unknown key `fall` in `service`
               |
             8 | fall = 3
               | ^^^^
            fix: `fall` belongs in `service.policy`

            sluice.toml:11:11: origin `a`: "10.0.1.10" has no port
                |
             11 | address = "10.0.1.10"
                |           ^^^^^^^^^^^
            fix: write, for example, "10.0.1.10:443"

            sluice.toml:12:10: `weight` is 65536, which is out of range
                |
             12 | weight = 65536
                |          ^^^^^
            fix: write a number from 0 to 65535

            sluice.toml:14:8: there are two origins named `a`
                |
             14 | name = "a"
                |        ^^^
            fix: give one of them another name

            sluice.toml:16:1: unknown key `vips` in `service.origin`
                |
             16 | vips = 3
                | ^^^^
            fix: `vips` belongs in `service`

            sluice.toml:17:1: service `shop` has no origin
                |
             17 | [[service]]
                | ^^^^^^^^^^^
            fix: add [[service.origin]] with name = "…" and address = "IP:PORT"

            sluice.toml:18:8: there are two services named `shop`
                |
             18 | name = "shop"
                |        ^^^^^^
            fix: give one of them another name
        "#]],
    );
}

#[test]
fn syntax_errors_stand_alone() {
    check(
        "[node]\ninterfaces = [\"eth1\"\n[[service]]\n",
        &expect![[r#"
        sluice.toml:3:1: missing comma between array elements, expected `,`
           |
         3 | [[service]]
           | ^
        fix: write it as TOML; https://toml.io shows the syntax
    "#]],
    );
}

#[test]
fn a_missing_file_and_one_that_is_no_text_are_errors_too() {
    let missing = load(Path::new("/nonexistent/sluice.toml")).expect_err("is not there");
    expect![[r#"
        /nonexistent/sluice.toml: cannot read the configuration: No such file or directory (os error 2)
        fix: create it, or name another with -c FILE
    "#]]
    .assert_eq(&format!("{missing}\n"));
    let binary = parse_bytes(b"[node]\nname = \"\xff\"\n", "sluice.toml").expect_err("is not UTF-8");
    expect![[r#"
        sluice.toml:2:9: this byte is not UTF-8
           |
         2 | name = "�"
           |         ^
        fix: save the file as UTF-8
    "#]]
    .assert_eq(&format!("{binary}\n"));
}

/// One wrong line each; the first error's message and cure.
#[test]
fn bad_values() {
    let cases = [
        ("address = \"10.0.1.10:443\"", "address = \"10.0.1.10:0\""),
        ("address = \"10.0.1.10:443\"", "address = \"10.0.1.10:65536\""),
        ("address = \"10.0.1.10:443\"", "address = \"10.0.1.10\""),
        ("address = \"10.0.1.10:443\"", "address = \"2001:db8::1\""),
        ("address = \"10.0.1.10:443\"", "address = \"[2001:db8::1]\""),
        ("address = \"10.0.1.10:443\"", "address = \"[::ffff:10.0.0.1]:80\""),
        ("address = \"10.0.1.10:443\"", "address = \"[fe80::1%3]:80\""),
        ("address = \"10.0.1.10:443\"", "address = \"0.0.0.0:80\""),
        ("address = \"10.0.1.10:443\"", "address = \"10.0.1.300:80\""),
        ("address = \"10.0.1.10:443\"", "address = \"10.0.1.11:443\""),
        ("address = \"10.0.1.10:443\"", "address = 443"),
        ("address = \"10.0.1.10:443\"", ""),
        ("priority = 1", "priority = 256"),
        ("priority = 1", "priority = 128"),
        ("priority = 1", "weight = -1"),
        ("priority = 1", "weight = 65536"),
        ("priority = 1", "weight = 4294967296"),
        ("priority = 1", "weight = 99999999999999999999999999999999999999999"),
        ("priority = 1", "weight = 1.5"),
        ("priority = 1", "family = \"ipv6\""),
        ("priority = 1", "wieght = 10"),
        ("name = \"shop\"", "name = \"Shop\""),
        ("name = \"shop\"", ""),
        ("name = \"shop\"", "name = \"shop\"\naffinity = \"source\""),
        ("name = \"shop\"", "name = \"shop\"\nbalance = \"round_robin\""),
        ("name = \"shop\"", "name = \"shop\"\nvips = \"198.51.100.10:443\""),
        ("name = \"shop\"", "name = \"shop\"\nvips = [\"198.51.100.10\"]"),
        ("name = \"shop\"", "name = \"shop\"\nvips = [\"[2001:db8::10]:443\"]"),
        ("name = \"shop\"", "name = \"shop\"\nvips = [\"10.0.1.10:443\"]"),
        ("name = \"shop\"", "name = \"shop\"\nvips = [\"198.51.100.1:1\", \"198.51.100.1:1\"]"),
        ("interfaces = [\"eth1\"]", "interfaces = [\"eth1\", \"gre-*\"]\nxdp = [\"eth1\", \"gre-1*\", \"eth2\"]"),
        ("interfaces = [\"eth1\"]", "interfaces = [\"eth1\"]\nclient_interfaces = [\"eth/0\"]"),
        ("interfaces = [\"eth1\"]", "interfaces = [\"eth1\"]\nclient_interfaces = \"eth0\""),
        ("name = \"b\"", "name = \"a\""),
        ("type = \"tcp\"", "type = \"tcp\"\n[[service.check]]\ntype = \"tcp\""),
        ("type = \"tcp\"", "type = \"pkcs11\""),
        ("type = \"tcp\"", "type = \"icmp\"\nsize = 8"),
        ("type = \"tcp\"", "type = \"htpp\""),
        ("type = \"tcp\"", "type = \"tcp\"\ninterval = 5"),
        ("type = \"tcp\"", "type = \"tcp\"\ninterval = \"5\""),
        ("type = \"tcp\"", "type = \"tcp\"\ninterval = \"50ms\""),
        ("type = \"tcp\"", "type = \"tcp\"\ntimeout = \"1h\""),
        ("type = \"tcp\"", "type = \"tcp\"\nurl = \"http://a/b\""),
        ("type = \"tcp\"", "type = \"tcp\"\nneeds = [\"port\"]"),
        ("type = \"tcp\"", "type = \"tcp\"\nexpect = [\"not_regex:y\"]"),
        ("type = \"tcp\"", "type = \"http\""),
        ("type = \"tcp\"", "type = \"http\"\nurl = \"ftp://a/b\""),
        ("type = \"tcp\"", "type = \"http\"\nurl = \"http://u:p@a/b\""),
        ("type = \"tcp\"", "type = \"http\"\nurl = \"http:///b\""),
        ("type = \"tcp\"", "type = \"http\"\nurl = \"http://a b/\""),
        ("type = \"tcp\"", "type = \"http\"\nurl = \"http://a/b#c\""),
        ("type = \"tcp\"", "type = \"http\"\nurl = \"http://a/b\"\nmethod = \"get\""),
        ("type = \"tcp\"", "type = \"http\"\nurl = \"http://a/b\"\nheaders = { \"X Y\" = \"z\" }"),
        ("type = \"tcp\"", "type = \"http\"\nurl = \"http://a/b\"\nheaders = { X = \"a\\nb\" }"),
        ("type = \"tcp\"", "type = \"http\"\nurl = \"http://a/b\"\nheaders = { Connection = \"close\" }"),
        ("type = \"tcp\"", "type = \"http\"\nurl = \"http://a/b\"\nexpect = { status = [\"299-200\"] }"),
        ("type = \"tcp\"", "type = \"http\"\nurl = \"http://a/b\"\nexpect = { status = [\"2xx\"] }"),
        ("type = \"tcp\"", "type = \"http\"\nurl = \"http://a/b\"\nexpect = { status = [99] }"),
        ("type = \"tcp\"", "type = \"http\"\nurl = \"http://a/b\"\nexpect = { body = [\"regex:(\"] }"),
        ("type = \"tcp\"", "type = \"http\"\nurl = \"http://a/b\"\nexpect = { body = [\"ready\"] }"),
        ("type = \"tcp\"", "type = \"http\"\nurl = \"http://a/b\"\nexpect = { body_max = \"99MiB\" }"),
        ("type = \"tcp\"", "type = \"http\"\nurl = \"http://a/b\"\nexpect = { json = { a = 1 } }"),
        ("type = \"tcp\"", "type = \"http\"\nurl = \"http://a/b\"\nexpect = { json = { \"/a\" = [1] } }"),
        ("type = \"tcp\"", "type = \"http\"\nurl = \"http://a/b\"\nexpect = { digest = \"md5:12\" }"),
        ("type = \"tcp\"", "type = \"http\"\nurl = \"http://a/b\"\nexpect = { redirect = \"no\" }"),
        ("type = \"tcp\"", "type = \"http\"\nurl = \"http://a/b\"\nexpect = { headers = { X = 1 } }"),
        ("type = \"tcp\"", "type = \"http\"\nurl = \"http://a/b\"\nexpect = { blocked = {} }"),
        ("type = \"tcp\"", "type = \"http\"\nurl = \"http://a/b\"\nhttp = \"2\""),
        ("type = \"tcp\"", "type = \"http\"\nurl = \"http://a/b\"\nhttp = \"h2c\"\ntls = { verify = false }"),
        ("type = \"tcp\"", "type = \"http\"\nrequest = [{ url = \"http://a/b\", body = \"x\" }]"),
        ("type = \"tcp\"", "type = \"http\"\nurl = \"http://a/b\"\nrequest = [{ url = \"http://a/c\" }]"),
        ("type = \"tcp\"", "type = \"tls\"\ntls = { cert = \"/c.pem\" }"),
        ("type = \"tcp\"", "type = \"tls\"\ntls = { server_name = \"a b\" }"),
        ("type = \"tcp\"", "type = \"tls\"\nalpn = [\"\"]"),
        ("type = \"tcp\"", "type = \"smtp\"\ntls = { verify = false }"),
        ("type = \"tcp\"", "type = \"smtp\"\nhelo = \"a b\""),
        ("type = \"tcp\"", "type = \"dns\""),
        ("type = \"tcp\"", "type = \"dns\"\nquery = \"a..b\""),
        ("type = \"tcp\"", "type = \"dns\"\nquery = \"a\"\nrecord = \"ANY\""),
        ("type = \"tcp\"", "type = \"dns\"\nquery = \"a\"\ntransport = \"tls\""),
        ("type = \"tcp\"", "type = \"grpc\"\nurl = \"http://a/\""),
        ("type = \"tcp\"", "type = \"script\""),
        ("type = \"tcp\"", "type = \"script\"\nexec = []"),
        ("type = \"tcp\"", "type = \"script\"\nexec = [\"mq\"]"),
        ("type = \"tcp\"", "type = \"script\"\nexec = [\"/mq\"]\nuser = \"root\""),
        ("type = \"tcp\"", "type = \"script\"\nexec = [\"/mq\"]\nuser = \"no-such-user\""),
        ("type = \"tcp\"", "type = \"http\"\nurl = \"http://a/b\"\nmethod = \"HEAD\"\nexpect = { body = \"exact:a\" }"),
        ("type = \"tcp\"", "type = \"tcp\"\n[service.policy]\nfall = 0"),
        ("type = \"tcp\"", "type = \"tcp\"\n[service.policy]\nfault_rule = \"all\""),
        ("type = \"tcp\"", "type = \"tcp\"\n[service.policy]\ntrip = { on_5xx = 500 }"),
        ("type = \"tcp\"", "type = \"tcp\"\n[service.policy]\nrescue = \"no\""),
        ("type = \"tcp\"", "type = \"tcp\"\n[service.policy]\nsyn_timeout = { sockets_min = \"5ms\" }"),
        ("type = \"tcp\"", "type = \"tcp\"\n[service.policy]\nreturn_path = \"dsr\""),
        ("type = \"tcp\"", "type = \"tcp\"\n[service.policy]\noverflow = \"queue\""),
        ("type = \"tcp\"", "type = \"tcp\"\n[service.policy]\nsuccess_below_percent = { fault = 60 }"),
        ("type = \"tcp\"", "type = \"tcp\"\n[service.policy]\nhold_down = { base = \"301s\" }"),
        ("type = \"tcp\"", "type = \"tcp\"\n[service.policy]\nresponse_timeout = { min = \"6s\" }"),
        ("type = \"tcp\"", "type = \"tcp\"\n[service.policy]\nresponse_timeout = { max = \"17001ms\" }"),
        ("type = \"tcp\"", "type = \"tcp\"\n[service.policy]\nresponse_timeout = { initial = \"1m\" }"),
        ("type = \"tcp\"", "type = \"tcp\"\n[service.policy]\nsyn_timeout = { min = \"5s\" }"),
        ("type = \"tcp\"", "type = \"tcp\"\n[service.policy]\nsyn_timeout = { initial = \"5s\" }"),
        ("type = \"tcp\"", "type = \"tcp\"\n[service.policy]\nsyn_timeout = { max = \"4001ms\" }"),
        ("type = \"tcp\"", "type = \"tcp\"\n[service.policy]\ntrip = { after = 0 }"),
        ("type = \"tcp\"", "type = \"tcp\"\n[service.policy]\ntrip = { after = 1001 }"),
        ("type = \"tcp\"", "type = \"tcp\"\n[service.policy]\ntrip = { spread_min = 0 }"),
        ("type = \"tcp\"", "type = \"tcp\"\n[service.policy]\ntrip = { spread_min = 21 }"),
        ("interfaces = [\"eth1\"]", ""),
        ("interfaces = [\"eth1\"]", "interfaces = []"),
        ("interfaces = [\"eth1\"]", "interfaces = [\"eth/1\"]"),
        ("interfaces = [\"eth1\"]", "interfaces = \"eth1\""),
        ("interfaces = [\"eth1\"]", "interfaces = [\"eth1\"]\nredirect_allow = [\"10.0.1.11/32\"]"),
        ("interfaces = [\"eth1\"]", "interfaces = [\"eth1\"]\nredirect_allow = [\"10.0.1.0/8\"]"),
        ("interfaces = [\"eth1\"]", "interfaces = [\"eth1\"]\nredirect_allow = []"),
        ("interfaces = [\"eth1\"]", "interfaces = [\"eth1\"]\ncgroup = \"web\""),
        ("interfaces = [\"eth1\"]", "interfaces = [\"eth1\"]\nbypass = { mark = 0 }"),
        ("interfaces = [\"eth1\"]", "interfaces = [\"eth1\"]\nbypass = { mark = 0x0800_0001 }"),
        ("interfaces = [\"eth1\"]", "interfaces = [\"eth1\"]\nbypass = { mark = 0x0800_0000 }"),
        ("interfaces = [\"eth1\"]", "interfaces = [\"eth1\"]\nlimits = { origins = 1 }"),
        ("interfaces = [\"eth1\"]", "interfaces = [\"eth1\"]\nlimits = { origins = 65535 }"),
        ("interfaces = [\"eth1\"]", "interfaces = [\"eth1\"]\nlimits = { frontends = 65535 }"),
        ("interfaces = [\"eth1\"]", "interfaces = [\"eth1\"]\n[control]\ntls = { cert = \"/a\" }"),
        ("interfaces = [\"eth1\"]", "interfaces = [\"eth1\"]\n[control]\nlisten = \"localhost:1\""),
        ("[node]", "include = [\"/etc/x\"]\n[node]"),
        ("[node]", "[cluster]\netcd = []\n[node]"),
        ("[node]", "nod = 1\n[node]"),
    ];
    let mut table = String::new();
    for (line, instead) in cases {
        match parse(&with(line, instead), "f") {
            Ok(_) => panic!("accepted: {instead}"),
            Err(errors) => {
                let [first] = errors.errors.as_slice() else { panic!("{instead}: more than one error\n{errors}") };
                let shown = instead.replace('\n', " ⏎ ");
                table +=
                    &format!("{shown}\n    {}:{} {}\n    {}\n", first.line, first.column, first.message, first.fix);
            }
        }
    }
    expect![[r#"
        address = "10.0.1.10:0"
            8:11 origin `a`: "10.0.1.10:0" has port 0
            write a port from 1 to 65535
        address = "10.0.1.10:65536"
            8:11 origin `a`: "10.0.1.10:65536" has a bad port
            write a port from 1 to 65535
        address = "10.0.1.10"
            8:11 origin `a`: "10.0.1.10" has no port
            write, for example, "10.0.1.10:443"
        address = "2001:db8::1"
            8:11 origin `a`: "2001:db8::1" has no port
            write, for example, "[2001:db8::1]:443"
        address = "[2001:db8::1]"
            8:11 origin `a`: "[2001:db8::1]" is no address
            write an IP address and a port, for example "10.0.1.10:443"
        address = "[::ffff:10.0.0.1]:80"
            8:11 origin `a`: "[::ffff:10.0.0.1]:80" is an IPv4 address in IPv6 clothes
            write "10.0.0.1:80"
        address = "[fe80::1%3]:80"
            8:11 origin `a`: "[fe80::1%3]:80" has a zone, which is not yet supported
            use an address that is valid on every link
        address = "0.0.0.0:80"
            8:11 origin `a`: "0.0.0.0:80" is no address that a server can have
            write the address that the origin listens on
        address = "10.0.1.300:80"
            8:11 origin `a`: "10.0.1.300:80" is no address
            write an IP address and a port, for example "10.0.1.10:443"
        address = "10.0.1.11:443"
            11:11 10.0.1.11:443 is already origin `a` of service `shop`
            an address belongs to one service, once; remove one of the two
        address = 443
            8:11 `address` is an integer, not a string
            write, for example, address = "10.0.1.10:443"

            6:1 origin `a` has no address
            add, for example, address = "10.0.1.10:443"
        priority = 256
            12:12 `priority` is 256, which is out of range
            write a number from 0 to 127
        priority = 128
            12:12 `priority` is 128, which is out of range
            write a number from 0 to 127
        weight = -1
            12:10 `weight` is -1, which is out of range
            write a number from 0 to 65535
        weight = 65536
            12:10 `weight` is 65536, which is out of range
            write a number from 0 to 65535
        weight = 4294967296
            12:10 `weight` is 4294967296, which is out of range
            write a number from 0 to 65535
        weight = 99999999999999999999999999999999999999999
            12:10 `weight` is 9999999999999999999999999999999999999999, which is out of range
            write a number from 0 to 65535
        weight = 1.5
            12:10 `weight` is a float, not a whole number
            write, for example, weight = 0
        family = "ipv6"
            12:10 origin `b`: its address is not of the family that it names
            remove family: an address has its own
        wieght = 10
            12:1 unknown key `wieght` in `service.origin`
            did you mean `weight`?
        name = "Shop"
            5:8 "Shop" cannot be the name of a service
            use a to z, 0 to 9, `.`, `_` and `-`, at most 63 of them

            4:1 this service has no name
            add name = "…"
        name = "shop" ⏎ affinity = "source"
            6:1 `service.affinity` is not yet supported
            remove it; a later version of Sluice will read it
        name = "shop" ⏎ balance = "round_robin"
            6:11 `balance` cannot be "round_robin"
            write "maglev" or "weighted"
        name = "shop" ⏎ vips = "198.51.100.10:443"
            6:8 `vips` is a string, not a list of strings
            write, for example, vips = ["198.51.100.10:443"]
        name = "shop" ⏎ vips = ["198.51.100.10"]
            6:9 `vips`: "198.51.100.10" has no port
            write, for example, "198.51.100.10:443"
        name = "shop" ⏎ vips = ["[2001:db8::10]:443"]
            6:9 no origin of service `shop` can serve [2001:db8::10]:443: none has IPv6
            add an origin with an IPv6 address; families never mix
        name = "shop" ⏎ vips = ["10.0.1.10:443"]
            6:9 virtual address 10.0.1.10:443 is origin `a` of service `shop`
            remove it here; `guard` steers an origin's own address
        name = "shop" ⏎ vips = ["198.51.100.1:1", "198.51.100.1:1"]
            6:27 198.51.100.1:1 is already a virtual address of service `shop`
            an address belongs to one service, once; remove one of the two
        interfaces = ["eth1", "gre-*"] ⏎ xdp = ["eth1", "gre-1*", "eth2"]
            3:26 `xdp` names "eth2", which `interfaces` does not
            add it to interfaces, or remove it here
        interfaces = ["eth1"] ⏎ client_interfaces = ["eth/0"]
            3:22 "eth/0" is no name of an interface
            write a name as `ip link` shows it, or a glob such as "gre-*"
        interfaces = ["eth1"] ⏎ client_interfaces = "eth0"
            3:21 `client_interfaces` is a string, not a list of strings
            write, for example, client_interfaces = ["eth0"]
        name = "a"
            10:8 there are two origins named `a`
            give one of them another name
        type = "tcp" ⏎ [[service.check]] ⏎ type = "tcp"
            16:1 there are two checks named `tcp`
            give one of them another name
        type = "pkcs11"
            14:1 check `pkcs11`: origin `a` does not say which token it is
            give it pkcs11 = { module = "…", serial = "…" }
        type = "icmp" ⏎ size = 8
            16:8 `size` is 8, which is out of range
            write a number from 16 to 8952
        type = "htpp"
            15:8 unknown type of check `htpp`
            did you mean "http"?
        type = "tcp" ⏎ interval = 5
            16:12 `interval` has no unit
            write, for example, interval = "5s" or "5ms"
        type = "tcp" ⏎ interval = "5"
            16:12 `interval` is no length of time: time unit needed, for example 5sec or 5ms
            write a number and its unit (ms, s, m, h), for example interval = "5s"
        type = "tcp" ⏎ interval = "50ms"
            16:12 `interval` is 50ms, which is out of range
            write a time from 100ms to 1day
        type = "tcp" ⏎ timeout = "1h"
            16:11 `timeout` is 1h, which is out of range
            write a time from 10ms to 10m
        type = "tcp" ⏎ url = "http://a/b"
            16:7 check `tcp`: `url` means nothing to a check of type tcp
            remove it, or write type = "http"
        type = "tcp" ⏎ needs = ["port"]
            14:1 check `tcp` needs `port`, and there is none
            name another check of this service
        type = "tcp" ⏎ expect = ["not_regex:y"]
            16:10 check `tcp`: nothing in `expect` says when enough has come
            add a rule that begins with contains:, exact: or regex:
        type = "http"
            14:1 check `http` has no url
            add, for example, url = "http://shop.example/healthz"
        type = "http" ⏎ url = "ftp://a/b"
            16:7 check `http`: the url "ftp://a/b" begins with neither http:// nor https://
            write, for example, "https://shop.example/healthz"
        type = "http" ⏎ url = "http://u:p@a/b"
            16:7 check `http`: the url holds a user name or password
            remove it; secrets do not belong into this file
        type = "http" ⏎ url = "http:///b"
            16:7 check `http`: the url "http:///b" names no host
            write, for example, "https://shop.example/healthz"
        type = "http" ⏎ url = "http://a b/"
            16:7 check `http`: the url "http://a b/" holds white space or a backslash
            encode it, as in %20
        type = "http" ⏎ url = "http://a/b#c"
            16:7 check `http`: the url "http://a/b#c" has a fragment, which is never sent
            remove `#` and what follows
        type = "http" ⏎ url = "http://a/b" ⏎ method = "get"
            17:10 `method` cannot be "get"
            write GET, HEAD, OPTIONS or POST, in capital letters
        type = "http" ⏎ url = "http://a/b" ⏎ headers = { "X Y" = "z" }
            17:13 "X Y" is no name of a header
            use letters, digits and `-`, as in X-Probe
        type = "http" ⏎ url = "http://a/b" ⏎ headers = { X = "a\nb" }
            17:17 the value of the header `X` has characters that a header cannot carry
            remove line breaks and control characters
        type = "http" ⏎ url = "http://a/b" ⏎ headers = { Connection = "close" }
            17:13 the header `Connection` is set by Sluice itself
            remove it
        type = "http" ⏎ url = "http://a/b" ⏎ expect = { status = ["299-200"] }
            17:22 `status` cannot be "299-200"
            write codes and ranges from 100 to 599, for example status = ["200-299", 401]
        type = "http" ⏎ url = "http://a/b" ⏎ expect = { status = ["2xx"] }
            17:22 `status` cannot be "2xx"
            write codes and ranges from 100 to 599, for example status = ["200-299", 401]
        type = "http" ⏎ url = "http://a/b" ⏎ expect = { status = [99] }
            17:22 `status` cannot be 99
            write codes and ranges from 100 to 599, for example status = ["200-299", 401]
        type = "http" ⏎ url = "http://a/b" ⏎ expect = { body = ["regex:("] }
            17:20 the pattern "(" is wrong: unclosed group
            see https://docs.rs/regex/#syntax
        type = "http" ⏎ url = "http://a/b" ⏎ expect = { body = ["ready"] }
            17:20 the body rule "ready" begins with no known word
            begin it with contains:, exact:, regex: or not_regex:
        type = "http" ⏎ url = "http://a/b" ⏎ expect = { body_max = "99MiB" }
            17:23 `body_max` cannot be "99MiB"
            write a size from 1B to 16MiB, for example "256KiB"
        type = "http" ⏎ url = "http://a/b" ⏎ expect = { json = { a = 1 } }
            17:21 "a" is no JSON pointer
            begin it with `/`, as in "/queue/depth"; write ~ as ~0
        type = "http" ⏎ url = "http://a/b" ⏎ expect = { json = { "/a" = [1] } }
            17:28 the condition for "/a" is neither text, number nor flag
            write, for example, json = { "/db" = "ok", "/queue/depth" = "<1000" }
        type = "http" ⏎ url = "http://a/b" ⏎ expect = { digest = "md5:12" }
            17:21 `digest` cannot be "md5:12"
            write md5: and 32 hexadecimal digits, or sha256: and 64; `sha256sum` prints them for a file
        type = "http" ⏎ url = "http://a/b" ⏎ expect = { redirect = "no" }
            17:23 `redirect` cannot be "no"
            write "fail" or "pass" or "https_only" or "follow"
        type = "http" ⏎ url = "http://a/b" ⏎ expect = { headers = { X = 1 } }
            17:28 the rule for the header `X` is not a string
            put it into quotes
        type = "http" ⏎ url = "http://a/b" ⏎ expect = { blocked = {} }
            17:22 `blocked` names neither a status nor a header, so every answer would be one
            write, for example, blocked = { status = [401, 403], headers = { Server = "waf" } }
        type = "http" ⏎ url = "http://a/b" ⏎ http = "2"
            17:8 check `http`: this version of HTTP is not spoken over http://
            write https://, or http = "h2c" for HTTP/2 in clear text
        type = "http" ⏎ url = "http://a/b" ⏎ http = "h2c" ⏎ tls = { verify = false }
            18:7 check `http`: `tls` means nothing to http://
            remove it, or write https://
        type = "http" ⏎ request = [{ url = "http://a/b", body = "x" }]
            16:41 check `http`: GET carries no body
            write method = "POST", or remove the body
        type = "http" ⏎ url = "http://a/b" ⏎ request = [{ url = "http://a/c" }]
            16:7 check `http` has both `url` and [[service.check.request]]
            move it into a request of its own
        type = "tls" ⏎ tls = { cert = "/c.pem" }
            16:16 `tls.cert` has no `key`
            add key = "…", the file with its private key
        type = "tls" ⏎ tls = { server_name = "a b" }
            16:23 `server_name` cannot be "a b"
            write a host name, such as "shop.example", or an address
        type = "tls" ⏎ alpn = [""]
            16:9 `alpn` cannot hold ""
            write a protocol's name, such as "h2" or "http/1.1"
        type = "smtp" ⏎ tls = { verify = false }
            16:7 check `smtp`: `tls` means nothing without TLS
            remove it, or add starttls = true
        type = "smtp" ⏎ helo = "a b"
            16:8 `helo` cannot be "a b"
            write a host name, such as "probe.example", or an address in brackets
        type = "dns"
            14:1 check `dns` has no query
            write, for example, query = "shop.example."
        type = "dns" ⏎ query = "a..b"
            16:9 `query` cannot be "a..b"
            write, for example, query = "shop.example."
        type = "dns" ⏎ query = "a" ⏎ record = "ANY"
            17:10 `record` cannot be "ANY"
            write a type of record, such as A, AAAA, MX, NS, SOA or TXT
        type = "dns" ⏎ query = "a" ⏎ transport = "tls"
            17:13 `transport` cannot be "tls"
            write "udp" or "tcp"
        type = "grpc" ⏎ url = "http://a/"
            16:7 check `grpc`: `url` means nothing to a check of type grpc
            remove it, or write type = "http"
        type = "script"
            14:1 check `script` has no exec
            write, for example, exec = ["/usr/lib/sluice/checks/mq", "--fast"]
        type = "script" ⏎ exec = []
            16:8 check `script`: `exec` names no program
            write, for example, exec = ["/usr/lib/sluice/checks/mq", "--fast"]
        type = "script" ⏎ exec = ["mq"]
            16:9 "mq" is no absolute path; nothing is searched
            write, for example, exec = ["/usr/lib/sluice/checks/mq", "--fast"]
        type = "script" ⏎ exec = ["/mq"] ⏎ user = "root"
            17:8 check `script`: scripts are not run as root
            name a user of its own, which may do only what the script needs
        type = "script" ⏎ exec = ["/mq"] ⏎ user = "no-such-user"
            17:8 check `script`: this machine has no user `no-such-user`
            create the user (as in `useradd --system sluice-check`), or name another as user = "…"
        type = "http" ⏎ url = "http://a/b" ⏎ method = "HEAD" ⏎ expect = { body = "exact:a" }
            18:19 check `http`: an answer to HEAD has no body that a rule could hold for
            remove the rule, or use method = "GET"
        type = "tcp" ⏎ [service.policy] ⏎ fall = 0
            17:8 `fall` is 0, which is out of range
            write a number from 1 to 100
        type = "tcp" ⏎ [service.policy] ⏎ fault_rule = "all"
            17:14 `fault_rule` cannot be "all"
            write "either" or "both"
        type = "tcp" ⏎ [service.policy] ⏎ trip = { on_5xx = 500 }
            17:19 `on_5xx` is an integer, not true or false
            write, for example, on_5xx = true
        type = "tcp" ⏎ [service.policy] ⏎ rescue = "no"
            17:10 `rescue` is a string, not true or false
            write, for example, rescue = true
        type = "tcp" ⏎ [service.policy] ⏎ syn_timeout = { sockets_min = "5ms" }
            17:31 `sockets_min` is 5ms, which is out of range
            write a time from 10ms to 3s
        type = "tcp" ⏎ [service.policy] ⏎ return_path = "dsr"
            17:15 `return_path` cannot be "dsr"
            write "auto" or "symmetric" or "none"
        type = "tcp" ⏎ [service.policy] ⏎ overflow = "queue"
            17:12 `overflow` cannot be "queue"
            write "refuse" or "least_bad" or "exceed"
        type = "tcp" ⏎ [service.policy] ⏎ success_below_percent = { fault = 60 }
            17:25 `success_below_percent` is out of order: degraded 80, high_risk 50, fault 60
            let degraded be the greatest and fault the least of the three (default 80, 50, 20)
        type = "tcp" ⏎ [service.policy] ⏎ hold_down = { base = "301s" }
            17:13 `hold_down.base` (301s) is longer than `hold_down.max` (300s)
            let max be at least base
        type = "tcp" ⏎ [service.policy] ⏎ response_timeout = { min = "6s" }
            17:20 `response_timeout` is out of order: min 6s, initial 5s, max 10s
            let initial lie between min and max; keys that are not written here have the values shown
        type = "tcp" ⏎ [service.policy] ⏎ response_timeout = { max = "17001ms" }
            17:28 `max` is 17s 1ms, which is out of range
            write a time from 10ms to 17s
        type = "tcp" ⏎ [service.policy] ⏎ response_timeout = { initial = "1m" }
            17:32 `initial` is 1m, which is out of range
            write a time from 10ms to 17s
        type = "tcp" ⏎ [service.policy] ⏎ syn_timeout = { min = "5s" }
            17:23 `min` is 5s, which is out of range
            write a time from 10ms to 4s
        type = "tcp" ⏎ [service.policy] ⏎ syn_timeout = { initial = "5s" }
            17:27 `initial` is 5s, which is out of range
            write a time from 10ms to 4s
        type = "tcp" ⏎ [service.policy] ⏎ syn_timeout = { max = "4001ms" }
            17:23 `max` is 4s 1ms, which is out of range
            write a time from 10ms to 4s
        type = "tcp" ⏎ [service.policy] ⏎ trip = { after = 0 }
            17:18 `after` is 0, which is out of range
            write a number from 1 to 1000
        type = "tcp" ⏎ [service.policy] ⏎ trip = { after = 1001 }
            17:18 `after` is 1001, which is out of range
            write a number from 1 to 1000
        type = "tcp" ⏎ [service.policy] ⏎ trip = { spread_min = 0 }
            17:23 `spread_min` is 0, which is out of range
            write a number from 1 to 20
        type = "tcp" ⏎ [service.policy] ⏎ trip = { spread_min = 21 }
            17:23 `spread_min` is 21, which is out of range
            write a number from 1 to 20

            1:1 `[node]` names no interface
            name the interfaces that lead to the origins, for example interfaces = ["eth1", "gre-*"]
        interfaces = []
            2:14 `interfaces` is empty
            name the interfaces that lead to the origins, for example interfaces = ["eth1", "gre-*"]
        interfaces = ["eth/1"]
            2:15 "eth/1" is no name of an interface
            write a name as `ip link` shows it, or a glob such as "gre-*"
        interfaces = "eth1"
            2:14 `interfaces` is a string, not a list of strings
            write, for example, interfaces = ["eth1"]
        interfaces = ["eth1"] ⏎ redirect_allow = ["10.0.1.11/32"]
            9:11 origin `a` of service `shop` lies outside `node.redirect_allow`
            correct 10.0.1.10:443, or add its prefix to redirect_allow
        interfaces = ["eth1"] ⏎ redirect_allow = ["10.0.1.0/8"]
            3:19 10.0.1.0/8 has bits set behind its length
            write "10.0.0.0/8"
        interfaces = ["eth1"] ⏎ redirect_allow = []
            3:18 `redirect_allow` is empty, which would allow no origin at all
            list the prefixes of the origins, or remove the key to allow every address
        interfaces = ["eth1"] ⏎ cgroup = "web"
            3:10 `cgroup` cannot be "web"
            write "auto", the full path of a cgroup, or "" to steer no sockets
        interfaces = ["eth1"] ⏎ bypass = { mark = 0 }
            3:19 `mark` is 0, which is out of range
            write a number from 1 to 4294967295
        interfaces = ["eth1"] ⏎ bypass = { mark = 0x0800_0001 }
            3:19 `bypass.mark` is 0x8000001: its bit 0x8000000 is Sluice's own, for rewritten packets
            write a mark without that bit, for example 0x5311
        interfaces = ["eth1"] ⏎ bypass = { mark = 0x0800_0000 }
            3:19 `bypass.mark` is 0x8000000: its bit 0x8000000 is Sluice's own, for rewritten packets
            write a mark without that bit, for example 0x5311
        interfaces = ["eth1"] ⏎ limits = { origins = 1 }
            1:1 the file has 2 origins; `node.limits.origins` allows 1
            raise node.limits.origins, at most 65534
        interfaces = ["eth1"] ⏎ limits = { origins = 65535 }
            3:22 `origins` is 65535, which is out of range
            write a number from 1 to 65534
        interfaces = ["eth1"] ⏎ limits = { frontends = 65535 }
            3:24 `frontends` is 65535, which is out of range
            write a number from 1 to 65534
        interfaces = ["eth1"] ⏎ [control] ⏎ tls = { cert = "/a" }
            4:1 `control.tls` is not yet supported
            remove it; a later version of Sluice will read it
        interfaces = ["eth1"] ⏎ [control] ⏎ listen = "localhost:1"
            4:10 `listen` is no address: "localhost:1"
            write an IP address and a port, for example listen = "127.0.0.1:9911"
        include = ["/etc/x"] ⏎ [node]
            1:1 `include` is not yet supported
            remove it; a later version of Sluice will read it
        [cluster] ⏎ etcd = [] ⏎ [node]
            1:2 `cluster` is not yet supported
            remove it; a later version of Sluice will read it
        nod = 1 ⏎ [node]
            1:1 unknown key `nod` at the top of the file
            did you mean `node`?
    "#]]
    .assert_eq(&table);
}

/// The other side of `bad_values`: what the kernel can just do.
#[test]
fn the_greatest_values_are_accepted() {
    let node = "bypass = { mark = 0xf7ff_ffff }\nlimits = { origins = 65534, frontends = 65534 }";
    let policy = "syn_timeout = { min = \"4s\", initial = \"4s\", max = \"4s\" }\n\
                  response_timeout = { min = \"17s\", initial = \"17s\", max = \"17s\" }\n\
                  trip = { after = 1000, spread_min = 20 }";
    let text = GOOD.replace("interfaces = [\"eth1\"]", &format!("interfaces = [\"eth1\"]\n{node}"));
    let text = text.replace("priority = 1", "priority = 127") + "[service.policy]\n" + policy + "\n";
    let config = good(&text).config;
    let service = &config.services[0];
    assert_eq!((config.node.bypass.mark, config.node.limits.origins), (0xf7ff_ffff, 65_534));
    assert_eq!((service.origins[1].tier, service.policy.trip.spread_min), (127, 20));
    assert_eq!(service.policy.syn_timeout.max, Span::from_secs(4));
}

/// The kernel half has these sizes as literals; what a file may fill them with is bounded here.
#[test]
fn fixed_maps_hold_what_a_file_may_fill_them_with() {
    let maps = include_str!("../../../health-ebpf/src/maps.rs");
    for (name, entries) in [("BYPASS", node::BYPASS_MAX), ("NAMESPACES", node::NETNS_MAX + 1)] {
        let line = maps.lines().find(|line| line.contains(&format!("static {name}:"))).expect("the map");
        assert!(line.contains(&format!("with_max_entries({entries},")), "{line}");
    }
    let text = |uids: usize, namespaces: usize| {
        let uids: Vec<_> = (1..=uids).map(|uid| uid.to_string()).collect();
        let paths: Vec<_> = (1..=namespaces).map(|n| format!("\"/run/netns/{n}\"")).collect();
        let keys = format!("bypass.uids = [{}]\nnetns = [{}]", uids.join(","), paths.join(","));
        with("interfaces = [\"eth1\"]", &format!("interfaces = [\"eth1\"]\n{keys}"))
    };
    // The cgroup of `sluice direct` is the 256th.
    good(&text(255, 63));
    let errors = parse(&text(256, 64), "f").expect_err("is too much").errors;
    let errors: String = errors.iter().map(|error| format!("{}\n    {}\n", error.message, error.fix)).collect();
    expect![[r#"
        `bypass` has 257 users and cgroups; 256 is the most
            name a cgroup above several of them, or give their sockets the mark
        `netns` names 64 namespaces; 63 is the most
            remove some; the daemon's own is steered without being named
    "#]]
    .assert_eq(&errors);
}

#[test]
fn services_and_origins_are_needed_and_limited() {
    let node = "[node]\ninterfaces = [\"eth1\"]\n";
    check(
        node,
        &expect![[r#"
        sluice.toml:1:1: there is no service
           |
         1 | [node]
           | ^
        fix: add a [[service]] with a name and one [[service.origin]] for each address
    "#]],
    );
    check(
        &format!("{node}[[service]]\nname = \"s\"\n"),
        &expect![[r#"
        sluice.toml:3:1: service `s` has no origin
           |
         3 | [[service]]
           | ^^^^^^^^^^^
        fix: add [[service.origin]] with name = "…" and address = "IP:PORT"
    "#]],
    );
    let origins: String =
        (1..=65).map(|n| format!("[[service.origin]]\nname = \"o{n}\"\naddress = \"10.0.0.{n}:80\"\n")).collect();
    check(
        &format!("{node}[[service]]\nname = \"s\"\n{origins}"),
        &expect![[r#"
        sluice.toml:197:1: service `s` has 65 origins; 64 is the most
             |
         197 | [[service.origin]]
             | ^^^^^^^^^^^^^^^^^^
        fix: split the service
    "#]],
    );
    check(
        "service = 3\n[node]\ninterfaces = [\"a\"]\nlimits = 3\n",
        &expect![[r#"
        sluice.toml:1:11: `service` is an integer, not a list of tables
           |
         1 | service = 3
           |           ^
        fix: write each one under a header of its own with double brackets, as in [[service]]

        sluice.toml:4:10: `limits` is an integer, not a table
           |
         4 | limits = 3
           |          ^
        fix: write, for example, limits = { … }
    "#]],
    );
}

#[test]
fn what_will_hurt_is_warned_about() {
    let text = r#"[node]
interfaces = ["eth1"]
mode = "observe"
[control]
listen = "0.0.0.0:9911"
[[service]]
name = "lonely"
mode = "enforce"
vips = ["10.0.9.9:443"]
[[service.origin]]
name = "a"
address = "10.0.1.10:443"
[[service.check]]
type = "http"
url = "https://10.0.1.10:443/"
timeout = "9s"
slow = "9s"
[[service.check]]
name = "port80"
type = "http"
url = "http://lonely.example/healthz"
[[service]]
name = "families"
[[service.origin]]
name = "a"
address = "10.0.1.11:443"
[[service.origin]]
name = "b"
address = "[2001:db8::1]:443"
priority = 1
[service.policy]
state_weight_percent = { fault = 5 }
trip = { after = 2 }
[[service]]
name = "idle"
[[service.origin]]
name = "a"
address = "10.0.1.12:443"
priority = 3
weight = 0
"#;
    expect![[r#"
        `listen` = 0.0.0.0:9911 can be reached from outside, without TLS or tokens
        service `lonely` has no standby: when `a` fails, nothing else can serve
        service `lonely` only observes, because the node does
        service `lonely` only observes: its virtual addresses lead nowhere
        check `lonely/http` asks for `/`, often the heaviest page of a site
        check `lonely/http` has an address in its url, so no name is sent and checked
        check `http`: timeout 9s is longer than its interval 5s
        check `http`: slow is not below timeout (9s), so no answer is ever slow
        check `lonely/port80` asks port 80, and origin `a` serves on port 443
        service `families` has no check; each origin gets `tcp` every 5s
        nothing can stand in for `families/a`: no other origin has IPv4
        standby `families/b` has no capacity: a failover may send it more than it can take
        origins in `fault` keep 5 % of their weight
        a trip waits for 3 clients though `after` is 2
        service `idle`: no origin takes anything, all weights are 0
        service `idle` has no standby: when `a` fails, nothing else can serve
        service `idle` steers nothing: no origin has priority 0
        service `idle` has no check; each origin gets `tcp` every 5s
    "#]]
    .assert_eq(&warnings(text));
}

/// Keys of the contract that no other case names; one that the schema forgot would be "unknown".
#[test]
fn keys_of_the_contract_are_told_from_mistakes() {
    let later = [
        ("", "include hook cluster"),
        ("control", "tls token_files roles"),
        ("service", "tenant affinity dns discover"),
    ];
    for (path, keys) in later {
        for key in keys.split(' ') {
            let full = if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
            let errors = parse(&format!("{full} = 1\n"), "f").expect_err("is refused").to_string();
            assert!(errors.contains(&format!("`{full}` is not yet supported")), "{errors}");
        }
    }
}

/// Design section 6: a preset is ordinary keys, which the service's own keys override.
#[test]
fn how_a_service_moves_is_read_and_written_again() {
    use health_core::policy::{Approval, Moves, OnFault};
    let policy = |lines: &str| {
        let loaded = good(&format!("{GOOD}[service.policy]\n{lines}\n")).config;
        assert_eq!(good(&loaded.resolved()).config, loaded, "{lines}");
        loaded.services[0].policy.clone()
    };
    let exclusive = policy("preset = \"exclusive\"");
    assert!(!exclusive.rescue && !exclusive.trip.kernel && exclusive.moves == Moves::Service);
    assert_eq!((exclusive.failback.stages, exclusive.failback.approval), (vec![100], Approval::FirstStage));
    assert!(policy("preset = \"exclusive\"\nrescue = true").rescue);
    assert_eq!(policy("move = \"service\"").failback.stages, [100], "all of it comes back at once");
    assert_eq!(policy("preset = \"hsm\"").panic_percent, 0);
    assert_eq!((policy("").panic_percent, policy("panic_percent = 50").panic_percent), (1, 50));
    let faults = policy("on_fault = \"reset_after\"\nreset_after = \"10s\"\nresets_per_s = 5");
    assert_eq!(
        (faults.on_fault, faults.reset_after, faults.resets_per_s),
        (OnFault::ResetAfter, Span::from_secs(10), 5)
    );
    let wrong =
        |lines: &str| parse(&format!("{GOOD}[service.policy]\n{lines}\n"), "f").expect_err("refused").to_string();
    assert!(wrong("move = \"service\"\nfailback = { stages = [10, 100] }").contains("write stages = [100]"));
    assert!(wrong("move = \"all\"").contains("write \"share\" or \"service\""));
    assert!(wrong("panic_percent = 101").contains("write a number from 0 to 100"));
    assert!(wrong("resets_per_s = 0").contains("write a number from 1 to 1000000"));
    let node = good(
        "[node]\ninterfaces = [\"eth1\"]\ngovernor = { causes_at_once = 1 }\n[[service]]\nname = \"s\"\n\
                     origin = [{ name = \"a\", address = \"10.0.0.1:80\" }]\n",
    );
    assert_eq!((node.config.node.governor.causes_at_once, node.config.node.governor.moves_per_min), (1, 60));
}

#[test]
fn patterns_and_prefixes() {
    let matches = |pattern: &str, name: &str| InterfacePattern(pattern.to_owned()).matches(name);
    let table = [
        ("eth1", "eth1", true),
        ("eth1", "eth10", false),
        ("eth?", "eth1", true),
        ("eth?", "eth", false),
        ("gre-*", "gre-cn1", true),
        ("gre-*", "gre", false),
        ("*a*b", "xaxbxb", true),
        ("*a*b", "xaxbx", false),
        ("*", "", true),
    ];
    for (pattern, name, expected) in table {
        assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
    }
    let contains = |address: &str, length, other: &str| {
        let prefix = Prefix { address: address.parse().expect("an address"), length };
        prefix.contains(other.parse().expect("an address"))
    };
    assert!(contains("10.0.0.0", 8, "10.255.0.1"));
    assert!(!contains("10.0.0.0", 8, "11.0.0.1"));
    assert!(contains("0.0.0.0", 0, "203.0.113.1"));
    assert!(contains("10.0.0.1", 32, "10.0.0.1"));
    assert!(!contains("::", 0, "10.0.0.1"));
    assert!(contains("2001:db8::", 32, "2001:db8:ffff::1"));
    assert!(!contains("2001:db8::1", 128, "2001:db8::2"));
}

#[test]
fn guarded_tier_0_origins_and_virtual_addresses_are_frontends() {
    struct ByPort;
    impl Ids for ByPort {
        fn service(&self, _: &str) -> ServiceId {
            ServiceId(7)
        }
        fn origin(&self, address: SocketAddr) -> OriginId {
            OriginId(address.port())
        }
        fn frontend(&self, address: SocketAddr) -> FrontendId {
            FrontendId(address.port() + 1000)
        }
    }
    let text = r#"[node]
interfaces = ["eth1"]
[[service]]
name = "s"
vips = ["198.51.100.10:443"]
origin = [
  { name = "a", address = "10.0.0.1:1" },
  { name = "b", address = "[2001:db8::1]:2" },
  { name = "c", address = "10.0.0.1:3", guard = false },
  { name = "d", address = "10.0.0.1:4", priority = 1, weight = 0 },
]
"#;
    let mut service = good(text).config.services[0].clone();
    let spec = service.spec(&ByPort);
    assert_eq!(spec.id, ServiceId(7));
    let ids: Vec<_> = spec.origins.iter().map(|origin| (origin.id.0, origin.tier, origin.weight)).collect();
    assert_eq!(ids, [(1, 0, 100), (2, 0, 100), (3, 0, 100), (4, 1, 0)]);
    let frontends: Vec<_> = spec.frontends.iter().map(|one| (one.id.0, one.own.map(|own| own.0), one.family)).collect();
    assert_eq!(frontends, [(1001, Some(1), Family::V4), (1002, Some(2), Family::V6), (1443, None, Family::V4)]);
    let keys: std::collections::BTreeSet<u64> = spec.origins.iter().map(|origin| origin.key).collect();
    assert_eq!(keys.len(), 4, "addresses and ports tell origins apart");
    service.guard = false;
    assert_eq!(service.spec(&ByPort).frontends.len(), 1, "a virtual address is steered whatever is guarded");
}

#[test]
fn body_rules() {
    let rule = |text: &str| {
        let file = format!(
            "{}url = \"http://a/b\"\nexpect = {{ body = '{text}' }}\n",
            with("type = \"tcp\"", "type = \"http\"")
        );
        let CheckKind::Http(http) = good(&file).config.services[0].checks[0].kind.clone() else { panic!("no http") };
        http.requests[0].expect.body[0].clone()
    };
    assert!(rule("exact:ready").holds(b"ready"));
    assert!(!rule("exact:ready").holds(b"ready\n"));
    assert!(rule("contains:a:b").holds(b"xa:by"));
    assert!(!rule("contains:ab").holds(b"a"));
    assert!(rule("regex:登录|首页").holds("请登录".as_bytes()));
    assert!(rule("not_regex:error").holds(b"\xff\x00 fine"));
    assert!(!rule("not_regex:error").holds(b"\xff error"));
}

/// Values and structure that a mistaken or hostile author may write.
fn mangled() -> impl Strategy<Value = String> {
    let cut = (0..EXAMPLE.len(), 0..40_usize, ".{0,12}").prop_map(|(at, length, new)| {
        let mut text: Vec<char> = EXAMPLE.chars().collect();
        let at = at.min(text.len());
        let end = (at + length).min(text.len());
        text.splice(at..end, new.chars());
        text.into_iter().collect::<String>()
    });
    prop_oneof![
        cut.clone(),
        Just(()).prop_flat_map(move |()| cut.clone()),
        "\\PC{0,200}",
        "[\\[\\]{}a-z=\"'.\n #0-9,\\-]{0,200}"
    ]
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        if let Err(errors) = parse_bytes(&bytes, "f") {
            prop_assert!(!errors.errors.is_empty());
            prop_assert!(!errors.to_string().is_empty());
        }
    }

    #[test]
    fn no_text_makes_it_panic(text in mangled()) {
        match parse(&text, "f") {
            Ok(loaded) => {
                // What is accepted can be written out and read back.
                let resolved = loaded.config.resolved();
                let again = parse(&resolved, "f");
                prop_assert!(again.is_ok(), "{}\n{}", resolved, again.err().map(|e| e.to_string()).unwrap_or_default());
            }
            Err(errors) => prop_assert!(!errors.to_string().is_empty()),
        }
    }
}
