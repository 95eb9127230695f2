//! What the rule file says. One rule a line; `#` starts a comment.
//!
//! ```text
//! forward /usr/lib/softhsm/libsofthsm2.so      the real module; without this line the module answers itself
//! slot id=7 label=edge serial=01 pin=1234      a token of its own, where it answers itself
//! C_Sign rv=0x30 times=2                       FUNCTION|*|load ACTION [times=N] [after=N] [every=N] [share=PERCENT]
//! token clock=on skew=120 fw=9.9               what C_GetTokenInfo says otherwise
//! session max=16 foreign=3                     a limit of sessions, some of which others hold
//! pin tries=3                                  C_Login counts and locks
//! ```
//!
//! Actions: `rv=0xN`, `hang` (until the rule is gone), `hardhang` (all signals blocked, for ever), `delay=MS`, `segv`,
//! `abort`, `exit=N`, `stdout` (prints), `corrupt` (the output), `lie` (C_Verify finds everything right), `leak`
//! (C_CloseSession does nothing and says it did), `huge` (an absurd length).

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::PathBuf;
use std::time::Duration;

/// All rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rules {
    /// The module that calls go on to.
    pub(crate) forward: Option<PathBuf>,
    pub(crate) slots: Vec<Slot>,
    pub(crate) faults: Vec<Fault>,
    pub(crate) token: Token,
    pub(crate) sessions: Option<Sessions>,
    /// Wrong PINs until the token locks.
    pub(crate) pin_tries: Option<u64>,
}

/// A slot of the module's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) id: u64,
    pub(crate) label: String,
    pub(crate) serial: String,
    /// Any PIN is right without one.
    pub(crate) pin: Option<String>,
    /// A token without label and serial, as a new one is.
    pub(crate) uninitialised: bool,
    /// What follows the label: blanks, as the standard says, or the zeros that some vendors put.
    pub(crate) nul_padded: bool,
}

/// A fault and when it strikes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// A name such as `C_Sign`, `load` for the moment of loading, or `*`.
    pub(crate) function: String,
    pub(crate) action: Action,
    /// Calls that it lets pass first.
    pub(crate) after: u64,
    /// How often it strikes.
    pub(crate) times: u64,
    /// It strikes each so many calls.
    pub(crate) every: u64,
    /// Percent of the calls that it strikes, drawn from the call's number.
    pub(crate) share: u64,
    /// Names the file that counts the calls, across processes.
    pub(crate) id: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Return(u64),
    Hang,
    HardHang,
    Delay(Duration),
    Segv,
    Abort,
    Exit(i32),
    Stdout,
    Corrupt,
    Lie,
    Leak,
    Huge,
}

/// Changes to `CK_TOKEN_INFO`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Token {
    /// `on` (the host's time), `off`, `blank`, or the sixteen characters themselves.
    pub(crate) clock: Option<String>,
    /// Seconds that the clock is ahead.
    pub(crate) skew: i64,
    pub(crate) firmware: Option<(u8, u8)>,
    pub(crate) hardware: Option<(u8, u8)>,
    pub(crate) set_flags: u64,
    pub(crate) clear_flags: u64,
    pub(crate) label: Option<String>,
    pub(crate) serial: Option<String>,
}

/// A limit of sessions. With it the token says how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sessions {
    pub(crate) max: u64,
    /// Held by others.
    pub(crate) foreign: u64,
}

impl Rules {
    /// Reads the rule file's text.
    ///
    /// # Errors
    ///
    /// The first line that is no rule, and why.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut rules = Self::default();
        for line in text.lines() {
            let line = line.split('#').next().unwrap_or_default().trim();
            rules.add(line).map_err(|why| format!("rule `{line}`: {why}"))?;
        }
        Ok(rules)
    }

    fn add(&mut self, line: &str) -> Result<(), String> {
        let mut words = line.split_whitespace();
        let Some(first) = words.next() else { return Ok(()) };
        match first {
            "forward" => self.forward = Some(words.next().ok_or("no path")?.into()),
            "slot" => self.slots.push(slot(words)?),
            "token" => self.token.read(words)?,
            "session" => self.sessions = Some(sessions(words)?),
            "pin" => self.pin_tries = Some(number(words.next().and_then(|word| word.strip_prefix("tries=")))?),
            function => self.faults.push(fault(function, line, words)?),
        }
        Ok(())
    }
}

