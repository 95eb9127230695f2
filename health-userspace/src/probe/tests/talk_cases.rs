//! `tcp` that talks, `dns` and `grpc` against byte-exact servers.

use super::*;
use hickory_proto::{
    op::{Message, MessageType, ResponseCode},
    rr::{Name, RData, Record, rdata::A},
};
use hyper::{HeaderMap, Response};
use tokio::net::UdpSocket;

/// Answers each line that comes with the same in capitals, in two pieces.
async fn shouting() -> SocketAddr {
    let (listener, address) = listen().await;
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut line = Vec::new();
                while let Ok(byte) = connection.read_u8().await {
                    line.push(byte.to_ascii_uppercase());
                    if byte == b'\n' {
                        let (first, second) = line.split_at(line.len() / 2);
                        drop(connection.write_all(first).await);
                        tokio::task::yield_now().await;
                        drop(connection.write_all(second).await);
                        line.clear();
                    }
                }
            });
        }
    });
    address
}

#[tokio::test]
async fn what_is_said_and_heard_on_a_connection() {
    let shouting = shouting().await;
    let banner = greeting("220 mail.example ESMTP\r\n").await;
    let timeout_ = fail(Reason::Timeout(Layer::Application));
    let table = [
        (shouting, "send = \"ping\\r\\n\"\nexpect = [\"contains:PING\"]", Outcome::Pass),
        (shouting, "send = \"ping\\r\\n\"\nexpect = [\"exact:PING\\r\\n\"]", Outcome::Pass),
        (shouting, "send = \"ping\\r\\n\"\nexpect = [\"exact:PONG\\r\\n\"]", fail(Reason::Answer)),
        (shouting, "send = \"ping\\r\\n\"\nexpect = [\"regex:^P.NG\", \"not_regex:error\"]", Outcome::Pass),
        (shouting, "send = \"ping error\\r\\n\"\nexpect = [\"regex:R$\", \"not_regex:ERR\"]", timeout_),
        (shouting, "send = \"an error\\n\"\nexpect = [\"contains:ERROR\", \"not_regex:ERR\"]", fail(Reason::Answer)),
        (shouting, "send = \"ping\\r\\n\"\nexpect = [\"contains:PONG\"]", timeout_),
        (shouting, "send = \"ping\\r\\n\"", Outcome::Pass),
        (banner, "expect = [\"regex:^220 \"]", Outcome::Pass),
        (banner, "expect = [\"contains:421\"]", timeout_),
    ];
    for (address, lines, expected) in table {
        let finished = finished(&tcp(&format!("timeout = \"300ms\"\n{lines}")), address, None).await;
        assert_eq!(finished.outcome, expected, "{lines}: {:?}", finished.notes);
    }
    // Layers: a connection proves transport, an answer more.
    assert_eq!(tcp("expect = [\"contains:x\"]").layer, Layer::Application);
    let over = closing("HTTP/1.1 200 OK\r\n\r\n").await;
    let asks = tcp("send = \"GET / HTTP/1.0\\r\\n\\r\\n\"\nexpect = [\"contains:ready\"]");
    assert_eq!(run(&asks, over, None).await.0, fail(Reason::Answer), "the server closed, and said something else");
    let endless = greeting_for_ever().await;
    assert_eq!(
        run(&tcp("expect = [\"contains:ready\"]"), endless, None).await.0,
        fail(Reason::Answer),
        "64 KiB are enough"
    );
}

async fn greeting_for_ever() -> SocketAddr {
    let (listener, address) = listen().await;
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            tokio::spawn(async move { while connection.write_all(&[b'x'; 4096]).await.is_ok() {} });
        }
    });
    address
}

/// What a name server does with a question.
type Answers = fn(Message) -> Vec<Vec<u8>>;

fn answered(mut question: Message, code: ResponseCode, data: &[RData]) -> Message {
    question.metadata.message_type = MessageType::Response;
    question.metadata.response_code = code;
    let name = Name::from_ascii("shop.example.").expect("a name");
    for data in data {
        question.add_answer(Record::from_rdata(name.clone(), 60, data.clone()));
    }
    question
}

