//! Opens the store in a file or on a block device by its path, and makes the file first where there is none.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use shoal_base::BLOCK_BYTES_U64;
use shoal_base::task::Boxed;
use shoal_device::Device;
use shoal_device::file::{self, FileOptions, IoMode, OpenError};

use crate::common::error::{Error, Result};
use crate::common::options::{Environment, FormatOptions, OpenOptions};
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
            let device = match open_file(&path, &options, false) {
                Err(OpenError::Missing { .. }) if options.create && !options.open.read_only => {
                    create(&path, &options).await?;
                    open_file(&path, &options, false)
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
    let unfinished = unfinished_name(path);
    let device = open_file(&unfinished, options, true).map_err(unopenable)?;
    // What lies there is of an opening that was cut short.
    let layout = FormatOptions {
        overwrite: device.inner().can_grow(),
        ..FormatOptions::for_blocks(options.bytes_max / BLOCK_BYTES_U64)
    };
    Store::format(&device, &layout, &Environment::default()).await?;
    drop(device);
    match file::give_name(&unfinished, path) {
        // Another process made the store meanwhile.
        Err(OpenError::Io { source, .. }) if source.kind() == ErrorKind::AlreadyExists => Ok(()),
        named => named.map_err(unopenable),
    }
}

fn unfinished_name(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".unfinished");
    name.into()
}

fn open_file(path: &Path, options: &PathOptions, create: bool) -> Result<Device, OpenError> {
    let read_only = options.open.read_only;
    file::open(path, &FileOptions { create, read_only, io: options.io, ..FileOptions::default() })
}

fn unopenable(error: OpenError) -> Error {
    Error::Unopenable(error.to_string())
}

#[cfg(test)]
mod tests {
    use shoal_base::task::block_on;

    use super::*;
    use crate::common::key::ObjectKey;
    use crate::common::object::{ByteRange, PutOptions};

    fn small() -> PathOptions {
        let open = OpenOptions { cache_bytes: 4 << 20, ..OpenOptions::default() };
        PathOptions { bytes_max: 64 << 20, open, ..PathOptions::default() }
    }

    fn refusal(path: &Path, options: PathOptions) -> String {
        match block_on(Store::open_path(path, options)) {
            Err(Error::Unopenable(why)) => why,
            other => panic!("{:?}", other.map(|_| "it was opened")),
        }
    }

    #[test]
    fn a_store_is_made_once_and_then_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        // Of an opening that was cut short.
        std::fs::write(unfinished_name(&path), [7; 8192]).unwrap();
        let key = ObjectKey::new("default", b"k").unwrap();
        let store = block_on(Store::open_path(&path, small())).unwrap();
        block_on(store.put(&key, b"v"[..].into(), PutOptions::default())).unwrap();
        assert!(refusal(&path, small()).contains("in use by another process"));
        block_on(store.close()).unwrap();
        drop(store);
        assert!(!unfinished_name(&path).exists());
        let mut reader = small();
        reader.open.read_only = true;
        let store = block_on(Store::open_path(&path, reader)).unwrap();
        let object = block_on(store.get(&key, ByteRange::ALL)).unwrap().expect("it was put");
        assert_eq!(object.value.to_vec(), b"v");
    }

    #[test]
    fn nothing_is_made_for_readers_and_nothing_foreign_is_touched() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        let mut reader = small();
        reader.open.read_only = true;
        let never = PathOptions { create: false, ..small() };
        for options in [reader, never] {
            assert!(refusal(&path, options).contains("does not exist"));
            assert!(!path.exists());
        }
        for text in [vec![], b"mine".repeat(5000)] {
            std::fs::write(&path, &text).unwrap();
            refusal(&path, small());
            assert_eq!(std::fs::read(&path).unwrap(), text);
        }
        assert!(refusal(folder.path(), small()).contains("neither a regular file nor a block device"));
        let tiny = PathOptions { bytes_max: 4096, ..small() };
        assert!(matches!(
            block_on(Store::open_path(folder.path().join("tiny"), tiny)),
            Err(Error::Invalid(_))
        ));
    }
}