fn pair(word: &str) -> (&str, Option<&str>) {
    word.split_once('=').map_or((word, None), |(key, value)| (key, Some(value)))
}

/// A whole number, in decimal or after `0x`.
fn number(value: Option<&str>) -> Result<u64, String> {
    let value = value.ok_or("a number is missing")?;
    let read = match value.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => value.parse(),
    };
    read.map_err(|error| format!("{value}: {error}"))
}

fn version(value: Option<&str>) -> Result<(u8, u8), String> {
    let (major, minor) = value.and_then(|value| value.split_once('.')).ok_or("a version is two numbers with a dot")?;
    let part = |text: &str| text.parse().map_err(|error| format!("{text}: {error}"));
    Ok((part(major)?, part(minor)?))
}

fn slot<'a>(words: impl Iterator<Item = &'a str>) -> Result<Slot, String> {
    let mut slot = Slot::default();
    for word in words {
        match pair(word) {
            ("id", value) => slot.id = number(value)?,
            ("label", Some(value)) => value.clone_into(&mut slot.label),
            ("serial", Some(value)) => value.clone_into(&mut slot.serial),
            ("pin", Some(value)) => slot.pin = Some(value.to_owned()),
            ("uninitialised", None) => slot.uninitialised = true,
            ("pad", Some("nul")) => slot.nul_padded = true,
            _ => return Err(format!("`{word}` is nothing of a slot")),
        }
    }
    Ok(slot)
}

fn sessions<'a>(words: impl Iterator<Item = &'a str>) -> Result<Sessions, String> {
    let mut sessions = Sessions { max: u64::MAX, foreign: 0 };
    for word in words {
        match pair(word) {
            ("max", value) => sessions.max = number(value)?,
            ("foreign", value) => sessions.foreign = number(value)?,
            _ => return Err(format!("`{word}` is nothing of sessions")),
        }
    }
    Ok(sessions)
}

fn fault<'a>(function: &str, line: &str, mut words: impl Iterator<Item = &'a str>) -> Result<Fault, String> {
    let action = match pair(words.next().ok_or("no action")?) {
        ("rv", value) => Action::Return(number(value)?),
        ("hang", None) => Action::Hang,
        ("hardhang", None) => Action::HardHang,
        ("delay", value) => Action::Delay(Duration::from_millis(number(value)?)),
        ("segv", None) => Action::Segv,
        ("abort", None) => Action::Abort,
        ("exit", value) => Action::Exit(i32::try_from(number(value)?).map_err(|error| error.to_string())?),
        ("stdout", None) => Action::Stdout,
        ("corrupt", None) => Action::Corrupt,
        ("lie", None) => Action::Lie,
        ("leak", None) => Action::Leak,
        ("huge", None) => Action::Huge,
        (other, _) => return Err(format!("`{other}` is no action")),
    };
    let mut hash = DefaultHasher::new();
    line.hash(&mut hash);
    let (function, id) = (function.to_owned(), hash.finish());
    let mut fault = Fault { function, action, after: 0, times: u64::MAX, every: 1, share: 100, id };
    for word in words {
        match pair(word) {
            ("times", value) => fault.times = number(value)?,
            ("after", value) => fault.after = number(value)?,
            ("every", value) => fault.every = number(value)?.max(1),
            ("share", value) => fault.share = number(value)?,
            _ => return Err(format!("`{word}` says not when")),
        }
    }
    Ok(fault)
}

