//! Established connections to origins in fault, which are ended as `on_fault` says.

use health_core::{
    engine::Ending,
    model::{OriginId, ServiceId},
};
use std::net::SocketAddr;
use tracing::{info, warn};

use super::Daemon;
use crate::{
    act::ending::{Ended, tasks},
    probe,
};

impl Daemon {
    /// Has them ended, in another thread.
    pub(super) fn end_connections(&self, endings: &[Ending]) {
        if !endings.is_empty() {
            self.ender.end(tasks(endings, |id| self.served_at(id)), self.config.node.bypass.mark);
        }
    }

    fn served_at(&self, id: OriginId) -> Option<(ServiceId, SocketAddr)> {
        for (spec, config) in self.specs.iter().zip(&self.config.services) {
            let Some(origin) = spec.origins.iter().find(|origin| origin.id == id) else { continue };
            let origin = config.origins.iter().find(|candidate| candidate.name == origin.name)?;
            return Some((spec.id, origin.address));
        }
        None
    }

    /// Tells what became of it.
    pub(super) fn ended(&mut self, ended: Ended) {
        if !ended.is_news() {
            return;
        }
        let Ended { origin, idle, sockets, forwarded, left, trouble } = ended;
        let service = self.service_of(origin);
        for (kind, count) in [("idle", idle), ("socket", sockets), ("forwarded", forwarded)] {
            self.tallies.resets.add(&service, kind, count as u64);
        }
        let object = self.object(origin);
        if let Some(trouble) = trouble {
            warn!(object, trouble, "cannot end connections to an origin in fault");
            self.push("reset_failed", object.clone(), trouble, "daemon", probe::now().0);
        }
        if idle + sockets + forwarded > 0 {
            let rest =
                if left > 0 { format!(", {left} wait for the next round (resets_per_s)") } else { String::new() };
            let detail = format!("connections ended: {idle} idle, {sockets} others, {forwarded} forwarded{rest}");
            info!(object, detail, "reset");
            self.push("reset", object, detail, "judge", probe::now().0);
        }
    }
}
