//! `http`: requests in order, each on a new connection, and what their answers must be.
//!
//! The first final answer decides, unless the check follows redirections. Nothing is cached, the environment's proxies are
//! not asked; cookies live as long as the round. When the verdict is known the connection is closed, read or not.

mod decode;
mod exchange;
mod judge;

use super::{
    ProbeError, failure,
    kind::{Probe, Setting},
    sign::Signer,
    socket::Sockets,
    tls::{Client, Session},
    trace::Trace,
};
use crate::config::{HttpCheck, HttpRequest, HttpVersion, RedirectRule, RequestBody, TlsConfig, server_name};
use cookie_store::{CookieStore, RawCookie};
use exchange::Failure;
use futures_util::future::{BoxFuture, FutureExt};
use health_core::model::{Layer, LocalReason, Outcome, Reason};
use hyper::{
    HeaderMap, Method, Request,
    body::Bytes,
    header::{ACCEPT, ACCEPT_ENCODING, CONNECTION, CONTENT_LENGTH, COOKIE, HOST, HeaderValue, USER_AGENT},
};
use judge::Verdict;
use std::{net::SocketAddr, path::PathBuf};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::rustls::pki_types::ServerName;
use url::{Position, Url};

/// Most redirections that are followed for one request: more is a loop.
const HOPS_MAX: u8 = 5;
/// Most bytes of a body that is sent.
const SENT_MAX: u64 = 1 << 20;

/// A check made ready to be run against one origin.
pub(super) struct HttpProbe {
    origin: SocketAddr,
    sockets: Sockets,
    signer: Option<Signer>,
    client: Option<Client>,
    name: Option<ServerName<'static>>,
    version: HttpVersion,
    requests: Vec<Prepared>,
}

/// A request, and the body that it carries.
struct Prepared {
    request: HttpRequest,
    body: Bytes,
}

/// One thing to ask: a request of the check, or where it was redirected to.
struct Asking<'a> {
    prepared: &'a Prepared,
    url: Url,
    method: Method,
    body: Bytes,
}

impl HttpProbe {
    /// Reads what the check needs of files.
    ///
    /// # Errors
    ///
    /// A file can't be read, or nothing is trusted.
    pub(super) fn new(check: &HttpCheck, setting: Setting<'_>) -> Result<Self, ProbeError> {
        let alpn = match check.version {
            HttpVersion::Http1 => "http/1.1",
            HttpVersion::Http2 | HttpVersion::H2c => "h2",
        };
        // A redirection may lead from http to https.
        let follows = check.requests.iter().any(|request| request.expect.redirect == RedirectRule::Follow);
        let default = follows.then(TlsConfig::default);
        let trust = check.tls.as_ref().or(default.as_ref());
        let client = match trust {
            None => None,
            Some(tls) => Some(setting.trust.client(tls, &[alpn.to_owned()])?.without_protocol().resuming()),
        };
        let prepared = |request: &HttpRequest| {
            let body = match &request.body {
                None => Bytes::new(),
                Some(RequestBody::Text(text)) => Bytes::from(text.clone().into_bytes()),
                Some(RequestBody::File(path)) => sent(path)?,
            };
            Ok(Prepared { request: request.clone(), body })
        };
        Ok(Self {
            origin: setting.address,
            sockets: setting.sockets.clone(),
            signer: setting.check.plan.sign.as_ref().map(Signer::load).transpose()?,
            client,
            name: trust.and_then(|tls| tls.server_name.clone()),
            version: check.version,
            requests: check.requests.iter().map(prepared).collect::<Result<_, _>>()?,
        })
    }

    async fn round(&self, trace: &mut Trace) -> Result<Outcome, Outcome> {
        let mut cookies = CookieStore::default();
        let mut outcome = Outcome::Pass;
        for prepared in &self.requests {
            let Prepared { request, body } = prepared;
            let (url, method) = (request.url.clone(), request.method.clone());
            let mut asking = Asking { prepared, url, method, body: body.clone() };
            let mut hops = 0;
            let answered = loop {
                let verdict = self.ask(&asking, &mut cookies, trace).await?;
                match verdict {
                    Verdict::Ended(outcome) => break outcome,
                    Verdict::Leads { status, .. } if hops == HOPS_MAX => {
                        trace.explain(format!("redirected more than {HOPS_MAX} times"));
                        return Err(Outcome::Fail(Reason::Redirect(status)));
                    }
                    Verdict::Leads { status, to } => asking.follow(status, to),
                }
                hops += 1;
            };
            match answered {
                Outcome::Pass => {}
                Outcome::Slow => outcome = Outcome::Slow,
                Outcome::Fail(_) | Outcome::Local(_) => return Err(answered),
            }
        }
        Ok(outcome)
    }

