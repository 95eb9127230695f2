//! The few system calls that no library here has a safe form for: `bpf(2)` for links, and questions to
//! interfaces. Maps of unknown layout are in `raw`.

use std::{
    ffi::CString,
    io,
    os::{
        fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

use rtnetlink::{
    packet_core::{NLM_F_REQUEST, NetlinkMessage, NetlinkPayload},
    packet_route::{
        RouteNetlinkMessage,
        link::{LinkAttribute, LinkMessage, LinkXdp},
    },
    sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE},
};

const BPF_OBJ_GET: i64 = 7;
const BPF_OBJ_GET_INFO_BY_FD: i64 = 15;
const BPF_LINK_UPDATE: i64 = 29;

/// `bpf_link_info` up to the part that says where a TCX or XDP link hangs (`include/uapi/linux/bpf.h`).
#[repr(C)]
#[derive(Debug, Default)]
pub(super) struct LinkInfo {
    kind: u32,
    id: u32,
    /// Number of the program behind it.
    pub(super) program: u32,
    pad: u32,
    /// The interface that it hangs on; 0 when that is gone, and for links of cgroups nothing of meaning.
    pub(super) ifindex: u32,
    attach: u32,
    rest: [u32; 16],
}

#[repr(C)]
struct GetAttr {
    path: u64,
    fd: u32,
    flags: u32,
}

#[repr(C)]
struct InfoAttr {
    fd: u32,
    len: u32,
    info: u64,
}

#[repr(C)]
struct UpdateAttr {
    link: u32,
    program: u32,
    flags: u32,
    old: u32,
}

/// `attr` must be the kernel's layout for `command`.
pub(super) fn bpf<T>(command: i64, attr: &mut T) -> io::Result<i32> {
    // SAFETY: the kernel reads and writes at most `size_of::<T>()` bytes of `attr`, which outlives the call; pointers in
    // it point to live buffers of the lengths given beside them.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attr), size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { i32::try_from(result).map_err(io::Error::other) }
}

/// Opens a pin.
pub(super) fn get(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let fd: RawFd = bpf(BPF_OBJ_GET, &mut GetAttr { path: path.as_ptr() as u64, fd: 0, flags: 0 })?;
    // SAFETY: the kernel has just given it to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Puts another program behind a link, without a gap. Linux 5.7 for cgroups, 6.6 for TCX.
pub(super) fn update(link: &OwnedFd, program: BorrowedFd<'_>) -> io::Result<()> {
    bpf(BPF_LINK_UPDATE, &mut UpdateAttr { link: number(link), program: number(&program), flags: 0, old: 0 })?;
    Ok(())
}

/// What the kernel says of a link.
pub(super) fn link_info(link: &impl AsRawFd) -> io::Result<LinkInfo> {
    let mut info = LinkInfo::default();
    // SAFETY: the kernel's layout, of integers only.
    unsafe { info_by_fd(number(link), &mut info)? };
    Ok(info)
}

/// # Safety
///
/// `T` must be a prefix of what the kernel tells of this kind of object, and every bit pattern of it a value.
pub(super) unsafe fn info_by_fd<T>(fd: u32, info: &mut T) -> io::Result<()> {
    let len = u32::try_from(size_of::<T>()).map_err(io::Error::other)?;
    let info = std::ptr::from_mut(info) as u64;
    bpf(BPF_OBJ_GET_INFO_BY_FD, &mut InfoAttr { fd, len, info })?;
    Ok(())
}

/// The type of an interface (`ARPHRD_…`) and its flags (`IFF_…`). Asked of a socket, for sysfs shows the namespace that mounted
/// it, which need not be ours.
pub(super) fn link_kind(interface: &str) -> io::Result<(u16, u32)> {
    let socket = std::net::UdpSocket::bind("[::]:0").or_else(|_| std::net::UdpSocket::bind("0.0.0.0:0"))?;
    // SAFETY: all bit patterns of this C structure are values.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes().take(libc::IFNAMSIZ - 1)) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    // SAFETY: the socket lives, and the kernel fills a structure of this size.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFHWADDR, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: SIOCGIFHWADDR fills this member.
    let kind = unsafe { request.ifr_ifru.ifru_hwaddr.sa_family };
    // SAFETY: as above.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: SIOCGIFFLAGS fills this member. `IFF_POINTOPOINT` and what else matters are in its 16 bits.
    Ok((kind, unsafe { request.ifr_ifru.ifru_flags }.cast_unsigned().into()))
}

/// The number by which BPF programs know a socket. `SO_COOKIE`: Linux 4.12.
pub(super) fn socket_cookie(socket: &impl AsRawFd) -> io::Result<u64> {
    let mut cookie = 0u64;
    let mut len = libc::socklen_t::try_from(size_of::<u64>()).map_err(io::Error::other)?;
    let to = (&raw mut cookie).cast();
    // SAFETY: the kernel writes at most `len` bytes to `cookie`.
    let result = unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_COOKIE, to, &raw mut len) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(cookie) }
}

/// Number of the XDP program on an interface, whoever attached it and how.
pub(super) fn xdp_program(index: u32) -> io::Result<Option<u32>> {
    let mut question = LinkMessage::default();
    question.header.index = index;
    let mut request = NetlinkMessage::from(RouteNetlinkMessage::GetLink(question));
    request.header.flags = NLM_F_REQUEST;
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.send(&bytes, 0)?;
    let (answer, _) = socket.recv_from_full()?;
    let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer).map_err(io::Error::other)?;
    let link = match answer.payload {
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) => link,
        NetlinkPayload::Error(error) => return Err(error.to_io()),
        _ => return Err(io::ErrorKind::InvalidData.into()),
    };
    let attributes = link.attributes.iter().filter_map(|attribute| match attribute {
        LinkAttribute::Xdp(attributes) => Some(attributes),
        _ => None,
    });
    Ok(attributes.flatten().find_map(|attribute| match attribute {
        LinkXdp::ProgId(id) | LinkXdp::DrvProgId(id) | LinkXdp::SkbProgId(id) | LinkXdp::HwProgId(id) => {
            Some(*id).filter(|&id| id != 0)
        }
        _ => None,
    }))
}

pub(super) fn number(fd: &impl AsRawFd) -> u32 {
    // Descriptors are never negative.
    fd.as_raw_fd().unsigned_abs()
}
