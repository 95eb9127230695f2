//! Origins by name: resolved at the start, at a reload, and again and again.

use std::time::Duration;

use tokio::sync::mpsc;
use tracing::{error, info};

use super::{Daemon, start};
use crate::{
    config::{Config, Found, Unplaced},
    probe::{self, look_up},
};

/// Time between two looks. The system's resolver does not tell how long an answer holds; a resolver on the node does keep
/// to it, so asking often costs little.
pub(super) const EVERY: Duration = Duration::from_secs(30);

/// Names that were configured, and what comes back from looking them up.
pub(super) struct Names {
    /// As in the file: origins with names have no address there.
    pub(super) config: Config,
    found: Found,
    said: Vec<Unplaced>,
    sender: mpsc::Sender<Found>,
    answers: mpsc::Receiver<Found>,
}

impl Names {
    /// Looks all names of the start's configuration up. Returns the configuration with addresses.
    pub(super) async fn resolve(config: Config) -> (Self, Config) {
        let (sender, answers) = mpsc::channel(1);
        let mut names = Self { config, found: Found::new(), said: Vec::new(), sender, answers };
        let found = look_up(&names.config).await;
        let placed = names.place(found, None);
        (names, placed)
    }

    /// The configuration with what is known now. A name that can't be found for a while keeps its last address: a resolver
    /// that is down is no reason to move anybody.
    fn place(&mut self, found: Found, before: Option<&Config>) -> Config {
        self.found.extend(found);
        let names = self.config.host_names();
        self.found.retain(|name, _| names.contains(name));
        let (placed, unplaced) = self.config.placed(&self.found, before);
        for one in unplaced.iter().filter(|one| !self.said.contains(one)) {
            error!("{one}");
        }
        self.said = unplaced;
        placed
    }

    /// Another file. Returns the configuration with addresses, and the file before, for the case that it has to come back.
    pub(super) async fn reload(&mut self, config: Config, before: &Config) -> (Config, Config) {
        let former = std::mem::replace(&mut self.config, config);
        let found = look_up(&self.config).await;
        (self.place(found, Some(before)), former)
    }

    /// Asks again, beside the loop.
    pub(super) fn ask(&self) {
        if self.config.host_names().is_empty() {
            return;
        }
        let (config, sender) = (self.config.clone(), self.sender.clone());
        tokio::spawn(async move {
            // An answer that nobody has taken yet is as good.
            drop(sender.try_send(look_up(&config).await));
        });
    }

    /// The next answer.
    pub(super) async fn answer(&mut self) -> Found {
        // This value holds a sender, so the channel never ends.
        self.answers.recv().await.unwrap_or_default()
    }
}

impl Daemon {
    /// Takes what names stand for now. A new address is a new origin, which nothing is known of.
    pub(super) async fn renamed(&mut self, found: Found) {
        let placed = self.names.place(found, Some(&self.config));
        if placed == self.config || self.draining.is_some() {
            return;
        }
        for (service, origin, from, to) in moves(&self.config, &placed) {
            info!(service, origin, %from, %to, "the name of an origin stands for another address");
            let detail = format!("{from} > {to}, unproven");
            self.push("resolved", format!("{service}/{origin}"), detail, "daemon", probe::now().0);
        }
        if let Err(error) = self.switch(placed).await {
            error!(error = %start::chain(&error), "cannot take the new addresses of names; the former ones stay");
        }
    }
}

/// Origins whose address is another one, or that came or went.
fn moves(old: &Config, new: &Config) -> Vec<(String, String, String, String)> {
    let all = |config: &Config| -> Vec<(String, String, String)> {
        let of = |service: &crate::config::ServiceConfig| {
            let origins = service.origins.iter().filter(|origin| origin.host.is_some());
            origins
                .map(|origin| (service.name.clone(), origin.name.clone(), origin.address.to_string()))
                .collect::<Vec<_>>()
        };
        config.services.iter().flat_map(of).collect()
    };
    let before = all(old);
    let after = all(new);
    let address = |list: &[(String, String, String)], service: &str, origin: &str| {
        let found = list.iter().find(|(s, o, _)| s == service && o == origin);
        found.map_or_else(|| "nowhere".to_owned(), |(_, _, address)| address.clone())
    };
    let mut keys: Vec<(String, String)> =
        before.iter().chain(&after).map(|(service, origin, _)| (service.clone(), origin.clone())).collect();
    keys.sort();
    keys.dedup();
    keys.into_iter()
        .map(|(service, origin)| {
            let (from, to) = (address(&before, &service, &origin), address(&after, &service, &origin));
            (service, origin, from, to)
        })
        .filter(|(_, _, from, to)| from != to)
        .collect()
}
