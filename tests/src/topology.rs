//! The namespaces, their links, and the two origins.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::geteuid;
use tempfile::TempDir;

use crate::addr::{A, B, CLIENT, CLIENTS, Family, HTTP_PORT, NODE, Segment};
use crate::clock::wait_until;
use crate::ns::Namespace;
use crate::origin::{Origin, SwitchPort};
use crate::process::run;
use crate::stop;
use crate::sweep::{DIR_PREFIX, sweep, unique};

/// 500 connections a second, each open for up to 5 s, in the load, and the same again in proxies.
const OPEN_FILES_MIN: u64 = 16_384;
const LINK_LIMIT: Duration = Duration::from_secs(5);

/// The load takes 98 s to use a port of the client again, and an origin's TIME_WAIT lasts 60 s.
const CLIENT_PORTS: &str = "16384 65535";
/// How soon the node sees that a neighbour is gone: within 5 s, and not the minute of the defaults (30 s, 5 s, 1 s).
const NEIGHBOURS: [(&str, &str); 3] =
    [("base_reachable_time_ms", "2000"), ("delay_first_probe_time", "1"), ("retrans_time_ms", "300")];

/// What to build.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LabOptions {
    /// b hangs on the node's second interface, `orig1`, with a subnet of its own; else it shares a's L2.
    pub two_links: bool,
}

/// Client, node, origin a and standby b, ready to serve. Everything ends on drop.
///
/// Field order is drop order: servers before namespaces, files last.
#[derive(Debug)]
pub struct Lab {
    /// The origin that is preferred.
    pub a: Origin,
    /// Its standby.
    pub b: Origin,
    /// Where forwarded clients and the load of the path `nginx` are.
    pub client: Arc<Namespace>,
    /// Where the daemon, proxies and local sockets are.
    pub node: Arc<Namespace>,
    options: LabOptions,
    unique: String,
    dir: TempDir,
}

/// # Errors
///
/// When this process is not root: namespaces and BPF need it.
pub fn require_root() -> Result<()> {
    ensure!(geteuid().is_root(), "the lab needs root (network namespaces, BPF): run it with sudo");
    Ok(())
}

impl Lab {
    /// Builds a lab and waits until both origins answer from the node on both families.
    ///
    /// # Errors
    ///
    /// Not root, a tool (`ip`, `nft`, `nginx`) missing, or an origin not reached within 5 s.
    pub fn new(options: LabOptions) -> Result<Self> {
        require_root()?;
        stop::catch_signals();
        stop::check()?;
        sweep();
        raise_open_files()?;
        let unique = unique();
        let dir = tempfile::Builder::new().prefix(&format!("{DIR_PREFIX}{unique}-")).tempdir()?;
        // Workers of nginx and daemons of other users must get through it.
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755))?;
        let make = |name: &str| Namespace::new(&format!("slu{unique}-{name}"));
        let (client, node, net) = (make("client")?, make("node")?, make("net")?);
        let (a, b) = (make("a")?, make("b")?);
        wire(&net, [&client, &node, &a, &b], options).context("cannot wire the lab")?;
        let (client, node, a, b) = (Arc::new(client), Arc::new(node), Arc::new(a), Arc::new(b));
        let net = Arc::new(net);
        let port_a = SwitchPort { ns: Arc::clone(&net), interface: "port-a" };
        let port_b = if options.two_links {
            SwitchPort { ns: Arc::clone(&node), interface: "orig1" }
        } else {
            SwitchPort { ns: net, interface: "port-b" }
        };
        let a = Origin::start(&a, dir.path(), "a", port_a)?;
        let b = Origin::start(&b, dir.path(), "b", port_b)?;
        let lab = Self { a, b, client, node, options, unique, dir };
        for family in Family::ALL {
            wait_reachable(&lab.node, lab.origin_a(family))?;
            wait_reachable(&lab.node, lab.origin_b(family))?;
            // Nothing listens there yet, and a refusal shows the path as well as an answer.
            wait_reachable(&lab.client, lab.node_for_client(family, 1))?;
        }
        Ok(lab)
    }

    /// Makes the node a router, for clients that ask the origins themselves, and waits until they reach both.
    ///
    /// # Errors
    ///
    /// When an origin is not reached within 5 s.
    pub fn forward(&self) -> Result<()> {
        self.node.sysctl("ipv4/ip_forward", "1")?;
        self.node.sysctl("ipv6/conf/all/forwarding", "1")?;
        for family in Family::ALL {
            wait_reachable(&self.client, self.origin_a(family))?;
            wait_reachable(&self.client, self.origin_b(family))?;
        }
        Ok(())
    }

    /// Whether the node has given up to resolve a's address: the entry is FAILED, or resolved anew after that.
    ///
    /// # Errors
    ///
    /// When `ip` fails.
    pub fn neighbour_lost(&self, family: Family) -> Result<bool> {
        let a = self.origin_a(family).ip().to_string();
        let entry = run(&self.node, "ip", &["neigh", "show", "to", &a, "dev", "orig0"])?.success()?;
        Ok(entry.contains("FAILED") || entry.contains("INCOMPLETE"))
    }

    /// What it was built with.
    #[must_use]
    pub const fn options(&self) -> LabOptions {
        self.options
    }

    /// Directory for files of this lab; gone on drop.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A name that no other lab on this machine has.
    #[must_use]
    pub fn unique(&self) -> &str {
        &self.unique
    }

    /// The node's origin-facing interfaces.
    #[must_use]
    pub const fn interfaces(&self) -> &'static [&'static str] {
        if self.options.two_links { &["orig0", "orig1"] } else { &["orig0"] }
    }

    /// The node's client-facing interface.
    #[must_use]
    pub const fn client_interface(&self) -> &'static str {
        "cli0"
    }

    /// Address of origin a.
    #[must_use]
    pub fn origin_a(&self, family: Family) -> SocketAddr {
        SocketAddr::new(Segment::Orig0.host(family, A), HTTP_PORT)
    }

    /// Address of standby b.
    #[must_use]
    pub fn origin_b(&self, family: Family) -> SocketAddr {
        SocketAddr::new(segment_of_b(self.options).host(family, B), HTTP_PORT)
    }

    /// An address on a's L2 that nobody has.
    #[must_use]
    pub fn nobody(&self, family: Family) -> SocketAddr {
        SocketAddr::new(Segment::Orig0.host(family, 99), HTTP_PORT)
    }

    /// All addresses of the client.
    #[must_use]
    pub fn clients(&self, family: Family) -> [IpAddr; CLIENTS] {
        let mut hosts = CLIENT..;
        [(); CLIENTS].map(|()| Segment::Client.host(family, hosts.next().unwrap_or(CLIENT)))
    }

    /// The node as the client sees it.
    #[must_use]
    pub fn node_for_client(&self, family: Family, port: u16) -> SocketAddr {
        SocketAddr::new(Segment::Client.host(family, NODE), port)
    }

    /// The node's own source address towards a.
    #[must_use]
    pub fn node_towards_origins(&self, family: Family) -> IpAddr {
        Segment::Orig0.host(family, NODE)
    }
}

