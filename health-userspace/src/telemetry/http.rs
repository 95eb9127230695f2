//! `/metrics` and `/healthz`.

use super::{collect::Metrics, health::Heartbeat};
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::encoding::prometheus_text;
use std::{convert::Infallible, io, net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::timeout,
};

/// Connections served at once; Prometheus needs one.
const CLIENTS_MAX: usize = 64;
/// A client that sends no request for this long is sent away.
const HEAD_MAX: Duration = Duration::from_secs(10);
/// A connection ends after this, however busy; scrapers open another.
const CONNECTION_MAX: Duration = Duration::from_mins(10);

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";

/// Why metrics can't be served.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The address is taken, or not ours.
    #[error("cannot listen on `control.listen` = {listen}")]
    Bind {
        /// The address.
        listen: SocketAddr,
        /// Why.
        source: io::Error,
    },
}

/// An open HTTP port.
#[derive(Debug)]
pub struct Server {
    socket: TcpListener,
    metrics: Metrics,
    heartbeat: Heartbeat,
}

impl Server {
    /// Opens the port.
    ///
    /// # Errors
    ///
    /// The address is taken, or not ours.
    pub async fn bind(listen: SocketAddr, metrics: Metrics, heartbeat: Heartbeat) -> Result<Self, TelemetryError> {
        let socket = TcpListener::bind(listen).await.map_err(|source| TelemetryError::Bind { listen, source })?;
        Ok(Self { socket, metrics, heartbeat })
    }

    /// Where it listens, which tells the port if 0 was asked for.
    ///
    /// # Errors
    ///
    /// The kernel doesn't say.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Serves for ever.
    pub async fn serve(self) {
        let places = Arc::new(Semaphore::new(CLIENTS_MAX));
        loop {
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
            match self.socket.accept().await {
                Ok((stream, _)) => {
                    let (metrics, heartbeat) = (self.metrics.clone(), self.heartbeat.clone());
                    tokio::spawn(async move {
                        attend(stream, metrics, heartbeat).await;
                        drop(place);
                    });
                }
                // Out of descriptors, most likely: the port stays, so wait instead of spinning.
                Err(error) => {
                    tracing::warn!(%error, "cannot accept an HTTP client");
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            }
        }
    }
}

async fn attend(stream: TcpStream, metrics: Metrics, heartbeat: Heartbeat) {
    let service = service_fn(move |request: Request<Incoming>| {
        let response = respond(request.method(), request.uri().path(), request.headers(), &metrics, &heartbeat);
        async move { Ok::<_, Infallible>(response) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_MAX);
    if let Ok(Err(error)) = timeout(CONNECTION_MAX, http.serve_connection(TokioIo::new(stream), service)).await {
        tracing::debug!(%error, "an HTTP client went away");
    }
}

fn respond(
    method: &Method,
    path: &str,
    headers: &hyper::HeaderMap,
    metrics: &Metrics,
    heartbeat: &Heartbeat,
) -> Response<Full<Bytes>> {
    if !matches!(path, "/metrics" | "/healthz") {
        return reply(StatusCode::NOT_FOUND, PLAIN, "there are /metrics and /healthz\n".to_owned());
    }
    if method != Method::GET && method != Method::HEAD {
        let mut refused = reply(StatusCode::METHOD_NOT_ALLOWED, PLAIN, "only GET and HEAD\n".to_owned());
        refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refused;
    }
    if path == "/healthz" {
        return match heartbeat.check() {
            Ok(()) => reply(StatusCode::OK, PLAIN, "ok\n".to_owned()),
            Err(reason) => reply(StatusCode::SERVICE_UNAVAILABLE, PLAIN, format!("{reason}\n")),
        };
    }
    // Prometheus asks for OpenMetrics; people, promtool and older scrapers get the classic text.
    let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let (kind, text) = if accept.contains("application/openmetrics-text") {
        (OPENMETRICS, metrics.openmetrics())
    } else {
        (prometheus_text::CONTENT_TYPE, metrics.text())
    };
    match text {
        Ok(text) => reply(StatusCode::OK, kind, text),
        Err(error) => reply(StatusCode::INTERNAL_SERVER_ERROR, PLAIN, format!("{error}\n")),
    }
}

fn reply(status: StatusCode, kind: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::scrape::Scrape;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).await.expect("connects");
        stream.write_all(request.as_bytes()).await.expect("sends");
        let mut answer = String::new();
        let read = timeout(Duration::from_secs(5), stream.read_to_string(&mut answer)).await;
        read.expect("answers in time").expect("reads");
        answer
    }

    async fn get(address: SocketAddr, path: &str, header: &str) -> String {
        ask(address, &format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{header}\r\n")).await
    }

    #[tokio::test]
    async fn pages_and_refusals() {
        let (metrics, heartbeat) = (Metrics::default(), Heartbeat::default());
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = Server::bind(listen, metrics.clone(), heartbeat.clone()).await.expect("binds");
        let address = server.address().expect("has one");
        tokio::spawn(server.serve());

        let early = get(address, "/healthz", "").await;
        assert!(early.starts_with("HTTP/1.1 503 ") && early.ends_with("the loop has not ticked yet\n"), "{early}");
        heartbeat.tick();
        let live = get(address, "/healthz", "").await;
        assert!(live.starts_with("HTTP/1.1 200 ") && live.ends_with("\r\n\r\nok\n"), "{live}");

        let mut scrape = Scrape::default();
        scrape.node.in_sync = Some(true);
        metrics.replace(scrape);
        let classic = get(address, "/metrics", "").await;
        assert!(classic.contains("content-type: text/plain; version=0.0.4"), "{classic}");
        assert!(classic.ends_with("sluice_steering_in_sync 1.0\n"), "{classic}");
        let open = get(address, "/metrics", "accept: application/openmetrics-text;version=1.0.0,*/*;q=0.1\r\n").await;
        assert!(open.contains("content-type: application/openmetrics-text") && open.ends_with("# EOF\n"), "{open}");

        assert!(get(address, "/", "").await.starts_with("HTTP/1.1 404 "));
        let post = "POST /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
        assert!(ask(address, post).await.starts_with("HTTP/1.1 405 "));
        assert!(ask(address, "nonsense\r\n\r\n").await.starts_with("HTTP/1.1 400 "));
    }

    #[tokio::test]
    async fn a_taken_port_is_named() {
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let first = Server::bind(listen, Metrics::default(), Heartbeat::default()).await.expect("binds");
        let taken = first.address().expect("has one");
        let second = Server::bind(taken, Metrics::default(), Heartbeat::default()).await.expect_err("is taken");
        assert_eq!(second.to_string(), format!("cannot listen on `control.listen` = {taken}"));
    }
}
