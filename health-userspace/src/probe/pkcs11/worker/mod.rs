//! The worker: the only process that ever loads a module. The daemon starts it from its own file, by a hidden subcommand.
//!
//! Two threads. One makes all calls into the module, one after the other. The other reads the daemon's frames and ends the
//! process when the daemon has gone, even if the first never comes back from a call. No call of PKCS#11 can be cancelled;
//! only the end of the process helps, and so it must be cheap and always possible.
//!
//! It ends by `_exit` and never returns from `main`: exit handlers of C++ modules crash.

mod confine;
mod operate;
mod raw;

use super::protocol::{
    Answered, Asked, FD_PIN, FD_SLATE, FD_SOCKET, PROTOCOL, Reply, Request, read_frame, write_frame,
};
use super::slate::{Call, Slate};
use super::trouble::Trouble;
use raw::Module;
use std::{
    fs::File,
    io::Read,
    os::{
        fd::{FromRawFd, OwnedFd, RawFd},
        unix::net::UnixStream,
    },
    sync::mpsc,
};
use zeroize::Zeroizing;

/// Longest PIN that is read.
const PIN_BYTES_MAX: usize = 256;

/// The module claims to have written more than there was room for.
const STATUS_OVERRUN: i32 = 3;

/// Runs the worker on the descriptors that the daemon gave it. Never returns.
///
/// Called by hand, without those descriptors, it ends at once with status 2.
pub fn run() -> ! {
    let (Some(socket), Some(pin), Some(slate)) = (inherited(FD_SOCKET), inherited(FD_PIN), inherited(FD_SLATE)) else {
        drop(std::io::Write::write_all(
            &mut std::io::stderr(),
            b"sluice: this command is for the daemon; it needs the daemon's descriptors\n",
        ));
        exit(2)
    };
    let socket = UnixStream::from(socket);
    let Ok(reader) = socket.try_clone() else { exit(1) };
    let (asked_in, asked) = mpsc::channel();
    let mut worker = Worker {
        socket,
        pin: Some(File::from(pin)),
        slate: Some(Slate::new(File::from(slate))),
        module: None,
        confined: false,
    };
    let reading = std::thread::Builder::new().name("reader".to_owned()).stack_size(128 << 10).spawn(move || {
        read(reader, &asked_in);
        // The daemon has gone, or says what it must not: there is nobody to work for.
        exit(0)
    });
    if reading.is_err() {
        exit(1);
    }
    while let Ok(asked) = asked.recv() {
        worker.serve(&asked);
    }
    exit(0)
}

/// A descriptor that the daemon put there, made ours.
fn inherited(fd: RawFd) -> Option<OwnedFd> {
    nix::sys::stat::fstat(borrow(fd)).ok()?;
    // Nobody but us uses it, and no child of ours may.
    nix::fcntl::fcntl(borrow(fd), nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC)).ok()?;
    // SAFETY: it is open, as fstat has just shown, and nothing in this process, which has only begun, owns it.
    Some(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn borrow(fd: RawFd) -> std::os::fd::BorrowedFd<'static> {
    // SAFETY: used at once and not kept; a number that names nothing only makes the call fail with EBADF.
    unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) }
}

fn exit(status: i32) -> ! {
    // SAFETY: `_exit` has no preconditions. It runs no exit handlers, which is the point.
    unsafe { libc::_exit(status) }
}

/// Passes frames on until there are no more.
fn read(mut socket: UnixStream, to: &mpsc::Sender<Asked>) {
    while let Ok(frame) = read_frame(&mut socket) {
        let Ok(asked) = serde_json::from_slice(&frame) else { return };
        if to.send(asked).is_err() {
            return;
        }
    }
}

struct Worker {
    socket: UnixStream,
    pin: Option<File>,
    /// Until the module has it.
    slate: Option<Slate>,
    module: Option<Module>,
    confined: bool,
}

