//! Faults at work.

use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use cryptoki_sys::CK_RV;

use crate::place;
use crate::rules::{Action, Fault};

/// How often a hanging call looks whether its rule is gone.
const LOOK: Duration = Duration::from_millis(5);

/// Sessions that this process has open, as the caller must see it: a session that was not closed counts.
pub(crate) static SESSIONS: AtomicU64 = AtomicU64::new(0);

/// How a call is to be answered otherwise than by the real module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Twist {
    /// Answered with this, and the real module isn't asked.
    pub(crate) answer: Option<CK_RV>,
    /// What is wrong with the real module's answer.
    pub(crate) wrong: Option<Wrong>,
}

/// What a rule changes in an answer, as the actions of these names say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    Corrupt,
    Lie,
    Leak,
    Huge,
}

/// Makes the call `function` through `call`, with what the rules add to it.
pub(crate) fn around(function: &str, call: impl FnOnce(Twist) -> CK_RV) -> CK_RV {
    let twist = suffer(function);
    let value = twist.answer.unwrap_or_else(|| call(twist));
    place::log(function, &format!("{value:#x}"), SESSIONS.load(Ordering::Relaxed));
    value
}

/// Lets every rule for `function` strike that is due.
pub(crate) fn suffer(function: &str) -> Twist {
    let mut twist = Twist::default();
    for fault in place::rules().faults.iter().filter(|fault| fault.concerns(function)) {
        if twist.answer.is_none() && place::strikes(fault) {
            strike(function, fault, &mut twist);
        }
    }
    twist
}

fn strike(function: &str, fault: &Fault, twist: &mut Twist) {
    let note = |what: &str| place::log(function, what, SESSIONS.load(Ordering::Relaxed));
    match fault.action {
        Action::Return(value) => twist.answer = Some(value),
        Action::Hang => {
            note("hang");
            while place::rules().faults.iter().any(|present| present.id == fault.id) {
                thread::sleep(LOOK);
            }
        }
        Action::HardHang => {
            note("hardhang");
            hang_hard();
        }
        Action::Delay(time) => thread::sleep(time),
        Action::Segv => {
            note("segv");
            die_of(libc::SIGSEGV);
        }
        Action::Abort => {
            note("abort");
            std::process::abort();
        }
        Action::Exit(code) => {
            note("exit");
            std::process::exit(code);
        }
        Action::Stdout => println!("fault-module: {function}, on standard output as if nobody used it"),
        Action::Corrupt => twist.wrong = Some(Wrong::Corrupt),
        Action::Lie => twist.wrong = Some(Wrong::Lie),
        Action::Leak => twist.wrong = Some(Wrong::Leak),
        Action::Huge => twist.wrong = Some(Wrong::Huge),
    }
}

/// Never returns, deaf to signals, and every later call waits, too.
fn hang_hard() -> ! {
    static LOCK: Mutex<()> = Mutex::new(());
    // SAFETY: an all-zero signal set is a valid value of this plain data type.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is ours and writable.
    unsafe { libc::sigfillset(&raw mut all) };
    // SAFETY: the set is filled; the former mask is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, ptr::null_mut()) };
    let _held = LOCK.lock();
    loop {
        thread::sleep(Duration::from_hours(1));
    }
}

/// Ends the process by a signal, whatever handler Rust's runtime has for it.
fn die_of(signal: libc::c_int) {
    // SAFETY: the default handler is always a valid one.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
    // SAFETY: raising a signal in the own thread touches no memory.
    unsafe { libc::raise(signal) };
}
