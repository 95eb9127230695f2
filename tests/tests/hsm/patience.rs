//! Waiting that leaves the two cores to those who are waited for: forty scenes look at the same time.

use std::thread;
use std::time::Duration;

use anyhow::Result;

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(40);

/// [`lab::wait_until`] that looks less often.
pub(crate) fn wait_until(what: &str, limit: Duration, mut done: impl FnMut() -> bool) -> Result<()> {
    wait_for(what, limit, || done().then_some(()))
}

/// [`lab::wait_for`] that looks less often.
pub(crate) fn wait_for<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Option<T>) -> Result<T> {
    let mut is_first = true;
    lab::wait_for(what, limit, || {
        if !std::mem::take(&mut is_first) {
            thread::park_timeout(LOOK);
        }
        look()
    })
}
