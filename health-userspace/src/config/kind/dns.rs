//! `dns`: what is asked, and what must be answered.

use super::{Out, Section};
use crate::config::{
    read::At,
    resolved::{text, texts},
};
use hickory_proto::rr::{Name, RecordType};
use std::str::FromStr as _;

/// A DNS check, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsCheck {
    /// Whose records; always absolute.
    pub query: Name,
    /// Which of them. Default A.
    pub record: RecordType,
    /// How to ask. Default UDP; an answer that was cut off is asked for again over TCP.
    pub transport: Transport,
    /// Data that must be among the answers, as `dig +short` writes it. Empty: any record of that type will do.
    pub answer: Vec<String>,
}

/// What questions travel in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// A datagram.
    Udp,
    /// A connection.
    Tcp,
}

const TRANSPORTS: &[(&str, Transport)] = &[("udp", Transport::Udp), ("tcp", Transport::Tcp)];

pub(super) fn read(section: &Section<'_>, check: &str) -> DnsCheck {
    let query = query(section, check);
    let record = section.text("record", "A").and_then(|At { value, at }| {
        // `ANY` and transfers are no health questions: servers refuse the one and are busy for minutes with the other.
        let meta = [RecordType::ANY, RecordType::AXFR, RecordType::IXFR, RecordType::OPT];
        let known = RecordType::from_str(&value.to_ascii_uppercase()).ok().filter(|record| !meta.contains(record));
        if known.is_none() {
            let message = format!("`record` cannot be \"{}\"", value.escape_debug());
            section.sink().error(at, message, "write a type of record, such as A, AAAA, MX, NS, SOA or TXT");
        }
        known
    });
    let answer = match section.get("answer").map(|value| value.get_ref().as_str()) {
        None => Vec::new(),
        Some(Some(one)) => vec![one.to_owned()],
        Some(None) => {
            let list = section.texts("answer", "192.0.2.1").unwrap_or_default();
            list.into_iter().map(|one| one.value.to_owned()).collect()
        }
    };
    DnsCheck {
        query,
        record: record.unwrap_or(RecordType::A),
        transport: section.choice("transport", TRANSPORTS).unwrap_or(Transport::Udp),
        answer,
    }
}

fn query(section: &Section<'_>, check: &str) -> Name {
    let example = "write, for example, query = \"shop.example.\"";
    let Some(At { value, at }) = section.text("query", "shop.example.") else {
        if section.get("query").is_none() {
            section.sink().error(section.at(), format!("check `{check}` has no query"), example);
        }
        return Name::root();
    };
    let read = if value.is_empty() { None } else { Name::from_ascii(value).ok() };
    let Some(mut name) = read else {
        let message = format!("`query` cannot be \"{}\"", value.escape_debug());
        section.sink().error(at, message, example);
        return Name::root();
    };
    name.set_fqdn(true);
    name
}

impl DnsCheck {
    pub(super) fn write(&self, out: &mut Out) {
        let transport = TRANSPORTS.iter().find(|(_, transport)| *transport == self.transport);
        out.key("query", text(&self.query.to_ascii()));
        out.key("record", text(&self.record.to_string()));
        out.key("transport", text(transport.map_or("", |(word, _)| word)));
        if !self.answer.is_empty() {
            out.key("answer", texts(&self.answer));
        }
    }
}
