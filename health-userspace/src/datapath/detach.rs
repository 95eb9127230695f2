//! Away with programs and pins.

use std::{fs, io, path::Path};

use health_common::map;

use super::{
    DatapathError,
    load::Pins,
    maps::{self, Maps},
};
use crate::report::DetachOutcome;

/// Removes programs and pins of this ABI. Redirected flows would lose their way, so without `force` nothing is removed
/// while any live.
///
/// # Errors
///
/// [`DatapathError::NotLoaded`] without pins; [`DatapathError::Locked`] while a daemon holds them.
pub fn detach(pin_dir: &Path, force: bool) -> Result<DetachOutcome, DatapathError> {
    let flows = live(&Maps::open(pin_dir)?);
    let _pins = Pins::take(pin_dir)?;
    remove(pin_dir, flows, force)
}

/// The same for the daemon, which holds the lock itself.
pub(super) fn remove(pin_dir: &Path, flows: u64, force: bool) -> Result<DetachOutcome, DatapathError> {
    if flows > 0 && !force {
        return Ok(DetachOutcome::FlowsLive { flows });
    }
    let home = maps::home(pin_dir);
    // Programs first, so that none runs on maps that are going.
    let programs = empty(&home.join("links"))? + unpinned_filters();
    let maps = empty(&home)?;
    for folder in [home.join("links"), home, pin_dir.to_owned()] {
        // Another ABI's pins may still be in the last one.
        drop(fs::remove_dir(folder));
    }
    Ok(DetachOutcome::Removed { programs, maps, flows_cut: flows })
}

/// Filters under clsact have no pins; before Linux 6.6 they are all there is.
fn unpinned_filters() -> u64 {
    use aya::programs::{TcAttachType, tc::qdisc_detach_program};
    if super::attach::has_tcx() {
        return 0;
    }
    let mut removed = 0;
    for interface in nix::net::if_::if_nameindex().into_iter().flat_map(|list| {
        list.iter().map(|interface| interface.name().to_string_lossy().into_owned()).collect::<Vec<_>>()
    }) {
        for (direction, name) in [(TcAttachType::Ingress, "ingress"), (TcAttachType::Egress, "egress")] {
            removed += u64::from(qdisc_detach_program(&interface, direction, name).is_ok());
        }
    }
    removed
}

/// Redirected flows that have not ended.
pub(super) fn live(maps: &Maps) -> u64 {
    let v4 = maps.moved_out_v4.iter().flatten().filter(|(_, moved)| moved.ended_ns == 0).count();
    let v6 = maps.moved_out_v6.iter().flatten().filter(|(_, moved)| moved.ended_ns == 0).count();
    u64::try_from(v4 + v6).unwrap_or(u64::MAX)
}

/// Every frontend is left alone from now on; what was redirected goes on.
///
/// # Errors
///
/// As [`detach`].
pub fn stop_steering(pin_dir: &Path) -> Result<(), DatapathError> {
    let mut maps = Maps::open(pin_dir)?;
    clear_frontends(&mut maps)
}

/// Takes every address out of steering.
pub(super) fn clear_frontends(maps: &mut Maps) -> Result<(), DatapathError> {
    let steered: Vec<_> = maps.endpoints.iter().flatten().collect();
    for (key, mut meant) in steered {
        meant.frontend = health_common::NONE;
        maps.endpoints.insert(key, meant, 0).map_err(|source| maps::write_error(map::ENDPOINTS, source))?;
    }
    Ok(())
}

/// Removes the files of a folder; how many.
fn empty(folder: &Path) -> Result<u64, DatapathError> {
    let error = |source: io::Error| DatapathError::Pins { path: folder.to_owned(), source };
    let mut removed = 0;
    for entry in fs::read_dir(folder).map_err(error)? {
        let entry = entry.map_err(error)?;
        if entry.file_type().map_err(error)?.is_dir() {
            continue;
        }
        fs::remove_file(entry.path()).map_err(error)?;
        removed += 1;
    }
    Ok(removed)
}
