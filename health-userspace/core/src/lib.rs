//! The judgement of Sluice: evidence becomes a verdict, a verdict a state, states a steering plan.
//!
//! Pure: no clock, no IO, no randomness without a seed. Time is an argument ([`Timestamp`]), everything that happened
//! since the last tick is an argument ([`engine::Input`]), and what should now be so is the result ([`engine::Step`]).
//! The compiler proves it: the crate builds for a target without `std`.
//!
//! ```text
//! counters ─► evidence ─► verdict ─► lifecycle ─► pool ─► steering plan
//! ```
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod engine;
pub mod model;
pub mod policy;
pub mod time;

pub use time::{Span, Timestamp};
