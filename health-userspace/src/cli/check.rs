//! `sluice check`.

use super::{
    Context, Exit, Failure,
    outside::{Checked, Finding},
};
use std::path::PathBuf;

/// Validate a configuration, warn about what will hurt, and print it with every default filled in.
///
/// Needs no privilege. Exit codes: 0 may be applied, 78 may not.
#[derive(Clone, Debug, clap::Args)]
pub struct Check {
    /// The file; default: that of -c.
    file: Option<PathBuf>,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

#[derive(serde::Serialize)]
struct CheckReport<'a> {
    ok: bool,
    errors: &'a [Finding],
    warnings: &'a [Finding],
    resolved: Option<toml::Table>,
}

impl Check {
    /// Checks and prints.
    ///
    /// # Errors
    ///
    /// The configuration may not be applied.
    pub fn run(self, context: &mut Context<'_>) -> Result<Exit, Failure> {
        let file = self.file.unwrap_or_else(|| context.settings.config.clone());
        let checked = context.outside.check(&file);
        if self.json {
            return json(context, &checked);
        }
        let checked = checked.map_err(|errors| Failure::new(Exit::BadConfig, all(&errors)))?;
        for warning in &checked.warnings {
            writeln!(context.notes, "warning: {}\n", warning.text.trim_end())?;
        }
        write!(context.out, "{}", checked.resolved)?;
        let warnings = match checked.warnings.len() {
            0 => "no warnings".to_owned(),
            1 => "1 warning".to_owned(),
            many => format!("{many} warnings"),
        };
        writeln!(context.notes, "{} may be applied, {warnings}", file.display())?;
        Ok(Exit::Done)
    }
}

fn json(context: &mut Context<'_>, checked: &Result<Checked, Vec<Finding>>) -> Result<Exit, Failure> {
    let report = match checked {
        Ok(checked) => CheckReport {
            ok: true,
            errors: &[],
            warnings: &checked.warnings,
            resolved: Some(checked.resolved.parse().map_err(|error: toml::de::Error| Failure::of(error))?),
        },
        Err(errors) => CheckReport { ok: false, errors, warnings: &[], resolved: None },
    };
    context.json(&report)?;
    Ok(if report.ok { Exit::Done } else { Exit::BadConfig })
}

/// All mistakes, for standard error.
pub(super) fn all(errors: &[Finding]) -> String {
    let texts: Vec<&str> = errors.iter().map(|error| error.text.trim_end()).collect();
    texts.join("\n\n")
}
