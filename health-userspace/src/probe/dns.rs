//! `dns`: a name server answers a question.
//!
//! Messages are written and read by hickory; what counts as this round's answer is decided here.

use super::{
    failure,
    kind::{Probe, Setting},
    socket::Sockets,
    trace::Trace,
};
use crate::config::{DnsCheck, Transport};
use futures_util::future::{BoxFuture, FutureExt};
use health_core::model::{Layer, Outcome, Reason};
use hickory_proto::{
    op::{Message, MessageType, OpCode, Query, ResponseCode},
    rr::RData,
};
use socket2::{Protocol, Type};
use std::{io, net::SocketAddr};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UdpSocket,
};
use tokio_rustls::rustls::crypto::ring;

/// Longest datagram that is read. No size is offered (EDNS), so servers send at most 512 bytes (RFC 1035 §4.2.1).
const DATAGRAM_MAX: usize = 4096;

/// A check made ready to be run against one origin.
pub(super) struct DnsProbe {
    address: SocketAddr,
    sockets: Sockets,
    check: DnsCheck,
}

/// What a message is to a question.
#[derive(Debug)]
enum Heard {
    /// Its answer.
    Answer(Box<Message>),
    /// Its answer, cut off: to be asked for over TCP.
    CutOff,
    /// Something else: forged, late or broken.
    Other,
}

impl DnsProbe {
    pub(super) fn new(check: &DnsCheck, setting: Setting<'_>) -> Self {
        Self { address: setting.address, sockets: setting.sockets.clone(), check: check.clone() }
    }

    async fn round(&self, trace: &mut Trace) -> Result<Outcome, Outcome> {
        let (question, bytes) = self.question().map_err(|error| explained(&error, trace))?;
        if self.check.transport == Transport::Udp {
            trace.begin("query", Layer::Application);
            let answer = self.over_udp(&question, &bytes).await.map_err(|error| explained(&error, trace))?;
            if let Some(answer) = answer {
                return Ok(self.judge(&answer, trace));
            }
        }
        let mut connection = self.sockets.open(self.address, trace).await?;
        trace.begin("query", Layer::Application);
        let exchange = async {
            let length = u16::try_from(bytes.len()).map_err(io::Error::other)?;
            connection.write_all(&[&length.to_be_bytes()[..], &bytes].concat()).await?;
            let mut answer = vec![0; usize::from(connection.read_u16().await?)];
            connection.read_exact(&mut answer).await?;
            io::Result::Ok(answer)
        };
        let answer = exchange.await.map_err(|error| explained(&error, trace))?;
        match heard(&answer, &question) {
            Heard::Answer(answer) => Ok(self.judge(&answer, trace)),
            Heard::CutOff | Heard::Other => {
                trace.explain("what came is no answer to the question");
                Err(Outcome::Fail(Reason::Protocol))
            }
        }
    }

    /// A question with an id that nobody can guess, and its bytes.
    fn question(&self) -> io::Result<(Message, Vec<u8>)> {
        let mut id = [0; 2];
        let filled = ring::default_provider().secure_random.fill(&mut id);
        filled.map_err(|_no_entropy| io::Error::from_raw_os_error(libc::ENOMEM))?;
        let mut message = Message::new(u16::from_be_bytes(id), MessageType::Query, OpCode::Query);
        message.metadata.recursion_desired = true;
        message.add_query(Query::query(self.check.query.clone(), self.check.record));
        let bytes = message.to_vec().map_err(io::Error::other)?;
        Ok((message, bytes))
    }

    /// `None`: the answer was cut off.
    async fn over_udp(&self, question: &Message, bytes: &[u8]) -> io::Result<Option<Box<Message>>> {
        let socket = self.sockets.datagrams(self.address, Type::DGRAM, Protocol::UDP)?;
        let socket = UdpSocket::from_std(socket.into())?;
        socket.send(bytes).await?;
        let mut datagram = vec![0; DATAGRAM_MAX];
        loop {
            let length = socket.recv(&mut datagram).await?;
            // What is not the answer may be a forger's; the answer is still awaited.
            match heard(&datagram[..length], question) {
                Heard::Answer(answer) => return Ok(Some(answer)),
                Heard::CutOff => return Ok(None),
                Heard::Other => {}
            }
        }
    }

