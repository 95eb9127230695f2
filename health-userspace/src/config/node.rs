//! `[node]` and `[control]`.

use super::{
    model::{
        Bypass, CgroupSetting, ControlConfig, Detail, InterfacePattern, Limits, MetricsConfig, NodeConfig, Prefix,
    },
    read::{At, Section},
};
use health_common::{NONE, SECOND_PASS_MARK, map::Name};
use health_core::{governor::Limits as Governor, model::Mode};
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
};

/// Longest name of a network interface (`IFNAMSIZ` without its end).
const INTERFACE_CHARS_MAX: usize = 15;
/// Longest path of a Unix socket (`sun_path` without its end).
const SOCKET_PATH_BYTES_MAX: usize = 107;
/// Longest name of a node, service, origin or check: a DNS label's length, and short enough for a line of output.
pub(super) const NAME_CHARS_MAX: usize = 63;
/// Numbers of origins and of frontends are 16 bits wide and begin at 0; the last, [`NONE`], is none. One below it, so
/// that a count of them is never [`NONE`] either.
pub(super) const IDS_MAX: u32 = NONE as u32 - 1;
/// Users and cgroups that the kernel's map `bypass` holds: its size in `health-ebpf/src/maps.rs`.
pub(super) const BYPASS_MAX: usize = 256;
/// Namespaces that the kernel's map `namespaces` holds beside the daemon's own, likewise.
pub(super) const NETNS_MAX: usize = 63;
/// Mark of Sluice's checks, and of other sockets that are never steered, where the file says nothing.
const MARK_DEFAULT: u32 = 0x5311;
/// 64 Mi entries; the flow table alone would take 9 GiB.
const ENTRIES_MAX: u32 = 1 << 26;

// A name in the kernel's map ends with a zero; the default mark is one that may be written.
const _: () = assert!(NAME_CHARS_MAX < size_of::<Name>() && MARK_DEFAULT & SECOND_PASS_MARK == 0);

/// The words of `mode`.
pub(super) const MODES: &[(&str, Mode)] = &[("enforce", Mode::Enforce), ("observe", Mode::Observe)];
/// The words of `origin_detail`.
pub(super) const ORIGIN_DETAILS: &[(&str, Detail)] =
    &[("all", Detail::Full), ("states", Detail::Brief), ("off", Detail::Off)];
/// The words of `histograms`.
pub(super) const HISTOGRAMS: &[(&str, Detail)] =
    &[("origin", Detail::Full), ("service", Detail::Brief), ("off", Detail::Off)];

/// Reads `[node]`.
pub(super) fn node(section: &Section<'_>) -> NodeConfig {
    let interfaces = interfaces(section);
    NodeConfig {
        name: node_name(section),
        client_interfaces: patterns(section, "client_interfaces"),
        xdp: xdp(section, &interfaces),
        interfaces,
        cgroup: cgroup(section),
        netns: netns(section),
        mode: section.choice("mode", MODES).unwrap_or(Mode::Enforce),
        state_dir: path(section, "state_dir", "/var/lib/sluice"),
        pin_dir: path(section, "pin_dir", "/sys/fs/bpf/sluice"),
        redirect_allow: redirect_allow(section),
        bypass: bypass(&section.table("bypass")),
        limits: limits(&section.table("limits")),
        governor: governor(&section.table("governor")),
        metrics: metrics(&section.table("metrics")),
    }
}

/// Reads `[control]`.
pub(super) fn control(section: &Section<'_>) -> ControlConfig {
    let socket = path(section, "socket", "/run/sluice/control.sock");
    if socket.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
        let message =
            format!("`socket` is longer than {SOCKET_PATH_BYTES_MAX} bytes, the most that a Unix socket can be");
        section.error("socket", message, "choose a shorter path");
    }
    ControlConfig { listen: listen(section), socket }
}

fn listen(section: &Section<'_>) -> SocketAddr {
    let default = SocketAddr::from((Ipv4Addr::LOCALHOST, 9911));
    let Some(text) = section.text("listen", "127.0.0.1:9911") else { return default };
    let Ok(address) = text.value.parse::<SocketAddr>() else {
        let message = format!("`listen` is no address: \"{}\"", text.value.escape_debug());
        section.error("listen", message, "write an IP address and a port, for example listen = \"127.0.0.1:9911\"");
        return default;
    };
    if address.port() == 0 {
        section.error("listen", "`listen` has port 0", "write a port from 1 to 65535");
    }
    if !address.ip().is_loopback() {
        section.sink().warning(
            text.at,
            format!("`listen` = {address} can be reached from outside, without TLS or tokens"),
            "listen on 127.0.0.1, or let a firewall admit only those who collect metrics",
        );
    }
    address
}

