//! One big download: a server that sends while it can, and a client that counts.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use lab::Namespace;

const CHUNK: usize = 1 << 18;
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// Slow start and the first buffers are not what is measured.
const WARM: Duration = Duration::from_millis(300);

/// Serves one download on `address`, in `ns`, until its client leaves.
pub(super) fn serve(ns: &Namespace, address: SocketAddr) -> Result<JoinHandle<Result<()>>> {
    // Listening before the thread starts, so that nobody has to wait for it.
    let listener = ns.enter(|| TcpListener::bind(address))?.with_context(|| format!("cannot listen on {address}"))?;
    ns.thread("stream", move || {
        let (mut client, _) = listener.accept()?;
        let chunk = vec![0; CHUNK];
        loop {
            match client.write_all(&chunk) {
                Ok(()) => {}
                Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            }
        }
    })
}

/// Bits per second of a download that lasts `time`.
pub(super) fn download(ns: &Namespace, address: SocketAddr, time: Duration) -> Result<f64> {
    let bytes = ns.enter(|| -> Result<(u64, Duration)> {
        let mut server = TcpStream::connect_timeout(&address, CONNECT_LIMIT)?;
        server.set_read_timeout(Some(CONNECT_LIMIT))?;
        let mut chunk = vec![0; CHUNK];
        let warm = Instant::now();
        while warm.elapsed() < WARM {
            server.read_exact(&mut chunk)?;
        }
        let (begun, mut bytes) = (Instant::now(), 0);
        while begun.elapsed() < time {
            let read = server.read(&mut chunk)?;
            if read == 0 {
                return Err(anyhow!("the download ended early"));
            }
            bytes += u64::try_from(read)?;
        }
        Ok((bytes, begun.elapsed()))
    })?;
    let (bytes, took) = bytes.with_context(|| format!("cannot download from {address}"))?;
    #[expect(clippy::cast_precision_loss, reason = "a few seconds of any network fit into 52 bits")]
    let bits = (bytes * 8) as f64;
    Ok(bits / took.as_secs_f64())
}