    fn judge(&self, answer: &Message, trace: &mut Trace) -> Outcome {
        let code = answer.metadata.response_code;
        if code != ResponseCode::NoError {
            trace.explain(format!("{code} for {} {}", self.check.query, self.check.record));
            return Outcome::Fail(Reason::Rcode(u16::from(code)));
        }
        let of_type = answer.answers.iter().filter(|record| record.record_type() == self.check.record);
        let data: Vec<String> = of_type.map(|record| words(&record.data)).collect();
        let same = |wanted: &String, found: &String| normal(wanted) == normal(found);
        let missing = self.check.answer.iter().find(|wanted| !data.iter().any(|found| same(wanted, found)));
        if data.is_empty() {
            trace.explain(format!("no record of type {} for {}", self.check.record, self.check.query));
            Outcome::Fail(Reason::Answer)
        } else if let Some(missing) = missing {
            trace.explain(format!("answers are {}, expected {missing}", data.join(", ")));
            Outcome::Fail(Reason::Answer)
        } else {
            Outcome::Pass
        }
    }
}

/// What these bytes are to the question.
fn heard(bytes: &[u8], question: &Message) -> Heard {
    let Ok(message) = Message::from_vec(bytes) else { return Heard::Other };
    let ours = message.metadata.id == question.metadata.id
        && message.metadata.message_type == MessageType::Response
        && message.queries == question.queries;
    match (ours, message.metadata.truncation) {
        (false, _) => Heard::Other,
        (true, true) => Heard::CutOff,
        (true, false) => Heard::Answer(Box::new(message)),
    }
}

/// Data as `dig +short` writes it.
fn words(data: &RData) -> String {
    match data {
        RData::TXT(text) => text.txt_data.iter().map(|part| String::from_utf8_lossy(part)).collect(),
        other => other.to_string(),
    }
}

/// Names don't differ by capitals nor by the final dot; texts may be quoted.
fn normal(data: &str) -> String {
    data.trim().trim_matches('"').trim_end_matches('.').to_ascii_lowercase()
}

fn explained(error: &io::Error, trace: &mut Trace) -> Outcome {
    trace.explain(error.to_string());
    failure::of_io(error, Layer::Application)
}

impl Probe for DnsProbe {
    fn run<'a>(&'a mut self, trace: &'a mut Trace) -> BoxFuture<'a, Outcome> {
        async { self.round(trace).await.unwrap_or_else(|ended| ended) }.boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hickory_proto::rr::{Name, RecordType};
    use proptest::prelude::*;

    proptest! {
        /// Nothing but a response with our id and question is heard, however a datagram was made.
        #[test]
        fn any_bytes_are_no_answer_unless_they_quote_the_question(
            mut bytes in prop::collection::vec(any::<u8>(), 0..80),
            flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            from_ours: bool,
        ) {
            let mut question = Message::new(0x1234, MessageType::Query, OpCode::Query);
            question.add_query(Query::query(Name::from_ascii("shop.example.").expect("a name"), RecordType::A));
            if from_ours {
                let mut answer = question.clone();
                answer.metadata.message_type = MessageType::Response;
                bytes = answer.to_vec().expect("a message");
                prop_assert!(matches!(heard(&bytes, &question), Heard::Answer(_)));
                for (at, bits) in flips {
                    let at = at.index(bytes.len());
                    bytes[at] ^= bits;
                }
            }
            if let Heard::Answer(_) | Heard::CutOff = heard(&bytes, &question) {
                prop_assert_eq!(&bytes[..2], &[0x12, 0x34]);
                prop_assert!(bytes[2] & 0x80 != 0, "a question");
                prop_assert!(bytes[12..].to_ascii_lowercase().starts_with(b"\x04shop\x07example"));
            }
        }
    }
}
