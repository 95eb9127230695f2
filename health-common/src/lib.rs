//! What the kernel half and the userspace half of Sluice agree on: map keys and values, map names, capacities, histogram
//! maths, and [`track`], the pure per-packet transitions that both the programs and the host tests call.
//!
//! Nothing here does IO or allocates. A change of any layout changes [`ABI_VERSION`], which is part of the pin path, so
//! two layouts never meet.
#![no_std]
#![allow(
    clippy::inline_always,
    reason = "the verifier checks a call's stack and arguments anew; inlined, they cost it nothing"
)]

pub mod cells;
pub mod event;
pub mod flow;
pub mod histogram;
pub mod http;
pub mod map;
pub mod net;
pub mod options;
pub mod origin;
pub mod streak;
pub mod track;
pub mod trip;

/// Layout of everything in the pinned maps. Part of the pin path: `<pin_dir>/v<ABI_VERSION>/`.
pub const ABI_VERSION: u32 = 3;

/// Places in a frontend's slot table. Prime, as Maglev tables are (Eisenbud et al., NSDI 2016, §3.4).
pub const SLOTS: usize = 251;

/// Standbys that a frontend keeps ready for the moment of a trip.
pub const ARMED_MAX: usize = 16;

/// Origins of one service that the kernel's guard can count.
pub const SERVICE_ORIGINS_MAX: usize = 64;

/// No origin, frontend or service.
pub const NONE: u16 = u16::MAX;

/// Bit in `skb->mark` that says: this packet was rewritten and sent again, let it pass. It is set and cleared inside one
/// node; it must not be used by the node's other rules.
pub const SECOND_PASS_MARK: u32 = 0x0800_0000;

/// The same word in the packet's control block (`__sk_buff.cb[0]`), which stays while a hook's programs run one after the
/// other: of several versions' programs the first takes the mark off, and the others must know, too.
pub const SECOND_PASS_CB: u32 = 0x51c3_0002;

/// Lets the loader copy the map types as bytes.
#[cfg(feature = "user")]
mod pod {
    macro_rules! pod {
        ($($type:ty),+ $(,)?) => {
            $(
                // SAFETY: `repr(C)` or `repr(transparent)`, only integers and arrays of them, so every bit pattern is a
                // value; no padding, which the asserted sizes show.
                unsafe impl aya::Pod for $type {}
            )+
        };
    }

    pod!(
        crate::event::Event,
        crate::flow::Choice,
        crate::flow::Flow,
        crate::flow::HalfOpen,
        crate::flow::Moved,
        crate::map::BypassKey,
        crate::map::NameKey,
        crate::map::Node,
        crate::map::Selector,
        crate::map::Service,
        crate::map::Table,
        crate::net::Endpoint,
        crate::net::EndpointUse,
        crate::net::FlowKey4,
        crate::net::FlowKey6,
        crate::origin::Counters,
        crate::origin::Origin,
        crate::origin::OriginState,
    );
}
