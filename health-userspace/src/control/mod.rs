//! The socket that the command line talks to.
//!
//! Line-delimited JSON over a Unix socket: one [`Request`] a line, answered by one [`Reply`] a line, or by many for
//! events. The server never trusts a line: it is bounded, parsed, and answered with an error when it isn't one of ours.
//! Whoever may open the socket may order; who did is taken from the peer's credentials, never from the request.

pub mod client;
pub mod command;
pub mod events;
pub mod protocol;
pub mod server;

pub use client::{Client, ClientError};
pub use command::{Command, OriginOrder};
pub use events::EventLog;
pub use protocol::{Answer, Ask, FailbackKind, OrderKind, Outcome, OutcomeCode, Reply, Request};
pub use server::{ControlError, Handle, Listener, Published, serve};
