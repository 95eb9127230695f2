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
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::float_arithmetic,
        clippy::as_conversions,
        clippy::wildcard_enum_match_arm
    )
)]

extern crate alloc;

#[cfg(test)]
extern crate std;

pub mod clients;
pub mod engine;
pub mod evidence;
pub mod governor;
mod hsm;
pub mod latency;
mod learn;
pub mod lifecycle;
mod load;
mod loss;
pub mod maglev;
pub mod model;
mod origin;
pub mod policy;
pub mod pool;
mod reason;
pub mod rule;
pub mod runs;
mod service;
pub mod steering;
pub mod time;
pub mod track;
mod trip;
pub mod verdict;
pub mod window;

pub use time::{Span, Timestamp};
