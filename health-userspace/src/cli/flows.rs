//! `sluice flows`.

use super::{Context, Exit, Failure, maps::presence, render::flows as text};
use crate::{config::nearest, report::OriginName};

/// How many flows are shown unless told otherwise: two screens.
const LIMIT_DEFAULT: usize = 100;

/// Show the flow table: who talks to which origin, for redirected flows by both addresses. Works with the daemon down;
/// needs CAP_BPF.
///
/// Flows that wait longest for an answer come first. A socket that was steered when it connected talks to its origin
/// directly, so only that origin's address is known here.
///
/// Exit codes: 0 shown, 1 no such origin, 4 shown and no daemon answers, 77 the maps may not be read.
#[derive(Clone, Debug, clap::Args)]
pub struct Flows {
    /// Only flows that this origin serves, as SERVICE/ORIGIN; or ORIGIN, in whichever service.
    #[arg(long, value_name = "ORIGIN")]
    origin: Option<String>,
    /// Show at most so many; 0 shows all.
    #[arg(long, value_name = "COUNT", default_value_t = LIMIT_DEFAULT)]
    limit: usize,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

impl Flows {
    /// Reads the maps, and asks the daemon only whether it is there.
    ///
    /// # Errors
    ///
    /// There is no such origin, nothing is pinned, or it may not be read.
    pub fn run(self, context: &mut Context<'_>) -> Result<Exit, Failure> {
        let (_, error) = presence(context);
        let after = |failure: Failure| match &error {
            Some(error) => failure.after(error),
            None => failure,
        };
        let pin_dir = &context.settings.pin_dir;
        let of = match &self.origin {
            Some(wanted) => Some(numbers(wanted, &context.outside.origin_names(pin_dir).map_err(after)?)?),
            None => None,
        };
        let limit = if self.limit == 0 { usize::MAX } else { self.limit };
        let report = context.outside.flows(pin_dir, of.as_deref(), limit).map_err(after)?;
        if self.json {
            context.json(&report)?;
        } else {
            write!(context.out, "{}", text::flows(&report))?;
        }
        Ok(if error.is_some() { Exit::Unreachable } else { Exit::Done })
    }
}

/// The numbers of the origins that are meant.
fn numbers(wanted: &str, origins: &[OriginName]) -> Result<Vec<u16>, Failure> {
    let means = |origin: &&OriginName| match wanted.split_once('/') {
        Some((service, name)) => origin.service == service && origin.name == name,
        None => origin.name == wanted,
    };
    let found: Vec<u16> = origins.iter().filter(means).map(|origin| origin.id).collect();
    if !found.is_empty() {
        return Ok(found);
    }
    let full: Vec<String> = origins.iter().map(|origin| format!("{}/{}", origin.service, origin.name)).collect();
    // `dr2` is as near to `dr` as to `shop/dr`, of which the second says more.
    let near = nearest(wanted, full.iter().map(String::as_str)).or_else(|| {
        let near = nearest(wanted, origins.iter().map(|origin| origin.name.as_str()))?;
        origins.iter().position(|origin| origin.name == near).map(|place| full[place].as_str())
    });
    let hint = match near {
        Some(near) => format!("did you mean `{near}`?"),
        None => "`sluice maps origins` shows all".to_owned(),
    };
    Err(Failure::new(Exit::Failed, format!("there is no origin `{wanted}`; {hint}")))
}
