//! The checked configuration: values of these types were all accepted.

use super::{kind::CheckKind, pkcs11::Pkcs11Origin};
use health_core::{
    Span,
    governor::Limits as Governor,
    model::{Balance, Family, Layer, Mode},
    policy::Policy,
};
use hyper::header::HeaderName;
use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

/// A whole file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// This machine.
    pub node: NodeConfig,
    /// How it is watched and ordered about.
    pub control: ControlConfig,
    /// Keys with which checks are signed, by name.
    pub signing: Vec<SigningConfig>,
    /// In the file's order; at least one.
    pub services: Vec<ServiceConfig>,
}

/// `[node]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeConfig {
    /// What status and metrics call this machine. Default: its hostname.
    pub name: String,
    /// Origin-facing interfaces; at least one pattern.
    pub interfaces: Vec<InterfacePattern>,
    /// Where forwarded clients arrive: their SYNs are steered before routing. Default: none.
    pub client_interfaces: Vec<InterfacePattern>,
    /// Those of `interfaces` whose packets are observed at XDP instead of TC ingress. Default: none.
    pub xdp: Vec<InterfacePattern>,
    /// Where sockets are steered.
    pub cgroup: CgroupSetting,
    /// Further network namespaces whose sockets are steered.
    pub netns: Vec<PathBuf>,
    /// Whether decisions are carried out.
    pub mode: Mode,
    /// Default `/var/lib/sluice`.
    pub state_dir: PathBuf,
    /// Default `/sys/fs/bpf/sluice`.
    pub pin_dir: PathBuf,
    /// Where anything may ever be sent. Empty: anywhere.
    pub redirect_allow: Vec<Prefix>,
    /// Sockets that are never steered.
    pub bypass: Bypass,
    /// Sizes of maps, and the budget of checks.
    pub limits: Limits,
    /// How much may be on the move at once.
    pub governor: Governor,
    /// How much is exported.
    pub metrics: MetricsConfig,
}

/// An interface's name, or a glob with `*` and `?`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfacePattern(pub(super) String);

/// Which cgroup's sockets are steered at connect time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CgroupSetting {
    /// The root of the cgroup v2 mount, wherever that is.
    Auto,
    /// Only this one and those below.
    Path(PathBuf),
    /// None: sockets are steered packet by packet.
    Off,
}

/// Sockets that are never steered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bypass {
    /// Mark (`SO_MARK`) that says so; Sluice's own checks carry it. Never 0, and without the bit
    /// [`health_common::SECOND_PASS_MARK`]. Default 0x5311.
    pub mark: u32,
    /// Users whose sockets are left alone.
    pub uids: Vec<u32>,
    /// cgroups, relative to the cgroup mount, whose sockets are left alone.
    pub cgroups: Vec<String>,
}

/// `[node.limits]`: entries of the kernel's maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// At most 65 534. Default 10 000.
    pub origins: u32,
    /// At most 65 534. Default 10 000.
    pub frontends: u32,
    /// Default 262 144.
    pub half_open: u32,
    /// Default 1 048 576.
    pub flows: u32,
    /// Default 262 144.
    pub moved: u32,
    /// Budget of active checks. Unit: rounds per second. Default 4000.
    pub checks_per_s: u32,
}

/// `[node.metrics]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricsConfig {
    /// What is exported per origin. Default `states`.
    pub origin_detail: Detail,
    /// Whose latency histograms are exported. Default `service`.
    pub histograms: Detail,
}

/// How finely something is exported. `all` and `states` are words of `origin_detail`, `origin` and `service` of
/// `histograms`; both know `off`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// `all`, `origin`: everything, per origin.
    Full,
    /// `states`, `service`: the part that stays small on large nodes.
    Brief,
    /// Nothing.
    Off,
}

/// `[control]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlConfig {
    /// Metrics and `/healthz`. Default `127.0.0.1:9911`.
    pub listen: SocketAddr,
    /// The command line's socket. Default `/run/sluice/control.sock`.
    pub socket: PathBuf,
}

/// An address prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// Its first address.
    pub address: IpAddr,
    /// Bits that count: at most 32, IPv6 128.
    pub length: u8,
}

/// One `[[service]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceConfig {
    /// Unique.
    pub name: String,
    /// The stricter of its own and the node's.
    pub mode: Mode,
    /// Addresses that are no origin's own, and that Sluice steers to the origins of their family.
    pub vips: Vec<SocketAddr>,
    /// How the flows of those are divided. Default `maglev`.
    pub balance: Balance,
    /// Whether its tier-0 origins' own addresses are steered.
    pub guard: bool,
    /// Built-in, `[defaults.policy]` and its own keys, merged.
    pub policy: Policy,
    /// In the file's order; 1 to 64.
    pub origins: Vec<OriginConfig>,
    /// In the file's order; at least one.
    pub checks: Vec<CheckConfig>,
}

