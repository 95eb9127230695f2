//! What the names of origins stand for.

use crate::config::{Config, Found};
use futures_util::future::join_all;
use health_core::Span;
use std::{collections::BTreeMap, net::IpAddr, time::Duration};
use tokio::{
    net::lookup_host,
    time::{Instant, timeout},
};

/// A resolver that says nothing for so long is not waited for.
const LOOKUP_MAX: Duration = Duration::from_secs(5);

/// Asks the system's resolver for all names of a configuration, at the same time. What can't be found is absent, and said.
pub async fn look_up(config: &Config) -> Found {
    look_up_timed(config).await.0
}

/// The same, with the time that each answer took.
pub async fn look_up_timed(config: &Config) -> (Found, BTreeMap<String, Span>) {
    let began = Instant::now();
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
        let took = Span(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX));
        addresses.map(|addresses| ((name.clone(), addresses), (name, took)))
    });
    join_all(asked).await.into_iter().flatten().unzip()
}
