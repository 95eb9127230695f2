//! `sluice origin`.

use super::{Context, Exit, Failure, order};
use crate::control::{Ask, OrderKind};
use std::time::Duration;

/// Override what Sluice thinks of an origin.
///
/// Exit codes: 0 taken, 1 no such origin, 3 refused by a rule, 4 no daemon answers.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Origin {
    /// Send it nothing new; established connections stay.
    Drain(Order),
    /// Treat it as failed, whatever the evidence says.
    Fail(Order),
    /// End the order, and judge it anew: trip, fault and hold-down end too.
    Clear(Clear),
}

/// Arguments of an order.
#[derive(Clone, Debug, clap::Args)]
pub struct Order {
    /// Which, as SERVICE/ORIGIN.
    #[arg(value_name = "SERVICE/ORIGIN", value_parser = name)]
    origin: Name,
    /// Why; shown wherever the override is.
    #[arg(long, default_value = "")]
    reason: String,
    /// When it ends by itself, such as 40m. Default: when it is cleared.
    #[arg(long = "for", value_name = "TIME", value_parser = lasting)]
    lasts: Option<Duration>,
}

/// Arguments of a clearing.
#[derive(Clone, Debug, clap::Args)]
pub struct Clear {
    /// Which, as SERVICE/ORIGIN.
    #[arg(value_name = "SERVICE/ORIGIN", value_parser = name)]
    origin: Name,
    /// Why.
    #[arg(long, default_value = "")]
    reason: String,
}

/// An origin by its names.
#[derive(Clone, Debug)]
struct Name {
    service: String,
    origin: String,
}

impl Origin {
    /// Hands the order to the daemon.
    ///
    /// # Errors
    ///
    /// No daemon answers, there is no such origin, or a rule forbids it.
    pub fn run(self, context: &mut Context<'_>) -> Result<Exit, Failure> {
        let (kind, origin, reason, lasts) = match self {
            Self::Drain(Order { origin, reason, lasts }) => (OrderKind::Drain, origin, reason, lasts),
            Self::Fail(Order { origin, reason, lasts }) => (OrderKind::Fail, origin, reason, lasts),
            Self::Clear(Clear { origin, reason }) => (OrderKind::Clear, origin, reason, None),
        };
        let Name { service, origin } = origin;
        let for_ms = lasts.map(|lasts| u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX));
        order(context, Ask::Origin { service, origin, order: kind, reason, for_ms })
    }
}

fn name(text: &str) -> Result<Name, String> {
    match text.split_once('/') {
        Some((service, origin)) if !service.is_empty() && !origin.is_empty() => {
            Ok(Name { service: service.to_owned(), origin: origin.to_owned() })
        }
        _ => Err("write it as SERVICE/ORIGIN, as `sluice status` shows them".to_owned()),
    }
}

fn lasting(text: &str) -> Result<Duration, String> {
    let lasts = humantime::parse_duration(text).map_err(|error| format!("{error}; write it like 40m or 1h30m"))?;
    if lasts < Duration::from_secs(1) {
        return Err("an order lasts at least 1s".to_owned());
    }
    Ok(lasts)
}
