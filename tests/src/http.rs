//! A plain HTTP/1.1 client for single requests; the load has its own.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpAnswer {
    /// Status code.
    pub status: u16,
    /// Value of `X-Origin`.
    pub origin: Option<String>,
    /// The body, without transfer coding.
    pub body: String,
}

/// One GET, each step within `limit`. The caller is in the right namespace already.
///
/// # Errors
///
/// As the socket's; `InvalidData` for what is no HTTP answer.
pub fn http_get(address: SocketAddr, path: &str, limit: Duration) -> io::Result<HttpAnswer> {
    let start = Instant::now();
    let mut stream = TcpStream::connect_timeout(&address, limit)?;
    stream.set_write_timeout(Some(limit))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: lab.test\r\nConnection: close\r\n\r\n")?;
    let mut bytes = Vec::new();
    let mut piece = [0; 16_384];
    loop {
        let left = limit.saturating_sub(start.elapsed());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut piece)? {
            0 => break,
            count => bytes.extend_from_slice(&piece[..count]),
        }
    }
    parse(&String::from_utf8_lossy(&bytes)).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn parse(text: &str) -> Option<HttpAnswer> {
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let header = |name: &str| {
        head.lines()
            .filter_map(|line| line.split_once(':'))
            .find_map(|(key, value)| key.eq_ignore_ascii_case(name).then(|| value.trim().to_owned()))
    };
    let chunked = header("transfer-encoding").is_some_and(|coding| coding.eq_ignore_ascii_case("chunked"));
    let body = if chunked { unchunk(body)? } else { body.to_owned() };
    Some(HttpAnswer { status, origin: header("x-origin"), body })
}

fn unchunk(mut rest: &str) -> Option<String> {
    let mut body = String::new();
    loop {
        let (size, after) = rest.split_once("\r\n")?;
        let size = usize::from_str_radix(size.split(';').next()?.trim(), 16).ok()?;
        if size == 0 {
            return Some(body);
        }
        body += after.get(..size)?;
        rest = after.get(size..)?.strip_prefix("\r\n")?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_plain_and_chunked() {
        let plain = parse("HTTP/1.1 200 OK\r\nx-origin: a\r\n\r\na\n");
        assert_eq!(plain, Some(HttpAnswer { status: 200, origin: Some("a".into()), body: "a\n".into() }));
        let chunked = parse("HTTP/1.1 503 No\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n");
        assert_eq!(chunked, Some(HttpAnswer { status: 503, origin: None, body: "abc".into() }));
        assert_eq!(parse("SSH-2.0"), None);
    }
}
