use super::{super::protocol::OrderKind, *};
use crate::{control::client::Client, report::EventLine};
use std::{io::Write as _, os::unix::net::UnixStream as Blocking};

struct Stage {
    folder: tempfile::TempDir,
    events: EventLog,
    publish: watch::Sender<Option<Arc<Published>>>,
    commands: mpsc::Receiver<Command>,
    task: tokio::task::JoinHandle<()>,
}

impl Stage {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (publish, status) = watch::channel(None);
        let (send, commands) = mpsc::channel(4);
        let events = EventLog::with_limit(100);
        let handle = Handle { status, events: events.clone(), commands: send };
        let listener = Listener::bind(&folder.path().join("run/control.sock")).expect("binds");
        let task = tokio::spawn(listener.serve(handle));
        Self { folder, events, publish, commands, task }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("run/control.sock")
    }

    /// Runs a blocking client beside the server.
    async fn client<T: Send + 'static>(&self, run: impl FnOnce(Client) -> T + Send + 'static) -> T {
        let path = self.path();
        let run = move || run(Client::connect(&path).expect("connects"));
        tokio::task::spawn_blocking(run).await.expect("no panic")
    }

    /// Sends raw bytes and returns what came back until the server closed or a line was whole.
    async fn raw(&self, bytes: Vec<u8>) -> String {
        let path = self.path();
        let run = move || {
            use std::io::{BufRead, BufReader};
            let mut stream = Blocking::connect(path).expect("connects");
            stream.set_read_timeout(Some(Duration::from_secs(5))).expect("a deadline");
            drop(stream.write_all(&bytes));
            let mut line = String::new();
            let read = BufReader::new(stream).read_line(&mut line);
            assert!(read.is_ok(), "{read:?}");
            line
        };
        tokio::task::spawn_blocking(run).await.expect("no panic")
    }
}

