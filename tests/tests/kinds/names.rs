//! Origins by name, resolved by a real name server.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use lab::{Daemon, Family, HTTP_PORT, Lab, LabConfig, LabOptions, Namespace, Process, wait_until};
use nix::sys::signal::Signal;

const PATIENCE: Duration = Duration::from_secs(20);
/// The daemon looks names up each 30 s.
const BY_ITSELF: Duration = Duration::from_secs(90);

/// BIND on the node, which the node's programs ask.
struct Names<'a> {
    lab: &'a Lab,
    named: Process,
}

impl<'a> Names<'a> {
    fn start(lab: &'a Lab, address: IpAddr) -> Result<Self> {
        let folder = lab.dir().join("names");
        std::fs::create_dir_all(&folder)?;
        zone(lab, 1, address)?;
        let shown = folder.display();
        std::fs::write(
            folder.join("named.conf"),
            format!(
                "options {{ directory \"{shown}\"; pid-file none; session-keyfile none; listen-on port 53 {{ 127.0.0.1; }}; \
                 listen-on-v6 {{ none; }}; recursion no; }};\ncontrols {{}};\nzone \"shop.example\" {{ type primary; file \
                 \"{shown}/zone\"; }};\n"
            ),
        )?;
        std::fs::write(folder.join("resolv.conf"), "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")?;
        lab.node.resolve_by(&folder.join("resolv.conf"))?;
        let mut command = Command::new("named");
        command.args(["-g", "-n", "1", "-c"]).arg(folder.join("named.conf"));
        let log = std::fs::File::create(folder.join("log"))?;
        command.stdout(log.try_clone()?).stderr(log);
        let named = lab::spawn(&lab.node, command)?;
        wait_until("BIND answers", PATIENCE, || asked(&lab.node).is_ok_and(|found| found == address))
            .with_context(|| std::fs::read_to_string(folder.join("log")).unwrap_or_default())?;
        Ok(Self { lab, named })
    }

    /// From now on the name stands for this address.
    fn change(&self, serial: u32, address: IpAddr) -> Result<()> {
        zone(self.lab, serial, address)?;
        self.named.signal(Signal::SIGHUP)?;
        wait_until("BIND has read its zone again", PATIENCE, || {
            asked(&self.lab.node).is_ok_and(|found| found == address)
        })
    }
}

fn zone(lab: &Lab, serial: u32, address: IpAddr) -> Result<()> {
    let kind = if address.is_ipv4() { "A" } else { "AAAA" };
    let text = format!(
        "$TTL 1\n@ SOA ns.shop.example. root.shop.example. {serial} 60 60 60 1\n@ NS ns\nns A 127.0.0.1\norigin {kind} {address}\n"
    );
    Ok(std::fs::write(lab.dir().join("names/zone"), text)?)
}

/// What the node's own programs find.
fn asked(node: &Namespace) -> Result<IpAddr> {
    let found = lab::run(node, "getent", &["ahosts", "origin.shop.example"])?.success()?;
    Ok(found.split_whitespace().next().context("an address")?.parse()?)
}

/// States that an origin went through, newest last, as the events tell.
fn states(daemon: &Daemon, origin: &str) -> Result<Vec<(u64, String)>> {
    let of =
        |event: lab::Event| (event.what == "state" && event.object == origin).then_some((event.at_ns, event.detail));
    Ok(daemon.events()?.into_iter().filter_map(of).collect())
}

#[test]
fn a_name_that_stands_for_another_address_is_an_unproven_origin() -> Result<()> {
    let lab = Lab::new(LabOptions { two_links: false })?;
    let (a, b) = (lab.origin_a(Family::Ipv4).ip(), lab.origin_b(Family::Ipv4).ip());
    let names = Names::start(&lab, a)?;
    let config = LabConfig::of(&lab).bare();
    let mut daemon = Daemon::prepare(&lab, &config)?;
    let mut text = daemon.config_text(&config);
    write!(
        text,
        "[[service]]\nname = \"shop\"\n[[service.origin]]\nname = \"a\"\naddress = \"origin.shop.example:{HTTP_PORT}\"\n\
         [[service.check]]\ntype = \"http\"\nurl = \"http://shop.example/healthz\"\ninterval = \"500ms\"\n"
    )?;
    daemon.write_config(&text)?;
    daemon.start()?;
    let stands = |address: IpAddr, state: &str| {
        let status = daemon.status().ok();
        let origin = status.as_ref().and_then(|status| status.origin("shop", "a"));
        origin.is_some_and(|origin| {
            origin.address == format!("{address}:{HTTP_PORT}") && origin.state.as_deref() == Some(state)
        })
    };
    wait_until("the first address is healthy", PATIENCE, || stands(a, "healthy"))?;
    names.change(2, b)?;
    // A reload looks at once; by itself the daemon looks twice a minute.
    if lab::is_long() {
        wait_until("the daemon has looked again", BY_ITSELF, || stands(b, "healthy"))?;
        let moved = daemon.events()?.into_iter().find(|event| event.what == "resolved");
        let moved = moved.context("an event `resolved`")?;
        assert_eq!(moved.detail, format!("{a}:{HTTP_PORT} > {b}:{HTTP_PORT}, unproven"));
    } else {
        daemon.cli(&["reload"])?.success()?;
        wait_until("the second address is healthy", PATIENCE, || stands(b, "healthy"))?;
    }
    let proven = states(&daemon, "shop/a")?;
    let begun: Vec<_> = proven.iter().filter(|(_, detail)| detail.starts_with("unknown > healthy")).collect();
    assert_eq!(begun.len(), 2, "the second address had to prove itself as the first had: {proven:?}");
    // P26 (e): a name server that says nothing holds up no check, and takes no address away.
    names.named.signal(Signal::SIGSTOP)?;
    let passed = || {
        let labels = [("service", "shop"), ("origin", "a"), ("result", "pass")];
        daemon.metrics().ok().and_then(|metrics| metrics.value("sluice_check_total", &labels)).unwrap_or_default()
    };
    let before = passed();
    let reloaded = daemon.cli(&["reload"]);
    wait_until("checks go on", PATIENCE, || passed() >= before + 4.0)?;
    assert!(stands(b, "healthy"), "{reloaded:?}: {:?}", daemon.status());
    names.named.signal(Signal::SIGCONT)?;
    Ok(())
}
