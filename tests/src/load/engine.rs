//! The loop: start what is due, move what is ready, end what is overdue.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::time::Duration;

use anyhow::Result;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, socket};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use super::{LoadOptions, Method, Order, Outcome, Record, Shared};
use crate::clock::now_ns;

/// Shortest time between two wake-ups; above 1,000 connections a second several start at once.
const TICK_MIN: Duration = Duration::from_millis(1);
/// epoll's name for the timer; all others are slots.
const TIMER: u64 = u64::MAX;
/// Longest head of an answer that is looked at.
const ANSWER_MAX: usize = 16_384;

/// Where a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Connecting,
    Waiting,
    /// Recorded; only the orderly close is still awaited, so that the server is the one to close first.
    Draining,
}

struct Conn {
    stream: TcpStream,
    phase: Phase,
    record: Record,
    answer: Vec<u8>,
}

struct Engine<'a> {
    options: &'a LoadOptions,
    epoll: Epoll,
    slots: Vec<Option<Conn>>,
    free: Vec<usize>,
    /// Deadline, slot, and the start that tells whether the slot still holds the same connection.
    deadlines: VecDeque<(u64, usize, u64)>,
    ended: Vec<Record>,
    /// Connections so far: whose turn it is among the sources.
    started: usize,
}

/// Runs until told to end.
pub(super) fn run(options: &LoadOptions, shared: &Shared) -> Result<()> {
    go_first();
    let interval = Duration::from_secs(1) / options.per_second.max(1);
    let interval_ns = u64::try_from(interval.as_nanos())?;
    let mut engine = Engine {
        options,
        epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
        slots: Vec::new(),
        free: Vec::new(),
        deadlines: VecDeque::new(),
        ended: Vec::new(),
        started: 0,
    };
    let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC)?;
    let tick = TimeSpec::from_duration(interval.max(TICK_MIN));
    timer.set(Expiration::IntervalDelayed(tick, tick), TimerSetTimeFlags::empty())?;
    engine.epoll.add(timer.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, TIMER))?;
    let mut due_ns = now_ns();
    let mut events = vec![EpollEvent::empty(); 256];
    loop {
        let ready = match engine.epoll.wait(&mut events, EpollTimeout::NONE) {
            Err(Errno::EINTR) => 0,
            other => other?,
        };
        for event in &events[..ready] {
            if event.data() == TIMER {
                // Empties the counter; what is due is read off the clock.
                timer.wait().ok();
            } else {
                engine.advance(usize::try_from(event.data())?);
            }
        }
        while shared.is(Order::Run) && now_ns() >= due_ns {
            engine.start(due_ns)?;
            due_ns += interval_ns;
        }
        engine.expire();
        shared.records().append(&mut engine.ended);
        if shared.is(Order::Abort) || (shared.is(Order::Finish) && engine.deadlines.is_empty()) {
            return Ok(());
        }
    }
}

/// Puts this thread before all ordinary ones of a busy machine; it needs a few percent of one core. Without the right to
/// that the load may be late, and says so in its records, hence the result does not matter.
fn go_first() {
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: 0 is the calling thread, and the kernel only reads the parameter, which lives beyond the call.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const lowest) };
}

impl Engine<'_> {
    fn start(&mut self, due_ns: u64) -> Result<()> {
        let start_ns = now_ns();
        let mut record = Record {
            start_ns,
            late_ns: start_ns.saturating_sub(due_ns),
            local_port: 0,
            connect_ns: None,
            total_ns: 0,
            origin: None,
            outcome: Outcome::Timeout,
        };
        let source = self.options.sources.map(|sources| sources[self.started % sources.len()]);
        self.started += 1;
        let stream = match dial(self.options.target, source) {
            Ok(stream) => stream,
            Err(error) => {
                record.outcome = outcome_of(&error);
                record.total_ns = now_ns() - start_ns;
                self.ended.push(record);
                return Ok(());
            }
        };
        record.local_port = stream.local_addr().map_or(0, |address| address.port());
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        let wanted = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLET;
        self.epoll.add(stream.as_fd(), EpollEvent::new(wanted, u64::try_from(slot)?))?;
        let limit_ns = u64::try_from(self.options.limit.as_nanos())?;
        self.deadlines.push_back((start_ns + limit_ns, slot, start_ns));
        self.slots[slot] = Some(Conn { stream, phase: Phase::Connecting, record, answer: Vec::new() });
        Ok(())
    }

    fn advance(&mut self, slot: usize) {
        // An event of a connection that ended earlier in the same batch.
        let Some(conn) = self.slots[slot].as_mut() else { return };
        let before = conn.phase;
        let over = conn.advance(self.options.method);
        if before != Phase::Draining && (over || conn.phase == Phase::Draining) {
            self.ended.push(conn.record);
        }
        if over {
            self.close(slot);
        }
    }

    /// Ends what is overdue, and forgets the deadlines of what has ended.
    fn expire(&mut self) {
        let now = now_ns();
        while let Some(&(deadline, slot, start_ns)) = self.deadlines.front() {
            let conn = self.slots[slot].as_mut().filter(|conn| conn.record.start_ns == start_ns);
            if let Some(conn) = conn {
                if now < deadline {
                    return;
                }
                if conn.phase != Phase::Draining {
                    conn.record.total_ns = now - start_ns;
                    self.ended.push(conn.record);
                }
                self.close(slot);
            }
            self.deadlines.pop_front();
        }
    }

    fn close(&mut self, slot: usize) {
        // Closing the descriptor takes it out of the epoll set.
        self.slots[slot] = None;
        self.free.push(slot);
    }
}

