//! Structured logs on standard error.

use std::io::{self, IsTerminal};
use tracing_subscriber::{EnvFilter, fmt};

/// Environment variable that says what is logged, such as `info,sluice::datapath=debug`.
pub const FILTER: &str = "SLUICE_LOG";

/// How a line looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people; coloured on a terminal.
    #[default]
    Human,
    /// One JSON object a line.
    Json,
}

/// Why nothing can be logged.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The variable doesn't parse.
    #[error("SLUICE_LOG is no filter; write it like `info,sluice::datapath=debug`")]
    Filter(#[from] tracing_subscriber::filter::ParseError),
    /// It isn't text.
    #[error("SLUICE_LOG is not UTF-8")]
    NotText(#[source] std::env::VarError),
    /// Called twice.
    #[error("logs have been set up before")]
    Twice(#[from] tracing_subscriber::util::TryInitError),
}

/// Starts logging for the whole process, at `info` unless [`FILTER`] says otherwise.
///
/// # Errors
///
/// The filter is bad, or this was called before.
pub fn init(format: LogFormat) -> Result<(), LogError> {
    use tracing_subscriber::util::SubscriberInitExt;
    let builder = fmt().with_env_filter(filter(std::env::var(FILTER))?).with_writer(io::stderr);
    match format {
        LogFormat::Human => builder.with_ansi(io::stderr().is_terminal()).finish().try_init()?,
        LogFormat::Json => builder.json().flatten_event(true).finish().try_init()?,
    }
    Ok(())
}

fn filter(value: Result<String, std::env::VarError>) -> Result<EnvFilter, LogError> {
    match value {
        Ok(text) if !text.trim().is_empty() => Ok(EnvFilter::try_new(text)?),
        Ok(_) | Err(std::env::VarError::NotPresent) => Ok(EnvFilter::new("info")),
        Err(error) => Err(LogError::NotText(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_info_unless_it_says_otherwise() {
        let table = [
            (Err(std::env::VarError::NotPresent), Some("info")),
            (Ok(String::new()), Some("info")),
            (Ok("debug".to_owned()), Some("debug")),
            (Ok("sluice=loud".to_owned()), None),
        ];
        for (value, wanted) in table {
            let got = filter(value.clone()).ok().map(|filter| filter.to_string());
            assert_eq!(got.as_deref(), wanted, "{value:?}");
        }
    }
}
