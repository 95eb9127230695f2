//! Requests and replies.

use crate::report::{EventLine, StatusReport};
use serde::{Deserialize, Serialize};

/// Version of this protocol. Another one is answered with an error that names both.
pub const VERSION: u16 = 1;

/// Longest request that a server takes. Unit: bytes.
pub const REQUEST_BYTES_MAX: usize = 64 * 1024;

/// Longest reply that a client takes, 10 000 origins being about 6 MiB. Unit: bytes.
pub const REPLY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// One line from a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// [`VERSION`].
    pub v: u16,
    /// What is asked.
    #[serde(flatten)]
    pub ask: Ask,
}

/// What may be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Ask {
    /// Who are you? Answered with [`Answer::Pong`].
    Ping,
    /// Answered with [`Answer::Status`].
    Status,
    /// Answered with [`Answer::Event`]s, then [`Answer::Kept`]; with `follow`, then with what comes, without end.
    Events {
        /// Only events at or after this wall clock time. Unit: ns since the epoch.
        #[serde(default)]
        since_ns: u64,
        /// Go on with new ones.
        #[serde(default)]
        follow: bool,
    },
    /// Answered with [`Answer::Outcome`].
    Origin {
        /// Name of the service.
        service: String,
        /// Name of the origin.
        origin: String,
        /// What to do with it.
        order: OrderKind,
        /// Why, in the operator's words.
        #[serde(default)]
        reason: String,
        /// When it ends by itself. Unit: ms from now.
        #[serde(default)]
        for_ms: Option<u64>,
    },
    /// Answered with [`Answer::Outcome`].
    Failback {
        /// Name of the service.
        service: String,
        /// What is to become of its way back.
        what: FailbackKind,
        /// Why, in the operator's words.
        #[serde(default)]
        reason: String,
    },
    /// Answered with [`Answer::Outcome`].
    Reload {
        /// Only say what would change.
        #[serde(default)]
        dry_run: bool,
    },
    /// Remove programs and pins, and end. Answered with [`Answer::Outcome`].
    Detach {
        /// Steer nothing new and wait this long for redirected flows to end. Unit: ms.
        #[serde(default)]
        drain_ms: Option<u64>,
        /// Cut redirected flows.
        #[serde(default)]
        force: bool,
    },
}

/// Orders about an origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OrderKind {
    /// `maintenance`: no new flows, established ones stay.
    Drain,
    /// `fault`, whatever the evidence says.
    Fail,
    /// The order ends, and so do trip, fault and hold-down.
    Clear,
}

/// Orders about the way back of a service's origins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailbackKind {
    /// It may go on.
    Approve,
    /// It stays where it is.
    Hold,
    /// It ends: in fault again.
    Abort,
}

/// One line from the daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// [`VERSION`].
    pub v: u16,
    /// What is answered.
    #[serde(flatten)]
    pub answer: Answer,
}

/// What may be answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// The daemon is here.
    Pong {
        /// Its process.
        pid: u32,
        /// Its version.
        version: String,
    },
    /// The state of things.
    Status {
        /// As the daemon last read it back.
        status: Box<StatusReport>,
    },
    /// One event.
    Event {
        /// The event.
        event: EventLine,
    },
    /// All events that are kept have been sent.
    Kept {
        /// Events that never reached the daemon's memory, since its start.
        lost: u64,
        /// Older events that it no longer holds.
        forgotten: u64,
    },
    /// A follower was too slow, and these many events are missing for it.
    Missed {
        /// How many.
        missed: u64,
    },
    /// Nothing has happened for a while; a follower hears it, so that both sides know that the other is there.
    Quiet,
    /// A command has ended.
    Outcome {
        /// How.
        outcome: Outcome,
    },
    /// The request was not understood.
    Error {
        /// Why.
        message: String,
    },
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// In one word.
    pub code: OutcomeCode,
    /// In sentences, one a line.
    pub message: String,
}

/// How a command ended, in one word; each is an exit code of the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutcomeCode {
    /// As asked.
    Done,
    /// Not done, because it can't be: no such origin, a write failed.
    Failed,
    /// Not done, because a rule forbids it.
    Refused,
    /// Not done, because the configuration is bad; what ran before goes on.
    BadConfig,
}

impl Request {
    /// A request of this version.
    #[must_use]
    pub const fn new(ask: Ask) -> Self {
        Self { v: VERSION, ask }
    }
}

impl Reply {
    /// A reply of this version.
    #[must_use]
    pub const fn new(answer: Answer) -> Self {
        Self { v: VERSION, answer }
    }
}

impl Outcome {
    /// Done as asked.
    #[must_use]
    pub fn done(message: impl Into<String>) -> Self {
        Self { code: OutcomeCode::Done, message: message.into() }
    }

    /// It could not be done.
    #[must_use]
    pub fn failed(message: impl Into<String>) -> Self {
        Self { code: OutcomeCode::Failed, message: message.into() }
    }

    /// A rule forbids it.
    #[must_use]
    pub fn refused(message: impl Into<String>) -> Self {
        Self { code: OutcomeCode::Refused, message: message.into() }
    }

    /// The configuration is bad.
    #[must_use]
    pub fn bad_config(message: impl Into<String>) -> Self {
        Self { code: OutcomeCode::BadConfig, message: message.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The wire format is what scripts may speak by hand; it changes only with [`VERSION`].
    #[test]
    fn requests_look_like_this() {
        let table = [
            (Ask::Ping, r#"{"v":1,"ask":"ping"}"#),
            (Ask::Events { since_ns: 5, follow: true }, r#"{"v":1,"ask":"events","since_ns":5,"follow":true}"#),
            (
                Ask::Origin {
                    service: "shop".into(),
                    origin: "a".into(),
                    order: OrderKind::Drain,
                    reason: "disk swap".into(),
                    for_ms: Some(1),
                },
                r#"{"v":1,"ask":"origin","service":"shop","origin":"a","order":"drain","reason":"disk swap","for_ms":1}"#,
            ),
            (Ask::Reload { dry_run: true }, r#"{"v":1,"ask":"reload","dry_run":true}"#),
        ];
        for (ask, text) in table {
            let request = Request::new(ask);
            assert_eq!(serde_json::to_string(&request).expect("serialises"), text);
            assert_eq!(serde_json::from_str::<Request>(text).expect("parses"), request);
        }
    }

    #[test]
    fn what_may_be_left_out_has_a_default() {
        let events: Request = serde_json::from_str(r#"{"v":1,"ask":"events"}"#).expect("parses");
        assert_eq!(events.ask, Ask::Events { since_ns: 0, follow: false });
    }
}