/// A link that has just come up may still lose packets.
fn wait_reachable(from: &Namespace, address: SocketAddr) -> Result<()> {
    let answers = || match TcpStream::connect_timeout(&address, Duration::from_millis(200)) {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionRefused,
    };
    let what = format!("{} reaches {address}", from.name());
    wait_until(&what, LINK_LIMIT, || from.enter(answers).unwrap_or(false))
}

const fn segment_of_b(options: LabOptions) -> Segment {
    if options.two_links { Segment::Orig1 } else { Segment::Orig0 }
}

/// Links first (each end is born in its namespace), then addresses, then routes.
fn wire(net: &Namespace, [client, node, a, b]: [&Namespace; 4], options: LabOptions) -> Result<()> {
    let path = |ns: &Namespace| ns.path().display().to_string();
    let b_port = if options.two_links {
        format!("link add orig1 type veth peer name eth0 netns {}\n", path(b))
    } else {
        String::new()
    };
    node.ip(&format!("link add cli0 type veth peer name eth0 netns {}\n{b_port}", path(client)))?;
    let (node_path, a_path, b_path) = (path(node), path(a), path(b));
    let b_port = if options.two_links {
        String::new()
    } else {
        format!("link add port-b type veth peer name eth0 netns {b_path}\nlink set dev port-b master br0 up\n")
    };
    let bridge = format!(
        "link add br0 type bridge mcast_snooping 0\n\
         link add port-node type veth peer name orig0 netns {node_path}\n\
         link add port-a type veth peer name eth0 netns {a_path}\n\
         link set dev port-node master br0 up\nlink set dev port-a master br0 up\n{b_port}\
         link set dev br0 up\n"
    );
    // A bridge without addresses: it only switches.
    net.sysctl("ipv6/conf/default/disable_ipv6", "1")?;
    net.ip(&bridge)?;
    let of_b = segment_of_b(options);
    for host in (CLIENT..).take(CLIENTS) {
        client.ip(&addresses("eth0", Segment::Client, host))?;
    }
    node.ip(&addresses("cli0", Segment::Client, NODE))?;
    node.ip(&addresses("orig0", Segment::Orig0, NODE))?;
    if options.two_links {
        node.ip(&addresses("orig1", Segment::Orig1, NODE))?;
    }
    for family in ["ipv4", "ipv6"] {
        for (key, value) in NEIGHBOURS {
            node.sysctl(&format!("{family}/neigh/orig0/{key}"), value)?;
        }
    }
    client.sysctl("ipv4/ip_local_port_range", CLIENT_PORTS)?;
    a.ip(&addresses("eth0", Segment::Orig0, A))?;
    b.ip(&addresses("eth0", of_b, B))?;
    // Answers find back also to a flow that carries the node's address of the other link.
    client.ip(&default_routes(Segment::Client))?;
    a.ip(&default_routes(Segment::Orig0))?;
    b.ip(&default_routes(of_b))
}

fn addresses(interface: &str, segment: Segment, host: u8) -> String {
    let [v4, v6] = Family::ALL.map(|family| segment.host_prefix(family, host));
    format!("address add {v4} dev {interface}\naddress add {v6} dev {interface} nodad\nlink set dev {interface} up\n")
}

fn default_routes(segment: Segment) -> String {
    let [v4, v6] = Family::ALL.map(|family| segment.host(family, NODE));
    format!("route add 0.0.0.0/0 via {v4}\nroute add ::/0 via {v6}\n")
}

fn raise_open_files() -> Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < OPEN_FILES_MIN {
        setrlimit(Resource::RLIMIT_NOFILE, OPEN_FILES_MIN, hard.max(OPEN_FILES_MIN))
            .context("cannot raise the limit of open files")?;
    }
    Ok(())
}
