//! The kernel half under `BPF_PROG_TEST_RUN`: packets, the maps as userspace would write them, and one connection's
//! packets. Used by the tables of ring 3 and by the benchmark.

pub(crate) mod conn;
pub(crate) mod kernel;
pub(crate) mod packet;
pub(crate) mod plan;

pub(crate) use conn::Conn;
pub(crate) use kernel::{Hook, Kernel, PASS, REDIRECT, Run, SHOT};
pub(crate) use packet::Packet;
pub(crate) use plan::{A, B, NODE, Plan, addr};
