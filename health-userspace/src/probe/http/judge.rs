//! What an answer means.

use super::{
    decode::{Coding, Decoder},
    exchange::{Body, Failure},
    keep_cookies,
};
use crate::{
    config::{BodyRule, HttpExpect, RedirectRule, json_holds},
    probe::trace::Trace,
};
use cookie_store::CookieStore;
use health_core::model::{Layer, LocalReason, Outcome, Reason};
use hyper::{header::LOCATION, http::response::Parts};
use url::Url;

/// Characters of a body that an explanation shows.
const SHOWN_CHARS: usize = 80;

/// What an answer comes to.
#[derive(Debug)]
pub(super) enum Verdict {
    /// The request has ended so.
    Ended(Outcome),
    /// It is to be asked elsewhere.
    Leads { status: u16, to: Url },
}

/// All that is needed to judge an answer.
pub(super) struct Judging<'a> {
    pub(super) expect: &'a HttpExpect,
    pub(super) url: &'a Url,
    pub(super) cookies: &'a mut CookieStore,
    pub(super) trace: &'a mut Trace,
}

/// What the head of an answer says.
#[derive(Debug)]
enum Head {
    Verdict(Verdict),
    /// It is the body's turn. The value: a weak pass, if the body is right.
    Good(bool),
}

