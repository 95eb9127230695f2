//! `icmp`: an echo request is answered.
//!
//! Each round has a raw socket of its own that is connected to the origin: the kernel then hands it nothing from anybody
//! else. The id is random, and the payload begins with a nonce of 128 bits: two nodes behind one address translation may
//! choose the same id in the same second, and an answer that came late must not pass for this round's.

use super::{
    failure,
    kind::{Probe, Setting},
    socket::Sockets,
    trace::Trace,
};
use etherparse::{IcmpEchoHeader, Icmpv4Header, Icmpv4Slice, Icmpv4Type, Icmpv6Slice, Icmpv6Type, Ipv4HeaderSlice};
use futures_util::future::{BoxFuture, FutureExt};
use health_core::model::{Layer, LocalReason, Outcome, Reason};
use nix::{
    errno::Errno,
    sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recv, recvmsg, setsockopt, sockopt},
};
use socket2::{Protocol, Socket, Type};
use std::{
    io::{self, IoSliceMut},
    net::SocketAddr,
    os::fd::{AsRawFd, RawFd},
};
use tokio::{io::Interest, net::UdpSocket};
use tokio_rustls::rustls::crypto::ring;

/// Length of the nonce, which is random and in no other packet.
const NONCE_BYTES: usize = 16;
/// Room for what stands before the payload: an IPv4 header with all its options (60), ICMP's own (8).
const HEADERS_MAX: usize = 128;

/// A check made ready to be run against one origin.
pub(super) struct IcmpProbe {
    address: SocketAddr,
    sockets: Sockets,
    payload: Vec<u8>,
}

impl IcmpProbe {
    pub(super) fn new(size: u16, setting: Setting<'_>) -> Self {
        // The port of a raw socket's address means a protocol.
        let address = SocketAddr::new(setting.address.ip(), 0);
        let payload = (0..size).map(|at| at.to_le_bytes()[0]).collect();
        Self { address, sockets: setting.sockets.clone(), payload }
    }

