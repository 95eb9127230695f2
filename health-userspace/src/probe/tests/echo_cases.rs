//! Case P25: whose echo reply is it?
//!
//! In a network namespace whose kernel answers no echo request, so that all answers are those of a test.

use super::*;
use nix::sched::{CloneFlags, unshare};
use socket2::{Domain, Protocol, Socket, Type};
use std::{io::Read as _, net::Ipv4Addr};

/// Runs a test in a network namespace of its own, of which only the loopback is there.
fn apart(test: impl Future<Output = ()> + Send + 'static) {
    let apart = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace: run as root");
        let up = std::process::Command::new("ip").args(["link", "set", "lo", "up"]).status().expect("ip");
        assert!(up.success(), "the loopback is up");
        std::fs::write("/proc/sys/net/ipv4/icmp_echo_ignore_all", "1").expect("a setting of this namespace");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(test);
    });
    if let Err(panic) = apart.join() {
        std::panic::resume_unwind(panic);
    }
}

#[tokio::test]
async fn p25_both_families_and_all_sizes_are_answered() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let address: SocketAddr = address.parse().expect("an address");
        for size in [16, 56, 8952] {
            let finished = finished(&check(&format!("type = \"icmp\"\nsize = {size}")), address, None).await;
            assert_eq!(finished.outcome, Outcome::Pass, "{address} {size}: {:?}", finished.notes);
            let steps: Vec<_> = finished.steps.iter().map(|step| (step.name, step.layer)).collect();
            assert_eq!(steps, [("echo", Layer::Network)]);
        }
    }
}

/// The origin, and somebody else.
const ORIGIN: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const STRANGER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 9);

/// What is made of the echo request that was seen, and from whose address it is sent.
type Forge = fn(&mut Vec<u8>) -> Ipv4Addr;

/// Turns an echo request into its reply.
fn reply(icmp: &mut [u8]) {
    icmp[0] = 0;
    sum(icmp);
}

/// Puts the checksum in (RFC 1071).
fn sum(icmp: &mut [u8]) {
    icmp[2..4].fill(0);
    let pairs = icmp.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)])));
    let mut sum: u32 = pairs.sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    icmp[2..4].copy_from_slice(&(!u16::try_from(sum).expect("folded")).to_be_bytes());
}

/// An ICMP error that quotes the request, all of whose IP packet was seen.
fn error(packet: &mut Vec<u8>, kind: u8, code: u8) {
    let mut error = vec![kind, code, 0, 0, 0, 0, 0, 0];
    error.extend_from_slice(packet);
    sum(&mut error);
    *packet = error;
}

/// Answers the first echo request to the origin by these in turn. Must be called in the namespace.
fn forger(forges: &'static [Forge]) -> std::thread::JoinHandle<()> {
    let seen = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4)).expect("a raw socket: run as root");
    seen.set_read_timeout(Some(PATIENCE)).expect("an option");
    // Threads are born in their parent's namespace.
    std::thread::spawn(move || {
        let mut packet = vec![0; 2048];
        let request = loop {
            let length = (&seen).read(&mut packet).expect("an echo request");
            let to_origin = packet[16..20] == ORIGIN.octets() && packet[20] == 8;
            if to_origin {
                break packet[..length].to_vec();
            }
        };
        let back = Ipv4Addr::new(request[12], request[13], request[14], request[15]);
        for forge in forges {
            let mut packet = request.clone();
            let from = forge(&mut packet);
            let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4)).expect("a raw socket");
            socket.bind(&SocketAddr::from((from, 0)).into()).expect("an address");
            socket.send_to(&packet, &SocketAddr::from((back, 0)).into()).expect("sent");
        }
    })
}

/// Drops the IP header, and changes one byte of the reply.
fn altered(packet: &mut Vec<u8>, at: usize) -> Ipv4Addr {
    packet.drain(..20);
    packet[at] ^= 0x55;
    reply(packet);
    ORIGIN
}

#[test]
fn p25_only_the_right_answer_is_one() {
    const RIGHT: Forge = |packet| {
        packet.drain(..20);
        reply(packet);
        ORIGIN
    };
    const WRONG: [Forge; 8] = [
        |packet| altered(packet, 4),
        |packet| altered(packet, 5),
        |packet| altered(packet, 6),
        |packet| altered(packet, 7),
        // The nonce: the reply of another round, or of another node behind the same address.
        |packet| altered(packet, 8),
        |packet| altered(packet, 23),
        // Cut short.
        |packet| {
            packet.drain(..20);
            packet.truncate(20);
            reply(packet);
            ORIGIN
        },
        |packet| {
            packet.drain(..20);
            reply(packet);
            STRANGER
        },
    ];
    const OTHERS_ERROR: Forge = |packet| {
        packet[24] ^= 0x55;
        error(packet, 3, 3);
        ORIGIN
    };
    const TABLE: [(&str, &[Forge], bool); 4] = [
        ("the right one", &[RIGHT], true),
        ("all the wrong ones", &WRONG, false),
        ("another's error", &[OTHERS_ERROR], false),
        ("another's error, then the right one", &[OTHERS_ERROR, RIGHT], true),
    ];
    apart(async {
        for (name, forges, good) in TABLE {
            let forger = forger(forges);
            let address = SocketAddr::from((ORIGIN, 80));
            let finished = finished(&check("type = \"icmp\"\ntimeout = \"300ms\""), address, None).await;
            forger.join().expect("sent");
            let expected = if good { Outcome::Pass } else { fail(Reason::Timeout(Layer::Network)) };
            assert_eq!(finished.outcome, expected, "{name}: {:?}", finished.notes);
        }
    });
}

#[test]
fn p25_an_error_that_quotes_us_fails_at_once() {
    const UNREACHABLE: Forge = |packet| {
        error(packet, 3, 3);
        STRANGER
    };
    apart(async {
        let forger = forger(&[UNREACHABLE]);
        let address = SocketAddr::from((ORIGIN, 80));
        let finished = finished(&check("type = \"icmp\"\ntimeout = \"5s\""), address, None).await;
        forger.join().expect("sent");
        assert_eq!(finished.outcome, fail(Reason::Unreachable));
        assert!(finished.ended.since(finished.began) < Span::from_secs(2), "it was not waited for");
        assert!(finished.notes.detail.is_some());
    });
}

/// Nobody credits the dead with the answers of the living, however many are asked at once.
#[tokio::test]
async fn p25_five_hundred_at_once() {
    use futures_util::{StreamExt, stream::FuturesUnordered};
    let asks = check("type = \"icmp\"\ntimeout = \"5s\"");
    let all = (0..500_u16).map(|n| finished(&asks, place(n, 0), None));
    let outcomes: Vec<_> = all.collect::<FuturesUnordered<_>>().map(|finished| finished.outcome).collect().await;
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == Outcome::Pass).count(), 500);
}
