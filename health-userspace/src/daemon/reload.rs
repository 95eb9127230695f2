//! Another configuration, whole or not at all.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use health_core::model::ServiceSpec;
use tracing::{error, info};

use super::{
    Daemon, publish,
    routes::{self, Ways},
    start,
};
use crate::{
    config::{self, Config},
    control::Outcome,
    probe::{self, Target},
    telemetry::ReloadScrape,
};

impl Daemon {
    /// Reads the file again and applies what changed. A bad file changes nothing.
    pub(super) async fn reload(&mut self, dry_run: bool, by: &str) -> Outcome {
        if self.draining.is_some() {
            return Outcome::refused("a detach is draining: nothing was applied");
        }
        let loaded = match config::load(&self.options.config) {
            Ok(loaded) => loaded,
            Err(errors) => {
                self.note(false, dry_run);
                return Outcome::bad_config(format!("{errors}\nnothing was applied; the former configuration goes on"));
            }
        };
        let changes = changes(&self.names.config, &loaded.config);
        let fixed = fixed(&self.config, &loaded.config);
        if !fixed.is_empty() {
            self.note(false, dry_run);
            return Outcome::failed(format!(
                "{} can't change while the daemon runs: stop it and start it again (the datapath goes on meanwhile); \
                 nothing was applied",
                fixed.join(", ")
            ));
        }
        let text = if changes.is_empty() { "nothing changes".to_owned() } else { changes.join("\n") };
        if dry_run {
            return Outcome::done(text);
        }
        let (placed, former) = self.names.reload(loaded.config, &self.config).await;
        match self.switch(placed).await {
            Ok(()) => {
                self.note(true, false);
                info!(by, changes = changes.len(), "reloaded");
                Outcome::done(text)
            }
            Err(error) => {
                self.names.config = former;
                self.note(false, false);
                Outcome::failed(start::chain(&error))
            }
        }
    }

    fn note(&mut self, success: bool, dry_run: bool) {
        if dry_run {
            return;
        }
        let now = publish::epoch_seconds();
        let before = self.tallies.reload.map_or(now, |reload| reload.applied_at);
        self.tallies.reload = Some(ReloadScrape { success, applied_at: if success { now } else { before } });
    }

    pub(super) async fn switch(&mut self, config: Config) -> Result<(), start::StartError> {
        let ways = Ways::find(&self.routes, &config).await;
        routes::check(&config, &ways)?;
        let interfaces = ways.interfaces();
        // Rounds that ended under the old list of checks are judged under it.
        while let Ok(result) = self.results.try_recv() {
            self.check_result(&result);
        }
        self.tick();
        let specs = match self.take_on(&config, &interfaces) {
            Ok(specs) => specs,
            Err(error) => {
                self.take_back().await;
                return Err(error);
            }
        };
        let changed = specs != self.specs;
        self.engine.reconfigure(specs.clone(), probe::now());
        self.engine.set_governor(config.node.governor);
        let targets = Target::all(&config, self.datapath.registry());
        if config.node.bypass.mark != self.config.node.bypass.mark
            || config.node.limits.checks_per_s != self.config.node.limits.checks_per_s
        {
            let (scheduler, results) = start::scheduler(&config, &self.hub)?;
            (self.checks, self.results) = (scheduler, results);
        }
        self.checks.apply(&targets)?;
        if changed {
            self.tallies.forget_checks();
            self.input.checks.clear();
        }
        (self.specs, self.config) = (specs, config);
        self.datapath.attach().iter().for_each(start::say);
        self.self_test();
        self.house.reconfigured(ways);
        self.tell_sites();
        self.tell_neighbours();
        // A new origin must be read before it is judged.
        self.ticks = 0;
        self.tick();
        // What is gone from the file is gone from the next scrape.
        self.publish(probe::now(), true);
        Ok(())
    }

    /// Numbers, and all that the configuration alone decides, in the kernel.
    fn take_on(
        &mut self,
        config: &Config,
        interfaces: &BTreeMap<SocketAddr, u32>,
    ) -> Result<Vec<ServiceSpec>, start::StartError> {
        let specs = self.datapath.configure(config, interfaces)?;
        self.datapath.attach_cgroup(config)?;
        Ok(specs)
    }