fn status() -> StatusReport {
    StatusReport {
        node: Some("scrub-1".into()),
        time: jiff::Timestamp::UNIX_EPOCH,
        mode: None,
        in_sync: Some(true),
        services: Vec::new(),
        hooks: Vec::new(),
        daemon: None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_socket_is_private_and_goes_with_its_daemon() {
    let stage = Stage::new();
    let mode = |path: &Path| fs::metadata(path).expect("is there").permissions().mode() & 0o777;
    assert_eq!(mode(&stage.path()), 0o660);
    assert_eq!(mode(stage.path().parent().expect("has a folder")), 0o750);
    stage.task.abort();
    assert!(stage.task.await.is_err());
    assert!(!stage.folder.path().join("run/control.sock").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_living_daemon_is_refused_and_a_dead_ones_socket_replaced() {
    let stage = Stage::new();
    let second = Listener::bind(&stage.path());
    assert!(matches!(second, Err(ControlError::InUse { .. })), "{second:?}");

    let dead = stage.folder.path().join("dead.sock");
    drop(std::os::unix::net::UnixListener::bind(&dead).expect("binds"));
    let replaced = Listener::bind(&dead).expect("replaces");
    drop(replaced);
    assert!(!dead.exists());

    let file = stage.folder.path().join("file");
    fs::write(&file, "mine").expect("writes");
    assert!(matches!(Listener::bind(&file), Err(ControlError::NoSocket { .. })));
    assert_eq!(fs::read(&file).expect("is still there"), b"mine");
}

#[tokio::test(flavor = "multi_thread")]
async fn status_is_what_was_published_last() {
    let stage = Stage::new();
    // Asked before the first tick, it waits for that.
    let path = stage.path();
    let early = tokio::task::spawn_blocking(move || Client::connect(&path).expect("connects").ask(Ask::Status));
    stage.publish.send_replace(Some(Arc::new(Published { status: status() })));
    let answer = stage.client(|mut client| client.ask(Ask::Status)).await.expect("answers");
    assert_eq!(answer, Answer::Status { status: Box::new(status()) });
    assert_eq!(early.await.expect("no panic").expect("answers"), answer);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_carries_who_gave_it() {
    let mut stage = Stage::new();
    let ask = Ask::Origin {
        service: "shop".into(),
        origin: "a".into(),
        order: OrderKind::Drain,
        reason: "disk swap".into(),
        for_ms: Some(60_000),
    };
    let path = stage.path();
    let client = tokio::task::spawn_blocking(move || Client::connect(&path).expect("connects").ask(ask));
    let Some(Command::Origin { order, reply }) = stage.commands.recv().await else { panic!("no order came") };
    assert!(order.by.ends_with(&format!("uid {})", nix::unistd::getuid())), "{}", order.by);
    assert_eq!((order.kind, order.lasts), (OrderKind::Drain, Some(Duration::from_mins(1))));
    reply.send(Outcome::refused("no")).expect("the server waits");
    let answer = client.await.expect("no panic").expect("answers");
    assert_eq!(answer, Answer::Outcome { outcome: Outcome::refused("no") });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_nobody_takes_has_failed() {
    let mut stage = Stage::new();
    stage.commands.close();
    let answer = stage.client(|mut client| client.ask(Ask::Reload { dry_run: false })).await.expect("answers");
    assert_eq!(answer, Answer::Outcome { outcome: Outcome::failed("the daemon ended before it was done") });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_gets_the_past_and_the_future() {
    let stage = Stage::new();
    let event = |time_ns| EventLine { time_ns, ..EventLine::default() };
    stage.events.push(event(1));
    stage.events.push(event(2));
    let events = stage.events.clone();
    let seen = stage
        .client(move |mut client| {
            let mut seen = Vec::new();
            let followed = client.events(2, true, |answer| {
                match answer {
                    Answer::Event { event } => seen.push(event.time_ns),
                    Answer::Kept { .. } => events.push(event(3)),
                    other => panic!("{other:?}"),
                }
                seen.last() != Some(&3)
            });
            followed.expect("follows");
            seen
        })
        .await;
    assert_eq!(seen, [2, 3]);
}

/// Whatever comes, the answer is an error line or a closed connection, and the server goes on.
#[tokio::test(flavor = "multi_thread")]
async fn nonsense_is_answered_and_harms_nobody() {
    let stage = Stage::new();
    let deep = [b"{\"v\":1,\"ask\":".to_vec(), b"[".repeat(60_000), b"\n".to_vec()].concat();
    let table: [(&str, Vec<u8>, &str); 8] = [
        ("no JSON", b"status\n".to_vec(), "not a request"),
        ("no object", b"7\n".to_vec(), "not a request"),
        ("not UTF-8", b"\xff\xfe{}\n".to_vec(), "not a request"),
        ("no such question", b"{\"v\":1,\"ask\":\"fly\"}\n".to_vec(), "not understood"),
        ("a wrong type", b"{\"v\":1,\"ask\":\"events\",\"since_ns\":\"x\"}\n".to_vec(), "not understood"),
        ("another version", b"{\"v\":9,\"ask\":\"ping\"}\n".to_vec(), "version 1"),
        ("deep nesting", deep, "not a request"),
        ("an endless line", vec![b'x'; REQUEST_BYTES_MAX + 1], "at most 65536 bytes"),
    ];
    for (name, bytes, wanted) in table {
        let line = stage.raw(bytes).await;
        let reply: Reply = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{name}: {error}: {line}"));
        assert!(matches!(&reply.answer, Answer::Error { message } if message.contains(wanted)), "{name}: {line}");
    }
    let pong = stage.client(|mut client| client.ask(Ask::Ping)).await.expect("still answers");
    assert!(matches!(pong, Answer::Pong { pid, .. } if pid == std::process::id()));
}

/// More clients than places, none of which says a word, still leave the rest served once they go.
#[tokio::test(flavor = "multi_thread")]
async fn silent_clients_do_not_hold_the_daemon() {
    let stage = Stage::new();
    let silent: Vec<_> = (0..CLIENTS_MAX - 1).map(|_| Blocking::connect(stage.path()).expect("connects")).collect();
    let pong = stage.client(|mut client| client.ask(Ask::Ping)).await;
    assert!(pong.is_ok(), "{pong:?}");
    drop(silent);
}

#[test]
fn nobody_there_and_nobody_allowed_are_told_apart() {
    let gone = Client::connect(Path::new("/nonexistent/control.sock")).expect_err("nobody listens");
    assert!(!gone.is_reachable());
    assert_eq!(gone.to_string(), "no sluice daemon listens on /nonexistent/control.sock");
}
