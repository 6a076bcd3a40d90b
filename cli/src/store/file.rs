//! The data file: created and formatted if it does not exist, opened if it does.
//!
//! The only file of this crate that opens devices and stores. Only [`format`] formats an existing file or block device, and only
//! `shoal format` calls it.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use shoal_base::BLOCK_BYTES_U64;
use shoal_device::file::{self, FileOptions, IoMode, OpenError};
use shoal_device::{Device, blank};
use shoal_engine::{Environment, Error, FormatOptions, OpenOptions, Store, Tuning};

use crate::arguments::size::Size;
use crate::store::growing;

/// With a smaller cache the process keeps less I/O memory, and takes no huge pages. Each takes 2 MiB even if only a part of it is used,
/// mostly in the allocator's memory: 40 MiB with a cache of 32 MiB under load (docs/measurements/performance-log.md).
const HUGE_PAGES_FROM: Size = Size(256 << 20);

/// The maximum age of a snapshot, which keeps space from reuse.
pub(crate) const SNAPSHOT_MAX_AGE: Duration = Duration::from_secs(24 * 3600);
/// The pause from the end of a scrub to the start of the next.
pub(crate) const SCRUB_EVERY: Duration = Duration::from_secs(7 * 24 * 3600);
/// Bytes that a scrub reads in a second.
pub(crate) const SCRUB_RATE: Size = Size(8 << 20);

/// A new store takes at most this much of the disk by default.
const DEFAULT_SIZE_MAX: u64 = 64 << 30;
/// A new store takes at most this many percent of the free space by default.
const DEFAULT_SIZE_PERCENT: u64 = 80;
/// Minimum blocks of a restored store besides its values: 64 MiB.
const NEW_BLOCKS_MIN: u64 = 16_384;
/// Maximum wait for a temporary file that another command has locked.
pub(crate) const HELD_MAX: Duration = Duration::from_secs(10);
/// The pause between two attempts.
pub(crate) const HELD_PAUSE: Duration = Duration::from_millis(100);
/// Sizes are rounded down to a multiple of this.
const SIZE_UNIT: u64 = 1 << 20;
/// Memory for the pages that `shoal grow` needs when it replays the log.
const GROW_CACHE: Size = Size(64 << 20);
/// The engine's limit for tablets.
const TABLETS_MAX: usize = 32;
/// The minimum default number of tablets of a new store.
const TABLETS_MIN: usize = 4;

/// The I/O of the device.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Io {
    /// io_uring if the kernel allows it, else threads.
    #[default]
    Auto,
    /// io_uring, or fail.
    Uring,
    /// A pool of threads that read and write.
    Threads,
}

impl From<Io> for IoMode {
    fn from(io: Io) -> Self {
        match io {
            Io::Auto => Self::Auto,
            Io::Uring => Self::Uring,
            Io::Threads => Self::Threads,
        }
    }
}

/// How a command uses a data file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Access {
    /// It reads, and writes nothing.
    #[default]
    Read,
    /// It writes; the file must exist.
    Write,
    /// It writes, and creates a missing file.
    Create,
}

