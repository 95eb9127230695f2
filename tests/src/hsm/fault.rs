//! The fault module of `tests/fault-module`, and the directory by which it is told what to do.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{Module, SoftHsm, softhsm_library};

/// One call that reached the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// When it was over, or when a fault caught it; on the clock of [`crate::now_ns`].
    pub at_ns: u64,
    /// The process that called.
    pub pid: u32,
    /// The function, such as `C_Sign`; `C_Sign:data` is a line beside it whose outcome is a digest of what was signed.
    pub function: String,
    /// `0x0` and other return values, or the word of a fault from which the call didn't return.
    pub outcome: String,
    /// Sessions that the process had open after it.
    pub sessions: u64,
}

/// The module with its rules and its log.
#[derive(Debug)]
pub struct FaultModule {
    dir: PathBuf,
    library: PathBuf,
    /// What is always in the rules.
    base: String,
    environment: Vec<(&'static str, String)>,
}

impl FaultModule {
    /// In front of `token`; rules and log in the new directory `dir`.
    ///
    /// # Errors
    ///
    /// When the module wasn't built or SoftHSM isn't installed.
    pub fn before(token: &SoftHsm, dir: &Path) -> Result<Self> {
        Self::with(dir, format!("forward {}\n", softhsm_library()?.display()), vec![token.variable()])
    }

    /// By itself, with `slots` as lines of its rules.
    ///
    /// # Errors
    ///
    /// When the module wasn't built.
    pub fn alone(dir: &Path, slots: &[&str]) -> Result<Self> {
        Self::with(dir, format!("{}\n", slots.join("\n")), Vec::new())
    }

    fn with(dir: &Path, base: String, mut environment: Vec<(&'static str, String)>) -> Result<Self> {
        // Cargo puts it beside the programs that were built with it.
        let beside = env::current_exe()?.with_file_name("libfault_module.so");
        let built = Some(beside).filter(|path| path.exists()).context("the fault module was not built")?;
        fs::create_dir_all(dir)?;
        // A worker runs as somebody who may not see the build's directory.
        let library = dir.with_file_name("libfault_module.so");
        if !library.exists() {
            fs::copy(built, &library)?;
        }
        // Workers of any user write their log and counters here.
        fs::set_permissions(dir, fs::Permissions::from_mode(0o777))?;
        fs::write(dir.join("log"), "")?;
        fs::set_permissions(dir.join("log"), fs::Permissions::from_mode(0o666))?;
        environment.push(("FAULT_MODULE_DIR", dir.display().to_string()));
        let module = Self { dir: dir.to_owned(), library, base, environment };
        module.set(&[])?;
        Ok(module)
    }

    /// Replaces all rules by `rules`, from the next call on. What counted calls starts anew.
    ///
    /// # Errors
    ///
    /// When the directory can't be written.
    pub fn set(&self, rules: &[&str]) -> Result<()> {
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with("hits-") {
                fs::remove_file(entry.path())?;
            }
        }
        // Renamed over the old ones: a call sees all of them or none.
        let new = self.dir.join("rules.new");
        fs::write(&new, format!("{}{}\n", self.base, rules.join("\n")))?;
        Ok(fs::rename(new, self.dir.join("rules"))?)
    }

    /// Every call so far, in order.
    ///
    /// # Errors
    ///
    /// When the log can't be read.
    pub fn calls(&self) -> Result<Vec<Call>> {
        let text = fs::read_to_string(self.dir.join("log"))?;
        // A line that is being written has no end yet.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(|line| parse(line).with_context(|| format!("the fault module logged `{line}`"))).collect()
    }

    /// How often `function` was called.
    ///
    /// # Errors
    ///
    /// As [`Self::calls`].
    pub fn count(&self, function: &str) -> Result<usize> {
        let text = fs::read_to_string(self.dir.join("log"))?;
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        Ok(whole.lines().filter(|line| line.split(' ').nth(2) == Some(function)).count())
    }

    /// Forgets the calls so far.
    ///
    /// # Errors
    ///
    /// When the log can't be written.
    pub fn forget(&self) -> Result<()> {
        Ok(fs::File::options().write(true).open(self.dir.join("log"))?.set_len(0)?)
    }

    /// Its directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// How programs reach it.
    #[must_use]
    pub fn module(&self) -> Module {
        Module { library: self.library.clone(), environment: self.environment.clone() }
    }
}

fn parse(line: &str) -> Option<Call> {
    let mut words = line.split(' ');
    let (at_ns, pid) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let (function, outcome) = (words.next()?.to_owned(), words.next()?.to_owned());
    Some(Call { at_ns, pid, function, outcome, sessions: words.next()?.parse().ok()? })
}
