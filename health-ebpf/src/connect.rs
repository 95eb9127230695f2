//! Steering of this host's sockets, before a packet exists: no rewriting per packet, and no wait for the neighbour entry
//! of a dead origin.

use aya_ebpf::{
    EbpfContext,
    helpers::generated::{
        bpf_get_current_ancestor_cgroup_id, bpf_get_current_uid_gid, bpf_get_netns_cookie, bpf_get_prandom_u32,
        bpf_get_socket_cookie, bpf_set_retval,
    },
    programs::{SockAddrContext, SockContext},
};
use health_common::{
    NONE,
    flow::{Choice, MOVED, TRIAL},
    map::{BypassKey, Count},
    net::{Addr, Be16, Be32, Endpoint, EndpointUse},
};

use crate::{
    maps::{self, count},
    notes, steer,
    subject::Subject,
};

const SOCK_STREAM: u32 = 1;
const IPPROTO_TCP: u32 = 6;

/// The connect goes on.
const ALLOW: i32 = 1;
/// The connect fails, with the error that was set.
const DENY: i32 = 0;
const ECONNREFUSED: i32 = 111;

/// Steers an IPv4 connect.
#[inline(always)]
pub fn connect4(ctx: &SockAddrContext) -> i32 {
    // SAFETY: the kernel passes a live context; all its fields are readable.
    let asked =
        unsafe { Endpoint::new(Addr::v4(Be32((*ctx.sock_addr).user_ip4)), Be16((*ctx.sock_addr).user_port as u16)) };
    match steer(ctx, &asked) {
        Steered::To(to) => write4(ctx, &to),
        Steered::No => {}
        Steered::Refused => return refuse(),
    }
    ALLOW
}

/// Steers an IPv6 connect; a mapped address is IPv4.
#[inline(always)]
pub fn connect6(ctx: &SockAddrContext) -> i32 {
    let asked = asked6(ctx);
    match steer(ctx, &asked) {
        Steered::To(to) => write6(ctx, &to),
        Steered::No => {}
        Steered::Refused => return refuse(),
    }
    ALLOW
}

/// What the caller is told is what an origin without room would have told it. Linux 5.18.
#[inline(always)]
fn refuse() -> i32 {
    // SAFETY: the helper takes a number.
    unsafe { bpf_set_retval(-ECONNREFUSED) };
    DENY
}

/// Says what the socket asked for, not what it got.
#[inline(always)]
pub fn peer4(ctx: &SockAddrContext) -> Option<()> {
    write4(ctx, &asked_before(ctx)?);
    Some(())
}

/// Says what the socket asked for, not what it got.
#[inline(always)]
pub fn peer6(ctx: &SockAddrContext) -> Option<()> {
    write6(ctx, &asked_before(ctx)?);
    Some(())
}

/// Forgets a socket's choice.
#[inline(always)]
pub fn release(ctx: &SockContext) {
    // SAFETY: the context is a live socket.
    let cookie = || unsafe { bpf_get_socket_cookie(ctx.as_ptr()) };
    let Some(choice) = notes::find(cookie) else { return };
    if choice.flags & TRIAL != 0
        && let Some(subject) = Subject::find(choice.origin)
    {
        subject.trial_given_up(maps::now());
    }
    notes::forget(cookie);
}

#[inline(always)]
fn asked_before(ctx: &SockAddrContext) -> Option<Endpoint> {
    // SAFETY: the context is live.
    let choice = notes::find(|| unsafe { bpf_get_socket_cookie(ctx.as_ptr()) })?;
    (choice.flags & MOVED != 0).then_some(choice.asked)
}

#[inline(always)]
fn asked6(ctx: &SockAddrContext) -> Endpoint {
    // SAFETY: as in `connect4`; each word is read by itself, as the verifier wants it.
    unsafe {
        let address = core::ptr::addr_of!((*ctx.sock_addr).user_ip6).cast::<u32>();
        Endpoint::new(
            Addr([
                address.read_volatile(),
                address.add(1).read_volatile(),
                address.add(2).read_volatile(),
                address.add(3).read_volatile(),
            ]),
            Be16((*ctx.sock_addr).user_port as u16),
        )
    }
}

#[inline(always)]
fn write4(ctx: &SockAddrContext, to: &Endpoint) {
    // SAFETY: both fields are writable in these hooks.
    unsafe {
        core::ptr::addr_of_mut!((*ctx.sock_addr).user_ip4).write_volatile(to.addr.low().0);
        core::ptr::addr_of_mut!((*ctx.sock_addr).user_port).write_volatile(u32::from(to.port.0));
    }
}

