//! The data file: created and formatted where it does not exist, opened where it does.
//!
//! The only place of this crate that touches the device and the engine's opening.

use std::fs::{self, File};
use std::io::{BufWriter, ErrorKind};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use clap::ValueEnum;
use serde::Deserialize;
use shoal_base::BLOCK_BYTES_U64;
use shoal_device::Device;
use shoal_device::file::{self, FileOptions, IoMode, OpenError};
use shoal_engine::{Environment, FormatOptions, OpenOptions, SpaceTrace, Store};

use crate::size::Size;

/// With a smaller cache the process takes no huge pages: each costs 2 MiB for what is touched in a part of it, of the allocator's
/// memory above all. With a cache of 32 MiB under load that was 40 MiB (docs/performance-log.md).
const HUGE_PAGES_FROM: Size = Size(256 << 20);

/// A new store takes at most this much of the disk unless told otherwise.
const DEFAULT_SIZE_MAX: u64 = 64 << 30;
/// Of the free space a new store takes at most this many percent unless told otherwise.
const DEFAULT_SIZE_PERCENT: u64 = 80;
/// Sizes are rounded down to this.
const SIZE_UNIT: u64 = 1 << 20;
/// The engine's limit for tablets.
const TABLETS_MAX: usize = 32;
/// The least number of tablets that a new store gets by itself.
const TABLETS_MIN: usize = 4;

/// How the device is driven.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Io {
    /// io_uring where the kernel allows it, else threads.
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

/// What may happen to a data file that does not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Creation {
    /// It is an error: the command needs something to be there.
    #[default]
    Refused,
    /// It is created.
    Allowed,
}

/// How to open a store, and how to lay out a new one.
#[derive(Clone, Debug)]
pub(crate) struct StoreOptions {
    pub(crate) creation: Creation,
    /// For a new store: how large it may grow.
    pub(crate) size: Option<Size>,
    /// For a new store.
    pub(crate) tablets: Option<u16>,
    pub(crate) cache: Size,
    pub(crate) overlay: Option<Size>,
    pub(crate) io: Io,
    /// Buckets with space of their own.
    pub(crate) own_space: Vec<String>,
    /// Where every allocation and free is noted.
    pub(crate) trace_space: Option<PathBuf>,
    /// Gives free space back to the device.
    pub(crate) discard: bool,
    /// Leaves values where they are.
    pub(crate) pause_moving: bool,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            creation: Creation::Refused,
            size: None,
            tablets: None,
            cache: Size(1 << 30),
            overlay: None,
            io: Io::Auto,
            own_space: Vec::new(),
            trace_space: None,
            discard: false,
            pause_moving: false,
        }
    }
}

/// Opens the store in the file or device at `path`, and creates it first where it does not exist and may be created.
pub(crate) async fn open(path: &Path, options: &StoreOptions) -> anyhow::Result<Store> {
    let what = || format!("cannot open the store {}", path.display());
    let environment = Environment::default();
    let device = match Place::look(path).with_context(what)? {
        Place::Nothing if options.creation == Creation::Refused => {
            bail!("there is no store {}; `shoal serve`, `put` and `import` create one", path.display())
        }
        Place::Nothing => {
            create(path, options, &environment).await?;
            open_device(path, options, false).with_context(what)?
        }
        Place::Blank => {
            let device = open_device(path, options, false).with_context(what)?;
            if !Store::probe(&device).await.with_context(what)? {
                format(path, &device, options, &environment).await?;
            }
            device
        }
        Place::Filled => {
            if options.size.is_some() || options.tablets.is_some() {
                let when = "they were chosen when it was created";
                tracing::warn!("{} exists: its size and its tablets stay, {when}", path.display());
            }
            open_device(path, options, false).with_context(what)?
        }
    };
    tracing::info!("{}", device.inner().describe());
    if options.cache < HUGE_PAGES_FROM {
        // A hint only: where the kernel does not know it, the process takes more memory.
        let _ = rustix::thread::disable_transparent_huge_pages(true);
    }
    let space_trace = options.trace_space.as_deref().map(trace_to).transpose()?;
    let open = OpenOptions {
        own_space: options.own_space.clone(),
        space_trace,
        discard: options.discard,
        pause_moving: options.pause_moving,
        cache_bytes: usize::try_from(options.cache.0).unwrap_or(usize::MAX),
        overlay_bytes: options.overlay.map(|size| usize::try_from(size.0).unwrap_or(usize::MAX)),
        ..OpenOptions::default()
    };
    Store::open(device, open, environment).await.with_context(what)
}

