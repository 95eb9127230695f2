//! `tcp`: a connection is made and closed.

use super::{failure, socket};
use health_core::model::{Layer, Outcome};
use std::net::SocketAddr;

/// Connects, then closes with a FIN: a server logs a reset, and a passive observer may count it.
pub(super) async fn run(address: SocketAddr, mark: u32) -> Outcome {
    match socket::connect(address, mark).await {
        Ok(connection) => {
            drop(connection);
            Outcome::Pass
        }
        Err(error) => failure::of_io(&error, Layer::Transport),
    }
}
