//! `[defaults.policy]` and `[service.policy]`: each writes its own keys over what it is given.

use super::{
    failback::failback,
    latency::{FAULT_RULES, latency, mitigation},
    read::Section,
};
use health_common::{
    cells::{REQUEST_CELLS, REQUEST_SHIFT, SYN_CELLS, SYN_SHIFT},
    streak::SPREAD_BITS,
};
use health_core::{
    Span,
    policy::{
        Failback, HoldDown, Learned, Moves, OnFault, Overflow, Policy, ReturnPath, SamplesMin, SocketTimeout,
        StateWeights, SuccessBelow, Trip,
    },
};

/// Longest window and hold-down. A day; nobody waits longer for a machine.
const DAY: Span = Span::from_secs(86_400);
/// Longest timeout of a SYN: 4 s.
const SYN_TIMEOUT_MAX: Span = memory(SYN_CELLS, SYN_SHIFT);
/// Longest timeout of a response: 17 s.
const RESPONSE_TIMEOUT_MAX: Span = memory(REQUEST_CELLS, REQUEST_SHIFT);
/// Shortest one. Below it a busy scheduler, not the origin, is measured.
const TIMEOUT_MIN: Span = Span::from_millis(10);
/// Longest first wait of a socket: the stack's own, 1 s (RFC 6298 §2.1), times three, as `syn_timeout`.
const SOCKETS_MIN_MAX: Span = Span::from_secs(3);

/// The words of `return_path`.
pub(super) const RETURN_PATHS: &[(&str, ReturnPath)] =
    &[("auto", ReturnPath::Auto), ("symmetric", ReturnPath::Symmetric), ("none", ReturnPath::None)];
/// The words of `overflow`.
pub(super) const OVERFLOWS: &[(&str, Overflow)] =
    &[("refuse", Overflow::Refuse), ("least_bad", Overflow::LeastBad), ("exceed", Overflow::Exceed)];

/// The words of `move`.
pub(super) const MOVES: &[(&str, Moves)] = &[("share", Moves::Share), ("service", Moves::Service)];
/// The words of `on_fault`.
pub(super) const ON_FAULTS: &[(&str, OnFault)] = &[
    ("reset_stalled", OnFault::ResetStalled),
    ("reset_after", OnFault::ResetAfter),
    ("reset", OnFault::Reset),
    ("keep", OnFault::Keep),
];

/// Most clients that the kernel's word for a run of failures tells apart: 20.
#[expect(clippy::cast_possible_truncation, reason = "asserted below")]
const SPREAD_MAX: u8 = SPREAD_BITS as u8;

const _: () = assert!(SPREAD_BITS <= u8::MAX as u32);

/// How long the kernel keeps unanswered attempts apart, in whole seconds. Beyond it they are counted whatever their age,
/// so a longer timeout would mean nothing. A cell is overdue only once its youngest attempt is, hence one less.
const fn memory(cells: usize, shift: u32) -> Span {
    Span::from_secs((((cells - 1) as u64) << shift) / 1_000_000_000)
}

