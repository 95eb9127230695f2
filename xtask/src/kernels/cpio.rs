//! An initramfs: an archive of the form "newc", as the kernel reads it
//! (Documentation/driver-api/early-userspace/buffer-format.rst).

use std::io::{self, Write};

const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const CHARACTER_DEVICE: u32 = 0o020_600;

/// Writes entries; a folder goes before what is in it.
pub(super) struct Archive<W> {
    to: W,
    /// The next inode's number.
    number: u32,
    /// Folders that are in it.
    folders: Vec<String>,
}

impl<W: Write> Archive<W> {
    pub(super) const fn new(to: W) -> Self {
        Self { to, number: 1, folders: Vec::new() }
    }

    /// A folder and those above it, by its absolute path.
    pub(super) fn folder(&mut self, path: &str) -> io::Result<()> {
        let path = path.trim_matches('/');
        let ends = path.match_indices('/').map(|(end, _)| end).chain([path.len()]);
        for part in ends.filter_map(|end| path.get(..end)).filter(|part| !part.is_empty()) {
            if !self.folders.iter().any(|known| known == part) {
                self.folders.push(part.to_owned());
                self.entry(part, FOLDER, (0, 0), &[])?;
            }
        }
        Ok(())
    }

    /// A file that may be run, and the folders above it.
    pub(super) fn file(&mut self, path: &str, content: &[u8]) -> io::Result<()> {
        if let Some((folder, _)) = path.rsplit_once('/') {
            self.folder(folder)?;
        }
        self.entry(path.trim_matches('/'), PROGRAM, (0, 0), content)
    }

    /// A character device, by its major and minor number.
    pub(super) fn device(&mut self, path: &str, numbers: (u32, u32)) -> io::Result<()> {
        if let Some((folder, _)) = path.rsplit_once('/') {
            self.folder(folder)?;
        }
        self.entry(path.trim_matches('/'), CHARACTER_DEVICE, numbers, &[])
    }

    /// Writes the trailer, without which the kernel takes the archive for a broken one.
    pub(super) fn finish(mut self) -> io::Result<W> {
        self.entry("TRAILER!!!", 0, (0, 0), &[])?;
        Ok(self.to)
    }

    fn entry(&mut self, name: &str, mode: u32, device: (u32, u32), content: &[u8]) -> io::Result<()> {
        let too_big = |_| io::Error::new(io::ErrorKind::FileTooLarge, name.to_owned());
        let size = u32::try_from(content.len()).map_err(too_big)?;
        let name_size = u32::try_from(name.len() + 1).map_err(too_big)?;
        // Inode, mode, user, group, links, time, size, place of the filesystem (2), device (2), length of the name, sum.
        let fields = [self.number, mode, 0, 0, 1, 0, size, 0, 0, device.0, device.1, name_size, 0];
        self.number += 1;
        let fields: Vec<_> = fields.iter().map(|field| format!("{field:08x}")).collect();
        let head = format!("070701{}", fields.concat());
        self.padded(&[head.as_bytes(), name.as_bytes(), b"\0"])?;
        self.padded(&[content])
    }

    /// Both the head with its name and the content end at a multiple of four bytes.
    fn padded(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        let mut len = 0;
        for part in parts {
            self.to.write_all(part)?;
            len += part.len();
        }
        self.to.write_all(&[0; 3][..len.next_multiple_of(4) - len])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_the_form_that_the_kernel_reads() {
        let mut archive = Archive::new(Vec::new());
        archive.file("/lib/x", b"12345").expect("memory takes it");
        archive.device("/dev/console", (5, 1)).expect("memory takes it");
        let bytes = archive.finish().expect("memory takes it");
        let text = String::from_utf8(bytes).expect("all of it is text");

        let want = concat!(
            "07070100000001000041ed000000000000000000000001000000000000000000000000000000000000000000000000000000040000000\
             0lib\0\0\0",
            "07070100000002000081ed00000000000000000000000100000000000000050000000000000000000000000000000000000006000000\
             00lib/x\0",
            "12345\0\0\0",
            "07070100000003000041ed0000000000000000000000010000000000000000000000000000000000000000000000000000000400000\
             000dev\0\0\0",
            "0707010000000400002180000000000000000000000001000000000000000000000000000000000000000500000001\
             0000000c00000000dev/console\0\0\0",
        );
        let trailer = "0707010000000500000000000000000000000000000001000000000000000000000000000000000000000000000000\
                       0000000b00000000TRAILER!!!\0\0\0\0";
        assert_eq!(text, format!("{want}{trailer}"));
    }

    #[test]
    fn a_folder_is_written_once() {
        let mut archive = Archive::new(Vec::new());
        for path in ["/a/b", "/a/b/c", "/a"] {
            archive.folder(path).expect("memory takes it");
        }

        assert_eq!(archive.folders, ["a", "a/b", "a/b/c"]);
    }
}
