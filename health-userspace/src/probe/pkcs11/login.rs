//! The login of a slot: once in a worker's life, and only if the guard allows it.

use super::{
    class::{self, Class},
    halt::{Halt, said},
    judge,
    latch::{Attempt, Latch, PinFlags, Refusal, Tried},
    pin::{self, Stamp},
    process::Death,
    protocol::{Request, TokenInfo},
    slot::Slot,
};
use crate::config::{BusinessRule, Deadlines};
use health_core::model::LocalReason;
use std::{io, path::Path, time::SystemTime};
use zeroize::Zeroizing;

impl Slot {
    /// Logs in, once in a worker's life, and only if the guard allows it.
    pub(super) async fn login(
        &mut self,
        rule: &BusinessRule,
        token: &TokenInfo,
        deadlines: Deadlines,
    ) -> Result<(), Halt> {
        let Some(path) = &rule.pin_file else { return Ok(()) };
        if self.live.as_ref().is_some_and(|live| live.logged_in) {
            return Ok(());
        }
        let serial = if token.serial.is_empty() { &token.label } else { &token.serial };
        let latch = Latch::new(&self.state_dir, serial);
        let stamps = (Stamp::of(path), Stamp::of(latch.path()));
        if let Some((pin, known, why)) = &self.refused
            && (*pin, *known) == stamps
        {
            return Err(Halt::Auth(why.clone()));
        }
        let config = |why: String| Halt::Local(LocalReason::Config, why);
        let pin = pin::read(path).map_err(|error| config(said(&error)))?;
        let (least, most) = token.pin_len;
        let length = pin.len() as u64;
        if length < least || (most > 0 && length > most) {
            return Err(self.refuse(stamps, format!("the PIN has {length} bytes, the token takes {least} to {most}")));
        }
        // Before the attempt is written down: that no session can be had says nothing about the PIN, and a module that hangs
        // there must not leave an attempt behind whose outcome nobody knows.
        self.ask(Request::Anchor, deadlines.business).await?.reply?;
        let flags = judge::pin_flags(token);
        let (pin, attempt) = guarded(latch.clone(), pin, flags).await;
        let attempt = attempt.map_err(|error| config(format!("no login without its guard: {}", said(&error))))?;
        let attempt = match attempt {
            Ok(attempt) => attempt,
            // A token's flags can change without any file: they are looked at each time.
            Err(refusal @ (Refusal::CountLow | Refusal::FinalTry | Refusal::Locked)) => {
                return Err(Halt::Auth(refusal.why().to_owned()));
            }
            Err(refusal) => return Err(self.refuse(stamps, refusal.why().to_owned())),
        };
        self.try_login(path, &latch, attempt, pin, deadlines).await
    }

    async fn try_login(
        &mut self,
        path: &Path,
        latch: &Latch,
        attempt: Attempt,
        pin: Zeroizing<Vec<u8>>,
        deadlines: Deadlines,
    ) -> Result<(), Halt> {
        let config = |error: io::Error| Halt::Local(LocalReason::Config, said(&error));
        let Some(live) = &mut self.live else { return Err(Halt::Death(Death::Breach("there is no worker"))) };
        live.process.give_pin(&pin).map_err(config)?;
        drop(pin);
        let Err(trouble) = self.ask(Request::Login, deadlines.login).await?.reply else {
            attempt.resolve(Tried::Accepted, wall_s()).map_err(config)?;
            self.refused = None;
            if let Some(live) = &mut self.live {
                live.logged_in = true;
            }
            return Ok(());
        };
        if class::of(&trouble) != Class::Auth {
            attempt.resolve(Tried::Unjudged, wall_s()).map_err(config)?;
            return Err(Halt::Trouble(trouble));
        }
        attempt.resolve(Tried::Refused, wall_s()).map_err(config)?;
        // It has a session without a login, and has had its one attempt.
        self.retire("its login was refused", deadlines.close).await;
        let stamps = (Stamp::of(path), Stamp::of(latch.path()));
        Err(self.refuse(stamps, trouble.to_string()))
    }

    fn refuse(&mut self, (pin, latch): (Option<Stamp>, Option<Stamp>), why: String) -> Halt {
        self.refused = Some((pin, latch, why.clone()));
        Halt::Auth(why)
    }
}

/// The guard's answer, computed where it holds up nobody, and the PIN again.
async fn guarded(
    latch: Latch,
    pin: Zeroizing<Vec<u8>>,
    flags: PinFlags,
) -> (Zeroizing<Vec<u8>>, io::Result<Result<Attempt, Refusal>>) {
    let asked = tokio::task::spawn_blocking(move || {
        let attempt = latch.attempt(&pin, flags, wall_s());
        (pin, attempt)
    });
    asked.await.unwrap_or_else(|error| (Zeroizing::new(Vec::new()), Err(io::Error::other(error))))
}

/// Wall clock. Unit: seconds since 1970.
fn wall_s() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}
