//! Debian's kernels, from the mirror that this machine's own apt uses. Apt's state is a private one in the cache, so that
//! the machine's is not changed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use crate::command;

/// Releases whose kernels are of interest: the oldest one that we promise, and all newer ones.
const SUITES: [&str; 6] = ["bookworm", "bookworm-backports", "trixie", "trixie-backports", "sid", "experimental"];

/// Debian's keys, where its package of that name puts them.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

const PREFIX: &str = "linux-image-";
const SUFFIX: &str = "-cloud-amd64";

/// After that long, the lists are fetched again.
const LISTS_AGE_MAX: Duration = Duration::from_hours(24);

/// What the guest needs and Debian builds as modules, in the order in which they go in.
const MODULES: [&str; 5] = ["veth", "sch_ingress", "cls_bpf", "inet_diag", "tcp_diag"];

/// A kernel's package.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Package {
    /// The numbers of its name: what it is sorted by.
    numbers: Vec<u32>,
    /// `linux-image-6.12.117+deb13-cloud-amd64`.
    pub(super) name: String,
}

/// A kernel on the disk.
#[derive(Clone, Debug)]
pub(super) struct Image {
    /// Debian's version of the package.
    pub(super) version: String,
    pub(super) vmlinuz: PathBuf,
    /// In the order in which they go in; what is built in has no file.
    pub(super) modules: Vec<PathBuf>,
}

impl Package {
    fn parse(name: &str) -> Option<Self> {
        let version = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
        let numbers: Vec<u32> = version
            .split(|letter: char| !letter.is_ascii_digit())
            .filter(|part| !part.is_empty())
            .map_while(|part| part.parse().ok())
            .collect();
        (numbers.len() >= 2).then(|| Self { numbers, name: name.to_owned() })
    }

    /// Such as `6.12`.
    pub(super) fn series(&self) -> String {
        self.numbers.iter().take(2).map(u32::to_string).collect::<Vec<_>>().join(".")
    }
}

/// The mirror, through apt.
#[derive(Debug)]
pub(super) struct Mirror {
    home: PathBuf,
}

impl Mirror {
    /// Finds it, and fetches its lists if those in the cache are old.
    pub(super) fn open(cache: &Path) -> Result<Self> {
        let home = cache.join("kernels");
        for folder in ["state/lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(home.join(folder)).with_context(|| format!("cannot write {}", home.display()))?;
        }
        let mirror = Self { home };
        let targets = command::output(command::foreign("apt-get").args([
            "indextargets",
            "--format",
            "$(ORIGIN)|$(LABEL)|$(RELEASE)|$(COMPONENT)|$(REPO_URI)",
            "Created-By: Packages",
        ]))
        .context("kernels come from Debian's packages, by this machine's apt")?;
        let uri = mirror_of(&targets)
            .context("this machine's apt knows no mirror of Debian (if it should: run `apt-get update` first)")?;
        let sources = sources(uri, Path::new(KEYRING).exists());
        let (list, stamp) = (mirror.home.join("sources.list"), mirror.home.join("updated"));
        let same = fs::read_to_string(&list).is_ok_and(|before| before == sources);
        let age = fs::metadata(&stamp).and_then(|meta| meta.modified()).ok().and_then(|then| then.elapsed().ok());
        if !same || age.is_none_or(|age| age > LISTS_AGE_MAX) {
            eprintln!("kernels: fetching the package lists of {}", SUITES.join(", "));
            fs::write(&list, sources)?;
            fs::write(mirror.home.join("status"), "")?;
            command::output(mirror.apt("apt-get").arg("update"))?;
            fs::write(&stamp, "")?;
        }
        Ok(mirror)
    }

