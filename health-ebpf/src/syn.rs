//! SYNs: a new connection is steered and remembered; a repeated one may be sent elsewhere.

use aya_ebpf::{
    EbpfContext,
    bindings::__sk_buff,
    helpers::generated::{bpf_get_socket_cookie, bpf_skb_load_bytes},
    programs::TcContext,
};
use health_common::{
    NONE,
    event::{Kind, Why},
    flow::{ANSWERED, AT_CLIENT, CWR, ECE, FORWARDED, HalfOpen, MOVED, OPTIONS_MAX, RESTEERED, TRIAL, UNTURNABLE, mix},
    map::Count,
    net::{Endpoint, EndpointUse, FlowKey},
    options,
    origin::Origin,
    streak::SPREAD_BITS,
};

use crate::{
    egress::{self, Client, Egress, Hook, on_its_way},
    maps::{self, Family, V4, V6, count},
    moved, notes,
    observe::{FULL_NOTED, PASS, REPEAT_NOTED, is_bypassed},
    parse::{Packet, TCP_LEN},
    signals::blame,
    steer::{self, Choice},
    subject::Subject,
    tell,
};

macro_rules! entry {
    ($family:ident, $hook:ident, $syn:ident, $again:ident) => {
        /// What becomes of the noted SYN.
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $syn(ctx: *mut __sk_buff) -> i32 {
            syn::<$family, $hook>(&TcContext::new(ctx)).unwrap_or(PASS)
        }

        /// What becomes of the noted SYN, which was sent before.
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $again(ctx: *mut __sk_buff) -> i32 {
            again::<$family, $hook>(&TcContext::new(ctx)).unwrap_or(PASS)
        }
    };
}

entry!(V4, Egress, syn_egress_v4, again_egress_v4);
entry!(V6, Egress, syn_egress_v6, again_egress_v6);
entry!(V4, Client, syn_client_v4, again_client_v4);
entry!(V6, Client, syn_client_v6, again_client_v6);

#[inline(always)]
fn syn<F: Family, H: Hook>(ctx: &TcContext) -> Option<i32> {
    let packet: &Packet<F::Key> = &F::noted(maps::scratch()?).packet;
    let key = &packet.key;
    let meant = maps::endpoint(&key.remote())?;
    if H::CLIENT && meant.frontend == NONE {
        // Nothing to steer: egress will look at it.
        return None;
    }
    if is_bypassed(ctx) {
        // What an older flow of the tuple left must not catch this one's packets.
        maps::gone(F::half_open().remove(key), Count::HalfOpenRemoved);
        moved::forget::<F>(key);
        let moves = apart::<F>(key, meant, packet.flags);
        return moves.then(|| on_its_way::<F, H>(ctx, packet, true));
    }
    // SAFETY: the context is a live `__sk_buff`.
    let cookie = unsafe { bpf_get_socket_cookie(ctx.as_ptr()) };
    if (H::CLIENT || cookie == 0) && !F::reaches(ctx.skb.skb) {
        return None;
    }
    let older = F::half_open().get_ptr(key);
    if let Some(attempt) = older {
        // SAFETY: as for flows.
        let attempt = unsafe { &*attempt };
        if attempt.isn == packet.segment.seq {
            if attempt.flags & AT_CLIENT != 0 && !H::CLIENT {
                return None;
            }
            return Some(REPEAT_NOTED);
        }
    }
    if !H::CLIENT && cookie == 0 && !moved::is_free::<F>(key) {
        // Redirected where it arrived, and its mark was lost on the way.
        return None;
    }
    first::<F, H>(ctx, packet, meant, cookie, older.is_none())
}

/// The tuple may be in use on the wire by a redirected flow: then this one gets another port there.
#[inline(always)]
fn apart<F: Family>(key: &F::Key, meant: EndpointUse, flags: u16) -> bool {
    !moved::is_free::<F>(key) && moved::relocate::<F>(key, (meant.origin, meant.origin), flags)
}

