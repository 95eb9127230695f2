//! The kernel half of Sluice.
//!
//! Entry points only. What they share: [`parse`] reads a packet, [`mod@egress`] and [`mod@ingress`] know what it means,
//! [`mod@open`] begins flows, [`trip`] keeps the streaks of an origin ([`cells`] what is unanswered), [`trial`] tries it again, [`steer`] chooses,
//! [`moved`] and [`nat`] redirect, [`connect`] steers sockets, [`maps`] holds the state.
//!
//! Nothing is dropped but the losers of a rescued handshake; what isn't understood passes and is counted.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch, core_intrinsics)]
#![allow(internal_features, reason = "the only compare-and-swap that compiles for this target is the intrinsic")]

mod answer;
mod atomic;
mod bare;
mod build;
mod capacity;
mod cells;
mod connect;
mod context;
mod deliver;
mod egress;
mod icmp;
mod ingress;
mod maps;
mod moved;
mod nat;
mod notes;
mod observe;
mod open;
mod parse;
mod rescue;
mod signals;
mod steer;
mod subject;
mod syn;
mod tell;
mod timeout;
mod trial;
mod trip;

use aya_ebpf::{
    EbpfContext,
    bindings::{__sk_buff, xdp_action, xdp_md},
    helpers::generated::bpf_clone_redirect,
    macros::{cgroup_sock, cgroup_sock_addr, classifier, sock_ops, xdp},
    programs::{SockAddrContext, SockContext, SockOpsContext, TcContext, XdpContext},
};
use context::{Behind, Context, Tc, Xdp};
use egress::{Client, Egress};
use maps::{V4, V6};
use observe::{
    ACK_NOTED, ANSWER_NOTED, ERROR_NOTED, FULL_NOTED, ICMP_SEEN, LOSER_NOTED, PASS, REFUSAL_NOTED, REPEAT_NOTED,
    SIGNAL_NOTED, SYN_NOTED,
};
use parse::{Direction, Network, Unread};

/// Packets to origins: flows begin, SYNs are steered, redirected flows are rewritten.
#[classifier]
pub fn egress(ctx: TcContext) -> i32 {
    to_origin(ctx, parse::network)
}

/// The same on a device whose packets begin with IP: a tunnel.
#[classifier]
pub fn egress_l3(ctx: TcContext) -> i32 {
    to_origin(ctx, bare::network)
}

#[inline(always)]
fn to_origin(ctx: TcContext, network: impl Fn(&Tc) -> Network) -> i32 {
    if observe::is_second_pass(&ctx) {
        return PASS;
    }
    let raw = ctx.as_ptr().cast();
    match network(&Tc(ctx)) {
        Network::V4(l3) => match egress_v4(raw, l3 as u32) {
            SYN_NOTED => noted(syn::syn_egress_v4(raw), || syn::again_egress_v4(raw), || build::refuse_egress_v4(raw)),
            ACK_NOTED => open::open_egress_v4(raw),
            ICMP_SEEN => icmp::error_egress_v4(raw, l3 as u32),
            verdict => verdict,
        },
        Network::V6(l3) => match egress_v6(raw, l3 as u32) {
            SYN_NOTED => noted(syn::syn_egress_v6(raw), || syn::again_egress_v6(raw), || build::refuse_egress_v6(raw)),
            ACK_NOTED => open::open_egress_v6(raw),
            ICMP_SEEN => icmp::error_egress_v6(raw, l3 as u32),
            verdict => verdict,
        },
        Network::Unread(why) => unread(why),
    }
}

/// Packets of clients on their way to origins, before they are routed.
#[classifier]
pub fn client(ctx: TcContext) -> i32 {
    of_client(ctx, parse::network)
}

/// The same on a device whose packets begin with IP.
#[classifier]
pub fn client_l3(ctx: TcContext) -> i32 {
    of_client(ctx, bare::network)
}

#[inline(always)]
fn of_client(ctx: TcContext, network: impl Fn(&Tc) -> Network) -> i32 {
    let raw = ctx.as_ptr().cast();
    match network(&Tc(ctx)) {
        Network::V4(l3) => match client_v4(raw, l3 as u32) {
            SYN_NOTED => noted(syn::syn_client_v4(raw), || syn::again_client_v4(raw), || build::refuse_client_v4(raw)),
            ACK_NOTED => open::open_client_v4(raw),
            ICMP_SEEN => icmp::error_client_v4(raw, l3 as u32),
            verdict => verdict,
        },
        Network::V6(l3) => match client_v6(raw, l3 as u32) {
            SYN_NOTED => noted(syn::syn_client_v6(raw), || syn::again_client_v6(raw), || build::refuse_client_v6(raw)),
            ACK_NOTED => open::open_client_v6(raw),
            ICMP_SEEN => icmp::error_client_v6(raw, l3 as u32),
            verdict => verdict,
        },
        Network::Unread(why) => unread(why),
    }
}

