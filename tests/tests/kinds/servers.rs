//! Real servers, each in the namespace of its test.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use lab::{Namespace, Process, spawn, wait_until};
use nix::unistd::{Group, User};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair};

const START_LIMIT: Duration = Duration::from_secs(20);

/// A namespace and a folder that servers under other users may read.
pub(crate) struct Place {
    pub(crate) ns: Namespace,
    folder: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new(name: &str) -> Result<Self> {
        lab::require_root()?;
        let folder = tempfile::tempdir()?;
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
        Ok(Self { ns: Namespace::new(name)?, folder })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.path(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    /// Starts a server and waits until it listens.
    pub(crate) fn start(&self, mut command: Command, port: u16) -> Result<Process> {
        let log = fs::File::create(self.path(&format!("{port}.log")))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).current_dir(self.folder.path());
        let server = spawn(&self.ns, command)?;
        let listens = || self.ns.enter(|| TcpStream::connect(("127.0.0.1", port)).is_ok()).unwrap_or(false);
        wait_until("the server listens", START_LIMIT, listens).with_context(|| self.log(port))?;
        Ok(server)
    }

    pub(crate) fn log(&self, port: u16) -> String {
        fs::read_to_string(self.path(&format!("{port}.log"))).unwrap_or_default()
    }
}

/// An authority and what it signs, in PEM.
pub(crate) struct Authority {
    certificate: rcgen::Certificate,
    key: KeyPair,
}

impl Authority {
    pub(crate) fn new() -> Result<Self> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name.push(DnType::CommonName, "Sluice's lab");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate()?;
        Ok(Self { certificate: params.self_signed(&key)?, key })
    }

    pub(crate) fn pem(&self) -> String {
        self.certificate.pem()
    }

    /// Certificate and key for a name, good for `days` from now; an expired one if that is negative.
    pub(crate) fn sign(&self, name: &str, days: i64) -> Result<(String, String)> {
        let mut params = CertificateParams::new(vec![name.to_owned()])?;
        params.distinguished_name.push(DnType::CommonName, name);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
        let at = |days: i64| {
            let seconds = now.saturating_add_signed(days * 86_400);
            rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds)
        };
        (params.not_before, params.not_after) = (at(-90), at(days));
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.certificate, &self.key)?;
        Ok((certificate.pem(), key.serialize_pem()))
    }
}

