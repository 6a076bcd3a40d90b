//! The system calls that the standard library does not offer.
//!
//! These functions know no requests ([`crate::transfer`] does) and retry nothing. They return the system's error as it is.

#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::transfer::Transfer;

/// Discards a range of a block device: number 119 of the group in which `BLKSSZGET` is 104, encoded alike.
const BLKDISCARD: libc::Ioctl = libc::BLKSSZGET + (119 - 104);

/// Tests if a block device takes no writes: number 94 of the same group.
const BLKROGET: libc::Ioctl = libc::BLKSSZGET - (104 - 94);

fn checked(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

fn checked_int(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The window of `transfer` in the form of the C interface: pointer, count, offset in the file.
fn arguments<R>(transfer: &Transfer<R>) -> io::Result<(*const libc::iovec, libc::c_int, libc::off_t)> {
    let window = transfer.window();
    let count = libc::c_int::try_from(window.len()).map_err(io::Error::other)?;
    let offset = libc::off_t::try_from(transfer.offset()).map_err(io::Error::other)?;
    Ok((window.as_ptr(), count, offset))
}

/// Reads once into the rest of `transfer`'s memory. Returns the bytes read.
pub(crate) fn read<R>(file: &File, transfer: &Transfer<R>) -> io::Result<usize> {
    let (iovecs, count, offset) = arguments(transfer)?;
    // SAFETY: the transfer owns the request whose memory the iovecs name, and a read's memory may be written to.
    checked(unsafe { libc::preadv(file.as_raw_fd(), iovecs, count, offset) })
}

/// Writes once from the rest of `transfer`'s memory. Returns the bytes written.
pub(crate) fn write<R>(file: &File, transfer: &Transfer<R>, durable: bool) -> io::Result<usize> {
    let (iovecs, count, offset) = arguments(transfer)?;
    let fd = file.as_raw_fd();
    // SAFETY: the transfer owns the request whose memory the iovecs name.
    checked(unsafe {
        if durable {
            libc::pwritev2(fd, iovecs, count, offset, libc::RWF_DSYNC)
        } else {
            libc::pwritev(fd, iovecs, count, offset)
        }
    })
}

/// Switches direct I/O on for an open descriptor.
pub(crate) fn set_direct(file: &File, direct: bool) -> io::Result<()> {
    let fd = file.as_raw_fd();
    // SAFETY: takes and returns numbers only.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    checked_int(flags)?;
    let flags = if direct { flags | libc::O_DIRECT } else { flags & !libc::O_DIRECT };
    // SAFETY: takes and returns numbers only.
    checked_int(unsafe { libc::fcntl(fd, libc::F_SETFL, flags) })
}

/// Allocates `bytes` bytes from `offset` on and makes the file long enough for them.
pub(crate) fn allocate(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    fallocate(file, 0, offset, bytes)
}

/// Allocates `bytes` bytes from `offset` on for this file alone: holes are filled, and parts that it shares with other files are copied.
/// Not every file system can copy; if it cannot, only holes are filled.
pub(crate) fn allocate_unshared(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    match fallocate(file, libc::FALLOC_FL_UNSHARE_RANGE, offset, bytes) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL)) => {
            fallocate(file, libc::FALLOC_FL_KEEP_SIZE, offset, bytes)
        }
        done => done,
    }
}

/// The flag of a file whose blocks are overwritten in place, on file systems that write elsewhere by default.
const NO_COPY_ON_WRITE: libc::c_long = 0x0080_0000;

/// The type of btrfs, as `fstatfs` returns it.
const BTRFS: u32 = 0x9123_683E;

/// Returns true if each write to a file goes to a new place of its file system, which needs room there.
pub(crate) fn is_copied_on_write(file: &File) -> io::Result<bool> {
    let mut found = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the kernel writes a `statfs` to the address, or returns an error.
    checked_int(unsafe { libc::fstatfs(file.as_raw_fd(), found.as_mut_ptr()) })?;
    // SAFETY: the call succeeded, so all of it is written.
    let kind = unsafe { found.assume_init() }.f_type as u32;
    Ok(kind == BTRFS && file_flags(file)? & NO_COPY_ON_WRITE == 0)
}

