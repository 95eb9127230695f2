//! What active checks cost: Sluice's daemon beside HAProxy, each with the same number of HTTP checks of as many addresses,
//! one after the other on the same machine. One nginx answers them all and writes down when each one was asked.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lab::{Daemon, Family, Lab, LabConfig, LabOptions, Process, spawn, stop, wait_until};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde::Serialize;

use crate::build::target_dir;

const INTERVAL_S: u64 = 5;
const COUNTS: [usize; 2] = [1000, 10_000];
/// Of `COUNTS[1]`, in the last run: they accept and never answer.
const HUNG: usize = 1000;
/// As many as the contract allows a service.
const ORIGINS_PER_SERVICE: usize = 64;
/// Two intervals: whatever a start costs is over, and every check has run.
const WARM_UP: Duration = Duration::from_secs(2 * INTERVAL_S);
/// Of most runs; and of the run that shows that nothing grows, in which 10^5 rounds end.
const MEASURE: Duration = Duration::from_secs(30);
const MEASURE_LONG: Duration = Duration::from_secs(55);
/// Where nginx answers, and where nobody does.
const PORT: u16 = 8080;
const PORT_HUNG: u16 = 8081;
/// Descriptors and memory of a run's end may exceed those of its beginning by so much: what is in flight sways.
const GROWTH_PERCENT: u64 = 10;
const READY_LIMIT: Duration = Duration::from_secs(30);

/// One run.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    system: &'static str,
    checks: usize,
    interval_s: u64,
    /// Processor time, in cores.
    cores: f64,
    /// Most resident memory.
    rss_mib: f64,
    /// 99 of 100 rounds began at most so late. Sluice by its own schedule (upper bound of a bucket); HAProxy, which has no
    /// jitter, by the gap between two checks of a server less its interval.
    late_p99_ms: f64,
    /// Checks that never answer; beyond the contract.
    hung: usize,
    /// Rounds that the server saw in the time measured.
    rounds: usize,
    /// Of the busiest second, to the mean.
    second_max_ratio: f64,
    /// Descriptors at the end less those at the beginning.
    descriptors_grew: i64,
}

/// All runs.
pub(super) fn measure(root: &Path) -> Result<Vec<Row>> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    let lab = Lab::new(LabOptions { two_links: false })?;
    // Every address of the prefix is the origin's own.
    lab.a.ns().ip("route add local 10.64.0.0/16 dev lo\n")?;
    lab.node.ip(&format!("route add 10.64.0.0/16 via {}\n", lab.origin_a(Family::Ipv4).ip()))?;
    let server = Server::start(&lab)?;
    let mut rows = Vec::new();
    for count in COUNTS {
        stop::check()?;
        let long = if count == COUNTS[1] { MEASURE_LONG } else { MEASURE };
        rows.push(sluice(&lab, root, &server, (count, 0), long)?);
        rows.push(haproxy(&lab, &server, count)?);
    }
    rows.push(sluice(&lab, root, &server, (COUNTS[1], HUNG), MEASURE)?);
    Ok(rows)
}

/// nginx with a log of when each address was asked, and a port that accepts and never answers.
struct Server {
    log: PathBuf,
    _nginx: Process,
}

