//! Real nginx, as an origin and as the proxy on the node.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::Signal;

use crate::addr::{Family, any};
use crate::clock::wait_until;
use crate::ns::Namespace;
use crate::process::{Pids, Process, spawn_as};

pub(crate) const START_LIMIT: Duration = Duration::from_secs(10);
/// Beyond every response timeout that is learned from answers of a millisecond, within every client's patience.
const SLOW_S: u32 = 2;

/// Which proxy settings differ from nginx's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyKind {
    /// None: one connection to the origin for each request (HTTP/1.0).
    Defaults,
    /// `keepalive 32`, HTTP/1.1 and an empty `Connection` header: the pool that nginx's manual shows.
    KeepAlive,
}

/// How an origin answers that does not answer as usual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// 503 to everything.
    Errors,
    /// As usual, but 2 s later.
    Slow,
}

impl Manner {
    const fn file(self) -> &'static str {
        match self {
            Self::Errors => "errors",
            Self::Slow => "slow",
        }
    }
}

/// One nginx: master and workers in a PID namespace of their own.
#[derive(Debug)]
pub struct Nginx {
    ns: Arc<Namespace>,
    dir: PathBuf,
    port: u16,
    process: Option<Process>,
}

impl Nginx {
    /// Starts origin `name`: answers `/` and `/healthz` on both families with 200, `X-Origin: NAME` and the body `NAME\n`,
    /// whatever the method. [`Self::switch`] changes that.
    ///
    /// # Errors
    ///
    /// When nginx is not there or does not listen within 10 s; with its error log.
    pub fn origin(ns: &Arc<Namespace>, parent: &Path, name: &str, port: u16) -> Result<Self> {
        let dir = parent.join(format!("origin-{name}"));
        let [errors, slow] = [Manner::Errors, Manner::Slow].map(|manner| dir.join(manner.file()));
        // nginx looks for the two files at each request, so a switch hurts no connection. Its only way to wait is the
        // delay before a 401, which then becomes the usual answer.
        let server = format!(
            "access_log off;\n  server {{ {}\n    default_type text/plain; add_header X-Origin {name} always;\n    \
             if (-f \"{}\") {{ return 503; }}\n    if (-f \"{}\") {{ rewrite ^ /slow last; }}\n    \
             location = / {{ return 200 \"{name}\\n\"; }}\n    location = /healthz {{ return 200 \"{name}\\n\"; }}\n    \
             location = /slow {{ internal; auth_basic slow; auth_basic_user_file /dev/null; auth_delay {SLOW_S}s; \
             error_page 401 =200 @slow; }}\n    location @slow {{ return 200 \"{name}\\n\"; }}\n  }}",
            listen(port),
            errors.display(),
            slow.display()
        );
        // The origins are not under test, so their connection limit must not be what a figure shows.
        let head = "worker_processes 1;\nevents { worker_connections 8192; }\nworker_rlimit_nofile 16384;";
        Self::start(ns, &dir, port, head, &server)
    }

    /// Starts a reverse proxy on both families in front of `upstream`.
    ///
    /// # Errors
    ///
    /// As [`Self::origin`].
    pub fn proxy(ns: &Arc<Namespace>, parent: &Path, port: u16, upstream: SocketAddr, kind: ProxyKind) -> Result<Self> {
        let (pool, headers) = match kind {
            ProxyKind::Defaults => ("", ""),
            ProxyKind::KeepAlive => ("keepalive 32;", "proxy_http_version 1.1; proxy_set_header Connection \"\";"),
        };
        let server = format!(
            "access_log access.log;\n  upstream origin {{ server {upstream}; {pool} }}\n  server {{ {}\n    \
             location / {{ proxy_pass http://origin; {headers} }}\n  }}",
            listen(port)
        );
        // The two values of the nginx.conf that Debian installs.
        let head = "worker_processes auto;\nevents { worker_connections 768; }";
        Self::start(ns, &parent.join(format!("proxy-{port}")), port, head, &server)
    }

    fn start(ns: &Arc<Namespace>, dir: &Path, port: u16, head: &str, server: &str) -> Result<Self> {
        fs::create_dir_all(dir)?;
        // The workers run as another user and must reach their temporary files.
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755))?;
        let temporary: Vec<String> = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .iter()
            .map(|kind| format!("  {kind}_temp_path {kind}_temp;\n"))
            .collect();
        let text = format!(
            "daemon off;\npid nginx.pid;\nerror_log error.log;\n{head}\nhttp {{\n{}  {server}\n}}\n",
            temporary.concat()
        );
        fs::write(dir.join("nginx.conf"), text)?;
        let mut nginx = Self { ns: Arc::clone(ns), dir: dir.to_owned(), port, process: None };
        nginx.resume()?;
        Ok(nginx)
    }

    /// Starts it again after [`Self::kill`], and waits until it listens.
    ///
    /// # Errors
    ///
    /// As [`Self::origin`].
    pub fn resume(&mut self) -> Result<()> {
        let mut command = Command::new("nginx");
        let log = fs::File::options().create(true).append(true).open(self.dir.join("stderr.log"))?;
        command.arg("-p").arg(&self.dir).args(["-c", "nginx.conf", "-e", "error.log"]).stderr(log);
        self.process = Some(spawn_as(&self.ns, command, Pids::Own)?);
        wait_until("nginx listens", START_LIMIT, || listens(&self.ns, self.port))
            .with_context(|| format!("nginx of {}: {}", self.dir.display(), self.log()))
    }

    /// What nginx logged as errors; for messages.
    #[must_use]
    pub fn log(&self) -> String {
        let read = |name| fs::read_to_string(self.dir.join(name)).unwrap_or_default();
        let text = read("stderr.log") + &read("error.log");
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(5)..].join("\n")
    }

    /// Size of a proxy's access log, which has about 90 bytes for each request.
    #[must_use]
    pub fn access_log_bytes(&self) -> u64 {
        fs::metadata(self.dir.join("access.log")).map_or(0, |log| log.len())
    }

    /// Makes an origin answer every request from now on in this manner, or as usual again. Both are sharp: a request is
    /// judged when nginx has read it.
    ///
    /// # Errors
    ///
    /// When the file that nginx looks for cannot be made or removed.
    pub fn switch(&self, manner: Manner, on: bool) -> Result<()> {
        let path = self.dir.join(manner.file());
        let done = if on { fs::write(&path, "") } else { fs::remove_file(&path) };
        done.with_context(|| format!("cannot switch {}", path.display()))
    }

    /// Kills master and workers, and returns once none holds the listening socket: from here the kernel answers RST.
    ///
    /// # Errors
    ///
    /// When it does not run.
    pub fn kill(&mut self) -> Result<()> {
        // An init of a PID namespace is reaped only after the kernel has ended everyone else in it.
        self.process.take().context("this nginx does not run")?.kill()
    }

    /// Sends `signal` to master and workers.
    ///
    /// # Errors
    ///
    /// When it does not run.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.process.as_ref().context("this nginx does not run")?.signal(signal)
    }
}

/// Whether someone accepts connections at `port` of `ns` on both families.
pub(crate) fn listens(ns: &Namespace, port: u16) -> bool {
    // The wildcard as a destination is the loopback address of its family.
    let answers = || Family::ALL.iter().all(|&family| TcpStream::connect(any(family, port)).is_ok());
    ns.enter(answers).unwrap_or(false)
}

fn listen(port: u16) -> String {
    format!("listen {port}; listen [::]:{port};")
}
