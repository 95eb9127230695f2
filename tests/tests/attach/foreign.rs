//! Programs of somebody else, as small as they can be, straight through `bpf(2)`: no tool of ours makes such.

use std::{
    fs::File,
    io,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
};

use anyhow::{Context as _, Result};

const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_LINK_CREATE: libc::c_long = 28;

/// Kinds of programs and hooks (`include/uapi/linux/bpf.h`).
const TYPE_TC: u32 = 3;
const TYPE_XDP: u32 = 6;
const TYPE_SOCK_OPS: u32 = 13;
const HOOK_SOCK_OPS: u32 = 3;
const HOOK_XDP: u32 = 37;
const HOOK_TCX_EGRESS: u32 = 47;

/// In the driver, as Sluice attaches it.
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

/// One instruction.
const fn op(code: u8, registers: u8, offset: i16, constant: i32) -> u64 {
    u64::from_le_bytes([
        code,
        registers,
        offset.to_le_bytes()[0],
        offset.to_le_bytes()[1],
        constant.to_le_bytes()[0],
        constant.to_le_bytes()[1],
        constant.to_le_bytes()[2],
        constant.to_le_bytes()[3],
    ])
}

/// `r0 = value; exit`.
const fn answer(value: i32) -> [u64; 2] {
    [op(0xb7, 0, 0, value), op(0x95, 0, 0, 0)]
}

/// `if (op == BPF_SOCK_OPS_TIMEOUT_INIT) reply = jiffies; return 1`.
const fn timeout(jiffies: i32) -> [u64; 6] {
    [
        // r2 = *(u32 *)(r1 + 0)
        op(0x61, 0x12, 0, 0),
        // if r2 != 1 goto +2
        op(0x55, 0x02, 2, 1),
        // r2 = jiffies
        op(0xb7, 0x02, 0, jiffies),
        // *(u32 *)(r1 + 4) = r2
        op(0x63, 0x21, 4, 0),
        op(0xb7, 0, 0, 1),
        op(0x95, 0, 0, 0),
    ]
}

/// A program on a hook, for as long as this lives.
#[derive(Debug)]
pub(crate) struct Foreign {
    _program: OwnedFd,
    _link: OwnedFd,
}

impl Foreign {
    /// An XDP program called `foreign` that lets everything pass. In the calling thread's namespace.
    pub(crate) fn xdp(interface: &str) -> Result<Self> {
        Self::attach(TYPE_XDP, &answer(2), index(interface)?, HOOK_XDP, XDP_FLAGS_DRV_MODE)
    }

    /// A TC program that says at egress that nobody after it need be asked (`TCX_PASS`).
    pub(crate) fn last_word_at_egress(interface: &str) -> Result<Self> {
        Self::attach(TYPE_TC, &answer(0), index(interface)?, HOOK_TCX_EGRESS, 0)
    }

    /// A program that sets the SYN timeout of every socket of the host.
    pub(crate) fn timeout(cgroup: &str, jiffies: i32) -> Result<Self> {
        let folder = File::open(cgroup).with_context(|| format!("cannot open {cgroup}"))?;
        Self::attach(TYPE_SOCK_OPS, &timeout(jiffies), u32::try_from(folder.as_raw_fd())?, HOOK_SOCK_OPS, 0)
    }

    fn attach(kind: u32, instructions: &[u64], target: u32, hook: u32, flags: u32) -> Result<Self> {
        #[repr(C)]
        struct Load {
            kind: u32,
            count: u32,
            instructions: u64,
            license: u64,
            log: [u32; 2],
            log_at: u64,
            kernel: u32,
            flags: u32,
            name: [u8; 16],
            interface: u32,
            expected: u32,
        }
        let mut name = [0; 16];
        name[..7].copy_from_slice(b"foreign");
        let mut load = Load {
            kind,
            count: u32::try_from(instructions.len())?,
            instructions: instructions.as_ptr() as u64,
            license: c"GPL".as_ptr() as u64,
            log: [0; 2],
            log_at: 0,
            kernel: 0,
            flags: 0,
            name,
            interface: 0,
            expected: if hook == HOOK_XDP { HOOK_XDP } else { 0 },
        };
        let program = bpf(BPF_PROG_LOAD, &mut load).context("cannot load a foreign program")?;
        let mut create = [u32::try_from(program.as_raw_fd())?, target, hook, flags, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let link = bpf(BPF_LINK_CREATE, &mut create).context("cannot attach a foreign program")?;
        Ok(Self { _program: program, _link: link })
    }
}

fn index(interface: &str) -> Result<u32> {
    nix::net::if_::if_nametoindex(interface).with_context(|| format!("no interface {interface}"))
}

fn bpf<T>(command: libc::c_long, attributes: &mut T) -> io::Result<OwnedFd> {
    // SAFETY: the kernel reads at most `size_of::<T>()` bytes, which outlive the call, as do the buffers that they name.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attributes), size_of::<T>()) };
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given it to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
