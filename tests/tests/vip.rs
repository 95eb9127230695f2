//! Virtual addresses: of the service, no origin's own.
//!
//! Needs a built `sluice` (`SLUICE_BIN`, or the workspace's own).

use std::{net::SocketAddr, time::Duration};

use anyhow::Result;
use lab::{Daemon, Family, Fault, Lab, LabConfig, LabOptions, Load, LoadOptions, Record, now_ns, wait_until};

const ONE_LINK: LabOptions = LabOptions { two_links: false };
const SECOND: Duration = Duration::from_secs(1);
/// So many connections in a row show where traffic goes.
const RUN: usize = 50;
/// Failures that the figures allow a killed origin.
const FAILED_MAX: usize = 10;

fn wait_all_on(load: &Load, origin: char) -> Result<()> {
    let since = now_ns();
    wait_until(&format!("{RUN} connections in a row on {origin}"), 30 * SECOND, || {
        let mut fresh = load.pick(|record| record.start_ns > since);
        fresh.sort_by_key(|record| record.start_ns);
        let good = |record: &Record| record.outcome.is_ok() && record.origin == Some(origin);
        fresh.len() >= RUN && fresh.iter().rev().take(RUN).all(good)
    })
}

/// Nobody has these addresses: who reaches them was steered.
#[test]
fn a_virtual_address_is_served_by_its_pool_and_outlives_the_preferred_origin() -> Result<()> {
    for (family, vip) in [(Family::Ipv4, "198.51.100.10:80"), (Family::Ipv6, "[2001:db8:ff::10]:80")] {
        let mut lab = Lab::new(ONE_LINK)?;
        let mut daemon = Daemon::prepare(&lab, &LabConfig::of(&lab).only(family))?;
        let text = daemon.config_text(&LabConfig::of(&lab).only(family));
        let name = format!("name = \"{}\"\n", family.service());
        assert_eq!(text.matches(&name).count(), 1, "{text}");
        daemon.write_config(&text.replace(&name, &format!("{name}vips = [\"{vip}\"]\n")))?;
        daemon.start()?;
        let load = Load::start(&lab.node, LoadOptions::figures(vip.parse::<SocketAddr>()?))?;
        wait_all_on(&load, 'a')?;
        let fault_ns = lab.a.fail(Fault::Refused)?;
        wait_all_on(&load, 'b')?;
        lab.a.restore()?;
        wait_all_on(&load, 'a')?;
        let records = load.finish()?;
        let in_flight = |record: &Record| record.connected_ns().is_some_and(|at_ns| at_ns <= fault_ns);
        let failed = records.iter().filter(|record| !record.outcome.is_ok() && !in_flight(record)).count();
        assert!(failed <= FAILED_MAX, "{failed} of {} failed at {vip}", records.len());
        let maps = daemon.maps()?;
        assert!(maps.frontend(vip).is_some(), "`sluice maps` knows {vip}");
        daemon.stop()?;
    }
    Ok(())
}
