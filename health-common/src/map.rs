//! Names of the maps, and the values that are neither flows nor origins.

use crate::{ARMED_MAX, NONE, SERVICE_ORIGINS_MAX, SLOTS};

/// `ARRAY[1]` of [`Node`].
pub const NODE: &str = "node";
/// `HASH` of [`crate::net::Endpoint`] to [`crate::net::EndpointUse`].
pub const ENDPOINTS: &str = "endpoints";
/// `ARRAY` of a byte of `FILTER_…` bits for each [`crate::net::Endpoint::place`]. It spares packets that are not ours the
/// hash maps. Bits are never taken back: a stale one costs a look into those, and flows outlive the address in `endpoints`.
pub const FILTER: &str = "filter";
/// A key of `endpoints` has, or had, this place. Set by userspace, before the key.
pub const FILTER_OURS: u8 = 1;
/// Flows were redirected there. Set by the kernel.
pub const FILTER_REDIRECTED: u8 = 2;
/// Flows that had asked for it were redirected. Set by the kernel.
pub const FILTER_LEFT: u8 = 4;
/// `ARRAY` of [`crate::origin::Origin`]: written by userspace.
pub const ORIGINS: &str = "origins";
/// `ARRAY` of [`crate::origin::OriginState`]: written by the kernel.
pub const STATES: &str = "states";
/// `PERCPU_ARRAY` of [`crate::origin::Counters`].
pub const COUNTERS: &str = "counters";
/// `ARRAY` of [`Service`].
pub const SERVICES: &str = "services";
/// `ARRAY` of [`Selector`], one a frontend.
pub const SELECTORS: &str = "selectors";
/// `ARRAY` of [`Table`], two a frontend.
pub const TABLES: &str = "tables";
/// `LRU_HASH` of IPv4 connection attempts.
pub const HALF_OPEN_V4: &str = "half_open_v4";
/// `LRU_HASH` of IPv6 connection attempts.
pub const HALF_OPEN_V6: &str = "half_open_v6";
/// `LRU_HASH` of IPv4 flows.
pub const FLOWS_V4: &str = "flows_v4";
/// `LRU_HASH` of IPv6 flows.
pub const FLOWS_V6: &str = "flows_v6";
/// `HASH` of redirected IPv4 flows: where the node's packets go.
pub const MOVED_OUT_V4: &str = "moved_out_v4";
/// `HASH` of redirected IPv6 flows: where the node's packets go.
pub const MOVED_OUT_V6: &str = "moved_out_v6";
/// `HASH` of redirected IPv4 flows: what the origin's packets become.
pub const MOVED_BACK_V4: &str = "moved_back_v4";
/// `HASH` of redirected IPv6 flows: what the origin's packets become.
pub const MOVED_BACK_V6: &str = "moved_back_v6";
/// `HASH` of socket cookies to [`crate::flow::Choice`].
pub const SOCKETS: &str = "sockets";
/// `ARRAY[2]` of `u64`: the kernel's and userspace's share of the number of entries of `sockets`, modulo 2^64; each takes away what
/// it removes, whoever made it. While they come to none, nobody looks for one.
pub const NOTES: &str = "notes";
/// Place of the kernel's share in [`NOTES`].
pub const NOTES_KERNEL: u32 = 0;
/// Place of userspace's share in [`NOTES`].
pub const NOTES_USER: u32 = 1;
/// `HASH` of network namespace cookies whose sockets are steered.
pub const NAMESPACES: &str = "namespaces";
/// `HASH` of what `bypass` names: [`BypassKey`] to nothing.
pub const BYPASS: &str = "bypass";
/// `PERCPU_ARRAY` of node-wide counters, by [`Count`].
pub const COUNTS: &str = "counts";
/// `RINGBUF` of [`crate::event::Event`].
pub const EVENTS: &str = "events";
/// `HASH` of [`NameKey`] to [`Name`]: only userspace writes and reads it.
pub const NAMES: &str = "names";

/// What every program needs to know of the node. Value of the map `node`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Node {
    /// Sockets with this mark are neither steered nor tracked. 0: no mark is special.
    pub bypass_mark: u32,
    /// Whether the map `bypass` names users.
    pub bypass_users: u32,
    /// Depths at which the map `bypass` names cgroups: bit n for children of level n - 1, the root being level 0.
    pub bypass_levels: u32,
    /// Pid of the daemon that wrote last.
    pub daemon_pid: u32,
    /// `Node::…` bits. One word, so that the whole node changes at once.
    pub mode: u32,
    /// Port on the loopback address, in network byte order, at which the daemon tests whether its SYN timeouts are in force;
    /// 0: none.
    pub test_port: u32,
    /// The SYN timeout of that test. Unit: jiffies.
    pub test_jiffies: u32,
    /// Always 0.
    pub pad: u32,
}