impl Judging<'_> {
    /// Judges the head, and as much of the body as the rules ask for.
    ///
    /// # Errors
    ///
    /// The body broke off.
    pub(super) async fn judge(mut self, head: &Parts, body: Body) -> Result<Verdict, Failure> {
        keep_cookies(self.cookies, &head.headers, self.url);
        let slow = match self.head(head) {
            Head::Verdict(verdict) => return Ok(verdict),
            Head::Good(slow) => slow,
        };
        self.trace.begin("body", Layer::Application);
        let broken = match self.read(head, body).await? {
            Ok(body) => self.body(&body),
            Err(why) => {
                self.trace.explain(why);
                Some(Reason::Encoding)
            }
        };
        Ok(Verdict::Ended(match broken {
            Some(reason) => Outcome::Fail(reason),
            None if slow => Outcome::Slow,
            None => Outcome::Pass,
        }))
    }

    /// Order: somebody else's answer, what is expected, redirections, other statuses.
    fn head(&mut self, head: &Parts) -> Head {
        let (expect, status) = (self.expect, head.status.as_u16());
        let ended = |outcome| Head::Verdict(Verdict::Ended(outcome));
        if expect.blocked.as_ref().is_some_and(|blocked| blocked.holds(status, &head.headers)) {
            self.trace.explain(format!("status {status} from something before the origin"));
            return ended(Outcome::Local(LocalReason::Blocked));
        }
        let (good, slow) = (expect.status.contains(status), expect.status_slow.contains(status));
        if slow {
            self.trace.explain(format!("status {status}: alive, and pressed"));
        } else if !good {
            if [301, 302, 303, 307, 308].contains(&status) {
                return Head::Verdict(self.redirection(head, status));
            }
            let expected: Vec<_> = expect.status.words().collect();
            self.trace.explain(format!("status {status}, expected {}", expected.join(", ")));
            return ended(Outcome::Fail(Reason::Status(status)));
        }
        if let Some(rule) = expect.headers.iter().find(|rule| !rule.holds(&head.headers)) {
            let found: Vec<_> = head.headers.get_all(rule.name()).iter().collect();
            self.trace.explain(format!("header {} is {found:?}, expected {rule}", rule.name()));
            return ended(Outcome::Fail(Reason::Header));
        }
        Head::Good(slow)
    }

    fn redirection(&mut self, head: &Parts, status: u16) -> Verdict {
        let location = head.headers.get(LOCATION).and_then(|location| location.to_str().ok());
        // RFC 3986 §5: relative to what was asked.
        let target = location.and_then(|location| self.url.join(location).ok());
        let same_host = target.as_ref().is_some_and(|target| target.host() == self.url.host());
        let secure = target.as_ref().is_some_and(|target| target.scheme() == "https");
        let web = target.as_ref().is_some_and(|target| ["http", "https"].contains(&target.scheme()));
        let shown = location.unwrap_or("nowhere");
        match (self.expect.redirect, target) {
            (RedirectRule::Pass, _) => return Verdict::Ended(Outcome::Pass),
            (RedirectRule::HttpsOnly, _) if same_host && secure => return Verdict::Ended(Outcome::Pass),
            (RedirectRule::Follow, Some(to)) if same_host && web => return Verdict::Leads { status, to },
            (RedirectRule::HttpsOnly, _) => {
                self.trace.explain(format!("redirected to {shown}, expected https at the same host"));
            }
            (RedirectRule::Follow, _) => {
                self.trace.explain(format!("redirected to {shown}, which is another host"));
            }
            (RedirectRule::Fail, _) => self.trace.explain(format!("redirected to {shown}")),
        }
        Verdict::Ended(Outcome::Fail(Reason::Redirect(status)))
    }

    /// Reads up to the limit, one byte more to tell whether that was all. Keeps nothing that no rule asks for.
    ///
    /// The limit is that of decoded bytes. What can't be decoded is an error in words: compressed bytes are not what rules are
    /// about.
    async fn read(&self, head: &Parts, mut body: Body) -> Result<Result<Vec<u8>, String>, Failure> {
        let wanted = self.expect.body_max.saturating_add(usize::from(self.expect.asks_whole_body()));
        if !self.expect.asks_body() {
            let mut seen = 0_usize;
            while seen < wanted {
                let Some(data) = body.next().await else { break };
                seen = seen.saturating_add(data?.len());
            }
            return Ok(Ok(Vec::new()));
        }
        let coding = match Coding::of(&head.headers) {
            Ok(coding) => coding,
            Err(words) => return Ok(Err(format!("the body is encoded as {words}, which can't be undone here"))),
        };
        let undecodable = |error: std::io::Error| format!("the body is said to be {coding:?}, and is not: {error}");
        let mut decoder = Decoder::new(coding, wanted);
        let mut is_empty = true;
        while let Some(data) = body.next().await {
            is_empty = false;
            match decoder.feed(&data?) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => return Ok(Err(undecodable(error))),
            }
        }
        // An answer without a body (HEAD, 204) may name the coding that it would have had.
        Ok(if is_empty { Ok(Vec::new()) } else { decoder.finish().map_err(undecodable) })
    }

    /// The first rule that the body breaks.
    fn body(&mut self, body: &[u8]) -> Option<Reason> {
        let expect = self.expect;
        if !expect.asks_body() {
            return None;
        }
        let whole = body.len() <= expect.body_max;
        let body = body.get(..expect.body_max).unwrap_or(body);
        if let Some(rule) = expect.body.iter().find(|rule| !self.keeps(rule, body, whole)) {
            self.trace.explain(format!("body \"{}\", expected {rule}", shown(body)));
            return Some(Reason::Body);
        }
        if !whole && (expect.digest.is_some() || !expect.json.is_empty()) {
            self.trace.explain(format!("the body is longer than body_max, {} bytes", expect.body_max));
            return Some(if expect.digest.is_some() { Reason::Digest } else { Reason::Json });
        }
        if expect.digest.as_ref().is_some_and(|digest| !digest.holds(body)) {
            self.trace.explain(format!("the digest of {} bytes is another", body.len()));
            return Some(Reason::Digest);
        }
        if expect.json.is_empty() {
            return None;
        }
        json_holds(&expect.json, expect.json_cast, body).err().map(|fault| {
            self.trace.explain(fault.to_string());
            Reason::Json
        })
    }

    fn keeps(&self, rule: &BodyRule, body: &[u8], whole: bool) -> bool {
        let body = if self.expect.trim && matches!(rule, BodyRule::Exact(_)) { body.trim_ascii() } else { body };
        (whole || !matches!(rule, BodyRule::Exact(_))) && rule.holds(body)
    }
}

/// The beginning of a body. Escaped where it is shown: two bodies that differ in white space must not look alike.
fn shown(body: &[u8]) -> String {
    String::from_utf8_lossy(body).chars().take(SHOWN_CHARS).collect()
}
