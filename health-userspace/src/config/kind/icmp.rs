//! `icmp`: how large the echo request is.

use super::{Out, Section};

/// Least payload. Unit: bytes. The nonce that tells our echo from any other is that long.
const SIZE_MIN: u16 = 16;
/// Most payload: an Ethernet jumbo frame (9000) less the larger of both headers.
const SIZE_MAX: u16 = 8952;
/// Payload where the file says nothing, as ping(8) sends it.
const SIZE_DEFAULT: u16 = 56;

/// An ICMP check, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpCheck {
    /// Payload of the echo request. Unit: bytes, 16 to 8952. Default 56.
    pub size: u16,
}

pub(super) fn read(section: &Section<'_>) -> IcmpCheck {
    IcmpCheck { size: section.number("size", SIZE_MIN, SIZE_MAX).unwrap_or(SIZE_DEFAULT) }
}

impl IcmpCheck {
    pub(super) fn write(self, out: &mut Out) {
        out.key("size", self.size);
    }
}
