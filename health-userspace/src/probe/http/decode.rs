//! The body of an answer as its rules mean it: without its content coding (RFC 9110 §8.4), and never more of it than the
//! limit, however far it would unfold.

use flate2::write::{MultiGzDecoder, ZlibDecoder};
use hyper::{HeaderMap, header::CONTENT_ENCODING};
use std::io::{self, Write as _};

/// How a body is encoded, of what can be undone here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coding {
    /// Not at all.
    Identity,
    /// RFC 9110 §8.4.1.3; also by its old name, `x-gzip`.
    Gzip,
    /// RFC 9110 §8.4.1.2, which is the zlib format.
    Deflate,
}

impl Coding {
    /// What the head says, or in its own words what we can't undo: another coding, or several.
    pub(super) fn of(headers: &HeaderMap) -> Result<Self, String> {
        let values = headers.get_all(CONTENT_ENCODING);
        let words: Vec<String> = values
            .iter()
            .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
            .map(|word| String::from_utf8_lossy(word.trim_ascii()).to_ascii_lowercase())
            .filter(|word| !word.is_empty() && word != "identity")
            .collect();
        match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
            [] => Ok(Self::Identity),
            ["gzip" | "x-gzip"] => Ok(Self::Gzip),
            ["deflate"] => Ok(Self::Deflate),
            _ => Err(words.join(", ")),
        }
    }
}

/// A body that comes in pieces.
pub(super) enum Decoder {
    Identity(Kept),
    Gzip(MultiGzDecoder<Kept>),
    Deflate(ZlibDecoder<Kept>),
}

/// What has been decoded, up to a limit.
pub(super) struct Kept {
    bytes: Vec<u8>,
    limit: usize,
}