/// Options to open a store, and to lay out a new one.
#[derive(Clone, Debug)]
pub(crate) struct StoreOptions {
    pub(crate) access: Access,
    /// The cap. An existing store grows to this, and never shrinks.
    pub(crate) size: Option<Size>,
    /// Accepts a size beyond the room of the file system.
    pub(crate) beyond_room: bool,
    /// For a new store.
    pub(crate) tablets: Option<u16>,
    pub(crate) cache: Size,
    pub(crate) memtable: Option<Size>,
    /// Maximum number of remembered keys with a deadline.
    pub(crate) deadlines: Size,
    /// Maximum bytes of the values that one transaction reads.
    pub(crate) looks: Size,
    /// Memory for short values that are read often.
    pub(crate) short_values: Size,
    pub(crate) io: Io,
    /// Another machine can open the device, too.
    pub(crate) shared_device: bool,
    /// The log is kept for an archive.
    pub(crate) archived: bool,
    /// Buckets whose values have separate space.
    pub(crate) own_space: Vec<String>,
    /// Releases free space on the device; none: if it is a file.
    pub(crate) discard: Option<bool>,
    /// Moves no values.
    pub(crate) pause_relocation: bool,
    /// The pause between two scrubs in the background; none: no scrubs.
    pub(crate) scrub_every: Option<Duration>,
    /// Bytes that a scrub reads in a second.
    pub(crate) scrub_rate: Size,
    /// The maximum age of a snapshot; none: until its reader finishes.
    pub(crate) snapshot_max_age: Option<Duration>,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            access: Access::Read,
            size: None,
            beyond_room: false,
            tablets: None,
            cache: Size(1 << 30),
            memtable: None,
            deadlines: Size(16 << 20),
            looks: Size(64 << 20),
            short_values: Size(16 << 20),
            io: Io::Auto,
            shared_device: false,
            archived: false,
            own_space: Vec::new(),
            discard: None,
            pause_relocation: false,
            scrub_every: Some(SCRUB_EVERY),
            scrub_rate: SCRUB_RATE,
            snapshot_max_age: Some(SNAPSHOT_MAX_AGE),
        }
    }
}

/// Opens the store in the file or device at `path`. A file that does not exist is created first if `options` allow it;
/// an existing one is never formatted.
pub(crate) async fn open(path: &Path, options: &StoreOptions) -> anyhow::Result<Store> {
    let what = || format!("cannot open the store {}", path.display());
    let environment = Environment::default();
    match Existing::at(path).with_context(what)? {
        Existing::Nothing if options.access != Access::Create => {
            bail!(
                "there is no store {}; `shoal format` creates one, as do `serve`, `put` and `import`",
                path.display()
            )
        }
        Existing::Nothing => {
            create(path, options, &environment).await?;
        }
        Existing::Empty => bail!(
            "{0} is a file of 0 bytes: there is no store in it. For a new one run `shoal format {0}`; if there was one, restore \
             it from your backup",
            path.display()
        ),
        Existing::There => {
            if options.tablets.is_some() {
                let when = "they were chosen when it was created";
                tracing::warn!("{} exists: its tablets stay, {when}", path.display());
            }
        }
    }
    let device = open_device(path, options).with_context(what)?;
    let Some(cap) = Store::cap(&device).await.with_context(what)? else {
        return Err(no_store(path, &device, &environment).await.context(what()));
    };
    let grow_to = match options.access {
        Access::Read => None,
        _ => growing::cap_at_opening(path, &device, cap, options.size),
    };
    // A store that cannot grow starts nevertheless.
    let grow_to = grow_to.filter(|&blocks| {
        let checked = check_room_of_file(path, &device, blocks, false);
        checked.inspect_err(|error| tracing::error!("the store keeps its present size: {error}")).is_ok()
    });
    tracing::info!("{}", device.inner().describe());
    if options.cache < HUGE_PAGES_FROM {
        // A hint: without it the process takes more memory.
        let _ = rustix::thread::disable_transparent_huge_pages(true);
        shoal_device::keep_at_most(usize::try_from(options.cache.0 / 8).unwrap_or(usize::MAX));
    }
    let options = open_options(options);
    let growing = OpenOptions { grow_to, ..options.clone() };
    let store = match Store::open(device.clone(), growing, environment.clone()).await {
        Err(error @ (Error::Invalid(_) | Error::Unopenable(_))) if grow_to.is_some() => {
            tracing::error!("{} does not grow, and opens with its present size: {error}", path.display());
            Store::open(device, options, environment).await.with_context(what)?
        }
        opened => opened.with_context(what)?,
    };
    store.recall_backup().await;
    Ok(store)
}

/// The caps of a store before and after a growth, in blocks.
pub(crate) struct Grown {
    pub(crate) from: u64,
    pub(crate) to: u64,
}

