//! The kernel's events, as something to wait for.

use std::io;

use aya::{
    Ebpf,
    maps::{MapData, RingBuf},
};
use aya_log::EbpfLogger;
use health_common::event::Event;
use tokio::io::unix::AsyncFd;

/// Events read at once, so that a storm of them does not hold the loop.
const AT_ONCE: usize = 1024;

/// The ring buffer.
pub struct Ring {
    ring: AsyncFd<RingBuf<MapData>>,
}

impl Ring {
    pub(super) fn new(ring: RingBuf<MapData>) -> io::Result<Self> {
        // SAFETY: the ring owns its descriptor, never exchanges it, and lives as long as the registration.
        Ok(Self { ring: unsafe { AsyncFd::register(ring)? } })
    }

    /// Waits for events. Cancel safe: what was not returned stays in the ring.
    ///
    /// # Errors
    ///
    /// The descriptor can't be waited for.
    pub async fn read(&mut self) -> io::Result<Vec<Event>> {
        loop {
            let mut ready = self.ring.readable_mut().await?;
            let ring = ready.get_inner_mut();
            let mut events = Vec::new();
            while events.len() < AT_ONCE
                && let Some(item) = ring.next()
            {
                if item.len() == size_of::<Event>() {
                    // SAFETY: the kernel half wrote an `Event`, whose every bit pattern is a value; the buffer need not be
                    // aligned.
                    events.push(unsafe { item.as_ptr().cast::<Event>().read_unaligned() });
                }
            }
            if events.len() < AT_ONCE {
                ready.clear_ready();
            }
            if !events.is_empty() {
                return Ok(events);
            }
        }
    }
}

/// Passes the kernel half's log lines on, at debug level only. Within a runtime only.
pub(super) fn spawn_logger(ebpf: &mut Ebpf) {
    if !tracing::enabled!(tracing::Level::DEBUG) {
        return;
    }
    let logger = match EbpfLogger::init(ebpf) {
        Ok(logger) => logger,
        Err(error) => return tracing::debug!(%error, "the kernel half has no log"),
    };
    // SAFETY: as in `Ring::new`.
    let Ok(mut logger) = (unsafe { AsyncFd::register(logger) }) else { return };
    tokio::spawn(async move {
        while let Ok(mut ready) = logger.readable_mut().await {
            ready.get_inner_mut().flush();
            ready.clear_ready();
        }
    });
}
