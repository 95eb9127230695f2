//! The three ways in which a packet comes to us, behind one face: so that observation is one piece of code.

use aya_ebpf::{
    EbpfContext,
    bindings::__sk_buff,
    helpers::generated::{bpf_skb_load_bytes, bpf_xdp_load_bytes},
    programs::{TcContext, XdpContext},
};
use health_common::cells::SYN_SHIFT;

use crate::maps;

/// A packet under a program.
pub trait Context {
    /// What it finds is counted here.
    const OBSERVES: bool;
    /// Packets may be changed, redirected and dropped here.
    const REWRITES: bool;
    /// First byte.
    fn start(&self) -> usize;
    /// Behind the last byte that can be read directly.
    fn end(&self) -> usize;
    /// [`Context::start`], for functions that are not inlined: read so that the compiler can't read it in the caller and pass
    /// it on as a number of 32 bits, which the verifier does not take for a pointer.
    fn start_anew(&self) -> usize;
    /// Likewise.
    fn end_anew(&self) -> usize;
    /// All bytes, those that can't be read directly too.
    fn length(&self) -> u32;
    /// Likewise.
    fn length_anew(&self) -> u32;
    /// Makes the first `len` bytes readable, if there are as many.
    fn pull(&self, len: u32) -> bool;
    /// Segments in the packet.
    fn packets(&self) -> u64;
    /// Copies bytes from anywhere in the packet.
    fn load(&self, offset: u32, into: *mut u8, len: u32) -> bool;
    /// For what only TC can do.
    fn tc(&self) -> Option<&TcContext>;
}

/// TC, observing and rewriting.
pub struct Tc(pub TcContext);
/// TC on an interface that XDP observes: rewriting only.
pub struct Behind(pub TcContext);
/// XDP: observing only. Needs the packet in one piece, which native XDP without fragments gives.
pub struct Xdp(pub XdpContext);

macro_rules! over_tc {
    ($type:ident, $observes:literal) => {
        impl Context for $type {
            const OBSERVES: bool = $observes;
            const REWRITES: bool = true;

            #[inline(always)]
            fn start(&self) -> usize {
                self.0.data()
            }

            #[inline(always)]
            fn end(&self) -> usize {
                self.0.data_end()
            }

            #[inline(always)]
            fn length(&self) -> u32 {
                self.0.len()
            }

            #[inline(always)]
            fn start_anew(&self) -> usize {
                // SAFETY: a field of the live context.
                unsafe { (&raw const (*self.0.skb.skb).data).read_volatile() as usize }
            }

            #[inline(always)]
            fn end_anew(&self) -> usize {
                // SAFETY: as above.
                unsafe { (&raw const (*self.0.skb.skb).data_end).read_volatile() as usize }
            }

            #[inline(always)]
            fn length_anew(&self) -> u32 {
                // SAFETY: as above.
                unsafe { (&raw const (*self.0.skb.skb).len).read_volatile() }
            }

            #[inline(always)]
            fn pull(&self, len: u32) -> bool {
                self.0.pull_data(len).is_ok()
            }

            #[inline(always)]
            fn packets(&self) -> u64 {
                packets(&self.0)
            }

            #[inline(always)]
            fn load(&self, offset: u32, into: *mut u8, len: u32) -> bool {
                // SAFETY: callers have as many bytes, which the verifier checks.
                unsafe { bpf_skb_load_bytes(self.0.as_ptr(), offset, into.cast(), len) == 0 }
            }

            #[inline(always)]
            fn tc(&self) -> Option<&TcContext> {
                Some(&self.0)
            }
        }
    };
}

over_tc!(Tc, true);
over_tc!(Behind, false);

impl Context for Xdp {
    const OBSERVES: bool = true;
    const REWRITES: bool = false;

    #[inline(always)]
    fn start(&self) -> usize {
        self.0.data()
    }

    #[inline(always)]
    fn end(&self) -> usize {
        self.0.data_end()
    }

    #[inline(always)]
    fn length(&self) -> u32 {
        (self.0.data_end() - self.0.data()) as u32
    }

    #[inline(always)]
    fn start_anew(&self) -> usize {
        // SAFETY: a field of the live context.
        unsafe { (&raw const (*self.0.ctx).data).read_volatile() as usize }
    }

    #[inline(always)]
    fn end_anew(&self) -> usize {
        // SAFETY: as above.
        unsafe { (&raw const (*self.0.ctx).data_end).read_volatile() as usize }
    }

    #[inline(always)]
    fn length_anew(&self) -> u32 {
        (self.end_anew() - self.start_anew()) as u32
    }

    #[inline(always)]
    fn pull(&self, _len: u32) -> bool {
        false
    }

    #[inline(always)]
    fn packets(&self) -> u64 {
        1
    }

    /// Linux 5.18.
    #[inline(always)]
    fn load(&self, offset: u32, into: *mut u8, len: u32) -> bool {
        // SAFETY: as above.
        unsafe { bpf_xdp_load_bytes(self.0.ctx, offset, into.cast(), len) == 0 }
    }

    #[inline(always)]
    fn tc(&self) -> Option<&TcContext> {
        None
    }
}

/// A stamp further ahead than this is of another clock, or of a segment that is paced so slowly that its time would make others
/// look overdue: as wide as the cells of SYNs, for which a timeout is not counted finer. Unit: ns.
const AHEAD_MAX: u64 = 1 << SYN_SHIFT;

/// When the packet leaves. At egress the stack has stamped its own segments with the clock that we use, ahead of now where it
/// paces them (earliest departure time, Linux 5.0); reading a clock anew costs as much as the rest of a packet.
#[inline(always)]
pub fn leaves_at(ctx: &TcContext) -> u64 {
    // SAFETY: the context is a live `__sk_buff`.
    let stamp = unsafe { (*ctx.as_ptr().cast::<__sk_buff>()).tstamp };
    if stamp.wrapping_sub(maps::coarse_now()) < AHEAD_MAX { stamp } else { maps::now() }
}

/// Segments in the packet; the kernel says 0 when it isn't GSO.
#[inline(always)]
pub fn packets(ctx: &TcContext) -> u64 {
    // SAFETY: the context is a live `__sk_buff`.
    u64::from(unsafe { (*ctx.as_ptr().cast::<__sk_buff>()).gso_segs }.max(1))
}