impl Server {
    fn start(lab: &Lab) -> Result<Self> {
        let dir = lab.dir().join("bench-checks");
        fs::create_dir_all(&dir)?;
        let log = dir.join("access.log");
        let text = format!(
            "daemon off; worker_processes 1; worker_rlimit_nofile 65536; pid {0}/pid; error_log {0}/error.log;\n\
             events {{ worker_connections 32768; }}\nhttp {{ log_format at '$msec $server_addr'; access_log {1} at;\n\
             server {{ listen {PORT} backlog=16384; location / {{ return 200 'ok\\n'; }} }} }}\n",
            dir.display(),
            log.display()
        );
        let config = dir.join("nginx.conf");
        fs::write(&config, text)?;
        let mut command = Command::new("nginx");
        command.arg("-c").arg(&config).arg("-p").arg(&dir);
        let nginx = spawn(lab.a.ns(), command)?;
        wait_until("nginx listens", READY_LIMIT, || {
            lab.a.ns().enter(|| TcpStream::connect((Ipv4Addr::LOCALHOST, PORT)).is_ok()).unwrap_or(false)
        })
        .with_context(|| fs::read_to_string(dir.join("error.log")).unwrap_or_default())?;
        let listener = lab.a.ns().enter(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT_HUNG)))??;
        // Ends with this process.
        thread::spawn(move || hold(&listener));
        Ok(Self { log, _nginx: nginx })
    }

    /// From here on everything is new.
    fn mark(&self) -> Result<u64> {
        Ok(fs::metadata(&self.log)?.len())
    }

    /// When each address was asked since then. Unit: ms since 1970.
    fn since(&self, mark: u64) -> Result<BTreeMap<Ipv4Addr, Vec<u64>>> {
        use std::io::Seek as _;
        let mut file = File::open(&self.log)?;
        file.seek(io::SeekFrom::Start(mark))?;
        let mut asked: BTreeMap<Ipv4Addr, Vec<u64>> = BTreeMap::new();
        for line in BufReader::new(file).lines() {
            let line = line?;
            let Some((at, address)) = line.split_once(' ') else { continue };
            let (Ok(at), Ok(address)) = (at.replace('.', "").parse(), address.parse()) else { continue };
            asked.entry(address).or_default().push(at);
        }
        Ok(asked)
    }
}

/// Accepts and says nothing, until nobody can be waiting any more.
fn hold(listener: &TcpListener) {
    let mut held: Vec<(Instant, TcpStream)> = Vec::new();
    for connection in listener.incoming().flatten() {
        held.retain(|(since, _)| since.elapsed() < Duration::from_secs(INTERVAL_S));
        held.push((Instant::now(), connection));
    }
}

/// The address of check `n`.
fn address(n: usize) -> Ipv4Addr {
    let [_, _, high, low] = u32::try_from(n + 1).unwrap_or(u32::MAX).to_be_bytes();
    Ipv4Addr::new(10, 64, high, low)
}

fn sluice(lab: &Lab, root: &Path, server: &Server, (count, hung): (usize, usize), time: Duration) -> Result<Row> {
    eprintln!("bench: checks, sluice, {count}, {hung} of them hung");
    let config = LabConfig::of(lab);
    let mut daemon = Daemon::with_binary(lab, &config, target_dir(root).join("release/sluice"))?;
    let whole = daemon.config_text(&config);
    let mut text = whole.split("\n[[service]]").next().unwrap_or_default().to_owned();
    for first in (0..count).step_by(ORIGINS_PER_SERVICE) {
        let port = if first < hung { PORT_HUNG } else { PORT };
        // Writing to a string cannot fail.
        write!(text, "\n[[service]]\nname = \"s{first}\"\n").ok();
        for n in first..(first + ORIGINS_PER_SERVICE).min(count) {
            write!(text, "[[service.origin]]\nname = \"o{n}\"\naddress = \"{}:{PORT}\"\n", address(n)).ok();
        }
        write!(
            text,
            "[[service.check]]\ntype = \"http\"\nurl = \"http://shop.example:{port}/healthz\"\n\
             interval = \"{INTERVAL_S}s\"\ntimeout = \"2s\"\n"
        )
        .ok();
    }
    daemon.write_config(&text)?;
    daemon.start().with_context(|| daemon.log_tail())?;
    let pid = daemon.pid().context("the daemon has ended")?;
    thread::sleep(WARM_UP);
    let late_before = lateness(&daemon)?;
    let run = Run::of(server, pid, time)?;
    let late_p99_ms = late_p99(&late_before, &lateness(&daemon)?);
    let row = run.row("sluice", (count, hung), late_p99_ms);
    daemon.stop()?;
    ensure!(run.asked.len() >= count - hung - ORIGINS_PER_SERVICE, "only {} addresses were asked", run.asked.len());
    if hung == 0 {
        run.has_not_grown()?;
    }
    Ok(row)
}