impl Worker {
    fn serve(&mut self, asked: &Asked) {
        let quit = asked.request == Request::Quit;
        let answer = self.answer(&asked.request);
        let module = self.module.as_mut();
        let (calls, leaked) = module.map(|module| (module.take_calls(), module.take_leaked())).unwrap_or_default();
        let answered = Answered { id: asked.id, generation: asked.generation, answer, calls, leaked };
        // A daemon that no longer listens closes the socket, which the other thread sees.
        drop(write_frame(&mut self.socket, &answered));
        if quit {
            exit(0);
        }
    }

    fn answer(&mut self, request: &Request) -> Result<Reply, Trouble> {
        if let Request::Confine(limits) = request {
            if self.confined {
                return Err(Trouble::OutOfOrder);
            }
            confine::confine(limits).map_err(|why| Trouble::Unconfined { why })?;
            self.confined = true;
            let build = env!("CARGO_PKG_VERSION").to_owned();
            return Ok(Reply::Hello { protocol: PROTOCOL, pid: std::process::id(), build });
        }
        // No module is loaded by a process that still has rights.
        if !self.confined {
            return Err(Trouble::OutOfOrder);
        }
        if let Request::Load { module } = request {
            let slate = self.slate.take().ok_or(Trouble::OutOfOrder)?;
            let module = self.module.insert(Module::load(module, slate)?);
            module.initialize()?;
            return Ok(Reply::Loaded(module.library()));
        }
        let Some(module) = self.module.as_mut() else {
            return if *request == Request::Quit { Ok(Reply::Bye) } else { Err(Trouble::OutOfOrder) };
        };
        match request {
            Request::Slots => Ok(Reply::Slots(module.slots()?)),
            Request::Select(token) => Ok(Reply::Selected { slot: module.select(token)? }),
            Request::Info => Ok(Reply::Info(Box::new(module.info()?))),
            Request::Anchor => {
                module.open_anchor()?;
                Ok(Reply::Anchored)
            }
            Request::Login => {
                let pin = read_pin(&mut self.pin)?;
                module.login(&pin)?;
                Ok(Reply::LoggedIn)
            }
            Request::Business(business) => {
                let done = operate::run(module, business);
                module.rest();
                Ok(Reply::Done(done?))
            }
            Request::Quit => {
                module.end()?;
                Ok(Reply::Bye)
            }
            Request::Confine(_) | Request::Load { .. } => Err(Trouble::OutOfOrder),
        }
    }
}

/// The PIN, from the pipe that the daemon closes behind it. The pipe is closed here too: there is one login.
fn read_pin(pipe: &mut Option<File>) -> Result<Zeroizing<Vec<u8>>, Trouble> {
    let mut pipe = pipe.take().ok_or(Trouble::OutOfOrder)?;
    // One buffer that never grows, so that no copy stays behind in freed memory.
    let mut pin = Zeroizing::new(vec![0; PIN_BYTES_MAX + 1]);
    let mut length = 0;
    loop {
        match pipe.read(&mut pin[length..]) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_broken) => return Err(Trouble::OutOfOrder),
        }
    }
    if length == 0 || length > PIN_BYTES_MAX {
        return Err(Trouble::OutOfOrder);
    }
    pin.truncate(length);
    Ok(pin)
}

/// Whether a session may still exist after C_CloseSession returned this.
const fn is_leak(rv: u64) -> bool {
    use cryptoki_sys::{
        CKR_CRYPTOKI_NOT_INITIALIZED, CKR_DEVICE_REMOVED, CKR_OK, CKR_SESSION_CLOSED, CKR_SESSION_HANDLE_INVALID,
        CKR_TOKEN_NOT_PRESENT,
    };
    !matches!(
        rv,
        CKR_OK
            | CKR_SESSION_CLOSED
            | CKR_SESSION_HANDLE_INVALID
            | CKR_DEVICE_REMOVED
            | CKR_TOKEN_NOT_PRESENT
            | CKR_CRYPTOKI_NOT_INITIALIZED
    )
}

/// A returned value as a result.
const fn checked(call: Call, rv: u64) -> Result<(), Trouble> {
    if rv == cryptoki_sys::CKR_OK { Ok(()) } else { Err(Trouble::Returned { call, rv }) }
}
