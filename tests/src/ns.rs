//! Network namespaces that live as long as a descriptor.

use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, anyhow};
use nix::sched::{CloneFlags, setns, unshare};

use crate::process::run_with_input;

/// A network namespace. It ends when this value, its threads and its processes have ended.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    fd: OwnedFd,
    /// What its programs see as `/etc/resolv.conf`, if not this machine's.
    resolver: OnceLock<PathBuf>,
}

impl Namespace {
    /// Makes an empty namespace with its loopback up; `name` is for messages only.
    ///
    /// # Errors
    ///
    /// Without CAP_SYS_ADMIN, or when the kernel is out of something.
    pub fn new(name: &str) -> Result<Self> {
        let fd = thread::scope(|scope| {
            // A thread of its own: the caller stays where it is.
            let made = scope.spawn(|| -> Result<OwnedFd> {
                unshare(CloneFlags::CLONE_NEWNET)?;
                Ok(File::open("/proc/thread-self/ns/net")?.into())
            });
            made.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
        .with_context(|| format!("cannot make network namespace `{name}`"))?;
        let made = Self { name: name.to_owned(), fd, resolver: OnceLock::new() };
        made.sysctl("ipv4/conf/all/rp_filter", "0")?;
        made.sysctl("ipv4/conf/default/rp_filter", "0")?;
        made.sysctl("ipv6/conf/all/accept_dad", "0")?;
        made.sysctl("ipv6/conf/default/accept_dad", "0")?;
        made.ip("link set lo up\n")?;
        Ok(made)
    }

    /// For messages.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where other programs find it (`nsenter --net=PATH`), while this process lives.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.fd.as_raw_fd()))
    }

    /// From now on programs that are started here ask the name servers of that file, as with `ip netns exec`.
    ///
    /// # Errors
    ///
    /// When it was set before.
    pub fn resolve_by(&self, file: &Path) -> Result<()> {
        self.resolver.set(file.to_owned()).map_err(|_set| anyhow!("`{}` has a resolver", self.name))
    }

    pub(crate) fn resolver(&self) -> Option<&Path> {
        self.resolver.get().map(PathBuf::as_path)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        use std::os::fd::AsFd as _;
        self.fd.as_fd()
    }

    /// Moves the calling thread into the namespace, for good.
    fn join(&self) -> Result<()> {
        setns(self.fd(), CloneFlags::CLONE_NEWNET).with_context(|| format!("cannot enter `{}`", self.name))
    }

    /// Runs `work` on a thread inside the namespace and waits for it. A panic in it goes on in the caller.
    ///
    /// # Errors
    ///
    /// When the namespace cannot be entered.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        thread::scope(|scope| {
            let inside = scope.spawn(|| self.join().map(|()| work()));
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Starts a thread that runs `work` inside the namespace.
    ///
    /// # Errors
    ///
    /// When there is no thread or descriptor to be had; the handle's result says whether it could enter.
    pub fn thread<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<JoinHandle<Result<T>>> {
        let own = Self { name: self.name.clone(), fd: self.fd.try_clone()?, resolver: OnceLock::new() };
        let inside = move || {
            own.join()?;
            drop(own);
            work()
        };
        Ok(thread::Builder::new().name(name.to_owned()).spawn(inside)?)
    }

    /// Writes `/proc/sys/net/<key>` inside the namespace.
    ///
    /// # Errors
    ///
    /// When the kernel has no such key or refuses the value.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<()> {
        let path = Path::new("/proc/sys/net").join(key);
        self.enter(|| std::fs::write(&path, value))?.with_context(|| format!("cannot set {key} to {value}"))
    }

    /// Runs lines of `ip -batch` inside the namespace.
    ///
    /// # Errors
    ///
    /// With what `ip` said.
    pub fn ip(&self, batch: &str) -> Result<()> {
        run_with_input(self, "ip", &["-batch", "-"], batch)?.success()?;
        Ok(())
    }
}
