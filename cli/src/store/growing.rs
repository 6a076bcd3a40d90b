//! Growth of a store: its cap, the room of the file system, and warnings about both.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::bail;
use shoal_base::BLOCK_BYTES_U64;
use shoal_device::Device;
use shoal_engine::Store;

use crate::arguments::size::Size;

/// Divisor of the cap: a device larger by less than this share is not logged.
const WORTH_SAYING: u64 = 64;

/// The new cap of a store with a cap of `cap` blocks, in blocks; none if it keeps its cap. Without a `size` the store takes all of a
/// device.
///
/// # Errors
/// A cap that the store cannot have, with the reason.
pub(crate) fn new_cap(
    path: &Path,
    device: &Device,
    cap: u64,
    size: Option<Size>,
) -> anyhow::Result<Option<u64>> {
    let is_device = !device.inner().can_grow();
    let blocks = match size {
        Some(size) => size.0 / BLOCK_BYTES_U64,
        None if is_device => device.blocks(),
        None => bail!("--size is missing: how large the store in the file {} may become", path.display()),
    };
    if blocks < cap {
        bail!(
            "the store has at most {} and cannot shrink to {}: objects may be stored in any part of it. For a smaller store \
             make a new one: `shoal backup`, then `shoal restore --data NEW --size {}`",
            bytes(cap),
            bytes(blocks),
            size.map_or_else(|| "SIZE".to_owned(), |size| short(size.0)),
        );
    }
    if is_device && blocks > device.blocks() {
        bail!(
            "the store cannot grow to {}: the device {} has {}. Enlarge the device first, then grow the store",
            bytes(blocks),
            path.display(),
            bytes(device.blocks())
        );
    }
    Ok((blocks > cap).then_some(blocks))
}

/// The cap that an opening for writing sets, in blocks. On a device the store takes the whole device. A smaller size than the current
/// one changes nothing and is no error: the configuration file may be older than a growth.
pub(crate) fn cap_at_opening(path: &Path, device: &Device, cap: u64, size: Option<Size>) -> Option<u64> {
    let Some(size) = size else {
        say_larger_device(path, device, cap);
        return None;
    };
    let there = if device.inner().can_grow() { u64::MAX } else { device.blocks() };
    let blocks = (size.0 / BLOCK_BYTES_U64).min(there);
    if blocks < cap {
        tracing::warn!(
            "--size {} is less than what {} may have ({}): a store cannot shrink, so its size stays",
            short(size.0),
            path.display(),
            bytes(cap)
        );
    }
    (blocks > cap).then_some(blocks)
}

/// Warns that a device became larger than its store.
fn say_larger_device(path: &Path, device: &Device, cap: u64) {
    if device.inner().can_grow() || device.blocks() <= cap + cap / WORTH_SAYING {
        return;
    }
    tracing::warn!(
        "the device {0} has {1}, and its store uses {2} of it: `shoal grow` lets it use all, or a start with --size",
        path.display(),
        bytes(device.blocks()),
        bytes(cap),
    );
}

/// The maximum bytes of the data file `path` in `folder`, with the free space of its file system; none if unknown.
pub(crate) fn room(folder: &Path, path: &Path) -> Option<Size> {
    let disk = rustix::fs::statvfs(folder).ok()?;
    let has = std::fs::metadata(path).map_or(0, |file| file.blocks() * 512);
    Some(Size(disk.f_bavail.saturating_mul(disk.f_frsize).saturating_add(has)))
}

/// Checks that a file of `blocks` blocks has room to grow to `wanted`; with `force` it only warns. The engine refuses impossible sizes.
///
/// # Errors
/// The file system has no room, and the size cannot be reduced later.
pub(crate) fn check_room(
    file: &str,
    blocks: u64,
    wanted: Size,
    room: Option<Size>,
    force: bool,
) -> anyhow::Result<()> {
    let blocks_max = wanted.0 / BLOCK_BYTES_U64;
    let map = Store::map_bytes(blocks_max, blocks).zip(Store::map_bytes(blocks_max, blocks_max));
    let (Some(room), Some((now, later))) = (room.filter(|room| wanted > *room), map) else { return Ok(()) };
    if force {
        tracing::warn!("{}", beyond_room(file, wanted, room));
        return Ok(());
    }
    bail!(
        "{file} cannot get {wanted}: its file system has room for {room} of it. A size cannot be taken back. The map of the free space of \
         such a store takes {} of the disk now, and up to {} as it fills. Give a size that fits; if the file system is to be enlarged, \
         --force takes this one all the same",
        Size(now),
        Size(later)
    )
}

