//! A regular file or a raw block device: opened with checks, a lock, direct I/O and the choice of the driver.
//!
//! The lock is taken on the descriptor of the I/O, so that it lives exactly until the last request completes. A raw device is also opened
//! with `O_EXCL`: the kernel then refuses one that is mounted or part of something else. A reader shares the lock with other readers, and
//! tests for exclusive users without keeping the device for itself.

use std::fs::{File, FileType, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use shoal_base::BLOCK_BYTES_U64;

use crate::below;
use crate::ring::{self, MakeRing};
use crate::storage::{Kind, Storage};
use crate::threads::{Pool, THREADS_DEFAULT};
use crate::transfer::Transfer;
use crate::uring::Uring;
use crate::{BlockDevice, Device, DeviceCounters, DeviceError, IoBuf, IoRequest, Op, Submission, sys};

/// Attempts for a lock that is held. A process that was killed with requests in an io_uring releases its lock only when the kernel has
/// finished them, shortly after the process is gone.
const LOCK_ATTEMPTS: u32 = 50;

/// The pause between two attempts.
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// Only its owner has access to a new data file.
const FILE_MODE: u32 = 0o600;

/// How requests are run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoMode {
    /// By io_uring, or by threads if the system refuses it (with one line in the log).
    #[default]
    Auto,
    /// By io_uring or not at all.
    Uring,
    /// By a pool of threads.
    Threads,
}

/// How to open a file or block device.
#[derive(Clone, Debug)]
pub struct FileOptions {
    /// Create the file, empty, if there is none. Not with `read_only`.
    pub create: bool,
    /// Only read: works on read-only files and devices, and beside other readers. Every other request fails.
    pub read_only: bool,
    /// How requests are run.
    pub io: IoMode,
    /// Bypass the page cache (`O_DIRECT`). If the file system refuses, the page cache is used, with one line in the log.
    pub direct: bool,
    /// Threads of the pool if threads run the requests; at least 1.
    pub threads: usize,
}

impl Default for FileOptions {
    fn default() -> Self {
        Self { create: false, read_only: false, io: IoMode::Auto, direct: true, threads: THREADS_DEFAULT }
    }
}

/// The reason why a file or block device could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no such file, and `create` is not set.
    #[error("{} does not exist", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// Another process has it open, or the system uses it (a mounted device).
    #[error("{} is in use by another process{}", path.display(), below::words(through.as_deref()))]
    InUse {
        /// The file.
        path: PathBuf,
        /// The other name of the same bytes that is in use: the file under a loop device, or a loop device over the file.
        through: Option<PathBuf>,
    },
    /// Neither a regular file nor a block device.
    #[error("{} is neither a regular file nor a block device", path.display())]
    WrongKind {
        /// The file.
        path: PathBuf,
    },
    /// The sectors of the device do not fit into blocks.
    #[error("{} has sectors of {sector_bytes} bytes; they must divide 4096", path.display())]
    Sectors {
        /// The device.
        path: PathBuf,
        /// Its sectors.
        sector_bytes: u64,
    },
    /// io_uring was required, and the system refuses it.
    #[error("io_uring is not available ({source}); `threads` or `auto` work without it")]
    UringRefused {
        /// The system's error.
        source: io::Error,
    },
    /// Another error of the system.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The action that failed.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// Makes a file that reaches the process's limit of file sizes (`RLIMIT_FSIZE`) return an error, as a full disk does; without it the system
/// kills the process by a signal. For programs, at their start: it holds for the whole process.
pub fn survive_size_limit() {
    sys::ignore_size_signal();
}

/// Opens `path`, locks it and starts the driver of its requests. Blocks while a lock is being released, half a second at most. Ignores a
/// part of a block at the end of the file.
///
/// # Errors
/// As [`OpenError`] lists them.
pub fn open(path: &Path, options: &FileOptions) -> Result<Device, OpenError> {
    open_with(path, options, ring::shared)
}

