//! TC: links in the TCX chains, or filters under clsact where the kernel has no TCX.
//!
//! We are the first to see what comes in and the last to see what goes out. Among our own, the program of forwarded
//! clients comes before that of origins' answers, and programs of this ABI before those of another that still serves its
//! redirected flows (see [`super::handover`]).

use std::{io, sync::Arc};

use aya::{
    Ebpf,
    programs::{
        LinkOrder, MultiProgLink, ProgramError, SchedClassifier, TcAttachType,
        links::{FdLink, PinnedLink},
        tc::{NlOptions, SchedClassifierLink, TcAttachOptions, TcHandle, qdisc_add_clsact},
    },
    util::KernelVersion,
};
use health_common::ABI_VERSION;

use super::{
    link::{Taken, find, pin, take_over},
    link_name,
};
use crate::datapath::{DatapathError, handover::Other, load::Pins, sys};

/// A hook of an interface, and the program that it shall carry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    pub(super) hook: &'static str,
    pub(super) program: &'static str,
    pub(super) interface: &'a str,
    pub(super) index: u32,
}

impl Place<'_> {
    fn direction(&self) -> TcAttachType {
        direction(self.hook)
    }

    fn error(&self, source: ProgramError) -> DatapathError {
        let target = self.interface.to_owned();
        DatapathError::Attach { program: self.program, target, source: Box::new(source) }
    }
}

fn direction(hook: &str) -> TcAttachType {
    if hook == "tc_egress" { TcAttachType::Egress } else { TcAttachType::Ingress }
}

/// Attaches one program; whether a former daemon's link was taken over.
pub(super) fn attach(
    ebpf: &mut Ebpf,
    pins: &Pins,
    others: &[Arc<Other>],
    place: &Place<'_>,
) -> Result<bool, DatapathError> {
    if !has_tcx() {
        let loaded: &mut SchedClassifier = find(ebpf, place.program)?;
        attach_clsact(loaded, place).map_err(|source| place.error(source))?;
        return Ok(false);
    }
    let link = link_name(place.hook, place.interface);
    let before = others.iter().find_map(|other| other.link(place.hook, place.interface, place.index));
    // A downgrade in the middle of an upgrade: our old link hangs behind those that came after it, so another takes its
    // place. A program is in a chain only once, so the link is not updated first.
    let displaced = pinned(&pins.link(&link), place.index).is_some()
        && before.as_ref().is_some_and(|before| !is_before(pins, &link, before, place));
    if !displaced && let Taken::Over = take_over(ebpf, pins, &link, place.program, |at| at == place.index)? {
        return Ok(true);
    }
    let order = order(pins, place, before.as_ref())?;
    let loaded: &mut SchedClassifier = find(ebpf, place.program)?;
    let attach = |source| place.error(source);
    let options = TcAttachOptions::TcxOrder(order);
    let id = loaded.attach_with_options(place.interface, place.direction(), options).map_err(attach)?;
    let fd = FdLink::try_from(loaded.take_link(id).map_err(attach)?)
        .map_err(|error| DatapathError::Link { link: link.clone(), source: io::Error::other(error) })?;
    pin(fd, &pins.link(&link), &link)?;
    Ok(displaced)
}

/// Where in its chain a program belongs.
fn order(pins: &Pins, place: &Place<'_>, other: Option<&SchedClassifierLink>) -> Result<LinkOrder, DatapathError> {
    let lost = |error| DatapathError::Link { link: place.hook.to_owned(), source: io::Error::other(error) };
    match (place.hook, other) {
        // See `handover` for why ours comes first in every direction.
        (_, Some(other)) => LinkOrder::before_link(other).map_err(lost),
        ("tc_egress", None) => Ok(LinkOrder::last()),
        ("tc_ingress", None) => match pinned(&pins.link(&link_name("tc_client", place.interface)), place.index) {
            Some(client) => LinkOrder::after_link(&client).map_err(lost),
            None => Ok(LinkOrder::first()),
        },
        _ => Ok(LinkOrder::first()),
    }
}