    /// One request, from connecting to the verdict about its answer.
    async fn ask(&self, asking: &Asking<'_>, cookies: &mut CookieStore, trace: &mut Trace) -> Result<Verdict, Outcome> {
        let unaskable = || Outcome::Fail(Reason::Protocol);
        // The origin's address, the URL's port: health is often served beside the service.
        let port = asking.url.port_or_known_default().ok_or_else(unaskable)?;
        let connection = self.sockets.open(SocketAddr::new(self.origin.ip(), port), trace).await?;
        let mut request = self.request(asking, cookies).ok_or_else(unaskable)?;
        if self.signer.as_ref().is_some_and(|signer| signer.sign(&mut request).is_err()) {
            trace.explain("this node has no randomness or no time to sign with");
            return Err(Outcome::Local(LocalReason::Start));
        }
        if asking.url.scheme() != "https" {
            return self.exchange(connection, request, asking, cookies, trace).await;
        }
        let client = self.client.as_ref().ok_or_else(unaskable)?;
        let name = self.name.clone().or_else(|| server_name(&asking.url)).ok_or_else(unaskable)?;
        let Session { stream, is_ending, .. } = client.connect(name, connection, trace).await?;
        let verdict = self.exchange(stream, request, asking, cookies, trace).await?;
        Ok(match verdict {
            Verdict::Ended(Outcome::Pass) if is_ending => Verdict::Ended(Outcome::Slow),
            other => other,
        })
    }

    /// Sends the request and judges its answer.
    async fn exchange<C: AsyncRead + AsyncWrite + Send + Unpin>(
        &self,
        connection: C,
        request: Request<Bytes>,
        asking: &Asking<'_>,
        cookies: &mut CookieStore,
        trace: &mut Trace,
    ) -> Result<Verdict, Outcome> {
        trace.begin("first_byte", Layer::Application);
        let expect = &asking.prepared.request.expect;
        let ended = {
            let judging = judge::Judging { expect, url: &asking.url, cookies, trace };
            match self.version {
                HttpVersion::Http1 => exchange::one(connection, request, judging).await,
                HttpVersion::Http2 | HttpVersion::H2c => exchange::two(connection, request, judging).await,
            }
        };
        ended.map_err(|failure| {
            if !trace.is_explained() {
                trace.explain(failure.to_string());
            }
            match failure {
                Failure::One(error) => failure::of_exchange(&error),
                Failure::Two(error) => failure::of_exchange(&error),
                Failure::Interim(_) => Outcome::Fail(Reason::Protocol),
            }
        })
    }

    fn request(&self, asking: &Asking<'_>, cookies: &CookieStore) -> Option<Request<Bytes>> {
        let (url, two) = (&asking.url, self.version != HttpVersion::Http1);
        let mut headers = HeaderMap::new();
        if !two {
            // First, as RFC 9110 §7.2 asks. IPv6 literals keep their brackets; default ports are left out.
            headers.insert(HOST, HeaderValue::from_str(&url[Position::BeforeHost..Position::AfterPort]).ok()?);
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        headers.insert(USER_AGENT, HeaderValue::from_static("sluice"));
        headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
        // Absent, it would mean that any coding is welcome (RFC 9110 §12.5.3).
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        // RFC 9110 §8.6: methods that mean a body announce its absence.
        let means_body = [Method::POST, Method::PUT, Method::PATCH].contains(&asking.method);
        if means_body || !asking.body.is_empty() {
            headers.insert(CONTENT_LENGTH, HeaderValue::from(asking.body.len()));
        }
        let pairs: Vec<_> = cookies.get_request_values(url).map(|(name, value)| format!("{name}={value}")).collect();
        if !pairs.is_empty() {
            headers.insert(COOKIE, HeaderValue::from_str(&pairs.join("; ")).ok()?);
        }
        for (name, value) in &asking.prepared.request.headers {
            if two && name == HOST {
                continue;
            }
            headers.insert(name, value.clone());
        }
        // HTTP/2 sends scheme and authority apart from the path.
        let target = if two { url.as_str() } else { &url[Position::BeforePath..Position::AfterQuery] };
        let mut request = Request::new(asking.body.clone());
        *request.method_mut() = asking.method.clone();
        *request.uri_mut() = target.parse().ok()?;
        *request.headers_mut() = headers;
        Some(request)
    }
}

impl Asking<'_> {
    /// Goes where an answer leads. RFC 9110 §15.4: 307 and 308 keep the method; what user agents do with the others is GET.
    fn follow(&mut self, status: u16, to: Url) {
        self.url = to;
        if ![307, 308].contains(&status) && self.method != Method::HEAD {
            self.method = Method::GET;
            self.body = Bytes::new();
        }
    }
}

/// Keeps an answer's cookies for the rest of the round.
fn keep_cookies(cookies: &mut CookieStore, headers: &HeaderMap, url: &Url) {
    let values = headers.get_all(hyper::header::SET_COOKIE).iter().filter_map(|value| value.to_str().ok());
    let parsed: Vec<RawCookie<'static>> =
        values.filter_map(|value| RawCookie::parse(value).ok()).map(RawCookie::into_owned).collect();
    cookies.store_response_cookies(parsed.into_iter(), url);
}

fn sent(path: &PathBuf) -> Result<Bytes, ProbeError> {
    let refused = |problem: String| ProbeError::File { path: path.clone(), problem };
    let length = std::fs::metadata(path).map_err(|error| refused(error.to_string()))?.len();
    if length > SENT_MAX {
        return Err(refused("is longer than 1 MiB".to_owned()));
    }
    std::fs::read(path).map(Bytes::from).map_err(|error| refused(error.to_string()))
}

impl Probe for HttpProbe {
    fn run<'a>(&'a mut self, trace: &'a mut Trace) -> BoxFuture<'a, Outcome> {
        async { self.round(trace).await.unwrap_or_else(|ended| ended) }.boxed()
    }
}
