//! `sluice direct`.

use super::{Context, Exit, Failure};
use anyhow::Context as _;
use std::{
    ffi::OsString,
    fs, io,
    os::unix::{ffi::OsStringExt, process::CommandExt},
    path::{Path, PathBuf},
    process::Command,
};

/// Run a command whose connections are never steered.
///
/// It runs in the first cgroup of node.bypass.cgroups. Exit codes: the command's own; 126 it can't be run, 127 there is
/// none, 77 the cgroup may not be entered.
#[derive(Clone, Debug, clap::Args)]
pub struct Direct {
    /// The command and its arguments.
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

impl Direct {
    /// Enters the cgroup and becomes the command. Returns only if that failed.
    ///
    /// # Errors
    ///
    /// Always: the cgroup can't be entered, or the command can't be run.
    pub fn run(self, context: &Context<'_>) -> Result<Exit, Failure> {
        let mount = fs::read("/proc/self/mountinfo").context("cannot find the cgroup v2 mount").map_err(Failure::of)?;
        let Some(mount) = cgroup2_mount(&mount) else {
            let message = "no cgroup v2 is mounted; mount one with `mount -t cgroup2 none /sys/fs/cgroup`";
            return Err(Failure::new(Exit::Failed, message));
        };
        // The command would be steered after all, and nobody would know.
        let Some(cgroup) = &context.settings.bypass_cgroup else {
            let message = "`node.bypass.cgroups` is empty, so no command can be kept from being steered; name one there, \
                           for example \"/sluice-direct\"";
            return Err(Failure::new(Exit::Failed, message));
        };
        enter(&mount, cgroup).map_err(Failure::of)?;
        let Some((program, arguments)) = self.command.split_first() else {
            return Err(Failure::new(Exit::Usage, "a command is missing"));
        };
        let error = Command::new(program).args(arguments).exec();
        let exit = if error.kind() == io::ErrorKind::NotFound { Exit::NotFound } else { Exit::CannotRun };
        Err(Failure::new(exit, format!("{}: {error}", program.display())))
    }
}

fn enter(mount: &Path, cgroup: &Path) -> anyhow::Result<()> {
    let folder = mount.join(cgroup.strip_prefix("/").unwrap_or(cgroup));
    fs::create_dir_all(&folder).with_context(|| format!("cannot make the cgroup {}", folder.display()))?;
    // 0 is the writer itself.
    fs::write(folder.join("cgroup.procs"), "0").with_context(|| format!("cannot enter the cgroup {}", folder.display()))
}

/// Where the whole cgroup v2 hierarchy is mounted.
///
/// Fields as in proc_pid_mountinfo(5): root and mount point are the 4th and 5th; the type follows the lone hyphen.
fn cgroup2_mount(mountinfo: &[u8]) -> Option<PathBuf> {
    mountinfo.split(|&byte| byte == b'\n').find_map(|line| {
        let fields: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
        let hyphen = fields.iter().position(|field| *field == b"-")?;
        let whole = fields.get(3).is_some_and(|root| *root == b"/");
        let cgroup2 = fields.get(hyphen + 1).is_some_and(|kind| *kind == b"cgroup2");
        (whole && cgroup2).then(|| fields.get(4).map(|point| unescape(point)))?
    })
}

/// The kernel writes blanks, tabs, line ends and backslashes as three octal digits.
fn unescape(field: &[u8]) -> PathBuf {
    let mut path = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.filter(|_| first == b'\\').and_then(|digits| u8::from_str_radix(digits, 8).ok());
        path.push(byte.unwrap_or(first));
        rest = if byte.is_some() { &after[3..] } else { after };
    }
    PathBuf::from(OsString::from_vec(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cgroup_mount_is_found_in_either_layout() {
        let table: [(&str, Option<&str>); 4] = [
            ("31 24 0:27 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n", Some("/sys/fs/cgroup")),
            (
                "30 24 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                 31 24 0:27 / /sys/fs/cgroup/un\\040ified rw shared:9 master:2 - cgroup2 cgroup2 rw\n",
                Some("/sys/fs/cgroup/un ified"),
            ),
            ("31 24 0:27 /docker/1 /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", None),
            ("nonsense\n\n- -\n", None),
        ];
        for (mountinfo, wanted) in table {
            assert_eq!(cgroup2_mount(mountinfo.as_bytes()).as_deref(), wanted.map(Path::new), "{mountinfo}");
        }
    }
}
