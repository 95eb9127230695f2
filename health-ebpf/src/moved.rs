//! Redirected flows: notes of who goes where, made, used, given back.

use aya_ebpf::{bindings::BPF_NOEXIST, programs::TcContext};
use health_common::{
    flow::{FIXED, Flow, Moved, USED, USED_SHIFT, mix},
    map::{Count, FILTER_LEFT, FILTER_REDIRECTED},
    net::{Be16, FlowKey},
    origin::Origin,
};

use crate::{
    egress::Hook,
    maps::{self, Family, Noted, count},
    nat::{self, Change, Rewrite, Side},
    observe::PASS,
    parse::Packet,
    subject::is_one_way,
};

/// A redirection that nothing else names is held for this long after its last packet. Unit: ns.
const HELD_NS: u64 = 60_000_000_000;
/// Other ports that are tried when the node's own is taken on the way to a standby.
const PORTS: u32 = 8;
/// Ports that are taken instead: the upper half, where systems take theirs (RFC 6335 §6).
const PORTS_FROM: u16 = 0x8000;

/// Sends a packet of a redirected flow where it goes.
#[inline(always)]
pub fn send<F: Family, H: Hook>(ctx: &TcContext, packet: &Packet<F::Key>) -> i32 {
    let Some(moved) = F::moved_out().get_ptr_mut(&packet.key) else {
        return PASS;
    };
    // SAFETY: the map is preallocated; the entry of a live flow is not reused.
    let moved = unsafe { &mut *moved };
    let now = maps::coarse_now();
    if moved.seen_ns != now {
        moved.seen_ns = now;
    }
    let change = Change { side: Side::Destination, to: &moved.to, node_port: moved.node_port };
    redirect::<F, H>(ctx, packet, change, moved.ifindex)
}

/// The same for an established flow, which says by itself where: the origin, and the node's port there. One look less into
/// a large table.
#[inline(always)]
pub fn send_to<F: Family, H: Hook>(ctx: &TcContext, packet: &Packet<F::Key>, (origin, node_port): (u16, Be16)) -> i32 {
    let Some(origin) = maps::origin(origin) else { return PASS };
    let change = Change { side: Side::Destination, to: &origin.endpoint, node_port };
    redirect::<F, H>(ctx, packet, change, origin.ifindex)
}

#[inline(always)]
fn redirect<F: Family, H: Hook>(ctx: &TcContext, packet: &Packet<F::Key>, change: Change<'_>, ifindex: u32) -> i32 {
    if nat::rewrite(ctx, packet, change).is_none() {
        nat::failed(ctx);
        return PASS;
    }
    if H::CLIENT {
        // Routing comes after us, and finds the new next hop by itself.
        nat::mark(ctx);
        return PASS;
    }
    nat::redirect(ctx, packet.l3, ifindex)
}

/// Whether it is time for a redirected flow to say that it is in use.
#[inline(always)]
pub fn is_due(flow: &mut Flow) -> bool {
    let bit = (maps::coarse_now() >> USED_SHIFT) as u16 & 1;
    if flow.flags / USED == bit {
        return false;
    }
    flow.flags ^= USED;
    true
}

/// The redirection is in use.
#[inline(always)]
pub fn used<F: Family>(key: &F::Key) {
    if let Some(moved) = F::moved_out().get_ptr_mut(key) {
        // SAFETY: the map is preallocated; the entry of a live flow is not reused.
        unsafe { (*moved).seen_ns = maps::coarse_now() };
    }
}

/// Notes the redirection of a tuple, both ways. False when the flow has to stay where it is: one of the two origins answers past
/// this node, the way is unknown, no port is free, or the maps are full.
///
/// With `flags` [`FIXED`] the packet can't be changed at all.
#[inline(always)]
pub fn relocate<F: Family>(key: &F::Key, (from, to): (u16, u16), flags: u16) -> bool {
    let Some(scratch) = maps::scratch() else { return false };
    F::noted(scratch).primary = *key;
    // Where the first one's answers don't pass, the standby's hardly do.
    F::relocate_noted(to, if is_one_way(from) || is_one_way(to) { flags | FIXED } else { flags })
}

