//! One connection's packets.

use std::net::SocketAddr;

use super::packet::{ACK, PSH, Packet, RST, SYN};
use super::{Hook, Kernel, Run};

/// Options of a SYN that Linux sends: MSS, SACK permitted, time stamp, window scale.
const SYN_OPTIONS: [u8; 20] = [2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7];

/// The two ends, as the node's side believes them to be, and their first numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Conn {
    pub(crate) node: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) isn: u32,
    pub(crate) origin_isn: u32,
}

impl Conn {
    pub(crate) fn new(node: SocketAddr, remote: SocketAddr) -> Self {
        let isn = u32::from(node.port()).wrapping_mul(0x9e37_79b1);
        Self { node, remote, isn, origin_isn: !isn }
    }

    /// The same tuple, used again.
    pub(crate) fn again(self) -> Self {
        Self { isn: self.isn.wrapping_add(1_000_000), origin_isn: self.origin_isn.wrapping_add(1_000_000), ..self }
    }

    /// The same connection with another address at the origin's end.
    pub(crate) fn at(self, remote: SocketAddr) -> Self {
        Self { remote, ..self }
    }

    // === Packets ===

    /// From the node: numbers count bytes since the handshake.
    pub(crate) fn out(&self, flags: u8, from: u32, len: usize, ack: u32) -> Packet {
        Packet {
            seq: self.isn.wrapping_add(1).wrapping_add(from),
            ack: self.origin_isn.wrapping_add(1).wrapping_add(ack),
            payload: vec![b'q'; len],
            ..Packet::new(self.node, self.remote, flags)
        }
    }

    /// From the origin.
    pub(crate) fn back(&self, flags: u8, from: u32, len: usize, ack: u32) -> Packet {
        Packet {
            seq: self.origin_isn.wrapping_add(1).wrapping_add(from),
            ack: self.isn.wrapping_add(1).wrapping_add(ack),
            payload: vec![b'r'; len],
            ..Packet::new(self.remote, self.node, flags)
        }
    }

    pub(crate) fn syn_packet(&self) -> Packet {
        Packet { ack: 0, options: SYN_OPTIONS.to_vec(), ..self.out(SYN, u32::MAX, 0, 0) }
    }

    pub(crate) fn syn_ack_packet(&self) -> Packet {
        Packet { options: SYN_OPTIONS.to_vec(), ..self.back(SYN | ACK, u32::MAX, 0, 0) }
    }

    pub(crate) fn refusal_packet(&self) -> Packet {
        Packet { seq: 0, ..self.back(RST | ACK, 0, 0, 0) }
    }

    // === Packets on their way ===

    pub(crate) fn syn(&self, kernel: &Kernel) -> Run {
        kernel.run(Hook::Egress, &self.syn_packet().bytes())
    }

    pub(crate) fn syn_ack(&self, kernel: &Kernel) -> Run {
        kernel.run(Hook::Ingress, &self.syn_ack_packet().bytes())
    }

    pub(crate) fn refuse(&self, kernel: &Kernel) -> Run {
        kernel.run(Hook::Ingress, &self.refusal_packet().bytes())
    }

    /// SYN, SYN-ACK, ACK.
    pub(crate) fn handshake(&self, kernel: &Kernel) {
        self.syn(kernel);
        self.syn_ack(kernel);
        self.send(kernel, ACK, 0, 0, 0);
    }

    pub(crate) fn send(&self, kernel: &Kernel, flags: u8, from: u32, len: usize, ack: u32) -> Run {
        kernel.run(Hook::Egress, &self.out(flags, from, len, ack).bytes())
    }

    pub(crate) fn receive(&self, kernel: &Kernel, flags: u8, from: u32, len: usize, ack: u32) -> Run {
        kernel.run(Hook::Ingress, &self.back(flags, from, len, ack).bytes())
    }

    /// A request of 100 bytes.
    pub(crate) fn request(&self, kernel: &Kernel) -> Run {
        self.send(kernel, ACK | PSH, 0, 100, 0)
    }

    /// 200 bytes that answer it, and their ACK.
    pub(crate) fn respond(&self, kernel: &Kernel) {
        self.receive(kernel, ACK | PSH, 0, 200, 100);
        self.send(kernel, ACK, 100, 0, 200);
    }
}