/// Packets from origins: signals, and the way back of redirected flows.
#[classifier]
pub fn ingress(ctx: TcContext) -> i32 {
    of_origin(ctx, parse::network)
}

/// The same on a device whose packets begin with IP.
#[classifier]
pub fn ingress_l3(ctx: TcContext) -> i32 {
    of_origin(ctx, bare::network)
}

#[inline(always)]
fn of_origin(ctx: TcContext, network: impl Fn(&Tc) -> Network) -> i32 {
    let raw = ctx.as_ptr().cast();
    match network(&Tc(ctx)) {
        Network::V4(l3) => {
            let mut verdict = ingress_v4(raw, l3 as u32);
            if verdict == ICMP_SEEN {
                verdict = icmp::error_v4(raw, l3 as u32);
                if verdict == ERROR_NOTED {
                    verdict = rescue::rescue_v4(raw);
                    if verdict == ICMP_SEEN {
                        return icmp::error_v4(raw, l3 as u32);
                    }
                }
                return verdict;
            }
            if verdict == ANSWER_NOTED {
                verdict = answer::answer_v4(raw);
            }
            rescued(verdict, || rescue::rescue_v4(raw), || rescue::reset_v4(raw))
        }
        Network::V6(l3) => {
            let mut verdict = ingress_v6(raw, l3 as u32);
            if verdict == ICMP_SEEN {
                verdict = icmp::error_v6(raw, l3 as u32);
                if verdict == ERROR_NOTED {
                    verdict = rescue::rescue_v6(raw);
                    if verdict == ICMP_SEEN {
                        return icmp::error_v6(raw, l3 as u32);
                    }
                }
                return verdict;
            }
            if verdict == ANSWER_NOTED {
                verdict = answer::answer_v6(raw);
            }
            rescued(verdict, || rescue::rescue_v6(raw), || rescue::reset_v6(raw))
        }
        Network::Unread(why) => unread(why),
    }
}

/// The same, on an interface whose packets [`xdp_ingress`] has observed.
#[classifier]
pub fn ingress_behind(ctx: TcContext) -> i32 {
    let raw = ctx.as_ptr().cast();
    let ctx = Behind(ctx);
    match parse::network(&ctx) {
        Network::V4(l3) => {
            let mut verdict = behind_v4(raw, l3 as u32);
            if verdict == ICMP_SEEN {
                verdict = icmp::error_behind_v4(raw, l3 as u32);
                if verdict == ERROR_NOTED {
                    verdict = rescue::rescue_v4(raw);
                    if verdict == ICMP_SEEN {
                        return icmp::error_behind_v4(raw, l3 as u32);
                    }
                }
                return verdict;
            }
            if verdict == ANSWER_NOTED {
                verdict = answer::answer_behind_v4(raw);
            }
            rescued(verdict, || rescue::rescue_v4(raw), || rescue::reset_v4(raw))
        }
        Network::V6(l3) => {
            let mut verdict = behind_v6(raw, l3 as u32);
            if verdict == ICMP_SEEN {
                verdict = icmp::error_behind_v6(raw, l3 as u32);
                if verdict == ERROR_NOTED {
                    verdict = rescue::rescue_v6(raw);
                    if verdict == ICMP_SEEN {
                        return icmp::error_behind_v6(raw, l3 as u32);
                    }
                }
                return verdict;
            }
            if verdict == ANSWER_NOTED {
                verdict = answer::answer_behind_v6(raw);
            }
            rescued(verdict, || rescue::rescue_v6(raw), || rescue::reset_v6(raw))
        }
        Network::Unread(_) => PASS,
    }
}

/// Observes packets from origins before the stack has seen them. Changes nothing, drops nothing.
#[xdp]
pub fn xdp_ingress(ctx: XdpContext) -> u32 {
    let raw = ctx.ctx;
    let ctx = Xdp(ctx);
    // Whatever it is, the packet goes on.
    let _verdict = match parse::network(&ctx) {
        Network::V4(l3) => match xdp_v4(raw, l3 as u32) {
            SIGNAL_NOTED => signalled(),
            ANSWER_NOTED => rescued(answer::answer_xdp_v4(), || PASS, || PASS),
            ICMP_SEEN => icmp::error_xdp_v4(raw, l3 as u32),
            verdict => verdict,
        },
        Network::V6(l3) => match xdp_v6(raw, l3 as u32) {
            SIGNAL_NOTED => signalled(),
            ANSWER_NOTED => rescued(answer::answer_xdp_v6(), || PASS, || PASS),
            ICMP_SEEN => icmp::error_xdp_v6(raw, l3 as u32),
            verdict => verdict,
        },
        Network::Unread(why) => unread(why),
    };
    xdp_action::XDP_PASS
}

// Global functions: their frames are gone before the next step needs the stack, and the verifier looks at each once,
// wherever the IP header may begin.

