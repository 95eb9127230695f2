//! Which rows are wanted.

use anyhow::{Context as _, Result, bail, ensure};

use crate::cases::{CASES, FLOWS_LOG2};

/// An empty list asks for all.
#[derive(Debug, Default)]
pub(crate) struct Filter {
    cases: Vec<String>,
    families: Vec<String>,
    flows: Vec<u32>,
}

impl Filter {
    /// From `case=…`, `family=…`, `flows=…`. A name that no row has is an error, for it would measure nothing.
    pub(crate) fn read(arguments: impl Iterator<Item = String>) -> Result<Self> {
        let mut filter = Self::default();
        for argument in arguments {
            let (key, value) = argument.split_once('=').with_context(|| format!("`{argument}` is not key=value"))?;
            match key {
                "case" => {
                    let known: Vec<&str> = CASES.iter().map(|(name, _)| *name).collect();
                    ensure!(known.contains(&value), "no case `{value}`; there are {}", known.join(", "));
                    filter.cases.push(value.to_owned());
                }
                "family" => {
                    ensure!(["ipv4", "ipv6"].contains(&value), "no family `{value}`; there are ipv4 and ipv6");
                    filter.families.push(value.to_owned());
                }
                "flows" => {
                    let flows = value.parse().with_context(|| format!("`{value}` is no number of flows"))?;
                    let known = FLOWS_LOG2.map(|log2| 1 << log2);
                    ensure!(known.contains(&flows), "no rows with {flows} flows; there are {known:?}");
                    filter.flows.push(flows);
                }
                _ => bail!("no filter `{key}`; there are case, family and flows"),
            }
        }
        Ok(filter)
    }

    pub(crate) fn case(&self, name: &str) -> bool {
        self.cases.is_empty() || self.cases.iter().any(|wanted| wanted == name)
    }

    pub(crate) fn family(&self, name: &str) -> bool {
        self.families.is_empty() || self.families.iter().any(|wanted| wanted == name)
    }

    pub(crate) fn flows(&self, flows: u32) -> bool {
        self.flows.is_empty() || self.flows.contains(&flows)
    }
}
