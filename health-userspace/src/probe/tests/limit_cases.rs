//! Cases P26 and P39 for every kind: one deadline, and local trouble.

use super::*;

/// Checks of every kind that ends by its deadline when nobody says anything at these addresses.
fn every_kind(port: u16) -> Vec<(&'static str, CheckConfig, Layer)> {
    let app = Layer::Application;
    let of = |step, lines: String, layer| (step, check(&format!("{lines}\ntimeout = \"300ms\"")), layer);
    vec![
        of("answer", "type = \"tcp\"\nexpect = [\"contains:x\"]".to_owned(), app),
        of("tls", "type = \"tls\"\ntls = { verify = false }".to_owned(), Layer::Tls),
        of("first_byte", format!("type = \"http\"\nurl = \"http://shop.example:{port}/\""), app),
        of("first_byte", format!("type = \"http\"\nhttp = \"h2c\"\nurl = \"http://shop.example:{port}/\""), app),
        of(
            "tls",
            format!("type = \"http\"\nurl = \"https://shop.example:{port}/\"\ntls = {{ verify = false }}"),
            Layer::Tls,
        ),
        of("banner", "type = \"smtp\"".to_owned(), app),
        of("query", "type = \"dns\"\nquery = \"shop.example\"\ntransport = \"tcp\"".to_owned(), app),
        of("query", "type = \"dns\"\nquery = \"shop.example\"".to_owned(), app),
        of("call", "type = \"grpc\"".to_owned(), app),
        of("run", "type = \"script\"\nexec = [\"/bin/sleep\", \"60\"]".to_owned(), app),
    ]
}

#[tokio::test]
async fn p26_one_deadline_for_the_whole_probe_of_every_kind() {
    let (listener, address) = listen().await;
    // It takes all connections and datagrams, and says nothing.
    accept_all(listener);
    let _deaf = tokio::net::UdpSocket::bind(address).await.expect("the same port");
    for (step, asks, layer) in every_kind(address.port()) {
        let finished = finished(&asks, address, None).await;
        let took = finished.ended.since(finished.began);
        assert_eq!(finished.outcome, fail(Reason::Timeout(layer)), "{asks:?}: {:?}", finished.notes);
        assert_eq!(finished.steps.last().map(|step| step.name), Some(step), "{asks:?}");
        assert!((Span::from_millis(299)..Span::from_millis(800)).contains(&took), "{asks:?} took {took}");
    }
}

/// A server that drips, as P26 (a) has it: the deadline is for the whole, not for each piece.
#[tokio::test]
async fn p26_dripping_wins_no_time() {
    let (listener, address) = listen().await;
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut pace = interval(Duration::from_millis(20));
                let line = b"220-x\r\n";
                for byte in line.iter().cycle() {
                    pace.tick().await;
                    if connection.write_all(&[*byte]).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    for lines in ["type = \"smtp\"", "type = \"tcp\"\nexpect = [\"contains:ready\"]"] {
        let finished = finished(&check(&format!("{lines}\ntimeout = \"400ms\"")), address, None).await;
        let took = finished.ended.since(finished.began);
        assert_eq!(finished.outcome, fail(Reason::Timeout(Layer::Application)), "{lines}");
        assert!((Span::from_millis(399)..Span::from_millis(900)).contains(&took), "{lines} took {took}");
    }
}

/// The real thing, in a child of its own: the limit holds for a whole process.
#[test]
fn p39_a_lack_of_descriptors_is_local_for_every_kind() {
    const CHILD: &str = "SLUICE_TEST_DESCRIPTORS_OF_KINDS";
    if std::env::var_os(CHILD).is_some() {
        use nix::sys::resource::{Resource, getrlimit, setrlimit};
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let (_listener, address) = listen().await;
            // Whatever a runtime or a library opens once is open now.
            let script = check("type = \"script\"\nexec = [\"/bin/true\"]");
            assert_eq!(run(&script, address, None).await.0, Outcome::Pass);
            let mut kinds: Vec<CheckConfig> =
                every_kind(address.port()).into_iter().map(|(_, check, _)| check).collect();
            kinds.push(check("type = \"icmp\""));
            let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("limits");
            setrlimit(Resource::RLIMIT_NOFILE, 0, hard).expect("a limit");
            for asks in kinds {
                let finished = finished(&asks, address, None).await;
                assert_eq!(
                    finished.outcome,
                    Outcome::Local(LocalReason::Descriptors),
                    "{asks:?}: {:?}",
                    finished.notes
                );
            }
        });
        return;
    }
    let child = std::process::Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "probe::tests::limit_cases::p39_a_lack_of_descriptors_is_local_for_every_kind"])
        .env(CHILD, "1")
        .output()
        .expect("a child");
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
}

/// Every kind where the kernel refuses a connection, a datagram or a process for want of something of this node's. The kernel
/// can't be made short of memory for one test only, so a filter of system calls gives its answers, in a child of its own.
#[test]
fn p39_a_lack_of_ports_or_memory_is_local_for_every_kind() {
    const CHILD: &str = "SLUICE_TEST_ERRNO_OF_KINDS";
    let table = [
        (libc::EADDRNOTAVAIL, LocalReason::Ports),
        (libc::ENOBUFS, LocalReason::Memory),
        (libc::ENOMEM, LocalReason::Memory),
    ];
    if let Some(code) = std::env::var_os(CHILD) {
        let (code, reason) = table.into_iter().find(|(known, _)| *known.to_string() == *code).expect("one of them");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let (_listener, address) = listen().await;
            let mut kinds: Vec<CheckConfig> =
                every_kind(address.port()).into_iter().map(|(_, check, _)| check).collect();
            kinds.push(check("type = \"icmp\""));
            refuse_with(code);
            for asks in kinds {
                let finished = finished(&asks, address, None).await;
                assert_eq!(finished.outcome, Outcome::Local(reason), "{asks:?}: {:?}", finished.notes);
            }
        });
        return;
    }
    for (code, _) in table {
        let child = std::process::Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "probe::tests::limit_cases::p39_a_lack_of_ports_or_memory_is_local_for_every_kind"])
            .env(CHILD, code.to_string())
            .output()
            .expect("a child");
        assert!(child.status.success(), "{code}: {}", String::from_utf8_lossy(&child.stdout));
    }
}

/// From now on this thread gets that answer to whatever would make a connection or a process.
fn refuse_with(code: i32) {
    use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};
    let calls = [libc::SYS_connect, libc::SYS_clone, libc::SYS_clone3];
    #[cfg(target_arch = "x86_64")]
    let calls = [&calls[..], &[libc::SYS_fork, libc::SYS_vfork]].concat();
    let filter = SeccompFilter::new(
        calls.iter().map(|call| (*call, Vec::new())).collect(),
        SeccompAction::Allow,
        SeccompAction::Errno(code.unsigned_abs()),
        std::env::consts::ARCH.try_into().expect("an architecture that it knows"),
    );
    let program: BpfProgram = filter.expect("a filter").try_into().expect("a program");
    apply_filter(&program).expect("seccomp");
}