    fn apt(&self, program: &str) -> Command {
        let mut apt = command::foreign(program);
        apt.env("LC_ALL", "C").current_dir(&self.home).arg("-qq");
        let home = self.home.display();
        for option in [
            format!("Dir::State={home}/state"),
            format!("Dir::State::status={home}/status"),
            format!("Dir::Cache={home}/cache"),
            format!("Dir::Etc::SourceList={home}/sources.list"),
            "Dir::Etc::SourceParts=/dev/null".to_owned(),
            // Its user may not read a home directory, and nothing is installed.
            "APT::Sandbox::User=root".to_owned(),
            "Acquire::Languages=none".to_owned(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
        ] {
            apt.args(["-o", &option]);
        }
        apt
    }

    /// The newest kernel of each series, oldest series first.
    pub(super) fn newest(&self) -> Result<Vec<Package>> {
        let names = command::output(self.apt("apt-cache").args(["pkgnames", PREFIX]))?;
        Ok(newest_of_each(&names))
    }

    /// Takes a kernel from the cache, or downloads and unpacks it.
    pub(super) fn image(&self, package: &Package) -> Result<Image> {
        let shown = command::output(self.apt("apt-cache").args(["--no-all-versions", "show", &package.name]))?;
        let version = field(&shown, "Version").context("apt shows no version")?.to_owned();
        let place = self.home.join(format!("{}_{version}", package.name));
        if !place.join("vmlinuz").exists() {
            // Since 7.0 the package holds nothing itself.
            let parts = field(&shown, "Depends").unwrap_or_default().split(", ").filter_map(|dependency| {
                let name = dependency.split(' ').next()?;
                (name.starts_with("linux-binary-") || name.starts_with("linux-modules-")).then(|| name.to_owned())
            });
            let packages: Vec<_> = [package.name.clone()].into_iter().chain(parts).collect();
            self.unpack(&packages, &place)?;
        }
        let mut modules = Vec::new();
        for name in MODULES {
            modules.extend(find(&place.join("modules"), |file| file.split(".ko").next() == Some(name))?);
        }
        Ok(Image { version, vmlinuz: place.join("vmlinuz"), modules })
    }

    fn unpack(&self, packages: &[String], place: &Path) -> Result<()> {
        eprintln!("kernels: downloading {}", packages.join(", "));
        let folder = tempfile::tempdir_in(&self.home)?;
        command::output(self.apt("apt-get").arg("download").args(packages).current_dir(folder.path()))?;
        for archive in find(folder.path(), |file| has_extension(file, "deb"))? {
            command::output(command::foreign("dpkg-deb").arg("-x").arg(archive).arg(folder.path().join("tree")))?;
        }
        // What is cached is complete: it gets its name at the end.
        let kept = folder.path().join("kept");
        fs::create_dir_all(kept.join("modules"))?;
        let tree = folder.path().join("tree");
        let images = find(&tree, is_kernel)?;
        let image = images.first().with_context(|| format!("{} hold no kernel", packages.join(", ")))?;
        fs::rename(image, kept.join("vmlinuz"))?;
        for module in find(&tree, |file| MODULES.iter().any(|name| file.split(".ko").next() == Some(*name)))? {
            let name = module.file_name().context("it was found by its name")?;
            fs::rename(&module, kept.join("modules").join(name))?;
        }
        if place.exists() {
            bail!("{} is broken: remove it", place.display());
        }
        Ok(fs::rename(kept, place)?)
    }
}

/// `/boot/vmlinuz-VERSION`; since Debian's 7.0, `vmlinuz` beside the modules.
fn is_kernel(file: &str) -> bool {
    file == "vmlinuz" || file.starts_with("vmlinuz-")
}

fn has_extension(file: &str, extension: &str) -> bool {
    Path::new(file).extension().is_some_and(|found| found == extension)
}

/// Files below `folder` whose name is wanted.
fn find(folder: &Path, wanted: impl Fn(&str) -> bool + Copy) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.extend(find(&entry.path(), wanted)?);
        } else if wanted(&entry.file_name().to_string_lossy()) {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// The mirror of Debian's own archive among what apt is configured for: `origin|label|release|component|URI` a line. The
/// archive of security updates has another label and other suites.
fn mirror_of(targets: &str) -> Option<&str> {
    targets.lines().find_map(|line| match line.split('|').collect::<Vec<_>>()[..] {
        ["Debian", "Debian", _, "main", uri] => Some(uri),
        _ => None,
    })
}

fn sources(uri: &str, keyring: bool) -> String {
    let options = if keyring { format!("[signed-by={KEYRING}] ") } else { String::new() };
    SUITES.map(|suite| format!("deb {options}{uri} {suite} main\n")).concat()
}

fn newest_of_each(names: &str) -> Vec<Package> {
    let mut packages: Vec<_> = names.lines().filter_map(Package::parse).collect();
    packages.sort();
    packages.reverse();
    packages.dedup_by_key(|package| package.series());
    packages.reverse();
    packages
}

/// A field of apt's description of a package.
fn field<'a>(shown: &'a str, name: &str) -> Option<&'a str> {
    shown.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

