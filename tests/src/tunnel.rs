//! Devices without Ethernet headers: `tun`, the only kind that every kernel of ours has. A thread of this process carries the
//! packets, as a tunnel's network would.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::IpAddr;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow, ensure};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::pipe2;

use crate::ns::Namespace;

/// More than the longest packet, with its `virtio_net_hdr`.
const PACKET_MAX: usize = 70_000;
/// Length of `struct virtio_net_hdr`.
const VIRTIO_LEN: usize = 10;
/// In its first byte: the sum of the packet is still to be made.
const NEEDS_CSUM: u8 = 1;
/// `TUN_F_CSUM`, `TUN_F_TSO4`, `TUN_F_TSO6` (`include/uapi/linux/if_tun.h`).
const OFFLOADS: libc::c_uint = 0x1 | 0x2 | 0x4;

/// One end of a tunnel.
#[derive(Clone, Copy, Debug)]
pub struct End<'a> {
    /// Where the device is.
    pub ns: &'a Namespace,
    /// What it is called.
    pub device: &'a str,
    /// Addresses with their prefix lengths.
    pub addresses: &'a [&'a str],
}

/// A tunnel from one device to one or more others: each packet goes to the end that has its destination's address, as
/// `WireGuard` would carry it. Gone on drop, and with it its devices.
#[derive(Debug)]
pub struct Tunnel {
    /// Closed, it ends the thread.
    quit: Option<std::os::fd::OwnedFd>,
    thread: Option<JoinHandle<Result<()>>>,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    carried: AtomicU64,
    bad_sums: AtomicU64,
    segments: AtomicU64,
}

struct Device {
    file: File,
    addresses: Vec<IpAddr>,
}

impl Tunnel {
    /// Makes the devices, brings them up and begins to carry. With `offload` the devices take segments to be cut and sums to be
    /// made (GSO, `CHECKSUM_PARTIAL`), as real ones do.
    ///
    /// # Errors
    ///
    /// Without `/dev/net/tun`, or when a device of that name is there.
    pub fn new(near: End<'_>, far: &[End<'_>], offload: bool) -> Result<Self> {
        let near = Device::new(near, offload)?;
        let far = far.iter().map(|&end| Device::new(end, offload)).collect::<Result<Vec<_>>>()?;
        // Not for the servers that are started meanwhile: they would hold it.
        let (end, quit) = pipe2(OFlag::O_CLOEXEC)?;
        let counts = Arc::new(Counts::default());
        let inside = Arc::clone(&counts);
        let carry = move || {
            let devices: Vec<Device> = std::iter::once(near).chain(far).collect();
            carry(&devices, &end, offload, &inside)
        };
        let thread = std::thread::Builder::new().name("tunnel".to_owned()).spawn(carry)?;
        Ok(Self { quit: Some(quit), thread: Some(thread), counts })
    }

    /// Packets that it has carried.
    #[must_use]
    pub fn carried(&self) -> u64 {
        self.counts.carried.load(Ordering::Relaxed)
    }

    /// Of these, the ones that were to be cut into segments.
    #[must_use]
    pub fn segmented(&self) -> u64 {
        self.counts.segments.load(Ordering::Relaxed)
    }

    /// Packets whose checksums, recomputed here, were wrong.
    #[must_use]
    pub fn bad_sums(&self) -> u64 {
        self.counts.bad_sums.load(Ordering::Relaxed)
    }

    /// Ends it.
    ///
    /// # Errors
    ///
    /// Why it broke, if it did.
    pub fn finish(mut self) -> Result<()> {
        self.quit = None;
        self.thread.take().map_or(Ok(()), |thread| thread.join().map_err(|_panic| anyhow!("the tunnel panicked"))?)
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.quit = None;
        self.thread.take().map(|thread| thread.join().ok());
    }
}

impl Device {
    fn new(end: End<'_>, offload: bool) -> Result<Self> {
        let End { ns, device, addresses } = end;
        let file = ns.enter(|| open(device, offload))?.with_context(|| format!("cannot make {device}"))?;
        let mut batch = format!("link set dev {device} up\n");
        for address in addresses {
            let nodad = if address.contains(':') { " nodad" } else { "" };
            // Writing to a string cannot fail.
            writeln!(batch, "address add {address} dev {device}{nodad}").ok();
        }
        ns.ip(&batch)?;
        let bare = |text: &&str| Ok(text.split('/').next().unwrap_or(text).parse()?);
        Ok(Self { file, addresses: addresses.iter().map(bare).collect::<Result<_>>()? })
    }
}

