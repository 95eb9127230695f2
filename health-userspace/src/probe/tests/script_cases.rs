//! `script`: exit codes as Keepalived's MISC_CHECK has them, and what a script can't do.

use super::*;
use std::{os::unix::fs::PermissionsExt, path::Path};

/// A script that `nobody` may run.
fn script(folder: &Path, text: &str) -> String {
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).expect("permissions");
    let path = folder.join("check");
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("permissions");
    path.display().to_string()
}

const ORIGIN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)), 5657);

/// A shell runs the text. A file that was just written may be busy: another test's child may have it open for a moment.
async fn judged(text: &str, lines: &str) -> Finished {
    let text = toml::Value::from(text);
    let exec = format!("exec = [\"/bin/sh\", \"-c\", {text}, \"check\", \"--fast\", \"a b;*\"]");
    finished(&check(&format!("type = \"script\"\n{exec}\n{lines}")), ORIGIN, None).await
}

#[tokio::test]
async fn exit_codes_are_keepaliveds() {
    let weight = "dynamic_weight = true";
    let table = [
        ("exit 0", "", Outcome::Pass, None),
        ("exit 1", "", fail(Reason::Exit(1)), None),
        ("exit 2", "", fail(Reason::Exit(2)), None),
        ("exit 200", "", fail(Reason::Exit(200)), None),
        ("exit 0", weight, Outcome::Pass, None),
        ("exit 1", weight, fail(Reason::Exit(1)), None),
        ("exit 2", weight, Outcome::Pass, Some(0)),
        ("exit 200", weight, Outcome::Pass, Some(198)),
        ("exit 255", weight, Outcome::Pass, Some(253)),
        ("kill -TERM $$", weight, fail(Reason::Signal(15)), None),
    ];
    for (text, lines, expected, weight) in table {
        let finished = judged(text, lines).await;
        assert_eq!(
            (finished.outcome, finished.notes.weight),
            (expected, weight),
            "{text} {lines}: {:?}",
            finished.notes
        );
    }
}

#[tokio::test]
async fn it_sees_what_it_is_given_and_nothing_else() {
    let told = judged(
        "echo \"$SLUICE_ADDRESS $SLUICE_PORT $# $1 $2\" $(id -u) $(id -G) $(pwd); env | cut -d= -f1 | sort >&2",
        "",
    )
    .await;
    let detail = told.notes.detail.expect("what it said");
    let nobody = nix::unistd::User::from_name("nobody").expect("a lookup").expect("nobody");
    let (uid, gid) = (nobody.uid, nobody.gid);
    let said = format!("192.0.2.1 5657 2 --fast a b;* {uid} {gid} /\\n");
    assert!(detail.starts_with(&said), "{detail}");
    // The shell itself adds PWD and the like.
    for name in detail[said.len()..].split("\\n") {
        assert!(["PATH", "PWD", "OLDPWD", "SHLVL", "_", "SLUICE_ADDRESS", "SLUICE_PORT"].contains(&name), "{name}");
    }
    assert_eq!(judged("read line && exit 0; exit 7", "").await.outcome, fail(Reason::Exit(7)), "nothing to read");
}

#[tokio::test]
async fn what_it_says_is_bounded_and_never_holds_it_up() {
    let much = judged("i=0; while [ $i -lt 2000 ]; do echo 0123456789012345678901234567890123456789012345678901234567890; i=$((i+1)); done", "timeout = \"5s\"").await;
    assert_eq!(much.outcome, Outcome::Pass);
    assert_eq!(much.notes.detail.map(|detail| detail.chars().count()), Some(DETAIL_CHARS_MAX));
}

/// Whether any process has this word among its arguments.
fn lives(word: &str) -> bool {
    let processes = std::fs::read_dir("/proc").expect("/proc").filter_map(Result::ok);
    processes.filter(|entry| entry.file_name().to_str().is_some_and(|name| name.parse::<u32>().is_ok())).any(|entry| {
        std::fs::read(entry.path().join("cmdline"))
            .is_ok_and(|line| line.split(|b| *b == 0).any(|w| w == word.as_bytes()))
    })
}

async fn gone(word: &str) {
    let mut look = interval(Duration::from_millis(5));
    let waited = timeout(PATIENCE, async {
        while lives(word) {
            look.tick().await;
        }
    });
    waited.await.expect("it is gone");
}

#[tokio::test]
async fn the_deadline_ends_its_whole_group() {
    // Numbers that no other process has among its arguments.
    let hung = judged("sleep 98765431 & sleep 98765432", "timeout = \"300ms\"").await;
    assert_eq!(hung.outcome, fail(Reason::Timeout(Layer::Application)));
    let took = hung.ended.since(hung.began);
    assert!((Span::from_millis(300)..Span::from_millis(900)).contains(&took), "{took}");
    gone("98765431").await;
    gone("98765432").await;
}

#[tokio::test]
async fn what_it_leaves_behind_ends_with_it_and_is_not_waited_for() {
    let left = judged("sleep 98765433 & exit 0", "timeout = \"5s\"").await;
    assert_eq!(left.outcome, Outcome::Pass);
    assert!(left.ended.since(left.began) < Span::from_secs(2));
    gone("98765433").await;
}

#[tokio::test]
async fn a_script_that_cannot_be_started_is_no_failure_of_the_origin() {
    let start = Outcome::Local(LocalReason::Start);
    let absent = finished(&check("type = \"script\"\nexec = [\"/no/such/check\"]"), ORIGIN, None).await;
    assert_eq!(absent.outcome, start);
    assert!(absent.notes.detail.is_some_and(|detail| detail.contains("/no/such/check")));
    let folder = tempfile::tempdir().expect("a folder");
    let path = script(folder.path(), "exit 0");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("permissions");
    let asks = check(&format!("type = \"script\"\nexec = [\"{path}\"]"));
    assert_eq!(run(&asks, ORIGIN, None).await.0, start, "not executable");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).expect("permissions");
    assert_eq!(run(&asks, ORIGIN, None).await.0, start, "not for nobody");
}
