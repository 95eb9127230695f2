//! Who is asked when, and how often.

use super::*;
use health_core::model::Pace;
use std::sync::atomic::{AtomicU32, Ordering};

const HOUR: &str = "interval = \"1h\"";

/// Counts connections, accepts and then says nothing.
async fn counting() -> (SocketAddr, Arc<AtomicU32>) {
    let (listener, address) = listen().await;
    let count = Arc::new(AtomicU32::new(0));
    tokio::spawn({
        let count = Arc::clone(&count);
        async move {
            while let Ok((mut connection, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(async move {
                    head(&mut connection).await;
                    drop(connection.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await);
                });
            }
        }
    });
    (address, count)
}

/// A port that refuses, and can be opened later.
async fn refusing() -> SocketAddr {
    let (listener, address) = listen().await;
    drop(listener);
    address
}

#[tokio::test]
async fn what_needs_a_failing_check_is_skipped_and_runs_at_once_when_that_passes() {
    let address = refusing().await;
    let (mut scheduler, mut results) = scheduler();
    let port = tcp(&format!("name = \"port\"\n{HOUR}\ninterval_fast = \"1h\""));
    let needing = |name: &str, need: &str, lines: &str| {
        let mut check = http(address, &format!("name = \"{name}\"\n{HOUR}\n{lines}"));
        check.plan.needs = vec![need.to_owned()];
        check
    };
    let (web, deep) = (needing("web", "port", ""), needing("deep", "web", "slow = \"1s\""));
    scheduler.apply(&[target(1, address, &[deep, web, port])]).expect("targets");
    let first = next(&mut results).await;
    assert_eq!((first.check, first.outcome), (2, fail(Reason::Refused)));
    // Neither of the others fails: they are not run, however suspicious somebody is.
    scheduler.hurry(OriginId(1));
    assert_eq!(next(&mut results).await.check, 2);
    silence(&mut results).await;

    let listener = TcpListener::bind(address).await.expect("the port, now open");
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            head(&mut connection).await;
            drop(connection.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await);
        }
    });
    scheduler.hurry(OriginId(1));
    let mut order = Vec::new();
    while order.len() < 3 {
        let result = next(&mut results).await;
        assert_eq!(result.outcome, Outcome::Pass, "{result:?}");
        order.push(result.check);
    }
    assert_eq!(order, [2, 1, 0], "each as soon as the one that it needs has passed");
}

#[tokio::test]
async fn verify_checks_run_only_while_their_origin_returns() {
    let (_listener, address) = listen().await;
    let (mut scheduler, mut results) = scheduler();
    let lines = "interval = \"200ms\"\ninterval_recover = \"200ms\"";
    scheduler.apply(&[target(1, address, &[tcp(&format!("verify = true\n{lines}"))])]).expect("targets");
    for pace in [Pace::Usual, Pace::Suspect, Pace::Gentle, Pace::Out] {
        scheduler.pace(OriginId(1), pace);
        silence(&mut results).await;
    }
    scheduler.pace(OriginId(1), Pace::Returning);
    next(&mut results).await;
    next(&mut results).await;
}