impl Token {
    fn read<'a>(&mut self, words: impl Iterator<Item = &'a str>) -> Result<(), String> {
        for word in words {
            match pair(word) {
                ("clock", Some(value)) => self.clock = Some(value.to_owned()),
                ("skew", Some(value)) => self.skew = value.parse().map_err(|error| format!("{value}: {error}"))?,
                ("fw", value) => self.firmware = Some(version(value)?),
                ("hw", value) => self.hardware = Some(version(value)?),
                ("setflags", value) => self.set_flags = number(value)?,
                ("clearflags", value) => self.clear_flags = number(value)?,
                ("label", Some(value)) => self.label = Some(value.to_owned()),
                ("serial", Some(value)) => self.serial = Some(value.to_owned()),
                _ => return Err(format!("`{word}` is nothing of a token")),
            }
        }
        Ok(())
    }
}

impl Fault {
    pub(crate) fn concerns(&self, function: &str) -> bool {
        self.function == function || self.function == "*" && function != "load"
    }

    /// Whether the rule counts calls at all.
    pub(crate) const fn counts(&self) -> bool {
        self.after > 0 || self.times < u64::MAX || self.every > 1 || self.share < 100
    }

    /// Whether it strikes at call `hit`, counted from 1.
    pub(crate) fn strikes(&self, hit: u64) -> bool {
        let Some(past) = hit.checked_sub(self.after).filter(|past| *past > 0) else { return false };
        past % self.every == 0 && past / self.every <= self.times && scramble(hit ^ self.id) % 100 < self.share
    }
}

/// A number that looks random but is the same in each run (the finaliser of `splitmix64`).
fn scramble(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one_fault(text: &str) -> Fault {
        Rules::parse(text).expect("a rule").faults.remove(0)
    }

    #[test]
    fn each_rule_is_read() {
        let text = "forward /lib/real.so\n\nC_Sign rv=0x30 times=2 # a comment\ntoken clock=on skew=-120 fw=2.10 \
                    setflags=0x40\nsession max=16 foreign=3\npin tries=3\nslot id=7 label=edge serial=01 pad=nul\n";
        let rules = Rules::parse(text).expect("good rules");

        assert_eq!(rules.forward, Some("/lib/real.so".into()));
        assert_eq!((rules.faults[0].function.as_str(), rules.faults[0].action), ("C_Sign", Action::Return(0x30)));
        assert_eq!(rules.token.clock.as_deref(), Some("on"));
        assert_eq!((rules.token.skew, rules.token.firmware, rules.token.set_flags), (-120, Some((2, 10)), 0x40));
        assert_eq!(rules.sessions, Some(Sessions { max: 16, foreign: 3 }));
        assert_eq!((rules.pin_tries, rules.slots[0].id, rules.slots[0].nul_padded), (Some(3), 7, true));
    }

    #[test]
    fn what_is_no_rule_is_named() {
        for text in ["C_Sign", "C_Sign sulk", "C_Sign rv=x", "token fw=9", "session few=1", "slot name=x", "forward"] {
            assert!(Rules::parse(text).is_err_and(|why| why.contains(text)), "{text}");
        }
    }

    #[test]
    fn a_fault_strikes_when_it_should() {
        let table: [(&str, &[u64]); 5] = [
            ("C_Sign hang", &[1, 2, 3, 4, 5, 6]),
            ("C_Sign hang times=2", &[1, 2]),
            ("C_Sign hang after=4", &[5, 6]),
            ("C_Sign hang after=1 times=1", &[2]),
            ("C_Sign hang every=3", &[3, 6]),
        ];
        for (text, want) in table {
            let fault = one_fault(text);
            let got: Vec<u64> = (1..=6).filter(|hit| fault.strikes(*hit)).collect();
            assert_eq!(got, want, "{text}");
        }
    }

    #[test]
    fn a_share_is_about_that_share() {
        let fault = one_fault("C_Sign hang share=50");
        let struck = (1..=1000).filter(|hit| fault.strikes(*hit)).count();
        assert!((450..=550).contains(&struck), "{struck} of 1000");
    }

    #[test]
    fn a_star_is_every_call_but_not_the_load() {
        let fault = one_fault("* stdout");
        assert!(fault.concerns("C_Sign"));
        assert!(!fault.concerns("load"));
        assert!(one_fault("load hang").concerns("load"));
    }
}
