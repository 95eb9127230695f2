//! Pinned links.

use std::{fs, os::fd::AsFd, path::Path};

use aya::{
    Ebpf,
    programs::{ProgramError, links::FdLink},
};

use crate::datapath::{
    DatapathError,
    load::{self, Pins},
    sys,
};

/// What became of a pinned link.
pub(super) enum Taken {
    /// There is none, or what it hung on is gone.
    Absent,
    /// Our program is behind it now.
    Over,
}

/// Puts our program behind a pinned link, if there is one that still hangs where it should.
pub(super) fn take_over(
    ebpf: &Ebpf,
    pins: &Pins,
    link: &str,
    program: &'static str,
    hangs_right: impl Fn(u32) -> bool,
) -> Result<Taken, DatapathError> {
    let path = pins.link(link);
    if !path.exists() {
        return Ok(Taken::Absent);
    }
    let error = |source| DatapathError::Link { link: link.to_owned(), source };
    let fd = sys::get(&path).map_err(error)?;
    if !hangs_right(sys::link_info(&fd).map_or(0, |info| info.ifindex)) {
        unpin(&path);
        return Ok(Taken::Absent);
    }
    match sys::update(&fd, load::program_fd(ebpf, program)?.as_fd()) {
        Ok(()) => Ok(Taken::Over),
        // The interface or cgroup behind it is gone.
        Err(source) if source.raw_os_error() == Some(libc::ENOLINK) => {
            unpin(&path);
            Ok(Taken::Absent)
        }
        Err(source) => Err(error(source)),
    }
}

pub(in crate::datapath) fn find<'a, P>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut P, DatapathError>
where
    &'a mut P: TryFrom<&'a mut aya::programs::Program, Error = ProgramError>,
{
    let program = ebpf.program_mut(name).ok_or(DatapathError::Missing { name })?;
    program.try_into().map_err(|source| DatapathError::Program {
        program: name,
        needs: "6.1",
        source: Box::new(source),
    })
}

/// Pins a link, instead of an older one of the same name, which ends with that.
pub(super) fn pin(link: FdLink, path: &Path, name: &str) -> Result<(), DatapathError> {
    unpin(path);
    // The pin keeps the link; the descriptor is no longer needed.
    link.pin(path).map(drop).map_err(|source| DatapathError::Pin { name: name.to_owned(), source: Box::new(source) })
}

pub(super) fn unpin(path: &Path) {
    // Not there is as good as removed.
    drop(fs::remove_file(path));
}