/// Raises the cap of the closed store at `path` to `size`; without a size, to all of its device.
///
/// # Errors
/// A size that the store cannot have, or, unless `force` is set, that the file system has no room for.
pub(crate) async fn grow(path: &Path, size: Option<Size>, io: Io, force: bool) -> anyhow::Result<Grown> {
    let what = || format!("cannot grow the store {}", path.display());
    if Existing::at(path).with_context(what)? != Existing::There {
        bail!("{}: there is no store; `shoal format` creates one", what());
    }
    let options = StoreOptions { access: Access::Write, io, cache: GROW_CACHE, ..StoreOptions::default() };
    let device = match file::open(path, &file_options(&options)) {
        Err(OpenError::InUse { .. }) => bail!(
            "{}: a server or another program has it open. A server that runs grows its store, too: leave out --data, and name the \
             server with --server unless it has the default address",
            what()
        ),
        device => device.with_context(what)?,
    };
    let environment = Environment::default();
    let Some(from) = Store::cap(&device).await.with_context(what)? else {
        return Err(no_store(path, &device, &environment).await.context(what()));
    };
    let to = growing::new_cap(path, &device, from, size).with_context(what)?;
    if let Some(to) = to {
        check_room_of_file(path, &device, to, force).with_context(what)?;
    }
    // Open a store that has the size already, too: an interrupted growth, or one without room, has left the log short.
    let options = OpenOptions { grow_to: to, pause_relocation: true, ..open_options(&options) };
    let store = Store::open(device, options, environment).await.with_context(what)?;
    store.close().await.with_context(what)?;
    Ok(Grown { from, to: to.unwrap_or(from) })
}

/// As [`growing::check_room`]; a block device has a fixed size.
fn check_room_of_file(path: &Path, device: &Device, blocks: u64, force: bool) -> anyhow::Result<()> {
    if !device.inner().can_grow() {
        return Ok(());
    }
    let wanted = Size(blocks.saturating_mul(BLOCK_BYTES_U64));
    let room = growing::room(folder_of(path), path);
    growing::check_room(&path.display().to_string(), device.blocks(), wanted, room, force)
}

fn open_options(options: &StoreOptions) -> OpenOptions {
    OpenOptions {
        own_space: options.own_space.clone(),
        discard: options.discard,
        pause_relocation: options.pause_relocation,
        read_only: options.access == Access::Read,
        shared_device: options.shared_device,
        archived: options.archived,
        cache_bytes: usize::try_from(options.cache.0).unwrap_or(usize::MAX),
        memtable_bytes: options.memtable.map(|size| usize::try_from(size.0).unwrap_or(usize::MAX)),
        tuning: tuning(options),
        ..OpenOptions::default()
    }
}

/// The period and the rate of scrubs in the background, and the age of snapshots.
fn tuning(options: &StoreOptions) -> Tuning {
    Tuning {
        scrub_bytes_per_s: options.scrub_every.map_or(0, |_| options.scrub_rate.0),
        scrub_every_ns: options
            .scrub_every
            .map_or(u64::MAX, |every| u64::try_from(every.as_nanos()).unwrap_or(u64::MAX)),
        snapshot_max_age_ns: options
            .snapshot_max_age
            .map_or(u64::MAX, |age| u64::try_from(age.as_nanos()).unwrap_or(u64::MAX)),
        deadlines_bytes_max: usize::try_from(options.deadlines.0).unwrap_or(usize::MAX),
        looks_bytes_max: options.looks.0,
        read_cache_bytes: usize::try_from(options.short_values.0).unwrap_or(usize::MAX),
        ..Tuning::default()
    }
}

/// The error for a file or device with only zeros in place of the superblocks, with advice.
async fn no_store(path: &Path, device: &Device, environment: &Environment) -> anyhow::Error {
    let path = path.display();
    match blank::look(device, &*environment.entropy).await {
        Ok(content) if content.is_blank() => {
            anyhow!("there is no store in it, it is blank: `shoal format {path}` makes one")
        }
        Ok(content) => anyhow!(
            "in place of the superblocks of a store there are zeros, but {content}. If that was a store, restore it from your \
             backup; `shoal format --force={path} {path}` makes a new one and destroys the data there"
        ),
        Err(error) => anyhow!("there is no store in it, and not all of it can be read: {error}"),
    }
}

