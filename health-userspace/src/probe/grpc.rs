//! `grpc`: the health service (`grpc.health.v1`) is asked, over HTTP/2.
//!
//! One unary call: a message of one field there and one back, each behind five bytes that say its length (the gRPC
//! protocol's "Length-Prefixed-Message"); the status comes in the trailers.

use super::{
    ProbeError, failure,
    kind::{Probe, Setting},
    socket::Sockets,
    tls::{Client, Session},
    trace::Trace,
};
use crate::config::GrpcCheck;
use futures_util::future::{BoxFuture, FutureExt};
use health_core::model::{Layer, Outcome, Reason};
use hyper::{HeaderMap, Request, body::Bytes, header::CONTENT_TYPE};
use prost::Message;
use std::{net::SocketAddr, pin::pin};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::rustls::pki_types::ServerName;

/// Most bytes of an answer; the right one has seven.
const ANSWER_MAX: usize = 4096;
/// Bytes before each message: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;

/// `HealthCheckRequest`.
#[derive(Clone, PartialEq, Eq, Message)]
struct HealthRequest {
    #[prost(string, tag = "1")]
    service: String,
}

/// `HealthCheckResponse`.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
struct HealthResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// `HealthCheckResponse.ServingStatus`.
const SERVING: i32 = 1;
/// Their names, as `grpc_health_probe` prints them.
const STATUSES: [&str; 4] = ["UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"];

/// A check made ready to be run against one origin.
pub(super) struct GrpcProbe {
    address: SocketAddr,
    sockets: Sockets,
    service: String,
    tls: Option<(Client, ServerName<'static>)>,
}

/// An answer, as far as it came.
#[derive(Debug, Default)]
struct Answer {
    status: u16,
    head: HeaderMap,
    body: Vec<u8>,
    trailers: HeaderMap,
}

impl GrpcProbe {
    pub(super) fn new(check: &GrpcCheck, setting: Setting<'_>) -> Result<Self, ProbeError> {
        let tls = match &check.tls {
            None => None,
            Some(tls) => {
                Some((setting.trust.client(tls, &["h2".to_owned()])?.resuming(), tls.name_or(setting.address.ip())))
            }
        };
        let (address, sockets) = (setting.address, setting.sockets.clone());
        Ok(Self { address, sockets, service: check.service.clone(), tls })
    }

    async fn round(&self, trace: &mut Trace) -> Result<Outcome, Outcome> {
        let connection = self.sockets.open(self.address, trace).await?;
        let Some((client, name)) = &self.tls else {
            return self.call(connection, &self.address.to_string(), "http", trace).await;
        };
        let Session { stream, is_ending, .. } = client.connect(name.clone(), connection, trace).await?;
        let authority = match name {
            ServerName::DnsName(name) => format!("{}:{}", name.as_ref(), self.address.port()),
            _ => self.address.to_string(),
        };
        let outcome = self.call(stream, &authority, "https", trace).await?;
        Ok(if is_ending && outcome == Outcome::Pass { Outcome::Slow } else { outcome })
    }

    async fn call<C: AsyncRead + AsyncWrite + Send + Unpin>(
        &self,
        connection: C,
        authority: &str,
        scheme: &str,
        trace: &mut Trace,
    ) -> Result<Outcome, Outcome> {
        trace.begin("call", Layer::Application);
        let answer = self.exchange(connection, authority, scheme).await.map_err(|error| {
            trace.explain(error.to_string());
            failure::of_exchange(&error)
        })?;
        Ok(judge(&answer, trace))
    }

