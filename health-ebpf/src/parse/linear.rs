//! Whether the headers lie where they can be read directly.

use super::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, IPV6_LEN, PROTOCOL_ICMP, PROTOCOL_ICMPV6, PROTOCOL_TCP, TCP_LEN, is_extension, word,
};
use crate::context::Context;

/// Headers that a packet usually needs in its linear part: Ethernet, IPv4 with options, TCP.
const HEADERS: u32 = 94;

/// Whether the headers can be read directly, if they are there at all. IP begins at `l3`, or behind tags.
#[inline(always)]
pub fn is_linear<C: Context>(ctx: &C, l3: usize) -> bool {
    let wanted = ctx.length().min(HEADERS);
    // A packet that can't be pulled is short, which the reads will find.
    ctx.start() + wanted as usize <= ctx.end() || are_linear(ctx, l3) || ctx.pull(wanted)
}

/// Whether the headers that matter lie in the linear part, though not all of [`HEADERS`] bytes do: of a stack's own segments only
/// the headers are there, and pulling the first bytes of payload to them costs a copy of the packet's head.
#[inline(never)]
fn are_linear<C: Context>(ctx: &C, l3: usize) -> bool {
    let (start, end) = (ctx.start_anew(), ctx.end_anew());
    let ip = start + (l3 & 31);
    if ip + IPV6_LEN > end {
        return false;
    }
    // Behind a tag lies something else.
    if l3 != 0 && ![ETHERTYPE_IPV4, ETHERTYPE_IPV6].contains(&u16::from_be(word(start, 12))) {
        return false;
    }
    let version = word::<u8>(ip, 0) >> 4;
    let tcp = match (version, word::<u8>(ip, 9), word::<u8>(ip, 6)) {
        (4, PROTOCOL_TCP, _) => ip + usize::from(word::<u8>(ip, 0) & 0xf) * 4,
        (6, _, PROTOCOL_TCP) => ip + IPV6_LEN,
        // Nothing of it will be read.
        (4, protocol, _) => return protocol != PROTOCOL_ICMP,
        (6, _, next) => return next != PROTOCOL_ICMPV6 && !is_extension(next),
        _ => return false,
    };
    if tcp + TCP_LEN > end {
        return false;
    }
    tcp + usize::from(word::<u8>(tcp, 12) >> 4) * 4 <= end
}
