//! The status of a plain-text HTTP/1.x answer (RFC 9112 §4).

/// Bytes of a response that tell its status: `HTTP/1.x NNN`.
pub const STATUS_LEN: usize = 12;

/// The first digit of the status, 1 to 5; 0 when the bytes begin no HTTP/1.x answer.
#[inline(always)]
#[must_use]
pub const fn status_class(bytes: &[u8; STATUS_LEN]) -> u8 {
    let [h, t1, t2, p, slash, major, dot, minor, space, class, tens, ones] = *bytes;
    // Compared as two words: byte by byte, each would be a branch.
    let version = u32::from_be_bytes([h, t1, t2, p]) == u32::from_be_bytes(*b"HTTP")
        && u32::from_be_bytes([slash, major, dot, space]) == u32::from_be_bytes(*b"/1. ")
        && minor.is_ascii_digit();
    if version && class >= b'1' && class <= b'5' && tens.is_ascii_digit() && ones.is_ascii_digit() {
        class - b'0'
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_class_of_a_status_line() {
        let table: [(&[u8; STATUS_LEN], u8); 12] = [
            (b"HTTP/1.1 200", 2),
            (b"HTTP/1.0 503", 5),
            (b"HTTP/1.1 100", 1),
            (b"HTTP/1.1 404", 4),
            (b"HTTP/1.1 301", 3),
            (b"HTTP/1.1 600", 0),
            (b"HTTP/1.1 099", 0),
            (b"HTTP/2.0 503", 0),
            (b"HTTP/1.1\t503", 0),
            (b"http/1.1 503", 0),
            (b"HTTP/1.1 5x3", 0),
            (b"\x16\x03\x03\x00\x7a\x02\x00\x00\x76\x03\x03\x00", 0),
        ];
        for (bytes, class) in table {
            assert_eq!(status_class(bytes), class, "{}", bytes.escape_ascii());
        }
    }
}
