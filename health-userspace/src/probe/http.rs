//! `http`: one request on a new connection, and what its answer must be.
//!
//! The first final answer decides: redirects are not followed, nothing is cached or kept, the environment's proxies are
//! not asked. When the verdict is known the connection is closed, read or not.

use super::{
    failure,
    kind::{Probe, Setting},
    socket::Sockets,
    trace::Trace,
};
use crate::config::{BodyRule, HttpCheck};
use futures_util::future::{BoxFuture, FutureExt};
use health_core::model::{Layer, Outcome, Reason};
use http_body_util::{BodyExt, Empty};
use hyper::{
    HeaderMap, Method, Request, Response, Uri,
    body::{Body, Bytes, Incoming},
    client::conn::http1,
    header::{ACCEPT, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, HOST, HeaderValue, USER_AGENT},
    rt::{Read, Write},
};
use hyper_util::rt::TokioIo;
use std::{net::SocketAddr, pin::pin, sync::Arc};
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};
use url::Position;

/// Longest head of an answer. Unit: bytes. nginx and HAProxy pass on no more.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// A check made ready to be run against one origin.
pub(super) struct HttpProbe {
    address: SocketAddr,
    sockets: Sockets,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    method: Method,
    target: Uri,
    headers: HeaderMap,
    check: HttpCheck,
}

impl HttpProbe {
    /// `None` if the URL can't be asked, which the configuration excludes.
    pub(super) fn new(check: &HttpCheck, setting: Setting<'_>) -> Option<Self> {
        let url = &check.url;
        let tls = match (url.scheme(), setting.tls) {
            ("https", Some(config)) => Some((TlsConnector::from(Arc::clone(config)), check.server_name()?)),
            ("https", None) => return None,
            _ => None,
        };
        let target = url[Position::BeforePath..Position::AfterQuery].parse().ok()?;
        let (method, headers) = (check.method.clone(), headers(check)?);
        // The origin's address, the URL's port: health is often served beside the service.
        let address = SocketAddr::new(setting.address.ip(), url.port_or_known_default()?);
        let sockets = setting.sockets.clone();
        Some(Self { address, sockets, tls, method, target, headers, check: check.clone() })
    }

    async fn round(&self, trace: &mut Trace) -> Outcome {
        trace.begin("connect", Layer::Transport);
        let connection = match self.sockets.connect(self.address).await {
            Ok(connection) => connection,
            Err(error) => {
                trace.explain(error.to_string());
                return failure::of_io(&error, Layer::Transport);
            }
        };
        let Some((connector, name)) = &self.tls else {
            return self.exchange(TokioIo::new(connection), trace).await;
        };
        trace.begin("tls", Layer::Tls);
        match connector.connect(name.clone(), connection).await {
            Ok(connection) => self.exchange(TokioIo::new(connection), trace).await,
            Err(error) => {
                trace.explain(error.to_string());
                failure::of_io(&error, Layer::Tls)
            }
        }
    }

    /// Sends the request and judges the answer, while the connection is driven beside it.
    async fn exchange<C: Read + Write + Unpin>(&self, connection: C, trace: &mut Trace) -> Outcome {
        trace.begin("first_byte", Layer::Application);
        let mut builder = http1::Builder::new();
        // As people write them: old servers compare names byte by byte.
        builder.title_case_headers(true).max_buf_size(HEAD_BYTES_MAX);
        let (mut sender, driver) = match builder.handshake(connection).await {
            Ok(halves) => halves,
            Err(error) => return failure::of_hyper(&error),
        };
        let mut request = Request::new(Empty::<Bytes>::new());
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.target.clone();
        *request.headers_mut() = self.headers.clone();
        let mut verdict = pin!(async {
            match sender.send_request(request).await {
                Ok(response) => self.judge(response, trace).await,
                Err(error) => Err(error),
            }
        });
        let mut driver = pin!(driver);
        let ended = tokio::select! {
            biased;
            verdict = &mut verdict => return verdict.unwrap_or_else(|error| failure::of_hyper(&error)),
            ended = &mut driver => ended,
        };
        // The connection is over. What was read before may still be a whole answer.
        match (verdict.await, ended) {
            (Ok(outcome), _) => outcome,
            (Err(_), Err(cause)) => failure::of_hyper(&cause),
            (Err(error), Ok(())) => failure::of_hyper(&error),
        }
    }

    async fn judge(&self, response: Response<Incoming>, trace: &mut Trace) -> Result<Outcome, hyper::Error> {
        trace.begin("body", Layer::Application);
        let status = response.status().as_u16();
        if !self.check.status.contains(status) {
            let expected: Vec<_> = self.check.status.words().collect();
            trace.explain(format!("status {status}, expected {}", expected.join(", ")));
            return Ok(Outcome::Fail(Reason::Status(status)));
        }
        let encoded = response
            .headers()
            .get(CONTENT_ENCODING)
            .is_some_and(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity"));
        let body = read(response.into_body(), self.check.body.as_ref(), self.check.body_max).await?;
        let holds = match &self.check.body {
            None => true,
            // Compressed though nobody asked for it: its bytes are not what the rule is about.
            Some(_) if encoded => false,
            Some(BodyRule::Exact(_)) if body.len() > self.check.body_max => false,
            Some(rule) => rule.holds(&body[..body.len().min(self.check.body_max)]),
        };
        Ok(if holds { Outcome::Pass } else { Outcome::Fail(Reason::Body) })
    }
}

impl Probe for HttpProbe {
    fn run<'a>(&'a mut self, trace: &'a mut Trace) -> BoxFuture<'a, Outcome> {
        self.round(trace).boxed()
    }
}

/// Reads up to `max` bytes, one more to tell whether `exact:` saw all. Keeps them only if a rule asks for them.
async fn read(mut body: Incoming, rule: Option<&BodyRule>, max: usize) -> Result<Vec<u8>, hyper::Error> {
    let wanted = max.saturating_add(usize::from(matches!(rule, Some(BodyRule::Exact(_)))));
    let (mut kept, mut seen) = (Vec::new(), 0_usize);
    while seen < wanted && !body.is_end_stream() {
        let Some(frame) = body.frame().await else { break };
        // Trailers are no part of the body.
        let Ok(data) = frame?.into_data() else { continue };
        let room = wanted - seen;
        seen = seen.saturating_add(data.len());
        if rule.is_some() {
            kept.extend_from_slice(&data[..data.len().min(room)]);
        }
    }
    Ok(kept)
}

fn headers(check: &HttpCheck) -> Option<HeaderMap> {
    let mut headers = HeaderMap::new();
    // First, as RFC 9110 §7.2 asks. IPv6 literals keep their brackets; default ports are left out.
    headers.insert(HOST, HeaderValue::from_str(&check.url[Position::BeforeHost..Position::AfterPort]).ok()?);
    headers.insert(USER_AGENT, HeaderValue::from_static("sluice"));
    headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    // RFC 9110 §8.6: methods that mean a body announce its absence.
    if [Method::POST, Method::PUT, Method::PATCH].contains(&check.method) {
        headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
    }
    for (name, value) in &check.headers {
        headers.insert(name, value.clone());
    }
    Some(headers)
}