/// The same for the noted tuple.
#[inline(always)]
pub fn relocate_noted<F: Family>(to: u16, flags: u16) -> bool {
    let Some(scratch) = maps::scratch() else { return false };
    let Noted { primary: key, there, .. } = F::noted(scratch);
    let Some(origin) = maps::origin(to) else { return false };
    if flags & FIXED != 0 || origin.is(Origin::ONE_WAY) {
        count(Count::NotMovable);
        return false;
    }
    if origin.ifindex == 0 {
        count(Count::NatFailed);
        return false;
    }
    *there = key.with_remote(&origin.endpoint);
    let (own, _) = key.ports();
    if !pick_port::<F>(there, own, *there == *key) {
        count(Count::NatCollision);
        return false;
    }
    let Some(scratch) = maps::scratch() else { return false };
    let moved = &mut scratch.moved;
    *moved = Moved {
        to: key.remote(),
        ifindex: origin.ifindex,
        node_port: own,
        seen_ns: maps::coarse_now(),
        ..Moved::default()
    };
    if F::moved_back().insert(&*there, &*moved, u64::from(BPF_NOEXIST)).is_err() {
        count(Count::MovedFull);
        return false;
    }
    maps::redirects(&key.remote(), &origin.endpoint);
    moved.to = origin.endpoint;
    (moved.node_port, _) = there.ports();
    if moved.node_port != own {
        count(Count::PortTranslated);
    }
    if F::moved_out().insert(&*key, &*moved, 0).is_err() {
        maps::removed(F::moved_back().remove(&*there));
        count(Count::MovedFull);
        return false;
    }
    true
}

/// Leaves the node's own port in the tuple, if it is free on the way there, or puts another one in. `direct`: the flow goes
/// there by itself, and only wants another port.
#[inline(always)]
fn pick_port<F: Family>(there: &mut F::Key, own: Be16, direct: bool) -> bool {
    let seed = u64::from(own.0) << 32 | maps::now() & 0xffff_ffff;
    for i in 0..PORTS {
        if i > 0 || direct {
            there.set_node_port(Be16::new(PORTS_FROM | (mix(seed + u64::from(i)) as u16)));
        }
        if F::flows().get_ptr(&*there).is_none() && F::half_open().get_ptr(&*there).is_none() && is_free::<F>(there) {
            return true;
        }
    }
    false
}

/// Whether no redirection uses the origin's side of a tuple. One that has ended gives it back.
#[inline(always)]
pub fn is_free<F: Family>(there: &F::Key) -> bool {
    if maps::filter(&there.remote()) & FILTER_REDIRECTED == 0 {
        return true;
    }
    let Some(back) = F::moved_back().get_ptr(there) else { return true };
    // SAFETY: the map is preallocated.
    let primary = unsafe { there.with_remote(&(*back).to).with_node_port((*back).node_port) };
    if let Some(out) = F::moved_out().get_ptr(&primary) {
        // SAFETY: as above.
        let (ended_ns, seen_ns) = unsafe { ((*out).ended_ns, (*out).seen_ns) };
        let named = F::flows().get_ptr(&primary).is_some() || F::half_open().get_ptr(&primary).is_some();
        if ended_ns == 0 && (named || maps::coarse_now().saturating_sub(seen_ns) < HELD_NS) {
            return false;
        }
        maps::removed(F::moved_out().remove(&primary));
    }
    maps::removed(F::moved_back().remove(there));
    true
}

/// Forgets an older flow of a tuple, and its redirection.
#[inline(always)]
pub fn forget<F: Family>(key: &F::Key) {
    if F::flows().get_ptr(key).is_some() {
        maps::gone(F::flows().remove(key), Count::FlowRemoved);
    }
    take_back::<F>(key);
}

/// Forgets the redirection of a tuple.
#[inline(always)]
pub fn take_back<F: Family>(key: &F::Key) {
    if maps::filter(&key.remote()) & FILTER_LEFT == 0 {
        return;
    }
    if let Some(moved) = F::moved_out().get_ptr(key) {
        // SAFETY: the map is preallocated.
        let wire = key.with_remote(unsafe { &(*moved).to }).with_node_port(unsafe { (*moved).node_port });
        let Some(scratch) = maps::scratch() else { return };
        // By way of the scratch room, as the stack has none for it.
        let there = &mut F::noted(scratch).there;
        *there = wire;
        maps::removed(F::moved_back().remove(&*there));
        maps::removed(F::moved_out().remove(key));
    }
}

/// The flow is over. Its redirection stays for the last packets, until userspace or a new SYN takes it away.
#[inline(always)]
pub fn end<F: Family>(key: &F::Key, moved: bool) {
    if moved {
        ended::<F>(key);
    }
    maps::gone(F::flows().remove(key), Count::FlowRemoved);
}

/// The redirection serves last packets only.
#[inline(always)]
pub fn ended<F: Family>(key: &F::Key) {
    if let Some(moved) = F::moved_out().get_ptr_mut(key) {
        // SAFETY: the map is preallocated.
        unsafe { (*moved).ended_ns = maps::coarse_now() };
    }
}
