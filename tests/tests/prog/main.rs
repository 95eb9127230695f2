//! Ring 3: packets through the real programs in the real kernel, by `BPF_PROG_TEST_RUN`. Needs root.
//!
//! A table is a list of named cases: a packet, and what must come of it (verdict, packet, counters, events). Programs
//! read the kernel's clock, so timeouts here are of milliseconds, and a case that waits sends packets until it may go on.

#[allow(dead_code, reason = "the benchmark needs other parts of it than the tables do")]
mod support;

mod answered;
mod capacity;
mod choice;
mod client;
mod deliver;
mod flood;
mod framing;
mod garbage;
mod icmp;
mod mode;
mod pass;
mod reset;
mod resteer;
mod reuse;
mod signals;
mod size;
mod spread;
mod stamps;
mod status;
mod steer;
mod tags;
mod trial;
mod trip;
mod turn;