fn node_name(section: &Section<'_>) -> String {
    if let Some(text) = section.text("name", "scrub-1") {
        let good = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if text.value.is_empty() || text.value.len() > NAME_CHARS_MAX || !text.value.chars().all(good) {
            let message = format!("`name` cannot be \"{}\"", text.value.escape_debug());
            let fix = format!("use letters, digits, `.`, `_` and `-`, at most {NAME_CHARS_MAX} of them");
            section.error("name", message, fix);
        }
        return text.value.to_owned();
    }
    let host = nix::unistd::gethostname().ok().and_then(|host| host.into_string().ok());
    host.filter(|host| !host.is_empty()).unwrap_or_else(|| "node".to_owned())
}

fn interfaces(section: &Section<'_>) -> Vec<InterfacePattern> {
    let fix = "name the interfaces that lead to the origins, for example interfaces = [\"eth1\", \"gre-*\"]";
    let Some(list) = section.texts("interfaces", "eth1") else {
        if section.get("interfaces").is_none() {
            section.error("interfaces", "`[node]` names no interface", fix);
        }
        return Vec::new();
    };
    if list.is_empty() {
        section.error("interfaces", "`interfaces` is empty", fix);
    }
    read_patterns(section, &list)
}

fn patterns(section: &Section<'_>, key: &str) -> Vec<InterfacePattern> {
    section.texts(key, "eth0").map_or_else(Vec::new, |list| read_patterns(section, &list))
}

/// Observation is the origin-facing side's: what is observed at XDP is one of those, and TC goes on steering there.
fn xdp(section: &Section<'_>, interfaces: &[InterfacePattern]) -> Vec<InterfacePattern> {
    let Some(list) = section.texts("xdp", "eth1") else { return Vec::new() };
    let patterns = read_patterns(section, &list);
    for (pattern, text) in patterns.iter().zip(&list) {
        if !interfaces.iter().any(|listed| listed.covers(pattern)) {
            let message = format!("`xdp` names \"{}\", which `interfaces` does not", text.value.escape_debug());
            section.sink().error(text.at.clone(), message, "add it to interfaces, or remove it here");
        }
    }
    patterns
}

fn read_patterns(section: &Section<'_>, list: &[At<&str>]) -> Vec<InterfacePattern> {
    for text in list {
        let literal = text.value.chars().filter(|&c| c != '*').count();
        let bad = |c: char| c.is_whitespace() || c.is_control() || c == '/';
        if text.value.is_empty() || literal > INTERFACE_CHARS_MAX || text.value.contains(bad) {
            let message = format!("\"{}\" is no name of an interface", text.value.escape_debug());
            section.sink().error(
                text.at.clone(),
                message,
                "write a name as `ip link` shows it, or a glob such as \"gre-*\"",
            );
        }
    }
    list.iter().map(|text| InterfacePattern(text.value.to_owned())).collect()
}

fn cgroup(section: &Section<'_>) -> CgroupSetting {
    match section.text("cgroup", "auto").map(|text| text.value) {
        None | Some("auto") => CgroupSetting::Auto,
        Some("") => CgroupSetting::Off,
        Some(text) if is_path(text) => CgroupSetting::Path(PathBuf::from(text)),
        Some(text) => {
            let message = format!("`cgroup` cannot be \"{}\"", text.escape_debug());
            section.error("cgroup", message, "write \"auto\", the full path of a cgroup, or \"\" to steer no sockets");
            CgroupSetting::Auto
        }
    }
}

fn netns(section: &Section<'_>) -> Vec<PathBuf> {
    let list = section.texts("netns", "/run/netns/blue").unwrap_or_default();
    for text in list.iter().filter(|text| !is_path(text.value)) {
        let message = format!("\"{}\" is no full path", text.value.escape_debug());
        section.sink().error(text.at.clone(), message, "write a path, for example \"/run/netns/blue\"");
    }
    if list.len() > NETNS_MAX {
        let message = format!("`netns` names {} namespaces; {NETNS_MAX} is the most", list.len());
        section.error("netns", message, "remove some; the daemon's own is steered without being named");
    }
    list.iter().map(|text| PathBuf::from(text.value)).collect()
}

fn path(section: &Section<'_>, key: &str, default: &str) -> PathBuf {
    let Some(text) = section.text(key, default) else { return PathBuf::from(default) };
    if !is_path(text.value) {
        let message = format!("`{key}` is no full path: \"{}\"", text.value.escape_debug());
        section.error(key, message, format!("write a path from the root, for example {key} = \"{default}\""));
    }
    PathBuf::from(text.value)
}

fn is_path(text: &str) -> bool {
    Path::new(text).is_absolute() && !text.contains('\0')
}

fn redirect_allow(section: &Section<'_>) -> Vec<Prefix> {
    let Some(list) = section.texts("redirect_allow", "10.0.0.0/8") else { return Vec::new() };
    if list.is_empty() {
        section.error(
            "redirect_allow",
            "`redirect_allow` is empty, which would allow no origin at all",
            "list the prefixes of the origins, or remove the key to allow every address",
        );
    }
    list.iter().filter_map(|text| prefix(section, text)).collect()
}