/// A new device of the calling thread's namespace.
fn open(device: &str, offload: bool) -> Result<File> {
    let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
    // SAFETY: all bit patterns of this C structure are values.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    ensure!(device.len() < libc::IFNAMSIZ, "`{device}` is too long");
    for (to, from) in request.ifr_name.iter_mut().zip(device.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    let headers = if offload { libc::IFF_VNET_HDR } else { 0 };
    request.ifr_ifru.ifru_flags = libc::c_short::try_from(libc::IFF_TUN | libc::IFF_NO_PI | headers)?;
    // SAFETY: the descriptor lives, and the kernel reads a structure of this size.
    if unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) } < 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    // SAFETY: the descriptor lives; the argument is a number.
    if offload && unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETOFFLOAD, OFFLOADS) } < 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    Ok(file)
}

/// Carries packets until the other end of `quit` is closed.
fn carry(devices: &[Device], quit: &impl std::os::fd::AsFd, offload: bool, counts: &Counts) -> Result<()> {
    let mut packet = vec![0; PACKET_MAX];
    loop {
        let mut waited: Vec<PollFd<'_>> =
            devices.iter().map(|device| PollFd::new(device.file.as_fd(), PollFlags::POLLIN)).collect();
        waited.push(PollFd::new(quit.as_fd(), PollFlags::empty()));
        match poll(&mut waited, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        if waited.last().is_some_and(|quit| quit.any().unwrap_or(false)) {
            return Ok(());
        }
        for from in devices {
            while let Some(len) = read(from, &mut packet)? {
                relay(devices, &packet[..len], offload, counts)?;
            }
        }
    }
}

fn read(from: &Device, packet: &mut [u8]) -> Result<Option<usize>> {
    match (&from.file).read(packet) {
        Ok(len) => Ok(Some(len)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Gives a packet to whom it is for.
fn relay(devices: &[Device], packet: &[u8], offload: bool, counts: &Counts) -> Result<()> {
    let (header, ip) = packet.split_at(if offload { VIRTIO_LEN } else { 0 });
    let Some((_, to)) = ends(ip) else { return Ok(()) };
    counts.carried.fetch_add(1, Ordering::Relaxed);
    // `gso_type`.
    counts.segments.fetch_add(u64::from(header.get(1).is_some_and(|&kind| kind != 0)), Ordering::Relaxed);
    let partial = header.first().is_some_and(|flags| flags & NEEDS_CSUM != 0);
    counts.bad_sums.fetch_add(u64::from(!sums_are_right(ip, partial)), Ordering::Relaxed);
    let near = devices.first();
    let end = devices.iter().find(|device| device.addresses.contains(&to)).or(near);
    match end.map(|end| (&end.file).write(packet)) {
        // A full queue loses packets, as a network does; a device that is down as well.
        Some(Err(error)) if !matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EIO)) => Err(error.into()),
        _ => Ok(()),
    }
}

/// Sender and receiver; `None` for what is no IP.
fn ends(ip: &[u8]) -> Option<(IpAddr, IpAddr)> {
    let v4 = |at: usize| Some(IpAddr::from(<[u8; 4]>::try_from(ip.get(at..at + 4)?).ok()?));
    let v6 = |at: usize| Some(IpAddr::from(<[u8; 16]>::try_from(ip.get(at..at + 16)?).ok()?));
    match ip.first()? >> 4 {
        4 => Some((v4(12)?, v4(16)?)),
        6 => Some((v6(8)?, v6(24)?)),
        _ => None,
    }
}

/// Whether the sums of IPv4 and TCP are right (RFC 1071). Where TCP's is still to be made, its field has that of the
/// pseudo-header. Of other protocols only IPv4's own is looked at.
fn sums_are_right(ip: &[u8], partial: bool) -> bool {
    let v4 = ip[0] >> 4 == 4;
    let (header_len, protocol) = if v4 { (usize::from(ip[0] & 0xf) * 4, ip[9]) } else { (40, ip[6]) };
    if v4 && sum(&[&ip[..header_len]]) != 0xffff {
        return false;
    }
    if protocol != 6 {
        return true;
    }
    let (addresses, tcp) = (if v4 { &ip[12..20] } else { &ip[8..40] }, &ip[header_len..]);
    let len = u32::try_from(tcp.len()).unwrap_or(0).to_be_bytes();
    let pseudo: [&[u8]; 3] = [addresses, &len, &[0, 6]];
    if partial {
        return u16::from_be_bytes([tcp[16], tcp[17]]) == sum(&pseudo);
    }
    sum(&[pseudo[0], pseudo[1], pseudo[2], tcp]) == 0xffff
}

fn sum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0_u64;
    for part in parts {
        for pair in part.chunks(2) {
            sum += u64::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).unwrap_or(0)
}
