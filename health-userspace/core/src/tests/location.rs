//! Where a failure sits, and when nobody is moved for it.

use super::*;
use alloc::string::String;

/// Services of a primary and a standby each, with a check of the port and one of a page.
struct Node {
    engine: Engine,
    now: Timestamp,
    step: Step,
    told: Vec<String>,
    routes: Vec<(OriginId, Option<Route>)>,
    next: Vec<Timestamp>,
    /// What is true of each origin, by its number: `.` well, `s` silent, `r` refuses, `p` its page is wrong, `c` its
    /// certificate is over, `h` its HSM is wrong.
    truth: BTreeMap<OriginId, char>,
    specs: Vec<ServiceSpec>,
}

impl Node {
    /// `hops`: the next hop of each origin, two to a service; prefixes are all different.
    fn new(hops: &[u64]) -> Self {
        let mut specs = Vec::new();
        let mut routes = Vec::new();
        for (place, pair) in (0_u16..).zip(hops.chunks(2)) {
            let id = |tier: u16| OriginId(place * 2 + tier);
            let mut spec = shop(&[check("port", Layer::Transport), check("page", Layer::Application)]);
            spec.id = ServiceId(place);
            spec.origins = (0_u8..).zip(pair).map(|(tier, _)| origin(id(tier.into()), "o", tier)).collect();
            spec.frontends = vec![FrontendSpec { id: FrontendId(place), own: Some(id(0)), family: Family::V4 }];
            for (tier, hop) in (0..).zip(pair) {
                let route = Route { hop: *hop, prefix: u64::from(id(tier).0), gateway: *hop < 100 };
                routes.push((id(tier), Some(route)));
            }
            specs.push(spec);
        }
        let now = Timestamp(1_000_000_000_000);
        let ids: Vec<OriginId> = specs.iter().flat_map(|spec| &spec.origins).map(|origin| origin.id).collect();
        // Each origin has a time of its own within the second.
        let next = ids.iter().map(|id| now.after(Span::from_millis(u64::from(id.0) * 70))).collect();
        let truth = ids.iter().map(|id| (*id, '.')).collect();
        let (engine, step) = (Engine::new(specs.clone(), now), Step::default());
        let mut node = Self { engine, now, step, told: Vec::new(), routes, next, truth, specs };
        node.run(10);
        node.told.clear();
        node
    }

    fn set(&mut self, truths: &str) {
        for (truth, new) in self.truth.values_mut().zip(truths.chars()) {
            *truth = new;
        }
    }

    fn run(&mut self, seconds: u64) {
        for _ in 0..seconds * 10 {
            self.now = self.now.after(TICK);
            let mut checks = Vec::new();
            for ((id, truth), next) in self.truth.iter().zip(&mut self.next) {
                if *next > self.now {
                    continue;
                }
                *next = next.after(Span::from_secs(1));
                let (port, page) = match truth {
                    's' => (Outcome::Fail(Reason::Timeout(Layer::Transport)), None),
                    'r' => (Outcome::Fail(Reason::Refused), None),
                    'p' => (Outcome::Pass, Some(Outcome::Fail(Reason::Status(404)))),
                    'c' => (Outcome::Pass, Some(Outcome::Fail(Reason::CertExpired))),
                    'h' => (Outcome::Pass, Some(Outcome::Fail(Reason::Hsm(crate::model::Hsm::Integrity)))),
                    _ => (Outcome::Pass, Some(Outcome::Pass)),
                };
                let round =
                    |check, outcome| CheckResult { origin: *id, check, began: self.now, ended: self.now, outcome };
                checks.push(round(0, port));
                // It needs the other, and is skipped while that fails.
                checks.extend(page.map(|outcome| round(1, outcome)));
            }
            let kernel = self.truth.keys().map(|id| (*id, KernelView::default())).collect();
            let routes = core::mem::take(&mut self.routes);
            let input = Input { checks, kernel, routes, in_sync: true, ..Input::default() };
            self.step = self.engine.tick(self.now, &input);
            for decision in &self.step.decisions {
                if let DecisionKind::State { origin, to, location, .. } = decision.what {
                    let place = location.map_or("", Location::name);
                    self.told.push(format!("{} {} {place} {}", origin.0, to.name(), decision.rule));
                } else {
                    self.told.push(format!("{:?}", decision.what));
                }
            }
        }
    }

    fn states(&self) -> String {
        let views = self.step.view.iter().flat_map(|service| &service.origins);
        let letter = |view: &OriginView| match (view.state, view.location) {
            (State::HighRisk, Some(Location::Path)) => 'P',
            (State::HighRisk, Some(Location::Node)) => 'N',
            (State::Degraded, Some(Location::Check)) => 'C',
            (State::Degraded, Some(Location::Certificate)) => 'Z',
            (State::Healthy, None) => '.',
            (State::Fault, _) => 'F',
            (State::Recovering, _) => 'R',
            _ => '?',
        };
        views.map(letter).collect()
    }

