//! The login guard: whether this PIN may be tried on this token, kept on disk.
//!
//! Tokens lock after three wrong PINs. Restarts and respawned workers multiply attempts, so what is known of a PIN is
//! written down, and an attempt is written down *before* it is made. A token's file names no PIN: it holds a salted, slow
//! hash (PBKDF2) by which the same PIN is known again.
//!
//! ```text
//! none ── attempt ─► tried ── accepted ─► good ── attempt ─► tried (was good)
//!                      ├──── refused ───► bad        nothing more until the PIN file changes, or `pkcs11 unlock`
//!                      └──── no answer ─► tried      the same; one that was good may be retried after 10 minutes
//! ```

use ring::{
    digest, pbkdf2,
    rand::{SecureRandom, SystemRandom},
};
use serde::{Deserialize, Serialize};
use std::{
    fmt::Write as _,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, ErrorKind, Write},
    num::NonZeroU32,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// Rounds of the hash: about 30 ms, once in a worker's life. OWASP asks for 600,000 where attackers may guess at leisure;
/// this file is root's, as the PIN itself is.
const ROUNDS: NonZeroU32 = NonZeroU32::new(100_000).expect("not zero");
/// A PIN that was good and whose last attempt had no answer may be tried again after this. Unit: s.
const RETRY_AFTER_S: u64 = 600;
/// PINs that are remembered of a token.
const RECORDS_MAX: usize = 4;
/// Folder under the state directory.
const FOLDER: &str = "pkcs11";

/// Why a login is not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// This PIN was wrong.
    Bad,
    /// An attempt with it had no answer.
    Unresolved,
    /// The token would lock after a few more mistakes, and this PIN is not known to be right.
    CountLow,
    /// One more mistake locks the token.
    FinalTry,
    /// The token is locked.
    Locked,
}

impl Refusal {
    pub(super) const fn why(self) -> &'static str {
        match self {
            Self::Bad => "this PIN was refused before; write the right one into the file, or `sluice pkcs11 unlock`",
            Self::Unresolved => {
                "a login with this PIN had no answer; see that it is right, then `sluice pkcs11 unlock`"
            }
            Self::CountLow => {
                "the token counts wrong PINs, and this one was never accepted; see that it is right, then `sluice pkcs11 unlock`"
            }
            Self::FinalTry => "the token is at its final try: log in by hand",
            Self::Locked => "the token is locked",
        }
    }
}

/// All that is known of one token's PINs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Book {
    serial: String,
    salt: String,
    /// An operator allows one attempt, whatever is known.
    unlocked: bool,
    /// Newest last, at most [`RECORDS_MAX`].
    records: Vec<Record>,
}

/// What is known of one PIN.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    digest: String,
    state: State,
    /// Whether this PIN was ever accepted.
    was_good: bool,
    /// When the state was written. Unit: seconds since 1970.
    at: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Tried,
    Good,
    Bad,
}

/// What a token's flags say about its PIN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PinFlags {
    pub(super) count_low: bool,
    pub(super) final_try: bool,
    pub(super) locked: bool,
}

/// One token's latch.
#[derive(Clone, Debug)]
pub(super) struct Latch {
    path: PathBuf,
    serial: String,
}