/// Rounds by upper bound of their lateness, cumulated. Unit of the bound: s.
fn lateness(daemon: &Daemon) -> Result<Vec<(f64, f64)>> {
    let text = daemon.metrics()?;
    let buckets = text.as_str().lines().filter_map(|line| {
        let (bound, count) = line.strip_prefix("sluice_check_lateness_seconds_bucket{le=\"")?.split_once("\"} ")?;
        Some((bound.replace("+Inf", "inf").parse().ok()?, count.trim().parse().ok()?))
    });
    Ok(buckets.collect())
}

fn late_p99(before: &[(f64, f64)], after: &[(f64, f64)]) -> f64 {
    // The buckets are the same ones, in the same order; before the first round there are none.
    let base = |place: usize| before.get(place).map_or(0.0, |(_, count)| *count);
    let new: Vec<(f64, f64)> =
        after.iter().enumerate().map(|(place, &(bound, count))| (bound, count - base(place))).collect();
    let all = new.last().map_or(0.0, |(_, count)| *count);
    new.iter().find(|(_, count)| *count >= all * 0.99).map_or(f64::NAN, |(bound, _)| bound * 1000.0)
}

fn haproxy(lab: &Lab, server: &Server, count: usize) -> Result<Row> {
    eprintln!("bench: checks, haproxy, {count}");
    let dir = lab.dir().join("bench-checks");
    let mut text = format!(
        "global\n  maxconn 1000\ndefaults\n  mode http\n  timeout connect 2s\n  timeout client 5s\n  timeout server 5s\n  \
         timeout check 2s\nfrontend none\n  bind 127.0.0.1:18404\nbackend origins\n  option httpchk\n  http-check send meth GET uri /healthz ver HTTP/1.1 hdr Host \
         shop.example\n  http-check expect status 200-299\n  default-server inter {INTERVAL_S}s\n"
    );
    for n in 0..count {
        // Writing to a string cannot fail.
        writeln!(text, "  server s{n} {}:{PORT} check", address(n)).ok();
    }
    let config = dir.join(format!("haproxy-{count}.cfg"));
    fs::write(&config, text)?;
    let mark = server.mark()?;
    let mut command = Command::new("haproxy");
    let log = File::create(dir.join("haproxy.log"))?;
    command.arg("-db").arg("-f").arg(&config).stdout(log.try_clone()?).stderr(log);
    let mut process = spawn(&lab.node, command)?;
    wait_until("haproxy checks", READY_LIMIT, || server.mark().is_ok_and(|now| now > mark))
        .with_context(|| fs::read_to_string(dir.join("haproxy.log")).unwrap_or_default())?;
    thread::sleep(WARM_UP);
    let run = Run::of(server, process.pid(), MEASURE)?;
    process.kill()?;
    let mut late: Vec<u64> = run
        .asked
        .values()
        .flat_map(|times| times.windows(2).map(|pair| (pair[1] - pair[0]).saturating_sub(INTERVAL_S * 1000)))
        .collect();
    late.sort_unstable();
    #[allow(clippy::cast_precision_loss, reason = "milliseconds of a run")]
    let late_p99_ms = late.get(late.len() * 99 / 100).map_or(f64::NAN, |late| *late as f64);
    Ok(run.row("haproxy", (count, 0), late_p99_ms))
}

/// A process watched for a while.
struct Run {
    asked: BTreeMap<Ipv4Addr, Vec<u64>>,
    seconds: f64,
    cpu_seconds: f64,
    /// At the beginning, and at the end.
    rss_kib: [u64; 2],
    descriptors: [u64; 2],
}

impl Run {
    fn of(server: &Server, pid: u32, time: Duration) -> Result<Self> {
        let (mark, began) = (server.mark()?, Instant::now());
        let cpu = cpu_ticks(pid)?;
        let before = (rss_kib(pid)?, least_descriptors(pid)?);
        while began.elapsed() < time {
            stop::check()?;
            thread::sleep(Duration::from_millis(200));
        }
        let (cpu, seconds) = (cpu_ticks(pid)? - cpu, began.elapsed().as_secs_f64());
        let after = (rss_kib(pid)?, least_descriptors(pid)?);
        // The usual clock of Linux's accounts, USER_HZ, is 100 a second on every architecture that we build for.
        #[allow(clippy::cast_precision_loss, reason = "ticks of a run")]
        let cpu_seconds = cpu as f64 / 100.0;
        let asked = server.since(mark)?;
        Ok(Self { asked, seconds, cpu_seconds, rss_kib: [before.0, after.0], descriptors: [before.1, after.1] })
    }