    /// Whether all flows are where they were: with the primaries.
    fn unmoved(&self) -> bool {
        self.step
            .plan
            .frontends
            .iter()
            .zip(&self.specs)
            .all(|(plan, spec)| plan.slots.iter().all(|slot| *slot == spec.origins[0].id))
    }
}

#[test]
fn a_path_that_fails_moves_nobody_and_leaves_no_fault_behind() {
    // Three services, all behind one gateway; a fourth behind another one stays well.
    let mut node = Node::new(&[1, 1, 1, 1, 1, 1, 2, 2]);
    node.set("ssssss..");
    node.run(60);
    assert_eq!(node.states(), "PPPPPP..");
    assert!(node.unmoved());
    assert!(node.told.iter().all(|told| told.ends_with("high_risk path path_failed")), "{:?}", node.told);
    node.told.clear();
    node.set("........");
    node.run(20);
    assert_eq!(node.states(), "........");
    assert!(node.told.iter().all(|told| told.contains(" healthy ")), "no fault, no hold-down: {:?}", node.told);
}

#[test]
fn a_standby_outside_the_path_is_the_cure() {
    let mut node = Node::new(&[1, 2, 1, 2, 1, 1]);
    node.set("s.s.ss");
    node.run(15);
    assert_eq!(node.states(), "F.F.PP", "{:?}", node.told);
    assert_eq!(node.step.plan.frontends[0].slots[0], OriginId(1));
}

/// Some of those behind the gateway answer: it is no path, however many fail.
#[test]
fn who_is_heard_behind_the_hop_absolves_the_path() {
    let mut node = Node::new(&[1, 1, 1, 1, 1, 1, 1, 1]);
    node.set("s.s.s...");
    node.run(15);
    assert_eq!(node.states(), "F.F.F...");
}

#[test]
fn refusals_are_answers_and_two_are_not_many() {
    let mut node = Node::new(&[1, 1, 1, 1, 1, 1]);
    node.set("rrrrrr");
    node.run(10);
    assert_eq!(node.states(), "FFFFFF");
    let mut node = Node::new(&[1, 1, 2, 2]);
    node.set("ss..");
    node.run(10);
    assert_eq!(node.states(), "FF..", "both of a service, and nobody else");
}

#[test]
fn all_behind_several_hops_is_this_node() {
    let mut node = Node::new(&[1, 2, 3, 4]);
    node.set("ssss");
    node.run(30);
    assert_eq!(node.states(), "NNNN");
    assert!(node.unmoved());
}

/// What had failed long before is no part of it.
#[test]
fn at_once_means_at_once() {
    let mut node = Node::new(&[1, 1, 1, 1]);
    node.set("s...");
    node.run(60);
    assert_eq!(node.states(), "F...");
    node.set("ss..");
    node.run(60);
    node.set("sss.");
    node.run(20);
    assert_eq!(node.states(), "FFF.");
}

/// A seed's outage: only the probe's own domain was broken, so every server looked dead, and a whole node was out.
#[test]
fn seed_the_probes_own_domain_is_broken_and_nobody_moves() {
    let mut node = Node::new(&[1, 1, 1, 1]);
    node.set("pppp");
    node.run(60);
    assert_eq!(node.states(), "CCCC");
    assert!(node.unmoved(), "a check that fails everywhere cuts nobody's weight");
    assert!(node.told.iter().all(|told| told.contains("check_fails_everywhere")), "{:?}", node.told);
    node.told.clear();
    node.set("....");
    node.run(20);
    assert_eq!(node.states(), "....");
    assert!(node.told.iter().all(|told| told.contains(" healthy ")), "{:?}", node.told);
}

#[test]
fn a_check_that_passes_on_the_standby_is_believed() {
    let mut node = Node::new(&[1, 1]);
    node.set("p.");
    node.run(10);
    assert_eq!(node.states(), "F.");
}

#[test]
fn a_certificate_that_is_over_everywhere_is_named_and_moves_nobody() {
    let mut node = Node::new(&[1, 1]);
    node.set("cc");
    node.run(20);
    assert_eq!(node.states(), "ZZ");
    assert!(node.unmoved());
}

/// Wrong signatures are never served, on how many HSMs ever.
#[test]
fn what_an_hsm_gets_wrong_is_never_excused() {
    let mut node = Node::new(&[1, 1]);
    node.set("hh");
    node.run(10);
    assert_eq!(node.states(), "FF");
}
