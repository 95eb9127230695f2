//! The first wait for an answer to a SYN of this host's sockets (`BPF_SOCK_OPS_TIMEOUT_INIT`, Linux 4.13).
//!
//! Linux waits 1 s before it repeats a SYN (RFC 6298 §2.1), and only a repeat shows the kernel half that an attempt needs
//! rescue. It also shortens the time after which `connect` gives up, for the number of repeats stays.

use aya_ebpf::{bindings::bpf_sock_ops, programs::SockOpsContext};
use health_common::{
    NONE,
    map::{Count, Node},
    net::{Addr, Be16, Be32, Endpoint},
    origin::Origin,
};

use crate::{
    maps::{self, count},
    steer,
    subject::Subject,
};

const TIMEOUT_INIT: u32 = 1;
const AF_INET: u32 = 2;
const AF_INET6: u32 = 10;
/// `TCP_CLOSE`: what an active socket still is when it asks. A passive one is in `TCP_LISTEN` or `TCP_NEW_SYN_RECV`.
const CLOSED: u32 = 7;
/// `TCP_SYN_SENT`.
const SYN_SENT: u32 = 2;
const LOOPBACK: u32 = 0x7f00_0001_u32.to_be();

/// Answers the stack's question. Whatever is not ours to say is left as it is: another program may have answered.
#[inline(always)]
pub fn timeout(ctx: &SockOpsContext) {
    if ctx.op() != TIMEOUT_INIT {
        return;
    }
    // SAFETY: the context is live.
    let state = unsafe { (*ctx.ops).state };
    if state != CLOSED && state != SYN_SENT {
        return;
    }
    let Some(remote) = remote(ctx) else { return };
    let Some(node) = maps::node() else { return };
    if node.test_port != 0 && remote.port.0 == node.test_port as u16 && remote.addr == Addr::v4(Be32(LOOPBACK)) {
        reply(ctx.ops, node.test_jiffies);
        return;
    }
    // The connect hook may have changed where it goes; what counts is the origin that it goes to.
    let Some(meant) = maps::endpoint(&remote) else { return };
    let Some(subject) = Subject::find(meant.origin) else { return };
    let jiffies = subject.origin.connect_jiffies;
    if meant.frontend == NONE || jiffies == 0 || !subject.origin.is(Origin::RESCUE) {
        return;
    }
    if !steer::has_standby(meant.frontend, meant.origin) {
        return;
    }
    if subject.is_withheld() || node.mode & Node::BYPASS != 0 {
        count(Count::WithheldTimeout);
        return;
    }
    count(Count::TimeoutSet);
    reply(ctx.ops, jiffies);
}

#[inline(always)]
fn reply(ops: *mut bpf_sock_ops, jiffies: u32) {
    // SAFETY: `reply` may be written.
    unsafe { (*ops).__bindgen_anon_1.reply = jiffies };
}

#[inline(always)]
fn remote(ctx: &SockOpsContext) -> Option<Endpoint> {
    // In network byte order, in a word.
    let port = Be16((ctx.remote_port() >> 16) as u16);
    match ctx.family() {
        AF_INET => Some(Endpoint::new(Addr::v4(Be32(ctx.remote_ip4())), port)),
        AF_INET6 => {
            // SAFETY: as for `op`; each word is read by itself, as the verifier wants it.
            let word =
                |i: usize| unsafe { core::ptr::addr_of!((*ctx.ops).remote_ip6).cast::<u32>().add(i).read_volatile() };
            Some(Endpoint::new(Addr([word(0), word(1), word(2), word(3)]), port))
        }
        _ => None,
    }
}
