//! Whole command lines against a world of plain data: what is printed, and the exit code.
#![allow(clippy::needless_raw_string_hashes, reason = "expect-test writes literals so")]

use super::{
    outside::{Checked, Daemon, Finding},
    *,
};
use crate::{
    control::ClientError,
    probe::Selection,
    report::{
        DaemonReport, DetachOutcome, EventLine, FlowEntry, FlowsReport, FrontendReport, HandoverReport, HookReport,
        MapEntry, MapReport, MapsReport, OrderReport, OriginEntry, OriginName, OriginReport, ProbeCheck, ProbeOrigin,
        ProbeReport, ProbeStep, ProgramReport, ServiceReport, StatusReport, TripReport,
    },
};
use expect_test::{Expect, expect};
use health_core::model::State;
use jiff::{
    Timestamp,
    tz::{TimeZone, offset},
};
use std::{cell::RefCell, io::ErrorKind, path::Path, rc::Rc};

/// 19:07:12 UTC, which is 03:07:12 of 2026-11-30 where the node stands.
const NOW_S: i64 = 1_795_979_232;

#[derive(Default)]
struct World {
    daemon: Option<Script>,
    /// Why the socket can't be used, where it isn't simply missing.
    socket: Option<ErrorKind>,
    maps: Option<MapsReport>,
    flows: Vec<FlowEntry>,
    detach: Option<DetachOutcome>,
    probed: Option<ProbeReport>,
    config: Option<Vec<Finding>>,
    capabilities: Vec<&'static str>,
    did: Rc<RefCell<Vec<String>>>,
}

/// A daemon that gives prepared answers and notes the questions.
#[derive(Clone, Default)]
struct Script {
    status: Option<StatusReport>,
    events: Vec<EventLine>,
    outcome: Option<Outcome>,
    asked: Rc<RefCell<Vec<Ask>>>,
}

impl Daemon for Script {
    fn ask(&mut self, ask: Ask) -> Result<Answer, ClientError> {
        let answer = match &ask {
            Ask::Ping => Answer::Pong { pid: 1123, version: "0.1.0".into() },
            Ask::Status => Answer::Status { status: Box::new(self.status.clone().expect("prepared")) },
            _ => Answer::Outcome { outcome: self.outcome.clone().expect("prepared") },
        };
        self.asked.borrow_mut().push(ask);
        Ok(answer)
    }

    fn events(&mut self, since_ns: u64, follow: bool, each: &mut dyn FnMut(Answer) -> bool) -> Result<(), ClientError> {
        for event in self.events.iter().filter(|event| event.time_ns >= since_ns) {
            each(Answer::Event { event: event.clone() });
        }
        each(Answer::Kept { lost: 0, forgotten: 120 });
        if follow {
            each(Answer::Event { event: self.events[0].clone() });
            each(Answer::Missed { missed: 3 });
        }
        Ok(())
    }
}

impl Outside for World {
    fn now(&self) -> Timestamp {
        Timestamp::from_second(NOW_S).expect("in range")
    }

    fn abi(&self) -> u32 {
        3
    }

    fn capabilities_missing(&self) -> Vec<&'static str> {
        self.capabilities.clone()
    }

    fn daemon(&self, socket: &Path) -> Result<Box<dyn Daemon>, ClientError> {
        let path = socket.to_path_buf();
        match (&self.daemon, self.socket) {
            (_, Some(kind @ ErrorKind::PermissionDenied)) => Err(ClientError::NotAllowed { path, source: kind.into() }),
            (_, Some(kind)) => Err(ClientError::Silent { path, source: kind.into() }),
            (None, None) => Err(ClientError::NotReachable { path, source: ErrorKind::NotFound.into() }),
            (Some(script), None) => Ok(Box::new(script.clone())),
        }
    }

    fn maps(&self, pin_dir: &Path) -> Result<MapsReport, Failure> {
        let nothing = || Failure::new(Exit::Failed, format!("nothing is pinned under {}", pin_dir.display()));
        self.maps.clone().ok_or_else(nothing)
    }

    fn entries(&self, _: &Path, map: &str) -> Result<Vec<MapEntry>, Failure> {
        Ok(vec![MapEntry { key: format!("key of {map}"), value: "value".into() }])
    }

    fn origin_names(&self, pin_dir: &Path) -> Result<Vec<OriginName>, Failure> {
        let named = |origin: OriginEntry| OriginName {
            id: u16::try_from(origin.id).expect("small"),
            service: origin.service,
            name: origin.name,
        };
        Ok(self.maps(pin_dir)?.origins.into_iter().map(named).collect())
    }

    fn flows(&self, pin_dir: &Path, of: Option<&[u16]>, limit: usize) -> Result<FlowsReport, Failure> {
        let names = self.origin_names(pin_dir)?;
        let wanted = |flow: &&FlowEntry| {
            let origin = names.iter().find(|origin| (&origin.service, &origin.name) == (&flow.service, &flow.origin));
            of.is_none_or(|of| origin.is_some_and(|origin| of.contains(&origin.id)))
        };
        let mut flows: Vec<FlowEntry> = self.flows.iter().filter(wanted).cloned().collect();
        let all = flows.len();
        flows.truncate(limit);
        Ok(FlowsReport { more: (all - flows.len()) as u64, flows })
    }

    fn probe(&self, _: &Path, selection: &Selection) -> Result<ProbeReport, Failure> {
        self.did.borrow_mut().push(format!("probe {selection:?}"));
        self.probed.clone().ok_or_else(|| Failure::lacks(&["CAP_NET_ADMIN"]))
    }

    fn detach(&self, _: &Path, force: bool) -> Result<DetachOutcome, Failure> {
        self.did.borrow_mut().push(format!("detach force={force}"));
        self.detach.ok_or_else(|| Failure::lacks(&["CAP_BPF"]))
    }

    fn stop_steering(&self, _: &Path) -> Result<(), Failure> {
        self.did.borrow_mut().push("stop steering".into());
        Ok(())
    }

    fn check(&self, _: &Path) -> Result<Checked, Vec<Finding>> {
        match &self.config {
            None => Ok(Checked { warnings: vec![finding("`shop` has no standby")], resolved: "[node]\n".into() }),
            Some(errors) => Err(errors.clone()),
        }
    }

    fn run(&self, options: RunOptions) -> Result<(), Failure> {
        self.did.borrow_mut().push(format!("run {}", options.config.display()));
        Ok(())
    }
}

