//! Maps as bytes: those of another layout, and walks over a million entries, for which aya would need a million calls.

use std::{io, os::fd::OwnedFd, path::Path};

use super::sys;

const BPF_MAP_UPDATE_ELEM: i64 = 2;
const BPF_MAP_LOOKUP_BATCH: i64 = 24;

const BPF_MAP_TYPE_HASH: u32 = 1;
const BPF_MAP_TYPE_ARRAY: u32 = 2;
const BPF_MAP_TYPE_LRU_HASH: u32 = 9;

/// Entries read by one call. Far more than a bucket holds, and the values of so many still fit a CPU's cache.
const BATCH: u32 = 4096;

/// `bpf_map_info` up to the sizes (`include/uapi/linux/bpf.h`).
#[repr(C)]
#[derive(Debug, Default)]
struct MapInfo {
    kind: u32,
    id: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    rest: [u32; 17],
}

#[repr(C)]
struct ElementAttr {
    map: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct BatchAttr {
    from: u64,
    next: u64,
    keys: u64,
    values: u64,
    count: u32,
    map: u32,
    element_flags: u64,
    flags: u64,
}

/// A pinned array or hash map.
#[derive(Debug)]
pub(super) struct RawMap {
    fd: OwnedFd,
    is_array: bool,
    key_size: usize,
    value_size: usize,
    /// Most entries.
    pub(super) max_entries: u32,
}

impl RawMap {
    /// Opens a pin. Values of maps for each CPU are longer than the kernel says, so such maps are refused.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let fd = sys::get(path)?;
        let mut info = MapInfo::default();
        // SAFETY: the kernel's layout, of integers only.
        unsafe { sys::info_by_fd(sys::number(&fd), &mut info)? };
        if ![BPF_MAP_TYPE_HASH, BPF_MAP_TYPE_ARRAY, BPF_MAP_TYPE_LRU_HASH].contains(&info.kind) {
            return Err(io::Error::other(format!("`{}` is no array or hash map", path.display())));
        }
        let size = |bytes: u32| usize::try_from(bytes).map_err(io::Error::other);
        Ok(Self {
            fd,
            is_array: info.kind == BPF_MAP_TYPE_ARRAY,
            key_size: size(info.key_size)?,
            value_size: size(info.value_size)?,
            max_entries: info.max_entries,
        })
    }

    /// Makes every word of an array 0.
    pub(super) fn zero(&self) -> io::Result<()> {
        if !self.is_array || self.key_size != size_of::<u32>() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let value = vec![0u8; self.value_size];
        for place in 0..self.max_entries {
            let key = place.to_ne_bytes();
            let (key, value) = (key.as_ptr() as u64, value.as_ptr() as u64);
            let mut attr = ElementAttr { map: sys::number(&self.fd), pad: 0, key, value, flags: 0 };
            sys::bpf(BPF_MAP_UPDATE_ELEM, &mut attr)?;
        }
        Ok(())
    }

    /// Hands each value to `see` once, as far as the map stands still. Ends early when `see` says false. Linux 5.6.
    pub(super) fn walk(&self, mut see: impl FnMut(&[u8]) -> bool) -> io::Result<()> {
        let room = |size: usize| usize::try_from(BATCH).map(|count| vec![0u8; count * size]).map_err(io::Error::other);
        let (mut keys, mut values) = (room(self.key_size)?, room(self.value_size)?);
        // Where a hash map goes on: the number of a bucket.
        let (mut from, mut next) = (0u32, 0u32);
        let mut is_first = true;
        loop {
            let mut attr = BatchAttr {
                from: if is_first { 0 } else { std::ptr::from_mut(&mut from) as u64 },
                next: std::ptr::from_mut(&mut next) as u64,
                keys: keys.as_mut_ptr() as u64,
                values: values.as_mut_ptr() as u64,
                count: BATCH,
                map: sys::number(&self.fd),
                element_flags: 0,
                flags: 0,
            };
            let is_last = match sys::bpf(BPF_MAP_LOOKUP_BATCH, &mut attr) {
                Ok(_) => false,
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => true,
                Err(error) => return Err(error),
            };
            let count = usize::try_from(attr.count).map_err(io::Error::other)?;
            if !values.chunks_exact(self.value_size).take(count).all(&mut see) || is_last {
                return Ok(());
            }
            (from, is_first) = (next, false);
        }
    }
}
