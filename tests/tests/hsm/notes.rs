//! What came of the parts of a test that needs one daemon for several checks.

use std::collections::BTreeMap;

use anyhow::{Result, anyhow};

/// Results by the checks' names; a check may have several parts.
#[derive(Debug, Default)]
pub(crate) struct Notes(BTreeMap<&'static str, Vec<String>>);

impl Notes {
    /// Runs a part of the check called `name`.
    pub(crate) fn part(&mut self, name: &'static str, part: impl FnOnce() -> Result<()>) {
        let errors = self.0.entry(name).or_default();
        errors.extend(part().err().map(|error| format!("{error:#}")));
    }

    /// What came of a check. One whose parts were not reached has failed, too.
    pub(crate) fn came_of(&self, name: &str) -> Result<()> {
        match self.0.get(name).map(Vec::as_slice) {
            Some([]) => Ok(()),
            Some(errors) => Err(anyhow!(errors.join("; then: "))),
            None => Err(anyhow!("it was not reached: {:?}", self.0)),
        }
    }
}

/// All parts of a test that ended by `error`.
pub(crate) fn broken(mut notes: Notes, names: &[&'static str], error: &anyhow::Error) -> Notes {
    for name in names {
        notes.part(name, || Err(anyhow!("{error:#}")));
    }
    notes
}