fn finding(message: &str) -> Finding {
    Finding {
        file: "x.toml".into(),
        line: 3,
        column: 1,
        message: message.into(),
        fix: "add an origin".into(),
        text: format!("x.toml:3:1: {message}\nfix: add an origin\n"),
    }
}

/// What one command line came to: exit code, standard output, standard error.
struct Ended(Exit, String, String);

impl World {
    fn with(script: Script) -> Self {
        Self { daemon: Some(script), ..Self::default() }
    }

    fn showing(status: StatusReport) -> Self {
        Self::with(Script { status: Some(status), ..Script::default() })
    }

    fn sluice(&self, words: &str) -> Ended {
        let look = Look { colour: false, zone: TimeZone::fixed(offset(8)) };
        let (mut out, mut notes) = (Vec::new(), Vec::new());
        let words = ["sluice"].into_iter().chain(words.split_whitespace());
        let exit = match run_words(words, self, look, &mut out, &mut notes) {
            Ok(exit) => exit,
            Err(error) => {
                notes.extend(error.to_string().bytes());
                assert_eq!(error.exit_code(), 2);
                Exit::Usage
            }
        };
        let text = |bytes| String::from_utf8(bytes).expect("is text");
        Ended(exit, text(out), text(notes))
    }

    #[track_caller]
    fn shows(&self, words: &str, exit: Exit, expected: &Expect) {
        let Ended(got, out, notes) = self.sluice(words);
        assert_eq!(got, exit, "{out}{notes}");
        expected.assert_eq(&out);
    }

    #[track_caller]
    fn says(&self, words: &str, exit: Exit, expected: &Expect) {
        let Ended(got, out, notes) = self.sluice(words);
        assert_eq!(got, exit, "{out}{notes}");
        expected.assert_eq(&notes);
    }
}

fn origin(name: &str, tier: u8, state: State, share: f64) -> OriginReport {
    OriginReport {
        name: name.into(),
        address: "10.0.1.10:443".into(),
        priority: Some(tier),
        state: Some(state),
        score: Some(100),
        weight: Some(100),
        share_percent: Some(share),
        conns_per_s: Some(share * 50.12),
        capacity_cps: Some(8000),
        open: Some(9120),
        tripped: Some(false),
        sees: Some("transport".into()),
        evidence_age_ms: Some(120),
        state_ms: Some(60_000),
        ready: (tier > 0 && state == State::Healthy && share <= 0.0).then(|| "ready".into()),
        ..OriginReport::default()
    }
}

fn service(name: &str, tier: u8, origins: Vec<OriginReport>) -> ServiceReport {
    ServiceReport {
        name: name.into(),
        mode: Some("enforce".into()),
        state: Some(State::Healthy),
        panic: Some(false),
        refuses: Some(false),
        active_tier: Some(tier),
        active_tier_ms: Some(252_000),
        frozen: None,
        origins,
    }
}

fn healthy(name: &str) -> ServiceReport {
    service(name, 0, vec![origin("a", 0, State::Healthy, 100.0), origin("b", 1, State::Healthy, 0.0)])
}

fn status(services: Vec<ServiceReport>) -> StatusReport {
    let hook = |interface: &str, hook: &str| HookReport {
        interface: interface.into(),
        hook: hook.into(),
        attached: true,
        detail: None,
    };
    StatusReport {
        node: Some("scrub-1".into()),
        time: Timestamp::from_second(NOW_S).expect("in range"),
        mode: Some("enforce".into()),
        in_sync: Some(true),
        services,
        hooks: vec![
            hook("eth1", "tc_ingress"),
            hook("eth1", "tc_egress"),
            hook("gre-cn1", "tc_ingress"),
            hook("/sys/fs/cgroup", "connect4"),
            hook("/sys/fs/cgroup", "connect6"),
        ],
        daemon: Some(DaemonReport { pid: 1123, version: "0.1.0".into() }),
    }
}

fn on_standby() -> ServiceReport {
    let a = OriginReport {
        conns_per_s: Some(0.0),
        open: Some(3),
        location: Some("origin_process".into()),
        reasons: vec!["refused 412/412".into(), "port 0/3".into()],
        hold_down_ms: Some(12_000),
        ..origin("a", 0, State::Fault, 0.0)
    };
    service("shop", 1, vec![a, origin("dr", 1, State::Healthy, 100.0)])
}

fn tripped() -> ServiceReport {
    let trip = TripReport { streak: "connect".into(), trial_in_ms: Some(800), ..TripReport::default() };
    let a = OriginReport { tripped: Some(true), trip: Some(trip), ..origin("a", 0, State::Healthy, 99.7) };
    service("pay", 0, vec![a, origin("b", 0, State::Healthy, 0.3)])
}

