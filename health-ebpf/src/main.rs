#![no_std]
#![no_main]
use aya_ebpf::{macros::classifier, programs::TcContext};

/// The cheapest program there is: what the others are measured against.
#[classifier]
pub fn trivial(_ctx: TcContext) -> i32 {
    -1
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
