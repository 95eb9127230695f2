//! A slot under test: its token, the fault module before it, and how it is written into a configuration.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use lab::hsm::{FaultModule, KeyKind, PIN, SoftHsm};
use lab::is_long;

/// The key that checks use unless they say otherwise.
pub(crate) const KEY: &str = "sluice-probe";

/// Label of the tokens that others are copies of.
const PATTERN: &str = "pattern";

/// How much faster than the defaults the ordinary run is. Intervals, deadlines and what is expected shrink alike; with
/// `--long` they are the defaults.
const FASTER: u32 = 10;

/// A time of the acceptance checks, as this run has it.
pub(crate) fn paced(time: Duration) -> Duration {
    if is_long() { time } else { time / FASTER }
}

/// The same in a configuration.
pub(crate) fn text(time: Duration) -> String {
    format!("{}ms", paced(time).as_millis())
}

pub(crate) const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// One slot.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) token: SoftHsm,
    pub(crate) fault: FaultModule,
    pub(crate) pin_file: PathBuf,
    /// The pinned public key, if there is one of [`KEY`].
    pub(crate) public_key: Option<PathBuf>,
}

impl Slot {
    /// A token called `label` with `keys`, below `dir`.
    pub(crate) fn create(dir: &Path, label: &str, keys: &[(KeyKind, &str)]) -> Result<Self> {
        let pattern = pattern(dir, keys)?;
        let token = pattern.copy_to(&dir.join(format!("{label}-token")), label)?;
        let fault = FaultModule::before(&token, &dir.join(format!("{label}-fault")))?;
        let pin_file = dir.join(format!("{label}-pin"));
        write_pin(&pin_file, &format!("{PIN}\n"))?;
        let public_key = Some(pattern.dir().join(format!("{KEY}.pem"))).filter(|path| path.exists());
        Ok(Self { token, fault, pin_file, public_key })
    }

    /// Its origin in a configuration.
    pub(crate) fn origin_toml(&self, name: &str, address: SocketAddr) -> String {
        let module = self.fault.module();
        format!(
            "[[service.origin]]\nname = \"{name}\"\naddress = \"{address}\"\npkcs11 = {{ module = {:?}, serial = {:?}, env = {} }}\n",
            module.library.display().to_string(),
            self.token.serial(),
            module.environment_toml(),
        )
    }
}

/// The token with `keys` that those below `dir` are copies of. The first that needs it makes it.
fn pattern(dir: &Path, keys: &[(KeyKind, &str)]) -> Result<SoftHsm> {
    let names: Vec<String> = keys.iter().map(|(kind, key)| format!("-{kind:?}-{key}")).collect();
    let place = dir.join(format!("pattern{}", names.concat()));
    if place.exists() {
        return SoftHsm::open(&place, PATTERN);
    }
    let token = SoftHsm::create(&place, PATTERN)?;
    for (kind, key) in keys {
        token.generate(*kind, key)?;
        if *kind != KeyKind::Aes {
            token.public_key(key)?;
        }
    }
    Ok(token)
}

/// Writes a PIN file as it should be.
pub(crate) fn write_pin(path: &Path, pin: &str) -> Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, pin)?;
    fs::set_permissions(&new, fs::Permissions::from_mode(0o400))?;
    Ok(fs::rename(new, path)?)
}

/// The checks of a service: depth 2, and depth 3 if there is a `sign`.
#[derive(Clone, Debug)]
pub(crate) struct Checks {
    /// More keys of the check at depth 2.
    pub(crate) token: String,
    /// Keys of the check at depth 3; no such check if `None`.
    pub(crate) business: Option<String>,
    /// `fall` of the service.
    pub(crate) fall: u32,
    /// Of both checks.
    pub(crate) interval: Duration,
    pub(crate) clock: Duration,
    pub(crate) orphan_ttl: Duration,
}

impl Checks {
    /// Depth 2 alone, with the defaults of the acceptance checks.
    pub(crate) fn depth2() -> Self {
        Self {
            token: String::new(),
            business: None,
            fall: 2,
            interval: seconds(15),
            clock: seconds(10),
            orphan_ttl: seconds(60),
        }
    }

    /// With `sign_verify` on P-256 as well.
    pub(crate) fn signing(slot: &Slot) -> Self {
        let pinned =
            slot.public_key.as_ref().map_or(String::new(), |path| format!("public_key = \"{}\"\n", path.display()));
        Self::depth2().business("sign_verify", "ecdsa-sha256", &slot.pin_file, &pinned)
    }

    pub(crate) fn business(mut self, operation: &str, mechanism: &str, pin_file: &Path, more: &str) -> Self {
        self.business = Some(format!(
            "operation = \"{operation}\"\nkey = \"{KEY}\"\nmechanism = \"{mechanism}\"\npin_file = \"{}\"\n{more}",
            pin_file.display()
        ));
        self
    }

    /// Adds keys to the check at depth 2.
    pub(crate) fn with(mut self, keys: &str) -> Self {
        self.token.push_str(keys);
        self
    }

    /// As TOML, policy included.
    pub(crate) fn toml(&self) -> String {
        let Self { token, business, fall, interval, clock, orphan_ttl } = self;
        let deadlines = format!(
            "deadlines = {{ load = \"{}\", select = \"{}\", login = \"{}\", info = \"{}\", business = \"{}\", close = \"{}\" }}\n",
            text(seconds(10)),
            text(seconds(5)),
            text(seconds(15)),
            text(seconds(2)),
            text(seconds(5)),
            text(seconds(2)),
        );
        let common = format!(
            "type = \"pkcs11\"\ninterval = \"{}\"\ninterval_recover = \"{}\"\nconfirm = \"{}\"\norphan_ttl = \"{}\"\n{deadlines}",
            text(*interval),
            text(seconds(10)),
            text(seconds(2)),
            text(*orphan_ttl),
        );
        let mut toml = format!(
            "[[service.check]]\nname = \"token\"\n{common}clock = {{ interval = \"{}\", drift_max = \"5s\" }}\n{token}",
            text(*clock)
        );
        if let Some(business) = business {
            // Writing to a string cannot fail.
            write!(toml, "[[service.check]]\nname = \"sign\"\nneeds = [\"token\"]\n{common}{business}").ok();
        }
        write!(toml, "[service.policy]\nfall = {fall}\nhold_down = {{ base = \"100ms\", max = \"200ms\" }}\n").ok();
        toml
    }
}