impl Node {
    /// Nothing is steered, tripped or rescued; it is computed and counted as withheld.
    pub const OBSERVE: u32 = 1;
    /// Nothing is tripped or rescued anew; what is planned stays in force.
    pub const FREEZE: u32 = 2;
    /// Nothing new is steered.
    pub const BYPASS: u32 = 4;
}

/// Deepest cgroup that `bypass` may name. A bound for loops over levels.
pub const CGROUP_LEVEL_MAX: u32 = 8;

/// A user or a cgroup whose sockets are never steered; a cgroup stands for those below it too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct BypassKey {
    /// User id or cgroup id.
    pub id: u64,
    /// [`BypassKey::USER`] or [`BypassKey::CGROUP`].
    pub kind: u64,
}

impl BypassKey {
    /// `id` is a user id.
    pub const USER: u64 = 1;
    /// `id` is a cgroup v2 id.
    pub const CGROUP: u64 = 2;
}

/// The word that chooses a frontend's table: generation above, buffer below. Stored whole, so readers see one or the
/// other. Generation 0: nothing was planned yet, traffic is left alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Selector(pub u64);

impl Selector {
    /// A word of both.
    #[must_use]
    pub const fn new(generation: u32, buffer: u32) -> Self {
        Self(((generation as u64) << 32) | (buffer & 1) as u64)
    }

    /// How often the frontend was planned. Wraps after 2^32 - 1 to 1.
    #[inline(always)]
    #[must_use]
    pub const fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Which of the two tables is in force.
    #[inline(always)]
    #[must_use]
    pub const fn buffer(self) -> u32 {
        (self.0 & 1) as u32
    }
}

/// A frontend's choices. Two of them share a frontend; only the one that is not in force is written, and only after the
/// grace period, because a value of this size is read torn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Table {
    /// Low half: origin. High half: low half of the generation, so that a reader knows a slot of another plan.
    pub slots: [u32; SLOTS],
    /// Entries of `armed`.
    pub armed_len: u8,
    /// How many of them, from the first, share the load.
    pub armed_best: u8,
    /// The frontend's service.
    pub service: u16,
    /// The origin whose own address the frontend is; [`NONE`] for a virtual address.
    pub own: u16,
    /// `Table::…` bits.
    pub flags: u16,
    /// Origins to use when a slot's origin is tripped, best first.
    pub armed: [u16; ARMED_MAX],
}

impl Table {
    /// What no standby has capacity for is refused at once.
    pub const REFUSE: u16 = 1;
    /// What no standby has capacity for goes to the best one all the same.
    pub const EXCEED: u16 = 2;
    /// What finds no usable origin is refused at once, instead of going to an unusable one.
    pub const NO_PANIC: u16 = 4;
    /// All slots are the address's own origin: whoever chooses, and whenever, chooses the same.
    pub const OWN: u16 = 8;

    /// A slot's word.
    #[must_use]
    pub const fn slot(origin: u16, generation: u32) -> u32 {
        ((generation & 0xffff) << 16) | origin as u32
    }
}

/// What the guard must know of a service. Value of the map `services`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Service {
    /// Origins with a weight above 0.
    pub origins: [u16; SERVICE_ORIGINS_MAX],
    /// Tier of each, with [`Service::V6`] for IPv6: families never stand in for each other.
    pub tiers: [u8; SERVICE_ORIGINS_MAX],
    /// Entries in use.
    pub len: u32,
    /// Share of a tier that may be tripped while no lower tier can serve. Unit: percent.
    pub max_percent: u32,
}

impl Service {
    /// Bit in `tiers`: an IPv6 origin.
    pub const V6: u8 = 0x80;
    /// The rest of `tiers`. Tiers go up to 127.
    pub const TIER: u8 = 0x7f;
}

const _: () =
    assert!(size_of::<Table>() == 4 * SLOTS + 8 + 2 * ARMED_MAX && size_of::<Service>() == 3 * SERVICE_ORIGINS_MAX + 8);

impl Default for Service {
    fn default() -> Self {
        Self { origins: [NONE; SERVICE_ORIGINS_MAX], tiers: [0; SERVICE_ORIGINS_MAX], len: 0, max_percent: 0 }
    }
}

/// Key of the map `names`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct NameKey {
    /// [`NameKey::ORIGIN`], [`NameKey::SERVICE`] or [`NameKey::FRONTEND`].
    pub kind: u16,
    /// The kernel's number.
    pub id: u16,
}

