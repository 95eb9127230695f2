//! The PIN's way from its file into the worker's pipe: one buffer, wiped when it is dropped, and no other copy.

use nix::{fcntl::OFlag, unistd::geteuid};
use std::{
    fs::{File, OpenOptions},
    io::{self, Read},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
};
use zeroize::Zeroizing;

/// Longest PIN: beyond what any token takes.
const PIN_BYTES_MAX: usize = 256;
/// Bits of a mode that a secret may have: its owner and group may read. That the owner may write it too is harmless.
const MODE_MAX: u32 = 0o640;

/// Why a PIN file is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum PinError {
    #[error("the PIN file cannot be read")]
    Read(#[source] io::Error),
    #[error("the PIN file is no regular file")]
    Irregular,
    #[error("the PIN file has mode {mode:04o}; let it be 0400 (`chmod 0400`)")]
    Mode { mode: u32 },
    #[error("the PIN file belongs to user {owner}; let it belong to root or to the daemon's user")]
    Owner { owner: u32 },
    #[error("the PIN file is empty")]
    Empty,
    #[error("the PIN file has more than {PIN_BYTES_MAX} bytes")]
    Long,
}

/// What tells whether a file was changed, without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

impl Stamp {
    /// `None` if there is no such file.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let found = std::fs::metadata(path).ok()?;
        Some(Self { inode: found.ino(), size: found.size(), changed: (found.ctime(), found.ctime_nsec()) })
    }
}

/// Reads a PIN, one line end at its end left out.
pub(super) fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, PinError> {
    // A FIFO must not keep us waiting.
    let file =
        OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits() | OFlag::O_CLOEXEC.bits()).open(path);
    let mut file: File = file.map_err(PinError::Read)?;
    let found = file.metadata().map_err(PinError::Read)?;
    if !found.is_file() {
        return Err(PinError::Irregular);
    }
    let (mode, owner) = (found.mode() & 0o7777, found.uid());
    if mode & !MODE_MAX != 0 {
        return Err(PinError::Mode { mode });
    }
    if owner != 0 && owner != geteuid().as_raw() {
        return Err(PinError::Owner { owner });
    }
    // Room for the longest and its line end, and one more that shows that it is too long. It never grows.
    let mut pin = Zeroizing::new(vec![0; PIN_BYTES_MAX + 3]);
    let mut length = 0;
    while length < pin.len() {
        match file.read(&mut pin[length..]) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(PinError::Read(error)),
        }
    }
    if pin[..length].ends_with(b"\r\n") {
        length -= 2;
    } else if pin[..length].ends_with(b"\n") {
        length -= 1;
    }
    match length {
        0 => Err(PinError::Empty),
        1..=PIN_BYTES_MAX => {
            pin.truncate(length);
            Ok(pin)
        }
        _ => Err(PinError::Long),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_line_end_is_no_part_of_a_pin_and_a_bad_file_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("pin");
        let with = |text: &[u8], mode: u32| {
            drop(fs::remove_file(&path));
            fs::write(&path, text).expect("written");
            fs::set_permissions(&path, Permissions::from_mode(mode)).expect("set");
            read(&path).map(|pin| pin.to_vec())
        };
        for text in [&b"1234"[..], b"1234\n", b"1234\r\n"] {
            assert_eq!(with(text, 0o400).expect("it is good"), b"1234");
        }
        assert_eq!(with(b"1234\n\n", 0o600).expect("it is good"), b"1234\n");
        assert_eq!(with(&[b'x'; 256], 0o440).expect("it is good").len(), 256);
        assert!(matches!(with(&[b'x'; 257], 0o400), Err(PinError::Long)));
        assert!(matches!(with(b"\n", 0o400), Err(PinError::Empty)));
        assert!(matches!(with(b"", 0o400), Err(PinError::Empty)));
        assert!(matches!(with(b"1234", 0o644), Err(PinError::Mode { mode: 0o644 })));
        assert!(matches!(read(folder.path()), Err(PinError::Irregular)));
        assert!(matches!(read(&folder.path().join("none")), Err(PinError::Read(_))));
    }
}
