//! Whether a forwarded SYN can reach an origin at all. One that somebody on the way drops in silence (this node, at its last
//! hop; the origin's stack, for a wrong checksum) would make an origin look silent, for a few packets of whoever likes.

use aya_ebpf::{
    EbpfContext,
    bindings::__sk_buff,
    helpers::generated::{bpf_csum_diff, bpf_skb_load_bytes},
    programs::TcContext,
};
use health_common::{map::Count, net::FlowKey};

use crate::{
    maps::{self, Family, V4, V6, count},
    nat::Rewrite,
    parse::Packet,
};

/// Bytes that are summed at once: what the helper takes. A power of two.
const PIECE: usize = 512;
/// Pieces of a SYN that are summed. One with more data than that is not tracked.
const PIECES: u32 = 4;
/// Words of the room for a piece, with some to spare for the verifier, which rounds up.
pub const WORDS: usize = PIECE / 4 + 4;
/// What a sum comes to, folded, that has its own complement in it (RFC 1071).
const RIGHT: u32 = 0xffff;
const PROTOCOL: u32 = 6;
const CHECKSUM: u32 = 16;

macro_rules! entry {
    ($family:ident, $name:ident) => {
        /// Whether the noted SYN can reach an origin; counted if not.
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $name(ctx: *mut __sk_buff) -> u32 {
            let reaches = reaches::<$family>(&TcContext::new(ctx)).unwrap_or(false);
            if !reaches {
                count(Count::SkippedUndeliverable);
            }
            reaches.into()
        }
    };
}

entry!(V4, reaches_v4);
entry!(V6, reaches_v6);

#[inline(always)]
fn reaches<F: Family>(ctx: &TcContext) -> Option<bool> {
    let packet: &Packet<F::Key> = &F::noted(maps::scratch()?).packet;
    let (l3, l4) = (u32::from(packet.l3), u32::from(packet.l4));
    let mut hops = [0_u8; 1];
    load(ctx, l3 + if F::Key::IPV6 { 7 } else { 8 }, hops.as_mut_ptr(), 1)?;
    let (node, remote) = (packet.key.node().addr, packet.key.remote().addr);
    // No host is reached by a mapped address on the wire (RFC 4291 §2.5.5.2), though it is the name of one here.
    if hops[0] <= 1 || (F::Key::IPV6 && remote.is_v4()) {
        return Some(false);
    }
    let raw = ctx.as_ptr().cast();
    if !F::Key::IPV6 && sum_of(raw, l3, l4.wrapping_sub(l3), 0) != RIGHT {
        return Some(false);
    }
    let len = u32::from(packet.header_len) + packet.segment.len;
    // The pseudo header of IPv6. That of IPv4 has the same sum, for a mapped address only adds 0xffff, which is 0.
    let words = &mut maps::scratch()?.words;
    words[..4].copy_from_slice(&node.0);
    words[4..8].copy_from_slice(&remote.0);
    (words[8], words[9]) = (len.to_be(), PROTOCOL.to_be());
    // SAFETY: the room is longer.
    let seed = unsafe { bpf_csum_diff(core::ptr::null_mut(), 0, words.as_mut_ptr(), 40, 0) };
    Some(sum_of(raw, l4, len, seed as u32) == RIGHT || is_partial(ctx, l4 + CHECKSUM)?)
}

#[inline(always)]
fn load(ctx: &TcContext, at: u32, to: *mut u8, len: u32) -> Option<()> {
    // SAFETY: callers have room for as many bytes, which the verifier checks.
    (unsafe { bpf_skb_load_bytes(ctx.as_ptr(), at, to.cast(), len) } == 0).then_some(())
}

/// The folded sum of bytes of the packet, on top of `seed`; 0, which none has, for what can't be summed.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn sum_of(ctx: *mut __sk_buff, at: u32, len: u32, seed: u32) -> u32 {
    sum(&TcContext::new(ctx), at, len, seed).unwrap_or(0)
}

#[inline(always)]
fn sum(ctx: &TcContext, at: u32, len: u32, seed: u32) -> Option<u32> {
    let words = &mut maps::scratch()?.words;
    let (mut done, mut total) = (0_u32, seed);
    for _ in 0..PIECES {
        if done >= len {
            break;
        }
        // By a mask, not by a comparison: Linux 6.1 does not know that of what the compiler put on the stack before it.
        let less = maps::opaque((len - done).min(PIECE as u32) as usize - 1) & (PIECE - 1);
        let piece = less as u32 + 1;
        // An odd end is filled up with zeros.
        *words.get_mut(less / 4)? = 0;
        load(ctx, at.wrapping_add(done), words.as_mut_ptr().cast(), piece)?;
        // SAFETY: the room has as many words.
        total = unsafe { bpf_csum_diff(core::ptr::null_mut(), 0, words.as_mut_ptr(), (piece + 3) & !3, total) } as u32;
        done += piece;
    }
    if done != len {
        return None;
    }
    let folded = (total & 0xffff) + (total >> 16);
    Some((folded & 0xffff) + (folded >> 16))
}

/// Whether the checksum is still to be made by the device that sends the packet (CHECKSUM_PARTIAL), as of packets that never
/// were on a wire. No field says so; but the helper then leaves the checksum alone.
#[inline(always)]
fn is_partial(ctx: &TcContext, at: u32) -> Option<bool> {
    let at = at as usize;
    let before: u16 = ctx.load(at).ok()?;
    ctx.l4_csum_replace(at, 0, 1, 4).ok()?;
    let after: u16 = ctx.load(at).ok()?;
    ctx.store(at, &before, 0).ok()?;
    Some(before == after)
}
