//! Tokens of SoftHSM.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, ensure};

use super::{Module, softhsm_library};

/// The user's PIN of every token. No other file of the project holds these letters, so that a test can look for them.
pub const PIN: &str = "tangerine-4711";
const SO_PIN: &str = "officer-0815";

/// What a probe can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// A pair on P-256.
    Ec,
    /// A pair of 2048 bits.
    Rsa,
    /// A key of 256 bits.
    Aes,
}

impl KeyKind {
    const fn arguments(self) -> [&'static str; 3] {
        match self {
            Self::Ec => ["--keypairgen", "--key-type", "EC:prime256v1"],
            Self::Rsa => ["--keypairgen", "--key-type", "RSA:2048"],
            Self::Aes => ["--keygen", "--key-type", "AES:32"],
        }
    }
}

/// A directory of SoftHSM with one token in it.
#[derive(Debug)]
pub struct SoftHsm {
    dir: PathBuf,
    label: String,
    serial: String,
}

impl SoftHsm {
    /// Makes a token called `label`, without keys, in the new directory `dir`.
    ///
    /// # Errors
    ///
    /// When SoftHSM isn't installed or refuses.
    pub fn create(dir: &Path, label: &str) -> Result<Self> {
        fs::create_dir_all(dir.join("tokens"))?;
        let mut token = Self { dir: dir.to_owned(), label: label.to_owned(), serial: String::new() };
        token.write_config()?;
        token.initialise()?;
        Ok(token)
    }

