//! Away with programs and pins.

use std::{fs, io, path::Path};

use health_common::map;

use super::{
    DatapathError,
    attach::remove_filters,
    handover,
    load::Pins,
    maps::{self, Maps},
};
use crate::{probe, report::DetachOutcome};

/// Removes programs and pins, those of other layouts too that still serve their flows. Redirected flows would lose their way, so without `force` nothing is removed
/// while any live.
///
/// # Errors
///
/// [`DatapathError::NotLoaded`] without pins; [`DatapathError::Locked`] while a daemon holds them.
pub fn detach(pin_dir: &Path, force: bool) -> Result<DetachOutcome, DatapathError> {
    let maps = Maps::open(pin_dir)?;
    let _pins = Pins::take(pin_dir)?;
    let others = handover::find(pin_dir)?;
    let flows = live(&maps) + others.live(probe::now());
    remove(pin_dir, &others, flows, force)
}

/// The same for the daemon, which holds the locks itself.
pub(super) fn remove(
    pin_dir: &Path,
    others: &handover::Others,
    flows: u64,
    force: bool,
) -> Result<DetachOutcome, DatapathError> {
    if flows > 0 && !force {
        return Ok(DetachOutcome::FlowsLive { flows });
    }
    let (programs, maps) = remove_home(&maps::home(pin_dir), health_common::ABI_VERSION)?;
    for other in others.list() {
        others.remove(&other);
    }
    drop(fs::remove_dir(pin_dir));
    Ok(DetachOutcome::Removed { programs, maps, flows_cut: flows })
}

/// Removes the programs and maps of one layout; how many of each.
pub(super) fn remove_home(home: &Path, abi: u32) -> Result<(u64, u64), DatapathError> {
    // Programs first, so that none runs on maps that are going.
    let programs = empty(&home.join("links"))? + remove_filters(abi);
    let maps = empty(home)?;
    for folder in [home.join("links"), home.to_owned()] {
        // What is left in it, if anything, isn't ours.
        drop(fs::remove_dir(folder));
    }
    Ok((programs, maps))
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
    let entries = match fs::read_dir(folder) {
        // A start that failed half-way leaves less than a whole.
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => return Ok(0),
        entries => entries.map_err(error)?,
    };
    for entry in entries {
        let entry = entry.map_err(error)?;
        if entry.file_type().map_err(error)?.is_dir() {
            continue;
        }
        fs::remove_file(entry.path()).map_err(error)?;
        removed += 1;
    }
    Ok(removed)
}