/// A trace of allocations into a new file, which must not be there yet: a trace cannot be continued.
fn trace_to(path: &Path) -> anyhow::Result<Arc<SpaceTrace>> {
    let file = File::create_new(path)
        .with_context(|| format!("cannot write the trace of allocations to {}", path.display()))?;
    Ok(Arc::new(SpaceTrace::new(Box::new(BufWriter::new(file)))))
}

/// Opens the file or device at `path` as it is: nothing is created, and nobody else may have it open.
pub(crate) fn open_existing(path: &Path, io: Io) -> anyhow::Result<Device> {
    let what = || format!("cannot open the store {}", path.display());
    if Place::look(path).with_context(what)? == Place::Nothing {
        bail!("there is no store {}", path.display());
    }
    open_device(path, &StoreOptions { io, ..StoreOptions::default() }, false).with_context(what)
}

/// Creates the file under a temporary name and gives it its own when it is formatted: a start that was cut short leaves
/// nothing that looks like a damaged store, and a file that has content is never formatted.
async fn create(path: &Path, options: &StoreOptions, environment: &Environment) -> anyhow::Result<()> {
    let what = || format!("cannot create the store {}", path.display());
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".unfinished");
    let device = open_device(Path::new(&unfinished), options, true).with_context(what)?;
    format(path, &device, options, environment).await?;
    fs::rename(&unfinished, path).with_context(what)?;
    File::open(folder_of(path)).and_then(|folder| folder.sync_all()).with_context(what)
}

async fn format(
    path: &Path,
    device: &Device,
    options: &StoreOptions,
    environment: &Environment,
) -> anyhow::Result<()> {
    let layout = layout(path, device, options)?;
    let what = || format!("cannot create the store {}", path.display());
    Store::format(device, &layout, environment).await.with_context(what)
}

fn open_device(path: &Path, options: &StoreOptions, create: bool) -> anyhow::Result<Device> {
    let file_options = FileOptions { create, io: options.io.into(), ..FileOptions::default() };
    let in_use = |error| match error {
        OpenError::InUse { .. } => anyhow!("{error}; a server that runs on it is reached with --server"),
        error => error.into(),
    };
    file::open(path, &file_options).map_err(in_use)
}

/// What is at the place of the data file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Nothing yet.
    Nothing,
    /// An empty file, or a block device: may have to be formatted.
    Blank,
    /// A file with something in it: never formatted.
    Filled,
}

impl Place {
    fn look(path: &Path) -> anyhow::Result<Self> {
        let metadata = match fs::metadata(path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::Nothing),
            Err(error) => return Err(error.into()),
        };
        if metadata.file_type().is_block_device() || (metadata.is_file() && metadata.len() == 0) {
            Ok(Self::Blank)
        } else if metadata.is_file() {
            Ok(Self::Filled)
        } else {
            bail!("it is neither a file nor a block device")
        }
    }
}

fn layout(path: &Path, device: &Device, options: &StoreOptions) -> anyhow::Result<FormatOptions> {
    let bytes = if device.inner().can_grow() {
        match options.size {
            Some(size) => size.0,
            None => default_bytes(path)?,
        }
    } else {
        let whole = device.blocks() * BLOCK_BYTES_U64;
        options.size.map_or(whole, |size| size.0.min(whole))
    };
    let tablets = options.tablets.unwrap_or_else(|| {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        cores.clamp(TABLETS_MIN, TABLETS_MAX) as u16
    });
    let grows = if device.inner().can_grow() { "; the file grows as it fills" } else { "" };
    tracing::info!(
        "creating the store {}: at most {}, {tablets} tablets{grows}",
        path.display(),
        Size(bytes)
    );
    Ok(FormatOptions { tablets, ..FormatOptions::for_blocks(bytes / BLOCK_BYTES_U64) })
}

/// The size that a new store may grow to where nobody said it.
fn default_bytes(path: &Path) -> anyhow::Result<u64> {
    let folder = folder_of(path);
    let disk = rustix::fs::statvfs(folder).map_err(|error| {
        anyhow!("cannot see how much space is free in {}: {error}; give --size", folder.display())
    })?;
    Ok(share_of(disk.f_bavail.saturating_mul(disk.f_frsize)))
}

fn folder_of(path: &Path) -> &Path {
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
    fn tells_blank_places_from_filled_ones() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        assert_eq!(Place::look(&path).unwrap(), Place::Nothing);
        fs::write(&path, b"").unwrap();
        assert_eq!(Place::look(&path).unwrap(), Place::Blank);
        fs::write(&path, [0; 4096]).unwrap();
        assert_eq!(
            Place::look(&path).unwrap(),
            Place::Filled,
            "zeros may be a store that lost its superblock"
        );
        assert!(Place::look(folder.path()).is_err());
        assert!(Place::look(&path.join("x")).is_err());
    }
}
