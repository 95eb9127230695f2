//! A checked configuration, written out again with every default.

use super::{
    failback::window_text,
    kind::CheckKind,
    latency::FAULT_RULES,
    model::{
        CapacityScope, CgroupSetting, CheckConfig, CheckPlan, Config, Detail, NodeConfig, OriginConfig, ServiceConfig,
        SigningConfig, SigningKey,
    },
    node::{HISTOGRAMS, MODES, ORIGIN_DETAILS},
    pkcs11::{self, Depth},
    policy::{MOVES, ON_FAULTS, OVERFLOWS, RETURN_PATHS},
    read::time_text,
    service::BALANCES,
};
use health_core::{
    Span,
    model::Family,
    policy::{Approval, Failback, Latency, Learned, Mitigation, Policy, SamplesMin, StateWeights, SuccessBelow},
};
use std::fmt::{Display, Write};

/// Lines of TOML.
#[derive(Default)]
pub(super) struct Out(String);

impl Out {
    pub(super) fn header(&mut self, header: &str) {
        if !self.0.is_empty() {
            self.0.push('\n');
        }
        self.line(format_args!("{header}"));
    }

    pub(super) fn key(&mut self, key: &str, value: impl Display) {
        self.line(format_args!("{key} = {value}"));
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        self.0.write_fmt(line).unwrap_or_default();
        self.0.push('\n');
    }
}

impl Config {
    /// The whole configuration as TOML, every default filled in. Reads back as the same configuration.
    #[must_use]
    pub fn resolved(&self) -> String {
        let mut out = Out::default();
        node(&mut out, &self.node);
        out.header("[control]");
        out.key("listen", text(&self.control.listen.to_string()));
        out.key("socket", text(&self.control.socket.to_string_lossy()));
        for signing in &self.signing {
            self::signing(&mut out, signing);
        }
        for service in &self.services {
            self::service(&mut out, service);
        }
        out.0
    }
}

fn node(out: &mut Out, node: &NodeConfig) {
    out.header("[node]");
    out.key("name", text(&node.name));
    out.key("interfaces", texts(node.interfaces.iter().map(super::InterfacePattern::as_str)));
    out.key("client_interfaces", texts(node.client_interfaces.iter().map(super::InterfacePattern::as_str)));
    out.key("xdp", texts(node.xdp.iter().map(super::InterfacePattern::as_str)));
    let cgroup = match &node.cgroup {
        CgroupSetting::Auto => "auto".into(),
        CgroupSetting::Path(path) => path.to_string_lossy(),
        CgroupSetting::Off => "".into(),
    };
    out.key("cgroup", text(&cgroup));
    out.key("netns", texts(node.netns.iter().map(|path| path.to_string_lossy())));
    out.key("mode", text(word(MODES, node.mode)));
    out.key("state_dir", text(&node.state_dir.to_string_lossy()));
    out.key("pin_dir", text(&node.pin_dir.to_string_lossy()));
    if !node.redirect_allow.is_empty() {
        out.key("redirect_allow", texts(node.redirect_allow.iter().map(ToString::to_string)));
    }
    let (mark, uids) = (node.bypass.mark, list(&node.bypass.uids));
    out.key("bypass", format_args!("{{ mark = {mark:#x}, uids = {uids}, cgroups = {} }}", texts(&node.bypass.cgroups)));
    out.header("[node.limits]");
    let limits = node.limits;
    out.key("origins", limits.origins);
    out.key("frontends", limits.frontends);
    out.key("half_open", limits.half_open);
    out.key("flows", limits.flows);
    out.key("moved", limits.moved);
    out.key("checks_per_s", limits.checks_per_s);
    out.header("[node.governor]");
    out.key("causes_at_once", node.governor.causes_at_once);
    out.key("moves_per_min", node.governor.moves_per_min);
    out.key("per_standby_at_once", node.governor.per_standby_at_once);
    out.header("[node.metrics]");
    out.key("origin_detail", text(word::<Detail>(ORIGIN_DETAILS, node.metrics.origin_detail)));
    out.key("histograms", text(word::<Detail>(HISTOGRAMS, node.metrics.histograms)));
}

fn service(out: &mut Out, service: &ServiceConfig) {
    out.header("[[service]]");
    out.key("name", text(&service.name));
    out.key("mode", text(word(MODES, service.mode)));
    out.key("vips", texts(service.vips.iter().map(ToString::to_string)));
    out.key("balance", text(word(BALANCES, service.balance)));
    out.key("guard", service.guard);
    for origin in &service.origins {
        self::origin(out, origin);
    }
    for check in &service.checks {
        self::check(out, check);
    }
    policy(out, &service.policy);
}