/// The kernels that are asked for, or those that every change should hold on: three long-lived ones and the newest.
pub(super) fn choose(all: &[Package], asked: &[String], usual: &[&str]) -> Result<Vec<Package>> {
    let known = || all.iter().map(Package::series).collect::<Vec<_>>().join(", ");
    let of = |series: &str| all.iter().find(|package| package.series() == series).cloned();
    let mut chosen = Vec::new();
    for series in asked.iter().map(String::as_str).chain(usual.iter().copied().filter(|_| asked.is_empty())) {
        chosen.push(of(series).with_context(|| format!("the mirror has no kernel {series}, but {}", known()))?);
    }
    if asked.is_empty() {
        chosen.extend(all.last().cloned());
    }
    chosen.dedup();
    ensure!(!chosen.is_empty(), "the mirror has no kernels");
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: &str = "linux-image-6.1.0-47-cloud-amd64\nlinux-image-6.1.0-50-cloud-amd64\n\
                         linux-image-6.1.0-50-cloud-amd64-unsigned\nlinux-image-cloud-amd64\n\
                         linux-image-6.12.95+deb12-cloud-amd64\nlinux-image-6.12.117+deb13-cloud-amd64\n\
                         linux-image-6.12.117+deb13-amd64\nlinux-image-6.18.15+deb13-cloud-amd64\n\
                         linux-image-7.3-cloud-amd64\nlinux-image-7.3.4+deb13-cloud-amd64\n";

    fn names(packages: &[Package]) -> Vec<&str> {
        packages.iter().map(|package| package.name.as_str()).collect()
    }

    #[test]
    fn each_series_gives_its_newest() {
        let newest = newest_of_each(NAMES);

        assert_eq!(
            names(&newest),
            [
                "linux-image-6.1.0-50-cloud-amd64",
                "linux-image-6.12.117+deb13-cloud-amd64",
                "linux-image-6.18.15+deb13-cloud-amd64",
                "linux-image-7.3.4+deb13-cloud-amd64"
            ]
        );
        assert_eq!(newest.iter().map(Package::series).collect::<Vec<_>>(), ["6.1", "6.12", "6.18", "7.3"]);
    }

    #[test]
    fn the_usual_ones_and_the_newest_are_chosen() {
        let all = newest_of_each(NAMES);

        let usual = choose(&all, &[], &["6.1", "6.12"]).expect("they are there");
        assert_eq!(usual.iter().map(Package::series).collect::<Vec<_>>(), ["6.1", "6.12", "7.3"]);
        let asked = choose(&all, &["6.18".to_owned()], &["6.1", "6.12"]).expect("it is there");
        assert_eq!(asked.iter().map(Package::series).collect::<Vec<_>>(), ["6.18"]);
        let error = choose(&all, &["5.10".to_owned()], &[]).unwrap_err();
        assert_eq!(error.to_string(), "the mirror has no kernel 5.10, but 6.1, 6.12, 6.18, 7.3");
    }

    #[test]
    fn debian_itself_is_told_from_what_lies_beside_it() {
        let targets = "Google|cloud|cloud|main|https://a.example/apt/\nDebian|Debian-Security|x-security|main|\
                       http://b.example/debian-security/\nDebian|Debian|x|main|http://b.example/debian/\n";

        assert_eq!(mirror_of(targets), Some("http://b.example/debian/"));
        assert_eq!(mirror_of("|||main|http://b.example/debian/\n"), None, "never updated");
    }

    #[test]
    fn the_kernel_is_found_where_either_layout_has_it() {
        assert!(is_kernel("vmlinuz") && is_kernel("vmlinuz-6.12.117+deb13-cloud-amd64"));
        assert!(!is_kernel("vmlinux.h") && !is_kernel("veth.ko.xz"));
    }

    #[test]
    fn a_field_is_read() {
        let shown = "Package: x\nVersion: 7.3.4-1~bpo13+1\nDepends: kmod, linux-binary-x (= 1)\n";

        assert_eq!(field(shown, "Version"), Some("7.3.4-1~bpo13+1"));
        assert_eq!(field(shown, "Size"), None);
    }
}