/// One `[[service.origin]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginConfig {
    /// Unique in its service.
    pub name: String,
    /// Unique in the file. Of an origin with a name: what the name stands for now; nowhere before it is known.
    pub address: SocketAddr,
    /// Its name, if the file names it so.
    pub host: Option<HostName>,
    /// `priority`, 0 to 127; 0 is preferred.
    pub tier: u8,
    /// Share inside its tier; 0 takes nothing.
    pub weight: u16,
    /// New connections per second that it can take.
    pub capacity_cps: Option<u32>,
    /// Connections that it can hold.
    pub capacity_conns: Option<u32>,
    /// Whether the two above are this node's or everybody's.
    pub capacity_scope: CapacityScope,
    /// Whether its own address is steered, if its tier is 0 and its service is guarded.
    pub guard: bool,
    /// The partition of an HSM that it is judged by.
    pub pkcs11: Option<Pkcs11Origin>,
}

/// The name of an origin, which is resolved again and again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostName {
    /// As the system's resolver takes it.
    pub name: String,
    /// The port.
    pub port: u16,
    /// Only addresses of this family. Default: any, IPv4 first.
    pub family: Option<Family>,
}

/// Whose a capacity is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CapacityScope {
    /// This node's alone.
    Node,
    /// Divided by the live nodes.
    Cluster,
}

/// One `[[service.check]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckConfig {
    /// Unique in its service.
    pub name: String,
    /// What a pass proves.
    pub layer: Layer,
    /// Time between the beginnings of two rounds.
    pub interval: Span,
    /// One deadline for all steps of a round.
    pub timeout: Span,
    /// A pass that took longer is a slow one.
    pub slow: Option<Span>,
    /// How often when, what it weighs, how its packets leave.
    pub plan: CheckPlan,
    /// What is done.
    pub kind: CheckKind,
}

impl CheckConfig {
    /// This check as it is asked of one origin.
    #[must_use]
    pub fn of(&self, origin: &OriginConfig) -> Self {
        let mut check = self.clone();
        if let CheckKind::Pkcs11(rule) = &mut check.kind {
            rule.partition.clone_from(&origin.pkcs11);
        }
        check
    }
}

/// What every kind of check has besides its interval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckPlan {
    /// `interval_fast`: between rounds on suspicion, and until a change is settled. Default: a fifth of the interval, and at
    /// least a second of it.
    pub fast: Span,
    /// `interval_recover`: between rounds of an origin that is out, at first. Default: the interval.
    pub recover: Span,
    /// `interval_max`: longest time between rounds, of an origin that stays out or whose traffic proves as much as the check.
    /// Default: six intervals.
    pub max: Span,
    /// Names of checks of this service; while one of them fails, this one is not run.
    pub needs: Vec<String>,
    /// Whether a failure may take the origin out; else it only degrades. Default true.
    pub critical: bool,
    /// Whether it runs only while its origin comes back. Default false.
    pub verify: bool,
    /// From where.
    pub source: Source,
    /// With what requests are signed.
    pub sign: Option<SigningConfig>,
}

/// From where a check's packets leave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// An address of this node; for origins of its family. Default: what routing says.
    pub address: Option<IpAddr>,
    /// `SO_BINDTODEVICE`. Default: what routing says.
    pub interface: Option<String>,
}

/// `[signing.NAME]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SigningConfig {
    /// What checks call it.
    pub name: String,
    /// Carries the signature. Default `x-sluice-signature`.
    pub header: HeaderName,
    /// The one of `keys` that signs: `use`.
    pub key: SigningKey,
    /// All that origins may still know, in the file's order.
    pub keys: Vec<SigningKey>,
}

/// A key and where it lies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SigningKey {
    /// Sent with each signature, so that origins can hold several while keys change.
    pub id: String,
    /// The secret: the whole file without a line end behind it.
    pub file: PathBuf,
}

impl InterfacePattern {
    /// As written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it names exactly one interface, for which the daemon waits.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        !self.0.contains(['*', '?'])
    }

    /// Whether every interface that `other` means is meant too. Of two patterns with wildcards that is told by their texts:
    /// `gre-*` covers `gre-1*`.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        self.matches(&other.0) && (!other.0.contains('*') || self.0.contains('*'))
    }

    /// Whether `interface` is meant. `*` stands for any characters, `?` for one.
    #[must_use]
    pub fn matches(&self, interface: &str) -> bool {
        glob(self.0.as_bytes(), interface.as_bytes())
    }
}

/// Two cursors and one way back, so that a hostile pattern costs at most `pattern` × `text` steps.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(&c) if c == b'?' || c == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match star {
                // The last star swallows one character more.
                Some((at, from)) => {
                    p = at + 1;
                    t = from + 1;
                    star = Some((at, t));
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&c| c == b'*')
}

impl Prefix {
    /// Whether `address` lies inside. Families never match each other.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let shift = 32_u32.saturating_sub(u32::from(self.length));
                (u32::from(own) ^ u32::from(other)).checked_shr(shift).unwrap_or(0) == 0
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let shift = 128_u32.saturating_sub(u32::from(self.length));
                (u128::from(own) ^ u128::from(other)).checked_shr(shift).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}