fn origin(out: &mut Out, origin: &OriginConfig) {
    out.header("[[service.origin]]");
    out.key("name", text(&origin.name));
    match &origin.host {
        None => out.key("address", text(&origin.address.to_string())),
        Some(host) => {
            out.key("address", text(&format!("{}:{}", host.name, host.port)));
            if let Some(family) = host.family {
                out.key("family", text(if family == Family::V4 { "ipv4" } else { "ipv6" }));
            }
        }
    }
    out.key("priority", origin.tier);
    out.key("weight", origin.weight);
    out.key("guard", origin.guard);
    if let Some(cps) = origin.capacity_cps {
        out.key("capacity_cps", cps);
    }
    if let Some(conns) = origin.capacity_conns {
        out.key("capacity_conns", conns);
    }
    let scope = match origin.capacity_scope {
        CapacityScope::Node => "node",
        CapacityScope::Cluster => "cluster",
    };
    out.key("capacity_scope", text(scope));
    if let Some(partition) = &origin.pkcs11 {
        out.key("pkcs11", pkcs11::partition(partition));
    }
}

fn check(out: &mut Out, check: &CheckConfig) {
    // The check of a clock stands in the file as a key of another.
    if matches!(&check.kind, CheckKind::Pkcs11(rule) if rule.depth == Depth::Clock) {
        return;
    }
    out.header("[[service.check]]");
    out.key("name", text(&check.name));
    out.key("type", text(check.kind.name()));
    out.key("interval", time(check.interval));
    if !matches!(check.kind, CheckKind::Pkcs11(_)) {
        out.key("timeout", time(check.timeout));
    }
    if let Some(slow) = check.slow {
        out.key("slow", time(slow));
    }
    plan(out, &check.plan);
    check.kind.write(out);
}

fn plan(out: &mut Out, plan: &CheckPlan) {
    let CheckPlan { fast, recover, max, needs, critical, verify, source, sign } = plan;
    out.key("interval_fast", time(*fast));
    out.key("interval_recover", time(*recover));
    out.key("interval_max", time(*max));
    out.key("needs", texts(needs));
    out.key("critical", critical);
    out.key("verify", verify);
    let address = source.address.map(|address| format!("address = {}", text(&address.to_string())));
    let interface = source.interface.as_ref().map(|interface| format!("interface = {}", text(interface)));
    let source: Vec<_> = address.into_iter().chain(interface).collect();
    if !source.is_empty() {
        out.key("source", format_args!("{{ {} }}", source.join(", ")));
    }
    if let Some(sign) = sign {
        out.key("sign", text(&sign.name));
    }
}

fn signing(out: &mut Out, signing: &SigningConfig) {
    out.header(&format!("[signing.{}]", text(&signing.name)));
    out.key("header", text(signing.header.as_str()));
    out.key("use", text(&signing.key.id));
    let key = |key: &SigningKey| format!("{{ id = {}, file = {} }}", text(&key.id), text(&key.file.to_string_lossy()));
    let keys: Vec<_> = signing.keys.iter().map(key).collect();
    out.key("keys", format_args!("[{}]", keys.join(", ")));
}

fn policy(out: &mut Out, policy: &Policy) {
    // Taken apart, so that a new threshold can't be forgotten here.
    let Policy {
        fall,
        rise,
        passive,
        rescue,
        window,
        samples_min,
        success_below_percent: success,
        state_weight_percent: weight,
        hold_down,
        response_timeout,
        syn_timeout,
        sockets,
        return_path,
        failback,
        min_usable_percent,
        panic_percent: _,
        overflow,
        moves: _,
        on_fault: _,
        stalled_for: _,
        reset_after: _,
        resets_per_s: _,
        trip,
        fault_rule,
        latency,
        mitigation,
        reset_spread_min: _, // follows from the others
    } = policy;
    out.header("[service.policy]");
    out.key("fall", fall);
    out.key("rise", rise);
    out.key("passive", passive);
    out.key("rescue", rescue);
    out.key("window", time(*window));
    floors(out, *samples_min, *success, *weight);
    out.key("hold_down", format_args!("{{ base = {}, max = {} }}", time(hold_down.base), time(hold_down.max)));
    match response_timeout {
        Some(learned) => out.key("response_timeout", self::learned(*learned)),
        None => out.key("response_timeout", "{ off = true }"),
    }
    let Learned { learn, min, initial, max } = *syn_timeout;
    let (min, initial, max) = (time(min), time(initial), time(max));
    let sockets = format!("sockets = {}, sockets_min = {}", sockets.set, time(sockets.min));
    let text = format!("{{ learn = {learn}, min = {min}, initial = {initial}, max = {max}, {sockets} }}");
    out.key("syn_timeout", text);
    out.key("return_path", self::text(word(RETURN_PATHS, *return_path)));
    out.key("overflow", self::text(word(OVERFLOWS, *overflow)));
    out.key("min_usable_percent", min_usable_percent);
    out.key("fault_rule", self::text(word(FAULT_RULES, *fault_rule)));
    moves(out, policy);
    self::failback(out, failback);
    self::latency(out, *latency);
    self::mitigation(out, mitigation);
    out.header("[service.policy.trip]");
    out.key("kernel", trip.kernel);
    out.key("after", trip.after);
    out.key("within", time(trip.within));
    out.key("spread_min", trip.spread_min);
    out.key("silence_min", time(trip.silence_min));
    out.key("on_5xx", trip.on_5xx);
    out.key("half_open_after", time(trip.half_open_after));
    out.key("half_open_max", time(trip.half_open_max));
    out.key("max_percent", trip.max_percent);
}

