//! Case P24: greetings of mail servers, byte for byte.

use super::*;
use tokio::io::{AsyncBufReadExt, BufReader};

/// What a server does in turn.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// Says this.
    Say(&'static str),
    /// Says this, a byte at a time.
    Drip(&'static str),
    /// Waits for a command that begins so.
    Expect(&'static str),
    /// Waits so many milliseconds; somebody who talks in the meantime is hung up on.
    Quiet(u64),
    /// Hangs up.
    Close,
}

use Act::{Close, Drip, Expect, Quiet, Say};

/// Serves one connection by the script; the result tells whether all of it was done.
async fn serve(script: &'static [Act]) -> (SocketAddr, tokio::task::JoinHandle<bool>) {
    let (listener, address) = listen().await;
    let done = tokio::spawn(async move {
        let (connection, _) = listener.accept().await.expect("a connection");
        connection.set_nodelay(true).expect("an option");
        let (from, mut to) = connection.into_split();
        let mut lines = BufReader::new(from).lines();
        for act in script {
            match *act {
                Say(text) => to.write_all(text.as_bytes()).await.expect("said"),
                Drip(text) => {
                    for byte in text.bytes() {
                        to.write_all(&[byte]).await.expect("said");
                        tokio::task::yield_now().await;
                    }
                }
                Expect(word) => match lines.next_line().await {
                    Ok(Some(line)) if line.starts_with(word) => {}
                    _ => return false,
                },
                Quiet(ms) => {
                    if let Ok(Ok(Some(_))) = timeout(Duration::from_millis(ms), lines.next_line()).await {
                        return false;
                    }
                }
                Close => return true,
            }
        }
        // Until the other side goes.
        while let Ok(Some(_)) = lines.next_line().await {}
        true
    });
    (address, done)
}

const SAID: &[Act] =
    &[Say("220 x\r\n"), Expect("EHLO [127.0.0.1]"), Say("250 x\r\n"), Expect("QUIT"), Say("221 bye\r\n")];

#[tokio::test]
async fn p24_smtp_greetings() {
    let answer = fail(Reason::Reply(451));
    let table: &[(&str, &'static [Act], Outcome)] = &[
        ("220 x", SAID, Outcome::Pass),
        (
            "many lines",
            &[
                Say("220-a\r\n220-b\r\n220 c\r\n"),
                Expect("EHLO"),
                Say("250-x\r\n250-SIZE 1\r\n250 HELP\r\n"),
                Expect("QUIT"),
                Say("221\r\n"),
            ],
            Outcome::Pass,
        ),
        ("the bare code", &[Say("220\r\n"), Expect("EHLO"), Say("250\r\n"), Expect("QUIT"), Close], Outcome::Pass),
        (
            "a byte at a time",
            &[Drip("220-a\r\n220 b\r\n"), Expect("EHLO"), Drip("250 x\r\n"), Expect("QUIT"), Say("221\r\n")],
            Outcome::Pass,
        ),
        (
            "late, and hangs up on early talkers",
            &[Quiet(700), Say("220 x\r\n"), Expect("EHLO"), Say("250 x\r\n"), Expect("QUIT"), Say("221\r\n")],
            Outcome::Pass,
        ),
        ("busy, and told nothing more", &[Say("451 busy\r\n"), Quiet(50), Close], answer),
        ("no", &[Say("554 no\r\n")], fail(Reason::Reply(554))),
        (
            "older than EHLO",
            &[
                Say("220 x\r\n"),
                Expect("EHLO"),
                Say("502 what\r\n"),
                Expect("HELO"),
                Say("250 x\r\n"),
                Expect("QUIT"),
                Say("221\r\n"),
            ],
            Outcome::Pass,
        ),
        (
            "refuses both",
            &[Say("220 x\r\n"), Expect("EHLO"), Say("502 no\r\n"), Expect("HELO"), Say("550 no\r\n")],
            fail(Reason::Reply(550)),
        ),
        ("EHLO put off", &[Say("220 x\r\n"), Expect("EHLO"), Say("451 later\r\n")], answer),
        ("hangs up at once", &[Close], fail(Reason::Protocol)),
        ("hangs up in a line", &[Say("220-a\r\n22"), Close], fail(Reason::Protocol)),
        ("another protocol", &[Say("SSH-2.0-OpenSSH_9.2\r\n")], fail(Reason::Protocol)),
        ("half a word of another", &[Say("HTTP/1.1 ")], fail(Reason::Protocol)),
    ];
    for &(name, script, expected) in table {
        let (address, done) = serve(script).await;
        let finished = finished(&check("type = \"smtp\""), address, None).await;
        assert_eq!(finished.outcome, expected, "{name}: {:?} {:?}", finished.notes, finished.steps);
        if expected == Outcome::Pass || expected == answer {
            let all = name == "EHLO put off" || done.await.expect("served");
            assert!(all, "{name}: the client did something else");
        }
        assert!(expected == Outcome::Pass || finished.notes.detail.is_some(), "{name}: unexplained");
    }
    let (address, _done) = serve(&[Quiet(3000), Say("220 x\r\n")]).await;
    let finished = finished(&check("type = \"smtp\"\ntimeout = \"300ms\""), address, None).await;
    assert_eq!(finished.outcome, fail(Reason::Timeout(Layer::Application)));
    assert_eq!(finished.steps.last().map(|step| step.name), Some("banner"));
}

#[tokio::test]
async fn p24_names_are_the_operators() {
    let named: &'static [Act] =
        &[Say("220 x\r\n"), Expect("EHLO probe.example"), Say("250 x\r\n"), Expect("QUIT"), Say("221\r\n")];
    let (address, done) = serve(named).await;
    assert_eq!(run(&check("type = \"smtp\"\nhelo = \"probe.example\""), address, None).await.0, Outcome::Pass);
    assert!(done.await.expect("served"));
}

#[tokio::test]
async fn starttls_that_is_not_offered_or_that_smuggles_is_refused() {
    let asks = check("type = \"smtp\"\nstarttls = true\ntls = { verify = false }");
    let (address, _done) = serve(&[Say("220 x\r\n"), Expect("EHLO"), Say("250-x STARTTLS\r\n250 SIZE\r\n")]).await;
    assert_eq!(run(&asks, address, None).await.0, fail(Reason::Answer), "not offered");
    let script: &'static [Act] = &[
        Say("220 x\r\n"),
        Expect("EHLO"),
        Say("250-x\r\n250 starttls\r\n"),
        Expect("STARTTLS"),
        Say("454 not now\r\n"),
    ];
    let (address, _done) = serve(script).await;
    assert_eq!(run(&asks, address, None).await.0, fail(Reason::Reply(454)), "put off");
    let script: &'static [Act] = &[
        Say("220 x\r\n"),
        Expect("EHLO"),
        Say("250-x\r\n250 STARTTLS\r\n"),
        Expect("STARTTLS"),
        Say("220 go\r\n250 x\r\n"),
    ];
    let (address, _done) = serve(script).await;
    assert_eq!(run(&asks, address, None).await.0, fail(Reason::Protocol), "more in clear text");
}
