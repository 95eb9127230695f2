//! Debian's packages, installed without questions and without starting what they bring.

use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail, ensure};

use super::announce;
use crate::command;

/// Debian's installation scripts ask this program before they start a service (invoke-rc.d(8)).
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// "Action forbidden by policy."
const POLICY_REFUSES: &str =
    "#!/bin/sh\n# Left by `cargo xtask setup` of Sluice, if it was killed. Remove it.\nexit 101\n";

/// Seconds to wait for another apt, such as the nightly upgrade, to be done.
const LOCK_WAIT: &str = "DPkg::Lock::Timeout=120";

/// Installs `packages`.
///
/// # Errors
///
/// When there is no apt-get, the user is not root, no network is there, or a package is unknown.
pub(super) fn install(packages: &[&str]) -> anyhow::Result<()> {
    let names = packages.join(" ");
    let Some(apt_get) = command::find("apt-get") else {
        bail!("{} has no apt-get: install by hand what Debian calls {names}", distribution());
    };
    ensure!(
        nix::unistd::geteuid().is_root(),
        "not root: run as root `apt-get install {names}`, or `cargo xtask setup`"
    );

    let _services = NoServices::begin(Path::new(POLICY))
        .with_context(|| format!("cannot write {POLICY}, which keeps new services from starting"))?;
    announce(&format!("installing Debian's {names}"));
    let first = command::output(apt(&apt_get).args(["install", "--no-install-recommends"]).args(packages));
    if first.is_ok() {
        return Ok(());
    }
    // A fresh machine has no lists, and old lists name files that the mirror no longer has.
    announce("updating the package lists");
    command::output(apt(&apt_get).arg("update")).map_err(|error| explain(error, &names))?;
    command::output(apt(&apt_get).args(["install", "--no-install-recommends"]).args(packages))
        .map_err(|error| explain(error, &names))?;
    Ok(())
}

fn apt(apt_get: &Path) -> Command {
    let mut command = command::foreign(apt_get);
    // "-qq" implies "-y". The untranslated messages are those that `explain` knows.
    command.env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C").args(["-qq", "-y", "-o", LOCK_WAIT]);
    command
}

/// Puts the cause before apt's own words.
fn explain(error: anyhow::Error, names: &str) -> anyhow::Error {
    let said = error.to_string();
    let cause = cause_of(&said);
    error.context(format!("cannot install {names}: {cause}"))
}

fn cause_of(said: &str) -> &'static str {
    let causes: [(&[&str], &str); 3] = [
        (
            &[
                "Temporary failure resolving",
                "Could not resolve",
                "Could not connect",
                "Unable to connect",
                "Cannot initiate",
            ],
            "the network isn't there",
        ),
        (&["Unable to locate package", "has no installation candidate"], "this distribution's sources don't have it"),
        (
            &["Could not get lock", "Unable to acquire the dpkg"],
            "another apt or dpkg is at work; try again when it is done",
        ),
    ];
    let known = causes.iter().find(|(signs, _)| signs.iter().any(|sign| said.contains(sign)));
    known.map_or("apt-get failed", |(_, cause)| cause)
}

/// What this system calls itself.
fn distribution() -> String {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    name_in(&release).unwrap_or("this system").to_owned()
}

fn name_in(os_release: &str) -> Option<&str> {
    Some(os_release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?.trim_matches('"'))
}

/// Keeps packages from starting their services, until it is dropped.
#[derive(Debug)]
struct NoServices {
    policy: PathBuf,
    /// The machine's own policy, out of the way.
    saved: Option<PathBuf>,
}

impl NoServices {
    fn begin(policy: &Path) -> std::io::Result<Self> {
        let mut aside = OsString::from(policy);
        aside.push(".sluice-saved");
        let aside = PathBuf::from(aside);
        match fs::read(policy) {
            // Left by a set-up that was killed: what it saved is still the machine's own.
            Ok(text) if text == POLICY_REFUSES.as_bytes() => {}
            Ok(_) => fs::rename(policy, &aside)?,
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let saved = aside.exists().then_some(aside);
        let guard = Self { policy: policy.to_owned(), saved };
        fs::write(policy, POLICY_REFUSES)?;
        fs::set_permissions(policy, fs::Permissions::from_mode(0o755))?;
        Ok(guard)
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        let restored = match &self.saved {
            Some(saved) => fs::rename(saved, &self.policy),
            None => fs::remove_file(&self.policy),
        };
        if let Err(error) = restored {
            announce(&format!("{} could not be restored, do it by hand: {error}", self.policy.display()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_apt_says_names_the_cause() {
        let table = [
            ("W: Failed to fetch … Temporary failure resolving 'mirror'", "the network isn't there"),
            ("E: Unable to locate package rustc-web", "this distribution's sources don't have it"),
            ("E: Could not get lock /var/lib/dpkg/lock", "another apt or dpkg is at work; try again when it is done"),
            ("E: Broken packages", "apt-get failed"),
        ];
        for (said, want) in table {
            assert_eq!(cause_of(said), want, "{said}");
        }
    }

    #[test]
    fn a_distribution_says_its_name() {
        assert_eq!(name_in("ID=fedora\nPRETTY_NAME=\"Fedora Linux 44\"\n"), Some("Fedora Linux 44"));
        assert_eq!(name_in(""), None);
    }

    #[test]
    fn a_policy_survives_a_set_up_that_was_killed() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let policy = folder.path().join("policy-rc.d");
        fs::write(&policy, "the machine's own").expect("the folder is ours");
        std::mem::forget(NoServices::begin(&policy).expect("the folder is ours"));

        drop(NoServices::begin(&policy).expect("the folder is ours"));

        assert_eq!(fs::read_to_string(&policy).ok().as_deref(), Some("the machine's own"));
    }

    #[test]
    fn a_policy_is_put_back() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let policy = folder.path().join("policy-rc.d");
        for before in [None, Some("#!/bin/sh\nexit 0\n")] {
            if let Some(text) = before {
                fs::write(&policy, text).expect("the folder is ours");
            }

            let guard = NoServices::begin(&policy).expect("the folder is ours");
            assert_eq!(fs::read_to_string(&policy).ok().as_deref(), Some(POLICY_REFUSES));
            drop(guard);

            assert_eq!(fs::read_to_string(&policy).ok().as_deref(), before);
        }
        assert_eq!(fs::read_dir(folder.path()).map(Iterator::count).ok(), Some(1), "nothing else is left");
    }
}
