//! The userspace half of Sluice.
