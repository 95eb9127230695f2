//! What many tests share is played once, and several such plays at the same time: most of each is waiting.

use std::env;
use std::sync::{Condvar, Mutex, Once, PoisonError};
use std::thread;

use crate::{restarts, scenes, worker};

/// Plays at a time. Each starts a daemon and many workers, and waits for things that have a deadline: more of them would
/// take each other's time on two cores.
const TURNS: usize = 2;

static TAKEN: Mutex<usize> = Mutex::new(0);
static GIVEN_BACK: Condvar = Condvar::new();

/// Begins everything that tests share, unless only some tests are run: those begin what they need.
///
/// libtest runs tests in the order of their names, and all that share something wait for the first of them.
pub(crate) fn begin() {
    static BEGUN: Once = Once::new();
    if env::args().skip(1).all(|argument| argument.starts_with('-')) {
        BEGUN.call_once(|| {
            // Nobody joins them: who needs the result waits for that. The longest comes first.
            for shared in [scenes::begin, restarts::begin, worker::begin] {
                thread::spawn(shared);
            }
        });
    }
}

/// One of [`TURNS`], until it is dropped.
pub(crate) struct Turn(());

impl Turn {
    /// Waits for it.
    pub(crate) fn take() -> Self {
        let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        while *taken >= TURNS {
            taken = GIVEN_BACK.wait(taken).unwrap_or_else(PoisonError::into_inner);
        }
        *taken += 1;
        Self(())
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *TAKEN.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        GIVEN_BACK.notify_one();
    }
}