/// The warning that the file system of `file` has room for only `room` of the `wanted` bytes.
pub(crate) fn beyond_room(file: &str, wanted: Size, room: Size) -> String {
    format!(
        "{file} may have {wanted}, but its file system has room for {room} of it only: the store is full when the file system is. Make \
         room there, or enlarge it"
    )
}

fn bytes(blocks: u64) -> Size {
    Size(blocks.saturating_mul(BLOCK_BYTES_U64))
}

/// A size as an option takes it.
fn short(bytes: u64) -> String {
    let units = [(40, "T"), (30, "G"), (20, "M"), (10, "K")];
    let whole = units.into_iter().find(|&(shift, _)| bytes > 0 && bytes.trailing_zeros() >= shift);
    whole.map_or_else(|| bytes.to_string(), |(shift, unit)| format!("{}{unit}", bytes >> shift))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use shoal_device::MemDevice;

    use super::*;

    fn cap_of(device: &Device, size: Option<u64>) -> Result<Option<u64>, String> {
        let size = size.map(|blocks| Size(blocks * BLOCK_BYTES_U64));
        new_cap(Path::new("/srv/it"), device, 1024, size).map_err(|error| error.to_string())
    }

    #[test]
    fn file_grows_to_any_size_and_device_to_its_end() {
        let file = Device::new(Arc::new(MemDevice::growable(1024)));
        let device = Device::new(Arc::new(MemDevice::new(2048)));
        for it in [&file, &device] {
            assert_eq!(cap_of(it, Some(1024)), Ok(None));
            assert_eq!(cap_of(it, Some(1025)), Ok(Some(1025)));
            let why = cap_of(it, Some(512)).unwrap_err();
            assert!(why.contains("cannot shrink to 2.0 MiB") && why.contains("--size 2M"), "{why}");
        }
        assert_eq!(cap_of(&file, Some(1 << 30)), Ok(Some(1 << 30)));
        assert!(cap_of(&file, None).unwrap_err().contains("--size is missing"));
        assert_eq!(cap_of(&device, None), Ok(Some(2048)));
        let why = cap_of(&device, Some(2049)).unwrap_err();
        assert!(why.contains("the device /srv/it has 8.0 MiB"), "{why}");
    }

    /// A server with the size from before a growth in its configuration file starts.
    #[test]
    fn a_smaller_size_at_an_opening_changes_nothing() {
        let file = Device::new(Arc::new(MemDevice::growable(1024)));
        let cap = |size| cap_at_opening(Path::new("/srv/it"), &file, 1024, size);
        assert_eq!(cap(None), None);
        assert_eq!(cap(Some(Size(512 * BLOCK_BYTES_U64))), None);
        assert_eq!(cap(Some(Size(2048 * BLOCK_BYTES_U64))), Some(2048));
        let device = Device::new(Arc::new(MemDevice::new(1500)));
        let cap = |size| cap_at_opening(Path::new("/srv/it"), &device, 1024, Some(Size(size)));
        assert_eq!(cap(1 << 40), Some(1500), "all that the device has, as when the store was made");
    }

    /// 40 TiB on a disk with 66 GiB wrote 5.2 GiB of map at once.
    #[test]
    fn oversized_growth_error_includes_map_size() {
        let (wanted, room) = (Size(40 << 40), Size(66 << 30));
        let check = |wanted, room, force| {
            check_room("the file", 3_000, wanted, room, force).map_err(|error| error.to_string())
        };
        let why = check(wanted, Some(room), false).unwrap_err();
        assert!(
            why.contains("has room for 66.0 GiB")
                && why.contains("takes 4.0 MiB of the disk now, and up to 5.2 GiB"),
            "{why}"
        );
        assert!(why.contains("--force"), "{why}");
        assert_eq!(check(wanted, Some(room), true), Ok(()));
        assert_eq!(check(room, Some(room), false), Ok(()));
        assert_eq!(check(wanted, None, false), Ok(()), "not known");
        assert_eq!(
            check(Size(65 << 40), Some(room), false),
            Ok(()),
            "no store can have that, which is said later"
        );
    }

    #[test]
    fn sizes_print_in_option_syntax() {
        for text in ["200G", "1T", "1536M", "4K", "4097", "0"] {
            assert_eq!(short(text.parse::<Size>().unwrap().0), text);
        }
    }
}
