//! `tcp`: what is said on the connection.

use super::{
    Out, Section,
    rule::{self, BodyRule},
};
use crate::config::resolved::{text, texts};

/// A TCP check, checked. Without `send` and `expect` a connection is enough.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TcpCheck {
    /// Sent as soon as the connection is there.
    pub send: Option<String>,
    /// What must come; all of it. What never ends is read up to 64 KiB.
    pub expect: Vec<BodyRule>,
}

pub(super) fn read(section: &Section<'_>, check: &str) -> TcpCheck {
    let send = section.text("send", "PING\\r\\n").map(|send| send.value.to_owned());
    let expect = rule::body_rules(section, "expect", "expect = [\"contains:PONG\"]");
    if !expect.is_empty() && expect.iter().all(|rule| matches!(rule, BodyRule::NotRegex(_))) {
        let message = format!("check `{check}`: nothing in `expect` says when enough has come");
        section.error("expect", message, "add a rule that begins with contains:, exact: or regex:");
    }
    TcpCheck { send, expect }
}

impl TcpCheck {
    pub(super) fn write(&self, out: &mut Out) {
        if let Some(send) = &self.send {
            out.key("send", text(send));
        }
        if !self.expect.is_empty() {
            out.key("expect", texts(self.expect.iter().map(ToString::to_string)));
        }
    }
}
