//! The kernel half of Sluice.
//!
//! Entry points only. What they share: [`parse`] reads a packet, [`mod@egress`] and [`mod@ingress`] know what it means,
//! [`trip`] keeps the streaks of an origin ([`cells`] what is unanswered), [`trial`] tries it again, [`steer`] chooses,
//! [`moved`] and [`nat`] redirect, [`connect`] steers sockets, [`maps`] holds the state.
//!
//! Nothing is dropped but the losers of a rescued handshake; what isn't understood passes and is counted.
#![no_std]
#![no_main]
#![feature(core_intrinsics)]
#![allow(internal_features, reason = "the only compare-and-swap that compiles for this target is the intrinsic")]

mod atomic;
mod cells;
mod connect;
mod egress;
mod ingress;
mod maps;
mod moved;
mod nat;
mod observe;
mod parse;
mod steer;
mod trial;
mod trip;

use aya_ebpf::{
    macros::{cgroup_sock, cgroup_sock_addr, classifier},
    programs::{SockAddrContext, SockContext, TcContext},
};
use health_common::map::Count;
use maps::{V4, V6};
use observe::PASS;
use parse::{Direction, Network, Unread};

/// Packets to origins: flows begin, SYNs are steered, redirected flows are rewritten.
#[classifier]
pub fn egress(ctx: TcContext) -> i32 {
    if observe::is_second_pass(&ctx) {
        return PASS;
    }
    match parse::network(&ctx) {
        Network::V4 => match parse::v4(&ctx, Direction::Egress) {
            Ok(packet) => egress::egress::<V4>(&ctx, &packet),
            Err(why) => unread(why),
        },
        Network::V6 => match parse::v6(&ctx, Direction::Egress) {
            Ok(packet) => egress::egress::<V6>(&ctx, &packet),
            Err(why) => unread(why),
        },
        Network::Other => unread(Unread::Skipped(Count::SkippedLink)),
    }
}

/// Packets from origins: signals, and the way back of redirected flows.
#[classifier]
pub fn ingress(ctx: TcContext) -> i32 {
    match parse::network(&ctx) {
        Network::V4 => match parse::v4(&ctx, Direction::Ingress) {
            Ok(packet) => ingress::ingress::<V4>(&ctx, &packet),
            Err(why) => unread(why),
        },
        Network::V6 => match parse::v6(&ctx, Direction::Ingress) {
            Ok(packet) => ingress::ingress::<V6>(&ctx, &packet),
            Err(why) => unread(why),
        },
        Network::Other => unread(Unread::Skipped(Count::SkippedLink)),
    }
}

/// The cheapest program there is: what benchmarks measure the others against.
#[classifier]
pub fn trivial(_ctx: TcContext) -> i32 {
    PASS
}

/// Steers IPv4 connects.
#[cgroup_sock_addr(connect4)]
pub fn connect4(ctx: SockAddrContext) -> i32 {
    // A socket that isn't steered connects as it asked.
    let _steered = connect::connect4(&ctx);
    1
}

/// Steers IPv6 connects.
#[cgroup_sock_addr(connect6)]
pub fn connect6(ctx: SockAddrContext) -> i32 {
    let _steered = connect::connect6(&ctx);
    1
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