/// Refuses a file or device with only zeros in place of the superblocks, and reports its other content.
///
/// # Errors
/// As [`Store::cap`]; there is no store.
pub(crate) async fn require_store(path: &Path, device: &Device) -> anyhow::Result<()> {
    match Store::cap(device).await? {
        Some(_) => Ok(()),
        None => Err(no_store(path, device, &Environment::default()).await),
    }
}

/// Opens the existing file or device at `path`. No other process may have it open, or, for reading only, no other
/// writer.
pub(crate) fn open_existing(path: &Path, access: Access, io: Io) -> anyhow::Result<Device> {
    let what = || format!("cannot open the store {}", path.display());
    if Existing::at(path).with_context(what)? == Existing::Nothing {
        bail!("there is no store {}", path.display());
    }
    open_device(path, &StoreOptions { access, io, ..StoreOptions::default() }).with_context(what)
}

/// The result of a format.
#[derive(Clone, Debug)]
pub(crate) enum Formatted {
    /// There is a new store with this layout.
    New(FormatOptions),
    /// There was a store already, and nothing changed.
    Kept,
}

/// Makes a new store in the file or on the device at `path`, which must be blank unless `overwrite` is set. With
/// `if_blank` an existing store is a success.
pub(crate) async fn format(
    path: &Path,
    options: &StoreOptions,
    overwrite: bool,
    if_blank: bool,
) -> anyhow::Result<Formatted> {
    let what = || format!("cannot format {}", path.display());
    let environment = Environment::default();
    if Existing::at(path).with_context(what)? == Existing::Nothing {
        return Ok(Formatted::New(create(path, options, &environment).await?));
    }
    let device = open_device(path, options).with_context(what)?;
    if if_blank && matches!(Store::probe(&device).await, Ok(true)) {
        return Ok(Formatted::Kept);
    }
    let layout = FormatOptions { overwrite, ..layout(path, &device, options)? };
    match Store::format(&device, &layout, &environment).await {
        Ok(()) => Ok(Formatted::New(layout)),
        Err(error @ Error::NotBlank(_)) => Err(anyhow!(
            "{}: {error}. `shoal format --force={1} {1}` formats it all the same, and destroys its data",
            what(),
            path.display()
        )),
        Err(error) => Err(error).with_context(what),
    }
}

/// A new store that is being filled. Until it is [finished](Self::finish), its file has a temporary name and a mark.
pub(crate) struct NewStore {
    pub(crate) store: Store,
    device: Device,
    path: PathBuf,
    /// The temporary name; none for a device.
    unfinished: Option<PathBuf>,
}

impl NewStore {
    /// A store with versions from `first_version`, in a new file or on a blank device. By default it has room for `value_bytes`.
    pub(crate) async fn create(
        path: &Path,
        options: &StoreOptions,
        first_version: u64,
        value_bytes: u64,
    ) -> anyhow::Result<Self> {
        let what = || format!("cannot create the store {}", path.display());
        let is_new = match Existing::at(path).with_context(what)? {
            Existing::Nothing if is_place_of_devices(folder_of(path)) => {
                bail!("there is no device {}, and no file is made in its place", path.display())
            }
            Existing::Nothing => true,
            Existing::There if !fs::metadata(path).with_context(what)?.is_file() => false,
            Existing::There | Existing::Empty => bail!("{}: it exists; name a file that does not", what()),
        };
        let environment = Environment::default();
        let (unfinished, device) = if is_new {
            let (unfinished, device) =
                take_unfinished(path, options, &environment).await.with_context(what)?;
            (Some(unfinished), device)
        } else {
            (None, open_device(path, options).with_context(what)?)
        };
        let layout = layout(path, &device, options)?;
        let needed = (value_bytes / BLOCK_BYTES_U64).saturating_mul(3) / 2 + NEW_BLOCKS_MIN;
        let blocks_max = match options.size {
            None if device.inner().can_grow() => layout.blocks_max.max(needed),
            _ => layout.blocks_max,
        };
        let layout =
            FormatOptions { first_version, tablets: layout.tablets, ..FormatOptions::for_blocks(blocks_max) };
        Store::format(&device, &layout, &environment).await.with_context(what)?;
        if unfinished.is_some() {
            Store::mark_unfinished(&device, true).await.with_context(what)?;
        }
        let opened = Store::open(device.clone(), open_options(options), environment).await;
        Ok(Self { store: opened.with_context(what)?, device, path: path.to_owned(), unfinished })
    }