impl Conn {
    /// Moves on as far as the socket allows; true when the socket is to be closed.
    fn advance(&mut self, method: Method) -> bool {
        if self.phase == Phase::Connecting {
            match self.stream.take_error() {
                Ok(None) => {}
                Ok(Some(error)) | Err(error) => return self.fail(outcome_of(&error)),
            }
            if self.stream.peer_addr().is_err() {
                return false;
            }
            self.record.connect_ns = Some(now_ns() - self.record.start_ns);
            self.phase = Phase::Waiting;
            // A request of this size fits any fresh socket's buffer whole.
            if let Err(error) = self.stream.write_all(request(method)) {
                return self.fail(outcome_of(&error));
            }
        }
        let mut piece = [0; 2048];
        loop {
            match self.stream.read(&mut piece) {
                Ok(0) => return self.end_of_stream(),
                Ok(count) => self.take(&piece[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return self.fail(outcome_of(&error)),
            }
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        if self.phase == Phase::Waiting && self.answer.len() < ANSWER_MAX {
            self.answer.extend_from_slice(bytes);
            if let Some(head) = Head::parse(&self.answer)
                && head.length.is_some_and(|length| self.answer.len() >= head.body_at + length)
            {
                self.complete(&head);
            }
        }
    }

    /// The answer is all there: that is what the user waited for.
    fn complete(&mut self, head: &Head) {
        self.record.total_ns = now_ns() - self.record.start_ns;
        self.record.origin = head.origin;
        self.record.outcome =
            if (200..300).contains(&head.status) { Outcome::Ok } else { Outcome::Status(head.status) };
        self.phase = Phase::Draining;
    }

    /// Without a length, the end of the stream completes an answer.
    fn end_of_stream(&mut self) -> bool {
        match Head::parse(&self.answer) {
            Some(head) if self.phase == Phase::Waiting && head.length.is_none() => self.complete(&head),
            _ => return self.fail(Outcome::Closed),
        }
        true
    }

    /// Notes the failure unless the answer was complete before. Always true.
    fn fail(&mut self, outcome: Outcome) -> bool {
        if self.phase != Phase::Draining {
            self.record.total_ns = now_ns() - self.record.start_ns;
            self.record.outcome = outcome;
        }
        true
    }
}

fn dial(target: SocketAddr, source: Option<IpAddr>) -> io::Result<TcpStream> {
    let family = if target.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let fd = socket(family, SockType::Stream, flags, None)?;
    if let Some(source) = source {
        bind(fd.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(source, 0)))?;
    }
    match connect(fd.as_raw_fd(), &SockaddrStorage::from(target)) {
        Ok(()) | Err(Errno::EINPROGRESS) => Ok(TcpStream::from(fd)),
        Err(error) => Err(error.into()),
    }
}

fn outcome_of(error: &io::Error) -> Outcome {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ECONNREFUSED) => Outcome::Refused,
        Some(Errno::ECONNRESET | Errno::EPIPE) => Outcome::Reset,
        Some(Errno::ETIMEDOUT) => Outcome::Timeout,
        Some(errno) => Outcome::Errno(errno as i32),
        None => Outcome::Closed,
    }
}

const fn request(method: Method) -> &'static [u8] {
    match method {
        Method::Get => b"GET / HTTP/1.1\r\nHost: lab.test\r\nConnection: close\r\n\r\n",
        Method::Post => b"POST / HTTP/1.1\r\nHost: lab.test\r\nConnection: close\r\nContent-Length: 4\r\n\r\nping",
    }
}

/// What matters of an answer's head.
struct Head {
    status: u16,
    origin: Option<char>,
    length: Option<usize>,
    body_at: usize,
}

impl Head {
    fn parse(answer: &[u8]) -> Option<Self> {
        let body_at = answer.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
        let text = std::str::from_utf8(&answer[..body_at]).ok()?;
        let status = text.split(' ').nth(1)?.parse().ok()?;
        let header = |name: &str| {
            text.lines()
                .filter_map(|line| line.split_once(':'))
                .find_map(|(key, value)| key.eq_ignore_ascii_case(name).then(|| value.trim()))
        };
        let origin = header("x-origin").and_then(|value| value.chars().next());
        let length = header("content-length").and_then(|value| value.parse().ok());
        Some(Self { status, origin, length, body_at })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_once_it_is_whole() {
        let answer = b"HTTP/1.1 200 OK\r\nX-Origin: b\r\nContent-Length: 2\r\n\r\nb\n";
        let head = Head::parse(answer).expect("whole");
        assert_eq!((head.status, head.origin, head.length, head.body_at), (200, Some('b'), Some(2), answer.len() - 2));
        assert!(Head::parse(&answer[..20]).is_none());
    }
}