fn overridden() -> ServiceReport {
    let order = OrderReport {
        what: "drain".into(),
        by: "li.wei(uid 1007)".into(),
        reason: "disk\u{1b}[2J swap".into(),
        ends_in_ms: Some(2_280_000),
    };
    let c = OriginReport { order: Some(order), ..origin("c", 0, State::Maintenance, 0.0) };
    service("news", 0, vec![c, origin("d", 0, State::Healthy, 100.0)])
}

#[test]
fn status_of_a_healthy_node() {
    let world = World::showing(status(vec![healthy("shop")]));
    world.shows(
        "status --exit-code",
        Exit::Done,
        &expect![[r#"
        scrub-1 ENFORCE  2026-11-30 03:07:12 +08:00  daemon ok  eth1 tc ok  gre-cn1 tc ok  sockets ok  maps in sync
           shop  healthy
           ORIGIN  TIER  STATE    SHARE  CONN/S  CAP         OPEN  SEES       EVIDENCE  WHY
           a       0     healthy   100%    5012  8000 (63%)  9120  transport      0.1s  -
           b       1     healthy     0%       0  8000        9120  transport      0.1s  ready
    "#]],
    );
    let many = World::showing(status((1..=36).map(|nth| healthy(&format!("s{nth}"))).collect()));
    many.shows(
        "status",
        Exit::Done,
        &expect![[r#"
        scrub-1 ENFORCE  2026-11-30 03:07:12 +08:00  daemon ok  eth1 tc ok  gre-cn1 tc ok  sockets ok  maps in sync
           36 services healthy on tier 0 (--all)
    "#]],
    );
}

#[test]
fn status_of_what_is_only_observed_and_of_what_has_no_weight() {
    let observed = ServiceReport { mode: Some("observe".into()), ..tripped() };
    let idle = OriginReport { weight: Some(0), ..origin("b", 1, State::Healthy, 0.0) };
    let idle = service("shop", 0, vec![origin("a", 0, State::Healthy, 100.0), idle]);
    World::showing(status(vec![observed, idle])).shows(
        "status",
        Exit::Done,
        &expect![[r#"
        scrub-1 ENFORCE  2026-11-30 03:07:12 +08:00  daemon ok  eth1 tc ok  gre-cn1 tc ok  sockets ok  maps in sync
        !! pay  TRIPPED a  OBSERVED ONLY: nothing is moved
           ORIGIN  TIER  STATE    SHARE  CONN/S  CAP         OPEN  SEES       EVIDENCE  WHY
           a       0     healthy   100%    4997  8000 (62%)  9120  transport      0.1s  tripped (connect), trial in 0.8s
           b       0     healthy    <1%      15  8000 (0%)   9120  transport      0.1s  -
           shop  healthy
           ORIGIN  TIER  STATE    SHARE  CONN/S  CAP         OPEN  SEES       EVIDENCE  WHY
           a       0     healthy   100%    5012  8000 (63%)  9120  transport      0.1s  -
           b       1     healthy     0%       0  8000        9120  transport      0.1s  weight 0, never chosen
    "#]],
    );
}

#[test]
fn status_with_the_worst_first() {
    let panicking = ServiceReport {
        panic: Some(true),
        state: Some(State::Fault),
        ..service(
            "bank",
            0,
            vec![OriginReport { reasons: vec!["silent".into()], ..origin("h1", 0, State::Fault, 100.0) }],
        )
    };
    let unknown = service(
        "new",
        0,
        vec![OriginReport { evidence_age_ms: None, sees: None, ..origin("n", 0, State::Unknown, 100.0) }],
    );
    let services = vec![healthy("ok1"), unknown, overridden(), on_standby(), tripped(), panicking];
    let mut report = status(services);
    report.in_sync = Some(false);
    report.hooks[2].attached = false;
    report.hooks[2].detail = Some("no such interface, waited for".into());
    World::showing(report).shows("status --exit-code", Exit::Failed, &expect![[r#"
        scrub-1 ENFORCE  2026-11-30 03:07:12 +08:00  daemon ok  eth1 tc ok  gre-cn1 tc MISSING tc_ingress (no such interface, waited for)  sockets ok  MAPS NOT IN SYNC
        !! bank  PANIC: too few are usable, so all are used   h1 silent
           ORIGIN  TIER  STATE  SHARE  CONN/S  CAP         OPEN  SEES       EVIDENCE  WHY
           h1      0     fault   100%    5012  8000 (63%)  9120  transport      0.1s  silent
        !! shop  ON STANDBY 4m12s, tier 1   a refused 412/412 (origin_process)
           ORIGIN  TIER  STATE    SHARE  CONN/S  CAP         OPEN  SEES       EVIDENCE  WHY
           a       0     fault       0%       0  8000           3  transport      0.1s  refused 412/412, port 0/3, hold-down ends in 12s
           dr      1     healthy   100%    5012  8000 (63%)  9120  transport      0.1s  -
        !! pay  TRIPPED a
           ORIGIN  TIER  STATE    SHARE  CONN/S  CAP         OPEN  SEES       EVIDENCE  WHY
           a       0     healthy   100%    4997  8000 (62%)  9120  transport      0.1s  tripped (connect), trial in 0.8s
           b       0     healthy    <1%      15  8000 (0%)   9120  transport      0.1s  -
        !  news  MAINTENANCE
           ORIGIN  TIER  STATE        SHARE  CONN/S  CAP         OPEN  SEES       EVIDENCE  WHY
           c       0     maintenance     0%       0  8000        9120  transport      0.1s  drained by li.wei(uid 1007) "disk�[2J swap", ends in 38m
           d       0     healthy       100%    5012  8000 (63%)  9120  transport      0.1s  -
        !  override: news/c drained by li.wei(uid 1007) "disk�[2J swap", ends in 38m
           2 more services healthy on tier 0 (--all)
    "#]]);
}

#[test]
fn status_of_one_service_and_of_none() {
    let world = World::showing(status(vec![healthy("shop"), on_standby()]));
    let Ended(exit, out, _) = world.sluice("status shop --json");
    assert_eq!(exit, Exit::Done);
    let document: StatusReport = serde_json::from_str(&out).expect("is the report");
    assert!(document.services.iter().all(|service| service.name == "shop"));
    world.says(
        "status nope",
        Exit::Failed,
        &expect![[r#"
        sluice: there is no service `nope`; there are: shop, shop
    "#]],
    );
}

fn maps() -> MapsReport {
    let map = |name: &str, kind: &str, used: Option<u64>, max: u64, memory: u64, note: Option<&str>| MapReport {
        name: name.into(),
        kind: kind.into(),
        used,
        max,
        memory_bytes: Some(memory << 20),
        note: note.map(str::to_owned),
    };
    let trip = TripReport {
        streak: "connect".into(),
        for_ms: Some(20_000),
        trial_in_ms: Some(12_000),
        backoff_ms: Some(16_000),
        trials_failed: 4,
    };
    let entry = |id: u32, name: &str, trip: Option<TripReport>, counters: &[(&str, u64)]| OriginEntry {
        id,
        address: format!("10.0.1.{}:443", 10 + id),
        service: "shop".into(),
        name: name.into(),
        counters: counters.iter().map(|&(name, count)| (name.to_owned(), count)).collect(),
        blocked: Some(trip.is_some()),
        trip,
    };
    MapsReport {
        abi: 3,
        daemon_pid: None,
        programs: vec![
            ProgramReport {
                name: "tc_egress".into(),
                attached: true,
                interface: Some("eth1".into()),
                hook: Some("tc_egress".into()),
            },
            ProgramReport {
                name: "connect4".into(),
                attached: false,
                interface: Some("/sys/fs/cgroup".into()),
                hook: Some("connect4".into()),
            },
        ],
        maps: vec![
            map("frontends", "hash", Some(38), 10_000, 1, None),
            map("half_open", "lru_hash", Some(812), 262_144, 36, Some("evicted 0")),
            map("flows", "lru_hash", Some(61_044), 1_048_576, 128, Some("evicted 0")),
            map("events", "ringbuf", None, 262_144, 0, None),
        ],
        handovers: vec![HandoverReport { abi: 2, flows: 14 }],
        frontends: vec![FrontendReport {
            address: "10.0.1.10:443".into(),
            service: "shop".into(),
            generation: 41,
            slots: [("a".to_owned(), 0), ("dr".to_owned(), 251)].into(),
            armed: vec!["dr".into()],
            tripped: vec!["a".into()],
            order: None,
        }],
        origins: vec![
            entry(0, "a", Some(trip), &[("syn", 412), ("refused", 412), ("reset_mid", 0), ("conns_open", 3)]),
            entry(1, "dr", None, &[("syn", 9000), ("synack", 9000), ("conns_open", 8)]),
        ],
        last_daemon_pid: Some(1123),
        daemon_gone_ms: Some(252_000),
    }
}

#[test]
fn with_the_daemon_down_the_maps_answer() {
    let world = World { maps: Some(maps()), ..World::default() };
    world.shows("status", Exit::Unreachable, &expect![[r#"
        2026-11-30 03:07:12 +08:00  DAEMON GONE 4m12s (pid 1123): kernel acts alone  eth1 tc ok  sockets MISSING connect4
        !! shop  TRIPPED a   a taken out by the daemon before it ended
           ORIGIN  TIER  STATE  SHARE  CONN/S  CAP  OPEN  SEES  EVIDENCE  WHY
           a       -     -         0%       -  -       3  -            -  tripped (connect), trial in 12s, taken out by the daemon before it ended
           dr      -     -       100%       -  -       8  -            -  -
    "#]]);
    world.shows(
        "maps",
        Exit::Unreachable,
        &expect![[r#"
            pins v3  ABI 3 = this binary  programs 1/2 attached  DAEMON GONE 4m12s (pid 1123): kernel acts alone
            !! not attached: connect4 (/sys/fs/cgroup)
            handover: the programs of pins v2 serve 14 redirected flows until those end
            MAP        TYPE       USED  / MAX      FULL   MEMORY  NOTE
            frontends  hash         38  / 10000      0%    1 MiB
            half_open  lru_hash    812  / 262144     0%   36 MiB  evicted 0
            flows      lru_hash  61044  / 1048576    6%  128 MiB  evicted 0
            events     ringbuf       -  / 262144      -      0 B
        "#]],
    );
    world.shows(
        "maps frontends",
        Exit::Unreachable,
        &expect![[r#"
        FRONTEND       SERVICE  GEN  SLOTS        ARMED  TRIPPED                         OVERRIDE
        10.0.1.10:443  shop     41   a 0, dr 251  dr     a, trial in 12s (back-off 16s)  -
    "#]],
    );
    world.shows("maps origins", Exit::Unreachable, &expect![[r#"
        ID  ADDRESS        SERVICE  NAME  KERNEL                                                     COUNTERS
         0  10.0.1.10:443  shop     a     taken out, tripped (connect), trial in 12s (back-off 16s)  conns_open 3  refused 412  syn 412
         1  10.0.1.11:443  shop     dr    -                                                          conns_open 8  syn 9000  synack 9000
    "#]]);
    let Ended(exit, out, _) = world.sluice("status --json");
    let document: serde_json::Value = serde_json::from_str(&out).expect("is JSON");
    assert_eq!(exit, Exit::Unreachable);
    assert!(document["services"][0]["state"].is_null() && document["in_sync"].is_null());
    assert_eq!(document["services"][0]["origins"][1]["share_percent"], 100.0);
}

#[test]
fn maps_beside_a_living_daemon() {
    let world = World { maps: Some(maps()), ..World::with(Script::default()) };
    let Ended(exit, out, _) = world.sluice("maps --json");
    assert_eq!(exit, Exit::Done);
    let document: MapsReport = serde_json::from_str(&out).expect("is the report");
    assert_eq!(document, MapsReport { daemon_pid: Some(1123), ..maps() });
    assert!(world.sluice("maps").1.contains("daemon ok (pid 1123)"));
    world.shows(
        "maps flows",
        Exit::Done,
        &expect![[r#"
        KEY           VALUE
        key of flows  value
    "#]],
    );
    world.says(
        "maps nope",
        Exit::Failed,
        &expect![[r#"
        sluice: there is no map `nope`; there are: frontends, half_open, flows, events
    "#]],
    );
}

fn flow(node: &str, origin: &str, state: &str) -> FlowEntry {
    FlowEntry {
        node: node.into(),
        asked: "10.0.1.10:443".into(),
        service: "shop".into(),
        origin: origin.into(),
        served_by: if origin == "a" { "10.0.1.10:443" } else { "10.0.1.11:443" }.into(),
        state: state.into(),
        redirected: origin != "a",
        ..FlowEntry::default()
    }
}

fn flows() -> Vec<FlowEntry> {
    vec![
        FlowEntry { unanswered_ms: Some(63_000), rtt_us: Some(1_240), ..flow("10.0.1.1:40001", "dr", "established") },
        FlowEntry { unanswered_ms: Some(204), trial: true, ..flow("10.0.1.1:40002", "a", "half_open") },
        FlowEntry {
            rtt_us: Some(45_600),
            forwarded: true,
            translated_port: Some(51_234),
            ..flow("10.0.1.1:40003", "dr", "closing")
        },
    ]
}

#[test]
fn flows_with_both_addresses_the_longest_wait_first() {
    let world = World { maps: Some(maps()), flows: flows(), ..World::with(Script::default()) };
    world.shows(
        "flows",
        Exit::Done,
        &expect![[r#"
            NODE            ASKED          SERVED BY              STATE        UNANSWERED    RTT  FLAGS
            10.0.1.1:40001  10.0.1.10:443  shop/dr 10.0.1.11:443  established        1m3s  1.2ms  redirected
            10.0.1.1:40002  10.0.1.10:443  shop/a 10.0.1.10:443   half-open         204ms      -  trial
            10.0.1.1:40003  10.0.1.10:443  shop/dr 10.0.1.11:443  closing               -   45ms  redirected forwarded from-port-51234
        "#]],
    );
    world.shows(
        "flows --limit 1",
        Exit::Done,
        &expect![[r#"
        NODE            ASKED          SERVED BY              STATE        UNANSWERED    RTT  FLAGS
        10.0.1.1:40001  10.0.1.10:443  shop/dr 10.0.1.11:443  established        1m3s  1.2ms  redirected
        -- 2 more (--limit 0 shows all)
    "#]],
    );
    for named in ["shop/dr", "dr"] {
        let Ended(exit, out, _) = world.sluice(&format!("flows --json --limit 0 --origin {named}"));
        assert_eq!(exit, Exit::Done);
        let document: FlowsReport = serde_json::from_str(&out).expect("is the report");
        let nodes: Vec<&str> = document.flows.iter().map(|flow| flow.node.as_str()).collect();
        assert_eq!((nodes, document.more), (vec!["10.0.1.1:40001", "10.0.1.1:40003"], 0), "{named}");
    }
    let quiet = World { maps: Some(maps()), ..World::with(Script::default()) };
    quiet.shows(
        "flows",
        Exit::Done,
        &expect![[r#"
        no flows
    "#]],
    );
}

#[test]
fn flows_of_an_origin_that_is_not_there() {
    let world = World { maps: Some(maps()), flows: flows(), ..World::with(Script::default()) };
    for (word, hint) in [
        ("shop/drr", "did you mean `shop/dr`?"),
        ("dp", "did you mean `shop/dr`?"),
        ("shop/mirror", "`sluice maps origins` shows all"),
    ] {
        let Ended(exit, out, notes) = world.sluice(&format!("flows --origin {word}"));
        assert_eq!((exit, out.as_str()), (Exit::Failed, ""));
        assert_eq!(notes, format!("sluice: there is no origin `{word}`; {hint}\n"));
    }
    for words in ["flows --limit x", "flows --origin", "flows shop/a"] {
        assert_eq!(world.sluice(words).0, Exit::Usage, "{words}");
    }
}

#[test]
fn flows_without_a_daemon_or_without_pins() {
    let alone = World { maps: Some(maps()), flows: flows(), ..World::default() };
    let Ended(exit, out, notes) = alone.sluice("flows --origin shop/a");
    assert_eq!((exit, out.lines().count(), notes.as_str()), (Exit::Unreachable, 2, ""));
    let words = World::default();
    for command in ["flows", "flows --origin shop/a"] {
        words.says(
            command,
            Exit::Unreachable,
            &expect![[r#"
                sluice: no sluice daemon listens on /run/sluice/control.sock, and its maps can't be read: nothing is pinned under /sys/fs/bpf/sluice
            "#]],
        );
    }
}

fn event(seconds_before: u64, nanos: u64, what: &str, object: &str, detail: &str, by: &str) -> EventLine {
    let now = u64::try_from(NOW_S).expect("positive") * 1_000_000_000;
    EventLine {
        time_ns: now - seconds_before * 1_000_000_000 + nanos,
        what: what.into(),
        object: object.into(),
        detail: detail.into(),
        by: by.into(),
        mono_ns: nanos,
    }
}

fn episode() -> Vec<EventLine> {
    let mut events = vec![event(252, 398_112_904, "first_bad", "shop/a", "RST to SYN, seq ok", "kernel")];
    for nth in 0..7 {
        events.push(event(252, 398_514_210 + nth * 333_333, "rescue", "shop/a>dr", "turn-around, 0.4ms", "kernel"));
        if nth == 2 {
            events.push(event(252, 399_300_000, "rescue", "shop/a>dr", "re-steer, 1.1ms", "kernel"));
        }
    }
    events.extend([
        event(252, 400_520_117, "trip", "shop/a", "5 refused in 1.6ms, 4 clients", "kernel"),
        event(252, 401_000_000, "rescue", "shop/a>dr", "turn-around, 0.4ms", "kernel"),
        event(249, 398_604_871, "state", "shop/a", "healthy > fault (origin_process)", "judge"),
        event(249, 398_977_090, "failover", "shop", "tier 0 > 1, 1 frontend, map gen 41", "judge"),
        event(102, 120_000_413, "override", "news/c", "drain 40m \"disk swap\"", "li.wei(uid 1007)"),
    ]);
    events
}

#[test]
fn events_with_swarms_folded() {
    let world = World::with(Script { events: episode(), ..Script::default() });
    world.shows(
        "events --since 10m",
        Exit::Done,
        &expect![[r#"
            TIME (+08:00)       WHAT        OBJECT          DETAIL                                    BY
            03:03:00.398112904  first_bad   shop/a          RST to SYN, seq ok                        kernel
            03:03:00.398514210  rescue      shop/a>dr       turn-around, 0.4ms (x7 in 1.9ms, folded)  kernel
            03:03:00.399300000  rescue      shop/a>dr       re-steer, 1.1ms                           kernel
            03:03:00.400520117  trip        shop/a          5 refused in 1.6ms, 4 clients             kernel
            03:03:00.401000000  rescue      shop/a>dr       turn-around, 0.4ms                        kernel
            03:03:03.398604871  state       shop/a          healthy > fault (origin_process)          judge
            03:03:03.398977090  failover    shop            tier 0 > 1, 1 frontend, map gen 41        judge
            03:05:30.120000413  override    news/c          drain 40m "disk swap"                     li.wei(uid 1007)
            -- 0 events lost; 120 older ones forgotten, the daemon keeps 8192
        "#]],
    );
    world.shows(
        "events --since 2m --follow",
        Exit::Done,
        &expect![[r#"
        TIME (+08:00)       WHAT        OBJECT          DETAIL                          BY
        03:05:30.120000413  override    news/c          drain 40m "disk swap"           li.wei(uid 1007)
        -- 0 events lost; 120 older ones forgotten, the daemon keeps 8192
        03:03:00.398112904  first_bad   shop/a          RST to SYN, seq ok              kernel
    "#]],
    );
    let Ended(_, out, notes) = world.sluice("events --json");
    let lines: Vec<EventLine> = out.lines().map(|line| serde_json::from_str(line).expect("a line")).collect();
    assert_eq!(lines, episode(), "JSON is never folded");
    assert!(notes.contains("120 older ones forgotten"), "{notes}");
}

#[test]
fn events_of_another_day_carry_the_date() {
    let events = vec![event(86_400, 0, "state", "shop/a", "healthy > fault", "judge")];
    World::with(Script { events, ..Script::default() }).shows(
        "events",
        Exit::Done,
        &expect![[r#"
        TIME (+08:00)                  WHAT        OBJECT          DETAIL                          BY
        2026-11-29 03:07:12.000000000  state       shop/a          healthy > fault                 judge
        -- 0 events lost; 120 older ones forgotten, the daemon keeps 8192
    "#]],
    );
}

#[test]
fn orders_reach_the_daemon() {
    let script = Script { outcome: Some(Outcome::done("news/c is drained for 40m")), ..Script::default() };
    let asked = Rc::clone(&script.asked);
    let world = World::with(script);
    world.shows(
        "origin drain news/c --reason disk --for 40m",
        Exit::Done,
        &expect![[r#"
        news/c is drained for 40m
    "#]],
    );
    world.sluice("origin clear news/c");
    world.sluice("reload --dry-run");
    world.sluice("detach --drain 5s");
    let ask = |order, reason: &str, for_ms| Ask::Origin {
        service: "news".into(),
        origin: "c".into(),
        order,
        reason: reason.into(),
        for_ms,
    };
    let wanted = [
        ask(crate::control::OrderKind::Drain, "disk", Some(2_400_000)),
        ask(crate::control::OrderKind::Clear, "", None),
        Ask::Reload { dry_run: true },
        Ask::Detach { drain_ms: Some(5000), force: false },
    ];
    assert_eq!(*asked.borrow(), wanted);
}

#[test]
fn what_the_daemon_refuses_has_its_code() {
    let table = [
        (Outcome::failed("there is no origin `x`"), Exit::Failed),
        (Outcome::refused("3 redirected flows live"), Exit::Refused),
        (Outcome::bad_config("x.toml:3:1: unknown key"), Exit::BadConfig),
    ];
    for (outcome, exit) in table {
        let message = format!("sluice: {}\n", outcome.message);
        let world = World::with(Script { outcome: Some(outcome), ..Script::default() });
        let Ended(got, out, notes) = world.sluice("reload");
        assert_eq!((got, out.as_str(), notes), (exit, "", message));
    }
}

#[test]
fn without_a_daemon_and_without_pins_there_is_one_sentence() {
    let world = World::default();
    world.says("status", Exit::Unreachable, &expect![[r#"
        sluice: no sluice daemon listens on /run/sluice/control.sock, and its maps can't be read: nothing is pinned under /sys/fs/bpf/sluice
    "#]]);
    world.says(
        "events",
        Exit::Unreachable,
        &expect![[r#"
        sluice: no sluice daemon listens on /run/sluice/control.sock; events are kept in its memory, the maps hold none
    "#]],
    );
    world.says(
        "reload",
        Exit::Unreachable,
        &expect![[r#"
        sluice: no sluice daemon listens on /run/sluice/control.sock
    "#]],
    );
    let denied = World { socket: Some(ErrorKind::PermissionDenied), ..World::default() };
    denied.says(
        "status",
        Exit::NoPermission,
        &expect![[r#"
        sluice: not allowed to open /run/sluice/control.sock; run as root, or join the group that owns it
    "#]],
    );
}

#[test]
fn detaching_without_a_daemon() {
    let removed = DetachOutcome::Removed { programs: 6, maps: 12, flows_cut: 0 };
    let table = [
        ("detach", Some(removed), Exit::Done, vec!["detach force=false"]),
        ("detach --force", Some(removed), Exit::Done, vec!["detach force=true"]),
        ("detach", Some(DetachOutcome::Nothing), Exit::Done, vec!["detach force=false"]),
        ("detach", Some(DetachOutcome::FlowsLive { flows: 3 }), Exit::Refused, vec!["detach force=false"]),
        (
            "detach --drain 0s",
            Some(DetachOutcome::FlowsLive { flows: 3 }),
            Exit::Refused,
            vec!["stop steering", "detach force=false"],
        ),
        ("detach", None, Exit::NoPermission, vec!["detach force=false"]),
    ];
    for (words, detach, exit, did) in table {
        let world = World { detach, ..World::default() };
        let Ended(got, out, notes) = world.sluice(words);
        assert_eq!(
            (got, &*world.did.borrow()),
            (exit, &did.iter().map(|&did| did.to_owned()).collect()),
            "{out}{notes}"
        );
    }
    // A daemon that hangs holds the programs still.
    let hanging = World { socket: Some(ErrorKind::TimedOut), detach: Some(removed), ..World::default() };
    assert_eq!(hanging.sluice("detach").0, Exit::Unreachable);
    assert!(hanging.did.borrow().is_empty());
}

#[test]
fn running_needs_a_good_file_and_then_permission() {
    let world = World::default();
    assert_eq!(world.sluice("run -c /x.toml").0, Exit::Done);
    assert_eq!(*world.did.borrow(), ["run /x.toml"]);
    let bad = World { config: Some(vec![finding("unknown key")]), capabilities: vec!["CAP_BPF"], ..World::default() };
    bad.says(
        "run -c /x.toml",
        Exit::BadConfig,
        &expect![[r#"
        sluice: x.toml:3:1: unknown key
        fix: add an origin
    "#]],
    );
    let weak = World { capabilities: vec!["CAP_BPF", "CAP_NET_ADMIN"], ..World::default() };
    weak.says(
        "run -c /x.toml",
        Exit::NoPermission,
        &expect![[r#"
            sluice: not permitted, for want of CAP_BPF, CAP_NET_ADMIN; run it as root, or with CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN (for node.netns CAP_SYS_ADMIN too)
        "#]],
    );
    assert!(bad.did.borrow().is_empty() && weak.did.borrow().is_empty());
}

#[test]
fn checking_prints_the_resolved_file_and_warns() {
    let world = World::default();
    world.shows(
        "check x.toml",
        Exit::Done,
        &expect![[r#"
        [node]
    "#]],
    );
    world.says(
        "check x.toml",
        Exit::Done,
        &expect![[r#"
        warning: x.toml:3:1: `shop` has no standby
        fix: add an origin

        x.toml may be applied, 1 warning
    "#]],
    );
    let bad = World { config: Some(vec![finding("unknown key"), finding("port 0")]), ..World::default() };
    bad.says(
        "check x.toml",
        Exit::BadConfig,
        &expect![[r#"
        sluice: x.toml:3:1: unknown key
        fix: add an origin

        x.toml:3:1: port 0
        fix: add an origin
    "#]],
    );
    bad.shows("check x.toml --json", Exit::BadConfig, &expect![[r#"
        {"ok":false,"errors":[{"file":"x.toml","line":3,"column":1,"message":"unknown key","fix":"add an origin"},{"file":"x.toml","line":3,"column":1,"message":"port 0","fix":"add an origin"}],"warnings":[],"resolved":null}
    "#]]);
    world.shows("check x.toml --json", Exit::Done, &expect![[r#"
        {"ok":true,"errors":[],"warnings":[{"file":"x.toml","line":3,"column":1,"message":"`shop` has no standby","fix":"add an origin"}],"resolved":{"node":{}}}
    "#]]);
}

#[test]
fn wrong_usage_is_two() {
    let world = World::default();
    let table = ["fly", "origin drain shop", "origin clear shop/a --for 1m", "origin drain shop/a --for 0s", "direct"];
    for words in table.into_iter().chain(["events --since yesterday", "detach --force --drain 1s", ""]) {
        assert_eq!(world.sluice(words).0, Exit::Usage, "{words}");
    }
}

#[test]
fn the_command_line_is_consistent() {
    use clap::CommandFactory;
    Cli::command().debug_assert();
}

fn probed_check(name: &str, kind: &str, result: &str, steps: &[(&str, f64)]) -> ProbeCheck {
    let step = |&(name, took_ms): &(&str, f64)| ProbeStep { name: name.into(), layer: "transport".into(), took_ms };
    ProbeCheck {
        name: name.into(),
        kind: kind.into(),
        layer: "application".into(),
        critical: true,
        verify: false,
        result: result.into(),
        reason: None,
        failed_step: None,
        failed_layer: None,
        detail: None,
        needs: None,
        took_ms: (result != "skipped").then(|| steps.iter().fold(0.0, |sum, (_, took)| sum + took)),
        steps: steps.iter().map(step).collect(),
        weight: None,
        cert_not_after: None,
    }
}

#[test]
fn a_probe_shows_each_step_with_its_time_and_why() {
    let failed = ProbeCheck {
        reason: Some("status 503".into()),
        failed_step: Some("body".into()),
        detail: Some("expected 200-299".into()),
        critical: false,
        ..probed_check("web", "http", "fail", &[("connect", 0.31), ("tls", 9.04), ("first_byte", 21.7), ("body", 0.0)])
    };
    let skipped = ProbeCheck { needs: Some("web".into()), ..probed_check("pay", "http", "skipped", &[]) };
    let secure =
        ProbeCheck { cert_not_after: Some(NOW_S + 86_400), ..probed_check("cert", "tls", "pass", &[("connect", 1.0)]) };
    let weighs = ProbeCheck { weight: Some(40), ..probed_check("mq", "script", "slow", &[("run", 812.2)]) };
    let local = ProbeCheck { reason: Some("descriptors".into()), ..probed_check("port", "tcp", "local", &[]) };
    let checks = vec![probed_check("port", "tcp", "pass", &[("connect", 0.31)]), failed, skipped, secure, weighs];
    let origin = |name: &str, checks| ProbeOrigin {
        service: "shop".into(),
        origin: name.into(),
        address: "10.0.1.10:443".into(),
        host: (name == "dr").then(|| "dr.cloud.example".into()),
        resolve_ms: (name == "dr").then_some(3.2),
        checks,
    };
    let report =
        ProbeReport { ok: false, origins: vec![origin("a", checks), origin("dr", vec![local])], unplaced: Vec::new() };
    let world = World { probed: Some(report), ..World::default() };
    world.shows("probe shop/a --check web", Exit::Failed, &expect![[r#"
        shop/a  10.0.1.10:443
           CHECK  TYPE    RESULT    TOOK  STEPS                                                  WHY
           port   tcp     pass     0.3ms  connect 0.3ms
           web    http    fail      31ms  connect 0.3ms, tls 9.0ms, first_byte 22ms, body 0.0ms  status 503 (body); expected 200-299; only degrades
           pay    http    skipped                                                                needs web
           cert   tls     pass     1.0ms  connect 1.0ms                                          certificate until 2026-12-01 03:07:12 +08:00
           mq     script  slow     812ms  run 812ms                                              weight 40

        shop/dr  10.0.1.10:443  (dr.cloud.example, resolve 3.2ms)
           CHECK  TYPE  RESULT   TOOK  STEPS  WHY
           port   tcp   local   0.0ms         descriptors; says nothing about the origin

        1 failed, 1 could not be run here, 1 skipped, 1 slow, 2 passed
    "#]]);
    assert!(world.did.borrow()[0].contains("service: Some(\"shop\"), origin: Some(\"a\"), check: Some(\"web\")"));

    let fine = vec![origin("a", vec![probed_check("port", "tcp", "pass", &[("connect", 12.3)])])];
    let world =
        World { probed: Some(ProbeReport { ok: true, origins: fine, unplaced: Vec::new() }), ..World::default() };
    world.shows(
        "probe",
        Exit::Done,
        &expect![[r#"
        shop/a  10.0.1.10:443
           CHECK  TYPE  RESULT  TOOK  STEPS         WHY
           port   tcp   pass    12ms  connect 12ms

        1 passed
    "#]],
    );
    world.shows("probe --json", Exit::Done, &expect![[r#"
        {"ok":true,"origins":[{"service":"shop","origin":"a","address":"10.0.1.10:443","host":null,"resolve_ms":null,"checks":[{"name":"port","type":"tcp","layer":"application","critical":true,"verify":false,"result":"pass","reason":null,"failed_step":null,"failed_layer":null,"detail":null,"needs":null,"took_ms":12.3,"steps":[{"name":"connect","layer":"transport","took_ms":12.3}],"weight":null,"cert_not_after":null}]}],"unplaced":[]}
    "#]]);

    let nothing =
        World { probed: Some(ProbeReport { ok: true, origins: vec![], unplaced: Vec::new() }), ..World::default() };
    nothing.says(
        "probe shop/x",
        Exit::Failed,
        &expect![[r#"
        sluice: `shop/x` has no check: see `sluice check`
    "#]],
    );
    World::default().says("probe", Exit::NoPermission, &expect![[r#"
        sluice: not permitted, for want of CAP_NET_ADMIN; run it as root, or with CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN (for node.netns CAP_SYS_ADMIN too)
    "#]]);
}