    /// Closes the store and renames the file to its final name.
    pub(crate) async fn finish(self) -> anyhow::Result<()> {
        let what = || format!("cannot finish the store {}", self.path.display());
        self.store.close().await.with_context(what)?;
        let Some(unfinished) = &self.unfinished else { return Ok(()) };
        Store::mark_unfinished(&self.device, false).await.with_context(what)?;
        file::give_name(unfinished, &self.path)
            .with_context(|| format!("{}: all is in {}", what(), unfinished.display()))
    }

    /// Removes the file; a device keeps its bytes.
    pub(crate) async fn discard(self) {
        // The store is removed.
        let _ = self.store.close().await;
        match &self.unfinished {
            // If that fails, the name shows that the file is incomplete.
            Some(unfinished) => _ = fs::remove_file(unfinished),
            None => tracing::warn!("{} has a part of a store: format it again", self.path.display()),
        }
    }
}

/// The temporary file of the new store `path`, and its name: a new file, or the emptied file of an interrupted creation. Waits while
/// another command has it locked: the lock of a killed command lasts until its last request completes, which takes a while on a busy
/// disk. No server locks a file of this name for long.
async fn take_unfinished(
    path: &Path,
    options: &StoreOptions,
    environment: &Environment,
) -> anyhow::Result<(PathBuf, Device)> {
    let started = Instant::now();
    let (unfinished, device) = loop {
        match file::open_unfinished(path, &file_options(options)) {
            Err(OpenError::InUse { .. }) if started.elapsed() < HELD_MAX => {
                tokio::time::sleep(HELD_PAUSE).await
            }
            opened => break opened.map_err(in_use)?,
        }
    };
    Store::take_over(&device, environment).await?;
    Ok((unfinished, device))
}

/// Creates the file under a temporary name and renames it after the format, so that an interrupted start leaves nothing that looks like a
/// damaged store, and a file with content is never formatted.
async fn create(
    path: &Path,
    options: &StoreOptions,
    environment: &Environment,
) -> anyhow::Result<FormatOptions> {
    let what = || format!("cannot create the store {}", path.display());
    if is_place_of_devices(folder_of(path)) {
        bail!("there is no device {}, and no file is made in its place", path.display());
    }
    let (unfinished, device) = take_unfinished(path, options, environment).await.with_context(what)?;
    let layout = layout(path, &device, options)?;
    Store::format(&device, &layout, environment).await.with_context(what)?;
    // The file stays locked until the rename, so that no other process treats it as abandoned.
    file::give_name(&unfinished, path).with_context(|| {
        format!(
            "{}; a file made there by another process stays, {} may be removed",
            what(),
            unfinished.display()
        )
    })?;
    drop(device);
    Ok(layout)
}

/// Returns true if `folder` is the one of device files, which is in memory: the name of a device was mistyped.
fn is_place_of_devices(folder: &Path) -> bool {
    let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    folder.starts_with("/dev") && !folder.starts_with("/dev/shm")
}

fn open_device(path: &Path, options: &StoreOptions) -> anyhow::Result<Device> {
    file::open(path, &file_options(options)).map_err(in_use)
}

fn in_use(error: OpenError) -> anyhow::Error {
    match error {
        OpenError::InUse { .. } => anyhow!("{error}; a server that runs on it is reached with --server"),
        error => error.into(),
    }
}

fn file_options(options: &StoreOptions) -> FileOptions {
    FileOptions { read_only: options.access == Access::Read, io: options.io.into(), ..FileOptions::default() }
}

/// The thing at the path of the data file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Existing {
    /// The path does not exist.
    Nothing,
    /// A file of 0 bytes.
    Empty,
    /// A file with content, or a block device.
    There,
}

impl Existing {
    fn at(path: &Path) -> anyhow::Result<Self> {
        let metadata = match fs::metadata(path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::Nothing),
            Err(error) => return Err(error.into()),
        };
        if metadata.is_file() && metadata.len() == 0 {
            Ok(Self::Empty)
        } else if metadata.is_file() || metadata.file_type().is_block_device() {
            Ok(Self::There)
        } else {
            bail!("it is neither a file nor a block device")
        }
    }
}

