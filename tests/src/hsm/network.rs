//! A network HSM from Debian's parts: socat and p11-kit carry PKCS#11 over TCP.
//!
//! ```text
//! program ─ p11-kit-client.so ─ unix socket ─ socat ─ TCP ─ socat ─ p11-kit remote ─ module ─ token
//! ```

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::Signal;

use super::Module;
use crate::clock::wait_until;
use crate::ns::Namespace;
use crate::process::{Pids, Process, spawn, spawn_as};

const READY_LIMIT: Duration = Duration::from_secs(10);
/// Where p11-kit's modules are, by distribution.
const CLIENT: [&str; 4] = [
    "/usr/lib/x86_64-linux-gnu/pkcs11/p11-kit-client.so",
    "/usr/lib/aarch64-linux-gnu/pkcs11/p11-kit-client.so",
    "/usr/lib64/pkcs11/p11-kit-client.so",
    "/usr/lib/pkcs11/p11-kit-client.so",
];

/// The server: one process of the module for each connection.
#[derive(Debug)]
pub struct NetworkHsm {
    ns: Arc<Namespace>,
    address: SocketAddr,
    module: Module,
    process: Option<Process>,
}

impl NetworkHsm {
    /// Serves `module` at `address`, inside `ns`.
    ///
    /// # Errors
    ///
    /// When it doesn't listen within 10 s.
    pub fn start(ns: &Arc<Namespace>, address: SocketAddr, module: Module) -> Result<Self> {
        let mut hsm = Self { ns: Arc::clone(ns), address, module, process: None };
        hsm.resume()?;
        Ok(hsm)
    }

    /// Starts it again after [`Self::kill`].
    ///
    /// # Errors
    ///
    /// As [`Self::start`].
    pub fn resume(&mut self) -> Result<()> {
        let Self { ns, address, module, process } = self;
        let (kind, bind) = match address.ip() {
            IpAddr::V4(ip) => ("TCP4-LISTEN", ip.to_string()),
            IpAddr::V6(ip) => ("TCP6-LISTEN", format!("[{ip}]")),
        };
        let mut command = Command::new("socat");
        // Without `nodelay` the small frames of the protocol wait 40 ms for each other.
        command.arg(format!("{kind}:{},bind={bind},fork,reuseaddr,nodelay", address.port()));
        command
            .arg(format!("EXEC:p11-kit remote {}", module.library.display()))
            .envs(module.environment.iter().cloned());
        // With its own process ids the servers of all connections die with it.
        *process = Some(spawn_as(ns, command, Pids::Own)?);
        let (address, ns) = (*address, Arc::clone(ns));
        wait_until("the HSM listens", READY_LIMIT, || {
            let listens = || std::net::TcpStream::connect_timeout(&address, Duration::from_millis(200)).is_ok();
            ns.enter(listens).unwrap_or(false)
        })
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Kills it with all its connections.
    ///
    /// # Errors
    ///
    /// When it doesn't run.
    pub fn kill(&mut self) -> Result<()> {
        self.process.take().context("this HSM does not run")?.kill()
    }

    /// Stops it, or lets it go on: the port answers, and nobody behind it.
    ///
    /// # Errors
    ///
    /// When it doesn't run.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.process.as_ref().context("this HSM does not run")?.signal(signal)
    }
}

/// The way to a network HSM for programs of one namespace: a unix socket, from which each connection goes on by TCP.
#[derive(Debug)]
pub struct HsmClient {
    socket: PathBuf,
    _process: Process,
}

impl HsmClient {
    /// Forwards connections of `socket` to `address`. `around` may put a command in front, such as `sluice direct --`.
    ///
    /// # Errors
    ///
    /// When the socket doesn't appear within 10 s.
    pub fn start(ns: &Namespace, socket: &Path, address: SocketAddr, around: &[String]) -> Result<Self> {
        let mut words = around.iter().map(String::as_str).chain(["socat"]);
        let mut command = Command::new(words.next().context("socat is always there")?);
        command.args(words);
        command.arg(format!("UNIX-LISTEN:{},fork,mode=0666,unlink-early", socket.display()));
        command.arg(format!("TCP:{address},nodelay"));
        let process = spawn(ns, command)?;
        wait_until("the HSM's client listens", READY_LIMIT, || socket.exists())?;
        Ok(Self { socket: socket.to_owned(), _process: process })
    }

    /// How programs reach the HSM.
    ///
    /// # Errors
    ///
    /// As [`Self::module_at`].
    pub fn module(&self) -> Result<Module> {
        Self::module_at(&self.socket)
    }

    /// The same for a client that is not there yet.
    ///
    /// # Errors
    ///
    /// When p11-kit isn't installed.
    pub fn module_at(socket: &Path) -> Result<Module> {
        let library = CLIENT.iter().map(Path::new).find(|path| path.exists());
        let library = library.context("p11-kit's client isn't here: run `cargo xtask setup`")?.to_owned();
        let address = format!("unix:path={}", socket.display());
        Ok(Module { library, environment: vec![("P11_KIT_SERVER_ADDRESS", address)] })
    }
}