/// nginx: clear text on 8080, TLS on 8443 (good), 8444 (expired) and 8445 (wants a client certificate).
pub(crate) fn nginx(place: &Place, authority: &Authority) -> Result<Process> {
    place.write("ca.pem", &authority.pem())?;
    for (name, days) in [("good", 90), ("old", -1)] {
        let (certificate, key) = authority.sign("shop.example", days)?;
        place.write(&format!("{name}.pem"), &certificate)?;
        place.write(&format!("{name}.key"), &key)?;
    }
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|kind| format!("  {kind}_temp_path {kind}_temp;\n"))
        .collect::<Vec<_>>()
        .concat();
    let locations = "
        location = /healthz { default_type application/json; return 200 '{\"db\":\"ok\",\"queue\":{\"depth\":12}}'; }
        location = /old { return 301 /healthz; }
        location = /secure { return 302 https://shop.example/; }
        location = /busy { return 429; }
        location = /down { return 503; }
        location = /forbidden { add_header X-Guard waf always; return 403; }
        location = /login { add_header Set-Cookie \"session=abc; Path=/\"; return 200 '{\"ok\":true}'; }
        location = /pay { if ($http_cookie !~ session=abc) { return 403; } return 204; }
        location = /large { root .; }";
    let tls = |port: u16, name: &str, more: &str| {
        format!(
            "  server {{ listen {port} ssl http2; server_name shop.example; ssl_certificate {name}.pem; \
             ssl_certificate_key {name}.key; {more} {locations} }}\n"
        )
    };
    let servers = [
        tls(8443, "good", ""),
        tls(8444, "old", ""),
        tls(8445, "good", "ssl_client_certificate ca.pem; ssl_verify_client on;"),
    ];
    place.write("large", &"x".repeat(2 << 20))?;
    place.write(
        "nginx.conf",
        &format!(
            "daemon off;\nmaster_process off;\nuser root;\npid nginx.pid;\nevents {{}}\nhttp {{\n  access_log off;\n{temporary}  \
             server {{ listen 127.0.0.1:8080; listen [::1]:8080; {locations} }}\n{}}}\n",
            servers.concat()
        ),
    )?;
    let mut command = Command::new("nginx");
    command.arg("-p").arg(place.path("")).args(["-c", "nginx.conf", "-e", "stderr"]);
    place.start(command, 8080)
}

/// BIND with one zone, on port 5300.
pub(crate) fn bind(place: &Place) -> Result<Process> {
    let zone = "$TTL 60\n@ SOA ns.shop.example. root.shop.example. 1 60 60 60 60\n@ NS ns\nns A 192.0.2.53\nwww A 192.0.2.1\nwww \
                A 192.0.2.2\nwww AAAA 2001:db8::1\n@ MX 10 mail\n@ TXT \"v=spf1 -all\"\nbig TXT";
    // Longer than a datagram: it is cut off, and asked for again over TCP.
    let big = (0..8).map(|n| format!(" \"{n}{}\"", "x".repeat(200))).collect::<Vec<_>>().concat();
    let zone = place.write("zone", &format!("{zone}{big}\n"))?;
    let folder = place.path("");
    let config = place.write(
        "named.conf",
        &format!(
            "options {{ directory \"{folder}\"; pid-file none; session-keyfile none; listen-on port 5300 {{ 127.0.0.1; }}; \
             listen-on-v6 {{ none; }}; recursion no; }};\ncontrols {{}};\nzone \"shop.example\" {{ type primary; file \"{zone}\"; \
             }};\n",
            folder = folder.display(),
            zone = zone.display()
        ),
    )?;
    let mut command = Command::new("named");
    command.arg("-g").arg("-c").arg(config).args(["-n", "1"]);
    place.start(command, 5300)
}

/// Postfix, on port 2525, with STARTTLS; and on 2526 one that refuses everybody.
pub(crate) fn postfix(place: &Place, authority: &Authority) -> Result<Process> {
    let (certificate, key) = authority.sign("mail.example", 90)?;
    place.write("ca.pem", &authority.pem())?;
    place.write("mail.pem", &certificate)?;
    place.write("mail.key", &key)?;
    let owner = User::from_name("postfix")?.context("no user postfix: run `cargo xtask setup`")?;
    let drop = Group::from_name("postdrop")?.context("no group postdrop: run `cargo xtask setup`")?;
    let (owner, drop) = (Some(owner.uid.as_raw()), Some(drop.gid.as_raw()));
    let queues = "active bounce corrupt defer deferred flush hold incoming private saved trace pid maildrop public";
    for name in queues.split(' ') {
        let path = place.path("queue").join(name);
        fs::create_dir_all(&path)?;
        match name {
            "pid" => {}
            "maildrop" | "public" => chown(&path, owner, drop)?,
            _ => chown(&path, owner, None)?,
        }
    }
    fs::create_dir(place.path("data"))?;
    chown(place.path("data"), owner, None)?;
    let folder = place.path("");
    let folder: &Path = folder.as_ref();
    place.write(
        "main.cf",
        &format!(
            "compatibility_level = 3.6\nqueue_directory = {0}/queue\ndata_directory = {0}/data\nmail_owner = postfix\n\
             inet_interfaces = 127.0.0.1\ninet_protocols = ipv4\nmyhostname = mail.example\nmydestination =\nalias_maps =\n\
             alias_database =\nlocal_recipient_maps =\nsmtpd_peername_lookup = no\nsmtpd_tls_cert_file = {0}/mail.pem\n\
             smtpd_tls_key_file = {0}/mail.key\nsmtpd_tls_security_level = may\nsmtpd_tls_session_cache_database =\n",
            folder.display().to_string().trim_end_matches('/')
        ),
    )?;
    place.write(
        "master.cf",
        "2525 inet n - n - - smtpd\n2526 inet n - n - - smtpd -o smtpd_delay_reject=no -o smtpd_client_restrictions=reject\n\
         anvil unix - - n - 1 anvil\ntlsmgr unix - - n 1000? 1 tlsmgr\nrewrite unix - - n - - trivial-rewrite\n\
         proxymap unix - - n - - proxymap\ncleanup unix n - n - 0 cleanup\n",
    )?;
    let mut command = Command::new("/usr/lib/postfix/sbin/master");
    command.arg("-c").arg(folder).arg("-d");
    place.start(command, 2525)
}

/// `openssl s_server` on that port, with these arguments.
pub(crate) fn openssl(place: &Place, port: u16, arguments: &[&str]) -> Result<Process> {
    let mut command = Command::new("openssl");
    command.args(["s_server", "-quiet", "-accept", &port.to_string()]).args(arguments);
    place.start(command, port)
}