    /// The token called `label` that was made in `dir` before.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub fn open(dir: &Path, label: &str) -> Result<Self> {
        let mut token = Self { dir: dir.to_owned(), label: label.to_owned(), serial: String::new() };
        token.serial = token.read_serial()?;
        Ok(token)
    }

    /// Makes a copy of this token with a name and a serial number of its own in the new directory `dir`: PIN and keys are
    /// the same. It takes no program of SoftHSM's, each of which takes longer than most tests leave for it.
    ///
    /// # Errors
    ///
    /// When files can't be written, or SoftHSM's are not as this knows them.
    pub fn copy_to(&self, dir: &Path, label: &str) -> Result<Self> {
        static COPIES: AtomicU32 = AtomicU32::new(0x4000_0000);
        let from = self.folder()?;
        // SoftHSM numbers a slot by the last four bytes of the serial, which are also the last of the folder's name. Small
        // numbers are its empty slots'.
        let serial = format!("{}{:08x}", &self.serial[..8], COPIES.fetch_add(1, Ordering::Relaxed));
        let name = from.file_name().and_then(OsStr::to_str).context("a folder of letters")?;
        let name = format!("{}{}-{}", &name[..19], &serial[..4], &serial[4..]);
        let copy = Self { dir: dir.to_owned(), label: label.to_owned(), serial };
        let to = copy.dir.join("tokens").join(name);
        fs::create_dir_all(&to)?;
        copy.write_config()?;
        for entry in fs::read_dir(&from)? {
            let entry = entry?;
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
        let object = to.join("token.object");
        let mut bytes = fs::read(&object)?;
        let padded = |label: &str| format!("{label:32}").into_bytes();
        replace(&mut bytes, &padded(&self.label), &padded(&copy.label)).context("the label")?;
        replace(&mut bytes, self.serial.as_bytes(), copy.serial.as_bytes()).context("the serial number")?;
        fs::write(&object, bytes)?;
        copy.open_to_all()?;
        Ok(copy)
    }

    fn write_config(&self) -> Result<()> {
        let text = format!(
            "directories.tokendir = {}\nobjectstore.backend = file\nlog.level = ERROR\nslots.removable = false\n",
            self.dir.join("tokens").display()
        );
        Ok(fs::write(self.dir.join("softhsm2.conf"), text)?)
    }

    /// The one folder that SoftHSM keeps a token in.
    fn folder(&self) -> Result<PathBuf> {
        Ok(fs::read_dir(self.dir.join("tokens"))?.next().context("there is no token")??.path())
    }

    /// Makes a new token, beside what is there.
    fn initialise(&mut self) -> Result<()> {
        let mut command = Command::new("softhsm2-util");
        command.args(["--init-token", "--free", "--label", &self.label, "--so-pin", SO_PIN, "--pin", PIN]);
        self.run(command)?;
        self.serial = self.read_serial()?;
        self.open_to_all()
    }

    /// The last eight bytes of the folder's name, as SoftHSM draws one from the other.
    fn read_serial(&self) -> Result<String> {
        let folder = self.folder()?;
        let name = folder.file_name().and_then(OsStr::to_str).filter(|name| name.len() == 36 && name.is_ascii());
        let name = name.context("SoftHSM's folder has another name than it had")?;
        Ok(format!("{}{}", &name[19..23], &name[24..]))
    }

    /// Makes a key called `label`.
    ///
    /// # Errors
    ///
    /// When the tool isn't there or the token refuses.
    pub fn generate(&self, kind: KeyKind, label: &str) -> Result<()> {
        // One id for a label: what looks for a pair by its id finds both halves.
        let id = label.bytes().fold(String::new(), |id, byte| id + &format!("{byte:02x}"));
        let arguments = kind.arguments().into_iter().chain(["--label", label, "--id", &id]);
        self.tool(&arguments.collect::<Vec<_>>())?;
        self.open_to_all()
    }

    /// Deletes the keys called `label`.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub fn delete(&self, label: &str) -> Result<()> {
        for kind in ["privkey", "pubkey"] {
            self.tool(&["--delete-object", "--type", kind, "--label", label])?;
        }
        Ok(())
    }

    /// Writes the public key called `label` to a PEM file; returns its path.
    ///
    /// # Errors
    ///
    /// When there is no such key.
    pub fn public_key(&self, label: &str) -> Result<PathBuf> {
        let (der, pem) = (self.dir.join(format!("{label}.der")), self.dir.join(format!("{label}.pem")));
        let place = der.to_str().context("a path of letters")?;
        self.tool(&["--read-object", "--type", "pubkey", "--label", label, "--output-file", place])?;
        let mut base64 = Command::new("base64");
        base64.args(["--wrap", "64"]).arg(&der);
        let text = self.run(base64)?;
        fs::write(&pem, format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", text.trim()))?;
        Ok(pem)
    }

    /// Changes the user's PIN, as an officer does.
    ///
    /// # Errors
    ///
    /// When the token refuses.
    pub fn change_pin(&self, from: &str, to: &str) -> Result<()> {
        let mut command = self.bare_tool()?;
        command.args(["--login", "--pin", from, "--change-pin", "--new-pin", to]);
        self.run(command).map(drop)
    }

    /// Takes the token away.
    ///
    /// # Errors
    ///
    /// As [`fs::rename`].
    pub fn remove(&self) -> Result<()> {
        fs::rename(self.dir.join("tokens"), self.dir.join("away"))?;
        fs::create_dir(self.dir.join("tokens"))?;
        self.open_to_all()
    }

    /// Brings it back.
    ///
    /// # Errors
    ///
    /// When it wasn't taken away.
    pub fn restore(&self) -> Result<()> {
        fs::remove_dir_all(self.dir.join("tokens"))?;
        Ok(fs::rename(self.dir.join("away"), self.dir.join("tokens"))?)
    }

    /// Keeps a copy, for [`Self::roll_back`].
    ///
    /// # Errors
    ///
    /// When files can't be written.
    pub fn save(&self) -> Result<()> {
        self.copy("tokens", "saved")
    }

    /// Brings the token back to its copy: a server that was killed may have been writing it.
    ///
    /// # Errors
    ///
    /// When there is no copy.
    pub fn roll_back(&self) -> Result<()> {
        fs::remove_dir_all(self.dir.join("tokens"))?;
        self.copy("saved", "tokens")
    }

    fn copy(&self, from: &str, to: &str) -> Result<()> {
        let mut command = Command::new("cp");
        command.arg("-a").args([self.dir.join(from), self.dir.join(to)]);
        self.run(command).map(drop)
    }

    /// Its label.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Its serial number, which SoftHSM draws.
    #[must_use]
    pub fn serial(&self) -> &str {
        &self.serial
    }

    /// Its directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The one file that SoftHSM locks and reads before everything else.
    ///
    /// # Errors
    ///
    /// When the token isn't there.
    pub fn generation(&self) -> Result<PathBuf> {
        Ok(self.folder()?.join("generation"))
    }

    /// How programs reach it.
    ///
    /// # Errors
    ///
    /// When SoftHSM isn't installed.
    pub fn module(&self) -> Result<Module> {
        Ok(Module { library: softhsm_library()?.to_owned(), environment: vec![self.variable()] })
    }

    /// What SoftHSM's library reads from the environment.
    #[must_use]
    pub fn variable(&self) -> (&'static str, String) {
        ("SOFTHSM2_CONF", self.dir.join("softhsm2.conf").display().to_string())
    }

    /// Gives the files to `uid`, as whom a worker runs: SoftHSM rewrites the token at every login.
    ///
    /// # Errors
    ///
    /// Without root.
    pub fn give_to(&self, uid: u32) -> Result<()> {
        for path in walk(&self.dir)? {
            chown(&path, Some(uid), None)?;
        }
        Ok(())
    }

    /// SoftHSM makes its files for their owner only; workers run as somebody else.
    fn open_to_all(&self) -> Result<()> {
        for path in walk(&self.dir)? {
            let mode = if path.is_dir() { 0o777 } else { 0o666 };
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        }
        Ok(())
    }

    fn bare_tool(&self) -> Result<Command> {
        let mut command = Command::new("pkcs11-tool");
        command.arg("--module").arg(softhsm_library()?).args(["--token-label", &self.label]);
        Ok(command)
    }

    fn tool(&self, arguments: &[&str]) -> Result<String> {
        let mut command = self.bare_tool()?;
        command.args(["--login", "--pin", PIN]).args(arguments);
        self.run(command)
    }

    fn run(&self, mut command: Command) -> Result<String> {
        let (name, value) = self.variable();
        let output = command.env(name, value).output();
        let output = output.with_context(|| format!("cannot run {}", command.get_program().display()))?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{} failed: {}", command.get_program().display(), said.trim());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// Replaces the one place in `bytes` that holds `old`.
fn replace(bytes: &mut [u8], old: &[u8], new: &[u8]) -> Result<()> {
    let mut places = bytes.windows(old.len()).enumerate().filter(|(_, window)| *window == old).map(|(at, _)| at);
    let (at, others) = (places.next().context("it is not there")?, places.next());
    ensure!(others.is_none() && old.len() == new.len(), "it is there twice, or does not fit");
    bytes[at..at + new.len()].copy_from_slice(new);
    Ok(())
}

/// A directory and all that is in it.
fn walk(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found = vec![dir.to_owned()];
    let mut next = 0;
    while let Some(path) = found.get(next).cloned() {
        if path.is_dir() {
            for entry in fs::read_dir(&path)? {
                found.push(entry?.path());
            }
        }
        next += 1;
    }
    Ok(found)
}