/// An attempt that is written down and not yet made.
#[derive(Debug)]
pub(super) struct Attempt {
    latch: Latch,
    /// The attempt is the last record.
    book: Book,
    before: Option<State>,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tried {
    /// The PIN was accepted.
    Accepted,
    /// The PIN was refused.
    Refused,
    /// The module said no for another reason: nothing is known about the PIN.
    Unjudged,
}

impl Latch {
    pub(super) fn new(state_dir: &Path, serial: &str) -> Self {
        // A serial may hold any byte; a file name may not.
        let name = hex(digest::digest(&digest::SHA256, serial.as_bytes()).as_ref());
        Self { path: state_dir.join(FOLDER).join(format!("{}.json", &name[..32])), serial: serial.to_owned() }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Allows one attempt with whatever PIN the file has then, unless the token itself forbids it.
    pub(super) fn unlock(&self) -> io::Result<()> {
        let mut book = match self.read()? {
            Some(book) => book,
            None => Book::of(&self.serial)?,
        };
        book.records.retain(|record| record.was_good);
        book.records.iter_mut().for_each(|record| record.state = State::Good);
        book.unlocked = true;
        self.write(&book)
    }

    /// Asks for an attempt and writes it down. `now_s` is the wall clock, in seconds since 1970. Takes some 30 ms.
    ///
    /// # Errors
    ///
    /// It can't be written: then no attempt may be made either.
    pub(super) fn attempt(&self, pin: &[u8], flags: PinFlags, now_s: u64) -> io::Result<Result<Attempt, Refusal>> {
        if flags.locked {
            return Ok(Err(Refusal::Locked));
        }
        if flags.final_try {
            return Ok(Err(Refusal::FinalTry));
        }
        let mut book = match self.read()? {
            Some(book) => book,
            None => Book::of(&self.serial)?,
        };
        let digest = hash(&book.salt, pin);
        let known = book.records.iter().position(|record| record.digest == digest);
        let known = known.map(|at| book.records.remove(at));
        let was_good = known.as_ref().is_some_and(|record| record.was_good);
        if !book.unlocked {
            if let Some(record) = &known {
                let waited = now_s.saturating_sub(record.at) >= RETRY_AFTER_S;
                match record.state {
                    State::Good => {}
                    State::Bad => return Ok(Err(Refusal::Bad)),
                    State::Tried if record.was_good && waited => {}
                    State::Tried => return Ok(Err(Refusal::Unresolved)),
                }
            }
            // If it was our own attempt that the token counts, the operator has changed the file since.
            let ours = book.records.last().is_some_and(|newest| newest.state == State::Bad);
            if flags.count_low && !was_good && !ours {
                return Ok(Err(Refusal::CountLow));
            }
        }
        let before = known.map(|record| record.state);
        book.unlocked = false;
        if book.records.len() >= RECORDS_MAX {
            book.records.remove(0);
        }
        book.records.push(Record { digest, state: State::Tried, was_good, at: now_s });
        self.write(&book)?;
        Ok(Ok(Attempt { latch: self.clone(), book, before }))
    }

    fn read(&self) -> io::Result<Option<Book>> {
        match fs::read(&self.path) {
            // A file that says nothing readable may stand for a refusal: it is not passed over.
            Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(io::Error::other),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whole or not at all, and on the disk before it counts.
    fn write(&self, book: &Book) -> io::Result<()> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        if !folder.is_dir() {
            DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        let fresh = self.path.with_extension("new");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
        file.write_all(&serde_json::to_vec(book)?)?;
        file.sync_all()?;
        fs::rename(&fresh, &self.path)?;
        File::open(folder)?.sync_all()
    }
}

impl Attempt {
    /// Writes down how it ended. An attempt of which nothing is written stays unresolved.
    pub(super) fn resolve(mut self, tried: Tried, now_s: u64) -> io::Result<()> {
        let Some(mut record) = self.book.records.pop() else { return Ok(()) };
        record.at = now_s;
        match (tried, self.before) {
            (Tried::Accepted, _) => {
                (record.state, record.was_good) = (State::Good, true);
                // What was wrong before is over.
                self.book.records.retain(|other| other.was_good);
            }
            (Tried::Refused, _) => (record.state, record.was_good) = (State::Bad, false),
            (Tried::Unjudged, None) => return self.latch.write(&self.book),
            (Tried::Unjudged, Some(before)) => record.state = before,
        }
        self.book.records.push(record);
        self.latch.write(&self.book)
    }
}

impl Book {
    fn of(serial: &str) -> io::Result<Self> {
        let mut salt = [0; 16];
        SystemRandom::new().fill(&mut salt).map_err(|_unspecified| io::Error::other("no random numbers"))?;
        Ok(Self { serial: serial.to_owned(), salt: hex(&salt), unlocked: false, records: Vec::new() })
    }
}

fn hash(salt: &str, pin: &[u8]) -> String {
    let mut out = [0; 32];
    pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, ROUNDS, salt.as_bytes(), pin, &mut out);
    hex(&out)
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a string cannot fail.
        write!(text, "{byte:02x}").unwrap_or_default();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: PinFlags = PinFlags { count_low: false, final_try: false, locked: false };
    const LOW: PinFlags = PinFlags { count_low: true, ..NONE };

    fn attempt(latch: &Latch, pin: &str, flags: PinFlags, now_s: u64) -> Result<Attempt, Refusal> {
        latch.attempt(pin.as_bytes(), flags, now_s).expect("the folder is ours")
    }

    #[test]
    fn a_wrong_pin_is_tried_once_whoever_asks() {
        let folder = tempfile::tempdir().expect("a folder");
        let latch = Latch::new(folder.path(), "0A1B/../x");
        attempt(&latch, "wrong", NONE, 0).expect("new").resolve(Tried::Refused, 0).expect("written");
        // A daemon that was restarted knows no more than the file.
        let again = Latch::new(folder.path(), "0A1B/../x");
        assert_eq!(attempt(&again, "wrong", NONE, 1_000_000).err(), Some(Refusal::Bad));
        let text = fs::read_to_string(latch.path()).expect("it is there");
        assert!(!text.contains("wrong"), "{text}");
        // Another PIN is another matter: what the token counts was our own attempt.
        attempt(&latch, "right", LOW, 1).expect("new").resolve(Tried::Accepted, 1).expect("written");
        assert!(attempt(&latch, "right", LOW, 2).is_ok(), "known to be right");
    }

    #[test]
    fn a_good_pin_is_known_again_after_a_wrong_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let latch = Latch::new(folder.path(), "1");
        attempt(&latch, "good", NONE, 0).expect("new").resolve(Tried::Accepted, 0).expect("written");
        attempt(&latch, "typo", NONE, 1).expect("new").resolve(Tried::Refused, 1).expect("written");
        attempt(&latch, "good", LOW, 2).expect("it is known").resolve(Tried::Accepted, 2).expect("written");
        // Now somebody else has mistaken it, and a PIN that nobody knows is no PIN to try.
        assert_eq!(attempt(&latch, "other", LOW, 3).err(), Some(Refusal::CountLow));
    }

    #[test]
    fn an_operator_allows_one_attempt() {
        let folder = tempfile::tempdir().expect("a folder");
        let latch = Latch::new(folder.path(), "1");
        assert_eq!(attempt(&latch, "wrong", LOW, 0).err(), Some(Refusal::CountLow));
        latch.unlock().expect("written");
        attempt(&latch, "wrong", LOW, 0).expect("allowed").resolve(Tried::Refused, 0).expect("written");
        assert_eq!(attempt(&latch, "wrong", LOW, 1).err(), Some(Refusal::Bad));
        latch.unlock().expect("written");
        assert_eq!(attempt(&latch, "wrong", PinFlags { final_try: true, ..LOW }, 2).err(), Some(Refusal::FinalTry));
        attempt(&latch, "wrong", LOW, 2).expect("allowed").resolve(Tried::Refused, 2).expect("written");
        assert_eq!(attempt(&latch, "wrong", LOW, 3).err(), Some(Refusal::Bad), "once");
    }

    #[test]
    fn an_attempt_without_an_answer_is_repeated_only_if_the_pin_was_good_and_not_soon() {
        let folder = tempfile::tempdir().expect("a folder");
        let latch = Latch::new(folder.path(), "1");
        drop(attempt(&latch, "never", NONE, 0).expect("new"));
        assert_eq!(attempt(&latch, "never", NONE, 1_000_000).err(), Some(Refusal::Unresolved));
        attempt(&latch, "good", NONE, 0).expect("new").resolve(Tried::Accepted, 0).expect("written");
        drop(attempt(&latch, "good", NONE, 100).expect("known"));
        assert_eq!(attempt(&latch, "good", NONE, 699).err(), Some(Refusal::Unresolved));
        drop(attempt(&latch, "good", NONE, 700).expect("ten minutes"));
        assert_eq!(attempt(&latch, "good", NONE, 701).err(), Some(Refusal::Unresolved));
    }

    #[test]
    fn what_does_not_judge_the_pin_changes_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let latch = Latch::new(folder.path(), "1");
        attempt(&latch, "new", NONE, 0).expect("new").resolve(Tried::Unjudged, 0).expect("written");
        attempt(&latch, "new", NONE, 0).expect("still new").resolve(Tried::Accepted, 0).expect("written");
        attempt(&latch, "new", NONE, 0).expect("good").resolve(Tried::Unjudged, 0).expect("written");
        assert!(attempt(&latch, "new", LOW, 0).is_ok(), "still good");
    }

    #[test]
    fn flags_of_the_token_come_first() {
        let folder = tempfile::tempdir().expect("a folder");
        let latch = Latch::new(folder.path(), "1");
        assert_eq!(attempt(&latch, "x", PinFlags { locked: true, ..LOW }, 0).err(), Some(Refusal::Locked));
        assert_eq!(attempt(&latch, "x", PinFlags { final_try: true, ..LOW }, 0).err(), Some(Refusal::FinalTry));
        assert_eq!(attempt(&latch, "x", LOW, 0).err(), Some(Refusal::CountLow));
        assert!(!latch.path().exists(), "nothing was tried");
    }

    #[test]
    fn a_file_that_cannot_be_read_is_not_passed_over() {
        let folder = tempfile::tempdir().expect("a folder");
        let latch = Latch::new(folder.path(), "1");
        fs::create_dir(folder.path().join(FOLDER)).expect("made");
        fs::write(latch.path(), "{").expect("written");
        assert!(latch.attempt(b"x", NONE, 0).is_err());
    }
}