impl NameKey {
    /// An origin.
    pub const ORIGIN: u16 = 1;
    /// A service.
    pub const SERVICE: u16 = 2;
    /// A frontend; its name is its address.
    pub const FRONTEND: u16 = 3;
}

/// A name, filled up with zeros.
pub type Name = [u8; 64];

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident = $label:literal,)+) => {
        /// Node-wide counters: place in the map `counts`. Every exit of a program that isn't the ordinary one is here.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub enum Count { $($(#[$doc])* $name,)+ }

        impl Count {
            /// All of them, in the map's order.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// Word for metrics and `maps`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $label,)+ }
            }
        }
    };
}

counts! {
    /// Not Ethernet with IPv4 or IPv6: ARP, others.
    SkippedLink = "skipped_link",
    /// More than two VLAN tags.
    SkippedVlan = "skipped_vlan",
    /// A fragment: it has no ports, or no payload that can be judged.
    SkippedFragment = "skipped_fragment",
    /// More IPv6 extension headers before TCP than are looked through.
    SkippedExtension = "skipped_extension",
    /// Shorter than its headers say.
    SkippedShort = "skipped_short",
    /// A forwarded SYN that reaches no origin: its last hop is here, a checksum is wrong, or it is of IPv6 to a mapped
    /// address of IPv4.
    SkippedUndeliverable = "skipped_undeliverable",
    /// A mid-stream packet of a flow that began before Sluice did, or was evicted.
    PickedUp = "picked_up",
    /// A SYN that egress sent to another origin than it was addressed to.
    SteeredEgress = "steered_tc_egress",
    /// A connect that was sent to another origin than it was addressed to.
    SteeredConnect = "steered_connect",
    /// A forwarded SYN that was sent to another origin than it was addressed to, where it arrived.
    SteeredClient = "steered_tc_client",
    /// A repeated SYN that was sent to a standby.
    Resteered = "resteered",
    /// A refused SYN that was sent to a standby.
    TurnedAround = "turned_around",
    /// A refused SYN that could not be sent anew; the refusal went through.
    TurnFailed = "turn_failed",
    /// After a re-steer the first origin answered first.
    Undone = "rescue_undone",
    /// A flow whose node's port was taken on the way to the standby, and which got another one.
    PortTranslated = "port_translated",
    /// A flow that could not be moved: no port is free on the way to the standby.
    NatCollision = "nat_collision",
    /// A flow that could not be moved: its SYN is signed or authenticated, or the standby answers past this node.
    NotMovable = "not_movable",
    /// A flow that could not be moved: the tables of moved flows are full.
    MovedFull = "moved_full",
    /// A late answer of the origin that a moved handshake left: dropped.
    LoserDropped = "loser_dropped",
    /// A map update of the kernel that failed (contention, full).
    UpdateFailed = "update_failed",
    /// RSTs sent to origins that a rescue left.
    LoserReset = "loser_reset",
    /// ICMP errors of redirected flows whose quoted header was translated.
    IcmpTranslated = "icmp_translated",
    /// ICMP errors that quote no byte in flight: no evidence.
    IcmpForged = "icmp_forged",
    /// New flows that were refused because no usable origin has capacity for them.
    OverflowRefused = "overflow_refused",
    /// Socket timeouts that were set by `sock_ops`.
    TimeoutSet = "timeout_set",
    /// Entries made in `half_open_*`. What was made, and neither removed nor is there, was evicted.
    HalfOpenMade = "half_open_made",
    /// Entries removed from `half_open_*`.
    HalfOpenRemoved = "half_open_removed",
    /// Entries made in `flows_*`.
    FlowMade = "flow_made",
    /// Entries removed from `flows_*`.
    FlowRemoved = "flow_removed",
    /// An event that did not fit into the ring buffer.
    EventLost = "event_lost",
    /// A slot of another generation: the reader was overtaken by a new plan twice; traffic left alone.
    SlotStale = "slot_stale",
    /// A choice among unusable origins only.
    Panic = "panic",
    /// A move that observe mode withheld.
    WithheldSteer = "withheld_steer",
    /// A trip that the guard withheld.
    WithheldTrip = "withheld_trip",
    /// A rescue that observe mode or a freeze withheld.
    WithheldRescue = "withheld_rescue",
    /// A socket timeout that observe mode or a freeze withheld.
    WithheldTimeout = "withheld_timeout",
    /// A packet that the rewriting helpers refused; passed as it was.
    NatFailed = "nat_failed",
    /// A segment of a flow that its receiver will not accept: forwarded, no evidence.
    Forged = "forged",
}