/// A SYN of a new connection: chooses, remembers, counts. `more`: it takes no older attempt's place.
#[inline(always)]
fn first<F: Family, H: Hook>(
    ctx: &TcContext,
    packet: &Packet<F::Key>,
    meant: EndpointUse,
    cookie: u64,
    more: bool,
) -> Option<i32> {
    let key = &packet.key;
    // The same tuple again, with another number: what was known of it is over (RFC 6191).
    moved::forget::<F>(key);
    let (now, node) = (egress::now::<H>(ctx), key.node());
    let attempt = &mut maps::scratch()?.attempt;
    remember(ctx, packet, attempt);
    (attempt.syn_ns, attempt.origin, attempt.frontend) = (now, meant.origin, meant.frontend);
    name_client::<H>(attempt, &node, cookie);
    let hash = hash(&node);
    let noted = if cookie == 0 { None } else { notes::find(|| cookie) }.filter(|choice| choice.origin == meant.origin);
    if let Some(choice) = noted {
        attempt.frontend = choice.frontend;
        attempt.flags |= choice.flags & TRIAL;
        attempt.tried(choice.next as u8);
    } else if meant.frontend != NONE {
        match steer::choose(meant.frontend, hash, now) {
            Choice::Leave => {}
            Choice::Refuse => return Some(FULL_NOTED),
            Choice::To(chosen) => {
                attempt.flags |= chosen.flags;
                attempt.tried(chosen.next);
                if chosen.origin != meant.origin
                    && moved::relocate::<F>(key, (meant.origin, chosen.origin), packet.flags)
                {
                    attempt.origin = chosen.origin;
                    attempt.flags |= MOVED;
                    count(if H::CLIENT { Count::SteeredClient } else { Count::SteeredEgress });
                }
            }
        }
    }
    let steered = attempt.flags & MOVED != 0;
    if attempt.origin == NONE {
        // A virtual address without a plan.
        return None;
    }
    if !steered && apart::<F>(key, EndpointUse { origin: attempt.origin, ..meant }, packet.flags) {
        attempt.flags |= MOVED;
    }
    let moves = attempt.flags & MOVED != 0;
    if F::half_open().insert(key, &*attempt, 0).is_err() {
        count(Count::UpdateFailed);
        // Nobody would know of the move: the flow goes where it was addressed, untracked.
        moved::forget::<F>(key);
        return None;
    }
    if more {
        count(Count::HalfOpenMade);
    }
    tell::note_for_event(&node);
    // Who was sent elsewhere by the connect hook was asked there whether there is room.
    let own = !steered && noted.is_none_or(|choice| choice.flags & MOVED == 0);
    let id = attempt.origin;
    sent(id, now, u32::from(attempt.client), u32::from(attempt.flags & TRIAL != 0) | u32::from(own) << 1);
    if steered && let Some(counters) = maps::counters(id) {
        counters.steered += 1;
    }
    Some(on_its_way::<F, H>(ctx, packet, moves))
}

/// Whose attempt it is: a forwarded client is its address, a socket of this host its port.
#[inline(always)]
fn name_client<H: Hook>(attempt: &mut HalfOpen, node: &Endpoint, cookie: u64) {
    let client = if H::CLIENT || cookie == 0 {
        attempt.flags |= FORWARDED | if H::CLIENT { AT_CLIENT } else { 0 };
        mix(u64::from(node.addr.0[3]) << 32 | u64::from(node.addr.0[1]))
    } else {
        mix(u64::from(node.port.0))
    };
    attempt.client = (client % SPREAD_BITS) as u8;
}

/// What a rescue needs to send the SYN again.
#[inline(always)]
fn remember<K>(ctx: &TcContext, packet: &Packet<K>, attempt: &mut HalfOpen) {
    let segment = &packet.segment;
    let len = usize::from(packet.header_len).wrapping_sub(TCP_LEN);
    // SAFETY: a record of numbers, all of which may be 0.
    unsafe { maps::zero(attempt) };
    (attempt.isn, attempt.window, attempt.tos) = (segment.seq, segment.window, packet.tos);
    let mut flags = packet.flags;
    if let Some(len) = maps::between_1_and(OPTIONS_MAX, len) {
        let to = attempt.options.as_mut_ptr();
        let at = u32::from(packet.l4) + TCP_LEN as u32;
        // SAFETY: the options have room for as many bytes.
        if unsafe { bpf_skb_load_bytes(ctx.as_ptr(), at, to.cast(), len) } == 0 {
            attempt.shape = (len / 4) as u8;
        } else {
            flags |= UNTURNABLE;
        }
        let (found, shift) = surveyed(len);
        flags |= found;
        attempt.set_node_shift(shift);
    }
    // RFC 7413: data on a SYN belongs to the origin that gave the cookie.
    if segment.len > 0 {
        flags |= UNTURNABLE;
    }
    flags |= if segment.flags & 0x40 != 0 { ECE } else { 0 } | if segment.flags & 0x80 != 0 { CWR } else { 0 };
    attempt.flags = flags;
}

/// What the options of the noted attempt say: flags, and the shift of the window.
#[inline(always)]
fn surveyed(len: u32) -> (u16, u8) {
    let word = survey(len);
    (word as u16, (word >> 16) as u8 & 0xf)
}

/// A loop over bytes, which the verifier need not follow on every way that leads here.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn survey(len: u32) -> u32 {
    let Some(scratch) = maps::scratch() else { return 0 };
    let attempt = &scratch.attempt;
    // SAFETY: both are 40 bytes.
    let bytes = unsafe { &*core::ptr::addr_of!(attempt.options).cast::<[u8; OPTIONS_MAX]>() };
    let (mut at, mut said) = (0, 0);
    // 40 NOPs are the most that there can be.
    for _ in 0..OPTIONS_MAX {
        let mut found = options::Survey { flags: said as u16, shift: (said >> 16) as u8 };
        at = maps::opaque(options::step(bytes, at, len as usize, &mut found));
        // In one word, for the stack, and opaque, so that all ways through a step lead to the same next one.
        said = maps::opaque(usize::from(found.flags) | usize::from(found.shift) << 16);
        if at >= len as usize {
            break;
        }
    }
    said as u32
}

