//! `smtp`: a mail server greets, takes our name, offers TLS if asked, and says goodbye.
//!
//! It is listened to before anything is said: servers hang up on early talkers.

mod reply;

use super::{
    failure,
    kind::{Probe, Setting},
    socket::Sockets,
    tls::{Client, Session},
    trace::Trace,
};
use crate::config::SmtpCheck;
use futures_util::future::{BoxFuture, FutureExt};
use health_core::model::{Layer, Outcome, Reason};
use reply::Reply;
use std::{
    io,
    net::{IpAddr, SocketAddr},
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_rustls::rustls::pki_types::ServerName;

/// A check made ready to be run against one origin.
pub(super) struct SmtpProbe {
    address: SocketAddr,
    sockets: Sockets,
    helo: Option<String>,
    starttls: Option<(Client, ServerName<'static>)>,
}

/// A session, in clear text or not.
struct Talk<C> {
    connection: C,
    heard: Vec<u8>,
}

impl SmtpProbe {
    pub(super) fn new(check: &SmtpCheck, setting: Setting<'_>) -> Result<Self, super::ProbeError> {
        let starttls = match &check.starttls {
            None => None,
            Some(tls) => Some((setting.trust.client(tls, &[])?.resuming(), tls.name_or(setting.address.ip()))),
        };
        let (address, sockets) = (setting.address, setting.sockets.clone());
        Ok(Self { address, sockets, helo: check.helo.clone(), starttls })
    }

    async fn round(&self, trace: &mut Trace) -> Result<Outcome, Outcome> {
        let connection = self.sockets.open(self.address, trace).await?;
        let own = connection.local_addr().map(|own| own.ip());
        let helo = match (&self.helo, own) {
            (Some(helo), _) => helo.clone(),
            // RFC 5321 §4.1.3: an address literal, where there is no name.
            (None, Ok(IpAddr::V4(own))) => format!("[{own}]"),
            (None, Ok(IpAddr::V6(own))) => format!("[IPv6:{own}]"),
            (None, Err(error)) => return Err(failure::of_io(&error, Layer::Transport)),
        };
        let mut talk = Talk { connection, heard: Vec::new() };
        trace.begin("banner", Layer::Application);
        // A server that is busy says so here, and is told nothing more.
        talk.hear(2, trace).await?;
        let greeted = talk.greet(&helo, trace).await?;
        let Some((client, name)) = &self.starttls else {
            talk.quit(trace).await?;
            return Ok(Outcome::Pass);
        };
        if !greeted.offers("STARTTLS") {
            trace.explain("the server does not offer STARTTLS");
            return Err(Outcome::Fail(Reason::Answer));
        }
        trace.begin("starttls", Layer::Application);
        talk.say("STARTTLS", trace).await?;
        talk.hear(2, trace).await?;
        if !talk.heard.is_empty() {
            // RFC 3207 §5: what was said before the session must not count inside it.
            trace.explain("the server said more in clear text after its reply to STARTTLS");
            return Err(Outcome::Fail(Reason::Protocol));
        }
        let Session { stream, is_ending, .. } = client.connect(name.clone(), talk.connection, trace).await?;
        let mut talk = Talk { connection: stream, heard: Vec::new() };
        talk.greet(&helo, trace).await?;
        talk.quit(trace).await?;
        Ok(if is_ending { Outcome::Slow } else { Outcome::Pass })
    }
}

impl<C: AsyncRead + AsyncWrite + Unpin> Talk<C> {
    /// EHLO, and HELO where the server is older than that.
    async fn greet(&mut self, helo: &str, trace: &mut Trace) -> Result<Reply, Outcome> {
        trace.begin("ehlo", Layer::Application);
        self.say(&format!("EHLO {helo}"), trace).await?;
        let reply = self.next(trace).await?;
        if reply.class() != 5 {
            return judged(reply, 2, trace);
        }
        trace.begin("helo", Layer::Application);
        self.say(&format!("HELO {helo}"), trace).await?;
        self.hear(2, trace).await
    }

    /// Leaves as RFC 5321 §4.1.1.10 asks. What the server says to that no longer matters.
    async fn quit(&mut self, trace: &mut Trace) -> Result<(), Outcome> {
        trace.begin("quit", Layer::Application);
        self.say("QUIT", trace).await?;
        match self.next(trace).await {
            // Some hang up without a word.
            Err(Outcome::Fail(Reason::Protocol | Reason::Reset)) | Ok(_) => Ok(()),
            Err(other) => Err(other),
        }
    }

    async fn say(&mut self, line: &str, trace: &mut Trace) -> Result<(), Outcome> {
        let said = async {
            self.connection.write_all(format!("{line}\r\n").as_bytes()).await?;
            self.connection.flush().await
        };
        said.await.map_err(|error| explained(&error, trace))
    }

    /// The next reply, which must be of this class.
    async fn hear(&mut self, class: u16, trace: &mut Trace) -> Result<Reply, Outcome> {
        let reply = self.next(trace).await?;
        judged(reply, class, trace)
    }

    async fn next(&mut self, trace: &mut Trace) -> Result<Reply, Outcome> {
        loop {
            match reply::take(&mut self.heard) {
                Ok(Some(reply)) => return Ok(reply),
                Ok(None) => {}
                Err(error) => {
                    let shown = self.heard.get(..self.heard.len().min(80)).unwrap_or_default();
                    trace.explain(format!("{error}: \"{}\"", String::from_utf8_lossy(shown)));
                    return Err(Outcome::Fail(Reason::Protocol));
                }
            }
            match self.connection.read_buf(&mut self.heard).await {
                Ok(0) => {
                    trace.explain("the server hung up");
                    return Err(Outcome::Fail(Reason::Protocol));
                }
                Ok(_) => {}
                Err(error) => return Err(explained(&error, trace)),
            }
        }
    }
}

fn judged(reply: Reply, class: u16, trace: &mut Trace) -> Result<Reply, Outcome> {
    if reply.class() == class {
        return Ok(reply);
    }
    trace.explain(reply.words());
    Err(Outcome::Fail(Reason::Reply(reply.code)))
}

fn explained(error: &io::Error, trace: &mut Trace) -> Outcome {
    trace.explain(error.to_string());
    failure::of_io(error, Layer::Application)
}

impl Probe for SmtpProbe {
    fn run<'a>(&'a mut self, trace: &'a mut Trace) -> BoxFuture<'a, Outcome> {
        async { self.round(trace).await.unwrap_or_else(|ended| ended) }.boxed()
    }
}
