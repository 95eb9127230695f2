//! Replies of an SMTP server, read from what has come so far.

/// Longest line. Unit: bytes. RFC 5321 §4.5.3.1.5 allows 512; servers that say more are heard out.
const LINE_MAX: usize = 2048;
/// Most lines of one reply: real servers list some twenty extensions.
const LINES_MAX: usize = 100;

/// One reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reply {
    /// 200 to 599.
    pub(super) code: u16,
    /// The texts of its lines, without codes and line ends.
    pub(super) lines: Vec<String>,
}

/// Not SMTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("what came is no SMTP reply")]
pub(super) struct NoReply;

impl Reply {
    /// The code's first digit.
    pub(super) const fn class(&self) -> u16 {
        self.code / 100
    }

    /// Whether a reply to EHLO offers this extension.
    pub(super) fn offers(&self, extension: &str) -> bool {
        let named = |line: &String| line.split(' ').next().is_some_and(|word| word.eq_ignore_ascii_case(extension));
        self.lines.iter().skip(1).any(named)
    }

    /// As people read it.
    pub(super) fn words(&self) -> String {
        format!("{} {}", self.code, self.lines.join(" / ")).trim_end().to_owned()
    }
}

/// Takes the first reply off `heard`. `None` while its last line has not come.
///
/// A reply is lines `CODE-text` and a last one `CODE text` or the bare code (RFC 5321 §4.2); a line may end without a
/// carriage return, as some servers write it.
///
/// # Errors
///
/// What has come begins with something else.
pub(super) fn take(heard: &mut Vec<u8>) -> Result<Option<Reply>, NoReply> {
    let mut lines = Vec::new();
    let (mut at, mut first) = (0, None);
    loop {
        let rest = heard.get(at..).unwrap_or_default();
        let Some(end) = rest.iter().position(|&byte| byte == b'\n') else {
            // A line that has begun wrongly, or won't end, is not waited for.
            return if rest.len() > LINE_MAX || !may_begin_line(rest) { Err(NoReply) } else { Ok(None) };
        };
        let line = rest.get(..end).unwrap_or_default();
        let (code, more, text) = read_line(line.strip_suffix(b"\r").unwrap_or(line))?;
        if end > LINE_MAX || lines.len() == LINES_MAX || first.is_some_and(|first| first != code) {
            return Err(NoReply);
        }
        first = Some(code);
        lines.push(text);
        at += end + 1;
        if !more {
            heard.drain(..at);
            return Ok(Some(Reply { code, lines }));
        }
    }
}

fn may_begin_line(begun: &[u8]) -> bool {
    let digits = begun.iter().take(3).enumerate().all(|(nth, byte)| match nth {
        0 => (b'2'..=b'5').contains(byte),
        _ => byte.is_ascii_digit(),
    });
    digits && begun.get(3).is_none_or(|byte| b"- \r".contains(byte))
}

/// Code, whether more lines follow, text.
fn read_line(line: &[u8]) -> Result<(u16, bool, String), NoReply> {
    let (code, rest) = line.split_at_checked(3).ok_or(NoReply)?;
    if !may_begin_line(line) {
        return Err(NoReply);
    }
    let code = std::str::from_utf8(code).ok().and_then(|code| code.parse().ok()).ok_or(NoReply)?;
    let text = |rest: &[u8]| String::from_utf8_lossy(rest).into_owned();
    match rest.split_first() {
        None => Ok((code, false, String::new())),
        Some((b' ', rest)) => Ok((code, false, text(rest))),
        Some((b'-', rest)) => Ok((code, true, text(rest))),
        Some(_) => Err(NoReply),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(bytes: &[u8]) -> (Result<Vec<Reply>, NoReply>, Vec<u8>) {
        let (mut heard, mut replies) = (bytes.to_vec(), Vec::new());
        loop {
            match take(&mut heard) {
                Ok(Some(reply)) => replies.push(reply),
                Ok(None) => return (Ok(replies), heard),
                Err(error) => return (Err(error), heard),
            }
        }
    }

    fn reply(code: u16, lines: &[&str]) -> Reply {
        Reply { code, lines: lines.iter().map(|line| (*line).to_owned()).collect() }
    }

    #[test]
    fn replies_end_with_their_last_line() {
        let table: &[(&str, &[Reply], &str)] = &[
            ("220 x\r\n", &[reply(220, &["x"])], ""),
            ("220\r\n", &[reply(220, &[""])], ""),
            ("220 \n", &[reply(220, &[""])], ""),
            ("220-a\r\n220-b\r\n220 c\r\n250 d\r\n", &[reply(220, &["a", "b", "c"]), reply(250, &["d"])], ""),
            ("220-a\r\n220", &[], "220-a\r\n220"),
            ("", &[], ""),
            ("2", &[], "2"),
            ("451 busy\r\n55", &[reply(451, &["busy"])], "55"),
        ];
        for (bytes, expected, left) in table {
            let (replies, rest) = all(bytes.as_bytes());
            assert_eq!(replies.as_deref(), Ok(*expected), "{bytes:?}");
            assert_eq!(rest, left.as_bytes(), "{bytes:?}");
        }
    }

    #[test]
    fn what_is_no_reply_is_not_waited_for() {
        let long = format!("220 {}", "x".repeat(LINE_MAX));
        let many = "250-x\r\n".repeat(LINES_MAX + 1);
        let table = [
            "HTTP/1.1 400",
            "SSH-2.0-x\r\n",
            "22x",
            "220_",
            "120 x\r\n",
            "600 x\r\n",
            "220-a\r\n221 b\r\n",
            "\r\n",
            &long,
            &many,
        ];
        for bytes in table {
            assert_eq!(all(bytes.as_bytes()).0, Err(NoReply), "{bytes:?}");
        }
    }

    #[test]
    fn extensions_are_whole_words_of_later_lines() {
        let reply = reply(250, &["STARTTLS greets", "SIZE 1000", "starttls", "8BITMIME"]);
        assert!(reply.offers("STARTTLS") && reply.offers("SIZE"));
        assert!(!reply.offers("START") && !reply.offers("greets"));
        assert_eq!(reply.words(), "250 STARTTLS greets / SIZE 1000 / starttls / 8BITMIME");
    }

    proptest! {
        /// However the network cuts what a server says, it says the same.
        #[test]
        fn any_bytes_mean_the_same_however_they_are_cut(
            lines in prop::collection::vec("[2-5][0-9]{2}[- ][a-z ]{0,10}\r?\n|[2-5][0-9]{2}\r\n|.{0,6}\n", 0..6),
            cut in any::<prop::sample::Index>(),
        ) {
            let whole = lines.concat().into_bytes();
            let at = if whole.is_empty() { 0 } else { cut.index(whole.len()) };
            let (expected, left) = all(&whole);
            let mut heard = whole[..at].to_vec();
            let mut replies = Vec::new();
            let mut wrong = false;
            for rest in [&whole[at..], &[]] {
                while let Ok(Some(reply)) = take(&mut heard) {
                    replies.push(reply);
                }
                wrong |= take(&mut heard).is_err();
                heard.extend_from_slice(rest);
            }
            match expected {
                Ok(expected) => {
                    prop_assert!(!wrong);
                    prop_assert_eq!((replies, heard), (expected, left));
                }
                Err(NoReply) => prop_assert!(wrong || take(&mut heard).is_err()),
            }
        }

        #[test]
        fn any_bytes_neither_panic_nor_grow(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let (_, left) = all(&bytes);
            prop_assert!(left.len() <= bytes.len());
        }
    }
}