fn bytes(message: &Message) -> Vec<u8> {
    message.to_vec().expect("a message")
}

fn a(last: u8) -> RData {
    RData::A(A::new(192, 0, 2, last))
}

/// A name server on UDP, and on TCP at the same port if `over_tcp`.
async fn named(over_udp: Answers, over_tcp: Option<Answers>) -> SocketAddr {
    let (listener, address) = listen().await;
    let socket = UdpSocket::bind(address).await.expect("the same port");
    tokio::spawn(async move {
        let mut question = vec![0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut question).await {
            let question = Message::from_vec(&question[..length]).expect("a question");
            for answer in over_udp(question) {
                drop(socket.send_to(&answer, from).await);
            }
        }
    });
    tokio::spawn(async move {
        while let (Ok((mut connection, _)), Some(answers)) = (listener.accept().await, over_tcp) {
            let Ok(length) = connection.read_u16().await else { continue };
            let mut question = vec![0; usize::from(length)];
            connection.read_exact(&mut question).await.expect("a question");
            for answer in answers(Message::from_vec(&question).expect("a question")) {
                let length = u16::try_from(answer.len()).expect("short");
                drop(connection.write_all(&[&length.to_be_bytes()[..], &answer].concat()).await);
            }
            // Until the other side goes.
            drop(connection.read_u8().await);
        }
    });
    address
}

/// Name, status, type, body, trailers, and what they come to.
type Call = (&'static str, u16, &'static str, &'static [u8], Trailers, Outcome);

/// Names and values.
type Trailers = &'static [(&'static str, &'static str)];

const GOOD: Answers = |question| vec![bytes(&answered(question, ResponseCode::NoError, &[a(1), a(2)]))];

#[tokio::test]
async fn answers_of_name_servers() {
    let nothing: Answers = |question| vec![bytes(&answered(question, ResponseCode::NoError, &[]))];
    let absent: Answers = |question| vec![bytes(&answered(question, ResponseCode::NXDomain, &[]))];
    let servfail: Answers = |question| vec![bytes(&answered(question, ResponseCode::ServFail, &[]))];
    // Everything that is not the answer, and then the answer.
    let forged: Answers = |question| {
        let mut other = answered(question.clone(), ResponseCode::NoError, &[a(9)]);
        other.metadata.id ^= 1;
        let mut another = answered(question.clone(), ResponseCode::NoError, &[a(9)]);
        another.queries.clear();
        let echo = bytes(&question);
        vec![bytes(&other), bytes(&another), echo, b"junk".to_vec(), GOOD(question).remove(0)]
    };
    let cut: Answers = |question| {
        let mut cut = answered(question, ResponseCode::NoError, &[]);
        cut.metadata.truncation = true;
        vec![bytes(&cut)]
    };
    let silent: Answers = |_| Vec::new();
    let junk: Answers = |_| vec![b"junk".to_vec()];
    let one = "answer = \"192.0.2.1\"";
    let table: &[(&str, Answers, Option<Answers>, &str, Outcome)] = &[
        ("any", GOOD, None, "", Outcome::Pass),
        ("one of two", GOOD, None, one, Outcome::Pass),
        ("both", GOOD, None, "answer = [\"192.0.2.2\", \"192.0.2.1\"]", Outcome::Pass),
        ("another", GOOD, None, "answer = \"192.0.2.3\"", fail(Reason::Answer)),
        ("another type", GOOD, None, "record = \"AAAA\"", fail(Reason::Answer)),
        ("no record", nothing, None, "", fail(Reason::Answer)),
        ("no such name", absent, None, "", fail(Reason::Rcode(3))),
        ("the server fails", servfail, None, "", fail(Reason::Rcode(2))),
        ("forged before the answer", forged, None, one, Outcome::Pass),
        ("cut off", cut, Some(GOOD), one, Outcome::Pass),
        ("silent", silent, None, "timeout = \"200ms\"", fail(Reason::Timeout(Layer::Application))),
        ("only junk", junk, None, "timeout = \"200ms\"", fail(Reason::Timeout(Layer::Application))),
        ("over TCP", silent, Some(GOOD), "transport = \"tcp\"\nanswer = \"192.0.2.1\"", Outcome::Pass),
        ("junk over TCP", silent, Some(junk), "transport = \"tcp\"", fail(Reason::Protocol)),
    ];
    for &(name, over_udp, over_tcp, lines, expected) in table {
        let address = named(over_udp, over_tcp).await;
        let asks = check(&format!("type = \"dns\"\nquery = \"shop.example\"\n{lines}"));
        let finished = finished(&asks, address, None).await;
        assert_eq!(finished.outcome, expected, "{name}: {:?}", finished.notes);
    }
    let (listener, address) = listen().await;
    drop(listener);
    for transport in ["udp", "tcp"] {
        let asks = check(&format!("type = \"dns\"\nquery = \"shop.example\"\ntransport = \"{transport}\""));
        assert_eq!(run(&asks, address, None).await.0, fail(Reason::Refused), "{transport}");
    }
}

/// A gRPC server that answers every call with these headers, body and trailers.
async fn calls(status: u16, kind: &'static str, body: &'static [u8], trailers: Trailers) -> SocketAddr {
    let (listener, address) = listen().await;
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            tokio::spawn(async move {
                let Ok(mut connection) = h2::server::handshake(connection).await else { return };
                while let Some(Ok((request, mut reply))) = connection.accept().await {
                    assert_eq!(request.uri().path(), "/grpc.health.v1.Health/Check");
                    let head =
                        Response::builder().status(status).header("content-type", kind).body(()).expect("a head");
                    let mut stream = reply.send_response(head, false).expect("a reply");
                    drop(stream.send_data(body.into(), false));
                    let mut map = HeaderMap::new();
                    for (name, value) in trailers {
                        map.insert(*name, value.parse().expect("a value"));
                    }
                    drop(stream.send_trailers(map));
                }
            });
        }
    });
    address
}