impl io::Write for Kept {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let room = self.limit.saturating_sub(self.bytes.len()).min(data.len());
        if room == 0 && !data.is_empty() {
            // Ends the decoder, which would else unfold the rest of what it was given.
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.bytes.extend_from_slice(data.get(..room).unwrap_or_default());
        Ok(room)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Decoder {
    /// Keeps at most `limit` decoded bytes.
    pub(super) fn new(coding: Coding, limit: usize) -> Self {
        let kept = Kept { bytes: Vec::new(), limit };
        match coding {
            Coding::Identity => Self::Identity(kept),
            Coding::Gzip => Self::Gzip(MultiGzDecoder::new(kept)),
            Coding::Deflate => Self::Deflate(ZlibDecoder::new(kept)),
        }
    }

    /// Takes the next bytes as they came. False once nothing more is wanted.
    ///
    /// # Errors
    ///
    /// They are not in that coding.
    pub(super) fn feed(&mut self, data: &[u8]) -> io::Result<bool> {
        let written = match self {
            Self::Identity(kept) => kept.write_all(data),
            Self::Gzip(decoder) => decoder.write_all(data).and_then(|()| decoder.flush()),
            Self::Deflate(decoder) => decoder.write_all(data).and_then(|()| decoder.flush()),
        };
        let full = self.kept().bytes.len() >= self.kept().limit;
        match written {
            Ok(()) => Ok(!full),
            Err(_) if full => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// All of it, once the body has ended, or once no more was wanted.
    ///
    /// # Errors
    ///
    /// It was cut off, or its checksum is wrong.
    pub(super) fn finish(mut self) -> io::Result<Vec<u8>> {
        let full = self.kept().bytes.len() >= self.kept().limit;
        let ended = match &mut self {
            Self::Identity(_) => Ok(()),
            Self::Gzip(decoder) => decoder.try_finish(),
            Self::Deflate(decoder) => decoder.try_finish(),
        };
        // What is beyond the limit was not read, so it can't be said to be missing.
        if !full {
            ended?;
        }
        Ok(match self {
            Self::Identity(kept) => kept.bytes,
            Self::Gzip(mut decoder) => std::mem::take(&mut decoder.get_mut().bytes),
            Self::Deflate(mut decoder) => std::mem::take(&mut decoder.get_mut().bytes),
        })
    }

    fn kept(&self) -> &Kept {
        match self {
            Self::Identity(kept) => kept,
            Self::Gzip(decoder) => decoder.get_ref(),
            Self::Deflate(decoder) => decoder.get_ref(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{
        Compression,
        write::{GzEncoder, ZlibEncoder},
    };
    use hyper::header::HeaderValue;
    use proptest::prelude::*;

    fn gzip(plain: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(plain).expect("memory");
        encoder.finish().expect("memory")
    }

    fn zlib(plain: &[u8]) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(plain).expect("memory");
        encoder.finish().expect("memory")
    }

    /// Fed in pieces of that size; the end of the body is told unless no more was wanted.
    fn decoded(coding: Coding, bytes: &[u8], piece: usize, limit: usize) -> io::Result<Vec<u8>> {
        let mut decoder = Decoder::new(coding, limit);
        for data in bytes.chunks(piece.max(1)) {
            if !decoder.feed(data)? {
                break;
            }
        }
        decoder.finish()
    }

    #[test]
    fn what_the_head_says() {
        let table: [(&[&str], Result<Coding, &str>); 9] = [
            (&[], Ok(Coding::Identity)),
            (&["identity"], Ok(Coding::Identity)),
            (&[" ,"], Ok(Coding::Identity)),
            (&["GZip"], Ok(Coding::Gzip)),
            (&["x-gzip"], Ok(Coding::Gzip)),
            (&["identity", "deflate"], Ok(Coding::Deflate)),
            (&["br"], Err("br")),
            (&["gzip, gzip"], Err("gzip, gzip")),
            (&["gzip", "zstd"], Err("gzip, zstd")),
        ];
        for (values, expected) in table {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(CONTENT_ENCODING, HeaderValue::from_str(value).expect("a value"));
            }
            assert_eq!(Coding::of(&headers), expected.map_err(str::to_owned), "{values:?}");
        }
    }

    #[test]
    fn a_bomb_ends_at_the_limit() {
        let bomb = gzip(&vec![0; 16 << 20]);
        assert!(bomb.len() < 32 << 10, "{}", bomb.len());
        for piece in [1000, bomb.len()] {
            let out = decoded(Coding::Gzip, &bomb, piece, 4096).expect("the limit is no error");
            assert_eq!((out.len(), out.capacity() < 64 << 10), (4096, true));
        }
    }

    #[test]
    fn what_is_cut_off_or_damaged_is_an_error() {
        let plain = b"the same again, the same again, the same again".repeat(20);
        for (coding, bytes) in [(Coding::Gzip, gzip(&plain)), (Coding::Deflate, zlib(&plain))] {
            assert_eq!(decoded(coding, &bytes, 7, 1 << 20).expect("whole"), plain);
            for cut in 0..bytes.len() {
                assert!(decoded(coding, &bytes[..cut], 7, 1 << 20).is_err(), "{coding:?} cut at {cut}");
            }
            let mut wrong = bytes.clone();
            *wrong.last_mut().expect("a checksum") ^= 1;
            assert!(decoded(coding, &wrong, 7, 1 << 20).is_err(), "{coding:?} with another checksum");
            assert!(decoded(coding, b"plain text", 4, 1 << 20).is_err(), "{coding:?}");
        }
    }

    proptest! {
        /// Whatever was encoded comes out again, in whatever pieces it comes; of the rest nothing panics, nor grows.
        #[test]
        fn any_bytes_of_an_encoded_body(
            plain in prop::collection::vec(0_u8..4, 0..3000),
            noise in prop::collection::vec(any::<u8>(), 0..300),
            piece in 1_usize..500,
            limit in 0_usize..4000,
            at in any::<prop::sample::Index>(),
        ) {
            let whole = plain.get(..limit.min(plain.len())).unwrap_or_default();
            for (coding, bytes) in [(Coding::Gzip, gzip(&plain)), (Coding::Deflate, zlib(&plain))] {
                let out = decoded(coding, &bytes, piece, limit);
                prop_assert_eq!(out.expect("whole"), whole);
                let mut damaged = bytes.clone();
                damaged[at.index(bytes.len())] ^= 0x55;
                for bytes in [&noise, &damaged] {
                    if let Ok(out) = decoded(coding, bytes, piece, limit) {
                        prop_assert!(out.len() <= limit);
                    }
                }
            }
        }
    }
}
