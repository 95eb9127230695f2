//! Ring 3 once more, as on interfaces that XDP observes: every packet from an origin goes through `xdp_ingress`, and then
//! through the TC program behind it. The tables are the same, and so must be all that they find: counts, events, bytes.

#[allow(dead_code, reason = "the benchmark needs other parts of it than the tables do")]
#[path = "../prog/support/mod.rs"]
mod support;

#[path = "../prog/answered.rs"]
mod answered;
#[path = "../prog/capacity.rs"]
mod capacity;
#[path = "../prog/choice.rs"]
mod choice;
#[path = "../prog/client.rs"]
mod client;
#[path = "../prog/deliver.rs"]
mod deliver;
#[path = "../prog/flood.rs"]
mod flood;
#[path = "../prog/framing.rs"]
mod framing;
#[path = "../prog/garbage.rs"]
mod garbage;
#[path = "../prog/icmp.rs"]
mod icmp;
#[path = "../prog/mode.rs"]
mod mode;
#[path = "../prog/pass.rs"]
mod pass;
#[path = "../prog/reset.rs"]
mod reset;
#[path = "../prog/resteer.rs"]
mod resteer;
#[path = "../prog/reuse.rs"]
mod reuse;
#[path = "../prog/signals.rs"]
mod signals;
#[path = "../prog/spread.rs"]
mod spread;
#[path = "../prog/stamps.rs"]
mod stamps;
#[path = "../prog/status.rs"]
mod status;
#[path = "../prog/steer.rs"]
mod steer;
#[path = "../prog/tags.rs"]
mod tags;
#[path = "../prog/trial.rs"]
mod trial;
#[path = "../prog/trip.rs"]
mod trip;
#[path = "../prog/turn.rs"]
mod turn;

const _: () = assert!(support::kernel::THROUGH_XDP, "the support goes by the name of this target");
