//! Signed checks: an origin can tell them from what pretends to be one.
//!
//! ```text
//! X-Sluice-Signature: v1;id=2026-11;time=1764508800;nonce=9f86d081884c7d659a2feaa0c55ad015;mac=…64 hex digits…
//! mac = HMAC-SHA256(key, "v1\nGET\n/healthz?full=1\n1764508800\n9f86d081884c7d659a2feaa0c55ad015")
//! ```
//!
//! The target is the one of the request line, so what is signed is what is asked. How an origin verifies it is in
//! `docs/checks.md`. HMAC: RFC 2104; test vectors: RFC 4231.

use super::ProbeError;
use crate::config::SigningConfig;
use hyper::{
    Request,
    header::{HeaderName, HeaderValue},
};
use ring::{
    hmac,
    rand::{SecureRandom, SystemRandom},
};
use std::{
    fmt::Write,
    fs,
    time::{SystemTime, UNIX_EPOCH},
};

/// Shortest key: RFC 2104 §3 advises the length of the hash's output, and half of that can't be guessed either.
const KEY_BYTES_MIN: usize = 16;

/// A key that was read.
pub(super) struct Signer {
    header: HeaderName,
    id: String,
    key: hmac::Key,
    random: SystemRandom,
}

impl Signer {
    /// Reads the key file. White space at its end is not part of the key, for editors leave a line end there.
    pub(super) fn load(config: &SigningConfig) -> Result<Self, ProbeError> {
        let path = || config.key.file.clone();
        let secret = fs::read(&config.key.file).map_err(|source| ProbeError::Key { path: path(), source })?;
        let secret = secret.trim_ascii_end();
        if secret.len() < KEY_BYTES_MIN {
            return Err(ProbeError::ShortKey { path: path(), bytes: secret.len(), min: KEY_BYTES_MIN });
        }
        Ok(Self {
            header: config.header.clone(),
            id: config.key.id.clone(),
            key: hmac::Key::new(hmac::HMAC_SHA256, secret),
            random: SystemRandom::new(),
        })
    }

    /// Signs a request as it stands: its method and target must not change after this.
    ///
    /// Says no if this node has no randomness or no time, which is no fault of the origin.
    pub(super) fn sign<B>(&self, request: &mut Request<B>) -> Result<(), NoSignature> {
        let mut nonce = [0_u8; 16];
        self.random.fill(&mut nonce).map_err(|_unspecified| NoSignature)?;
        let time = SystemTime::now().duration_since(UNIX_EPOCH).map_err(|_before| NoSignature)?.as_secs();
        let target = request.uri().path_and_query().map_or("/", |target| target.as_str());
        let value = self.value(request.method().as_str(), target, time, &hex(&nonce));
        let value = HeaderValue::from_str(&value).map_err(|_never| NoSignature)?;
        request.headers_mut().insert(self.header.clone(), value);
        Ok(())
    }

    fn value(&self, method: &str, target: &str, time: u64, nonce: &str) -> String {
        let signed = format!("v1\n{method}\n{target}\n{time}\n{nonce}");
        let mac = hex(hmac::sign(&self.key, signed.as_bytes()).as_ref());
        format!("v1;id={};time={time};nonce={nonce};mac={mac}", self.id)
    }
}

/// This node can't sign at the moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct NoSignature;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a string cannot fail.
        write!(text, "{byte:02x}").unwrap_or_default();
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SigningKey;
    use std::{collections::HashSet, path::Path};

    fn signer(file: &Path) -> Result<Signer, ProbeError> {
        let key = SigningKey { id: "2026-11".to_owned(), file: file.to_path_buf() };
        let header = HeaderName::from_static("x-probe");
        Signer::load(&SigningConfig { name: "probe".to_owned(), header, key: key.clone(), keys: vec![key] })
    }

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().expect("a file");
        fs::write(file.path(), text).expect("writes");
        file
    }

    /// The example of `docs/checks.md`, made there with openssl.
    #[test]
    fn the_documented_example_is_what_is_sent() {
        let key = file("correct horse battery staple\n");
        let value = signer(key.path()).expect("a key").value(
            "GET",
            "/healthz?full=1",
            1_764_508_800,
            "9f86d081884c7d659a2feaa0c55ad015",
        );
        let docs = include_str!("../../../docs/checks.md");
        assert!(docs.contains(&value), "the guide shows another signature than\n{value}");
    }

    #[test]
    fn each_request_has_its_own_nonce_and_the_time_of_now() {
        let key = file("0123456789abcdef");
        let signer = signer(key.path()).expect("a key");
        let mut seen = HashSet::new();
        for _ in 0..100 {
            let mut request = Request::post("/login?a=b").body(()).expect("a request");
            signer.sign(&mut request).expect("a signature");
            let value = request.headers()["x-probe"].to_str().expect("text").to_owned();
            let field =
                |name: &str| value.split(';').find_map(|part| part.strip_prefix(name)).expect("a field").to_owned();
            let (time, nonce) = (field("time=").parse::<u64>().expect("a number"), field("nonce="));
            assert_eq!(value, signer.value("POST", "/login?a=b", time, &nonce));
            let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time").as_secs();
            assert!(now - time <= 2, "{time} is not now");
            assert!(seen.insert(nonce), "a nonce twice");
        }
    }

    #[test]
    fn a_key_that_is_missing_or_short_is_named() {
        let missing = signer(Path::new("/nonexistent/key")).err().expect("no key").to_string();
        assert_eq!(missing, "cannot read the signing key `/nonexistent/key`");
        let short = file("secret\n");
        let error = signer(short.path()).err().expect("a short key").to_string();
        assert!(error.contains("has 6 bytes; 16 is the least"), "{error}");
    }
}