#[tokio::test]
async fn answers_of_grpc_servers() {
    const OK: Trailers = &[("grpc-status", "0")];
    const GRPC: &str = "application/grpc+proto";
    let table: &[Call] = &[
        ("serving", 200, GRPC, &[0, 0, 0, 0, 2, 8, 1], OK, Outcome::Pass),
        ("not serving", 200, GRPC, &[0, 0, 0, 0, 2, 8, 2], OK, fail(Reason::NotServing)),
        ("unknown", 200, GRPC, &[0, 0, 0, 0, 0], OK, fail(Reason::NotServing)),
        ("a status of the future", 200, GRPC, &[0, 0, 0, 0, 2, 8, 99], OK, fail(Reason::NotServing)),
        ("no such service", 200, GRPC, &[], &[("grpc-status", "5"), ("grpc-message", "who?")], fail(Reason::Grpc(5))),
        ("no such method", 200, GRPC, &[], &[("grpc-status", "12")], fail(Reason::Grpc(12))),
        ("no status", 200, GRPC, &[0, 0, 0, 0, 2, 8, 1], &[], fail(Reason::Protocol)),
        ("cut short", 200, GRPC, &[0, 0, 0, 0, 2, 8], OK, fail(Reason::Protocol)),
        ("two messages", 200, GRPC, &[0, 0, 0, 0, 2, 8, 1, 0, 0, 0, 0, 2, 8, 1], OK, fail(Reason::Protocol)),
        ("compressed", 200, GRPC, &[1, 0, 0, 0, 2, 8, 1], OK, fail(Reason::Protocol)),
        ("nothing", 200, GRPC, &[], OK, fail(Reason::Protocol)),
        ("endless", 200, GRPC, &[0; 8192], OK, fail(Reason::Protocol)),
        ("a page", 200, "text/html", b"<html>", &[], fail(Reason::Protocol)),
        ("a proxy's error", 503, "text/html", b"busy", &[], fail(Reason::Status(503))),
    ];
    for &(name, status, kind, body, trailers, expected) in table {
        let address = calls(status, kind, body, trailers).await;
        let finished = finished(&check("type = \"grpc\"\nservice = \"shop.v1.Cart\""), address, None).await;
        assert_eq!(finished.outcome, expected, "{name}: {:?}", finished.notes);
    }
}