/// `base` with the section's keys written over it, table by table, key by key.
pub(super) fn policy(section: &Section<'_>, base: &Policy) -> Policy {
    let moves = section.choice("move", MOVES).unwrap_or(base.moves);
    Policy {
        fall: section.number("fall", 1, 100).unwrap_or(base.fall),
        rise: section.number("rise", 1, 100).unwrap_or(base.rise),
        passive: section.flag("passive").unwrap_or(base.passive),
        rescue: section.flag("rescue").unwrap_or(base.rescue),
        window: section.time("window", Span::from_secs(1), DAY).unwrap_or(base.window),
        samples_min: samples_min(&section.table("samples_min"), base.samples_min),
        success_below_percent: success_below(&section.table("success_below_percent"), base.success_below_percent),
        state_weight_percent: state_weights(&section.table("state_weight_percent"), base.state_weight_percent),
        hold_down: hold_down(&section.table("hold_down"), base.hold_down),
        response_timeout: response_timeout(&section.table("response_timeout"), base.response_timeout),
        syn_timeout: syn_timeout(&section.table("syn_timeout"), base.syn_timeout),
        sockets: sockets(&section.table("syn_timeout"), base.sockets),
        return_path: section.choice("return_path", RETURN_PATHS).unwrap_or(base.return_path),
        overflow: section.choice("overflow", OVERFLOWS).unwrap_or(base.overflow),
        panic_percent: section.number("panic_percent", 0, 100).unwrap_or(base.panic_percent),
        moves,
        on_fault: section.choice("on_fault", ON_FAULTS).unwrap_or(base.on_fault),
        stalled_for: section.time("stalled_for", Span::from_millis(100), DAY).unwrap_or(base.stalled_for),
        reset_after: section.time("reset_after", Span::ZERO, DAY).unwrap_or(base.reset_after),
        resets_per_s: section.number("resets_per_s", 1, 1_000_000).unwrap_or(base.resets_per_s),
        failback: whole_failback(section, moves, failback(&section.table("failback"), &base.failback)),
        min_usable_percent: section.number("min_usable_percent", 1, 100).unwrap_or(base.min_usable_percent),
        trip: trip(&section.table("trip"), base.trip),
        fault_rule: section.choice("fault_rule", FAULT_RULES).unwrap_or(base.fault_rule),
        latency: latency(&section.table("latency"), base.latency),
        mitigation: mitigation(&section.table("mitigation"), &base.mitigation),
        reset_spread_min: base.reset_spread_min,
    }
}

/// A service that is on one tier at a time comes back all at once.
fn whole_failback(section: &Section<'_>, moves: Moves, failback: Failback) -> Failback {
    if moves == Moves::Share || failback.stages == [100] {
        return failback;
    }
    let written = section.table("failback");
    if written.get("stages").is_some() {
        let message = "`move = \"service\"` keeps all of a service on one tier, and `failback.stages` divide it";
        written.error("stages", message, "write stages = [100], or leave it out");
    }
    Failback { stages: vec![100], ..failback }
}

fn samples_min(section: &Section<'_>, base: SamplesMin) -> SamplesMin {
    SamplesMin {
        passive: section.number("passive", 1, 1_000_000).unwrap_or(base.passive),
        active: section.number("active", 1, 10_000).unwrap_or(base.active),
    }
}

fn success_below(section: &Section<'_>, base: SuccessBelow) -> SuccessBelow {
    let merged = SuccessBelow {
        degraded: section.number("degraded", 0, 100).unwrap_or(base.degraded),
        high_risk: section.number("high_risk", 0, 100).unwrap_or(base.high_risk),
        fault: section.number("fault", 0, 100).unwrap_or(base.fault),
    };
    let SuccessBelow { degraded, high_risk, fault } = merged;
    if fault > high_risk || high_risk > degraded {
        section.sink().error(
            section.at(),
            format!(
                "`success_below_percent` is out of order: degraded {degraded}, high_risk {high_risk}, fault {fault}"
            ),
            "let degraded be the greatest and fault the least of the three (default 80, 50, 20)",
        );
    }
    merged
}

fn state_weights(section: &Section<'_>, base: StateWeights) -> StateWeights {
    let merged = StateWeights {
        unknown: section.number("unknown", 0, 100).unwrap_or(base.unknown),
        healthy: section.number("healthy", 0, 100).unwrap_or(base.healthy),
        degraded: section.number("degraded", 0, 100).unwrap_or(base.degraded),
        high_risk: section.number("high_risk", 0, 100).unwrap_or(base.high_risk),
        fault: section.number("fault", 0, 100).unwrap_or(base.fault),
    };
    if section.is_present() && merged.healthy == 0 {
        section.error(
            "healthy",
            "`state_weight_percent.healthy` is 0: a working origin would get nothing",
            "write 100",
        );
    }
    if section.get("fault").is_some() && merged.fault > 0 {
        section.sink().warning(
            section.at_key("fault"),
            format!("origins in `fault` keep {} % of their weight", merged.fault),
            "leave it at 0, so that a dead origin gets no new connections",
        );
    }
    merged
}