    async fn exchange<C: AsyncRead + AsyncWrite + Send + Unpin>(
        &self,
        connection: C,
        authority: &str,
        scheme: &str,
    ) -> Result<Answer, h2::Error> {
        let (mut sender, driver) = h2::client::handshake(connection).await?;
        let request = Request::post(format!("{scheme}://{authority}/grpc.health.v1.Health/Check"))
            .header(CONTENT_TYPE, "application/grpc")
            .header("te", "trailers")
            .header("user-agent", "sluice")
            .body(());
        let request = request.map_err(|_malformed| h2::Error::from(h2::Reason::INTERNAL_ERROR))?;
        let message = framed(&HealthRequest { service: self.service.clone() });
        let mut call = pin!(async move {
            let (response, mut stream) = sender.send_request(request, false)?;
            stream.send_data(message, true)?;
            let (head, mut body) = response.await?.into_parts();
            let mut answer = Answer { status: head.status.as_u16(), head: head.headers, ..Answer::default() };
            while let Some(data) = body.data().await {
                let data = data?;
                // What was read makes room for more. A stream that is over wants none.
                drop(body.flow_control().release_capacity(data.len()));
                answer.body.extend_from_slice(&data);
                if answer.body.len() > ANSWER_MAX {
                    return Ok(answer);
                }
            }
            answer.trailers = body.trailers().await?.unwrap_or_default();
            Ok(answer)
        });
        let mut driver = pin!(driver);
        let ended = tokio::select! {
            biased;
            answer = &mut call => return answer,
            ended = &mut driver => ended,
        };
        match (call.await, ended) {
            (Err(_), Err(cause)) => Err(cause),
            (answer, _) => answer,
        }
    }
}

/// A message behind its prefix.
fn framed(message: &impl Message) -> Bytes {
    let bytes = message.encode_to_vec();
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes();
    [&[0], &length[..], &bytes].concat().into()
}

/// The one message of a body. `None`: compressed, cut short, followed by more, or none.
fn unframed(body: &[u8]) -> Option<HealthResponse> {
    let (prefix, message) = body.split_at_checked(PREFIX_BYTES)?;
    let length = u32::from_be_bytes(prefix.get(1..)?.try_into().ok()?);
    let fits = prefix.first() == Some(&0) && usize::try_from(length).ok()? == message.len();
    fits.then(|| HealthResponse::decode(message).ok())?
}

fn judge(answer: &Answer, trace: &mut Trace) -> Outcome {
    if answer.status != 200 {
        trace.explain(format!("HTTP status {}, expected 200", answer.status));
        return Outcome::Fail(Reason::Status(answer.status));
    }
    let is_grpc = answer.head.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    // A call that fails at once says so in its head ("Trailers-Only").
    let told = |name: &str| answer.trailers.get(name).or_else(|| answer.head.get(name))?.to_str().ok();
    let status = told("grpc-status").and_then(|status| status.parse::<u16>().ok());
    match (is_grpc, status) {
        (true, Some(0)) => {}
        (true, Some(code)) => {
            trace.explain(format!("gRPC status {code} {}", told("grpc-message").unwrap_or_default()).trim_end());
            return Outcome::Fail(Reason::Grpc(code));
        }
        _ => {
            trace.explain("what came is no gRPC answer");
            return Outcome::Fail(Reason::Protocol);
        }
    }
    let Some(HealthResponse { status }) = unframed(&answer.body) else {
        trace.explain("what came is no answer of the health service");
        return Outcome::Fail(Reason::Protocol);
    };
    if status == SERVING {
        return Outcome::Pass;
    }
    let word =
        usize::try_from(status).ok().and_then(|status| STATUSES.get(status)).copied().unwrap_or("unknown status");
    trace.explain(word);
    Outcome::Fail(Reason::NotServing)
}

impl Probe for GrpcProbe {
    fn run<'a>(&'a mut self, trace: &'a mut Trace) -> BoxFuture<'a, Outcome> {
        async { self.round(trace).await.unwrap_or_else(|ended| ended) }.boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_one_message_or_none(body in prop::collection::vec(any::<u8>(), 0..24), status: i32) {
            if let Some(read) = unframed(&body) {
                prop_assert_eq!(body[0], 0, "compressed");
                prop_assert_eq!(usize::from(body[4]) + PREFIX_BYTES, body.len(), "{:?}", read);
            }
            let whole = framed(&HealthResponse { status });
            prop_assert_eq!(unframed(&whole), Some(HealthResponse { status }));
            prop_assert_eq!(unframed(&whole[..whole.len() - 1]), None);
        }
    }
}
