//! Open-loop load: new connections at a fixed rate, whatever happens to the ones before.
//!
//! One thread with epoll, so that it keeps its pace on a machine with two busy cores. A generator that is late would
//! blame the origin for its own trouble, so every record says how late its start was.

mod engine;

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Result, anyhow};
use serde::Serialize;

use crate::addr::CLIENTS;
use crate::ns::Namespace;

/// What each connection asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Method {
    /// A request that may be repeated.
    #[serde(rename = "GET")]
    Get,
    /// One that may not.
    #[serde(rename = "POST")]
    Post,
}

/// The load of one run.
#[derive(Clone, Copy, Debug)]
pub struct LoadOptions {
    /// Where all connections go.
    pub target: SocketAddr,
    /// The addresses that take turns as the source; none leaves it to the kernel.
    pub sources: Option<[IpAddr; CLIENTS]>,
    /// New connections per second, evenly spaced.
    pub per_second: u32,
    /// The request.
    pub method: Method,
    /// For the whole exchange, connect included.
    pub limit: Duration,
}

impl LoadOptions {
    /// The load of the figures: 500 connections per second, one GET each, 5 s.
    #[must_use]
    pub const fn figures(target: SocketAddr) -> Self {
        Self { target, sources: None, per_second: 500, method: Method::Get, limit: Duration::from_secs(5) }
    }
}

/// How one exchange ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A complete answer with status 2xx.
    Ok,
    /// The connect was refused.
    Refused,
    /// RST after the handshake.
    Reset,
    /// Closed in order, but before the answer was complete.
    Closed,
    /// Not finished within the limit.
    Timeout,
    /// A complete answer with another status.
    Status(u16),
    /// Another error of the socket.
    Errno(i32),
}

impl Outcome {
    /// Whether the client had what it wanted.
    #[must_use]
    pub const fn is_ok(self) -> bool {
        matches!(self, Self::Ok)
    }

    /// Whether it says something about this machine rather than an origin: no descriptors, ports or memory.
    #[must_use]
    pub const fn is_local(self) -> bool {
        use libc::{EADDRNOTAVAIL, EMFILE, ENFILE, ENOBUFS, ENOMEM};
        matches!(self, Self::Errno(EADDRNOTAVAIL | EMFILE | ENFILE | ENOBUFS | ENOMEM))
    }
}

/// One connection of the load. All stamps are [`crate::now_ns`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Just before the socket was made.
    pub start_ns: u64,
    /// How long after its time the connection was started.
    pub late_ns: u64,
    /// The socket's own port; 0 when it never had one.
    pub local_port: u16,
    /// How long the handshake took, if it ended.
    pub connect_ns: Option<u64>,
    /// Until the answer was complete, or the failure was known.
    pub total_ns: u64,
    /// First letter of `X-Origin`, if there was an answer.
    pub origin: Option<char>,
    /// How it ended.
    pub outcome: Outcome,
}

impl Record {
    /// When the answer was complete, or the failure known.
    #[must_use]
    pub const fn end_ns(&self) -> u64 {
        self.start_ns + self.total_ns
    }

    /// When the handshake ended.
    #[must_use]
    pub fn connected_ns(&self) -> Option<u64> {
        self.connect_ns.map(|took| self.start_ns + took)
    }
}

/// What the thread that runs the load shall do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Order {
    Run,
    /// Start no more; end when the open ones have.
    Finish,
    /// End now.
    Abort,
}

#[derive(Debug)]
struct Shared {
    order: AtomicU8,
    records: Mutex<Vec<Record>>,
}

impl Shared {
    fn order(&self, order: Order) {
        self.order.store(order as u8, Ordering::Relaxed);
    }

    fn is(&self, order: Order) -> bool {
        self.order.load(Ordering::Relaxed) == order as u8
    }

    fn records(&self) -> MutexGuard<'_, Vec<Record>> {
        // A record is pushed whole or not at all, so a poisoned list is still good.
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running load. Ends on drop.
#[derive(Debug)]
pub struct Load {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Load {
    /// Starts the load from inside `ns`.
    ///
    /// # Errors
    ///
    /// When the thread cannot be had.
    pub fn start(ns: &Namespace, options: LoadOptions) -> Result<Self> {
        let shared = Arc::new(Shared { order: AtomicU8::new(Order::Run as u8), records: Mutex::default() });
        let inside = Arc::clone(&shared);
        let thread = ns.thread("load", move || engine::run(&options, &inside))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Looks at the records of all connections that have ended, in the order of their ends.
    pub fn look<T>(&self, look: impl FnOnce(&[Record]) -> T) -> T {
        look(&self.shared.records())
    }

    /// Copies the records that `wanted` picks.
    #[must_use]
    pub fn pick(&self, wanted: impl Fn(&Record) -> bool) -> Vec<Record> {
        self.look(|all| all.iter().copied().filter(wanted).collect())
    }

    /// Whether the generator still runs. If it does not, [`Self::finish`] says why.
    #[must_use]
    pub fn runs(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Starts no more connections, waits for the open ones, and returns all records.
    ///
    /// # Errors
    ///
    /// Why the generator broke, if it did.
    pub fn finish(mut self) -> Result<Vec<Record>> {
        self.shared.order(Order::Finish);
        if let Some(thread) = self.thread.take() {
            thread.join().map_err(|_panic| anyhow!("the load's thread panicked"))??;
        }
        Ok(std::mem::take(&mut *self.shared.records()))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.order(Order::Abort);
        self.thread.take().map(|thread| thread.join().ok());
    }
}