#[tokio::test]
async fn the_same_question_of_several_services_is_asked_once_and_answered_to_all() {
    let (address, count) = counting().await;
    let (mut scheduler, mut results) = scheduler();
    // Two origins on one host, each with a port of its own, and one page that says how the host is.
    let page = http(address, HOUR);
    let renamed = http(address, &format!("name = \"health\"\ncritical = false\n{HOUR}"));
    let one = target(1, SocketAddr::new(address.ip(), 81), &[page]);
    let two = target(2, SocketAddr::new(address.ip(), 82), &[tcp(HOUR), renamed]);
    scheduler.apply(&[one.clone(), two]).expect("targets");
    let mut told = Vec::new();
    while told.len() < 3 {
        let result = next(&mut results).await;
        told.push((result.origin.0, result.check));
    }
    told.sort_unstable();
    assert_eq!(told, [(1, 0), (2, 0), (2, 1)]);
    assert_eq!(count.load(Ordering::Relaxed), 1);
    // One of them goes; the other one keeps its phase.
    scheduler.apply(&[one]).expect("targets");
    silence(&mut results).await;
    scheduler.hurry(OriginId(1));
    assert_eq!(next(&mut results).await.origin, OriginId(1));
    assert_eq!(count.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn suspicion_makes_rounds_fast_and_its_end_slow_again() {
    let (_listener, address) = listen().await;
    let (mut scheduler, mut results) = scheduler();
    let check = tcp("interval = \"1h\"\ninterval_fast = \"100ms\"");
    scheduler.apply(&[target(1, address, &[check])]).expect("targets");
    next(&mut results).await;
    silence(&mut results).await;
    scheduler.pace(OriginId(1), Pace::Suspect);
    for _ in 0..3 {
        next(&mut results).await;
    }
    scheduler.pace(OriginId(1), Pace::Usual);
    while timeout(Duration::from_millis(300), results.recv()).await.is_ok() {}
    silence(&mut results).await;
}

/// Nobody waits for the next interval to see whether a first failure was chance; and what is settled is left alone.
#[tokio::test]
async fn a_failure_is_confirmed_fast_until_it_is_settled() {
    let address = refusing().await;
    let (mut scheduler, mut results) = scheduler();
    let check = tcp("interval = \"1h\"\ninterval_fast = \"100ms\"");
    scheduler.apply(&[target(1, address, &[check])]).expect("targets");
    for _ in 0..3 {
        assert_eq!(next(&mut results).await.outcome, fail(Reason::Refused));
    }
    silence(&mut results).await;
}

#[tokio::test]
async fn an_origin_is_never_asked_more_often_than_its_budget_allows() {
    let (listener, port) = listen_everywhere().await;
    accept_all(listener);
    let (mut scheduler, mut results) = scheduler();
    let check = |n: u32| tcp(&format!("name = \"c{n}\"\ninterval = \"100ms\"\ntimeout = \"{}ms\"", 900 + n));
    let checks: Vec<_> = (0..40).map(check).collect();
    scheduler.apply(&[target(1, place(1, port), &checks)]).expect("targets");
    let first = next(&mut results).await.began;
    let mut count = 1;
    loop {
        let result = next(&mut results).await;
        if result.began.since(first) >= Span::from_secs(2) {
            break;
        }
        count += 1;
    }
    // 40 checks each 100 ms would be 800 in two seconds; 50 a second and half a second's worth at once are 125.
    assert!((60..=135).contains(&count), "{count}");
}

/// P39: what can be foreseen is refused by its number, not met at night.
#[tokio::test]
async fn p39_more_checks_than_descriptors_are_refused_and_the_number_named() {
    const CHILD: &str = "SLUICE_TEST_FEW_DESCRIPTORS";
    if std::env::var_os(CHILD).is_some() {
        let limit = nix::sys::resource::Resource::RLIMIT_NOFILE;
        nix::sys::resource::setrlimit(limit, 1024, 1024).expect("a limit");
        let (mut scheduler, _results) = scheduler();
        let check = tcp("");
        let targets: Vec<_> = (0..1000).map(|n| target(n, place(n, 80), std::slice::from_ref(&check))).collect();
        let refused = scheduler.apply(&targets).expect_err("1000 checks and 1024 descriptors").to_string();
        assert!(refused.contains("1000 checks need 1256 file descriptors"), "{refused}");
        scheduler.apply(&targets[..700]).expect("700 checks and 1024 descriptors");
        return;
    }
    let name = "probe::tests::schedule::p39_more_checks_than_descriptors_are_refused_and_the_number_named";
    let child = std::process::Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", name])
        .env(CHILD, "1")
        .output()
        .expect("a child");
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
}

/// No second has more than 1.5 times the mean, from the first one on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_checks_are_spread_evenly_from_the_start() {
    let (listener, port) = listen_everywhere().await;
    accept_all(listener);
    let (mut scheduler, mut results) = scheduler();
    let check = tcp("interval = \"2s\"\ntimeout = \"1s\"");
    let targets: Vec<_> = (0..1000).map(|n| target(n, place(n, port), std::slice::from_ref(&check))).collect();
    let start = now();
    scheduler.apply(&targets).expect("targets");
    let mut seconds = [0_u32; 6];
    loop {
        let result = next(&mut results).await;
        let second = usize::try_from(result.began.since(start).as_millis() / 1000).expect("a small number");
        match seconds.get_mut(second) {
            Some(count) => *count += 1,
            None => break,
        }
    }
    assert!(seconds.iter().all(|count| (250..=750).contains(count)), "500 a second is the mean: {seconds:?}");
}

/// P39: a node that has used up its ports to an address says nothing about the origin there.
#[test]
fn p39_a_lack_of_ports_is_no_failure_of_the_origin() {
    // A thread of its own: the rest of the tests stay in their namespace.
    let alone = std::thread::spawn(|| {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("a namespace: run as root");
        let up = std::process::Command::new("ip").args(["link", "set", "lo", "up"]).status().expect("ip");
        assert!(up.success());
        std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "40000 40009").expect("a range of ten ports");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:80").await.expect("a port");
            let address = listener.local_addr().expect("an address");
            let mut held = Vec::new();
            while held.len() < 10 {
                held.push(TcpStream::connect(address).await.expect("one of ten ports"));
            }
            let shortage = Outcome::Local(LocalReason::Ports);
            assert_eq!(run(&tcp(""), address, None).await.0, shortage);
            assert_eq!(run(&http(address, ""), address, None).await.0, shortage);
            drop(held);
        });
    });
    alone.join().expect("no panic");
}

