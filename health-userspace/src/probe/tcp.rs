//! `tcp`: a connection is made and closed.

use super::{
    failure,
    kind::{Probe, Setting},
    socket::Sockets,
    trace::Trace,
};
use futures_util::future::{BoxFuture, FutureExt};
use health_core::model::{Layer, Outcome};
use std::net::SocketAddr;

/// A check made ready to be run against one origin.
pub(super) struct TcpProbe {
    address: SocketAddr,
    sockets: Sockets,
}

impl TcpProbe {
    pub(super) fn new(setting: Setting<'_>) -> Self {
        Self { address: setting.address, sockets: setting.sockets.clone() }
    }
}

impl Probe for TcpProbe {
    /// Connects, then closes with a FIN: a server logs a reset, and a passive observer may count it.
    fn run<'a>(&'a mut self, trace: &'a mut Trace) -> BoxFuture<'a, Outcome> {
        async {
            trace.begin("connect", Layer::Transport);
            match self.sockets.connect(self.address).await {
                Ok(connection) => {
                    drop(connection);
                    Outcome::Pass
                }
                Err(error) => {
                    trace.explain(error.to_string());
                    failure::of_io(&error, Layer::Transport)
                }
            }
        }
        .boxed()
    }
}