#[inline(always)]
fn write6(ctx: &SockAddrContext, to: &Endpoint) {
    // SAFETY: as in `write4`.
    unsafe {
        let address = core::ptr::addr_of_mut!((*ctx.sock_addr).user_ip6).cast::<u32>();
        address.write_volatile(to.addr.0[0]);
        address.add(1).write_volatile(to.addr.0[1]);
        address.add(2).write_volatile(to.addr.0[2]);
        address.add(3).write_volatile(to.addr.0[3]);
        core::ptr::addr_of_mut!((*ctx.sock_addr).user_port).write_volatile(u32::from(to.port.0));
    }
}

/// What becomes of a connect.
enum Steered {
    /// It goes where it asked.
    No,
    /// No usable origin has capacity for it.
    Refused,
    To(Endpoint),
}

/// Where the socket shall go.
#[inline(always)]
fn steer(ctx: &SockAddrContext, asked: &Endpoint) -> Steered {
    // SAFETY: as in `connect4`.
    let (kind, protocol) = unsafe { ((*ctx.sock_addr).type_, (*ctx.sock_addr).protocol) };
    if kind != SOCK_STREAM || protocol != IPPROTO_TCP {
        return Steered::No;
    }
    // SAFETY: the context is live.
    let cookie = || unsafe { bpf_get_socket_cookie(ctx.as_ptr()) };
    // SAFETY: the helper takes no argument.
    let hash = unsafe { bpf_get_prandom_u32() } as u32;
    let choice = steered_address(ctx, asked).map(|meant| (meant, steer::choose(meant.frontend, hash, steer::NOW)));
    let (meant, chosen) = match choice {
        // TC egress would choose the same: there is nothing to note.
        Some((meant, steer::Choice::To(chosen))) if !chosen.is_settled => (meant, chosen),
        Some((_, steer::Choice::Refuse)) => return Steered::Refused,
        Some((_, steer::Choice::To(_) | steer::Choice::Leave)) | None => {
            // The socket's last connect may have been steered; this one is not.
            notes::forget(cookie);
            return Steered::No;
        }
    };
    let moves = chosen.origin != meant.origin;
    let flags = chosen.flags | if moves { MOVED } else { 0 };
    let next = u16::from(chosen.next);
    let choice = Choice { asked: *asked, origin: chosen.origin, frontend: meant.frontend, flags, next };
    if !notes::leave(cookie(), &choice) {
        // Without the note, TC egress would choose a second time: let it be the only one.
        count(Count::UpdateFailed);
        return Steered::No;
    }
    if !moves {
        return Steered::No;
    }
    count(Count::SteeredConnect);
    if let Some(counters) = maps::counters(chosen.origin) {
        counters.steered += 1;
    }
    maps::origin(chosen.origin).map_or(Steered::No, |origin| Steered::To(origin.endpoint))
}

/// What the address means, if this socket's connects to it are steered.
#[inline(always)]
fn steered_address(ctx: &SockAddrContext, asked: &Endpoint) -> Option<EndpointUse> {
    let meant = maps::endpoint(asked)?;
    if meant.frontend == NONE || is_bypassed(ctx) {
        return None;
    }
    // SAFETY: the context is live.
    let namespace = unsafe { bpf_get_netns_cookie(ctx.as_ptr()) };
    maps::steers_namespace(namespace).then_some(meant)
}

#[inline(always)]
fn is_bypassed(ctx: &SockAddrContext) -> bool {
    let Some(node) = maps::node() else { return false };
    // SAFETY: `sk` is a socket in these hooks, or null, which is checked.
    let mark = unsafe {
        let sk = (*ctx.sock_addr).__bindgen_anon_1.sk;
        if sk.is_null() { 0 } else { (*sk).mark }
    };
    if node.bypass_mark != 0 && mark == node.bypass_mark {
        return true;
    }
    if node.bypass_users != 0 {
        // SAFETY: the helper takes no argument.
        let user = unsafe { bpf_get_current_uid_gid() };
        if maps::is_bypassed(BypassKey::USER, user & 0xffff_ffff) {
            return true;
        }
    }
    // SAFETY: the helper takes a number. Linux 5.7.
    maps::bypasses_cgroup(node, |level| unsafe { bpf_get_current_ancestor_cgroup_id(level) })
}