/// Where an IP header can begin: behind Ethernet and at most two tags.
const L3_MASK: u32 = 31;

macro_rules! out {
    ($name:ident, $parse:ident, $family:ident, $hook:ident) => {
        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $name(ctx: *mut __sk_buff, l3: u32) -> i32 {
            let ctx = Tc(TcContext::new(ctx));
            match parse::$parse(&ctx, (l3 & L3_MASK) as usize, Direction::Out) {
                Ok(packet) => egress::egress::<$family, $hook>(&ctx.0, &packet),
                Err(Unread::Icmp) => ICMP_SEEN,
                Err(why) => unread(why),
            }
        }
    };
}

out!(egress_v4, v4, V4, Egress);
out!(egress_v6, v6, V6, Egress);
out!(client_v4, v4, V4, Client);
out!(client_v6, v6, V6, Client);

macro_rules! back {
    ($name:ident, $parse:ident, $family:ident, $context:ident, $raw:ident, $kernel:ident) => {
        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $name(ctx: *mut $raw, l3: u32) -> i32 {
            let ctx = $context($kernel::new(ctx));
            match parse::$parse(&ctx, (l3 & L3_MASK) as usize, Direction::In) {
                Ok(packet) => ingress::ingress::<$family, $context>(&ctx, &packet),
                Err(Unread::Icmp) => ICMP_SEEN,
                Err(why) if $context::OBSERVES => unread(why),
                Err(_) => PASS,
            }
        }
    };
}

back!(ingress_v4, v4, V4, Tc, __sk_buff, TcContext);
back!(ingress_v6, v6, V6, Tc, __sk_buff, TcContext);
back!(behind_v4, v4, V4, Behind, __sk_buff, TcContext);
back!(behind_v6, v6, V6, Behind, __sk_buff, TcContext);
back!(xdp_v4, v4, V4, Xdp, xdp_md, XdpContext);
back!(xdp_v6, v6, V6, Xdp, xdp_md, XdpContext);

#[inline(always)]
fn noted(verdict: i32, again: impl Fn() -> i32, refuse: impl Fn() -> i32) -> i32 {
    match verdict {
        REPEAT_NOTED => again(),
        FULL_NOTED => refuse(),
        verdict => verdict,
    }
}

#[inline(always)]
fn signalled() -> i32 {
    signals::origin_signals();
    PASS
}

#[inline(always)]
fn rescued(verdict: i32, rescue: impl Fn() -> i32, reset: impl Fn() -> i32) -> i32 {
    match verdict {
        SIGNAL_NOTED => signalled(),
        REFUSAL_NOTED => rescue(),
        LOSER_NOTED => reset(),
        verdict => verdict,
    }
}

/// Sends the packet that it is run on to the interface that the mark names: the start-up test of the other programs. The
/// priority is 1 for packets that shall arrive there, 0 for those that shall leave. Attached nowhere.
#[classifier]
pub fn inject(ctx: TcContext) -> i32 {
    let skb = ctx.as_ptr().cast::<__sk_buff>();
    // SAFETY: the context is a live `__sk_buff`.
    unsafe { bpf_clone_redirect(skb, (*skb).mark, u64::from((*skb).priority)) as i32 }
}

/// The cheapest program there is: what benchmarks measure the others against.
#[classifier]
pub fn trivial(_ctx: TcContext) -> i32 {
    PASS
}

/// Steers IPv4 connects.
#[cgroup_sock_addr(connect4)]
pub fn connect4(ctx: SockAddrContext) -> i32 {
    connect::connect4(&ctx)
}

/// Steers IPv6 connects.
#[cgroup_sock_addr(connect6)]
pub fn connect6(ctx: SockAddrContext) -> i32 {
    connect::connect6(&ctx)
}

/// Hides the steering from IPv4 sockets.
#[cgroup_sock_addr(getpeername4)]
pub fn peer4(ctx: SockAddrContext) -> i32 {
    let _steered = connect::peer4(&ctx);
    1
}

/// Hides the steering from IPv6 sockets.
#[cgroup_sock_addr(getpeername6)]
pub fn peer6(ctx: SockAddrContext) -> i32 {
    let _steered = connect::peer6(&ctx);
    1
}

/// Shortens the wait for an answer to a SYN, where a standby could take it.
#[sock_ops]
pub fn timeout(ctx: SockOpsContext) -> u32 {
    timeout::timeout(&ctx);
    1
}

/// Forgets a socket's choice when it is closed.
#[cgroup_sock(sock_release)]
pub fn release(ctx: SockContext) -> i32 {
    connect::release(&ctx);
    1
}

/// Passes what was not looked at, and counts why.
fn unread(why: Unread) -> i32 {
    if let Unread::Skipped(count) = why {
        maps::count(count);
    }
    PASS
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    // The verifier proves that no program gets here.
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
