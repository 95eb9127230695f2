//! Warnings about checks that are allowed and will hurt.

use super::{
    diagnostic::Sink,
    kind::CheckKind,
    model::{CheckConfig, Config},
    service::ReadService,
};
use health_core::Span;
use std::ops::Range;

/// Ends of paths that are seldom small.
const HEAVY: &[&str] =
    &[".jpg", ".jpeg", ".png", ".gif", ".mp4", ".zip", ".gz", ".iso", ".pdf", ".tar", ".exe", ".dmg"];

/// All of it. `services` has the places of `config.services`, in the same order.
pub(super) fn give(config: &Config, services: &[ReadService], sink: &Sink) {
    for service in services {
        unchecked(service, sink);
        for (check, at) in service.config.checks.iter().zip(&service.checks_at) {
            heavy(service, check, at, sink);
            certificate(service, check, at, sink);
            source(service, check, at, sink);
        }
    }
    budget(config, sink);
}

/// Nobody would notice that a standby is dead before it is needed.
fn unchecked(service: &ReadService, sink: &Sink) {
    let decides = |check: &CheckConfig| check.plan.critical && !check.plan.verify;
    if !service.config.checks.iter().any(decides) {
        let message = format!(
            "no check of service `{}` can take an origin out: a standby that is dead looks ready",
            service.config.name
        );
        sink.warning(service.at.clone(), message, "let one check be critical and run always (no verify)");
    }
}

fn heavy(service: &ReadService, check: &CheckConfig, at: &Range<usize>, sink: &Sink) {
    let CheckKind::Http(http) = &check.kind else { return };
    let mut paths = http.requests.iter().map(|request| request.url.path().to_ascii_lowercase());
    if let Some(path) = paths.find(|path| HEAVY.iter().any(|end| path.ends_with(end))) {
        let message = format!("check `{}/{}` fetches {path} again and again", service.config.name, check.name);
        sink.warning(at.clone(), message, "ask a small page made for it, such as /healthz");
    }
}

fn certificate(service: &ReadService, check: &CheckConfig, at: &Range<usize>, sink: &Sink) {
    let Some(tls) = check.kind.tls() else { return };
    let name = format!("{}/{}", service.config.name, check.name);
    let (message, fix) = if !tls.verify {
        let message = format!("check `{name}` takes any certificate, so it can't see that one has expired");
        (message, "let tls.verify be true and name the authority in tls.ca, or add a check of type tls that does")
    } else if tls.expiry_warn == Span::ZERO {
        let message = format!("check `{name}` looks at a certificate and says nothing before it ends");
        (message, "let tls.expiry_warn be some days, for example \"14d\"")
    } else {
        return;
    };
    sink.warning(at.clone(), message, fix);
}

/// A source address is for origins of its family only.
fn source(service: &ReadService, check: &CheckConfig, at: &Range<usize>, sink: &Sink) {
    let Some(address) = check.plan.source.address else { return };
    let mut origins = service.config.origins.iter().filter(|origin| origin.host.is_none());
    if let Some(origin) = origins.find(|origin| origin.address.is_ipv4() != address.is_ipv4()) {
        let message = format!(
            "check `{}/{}` leaves from {address}, which is not of the family of origin `{}`: there it leaves from anywhere",
            service.config.name, check.name, origin.name
        );
        sink.warning(at.clone(), message, "give each family a service of its own, or name an interface instead");
    }
}

/// Rounds that the node has no budget for come late, all of them.
fn budget(config: &Config, sink: &Sink) {
    let milli = |check: &CheckConfig| 1_000_000_000_000_u64.checked_div(check.interval.0).unwrap_or(0);
    let of = |service: &super::ServiceConfig| {
        let origins = u64::try_from(service.origins.len()).unwrap_or(u64::MAX);
        origins.saturating_mul(service.checks.iter().map(milli).fold(0, u64::saturating_add))
    };
    let wanted = config.services.iter().map(of).fold(0, u64::saturating_add) / 1000;
    let limit = u64::from(config.node.limits.checks_per_s);
    if wanted > limit {
        let message = format!("the checks come to {wanted} rounds a second; node.limits.checks_per_s allows {limit}");
        sink.warning(
            0..0,
            message,
            "let intervals be longer, or raise the limit if this node and the origins can bear it",
        );
    }
}

#[cfg(test)]
mod tests {
    use crate::config::parse;

    fn warnings(node: &str, check: &str) -> String {
        let text = format!(
            "[node]\ninterfaces = [\"eth1\"]\n{node}\n[[service]]\nname = \"s\"\norigin = [{{ name = \"a\", address = \
             \"10.0.0.1:443\" }}]\n[[service.check]]\n{check}\n"
        );
        let loaded = parse(&text, "f").expect("valid");
        loaded.warnings.iter().map(|warning| warning.message.clone() + "\n").collect()
    }

    #[test]
    fn what_will_hurt_is_said_and_what_is_well_is_not() {
        let web = "type = \"http\"\nurl = \"https://a.example/healthz\"\n";
        let own = [
            "can take an origin out",
            "again and again",
            "says nothing before it ends",
            "is not of the family",
            "rounds a second",
            "see that one has expired",
        ];
        let table = [
            ("", web.to_owned(), None),
            ("", format!("{web}critical = false"), Some(0)),
            ("", format!("{web}verify = true"), Some(0)),
            ("", "type = \"http\"\nurl = \"https://a.example/Film.MP4\"".to_owned(), Some(1)),
            ("", format!("{web}tls = {{ expiry_warn = \"0s\" }}"), Some(2)),
            ("", format!("{web}tls = {{ verify = false }}"), Some(5)),
            ("", "type = \"tls\"\ntls = { verify = false, server_name = \"a.example\" }".to_owned(), Some(5)),
            ("", format!("{web}source = {{ address = \"2001:db8::1\" }}"), Some(3)),
            ("", format!("{web}source = {{ address = \"10.0.0.5\" }}"), None),
            ("limits = { checks_per_s = 1 }", format!("{web}interval = \"500ms\""), Some(4)),
        ];
        for (node, check, expected) in table {
            let said = warnings(node, &check);
            for (place, words) in own.iter().enumerate() {
                assert_eq!(said.contains(words), expected == Some(place), "{check}: {words}\n{said}");
            }
        }
    }
}
