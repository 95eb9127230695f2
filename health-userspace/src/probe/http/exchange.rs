//! One request and its answer on one connection, in either version of HTTP.
//!
//! Both libraries leave it to us to drive the connection, which is done beside the exchange and not in a task: what the
//! deadline drops is then gone at once, sockets and all.

use super::judge::{Judging, Verdict};
use http_body_util::{BodyExt, Full};
use hyper::{
    Request,
    body::{Body as _, Bytes},
    client::conn::http1,
    ext::on_informational,
};
use hyper_util::rt::TokioIo;
use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
};
use tokio::io::{AsyncRead, AsyncWrite};

/// Longest head of an answer. Unit: bytes. nginx and HAProxy pass on no more.
const HEAD_BYTES_MAX: u32 = 64 << 10;
/// Most interim answers (1xx) before the final one. Servers send one or two; the limit ends those that never come to the
/// point.
const INTERIM_MAX: u8 = 32;

/// Why an exchange has no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("{}", innermost(.0))]
    One(hyper::Error),
    #[error("{}", innermost(.0))]
    Two(h2::Error),
    #[error("more than {INTERIM_MAX} interim answers, the last of status {0}")]
    Interim(u16),
}

/// The libraries wrap what says most.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// The body of an answer.
pub(super) enum Body {
    One(hyper::body::Incoming),
    Two(h2::RecvStream),
}

impl Body {
    /// Its next bytes; `None` at its end.
    pub(super) async fn next(&mut self) -> Option<Result<Bytes, Failure>> {
        match self {
            Self::One(body) => loop {
                if body.is_end_stream() {
                    return None;
                }
                match body.frame().await? {
                    // Trailers are no part of the body.
                    Ok(frame) => {
                        if let Ok(data) = frame.into_data() {
                            return Some(Ok(data));
                        }
                    }
                    Err(error) => return Some(Err(Failure::One(error))),
                }
            },
            Self::Two(body) => match body.data().await? {
                Ok(data) => {
                    // What was read makes room for more. A stream that is over wants none.
                    drop(body.flow_control().release_capacity(data.len()));
                    Some(Ok(data))
                }
                Err(error) => Some(Err(Failure::Two(error))),
            },
        }
    }
}

/// HTTP/1.1.
pub(super) async fn one<C: AsyncRead + AsyncWrite + Send + Unpin>(
    connection: C,
    request: Request<Bytes>,
    judging: Judging<'_>,
) -> Result<Verdict, Failure> {
    let mut builder = http1::Builder::new();
    // As people write them: old servers compare names byte by byte.
    builder.title_case_headers(true).max_buf_size(usize::try_from(HEAD_BYTES_MAX).unwrap_or(usize::MAX));
    let (mut sender, driver) = builder.handshake(TokioIo::new(connection)).await.map_err(Failure::One)?;
    let mut request = request.map(Full::new);
    let interim = Arc::new(AtomicU8::new(0));
    let counter = Arc::clone(&interim);
    on_informational(&mut request, move |_| {
        counter.fetch_add(1, Ordering::Relaxed);
    });
    let exchange = async move {
        let response = sender.send_request(request).await.map_err(Failure::One)?;
        if interim.load(Ordering::Relaxed) > INTERIM_MAX {
            return Err(Failure::Interim(response.status().as_u16()));
        }
        let (head, body) = response.into_parts();
        judging.judge(&head, Body::One(body)).await
    };
    beside(exchange, async { driver.await.map_err(Failure::One) }).await
}

/// HTTP/2.
pub(super) async fn two<C: AsyncRead + AsyncWrite + Send + Unpin>(
    connection: C,
    request: Request<Bytes>,
    judging: Judging<'_>,
) -> Result<Verdict, Failure> {
    let mut builder = h2::client::Builder::new();
    builder.enable_push(false).max_header_list_size(HEAD_BYTES_MAX);
    let (mut sender, driver) = builder.handshake::<C, Bytes>(connection).await.map_err(Failure::Two)?;
    let (head, body) = request.into_parts();
    let exchange = async move {
        let (response, mut stream) =
            sender.send_request(Request::from_parts(head, ()), body.is_empty()).map_err(Failure::Two)?;
        if !body.is_empty() {
            stream.send_data(body, true).map_err(Failure::Two)?;
        }
        let (head, body) = response.await.map_err(Failure::Two)?.into_parts();
        judging.judge(&head, Body::Two(body)).await
    };
    beside(exchange, async { driver.await.map_err(Failure::Two) }).await
}

/// Runs an exchange while its connection is driven. When the connection is over, what was read before may still be a whole
/// answer; where it isn't, the connection's error tells more.
async fn beside(
    exchange: impl Future<Output = Result<Verdict, Failure>>,
    driver: impl Future<Output = Result<(), Failure>>,
) -> Result<Verdict, Failure> {
    let (mut exchange, mut driver) = (pin!(exchange), pin!(driver));
    let ended = tokio::select! {
        biased;
        verdict = &mut exchange => return verdict,
        ended = &mut driver => ended,
    };
    match (exchange.await, ended) {
        (Ok(verdict), _) => Ok(verdict),
        (Err(_), Err(cause)) => Err(cause),
        (Err(error), Ok(())) => Err(error),
    }
}