/// Opens the file under which the new file `path` is made, and creates it if there is none. Returns its name, too.
///
/// # Errors
/// As [`open`]; [`OpenError::WrongKind`] if the name is not of a file itself but of a link, for instance.
pub fn open_unfinished(path: &Path, options: &FileOptions) -> Result<(PathBuf, Device), OpenError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".unfinished");
    let name = PathBuf::from(name);
    if std::fs::symlink_metadata(&name).is_ok_and(|found| !found.is_file()) {
        return Err(OpenError::WrongKind { path: name });
    }
    let device = open(&name, &FileOptions { create: true, ..options.clone() })?;
    Ok((name, device))
}

/// Renames the file `from` to `to`, durably. If `to` exists already, both files stay.
///
/// # Errors
/// [`OpenError::Io`]; its source is [`io::ErrorKind::AlreadyExists`] if there is a file of that name.
pub fn give_name(from: &Path, to: &Path) -> Result<(), OpenError> {
    // Unlike a rename, a link never replaces a file that another process made meanwhile.
    match std::fs::hard_link(from, to) {
        Ok(()) => std::fs::remove_file(from).map_err(at(from, "remove"))?,
        // Not every file system has links, and not every one of these checks the new name itself.
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => match sys::rename_new(from, to) {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput && !to.exists() => {
                std::fs::rename(from, to).map_err(at(to, "create"))?;
            }
            renamed => renamed.map_err(at(to, "create"))?,
        },
        Err(error) => return Err(at(to, "create")(error)),
    }
    File::open(folder_of(to)).and_then(|folder| folder.sync_all()).map_err(at(to, "make durable the name of"))
}

/// [`open`] with a choice of the ring's constructor: tests make it fail.
fn open_with(path: &Path, options: &FileOptions, make_ring: MakeRing) -> Result<Device, OpenError> {
    let storage = Arc::new(open_storage(path, options)?);
    if options.io != IoMode::Threads {
        match Uring::start(storage.clone(), make_ring) {
            Ok(uring) => return Ok(FileDevice::driven(storage, Driver::Uring(uring))),
            Err(source) if options.io == IoMode::Uring => return Err(OpenError::UringRefused { source }),
            Err(error) => tracing::warn!(
                path = %path.display(), %error, threads = options.threads.max(1),
                "io_uring is not available here; a pool of threads does the I/O"
            ),
        }
    }
    let pool = Pool::start(storage.clone(), options.threads.max(1)).map_err(at(path, "start threads for"))?;
    Ok(FileDevice::driven(storage, Driver::Threads(pool)))
}

/// The driver of the requests.
enum Driver {
    Uring(Uring),
    Threads(Pool),
}

/// An open file or block device, and the driver of its requests.
struct FileDevice {
    storage: Arc<Storage>,
    driver: Driver,
}

impl FileDevice {
    fn driven(storage: Arc<Storage>, driver: Driver) -> Device {
        Device::new(Arc::new(Self { storage, driver }))
    }
}

impl BlockDevice for FileDevice {
    fn submit(&self, submissions: Vec<Submission>) {
        let admitted = submissions.into_iter().filter_map(|submission| self.storage.admit(submission));
        match &self.driver {
            Driver::Uring(uring) => uring.submit(admitted),
            Driver::Threads(pool) => pool.submit(admitted.collect(), None),
        }
    }

    fn execute(&self, submissions: Vec<Submission>) {
        let admitted = submissions.into_iter().filter_map(|submission| self.storage.admit(submission));
        match &self.driver {
            Driver::Uring(uring) => uring.execute(admitted),
            Driver::Threads(pool) => pool.execute(admitted),
        }
    }

    fn run(&self, request: IoRequest<'_>) -> Option<Result<(), DeviceError>> {
        Some(self.storage.serve(&request))
    }

    fn blocks(&self) -> u64 {
        self.storage.blocks()
    }

    fn measure(&self) -> io::Result<u64> {
        self.storage.measure()
    }

    fn room(&self) -> Option<u64> {
        self.storage.room()
    }