    /// Writes the configuration in force again, after something else was half written over it.
    pub(super) async fn take_back(&mut self) {
        let interfaces = Ways::find(&self.routes, &self.config).await.interfaces();
        let config = self.config.clone();
        if let Err(error) = self.take_on(&config, &interfaces) {
            error!(error = %start::chain(&error), "cannot write the configuration in force again");
        }
    }
}

/// Keys that only a start can change.
fn fixed(old: &Config, new: &Config) -> Vec<&'static str> {
    let mut keys = Vec::new();
    let (a, b) = (&old.node, &new.node);
    let mut differs = |key, differs: bool| {
        if differs {
            keys.push(key);
        }
    };
    differs("node.pin_dir", a.pin_dir != b.pin_dir);
    differs("node.state_dir", a.state_dir != b.state_dir);
    let sizes =
        |limits: &config::Limits| (limits.origins, limits.frontends, limits.half_open, limits.flows, limits.moved);
    differs("node.limits", sizes(&a.limits) != sizes(&b.limits));
    differs("control.listen", old.control.listen != new.control.listen);
    differs("control.socket", old.control.socket != new.control.socket);
    keys
}

/// What a reload changes, a line each.
fn changes(old: &Config, new: &Config) -> Vec<String> {
    let mut lines = Vec::new();
    if old.node != new.node {
        lines.push("~ node".to_owned());
    }
    let names = |config: &Config| config.services.iter().map(|s| s.name.clone()).collect::<BTreeSet<_>>();
    let (before, after) = (names(old), names(new));
    lines.extend(before.difference(&after).map(|name| format!("- service {name}")));
    lines.extend(after.difference(&before).map(|name| format!("+ service {name}")));
    for service in &new.services {
        let Some(former) = old.services.iter().find(|former| former.name == service.name) else { continue };
        let name = &service.name;
        for origin in &service.origins {
            match former.origins.iter().find(|candidate| candidate.name == origin.name) {
                None => lines.push(format!("+ origin {name}/{} {}", origin.name, origin.address)),
                Some(before) if before != origin => lines.push(format!("~ origin {name}/{}", origin.name)),
                Some(_) => {}
            }
        }
        for origin in &former.origins {
            if !service.origins.iter().any(|candidate| candidate.name == origin.name) {
                lines.push(format!("- origin {name}/{} {}", origin.name, origin.address));
            }
        }
        if former.checks != service.checks {
            lines.push(format!("~ checks of {name}"));
        }
        if former.policy != service.policy {
            lines.push(format!("~ policy of {name}"));
        }
        if (former.mode, former.guard) != (service.mode, service.guard) {
            lines.push(format!("~ mode or guard of {name}"));
        }
        if (&former.vips, former.balance) != (&service.vips, service.balance) {
            lines.push(format!("~ virtual addresses of {name}"));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        config::parse(text, "test.toml").expect("valid").config
    }

    const BASE: &str = "[node]\ninterfaces = [\"eth1\"]\n[[service]]\nname = \"shop\"\n\
                        [[service.origin]]\nname = \"a\"\naddress = \"10.0.1.10:443\"\n\
                        [[service.origin]]\nname = \"b\"\naddress = \"10.0.1.11:443\"\npriority = 1\n";

    #[test]
    fn a_reload_says_what_it_changes() {
        let old = config(BASE);
        let new = config(&BASE.replace("10.0.1.11", "10.0.1.12").replace("name = \"b\"", "name = \"c\""));
        assert_eq!(changes(&old, &new), ["+ origin shop/c 10.0.1.12:443", "- origin shop/b 10.0.1.11:443"]);
        assert!(changes(&old, &old).is_empty());
    }

    #[test]
    fn the_order_of_origins_is_no_change() {
        let old = config(BASE);
        let mut new = old.clone();
        new.services[0].origins.reverse();
        assert!(changes(&old, &new).is_empty());
    }

    #[test]
    fn pins_and_sockets_are_fixed() {
        let old = config(BASE);
        let mut new = old.clone();
        new.node.pin_dir = "/sys/fs/bpf/other".into();
        new.control.socket = "/run/other.sock".into();
        assert_eq!(fixed(&old, &new), ["node.pin_dir", "control.socket"]);
    }
}
