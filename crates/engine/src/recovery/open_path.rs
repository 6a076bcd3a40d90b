//! Opens the store in a file or on a block device by its path, and makes the file first where there is none.

use std::io::ErrorKind;
use std::path::Path;

use shoal_base::BLOCK_BYTES_U64;
use shoal_base::task::Boxed;
use shoal_common::error::{Error, Result};
use shoal_common::options::{Environment, FormatOptions, OpenOptions};
use shoal_device::Device;
use shoal_device::file::{self, FileOptions, IoMode, OpenError};

use crate::store::Store;

/// The options of [`Store::open_path`].
#[derive(Clone, Debug)]
pub struct PathOptions {
    /// Makes a new store where there is no such file. Not if [`OpenOptions::read_only`] is set.
    pub create: bool,
    /// Bytes that a new file may grow to, 64 GiB unless set otherwise. It takes room only as it fills. A store that exists keeps its own.
    pub bytes_max: u64,
    /// How requests to the device are run.
    pub io: IoMode,
    /// Memory and all other options of a store.
    pub open: OpenOptions,
}

impl Default for PathOptions {
    fn default() -> Self {
        Self { create: true, bytes_max: 64 << 30, io: IoMode::Auto, open: OpenOptions::default() }
    }
}

impl Store {
    /// Opens the store in the file or on the block device at `path`, and recovers from a crash. By default a file that does not exist
    /// is made, with an empty store in it; one that exists is never formatted.
    ///
    /// ```
    /// # use shoal_engine::{PathOptions, Store, block_on};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("notes.data");
    /// let options = PathOptions { bytes_max: 1 << 30, ..PathOptions::default() };
    /// let store = block_on(Store::open_path(&path, options))?;
    /// block_on(store.close())?;
    /// # Ok::<(), shoal_engine::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unopenable`] where there is no store that this program can open, where another process has it open, and where the
    /// system refuses the file; [`Error::Invalid`] if a store of `bytes_max` cannot be; as [`Store::open`].
    pub fn open_path(path: impl AsRef<Path>, options: PathOptions) -> Boxed<'static, Result<Self>> {
        let path = path.as_ref().to_owned();
        Box::pin(async move {
            let device = match open_file(&path, &options) {
                Err(OpenError::Missing { .. }) if options.create && !options.open.read_only => {
                    create(&path, &options).await?;
                    open_file(&path, &options)
                }
                opened => opened,
            };
            Self::open(device.map_err(unopenable)?, options.open, Environment::default()).await
        })
    }
}

/// Makes the file under a temporary name, and gives it its own when it is formatted: a crash between the two leaves nothing that
/// looks like a damaged store.
async fn create(path: &Path, options: &PathOptions) -> Result<()> {
    let (unfinished, device) = file::open_unfinished(path, &file_options(options)).map_err(unopenable)?;
    let environment = Environment::default();
    Store::take_over(&device, &environment).await?;
    let layout = FormatOptions::for_blocks(options.bytes_max / BLOCK_BYTES_U64);
    Store::format(&device, &layout, &environment).await?;
    // The file stays locked until it has its name: no other process takes it for one that was left behind.
    let named = file::give_name(&unfinished, path);
    drop(device);
    match named {
        // Another process made the store meanwhile.
        Err(OpenError::Io { source, .. }) if source.kind() == ErrorKind::AlreadyExists => Ok(()),
        named => named.map_err(unopenable),
    }
}

fn open_file(path: &Path, options: &PathOptions) -> Result<Device, OpenError> {
    file::open(path, &file_options(options))
}

fn file_options(options: &PathOptions) -> FileOptions {
    FileOptions { read_only: options.open.read_only, io: options.io, ..FileOptions::default() }
}

fn unopenable(error: OpenError) -> Error {
    Error::Unopenable(error.to_string())
}