fn prefix(section: &Section<'_>, text: &At<&str>) -> Option<Prefix> {
    let parsed = text.value.split_once('/').and_then(|(address, length)| {
        let address: IpAddr = address.parse().ok()?;
        let max = if address.is_ipv4() { 32 } else { 128 };
        let digits = !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit());
        let length = length.parse().ok().filter(|&length: &u8| digits && length <= max)?;
        Some(Prefix { address, length })
    });
    let Some(prefix) = parsed else {
        let message = format!("\"{}\" is no address prefix", text.value.escape_debug());
        section.sink().error(text.at.clone(), message, "write, for example, \"10.0.0.0/8\" or \"2001:db8::/32\"");
        return None;
    };
    let first = network(prefix);
    if first != prefix.address {
        let message = format!("{prefix} has bits set behind its length");
        let fix = format!("write \"{first}/{}\"", prefix.length);
        section.sink().error(text.at.clone(), message, fix);
        return None;
    }
    Some(prefix)
}

/// The prefix's first address.
fn network(prefix: Prefix) -> IpAddr {
    match prefix.address {
        IpAddr::V4(address) => {
            let shift = 32_u32.saturating_sub(u32::from(prefix.length));
            let mask = u32::MAX.checked_shl(shift).unwrap_or(0);
            IpAddr::from((u32::from(address) & mask).to_be_bytes())
        }
        IpAddr::V6(address) => {
            let shift = 128_u32.saturating_sub(u32::from(prefix.length));
            let mask = u128::MAX.checked_shl(shift).unwrap_or(0);
            IpAddr::from((u128::from(address) & mask).to_be_bytes())
        }
    }
}

fn bypass(section: &Section<'_>) -> Bypass {
    let uids = match section.get("uids").map(|value| (value, value.get_ref().as_array())) {
        None => Vec::new(),
        Some((_, Some(list))) => list.iter().filter_map(|uid| section.number_of("uids", uid, 0, u32::MAX)).collect(),
        Some((value, None)) => {
            section.sink().error(value.span(), "`uids` is not a list", "write, for example, uids = [33]");
            Vec::new()
        }
    };
    let cgroups = section.texts("cgroups", "/sluice-direct");
    for text in cgroups.iter().flatten().filter(|text| !is_path(text.value)) {
        let message = format!("\"{}\" is no cgroup", text.value.escape_debug());
        section.sink().error(
            text.at.clone(),
            message,
            "write its path below the cgroup mount, for example \"/sluice-direct\"",
        );
    }
    let cgroups = cgroups.map_or_else(
        || vec!["/sluice-direct".to_owned()],
        |list| list.iter().map(|text| text.value.to_owned()).collect(),
    );
    let entries = uids.len() + cgroups.len();
    if entries > BYPASS_MAX {
        let message = format!("`bypass` has {entries} users and cgroups; {BYPASS_MAX} is the most");
        section.sink().error(
            section.at(),
            message,
            "name a cgroup above several of them, or give their sockets the mark",
        );
    }
    Bypass { mark: bypass_mark(section), uids, cgroups }
}

/// Packets of a socket whose mark has the datapath's own bit would look as if they had been rewritten already, and would
/// lose the bit.
fn bypass_mark(section: &Section<'_>) -> u32 {
    let mark = section.number("mark", 1, u32::MAX).unwrap_or(MARK_DEFAULT);
    if mark & SECOND_PASS_MARK != 0 {
        let message =
            format!("`bypass.mark` is {mark:#x}: its bit {SECOND_PASS_MARK:#x} is Sluice's own, for rewritten packets");
        section.error("mark", message, format!("write a mark without that bit, for example {MARK_DEFAULT:#x}"));
    }
    mark
}

fn limits(section: &Section<'_>) -> Limits {
    Limits {
        origins: section.number("origins", 1, IDS_MAX).unwrap_or(10_000),
        frontends: section.number("frontends", 1, IDS_MAX).unwrap_or(10_000),
        half_open: section.number("half_open", 1024, ENTRIES_MAX).unwrap_or(262_144),
        flows: section.number("flows", 1024, ENTRIES_MAX).unwrap_or(1_048_576),
        moved: section.number("moved", 1024, ENTRIES_MAX).unwrap_or(262_144),
        checks_per_s: section.number("checks_per_s", 1, 1_000_000).unwrap_or(4000),
    }
}

fn governor(section: &Section<'_>) -> Governor {
    let usual = Governor::default();
    Governor {
        causes_at_once: section.number("causes_at_once", 1, u16::MAX).unwrap_or(usual.causes_at_once),
        moves_per_min: section.number("moves_per_min", 1, u16::MAX).unwrap_or(usual.moves_per_min),
        per_standby_at_once: section.number("per_standby_at_once", 1, u16::MAX).unwrap_or(usual.per_standby_at_once),
    }
}

fn metrics(section: &Section<'_>) -> MetricsConfig {
    MetricsConfig {
        origin_detail: section.choice("origin_detail", ORIGIN_DETAILS).unwrap_or(Detail::Brief),
        histograms: section.choice("histograms", HISTOGRAMS).unwrap_or(Detail::Brief),
    }
}