fn layout(path: &Path, device: &Device, options: &StoreOptions) -> anyhow::Result<FormatOptions> {
    let bytes = if device.inner().can_grow() {
        match options.size {
            Some(size) => size.0,
            // An existing file keeps its length.
            None => default_bytes(path)?.max(device.blocks() * BLOCK_BYTES_U64 / SIZE_UNIT * SIZE_UNIT),
        }
    } else {
        let whole = device.blocks() * BLOCK_BYTES_U64;
        if let Some(size) = options.size.filter(|size| size.0 > whole) {
            bail!(
                "the device {} has {}, and a store in it cannot get {size}: give a size that fits, or none",
                path.display(),
                Size(whole)
            );
        }
        options.size.map_or(whole, |size| size.0)
    };
    let tablets = options.tablets.unwrap_or_else(|| {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        cores.clamp(TABLETS_MIN, TABLETS_MAX) as u16
    });
    // Without a size: a share of the room, or the size that a backup needs.
    let force = options.beyond_room || options.size.is_none();
    check_room_of_file(path, device, bytes / BLOCK_BYTES_U64, force)?;
    let grows = if device.inner().can_grow() { "; the file grows as it fills" } else { "" };
    tracing::info!(
        "creating the store {}: at most {}, {tablets} tablets{grows}",
        path.display(),
        Size(bytes)
    );
    Ok(FormatOptions { tablets, ..FormatOptions::for_blocks(bytes / BLOCK_BYTES_U64) })
}

/// The maximum size of a new store without `--size`.
fn default_bytes(path: &Path) -> anyhow::Result<u64> {
    let folder = folder_of(path);
    let disk = rustix::fs::statvfs(folder).map_err(|error| {
        anyhow!("cannot see how much space is free in {}: {error}; give --size", folder.display())
    })?;
    Ok(share_of(disk.f_bavail.saturating_mul(disk.f_frsize)))
}

pub(crate) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn share_of(free_bytes: u64) -> u64 {
    let share = free_bytes / 100 * DEFAULT_SIZE_PERCENT;
    share.min(DEFAULT_SIZE_MAX) / SIZE_UNIT * SIZE_UNIT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_store_leaves_a_part_of_the_disk() {
        assert_eq!(share_of(1 << 40), 64 << 30);
        assert_eq!(share_of(100 << 20), 80 << 20);
        assert_eq!(share_of(1000), 0);
    }

    #[test]
    fn a_name_that_no_device_has_becomes_no_file() {
        assert!(is_place_of_devices(Path::new("/dev")) && is_place_of_devices(Path::new("/dev/mapper")));
        assert!(!is_place_of_devices(Path::new("/dev/shm")) && !is_place_of_devices(Path::new("/srv")));
    }

    /// Two first starts at one moment: the second must not replace the store of the first, which may have acknowledged writes.
    #[tokio::test]
    async fn a_store_that_another_process_made_meanwhile_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        fs::write(&path, b"made meanwhile").unwrap();
        let options =
            StoreOptions { size: Some(Size(64 << 20)), access: Access::Create, ..StoreOptions::default() };
        let refused = create(&path, &options, &Environment::default()).await.unwrap_err();
        assert!(format!("{refused:#}").contains("a file made there by another process stays"), "{refused:#}");
        assert_eq!(fs::read(&path).unwrap(), b"made meanwhile");
    }

    #[test]
    fn tells_empty_places_from_filled_ones() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        assert_eq!(Existing::at(&path).unwrap(), Existing::Nothing);
        fs::write(&path, b"").unwrap();
        assert_eq!(Existing::at(&path).unwrap(), Existing::Empty);
        fs::write(&path, [0; 4096]).unwrap();
        assert_eq!(
            Existing::at(&path).unwrap(),
            Existing::There,
            "zeros may be a store that lost its superblock"
        );
        assert!(Existing::at(folder.path()).is_err());
        assert!(Existing::at(&path.join("x")).is_err());
    }
}
