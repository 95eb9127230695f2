//! Ends established connections: what `on_fault` asks for once an origin is in fault. Who is ended, and when, is decided
//! elsewhere.
//!
//! | whose | how |
//! |---|---|
//! | sockets of this host | [`destroy`]: `SOCK_DESTROY`. The application sees ECONNABORTED at once, the peer a RST |
//! | forwarded flows | [`Resets::send`]: a RST to both sides, each at the sequence number that this side expects |

mod forwarded;
mod local;

pub use forwarded::{FlowReset, ForwardedError, Numbers, Resets, Side, Tuple};
pub use local::{DestroyError, DestroyOrder, Destroyed, Which, destroy};