/// Volume floors, rates and weights of states.
fn floors(out: &mut Out, samples_min: SamplesMin, success: SuccessBelow, weight: StateWeights) {
    let (passive, active) = (samples_min.passive, samples_min.active);
    out.key("samples_min", format_args!("{{ passive = {passive}, active = {active} }}"));
    let (degraded, high_risk, fault) = (success.degraded, success.high_risk, success.fault);
    let text = format!("{{ degraded = {degraded}, high_risk = {high_risk}, fault = {fault} }}");
    out.key("success_below_percent", text);
    let (unknown, healthy) = (weight.unknown, weight.healthy);
    let (degraded, high_risk, fault) = (weight.degraded, weight.high_risk, weight.fault);
    let text = format!(
        "{{ unknown = {unknown}, healthy = {healthy}, degraded = {degraded}, high_risk = {high_risk}, fault = {fault} }}"
    );
    out.key("state_weight_percent", text);
}

/// What becomes of flows when they must leave.
fn moves(out: &mut Out, policy: &Policy) {
    out.key("panic_percent", policy.panic_percent);
    out.key("move", text(word(MOVES, policy.moves)));
    out.key("on_fault", text(word(ON_FAULTS, policy.on_fault)));
    out.key("stalled_for", time(policy.stalled_for));
    out.key("reset_after", time(policy.reset_after));
    out.key("resets_per_s", policy.resets_per_s);
}

fn failback(out: &mut Out, failback: &Failback) {
    let Failback { observe_for, stages, stage_for, approval, approval_expires, window, canary } = failback;
    out.header("[service.policy.failback]");
    out.key("observe_for", time(*observe_for));
    out.key("stages", format_args!("{stages:?}"));
    out.key("stage_for", time(*stage_for));
    out.key("approval", text(if *approval == Approval::Auto { "auto" } else { "manual" }));
    match approval {
        Approval::Auto => {}
        Approval::FirstStage => out.key("approve", text("first_stage")),
        Approval::EachStage => out.key("approve", text("each_stage")),
    }
    out.key("approval_expires", time(*approval_expires));
    if let Some(window) = window {
        out.key("window", text(&window_text(window)));
    }
    let (fail, ttfb, flows) = (canary.fail_over_standby_percent, canary.ttfb_factor_percent, canary.flows_min);
    out.key(
        "canary",
        format_args!("{{ fail_over_standby_percent = {fail}, ttfb_factor_percent = {ttfb}, flows_min = {flows} }}"),
    );
}

fn latency(out: &mut Out, latency: Latency) {
    let Latency { learn, history, degraded, buckets, samples_min, high_risk } = latency;
    out.header("[service.policy.latency]");
    out.key("learn", learn);
    out.key("history", time(history));
    out.key("factor_percent", degraded.factor_percent);
    out.key("add", time(degraded.add));
    out.key("buckets", buckets);
    out.key("samples_min", samples_min);
    let (factor, add) = (high_risk.factor_percent, time(high_risk.add));
    out.key("high_risk", format_args!("{{ factor_percent = {factor}, add = {add} }}"));
}

fn mitigation(out: &mut Out, mitigation: &Mitigation) {
    let Mitigation { file, expires, evidence_percent, reset_spread_min } = mitigation;
    out.header("[service.policy.mitigation]");
    out.key("file", text(file));
    out.key("expires", time(*expires));
    out.key("evidence_percent", evidence_percent);
    out.key("reset_spread_min", reset_spread_min);
}

fn learned(learned: Learned) -> String {
    let Learned { learn, min, initial, max } = learned;
    format!("{{ learn = {learn}, min = {}, initial = {}, max = {} }}", time(min), time(initial), time(max))
}

pub(super) fn word<T: PartialEq + Copy>(words: &[(&'static str, T)], meaning: T) -> &'static str {
    words.iter().find(|(_, other)| *other == meaning).map_or("", |(word, _)| word)
}

pub(super) fn time(span: Span) -> String {
    text(&time_text(span))
}

/// A TOML string.
pub(super) fn text(text: &str) -> String {
    toml::Value::from(text).to_string()
}

pub(super) fn texts<T: AsRef<str>>(list: impl IntoIterator<Item = T>) -> String {
    let list: Vec<_> = list.into_iter().map(|item| text(item.as_ref())).collect();
    format!("[{}]", list.join(", "))
}

fn list(numbers: &[u32]) -> String {
    let numbers: Vec<_> = numbers.iter().map(ToString::to_string).collect();
    format!("[{}]", numbers.join(", "))
}
