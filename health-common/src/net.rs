//! Addresses and ports as they are on the wire.

/// A 16-bit number in network byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Be16(pub u16);

/// An IPv4 address in network byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Be32(pub u32);

impl Be16 {
    /// From host byte order.
    #[must_use]
    pub const fn new(host: u16) -> Self {
        Self(host.to_be())
    }

    /// To host byte order.
    #[must_use]
    pub const fn get(self) -> u16 {
        u16::from_be(self.0)
    }
}

/// An IPv6 address, or an IPv4 address in the mapped form `::ffff:a.b.c.d` (RFC 4291 §2.5.5.2), as four words in network
/// byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Addr(pub [u32; 4]);

impl Addr {
    /// Third word of a mapped IPv4 address.
    pub const MAPPED: u32 = 0xffff_u32.to_be();

    /// An IPv4 address, mapped.
    #[must_use]
    pub const fn v4(address: Be32) -> Self {
        Self([0, 0, Self::MAPPED, address.0])
    }

    /// From sixteen bytes in network byte order.
    #[must_use]
    pub const fn from_octets(o: [u8; 16]) -> Self {
        Self([
            u32::from_ne_bytes([o[0], o[1], o[2], o[3]]),
            u32::from_ne_bytes([o[4], o[5], o[6], o[7]]),
            u32::from_ne_bytes([o[8], o[9], o[10], o[11]]),
            u32::from_ne_bytes([o[12], o[13], o[14], o[15]]),
        ])
    }

    /// Sixteen bytes in network byte order.
    #[must_use]
    pub const fn octets(self) -> [u8; 16] {
        let [a, b, c, d] =
            [self.0[0].to_ne_bytes(), self.0[1].to_ne_bytes(), self.0[2].to_ne_bytes(), self.0[3].to_ne_bytes()];
        [a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3], c[0], c[1], c[2], c[3], d[0], d[1], d[2], d[3]]
    }

    /// Whether it is a mapped IPv4 address.
    #[must_use]
    pub const fn is_v4(self) -> bool {
        self.0[0] == 0 && self.0[1] == 0 && self.0[2] == Self::MAPPED
    }

    /// The IPv4 address inside a mapped one.
    #[must_use]
    pub const fn low(self) -> Be32 {
        Be32(self.0[3])
    }
}

/// Address and port: key of the map `endpoints`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Endpoint {
    /// IPv4 is mapped.
    pub addr: Addr,
    /// TCP port.
    pub port: Be16,
    /// Always 0: the kernel compares keys byte by byte.
    pub pad: u16,
}

impl Endpoint {
    /// Address and port.
    #[must_use]
    pub const fn new(addr: Addr, port: Be16) -> Self {
        Self { addr, port, pad: 0 }
    }
}

/// Places of the map `filter`: enough that 10,000 addresses leave most of them empty.
pub const PLACES: u32 = 1 << 16;

impl Endpoint {
    /// Its place in the map `filter`, which others may share.
    #[inline(always)]
    #[must_use]
    pub const fn place(&self) -> u32 {
        let [a, b, c, d] = self.addr.0;
        let word = (a ^ b ^ c ^ d) as u64 | (self.port.0 as u64) << 32;
        // Multiplicative hashing: the upper bits depend on all of the word's.
        (word.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u32
    }
}

/// What the node's traffic to an address and port means. Value of the map `endpoints`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct EndpointUse {
    /// The origin that lives there, or [`crate::NONE`].
    pub origin: u16,
    /// The frontend that it is, or [`crate::NONE`]: observed, not steered.
    pub frontend: u16,
}

const _: () = assert!(size_of::<Endpoint>() == 20 && size_of::<EndpointUse>() == 4);

/// The four-tuple of a flow, the node's side first; the hook tells the direction. Key of the flow maps.
pub trait FlowKey: Copy + PartialEq {
    /// The origin's side.
    fn remote(&self) -> Endpoint;
    /// The node's side.
    fn node(&self) -> Endpoint;
    /// The same flow with another origin's side.
    #[must_use]
    fn with_remote(&self, remote: &Endpoint) -> Self;
    /// The same flow with another port on the node's side.
    #[must_use]
    fn with_node_port(&self, port: Be16) -> Self;
    /// The sides exchanged.
    #[must_use]
    fn turned(&self) -> Self;
}

/// Key of the IPv4 flow maps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct FlowKey4 {
    /// The node's side (for forwarded traffic: the client's).
    pub node: Be32,
    /// The origin's side.
    pub remote: Be32,
    /// Port on the node's side.
    pub node_port: Be16,
    /// Port on the origin's side.
    pub remote_port: Be16,
}

/// Key of the IPv6 flow maps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct FlowKey6 {
    /// The node's side (for forwarded traffic: the client's).
    pub node: Addr,
    /// The origin's side.
    pub remote: Addr,
    /// Port on the node's side.
    pub node_port: Be16,
    /// Port on the origin's side.
    pub remote_port: Be16,
}

const _: () = assert!(size_of::<FlowKey4>() == 12 && size_of::<FlowKey6>() == 36);

impl FlowKey for FlowKey4 {
    #[inline(always)]
    fn remote(&self) -> Endpoint {
        Endpoint::new(Addr::v4(self.remote), self.remote_port)
    }

    #[inline(always)]
    fn node(&self) -> Endpoint {
        Endpoint::new(Addr::v4(self.node), self.node_port)
    }

    #[inline(always)]
    fn with_remote(&self, remote: &Endpoint) -> Self {
        Self { remote: remote.addr.low(), remote_port: remote.port, ..*self }
    }

    #[inline(always)]
    fn with_node_port(&self, port: Be16) -> Self {
        Self { node_port: port, ..*self }
    }

    #[inline(always)]
    fn turned(&self) -> Self {
        let Self { node, remote, node_port, remote_port } = *self;
        Self { node: remote, remote: node, node_port: remote_port, remote_port: node_port }
    }
}

impl FlowKey for FlowKey6 {
    #[inline(always)]
    fn remote(&self) -> Endpoint {
        Endpoint::new(self.remote, self.remote_port)
    }

    #[inline(always)]
    fn node(&self) -> Endpoint {
        Endpoint::new(self.node, self.node_port)
    }

    #[inline(always)]
    fn with_remote(&self, remote: &Endpoint) -> Self {
        Self { remote: remote.addr, remote_port: remote.port, ..*self }
    }

    #[inline(always)]
    fn with_node_port(&self, port: Be16) -> Self {
        Self { node_port: port, ..*self }
    }

    #[inline(always)]
    fn turned(&self) -> Self {
        let Self { node, remote, node_port, remote_port } = *self;
        Self { node: remote, remote: node, node_port: remote_port, remote_port: node_port }
    }
}
