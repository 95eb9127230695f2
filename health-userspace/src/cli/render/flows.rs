//! `sluice flows` as text.

use super::{
    table::{Align, Table},
    words::{short_span, span},
};
use crate::report::{FlowEntry, FlowsReport};

/// The flow table, a line for each flow.
#[must_use]
pub fn flows(report: &FlowsReport) -> String {
    if report.flows.is_empty() {
        return "no flows\n".to_owned();
    }
    let mut table = Table::new(
        "",
        &[
            ("NODE", Align::Left),
            ("ASKED", Align::Left),
            ("SERVED BY", Align::Left),
            ("STATE", Align::Left),
            ("UNANSWERED", Align::Right),
            ("RTT", Align::Right),
            ("FLAGS", Align::Left),
        ],
    );
    for flow in &report.flows {
        let dash = || "-".to_owned();
        table.row([
            flow.node.clone(),
            flow.asked.clone(),
            format!("{}/{} {}", flow.service, flow.origin, flow.served_by),
            flow.state.replace('_', "-"),
            flow.unanswered_ms.map_or_else(dash, |ms| if ms < 1000 { format!("{ms}ms") } else { span(ms) }),
            flow.rtt_us.map_or_else(dash, |us| short_span(u64::from(us) * 1000)),
            flags(flow),
        ]);
    }
    let more = match report.more {
        0 => String::new(),
        more => format!("-- {more} more (--limit 0 shows all)\n"),
    };
    table.text() + &more
}

fn flags(flow: &FlowEntry) -> String {
    let flags = [(flow.redirected, "redirected"), (flow.trial, "trial"), (flow.forwarded, "forwarded")];
    let mut set: Vec<String> = flags.into_iter().filter(|(is, _)| *is).map(|(_, name)| name.to_owned()).collect();
    set.extend(flow.translated_port.map(|port| format!("from-port-{port}")));
    if set.is_empty() { "-".to_owned() } else { set.join(" ") }
}
