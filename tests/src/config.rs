//! The configuration that the lab gives the daemon.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;

use crate::addr::Family;
use crate::topology::Lab;

/// Return to an origin that passes its checks again. Default: 30 s.
const HOLD_DOWN: &str = "2s";
/// All at once, so that an episode has an end. Default: 5 m clean, then stages of 10, 50 and 100 % for 5 m each.
const FAILBACK: &str = "{ observe_for = \"0s\", stages = [100], stage_for = \"0s\" }";
/// Of the `tcp` and the `http` check. Defaults: 3 s and 5 s.
const CHECK_INTERVAL: &str = "1s";
/// Of b. Default: no limit until judged, with a warning.
const CAPACITY_CPS: u32 = 5000;

/// An `[[service]]` with a primary and a standby.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Service {
    name: String,
    a: SocketAddr,
    b: SocketAddr,
}

/// What the lab configures. Everything else is Sluice's default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabConfig {
    /// `node.interfaces`.
    pub interfaces: Vec<String>,
    /// `node.cgroup`: `auto`, or empty for no socket steering.
    pub cgroup: String,
    /// `node.client_interfaces`; not written if empty.
    pub client_interfaces: Vec<String>,
    /// Writes b before a, which must change nothing but the text.
    pub b_first: bool,
    services: Vec<Service>,
}

impl LabConfig {
    /// One service per family, with a's own address guarded, b as its standby, and a `tcp` and an `http` check.
    #[must_use]
    pub fn of(lab: &Lab) -> Self {
        let service = |family: Family| Service {
            name: family.service().to_owned(),
            a: lab.origin_a(family),
            b: lab.origin_b(family),
        };
        Self {
            interfaces: lab.interfaces().iter().map(|&name| name.to_owned()).collect(),
            cgroup: "auto".to_owned(),
            client_interfaces: Vec::new(),
            b_first: false,
            services: Family::ALL.map(service).to_vec(),
        }
    }

    /// The same without socket steering, so that NAT has to do it.
    #[must_use]
    pub fn without_socket_steering(mut self) -> Self {
        self.cgroup.clear();
        self
    }

    /// Traffic that the node forwards is steered, too.
    #[must_use]
    pub fn with_forwarded(mut self, lab: &Lab) -> Self {
        self.client_interfaces.push(lab.client_interface().to_owned());
        self
    }

    /// b of every service at the address that `address` gives for its family.
    #[must_use]
    pub fn with_b_at(mut self, address: impl Fn(Family) -> SocketAddr) -> Self {
        for (service, family) in self.services.iter_mut().zip(Family::ALL) {
            service.b = address(family);
        }
        self
    }

    /// a of every service at the address that `address` gives for its family.
    #[must_use]
    pub fn with_a_at(mut self, address: impl Fn(Family) -> SocketAddr) -> Self {
        for (service, family) in self.services.iter_mut().zip(Family::ALL) {
            service.a = address(family);
        }
        self
    }

    /// No services yet: the caller writes its own behind the text.
    #[must_use]
    pub fn bare(mut self) -> Self {
        self.services.clear();
        self
    }

    /// Only the service of `family`.
    #[must_use]
    pub fn only(mut self, family: Family) -> Self {
        self.services.retain(|service| service.name == family.service());
        self
    }

    /// What differs from Sluice's defaults in policy, for people. Exactly what [`Self::text`] writes.
    #[must_use]
    pub fn differences() -> String {
        format!(
            "the lab changes only: hold_down base {HOLD_DOWN}, no failback stages, check intervals {CHECK_INTERVAL}, capacity_cps \
             {CAPACITY_CPS} of b"
        )
    }

    /// The file, with state, pins and socket below the given places.
    #[must_use]
    pub fn text(&self, state_dir: &Path, pin_dir: &Path, socket: &Path) -> String {
        let Self { interfaces, cgroup, client_interfaces, b_first, services } = self;
        let clients = match client_interfaces.as_slice() {
            [] => String::new(),
            names => format!("client_interfaces = {names:?}\n"),
        };
        let mut text = format!(
            "[node]\nname = \"lab\"\ninterfaces = {interfaces:?}\ncgroup = {cgroup:?}\n{clients}state_dir = \"{}\"\n\
             pin_dir = \"{}\"\n\n[control]\nlisten = \"127.0.0.1:{}\"\nsocket = \"{}\"\n\n\
             [defaults.policy]\nhold_down = {{ base = \"{HOLD_DOWN}\" }}\nfailback = {FAILBACK}\n",
            state_dir.display(),
            pin_dir.display(),
            crate::daemon::CONTROL_PORT,
            socket.display()
        );
        for Service { name, a, b } in services {
            let mut origins = [
                format!("[[service.origin]]\nname = \"a\"\naddress = \"{a}\"\n"),
                format!(
                    "[[service.origin]]\nname = \"b\"\naddress = \"{b}\"\npriority = 1\ncapacity_cps = {CAPACITY_CPS}\n"
                ),
            ];
            if *b_first {
                origins.reverse();
            }
            // Writing to a string cannot fail.
            write!(
                text,
                "\n[[service]]\nname = \"{name}\"\n{}\
                 [[service.check]]\nname = \"port\"\ntype = \"tcp\"\ninterval = \"{CHECK_INTERVAL}\"\n\
                 [[service.check]]\nname = \"web\"\ntype = \"http\"\nurl = \"http://lab.test/healthz\"\n\
                 interval = \"{CHECK_INTERVAL}\"\n",
                origins.concat()
            )
            .ok();
        }
        text
    }
}
