//! Real HAProxy, as the proxy on the node.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::clock::wait_until;
use crate::nginx::{START_LIMIT, listens};
use crate::ns::Namespace;
use crate::process::{Process, spawn};

/// One HAProxy. Ends on drop.
#[derive(Debug)]
pub struct HaProxy {
    log: PathBuf,
    _process: Process,
}

impl HaProxy {
    /// Starts it on both families in front of `upstream`. Nothing is set but what it does not run without, and the
    /// timeouts of its manual's example, without which it warns.
    ///
    /// # Errors
    ///
    /// When it is not there or does not listen within 10 s; with what it said.
    pub fn start(ns: &Namespace, parent: &Path, port: u16, upstream: SocketAddr) -> Result<Self> {
        let dir = parent.join(format!("haproxy-{port}"));
        fs::create_dir_all(&dir)?;
        let text = format!(
            "defaults\n  mode http\n  timeout connect 5000ms\n  timeout client 50000ms\n  timeout server 50000ms\n\
             frontend clients\n  bind *:{port}\n  bind [::]:{port} v6only\n  default_backend origin\n\
             backend origin\n  server a {upstream}\n"
        );
        let config = dir.join("haproxy.cfg");
        fs::write(&config, text)?;
        let log = dir.join("log");
        let out = fs::File::options().create(true).append(true).open(&log)?;
        let mut command = Command::new("haproxy");
        // In the foreground.
        command.arg("-db").arg("-f").arg(&config).stdout(out.try_clone()?).stderr(out);
        let haproxy = Self { log, _process: spawn(ns, command)? };
        wait_until("haproxy listens", START_LIMIT, || listens(ns, port)).with_context(|| haproxy.log())?;
        Ok(haproxy)
    }

    /// What it said; for messages.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}
