//! `tcp`: a connection is made; something may be said, and something be heard.

use super::{
    failure,
    kind::{Probe, Setting},
    socket::Sockets,
    trace::Trace,
};
use crate::config::{BodyRule, TcpCheck};
use futures_util::future::{BoxFuture, FutureExt};
use health_core::model::{Layer, Outcome, Reason};
use std::{io, net::SocketAddr};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// Most bytes that are listened to. A banner or an answer is shorter, and a round must not fill memory.
const HEARD_MAX: usize = 64 << 10;

/// A check made ready to be run against one origin.
pub(super) struct TcpProbe {
    address: SocketAddr,
    sockets: Sockets,
    check: TcpCheck,
}

impl TcpProbe {
    pub(super) fn new(check: &TcpCheck, setting: Setting<'_>) -> Self {
        Self { address: setting.address, sockets: setting.sockets.clone(), check: check.clone() }
    }

    async fn round(&self, trace: &mut Trace) -> Result<Outcome, Outcome> {
        let mut connection = self.sockets.open(self.address, trace).await?;
        let talked = self.talk(&mut connection, trace).await;
        // Closed with a FIN: a server logs a reset, and a passive observer may count it. What it still sends would make the
        // kernel send one after all.
        talked.map_err(|error| {
            trace.explain(error.to_string());
            failure::of_io(&error, Layer::Application)
        })
    }

    async fn talk(&self, connection: &mut TcpStream, trace: &mut Trace) -> io::Result<Outcome> {
        if let Some(send) = &self.check.send {
            trace.begin("send", Layer::Application);
            connection.write_all(send.as_bytes()).await?;
        }
        if self.check.expect.is_empty() {
            return Ok(Outcome::Pass);
        }
        trace.begin("answer", Layer::Application);
        let mut heard = Vec::new();
        let mut over = false;
        loop {
            match judge(&self.check.expect, &heard, over) {
                Some(Ok(())) => return Ok(Outcome::Pass),
                Some(Err(rule)) => {
                    let shown: Vec<u8> = heard.iter().copied().take(80).collect();
                    trace.explain(format!("heard \"{}\", expected {rule}", String::from_utf8_lossy(&shown)));
                    return Ok(Outcome::Fail(Reason::Answer));
                }
                None => {}
            }
            let room = u64::try_from(HEARD_MAX - heard.len()).unwrap_or(0);
            over = (&mut *connection).take(room).read_buf(&mut heard).await? == 0;
        }
    }
}

/// What the bytes heard so far mean: all rules kept, one broken for good, or `None` while more may change it. `over`: no
/// more will come.
fn judge<'r>(rules: &'r [BodyRule], heard: &[u8], over: bool) -> Option<Result<(), &'r BodyRule>> {
    let broken = |rule: &&BodyRule| match rule {
        // What is wrong already stays wrong.
        BodyRule::Exact(text) => !text.as_bytes().starts_with(heard),
        _ => false,
    };
    if let Some(rule) = rules.iter().find(broken) {
        return Some(Err(rule));
    }
    // Nothing heard keeps no rule: a `not_regex:` alone would make silence a pass.
    let unkept = rules.iter().find(|rule| !rule.holds(heard));
    match unkept {
        None => Some(Ok(())),
        Some(rule) if over => Some(Err(rule)),
        Some(BodyRule::NotRegex(_))
            if rules.iter().all(|rule| matches!(rule, BodyRule::NotRegex(_)) || rule.holds(heard)) =>
        {
            unkept.map(Err)
        }
        Some(_) => None,
    }
}

impl Probe for TcpProbe {
    fn run<'a>(&'a mut self, trace: &'a mut Trace) -> BoxFuture<'a, Outcome> {
        async { self.round(trace).await.unwrap_or_else(|ended| ended) }.boxed()
    }
}