fn hold_down(section: &Section<'_>, base: HoldDown) -> HoldDown {
    let merged = HoldDown {
        base: section.time("base", Span::ZERO, DAY).unwrap_or(base.base),
        max: section.time("max", Span::ZERO, DAY).unwrap_or(base.max),
    };
    if merged.base > merged.max {
        section.sink().error(
            section.at(),
            format!("`hold_down.base` ({}) is longer than `hold_down.max` ({})", merged.base, merged.max),
            "let max be at least base",
        );
    }
    merged
}

fn response_timeout(section: &Section<'_>, base: Option<Learned>) -> Option<Learned> {
    let others = ["learn", "min", "initial", "max"].iter().any(|key| section.get(key).is_some());
    let given = |base: Option<Learned>| {
        learned(section, "response_timeout", base.unwrap_or(default_response_timeout()), RESPONSE_TIMEOUT_MAX)
    };
    match section.flag("off") {
        Some(true) => {
            if others {
                let fix = "keep off = true alone, or remove it";
                section.error("off", "`response_timeout` is off and has other keys beside it", fix);
            }
            None
        }
        // Switched on again, or given values, over a default that has it off.
        Some(false) => Some(given(base)),
        None if others => Some(given(base)),
        None => base,
    }
}

fn syn_timeout(section: &Section<'_>, base: Learned) -> Learned {
    learned(section, "syn_timeout", base, SYN_TIMEOUT_MAX)
}

fn sockets(section: &Section<'_>, base: SocketTimeout) -> SocketTimeout {
    SocketTimeout {
        set: section.flag("sockets").unwrap_or(base.set),
        min: section.time("sockets_min", TIMEOUT_MIN, SOCKETS_MIN_MAX).unwrap_or(base.min),
    }
}

fn default_response_timeout() -> Learned {
    let (min, initial, max) = (Span::from_millis(200), Span::from_secs(5), Span::from_secs(10));
    Policy::default().response_timeout.unwrap_or(Learned { learn: true, min, initial, max })
}

fn learned(section: &Section<'_>, name: &str, base: Learned, longest: Span) -> Learned {
    let merged = Learned {
        learn: section.flag("learn").unwrap_or(base.learn),
        min: section.time("min", TIMEOUT_MIN, longest).unwrap_or(base.min),
        initial: section.time("initial", TIMEOUT_MIN, longest).unwrap_or(base.initial),
        max: section.time("max", TIMEOUT_MIN, longest).unwrap_or(base.max),
    };
    let Learned { min, initial, max, .. } = merged;
    if section.is_present() && (min > initial || initial > max) {
        section.sink().error(
            section.at(),
            format!("`{name}` is out of order: min {min}, initial {initial}, max {max}"),
            "let initial lie between min and max; keys that are not written here have the values shown",
        );
    }
    merged
}

fn trip(section: &Section<'_>, base: Trip) -> Trip {
    let merged = Trip {
        kernel: section.flag("kernel").unwrap_or(base.kernel),
        after: section.number("after", 1, 1000).unwrap_or(base.after),
        within: section.time("within", Span::from_millis(100), Span::from_secs(3600)).unwrap_or(base.within),
        spread_min: section.number("spread_min", 1, SPREAD_MAX).unwrap_or(base.spread_min),
        silence_min: section.time("silence_min", Span::ZERO, Span::from_secs(60)).unwrap_or(base.silence_min),
        on_5xx: section.flag("on_5xx").unwrap_or(base.on_5xx),
        half_open_after: section.time("half_open_after", TIMEOUT_MIN, DAY).unwrap_or(base.half_open_after),
        half_open_max: section.time("half_open_max", TIMEOUT_MIN, DAY).unwrap_or(base.half_open_max),
        max_percent: section.number("max_percent", 0, 100).unwrap_or(base.max_percent),
    };
    if merged.half_open_after > merged.half_open_max {
        let (after, max) = (merged.half_open_after, merged.half_open_max);
        section.sink().error(
            section.at(),
            format!("`trip.half_open_after` ({after}) is longer than `trip.half_open_max` ({max})"),
            "let half_open_max be at least half_open_after",
        );
    }
    if section.is_present() && u16::from(merged.spread_min) > merged.after {
        section.sink().warning(
            section.at(),
            format!("a trip waits for {} clients though `after` is {}", merged.spread_min, merged.after),
            "let spread_min be at most after",
        );
    }
    merged
}
