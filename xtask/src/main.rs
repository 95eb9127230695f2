//! `cargo xtask`: what the project needs done, without shell scripts.
fn main() {}
