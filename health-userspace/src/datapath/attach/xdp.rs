//! XDP, in the driver. An interface has one XDP program; somebody else's is never replaced.

use std::io;

use aya::{
    Ebpf,
    programs::{Xdp, XdpMode, links::FdLink, loaded_programs},
};

use super::{
    interface::Place,
    link::{Taken, find, pin, take_over},
    link_name,
};
use crate::datapath::{DatapathError, load::Pins, sys};

/// Attaches the program; whether a former daemon's link was taken over.
pub(super) fn attach(ebpf: &mut Ebpf, pins: &Pins, place: &Place<'_>) -> Result<bool, DatapathError> {
    let link = link_name(place.hook, place.interface);
    if let Taken::Over = take_over(ebpf, pins, &link, place.program, |at| at == place.index)? {
        return Ok(true);
    }
    // The library would fall back to a way of attaching that replaces what is there, so we look first.
    let present = sys::xdp_program(place.index).map_err(|source| DatapathError::Link { link: link.clone(), source })?;
    if let Some(id) = present {
        return Err(DatapathError::ForeignXdp { interface: place.interface.to_owned(), name: name_of(id), id });
    }
    let loaded: &mut Xdp = find(ebpf, place.program)?;
    let attach = |source| DatapathError::Xdp { interface: place.interface.to_owned(), source: Box::new(source) };
    let id = loaded.attach_to_if_index(place.index, XdpMode::Driver).map_err(attach)?;
    // Without a link it would end with the daemon.
    let fd = FdLink::try_from(loaded.take_link(id).map_err(attach)?)
        .map_err(|error| DatapathError::Link { link: link.clone(), source: io::Error::other(error) })?;
    pin(fd, &pins.link(&link), &link)?;
    Ok(false)
}

/// What a program is called, for messages.
fn name_of(id: u32) -> String {
    let program = loaded_programs().flatten().find(|program| program.id() == id);
    program.and_then(|program| program.name_as_str().map(str::to_owned)).unwrap_or_else(|| "?".to_owned())
}
