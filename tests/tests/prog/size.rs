//! How much the verifier has to walk through.

use crate::support::Kernel;

/// Compilers differ between machines, so this is a bound, about 1.3 times what it was on Linux 6.18 when it was set. That of
/// Linux 6.1 walks a third further (`cargo xtask test-kernels`), and gives up at a million.
const INSTRUCTIONS_MAX: [(&str, u32); 16] = [
    ("client", 280_000),
    ("client_l3", 280_000),
    ("connect4", 8_000),
    ("connect6", 8_000),
    ("egress", 290_000),
    ("egress_l3", 290_000),
    ("ingress", 280_000),
    ("ingress_behind", 190_000),
    ("ingress_l3", 280_000),
    ("inject", 6),
    ("peer4", 30),
    ("peer6", 40),
    ("release", 130),
    ("timeout", 1_800),
    ("trivial", 4),
    ("xdp_ingress", 145_000),
];

#[test]
fn the_verifier_walks_no_further_than_before() {
    let found = Kernel::small().instructions();
    let within =
        |(name, count): &(String, u32)| INSTRUCTIONS_MAX.iter().any(|(known, max)| known == name && count <= max);
    assert!(
        found.len() == INSTRUCTIONS_MAX.len() && found.iter().all(within),
        "{found:?} against {INSTRUCTIONS_MAX:?}"
    );
}