/// Spreads flows over slots and standbys. The same for each packet of a flow, so that no standby is tried twice.
#[inline(always)]
pub fn hash(node: &Endpoint) -> u32 {
    mix(u64::from(node.addr.0[3]) << 16 | u64::from(node.port.0))
}

/// A SYN went to an origin for the first time. `how`: 1 it is a trial; 2 nobody asked whether there is room for it.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn sent(id: u16, now: u64, client: u32, how: u32) -> u32 {
    if let Some(counters) = maps::counters(id) {
        counters.syn += 1;
    }
    let Some(subject) = Subject::find(id) else { return 0 };
    if how & 2 != 0 {
        subject.admits(now, true);
    }
    subject.look_at_syns(now);
    subject.look_at_requests(now);
    subject.syn_sent(now, client);
    if how & 1 != 0 {
        // Whose it is was noted by the caller.
        tell::tell_of_noted((Kind::Trial, Why::None), now, id, NONE);
    }
    1
}

#[inline(always)]
fn again<F: Family, H: Hook>(ctx: &TcContext) -> Option<i32> {
    let noted = F::noted(maps::scratch()?);
    let packet = &noted.packet;
    // SAFETY: as for flows.
    let attempt = unsafe { &mut *F::half_open().get_ptr_mut(&packet.key)? };
    repeated::<F>(&packet.key, attempt);
    Some(on_its_way::<F, H>(ctx, packet, attempt.flags & MOVED != 0))
}

/// The same SYN again: nobody has answered.
#[inline(always)]
fn repeated<F: Family>(key: &F::Key, attempt: &mut HalfOpen) {
    attempt.repeat();
    let id = attempt.origin;
    if let Some(counters) = maps::counters(id) {
        counters.syn_retrans += 1;
        if attempt.flags & ANSWERED == 0 {
            blame(&mut counters.connect_by, attempt.client.into());
        }
    }
    if attempt.flags & ANSWERED != 0 {
        // Its answer is on its way, or was lost on it: whoever gave that one gives it again.
        return;
    }
    let Some(subject) = Subject::find(id) else { return };
    let now = maps::now();
    subject.look_at_syns(now);
    if attempt.frontend == NONE || attempt.flags & UNTURNABLE != 0 || !subject.origin.is(Origin::RESCUE) {
        return;
    }
    if subject.is_usable() && !subject.is_silent_since(attempt.syn_ns, now, attempt.repeats()) {
        return;
    }
    if subject.is_withheld() {
        withheld(id);
        return;
    }
    if attempt.flags & TRIAL != 0 {
        subject.trial_failed(now);
        attempt.flags &= !TRIAL;
    }
    if !elsewhere::<F>(key, attempt, now) {
        return;
    }
    // An answer of the first origin may be on its way. One that was moved before has no way back any more.
    count(Count::Resteered);
    if let Some(counters) = maps::counters(attempt.origin) {
        counters.resteered += 1;
    }
    tell::tell((Kind::Resteer, Why::SynTimeout), now, id, attempt.origin, (0, 0), Some(&key.node()));
}

#[inline(always)]
pub fn withheld(id: u16) {
    count(Count::WithheldRescue);
    if let Some(counters) = maps::counters(id) {
        counters.withheld_rescues += 1;
    }
}

/// Moves a failed attempt to the next standby. False when there is none.
#[inline(always)]
pub fn elsewhere<F: Family>(key: &F::Key, attempt: &mut HalfOpen, now: u64) -> bool {
    let id = attempt.origin;
    let hash = hash(&key.node());
    let Some(chosen) = steer::choose_again(attempt.frontend, hash, now, id, attempt.next()) else { return false };
    if chosen.origin == id {
        return false;
    }
    let was_moved = attempt.flags & MOVED != 0;
    if was_moved {
        moved::take_back::<F>(key);
    }
    if !moved::relocate::<F>(key, (id, chosen.origin), attempt.flags) {
        if was_moved {
            // Where it was, it failed: as good as anywhere.
            moved::relocate::<F>(key, (id, id), attempt.flags);
        }
        return false;
    }
    attempt.origin = chosen.origin;
    attempt.syn_ns = now;
    attempt.tried(chosen.next);
    attempt.flags |= MOVED;
    attempt.flags = if was_moved { attempt.flags & !RESTEERED } else { attempt.flags | RESTEERED };
    sent(chosen.origin, now, u32::from(attempt.client), 0);
    true
}
