//! Real traffic in the lab, with Sluice and without it, in turns: nginx as the origin, wrk on the node.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lab::{Daemon, Family, Lab, LabConfig, LabOptions, run, stop, wait_until};

use super::{Traffic, stream};
use crate::build::target_dir;

/// Pairs of a run with and one without. Odd, for the median.
const ROUNDS: usize = 5;
const SECONDS: u32 = 3;
/// Kept connections of wrk; enough to keep one core of the origin busy, few enough to fit into every queue.
const CONNECTIONS: u32 = 16;
/// Of the big download. The origin's nginx has its own.
const STREAM_PORT: u16 = 9000;
const STATE_LIMIT: Duration = Duration::from_secs(15);

/// What is counted.
const NAMES: [&str; 3] = ["requests_per_s", "connections_per_s", "stream_bits_per_s"];

/// All three figures.
pub(super) fn measure(root: &Path) -> Result<Vec<Traffic>> {
    let lab = Lab::new(LabOptions { two_links: false })?;
    let mut samples = [const { (Vec::new(), Vec::new()) }; NAMES.len()];
    for round in 0..ROUNDS {
        // Which one goes first changes, so that a machine that gets slower or faster favours neither.
        for with in [round % 2 == 0, round % 2 != 0] {
            stop::check()?;
            eprintln!(
                "bench: traffic, round {} of {ROUNDS}, {} Sluice",
                round + 1,
                if with { "with" } else { "without" }
            );
            let figures = if with { with_sluice(&lab, root)? } else { figures(&lab)? };
            for (sample, figure) in samples.iter_mut().zip(figures) {
                if with { sample.0.push(figure) } else { sample.1.push(figure) }
            }
        }
    }
    let row = |(name, (with, without)): (&'static str, (Vec<f64>, Vec<f64>))| {
        let (with, without) = (median(with), median(without));
        Traffic { name, with, without, ratio: with / without }
    };
    Ok(NAMES.into_iter().zip(samples).map(row).collect())
}

/// The figures while a daemon of this build steers what the load uses.
fn with_sluice(lab: &Lab, root: &Path) -> Result<[f64; NAMES.len()]> {
    let config = LabConfig::of(lab);
    let mut daemon = Daemon::with_binary(lab, &config, target_dir(root).join("release/sluice"))?;
    let mut text = daemon.config_text(&config);
    let [a, b] = [stream_address(lab), SocketAddr::new(lab.origin_b(Family::Ipv4).ip(), STREAM_PORT)];
    // Writing to a string cannot fail. Nothing listens there between downloads, so it has no check that would say so.
    write!(
        text,
        "\n[[service]]\nname = \"stream\"\n[[service.origin]]\nname = \"a\"\naddress = \"{a}\"\n\
         [[service.origin]]\nname = \"b\"\naddress = \"{b}\"\npriority = 1\ncapacity_cps = 5000\n\
         [[service.check]]\nname = \"port\"\ntype = \"tcp\"\ninterval = \"1h\"\n"
    )
    .ok();
    daemon.write_config(&text)?;
    daemon.start()?;
    let healthy = |name| daemon.status().is_ok_and(|status| status.state("shop4", name) == Some("healthy"));
    wait_until("both origins are healthy", STATE_LIMIT, || healthy("a") && healthy("b"))
        .with_context(|| daemon.log_tail())?;
    let before = syns(&daemon)?;
    let figures = figures(lab)?;
    // Else the comparison would be one of nothing with nothing.
    ensure!(syns(&daemon)? > before + 1000, "Sluice did not see the load");
    Ok(figures)
}

fn syns(daemon: &Daemon) -> Result<u64> {
    Ok(daemon.maps()?.counters("shop4", "a").get("syn").copied().unwrap_or(0))
}

fn figures(lab: &Lab) -> Result<[f64; NAMES.len()]> {
    let requests = wrk(lab, &[])?;
    let connections = wrk(lab, &["-H", "Connection: close"])?;
    let address = stream_address(lab);
    let server = stream::serve(lab.a.namespace(), address)?;
    let bits = stream::download(&lab.node, address, Duration::from_secs(SECONDS.into()))?;
    server.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    Ok([requests, connections, bits])
}

fn stream_address(lab: &Lab) -> SocketAddr {
    SocketAddr::new(lab.origin_a(Family::Ipv4).ip(), STREAM_PORT)
}

/// Requests per second of wrk on the node.
fn wrk(lab: &Lab, more: &[&str]) -> Result<f64> {
    let url = format!("http://{}/", lab.origin_a(Family::Ipv4));
    let (connections, seconds) = (format!("-c{CONNECTIONS}"), format!("-d{SECONDS}s"));
    let mut arguments = vec!["-t1", &connections, &seconds];
    arguments.extend(more);
    arguments.push(&url);
    let text = run(&lab.node, "wrk", &arguments)?.success()?;
    rate(&text).with_context(|| format!("cannot read wrk's report, or it had errors: {text}"))
}

/// What wrk's report says, if it had no errors.
fn rate(report: &str) -> Option<f64> {
    let failed = ["Socket errors:", "Non-2xx"].iter().any(|words| report.contains(words));
    let rate = report.lines().find_map(|line| line.trim().strip_prefix("Requests/sec:"));
    rate.filter(|_| !failed)?.trim().parse().ok()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_with_errors_is_no_figure() {
        let good = "  100 requests in 1.00s, 1MB read\nRequests/sec:  12345.67\nTransfer/sec: 1MB\n";
        assert_eq!(rate(good), Some(12345.67));
        for words in ["Socket errors: connect 1, read 2, write 0, timeout 3", "Non-2xx or 3xx responses: 4"] {
            assert_eq!(rate(&format!("{good}  {words}\n")), None, "{words}");
        }
        assert_eq!(rate("unable to connect"), None);
    }

    #[test]
    fn the_median_is_the_one_in_the_middle() {
        assert!((median(vec![3.0, 1.0, 100.0]) - 3.0).abs() < f64::EPSILON);
        assert!(median(Vec::new()).is_nan());
    }
}