    fn taken(&self) -> u64 {
        self.storage.taken()
    }

    fn tail(&self) -> io::Result<Vec<u8>> {
        self.storage.tail()
    }

    fn data_after(&self, block: u64) -> Option<io::Result<Range<u64>>> {
        self.storage.data_after(block)
    }

    fn grow(&self, blocks: u64) -> io::Result<()> {
        self.storage.lengthen(blocks, true)
    }

    fn allocates(&self) -> bool {
        self.storage.allocates()
    }

    fn extend(&self, blocks: u64) -> io::Result<()> {
        self.storage.lengthen(blocks, false)
    }

    fn shrink(&self, blocks: u64) -> io::Result<()> {
        self.storage.shrink(blocks)
    }

    fn hold_room(&self, blocks: Range<u64>) -> io::Result<bool> {
        self.storage.hold_room(blocks)
    }

    fn is_copied_on_write(&self) -> bool {
        self.storage.is_copied_on_write()
    }

    fn displaced(&self) -> Option<String> {
        self.storage.displaced()
    }

    fn shortened(&self, needed: u64) -> Option<String> {
        self.storage.shortened(needed)
    }

    fn is_cached(&self) -> bool {
        self.storage.is_cached()
    }

    fn describe(&self) -> String {
        match &self.driver {
            Driver::Uring(_) => self.storage.describe("io_uring"),
            Driver::Threads(pool) => self.storage.describe(&format!("{} threads", pool.threads())),
        }
    }

    fn path(&self) -> Option<PathBuf> {
        Some(self.storage.path().to_owned())
    }

    fn can_grow(&self) -> bool {
        self.storage.can_grow()
    }

    fn may_hold_foreign(&self) -> bool {
        true
    }

    fn counters(&self) -> DeviceCounters {
        self.storage.counters()
    }
}

