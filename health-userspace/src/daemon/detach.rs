//! The way out: nothing new is steered, redirected flows end, then programs and pins go.
//!
//! The loop goes on meanwhile: the judgement, signals and the command line must not wait for somebody's long download.

use std::time::Duration;

use tokio::{sync::oneshot, time::Instant};

use super::{Daemon, End, start};
use crate::{control::Outcome, report::DetachOutcome};

/// A detach that waits for redirected flows to end.
pub(super) struct Draining {
    /// How long at most.
    pub(super) until: Instant,
    /// Whether flows that live on are cut then.
    pub(super) force: bool,
    /// Who waits for the outcome.
    pub(super) reply: oneshot::Sender<Outcome>,
}

impl Daemon {
    /// Detaches, or begins to drain.
    pub(super) async fn detach(&mut self, wish: Draining, drain: Option<Duration>) -> Option<End> {
        let answer = |reply: oneshot::Sender<Outcome>, outcome| {
            // A client that has gone needs no answer.
            drop(reply.send(outcome));
        };
        if self.draining.is_some() {
            answer(wish.reply, Outcome::refused("a detach is draining already: wait for it"));
            return None;
        }
        if drain.is_some()
            && let Err(error) = self.datapath.stop_steering()
        {
            answer(wish.reply, Outcome::failed(start::chain(&error)));
            return None;
        }
        self.draining = Some(wish);
        // Without a drain, its time is over at once.
        if drain.is_none() { self.remove(false).await } else { None }
    }

    /// Ends a drain whose flows have ended, or whose time is over.
    pub(super) async fn drained(&mut self) -> Option<End> {
        let draining = self.draining.as_ref()?;
        // The sweeper's count may be a second old, but costs nothing; only when it is 0 the tables are walked, which are
        // nearly empty then.
        let lives = || self.sweeper.live() > 0 || self.datapath.flows_redirected() > 0;
        if Instant::now() < draining.until && lives() {
            return None;
        }
        self.remove(true).await
    }

    /// The daemon stops while it drains: the datapath goes on as before.
    pub(super) async fn stop_draining(&mut self) {
        if let Some(draining) = self.draining.take() {
            self.take_back().await;
            drop(draining.reply.send(Outcome::failed("the daemon was stopped; steering goes on")));
        }
    }

    async fn remove(&mut self, drained: bool) -> Option<End> {
        let Draining { force, reply, .. } = self.draining.take()?;
        let (outcome, end) = match self.datapath.detach(force) {
            Ok(DetachOutcome::FlowsLive { flows }) => {
                if drained {
                    self.take_back().await;
                }
                let message = format!(
                    "{flows} redirected flows live and would be cut, so nothing was removed and steering goes on: wait \
                     with --drain 5m, or cut them with --force"
                );
                (Outcome::refused(message), None)
            }
            Ok(DetachOutcome::Removed { programs, maps, flows_cut }) => (
                Outcome::done(format!(
                    "removed {programs} programs and {maps} maps, cut {flows_cut} redirected flows; the daemon ends"
                )),
                Some(End::Detached),
            ),
            Ok(DetachOutcome::Nothing) => (Outcome::done("nothing was pinned"), Some(End::Detached)),
            Err(error) => (Outcome::failed(start::chain(&error)), None),
        };
        drop(reply.send(outcome));
        end
    }
}
