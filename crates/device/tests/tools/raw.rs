//! Two openings of one block device: the kernel decides (`O_EXCL`), and the lock.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use shoal_base::task::block_on;
use shoal_base::{BLOCK_BYTES, BLOCK_BYTES_U64};
use shoal_device::{Device, FileOptions, IoBuf, IoMode, OpenError, open};

use crate::machine::{Loop, tool};
use crate::skipped::skipped;

/// `O_EXCL` of Linux; to a block device it means: for me alone.
const O_EXCL: i32 = 0o200;

fn backing(folder: &Path) -> PathBuf {
    let path = folder.join("backing");
    File::create(&path).unwrap().set_len(4_096 * BLOCK_BYTES_U64).unwrap();
    path
}

fn to_write(path: &str) -> Result<Device, OpenError> {
    open(Path::new(path), &FileOptions::default())
}

fn to_read(path: &str) -> Result<Device, OpenError> {
    open(Path::new(path), &FileOptions { read_only: true, ..FileOptions::default() })
}

/// Claims a device exclusively, as another program would. The kernel releases a device that was just closed when its last requests have
/// ended, which may take some time on a loaded machine.
fn claim(path: &str) -> File {
    let started = Instant::now();
    loop {
        match OpenOptions::new().read(true).custom_flags(O_EXCL).open(path) {
            Err(error)
                if error.kind() == std::io::ErrorKind::ResourceBusy
                    && started.elapsed() < Duration::from_secs(20) =>
            {
                std::thread::sleep(Duration::from_millis(10));
            }
            opened => return opened.unwrap(),
        }
    }
}

fn is_in_use(opened: Result<Device, OpenError>) -> bool {
    matches!(opened, Err(OpenError::InUse { .. }))
}

/// A file system on it would be written over while the kernel uses it.
#[test]
fn a_mounted_device_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let backing = backing(folder.path());
    let (Some(mkfs), Some(mount)) = (tool("mkfs.ext4"), tool("mount")) else { return };
    assert!(Command::new(mkfs).args(["-q", "-F"]).arg(&backing).status().unwrap().success());
    let Some(raw) = Loop::over(&backing, &[]) else { return };
    let place = folder.path().join("place");
    fs::create_dir(&place).unwrap();
    if !Command::new(mount).arg(&raw.0).arg(&place).status().unwrap().success() {
        skipped("this machine lets nobody mount a file system");
        return;
    }
    let refused = (is_in_use(to_write(&raw.0)), is_in_use(to_read(&raw.0)));
    assert!(Command::new("umount").arg(&place).status().unwrap().success());
    assert_eq!(refused, (true, true), "for writing, for reading");
    to_write(&raw.0).unwrap();
}

#[test]
fn exclusively_opened_device_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let Some(raw) = Loop::over(&backing(folder.path()), &[]) else { return };
    let other = claim(&raw.0);
    assert!(is_in_use(to_write(&raw.0)) && is_in_use(to_read(&raw.0)));
    drop(other);
    let ours = to_write(&raw.0).unwrap();
    let other = OpenOptions::new().read(true).custom_flags(O_EXCL).open(&raw.0);
    assert_eq!(other.unwrap_err().kind(), std::io::ErrorKind::ResourceBusy, "we have it exclusively, too");
    assert!(is_in_use(to_write(&raw.0)) && is_in_use(to_read(&raw.0)));
    drop(ours);
    to_write(&raw.0).unwrap();
}

#[test]
fn readers_share_a_device_and_exclude_a_writer() {
    let folder = tempfile::tempdir().unwrap();
    let Some(raw) = Loop::over(&backing(folder.path()), &[]) else { return };
    let readers = [to_read(&raw.0).unwrap(), to_read(&raw.0).unwrap()];
    assert!(is_in_use(to_write(&raw.0)));
    drop(readers);
    to_write(&raw.0).unwrap();
}

#[test]
fn a_device_that_cannot_be_written_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let backing = backing(folder.path());
    fs::write(&backing, vec![9; 8 * BLOCK_BYTES_U64 as usize]).unwrap();
    let Some(raw) = Loop::over(&backing, &["--read-only"]) else { return };
    let refused = to_write(&raw.0).unwrap_err().to_string();
    assert!(refused.starts_with(&format!("cannot write to {}: Read-only", raw.0)), "{refused}");
    for io in [IoMode::Auto, IoMode::Threads] {
        let options = FileOptions { read_only: true, io, ..FileOptions::default() };
        let device = open(Path::new(&raw.0), &options).unwrap();
        assert_eq!(block_on(device.read(7, IoBuf::new(1))).ok().unwrap()[5], 9);
        assert!(block_on(device.write(7, IoBuf::new(1))).result.is_err());
        assert!(format!("{device:?}").contains("read-only"), "{device:?}");
    }
}