    #[allow(clippy::cast_precision_loss, reason = "counts of a run")]
    fn row(&self, system: &'static str, (checks, hung): (usize, usize), late_p99_ms: f64) -> Row {
        let rounds: usize = self.asked.values().map(Vec::len).sum();
        let mut seconds: BTreeMap<u64, usize> = BTreeMap::new();
        for at in self.asked.values().flatten() {
            *seconds.entry(at / 1000).or_default() += 1;
        }
        // The first and the last one are not whole.
        let whole: Vec<usize> = seconds.values().copied().skip(1).take(seconds.len().saturating_sub(2)).collect();
        let mean = whole.iter().sum::<usize>() as f64 / whole.len().max(1) as f64;
        let most = whole.iter().max().copied().unwrap_or(0) as f64;
        let hundredths = |value: f64| (value * 100.0).round() / 100.0;
        Row {
            system,
            checks,
            interval_s: INTERVAL_S,
            cores: (self.cpu_seconds / self.seconds * 1000.0).round() / 1000.0,
            rss_mib: hundredths(self.rss_kib[1].max(self.rss_kib[0]) as f64 / 1024.0),
            late_p99_ms,
            hung,
            rounds,
            second_max_ratio: hundredths(most / mean),
            descriptors_grew: i64::try_from(self.descriptors[1]).unwrap_or(0)
                - i64::try_from(self.descriptors[0]).unwrap_or(0),
        }
    }

    /// After two warm intervals and many rounds the process holds what it held.
    fn has_not_grown(&self) -> Result<()> {
        for (what, [before, after]) in [("KiB of memory", self.rss_kib), ("descriptors", self.descriptors)] {
            let most = before + (before * GROWTH_PERCENT / 100).max(64);
            ensure!(after <= most, "{before} {what} became {after} in a run of checks");
        }
        Ok(())
    }
}

/// User and system time. Unit: USER_HZ.
fn cpu_ticks(pid: u32) -> Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name before the bracket may hold blanks. utime and stime are fields 14 and 15 (proc_pid_stat(5)).
    let fields: Vec<&str> = stat.rsplit_once(')').context("a line of stat")?.1.split_whitespace().collect();
    let field = |n: usize| -> Result<u64> { Ok(fields.get(n - 3).context("a field of stat")?.parse()?) };
    Ok(field(14)? + field(15)?)
}

fn rss_kib(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").trim().parse()?)
}

/// The fewest of ten looks: rounds in flight come and go.
fn least_descriptors(pid: u32) -> Result<u64> {
    let mut least = u64::MAX;
    for _ in 0..10 {
        let now = fs::read_dir(format!("/proc/{pid}/fd"))?.count();
        least = least.min(u64::try_from(now).unwrap_or(u64::MAX));
        thread::sleep(Duration::from_millis(20));
    }
    Ok(least)
}

/// For people, on standard error.
pub(super) fn show(rows: &[Row]) -> io::Result<()> {
    let mut out = io::stderr().lock();
    writeln!(
        out,
        "\nHTTP checks each {INTERVAL_S} s. Budget for 10,000: 0.60 cores, 300 MiB, late 50 ms, busiest second 1.5.\n\n\
         {:<9}{:>8}{:>6}{:>8}{:>9}{:>10}{:>9}{:>9}",
        "system", "checks", "hung", "cores", "rss MiB", "late p99", "rounds", "busiest"
    )?;
    for row in rows {
        writeln!(
            out,
            "{:<9}{:>8}{:>6}{:>8.3}{:>9.1}{:>8} ms{:>9}{:>9.2}",
            row.system, row.checks, row.hung, row.cores, row.rss_mib, row.late_p99_ms, row.rounds, row.second_max_ratio
        )?;
    }
    Ok(())
}
