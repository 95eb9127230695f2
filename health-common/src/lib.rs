//! What the kernel half and the userspace half of Sluice agree on.
#![no_std]