/// Whether our pinned link comes before another's in the chain. When the chain can't be read, it is taken to be so.
fn is_before(pins: &Pins, link: &str, other: &SchedClassifierLink, place: &Place<'_>) -> bool {
    let program = |info: io::Result<sys::LinkInfo>| info.map_or(0, |info| info.program);
    let own = program(sys::get(&pins.link(link)).and_then(|fd| sys::link_info(&fd)));
    let other = program(other.fd().map_err(io::Error::other).and_then(|fd| sys::link_info(&fd)));
    let Ok((_, chain)) = SchedClassifier::query_tcx(place.interface, place.direction()) else { return true };
    let position = |id: u32| chain.iter().position(|program| program.id() == id);
    match (position(own), position(other)) {
        (Some(own), Some(other)) => own < other,
        _ => true,
    }
}

/// A pinned TCX link, if it hangs on this interface.
pub(in crate::datapath) fn pinned(path: &std::path::Path, index: u32) -> Option<SchedClassifierLink> {
    let info = sys::get(path).and_then(|fd| sys::link_info(&fd)).ok()?;
    if info.ifindex != index {
        return None;
    }
    SchedClassifierLink::try_from(FdLink::from(PinnedLink::from_pin(path).ok()?)).ok()
}

/// Place of a filter in its direction: the programs of forwarded clients come first.
fn priority(hook: &str) -> u16 {
    if hook == "tc_client" { 1 } else { 2 }
}

/// Filters of the same priority run newest first (`cls_bpf_change` puts a new one at the head), each under its ABI's number.
fn handle(abi: u32) -> TcHandle {
    TcHandle::new(0, u16::try_from(abi).unwrap_or(u16::MAX))
}

/// Linux before 6.6. The filter stays by itself; a fixed priority and handle let the next start find and replace it.
fn attach_clsact(program: &mut SchedClassifier, place: &Place<'_>) -> Result<(), ProgramError> {
    // It fails when the qdisc is there already, which is as good.
    drop(qdisc_add_clsact(place.interface));
    let (priority, handle) = (priority(place.hook), || handle(ABI_VERSION));
    let options = TcAttachOptions::Netlink(NlOptions { priority, handle: handle(), classid: None });
    let id = program.attach_with_options(place.interface, place.direction(), options).or_else(|_| {
        let link = SchedClassifierLink::attached(place.interface, place.direction(), priority, handle(), None)
            .map_err(|error| ProgramError::IOError(io::Error::other(error)))?;
        program.attach_to_link(link)
    })?;
    // Forgotten on purpose: dropping a link detaches it, and the datapath outlives the daemon.
    std::mem::forget(program.take_link(id)?);
    Ok(())
}

/// Removes a filter of ours under clsact; whether there was one.
pub(super) fn remove_filter(abi: u32, hook: &str, interface: &str) -> bool {
    let link = SchedClassifierLink::attached(interface, direction(hook), priority(hook), handle(abi), None);
    link.is_ok_and(|link| aya::programs::links::Link::detach(link).is_ok())
}

/// Removes an ABI's filters under clsact from all interfaces; how many there were. Filters have no pins, so every
/// interface is asked.
pub(in crate::datapath) fn remove_filters(abi: u32) -> u64 {
    if has_tcx() {
        return 0;
    }
    let hooks = ["tc_ingress", "tc_egress", "tc_client"];
    let present = super::interfaces();
    let removed = present.keys().flat_map(|name| hooks.map(|hook| u64::from(remove_filter(abi, hook, name))));
    removed.sum()
}

/// Links on TC hooks: Linux 6.6 (commit e420bed02507). Before, filters under clsact; `SLUICE_TC=clsact` in the environment
/// asks for them on newer kernels too, for tools that know no TCX, and for the test of this way.
pub(in crate::datapath) fn has_tcx() -> bool {
    std::env::var_os("SLUICE_TC").is_none_or(|wanted| wanted != "clsact")
        && KernelVersion::current().is_ok_and(|kernel| kernel >= KernelVersion::new(6, 6, 0))
}
