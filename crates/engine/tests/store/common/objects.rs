//! Objects of the bucket `default`, by name.

use std::collections::BTreeSet;
use std::time::Duration;

use shoal_engine::{
    ByteRange, Error, Expiry, ListRequest, Metadata, Object, ObjectKey, PutOptions, RejectRules, Result,
    Store, block_on,
};
use shoal_testkit::{Value, Workload};

pub(crate) fn key(name: impl AsRef<[u8]>) -> ObjectKey {
    ObjectKey::new("default", name.as_ref()).unwrap()
}

/// Returns the key of an object, in one of three nested folders.
pub(crate) fn name_in_folder(which: u64) -> Vec<u8> {
    format!("{}object-{which:03}", "folder/".repeat((which % 3) as usize)).into_bytes()
}

/// Returns the key of an object of the stored images of earlier versions.
pub(crate) fn name_in_image(which: u64) -> Vec<u8> {
    format!("{}{which}", "folder/".repeat((which % 3) as usize)).into_bytes()
}

pub(crate) fn flat_name(which: u64) -> Vec<u8> {
    format!("object-{which:03}").into_bytes()
}

/// Options of a put with metadata that do not fit beside a value in a leaf, or without any.
pub(crate) fn with_metadata(is_large: bool) -> PutOptions {
    let user = if is_large { vec![("large".into(), vec![b'm'; 900].into())] } else { Vec::new() };
    PutOptions { metadata: Metadata { user, ..Metadata::default() }, ..PutOptions::default() }
}

/// For every other value, a time to live that no test outlives; each opening finds the same boot, so it never expires.
pub(crate) fn long_life(seed: u64) -> Expiry {
    if seed.is_multiple_of(2) {
        Expiry::After(Duration::from_secs(100 * 365 * 86_400))
    } else {
        Expiry::Never
    }
}

/// The store with blocking calls, for tests.
pub(crate) trait ByName {
    /// Puts an object with options; returns its version.
    fn set_with(&self, name: impl AsRef<[u8]>, value: impl Into<Vec<u8>>, options: PutOptions)
    -> Result<u64>;

    /// Puts an object; returns its version.
    fn set(&self, name: impl AsRef<[u8]>, value: impl Into<Vec<u8>>) -> Result<u64> {
        self.set_with(name, value, PutOptions::default())
    }

    /// Deletes an object, which may be absent.
    fn remove(&self, name: impl AsRef<[u8]>) -> Result<()>;

    /// Puts the value with this seed under the workload's key of this number; returns its version.
    fn set_numbered(&self, which: u64, seed: u64, bytes: usize) -> Result<u64> {
        self.set(Workload::key(which), Value { key: which, seed, bytes }.to_vec())
    }

    /// The same, and must not be refused.
    fn put_numbered(&self, which: u64, seed: u64, bytes: usize) {
        self.set_numbered(which, seed, bytes).unwrap_or_else(|error| panic!("putting {which}: {error}"));
    }

    /// Asserts that the object with this number exists, as [`set_numbered`](Self::set_numbered) put it.
    fn assert_numbered(&self, which: u64, seed: u64, bytes: usize) {
        self.assert_holds(Workload::key(which), Value { key: which, seed, bytes });
    }

    /// Deletes the object with this number.
    fn remove_numbered(&self, which: u64) {
        self.remove(Workload::key(which)).unwrap_or_else(|error| panic!("deleting {which}: {error}"));
    }

    /// Reads a whole object.
    fn find(&self, name: impl AsRef<[u8]>) -> Result<Option<Object>>;

    /// Asserts that the object exists with this value.
    fn assert_holds(&self, name: impl AsRef<[u8]>, value: Value) {
        let object = self.find(&name).unwrap();
        let object = object.unwrap_or_else(|| panic!("{} is not there", name.as_ref().escape_ascii()));
        value.check(&object.value.to_vec()).unwrap_or_else(|wrong| {
            panic!("{}: {wrong}", name.as_ref().escape_ascii());
        });
    }
}

impl ByName for Store {
    fn set_with(
        &self,
        name: impl AsRef<[u8]>,
        value: impl Into<Vec<u8>>,
        options: PutOptions,
    ) -> Result<u64> {
        block_on(self.put(&key(name), value.into().into(), options)).map(|put| put.version.0)
    }

    fn remove(&self, name: impl AsRef<[u8]>) -> Result<()> {
        block_on(self.delete(&key(name), RejectRules::default())).map(drop)
    }

    fn find(&self, name: impl AsRef<[u8]>) -> Result<Option<Object>> {
        block_on(self.get(&key(name), ByteRange::ALL))
    }
}

/// Calls `put` with increasing numbers from `from` until the store is full; returns the first number that found no room.
pub(crate) fn fill(from: u64, put: impl Fn(u64) -> Result<u64>) -> u64 {
    for which in from..from + 1_000_000 {
        match put(which) {
            Ok(_) => {}
            Err(Error::Full { .. }) => return which,
            Err(error) => panic!("filling: {error}"),
        }
    }
    unreachable!("the device is never full");
}

/// Returns the names of all objects, listed in pages of `limit`.
pub(crate) fn names_of(store: &Store, limit: usize) -> BTreeSet<Vec<u8>> {
    let mut request = ListRequest { bucket: "default".into(), limit, ..ListRequest::default() };
    let mut names = BTreeSet::new();
    loop {
        let page = block_on(store.list(&request)).unwrap();
        names.extend(page.entries.into_iter().map(|(name, _)| name));
        match page.next {
            Some(next) => request.start_after = next,
            None => return names,
        }
    }
}