#[test]
fn a_raw_device_is_read_written_locked_and_does_not_grow() {
    let folder = tempfile::tempdir().unwrap();
    let backing = folder.path().join("backing");
    File::create(&backing).unwrap().set_len(64 * BLOCK_BYTES_U64 + 512).unwrap();
    let Some(raw) = Loop::over(&backing, &[]) else { return };
    let path = Path::new(&raw.0);
    let tagged = |tag: u8| IoBuf::copied_from(&[tag; BLOCK_BYTES]);
    let get = |device: &Device, block| block_on(device.read(block, IoBuf::new(1))).ok().unwrap()[0];
    for io in [IoMode::Uring, IoMode::Threads] {
        for direct in [true, false] {
            let options = FileOptions { direct, io, ..FileOptions::default() };
            let device = open(path, &options).unwrap();
            assert_eq!((device.blocks(), device.inner().can_grow()), (64, false));
            assert!(device.inner().grow(65).is_err() && device.inner().grow(64).is_ok());
            block_on(device.write(1, tagged(1)).in_background()).ok().unwrap();
            block_on(device.write_durable(2, tagged(2))).ok().unwrap();
            block_on(device.flush()).ok().unwrap();
            block_on(device.flush().in_background()).ok().unwrap();
            block_on(device.discard(8, 8)).ok().unwrap();
            block_on(device.discard(16, 8).in_background()).ok().unwrap();
            assert_eq!((get(&device, 1), get(&device, 2)), (1, 2));
            assert!(matches!(open(path, &options), Err(OpenError::InUse { .. })));
            println!("{device:?}");
        }
    }
}

/// A store in a file and a store on a loop device over it overwrote each other.
#[test]
fn a_loop_device_and_its_file_exclude_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let backing = backing(folder.path());
    let file = backing.to_str().unwrap();
    let Some(raw) = Loop::over(&backing, &["--partscan"]) else { return };
    let through = |opened: Result<Device, OpenError>| match opened {
        Err(OpenError::InUse { through, .. }) => through,
        other => panic!("{other:?}"),
    };
    let ours = to_write(file).unwrap();
    assert_eq!(through(to_write(&raw.0)).as_deref(), Some(backing.as_path()));
    assert_eq!(through(to_read(&raw.0)).as_deref(), Some(backing.as_path()));
    drop(ours);
    let ours = to_write(&raw.0).unwrap();
    assert!(is_in_use(to_write(file)) && is_in_use(to_read(file)));
    drop(ours);
    let readers = [to_read(&raw.0).unwrap(), to_read(file).unwrap()];
    assert!(is_in_use(to_write(file)) && is_in_use(to_write(&raw.0)));
    drop(readers);
    // Another process uses the loop device, and has no lock on the file.
    let other = claim(&raw.0);
    assert_eq!(through(to_write(file)).as_deref(), Some(Path::new(&raw.0)));
    drop(other);
    // A second loop device over the first one.
    let Some(second) = Loop::over(Path::new(&raw.0), &[]) else { return };
    let ours = to_write(file).unwrap();
    assert!(is_in_use(to_write(&second.0)));
    drop(ours);
    let ours = to_write(&second.0).unwrap();
    assert!(is_in_use(to_write(file)) && is_in_use(to_write(&raw.0)));
    drop(ours);
    drop(second);
    to_write(file).unwrap();
}

/// A partition is a separate device, and is stored in the file under its disk.
#[test]
fn a_partition_of_a_loop_device_excludes_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let backing = backing(folder.path());
    let file = backing.to_str().unwrap();
    // A table with one partition of 8 MiB from 1 MiB on.
    let mut table = vec![0; 512];
    table[450] = 0x83;
    table[454..458].copy_from_slice(&2_048_u32.to_le_bytes());
    table[458..462].copy_from_slice(&16_384_u32.to_le_bytes());
    table[510..].copy_from_slice(b"\x55\xaa");
    OpenOptions::new().write(true).open(&backing).unwrap().write_all_at(&table, 0).unwrap();
    let Some(raw) = Loop::over(&backing, &["--partscan"]) else { return };
    let partition = format!("{}p1", raw.0);
    let until = Instant::now() + Duration::from_secs(5);
    while !Path::new(&partition).exists() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    if !Path::new(&partition).exists() {
        skipped("this machine makes no partitions of loop devices");
        return;
    }
    let ours = to_write(file).unwrap();
    assert!(is_in_use(to_write(&partition)));
    drop(ours);
    let ours = to_write(&partition).unwrap();
    assert!(is_in_use(to_write(file)) && is_in_use(to_read(file)));
    drop(ours);
    to_write(file).unwrap();
}