fn at(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> OpenError {
    let path = path.to_owned();
    move |source| OpenError::Io { action, path, source }
}

pub(crate) fn open_storage(path: &Path, options: &FileOptions) -> Result<Storage, OpenError> {
    let (mut file, kind, below) = open_locked(path, options)?;
    if kind == Kind::Raw {
        let sector_bytes = sector_bytes(&file, path)?;
        check_sectors(sector_bytes, path)?;
        if !options.read_only && sys::raw_is_read_only(&file).map_err(at(path, "look at"))? {
            return Err(at(path, "write to")(io::Error::from_raw_os_error(libc::EROFS)));
        }
    }
    // The end of a block device is its size, too.
    let bytes = file.seek(SeekFrom::End(0)).map_err(at(path, "ask for the size of"))?;
    let direct = options.direct && use_direct(&file, path);
    Ok(Storage::new(file, path.to_owned(), kind, direct, options.read_only, bytes).with_below(below))
}

fn sector_bytes(file: &File, path: &Path) -> Result<u64, OpenError> {
    sys::raw_sector_bytes(file).map_err(at(path, "ask for the sector size of"))
}

/// Blocks must be whole sectors.
fn check_sectors(sector_bytes: u64, path: &Path) -> Result<(), OpenError> {
    if sector_bytes == 0 || !BLOCK_BYTES_U64.is_multiple_of(sector_bytes) {
        return Err(OpenError::Sectors { path: path.to_owned(), sector_bytes });
    }
    Ok(())
}

/// Opens and locks, with repeats for a while if another process holds it. Returns the locked files under a block device, too.
fn open_locked(path: &Path, options: &FileOptions) -> Result<(File, Kind, Vec<File>), OpenError> {
    for attempt in 1.. {
        match try_open_locked(path, options) {
            Err(OpenError::InUse { .. }) if attempt < LOCK_ATTEMPTS => thread::sleep(LOCK_PAUSE),
            opened => return opened,
        }
    }
    unreachable!("the last attempt returns")
}

/// The same bytes may have other names: both ways to them take one lock.
fn try_open_locked(path: &Path, options: &FileOptions) -> Result<(File, Kind, Vec<File>), OpenError> {
    let (file, kind) = open_descriptor(path, options)?;
    let in_use = |through| OpenError::InUse { path: path.to_owned(), through };
    match below::lock(&file, options.read_only) {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(in_use(None)),
        Err(TryLockError::Error(error)) => return Err(at(path, "lock")(error)),
    }
    let below = match kind {
        Kind::Raw => below::lock_files(&file, options.read_only).map_err(|through| in_use(Some(through)))?,
        Kind::Regular => Vec::new(),
    };
    if kind == Kind::Regular
        && !options.read_only
        && let Some(device) = below::loop_device_in_use(&file)
    {
        return Err(in_use(Some(device)));
    }
    Ok((file, kind, below))
}

fn open_descriptor(path: &Path, options: &FileOptions) -> Result<(File, Kind), OpenError> {
    let create = options.create && !options.read_only;
    let wrong_kind = || OpenError::WrongKind { path: path.to_owned() };
    let expected = match std::fs::metadata(path) {
        Ok(metadata) => kind_of(metadata.file_type()).ok_or_else(wrong_kind)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound && create => {
            create_file(path).map_err(at(path, "create"))?;
            Kind::Regular
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(OpenError::Missing { path: path.to_owned() });
        }
        Err(error) => return Err(at(path, "look at")(error)),
    };
    let open = |flags| {
        let opened = OpenOptions::new().read(true).write(!options.read_only).custom_flags(flags).open(path);
        opened.map_err(|error| not_opened(error, path))
    };
    let file = match (expected, options.read_only) {
        (Kind::Regular, _) => open(0)?,
        (Kind::Raw, false) => open(libc::O_EXCL)?,
        (Kind::Raw, true) => {
            // Several may read: the test for an exclusive user is made, and its result not kept.
            drop(open(libc::O_EXCL)?);
            open(0)?
        }
    };
    // The path may name another file by now.
    let found = kind_of(file.metadata().map_err(at(path, "look at"))?.file_type());
    let kind = found.filter(|kind| *kind == expected).ok_or_else(wrong_kind)?;
    Ok((file, kind))
}

fn not_opened(error: io::Error, path: &Path) -> OpenError {
    // A block device that is mounted or that another process has exclusively.
    if error.raw_os_error() == Some(libc::EBUSY) {
        return OpenError::InUse { path: path.to_owned(), through: None };
    }
    at(path, "open")(error)
}

fn kind_of(file_type: FileType) -> Option<Kind> {
    if file_type.is_file() {
        Some(Kind::Regular)
    } else if file_type.is_block_device() {
        Some(Kind::Raw)
    } else {
        None
    }
}

/// Creates an empty file and makes its name durable.
fn create_file(path: &Path) -> io::Result<()> {
    match OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(path) {
        // Overwrites that need room would fail on a full disk. The store has its own checksums.
        Ok(file) if sys::is_copied_on_write(&file).unwrap_or(false) => {
            if let Err(error) = sys::overwrite_in_place(&file) {
                tracing::info!(path = %path.display(), %error, "the data file is copied on write");
            }
        }
        Ok(_) => {}
        // Another process was faster: the lock decides which one gets it.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        Err(error) => return Err(error),
    }
    File::open(folder_of(path))?.sync_all()
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Switches direct I/O on if the file system takes it for whole blocks. Some take the flag and refuse the reads, so one
/// is tried.
fn use_direct(file: &File, path: &Path) -> bool {
    let works = sys::set_direct(file, true).and_then(|()| {
        let mut probe = IoBuf::new(1);
        sys::read(file, &Transfer::new(&IoRequest::lent(Op::Read, 0, &mut probe)))
    });
    let Err(error) = works else { return true };
    let switched_off = sys::set_direct(file, false);
    tracing::info!(path = %path.display(), %error, ?switched_off, "no direct I/O here; the page cache is used");
    false
}

#[cfg(test)]
mod tests;