    async fn round(&mut self, trace: &mut Trace) -> io::Result<Outcome> {
        trace.begin("echo", Layer::Network);
        let mut random = [0; NONCE_BYTES + 4];
        let filled = ring::default_provider().secure_random.fill(&mut random);
        filled.map_err(|_no_entropy| io::Error::from_raw_os_error(libc::ENOMEM))?;
        let (nonce, id) = random.split_at(NONCE_BYTES);
        for (byte, random) in self.payload.iter_mut().zip(nonce) {
            *byte = *random;
        }
        let echo = IcmpEchoHeader { id: u16::from_be_bytes([id[0], id[1]]), seq: u16::from_be_bytes([id[2], id[3]]) };
        // Any socket of datagrams is the same to the runtime.
        let socket = match self.open() {
            Ok(socket) => UdpSocket::from_std(socket.into())?,
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                trace.explain("raw sockets are not allowed here; this needs CAP_NET_RAW");
                return Ok(Outcome::Local(LocalReason::Start));
            }
            Err(error) => return Err(error),
        };
        socket.send(&self.request(echo)).await?;
        loop {
            let ready = socket.ready(Interest::READABLE | Interest::ERROR).await?;
            // One at a time: the runtime knows no readiness for two.
            let news = if ready.is_error() { Interest::ERROR } else { Interest::READABLE };
            match socket.try_io(news, || self.hear(socket.as_raw_fd(), echo, trace)) {
                Ok(Some(outcome)) => return Ok(outcome),
                // Somebody else's.
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn open(&self) -> io::Result<Socket> {
        let protocol = if self.address.is_ipv4() { Protocol::ICMPV4 } else { Protocol::ICMPV6 };
        let socket = self.sockets.datagrams(self.address, Type::RAW, protocol)?;
        // Errors of routers come with what they quote.
        if self.address.is_ipv4() {
            setsockopt(&socket, sockopt::Ipv4RecvErr, &true)?;
        } else {
            setsockopt(&socket, sockopt::Ipv6RecvErr, &true)?;
        }
        Ok(socket)
    }

    fn request(&self, echo: IcmpEchoHeader) -> Vec<u8> {
        let header = if self.address.is_ipv4() {
            Icmpv4Header::with_checksum(Icmpv4Type::EchoRequest(echo), &self.payload).to_bytes().to_vec()
        } else {
            // The kernel fills in the checksum, which is over addresses that it chooses (RFC 3542 §3.1).
            etherparse::Icmpv6Header::new(Icmpv6Type::EchoRequest(echo)).to_bytes().to_vec()
        };
        [header.as_slice(), &self.payload].concat()
    }

    /// Reads one packet or one error. `None`: it was not about this round.
    fn hear(&self, socket: RawFd, echo: IcmpEchoHeader, trace: &mut Trace) -> io::Result<Option<Outcome>> {
        let mut packet = vec![0; self.payload.len() + HEADERS_MAX];
        match recv(socket, &mut packet, MsgFlags::MSG_DONTWAIT) {
            Ok(length) => {
                let packet = packet.get(..length).unwrap_or_default();
                let v4 = self.address.is_ipv4();
                let ours =
                    if v4 { answers_v4(packet, echo, &self.payload) } else { answers_v6(packet, echo, &self.payload) };
                Ok(ours.then_some(Outcome::Pass))
            }
            // Errors wait in a queue of their own, each with what it quotes.
            Err(error) => self.hear_error(socket, echo, error, trace),
        }
    }

    fn hear_error(
        &self,
        socket: RawFd,
        echo: IcmpEchoHeader,
        error: Errno,
        trace: &mut Trace,
    ) -> io::Result<Option<Outcome>> {
        let mut quoted = vec![0; self.payload.len() + HEADERS_MAX];
        let mut space = nix::cmsg_space!([u8; 512]);
        let mut buffers = [IoSliceMut::new(&mut quoted)];
        let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
        let message = match recvmsg::<SockaddrStorage>(socket, &mut buffers, Some(&mut space), flags) {
            Ok(message) => message,
            Err(Errno::EAGAIN) => return Err(error.into()),
            Err(errno) => return Err(errno.into()),
        };
        let errno = message.cmsgs()?.find_map(|told| match told {
            ControlMessageOwned::Ipv4RecvErr(told, _) | ControlMessageOwned::Ipv6RecvErr(told, _) => {
                i32::try_from(told.ee_errno).ok()
            }
            _ => None,
        });
        let length = message.bytes;
        if !is_quoted(quoted.get(..length).unwrap_or_default(), echo) {
            return Ok(None);
        }
        let told = errno.map_or_else(|| io::Error::from(error), io::Error::from_raw_os_error);
        trace.explain(told.to_string());
        Ok(Some(match failure::of_io(&told, Layer::Network) {
            Outcome::Fail(_) => Outcome::Fail(Reason::Unreachable),
            other => other,
        }))
    }
}

/// Whether a packet with its IPv4 header, as a raw socket gives it, answers this round.
fn answers_v4(packet: &[u8], echo: IcmpEchoHeader, payload: &[u8]) -> bool {
    let Ok(ip) = Ipv4HeaderSlice::from_slice(packet) else { return false };
    let icmp = packet.get(ip.slice().len()..).and_then(|icmp| Icmpv4Slice::from_slice(icmp).ok());
    icmp.is_some_and(|icmp| icmp.icmp_type() == Icmpv4Type::EchoReply(echo) && icmp.payload() == payload)
}

/// The same for a packet without its IPv6 header.
fn answers_v6(packet: &[u8], echo: IcmpEchoHeader, payload: &[u8]) -> bool {
    let icmp = Icmpv6Slice::from_slice(packet).ok();
    icmp.is_some_and(|icmp| icmp.icmp_type() == Icmpv6Type::EchoReply(echo) && icmp.payload() == payload)
}

/// Whether an error quotes this round's request. RFC 792 asks for 8 bytes of it, which end with id and sequence number.
fn is_quoted(quoted: &[u8], echo: IcmpEchoHeader) -> bool {
    quoted.get(4..8) == Some(&echo.to_bytes()[..])
}

impl Probe for IcmpProbe {
    fn run<'a>(&'a mut self, trace: &'a mut Trace) -> BoxFuture<'a, Outcome> {
        async {
            match self.round(trace).await {
                Ok(outcome) => outcome,
                Err(error) => {
                    trace.explain(error.to_string());
                    failure::of_io(&error, Layer::Network)
                }
            }
        }
        .boxed()
    }
}
