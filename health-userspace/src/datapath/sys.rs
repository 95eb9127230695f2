//! The few `bpf(2)` calls that aya has no safe form for: links of cgroup programs, and questions to links.

use std::{
    ffi::CString,
    io,
    os::{
        fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

const BPF_OBJ_GET: i64 = 7;
const BPF_OBJ_GET_INFO_BY_FD: i64 = 15;
const BPF_LINK_UPDATE: i64 = 29;

/// `bpf_link_info` up to the part that says where a TCX link hangs (`include/uapi/linux/bpf.h`).
#[repr(C)]
#[derive(Default)]
struct LinkInfo {
    kind: u32,
    id: u32,
    program: u32,
    pad: u32,
    ifindex: u32,
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
fn bpf<T>(command: i64, attr: &mut T) -> io::Result<i32> {
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

/// The interface of a TCX link; 0 when it is gone.
pub(super) fn ifindex(link: &OwnedFd) -> io::Result<u32> {
    let mut info = LinkInfo::default();
    let len = u32::try_from(size_of::<LinkInfo>()).map_err(io::Error::other)?;
    let info_at = std::ptr::from_mut(&mut info) as u64;
    bpf(BPF_OBJ_GET_INFO_BY_FD, &mut InfoAttr { fd: number(link), len, info: info_at })?;
    Ok(info.ifindex)
}

fn number(fd: &impl AsRawFd) -> u32 {
    // Descriptors are never negative.
    fd.as_raw_fd().unsigned_abs()
}
