//! What the names of origins stand for.

use crate::config::{Config, Found};
use futures_util::future::join_all;
use std::{net::IpAddr, time::Duration};
use tokio::{net::lookup_host, time::timeout};

/// A resolver that says nothing for so long is not waited for.
const LOOKUP_MAX: Duration = Duration::from_secs(5);

/// Asks the system's resolver for all names of a configuration, at the same time. What can't be found is absent, and said.
pub async fn look_up(config: &Config) -> Found {
    let asked = config.host_names().into_iter().map(async |name| {
        let answer = async { Ok(lookup_host((name.as_str(), 0)).await?.map(|address| address.ip()).collect()) };
        let answer: Result<std::io::Result<Vec<IpAddr>>, _> = timeout(LOOKUP_MAX, answer).await;
        let addresses = match answer {
            Ok(Ok(addresses)) => Some(addresses),
            Ok(Err(error)) => {
                tracing::warn!(name, %error, "cannot look the name up");
                None
            }
            Err(_elapsed) => {
                tracing::warn!(name, "no answer from the resolver");
                None
            }
        };
        addresses.map(|addresses| (name, addresses))
    });
    join_all(asked).await.into_iter().flatten().collect()
}