fn file_flags(file: &File) -> io::Result<libc::c_long> {
    let mut flags: libc::c_long = 0;
    // SAFETY: the kernel writes an `int`, or a `long`, to the address.
    checked_int(unsafe { libc::ioctl(file.as_raw_fd(), libc::FS_IOC_GETFLAGS, &raw mut flags) })?;
    Ok(flags)
}

/// Has the blocks of an empty file overwritten in place.
pub(crate) fn overwrite_in_place(file: &File) -> io::Result<()> {
    let flags = file_flags(file)? | NO_COPY_ON_WRITE;
    // SAFETY: the kernel reads an `int`, or a `long`, from the address.
    checked_int(unsafe { libc::ioctl(file.as_raw_fd(), libc::FS_IOC_SETFLAGS, &raw const flags) })
}

/// Bytes that a user without special rights may still write in the file system of a file.
pub(crate) fn free_bytes(file: &File) -> io::Result<u64> {
    let mut found = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the kernel writes a `statvfs` to the address, or returns an error.
    checked_int(unsafe { libc::fstatvfs(file.as_raw_fd(), found.as_mut_ptr()) })?;
    // SAFETY: the call succeeded, so all of it is written.
    let found = unsafe { found.assume_init() };
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}

/// The first byte from `offset` on that may hold data (`SEEK_DATA`), or that starts a hole (`SEEK_HOLE`). Moves the descriptor's position.
pub(crate) fn seek(file: &File, offset: u64, whence: libc::c_int) -> io::Result<u64> {
    let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
    // SAFETY: takes and returns numbers only.
    let found = unsafe { libc::lseek(file.as_raw_fd(), offset, whence) };
    u64::try_from(found).map_err(|_| io::Error::last_os_error())
}

/// Renames a file unless the new name exists.
pub(crate) fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    let name = |path: &Path| CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other);
    let (from, to) = (name(from)?, name(to)?);
    let here = libc::AT_FDCWD;
    // SAFETY: both names end with a zero byte and outlive the call.
    checked_int(unsafe { libc::renameat2(here, from.as_ptr(), here, to.as_ptr(), libc::RENAME_NOREPLACE) })
}

/// Releases the space of a range of a file; the range reads as zeros.
pub(crate) fn punch_hole(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    fallocate(file, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, offset, bytes)
}

fn fallocate(file: &File, mode: libc::c_int, offset: u64, bytes: u64) -> io::Result<()> {
    let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
    let bytes = libc::off_t::try_from(bytes).map_err(io::Error::other)?;
    // SAFETY: takes numbers only.
    checked_int(unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, bytes) })
}

/// Size of the sectors of a raw block device in bytes.
pub(crate) fn raw_sector_bytes(file: &File) -> io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the kernel writes an `int` to the address.
    checked_int(unsafe { libc::ioctl(file.as_raw_fd(), libc::BLKSSZGET, &raw mut bytes) })?;
    Ok(u64::from(bytes.unsigned_abs()))
}

/// Returns true if a raw block device takes no writes. It may be opened for writing all the same.
pub(crate) fn raw_is_read_only(file: &File) -> io::Result<bool> {
    let mut read_only: libc::c_int = 0;
    // SAFETY: the kernel writes an `int` to the address.
    checked_int(unsafe { libc::ioctl(file.as_raw_fd(), BLKROGET, &raw mut read_only) })?;
    Ok(read_only != 0)
}

/// Discards a range of a raw block device, whose contents have no value.
pub(crate) fn raw_discard(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    let range = [offset, bytes];
    // SAFETY: the kernel reads two 64-bit numbers from the address.
    checked_int(unsafe { libc::ioctl(file.as_raw_fd(), BLKDISCARD, range.as_ptr()) })
}

/// Makes writes beyond `RLIMIT_FSIZE` fail with `EFBIG` instead of ending the process by SIGXFSZ.
pub(crate) fn ignore_size_signal() {
    // SAFETY: no handler runs; the signal is ignored.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}
