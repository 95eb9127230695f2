//! All services' moves before the governor.

use super::{Engine, Step};
use crate::{service::Service, time::Timestamp};
use alloc::vec::Vec;

impl Engine {
    /// Lets the moves of all services together be held where they are too many.
    pub(super) fn govern(&mut self, now: Timestamp, step: &mut Step) {
        let wants: Vec<_> = self.services.iter().flat_map(Service::wants).collect();
        let news = self.governor.decide(wants, now);
        for service in &mut self.services {
            service.take_holds(self.governor.held(), now, step);
        }
        for want in news {
            let service = self.index.get(&want.origin).and_then(|(service, _)| self.services.get(*service));
            if let Some(service) = service {
                service.tell_unset(&want.to, now, step);
            }
        }
        let hosts = self.governor.hosts_in_use();
        for origin in self.services.iter_mut().flat_map(|service| &mut service.origins) {
            origin.load.stands_in = hosts.contains(&origin.host());
        }
    }
}
