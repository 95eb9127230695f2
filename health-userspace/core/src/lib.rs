//! The judgement of Sluice: pure, no clock, no IO.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