/// P26: a round that its deadline ends is over then, and the next one keeps its time.
#[tokio::test]
async fn p26_a_hung_round_ends_at_its_deadline_and_the_next_one_is_on_time() {
    let silent = holding("").await;
    let (mut scheduler, mut results) = scheduler();
    let check = http(silent, "interval = \"600ms\"\ntimeout = \"400ms\"");
    scheduler.apply(&[target(1, silent, &[check])]).expect("targets");
    let mut rounds = Vec::new();
    while rounds.len() < 8 {
        rounds.push(next(&mut results).await);
    }
    // The medians forgive a busy machine its pauses; a timer that starts anew with each packet would be in every round.
    let mut took: Vec<_> = rounds.iter().map(|round| round.ended.since(round.began).as_millis()).collect();
    took.sort_unstable();
    assert!((400..450).contains(&took[4]), "{took:?}");
    let gap = |pair: &[CheckResult]| pair[1].began.since(pair[0].began).as_millis();
    let mut gaps: Vec<_> = rounds[1..].windows(2).map(gap).collect();
    gaps.sort_unstable();
    assert!((540..710).contains(&gaps[3]), "{gaps:?}");
}

/// Rounds come and go; what stays is a task for each check, however many rounds there were.
#[tokio::test]
async fn rounds_leave_no_task_behind() {
    // A server of another runtime, whose tasks are not counted here.
    let (at, port) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let (listener, port) = listen_everywhere().await;
            at.send(port).expect("a test");
            accept_all(listener);
            std::future::pending::<()>().await;
        });
    });
    let port = port.recv().expect("a port");
    let (mut scheduler, mut results) = scheduler();
    let alive = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = alive();
    // Half of them hang until their deadline.
    let (quick, hung) =
        (tcp("interval = \"100ms\""), tcp("interval = \"100ms\"\ntimeout = \"90ms\"\nexpect = [\"contains:x\"]"));
    let targets: Vec<_> = (0..50)
        .map(|n| target(n, place(n, port), std::slice::from_ref(if n % 2 == 0 { &quick } else { &hung })))
        .collect();
    scheduler.apply(&targets).expect("targets");
    assert_eq!(alive(), before + 50);
    for _ in 0..1000 {
        next(&mut results).await;
    }
    assert_eq!(alive(), before + 50);
    drop(scheduler);
    let ends = async {
        while alive() > before - 1 {
            tokio::task::yield_now().await;
        }
    };
    // The scheduler's own heart ends with it.
    timeout(PATIENCE, ends).await.expect("tasks end with their scheduler");
}
