//! Compares a walk with the objects of a store: one listing page for up to 1,000 objects instead of a request for each.

use std::collections::VecDeque;

use shoal_base::limits::KEY_BYTES_MAX;
use shoal_client::{ListEntry, ObjectAttributes, Result};
use tokio::runtime::Handle;

use crate::attributes::FileAttributes;
use crate::import::Import;
use crate::objects::Pages;
use crate::tree::walk::Found;

/// A listing that is read beside a walk.
pub(crate) struct Existing<'a> {
    pages: Pages<'a>,
    handle: &'a Handle,
    page: VecDeque<ListEntry>,
}

impl<'a> Existing<'a> {
    /// Starts at the first key of the bucket and prefix of `import`.
    pub(crate) fn new(import: &'a Import) -> Self {
        let pages = import.objects.pages(&import.bucket, &import.prefix);
        Self { pages, handle: &import.handle, page: VecDeque::new() }
    }

    /// The object `key` if it exists. Keys must be in ascending order. Blocks.
    pub(crate) fn find(&mut self, key: &[u8]) -> Result<Option<ObjectAttributes>> {
        loop {
            while let Some(entry) = self.page.pop_front_if(|entry| entry.key[..] <= *key) {
                if entry.key[..] == *key {
                    return Ok(Some(entry.info));
                }
            }
            if !self.page.is_empty() {
                return Ok(None);
            }
            // Skip the keys between the last page and `key`: they can be most of a large bucket.
            self.pages.skip_to(before(key));
            match self.handle.block_on(self.pages.next())? {
                Some(page) => self.page = page.entries.into(),
                None => return Ok(None),
            }
        }
    }
}

/// A byte string before `key`, with no other key between them.
fn before(key: &[u8]) -> Vec<u8> {
    let mut start = key.to_vec();
    match start.pop() {
        None | Some(0) => {}
        Some(last) => {
            start.push(last - 1);
            start.resize(KEY_BYTES_MAX, 0xff);
        }
    }
    start
}

/// Returns true if `found` would become this object, by size, type, permissions, modification time and extended attributes. For a file
/// without Shoal's attributes, metadata and deadline are not compared.
pub(crate) fn is_same(found: &Found, info: &ObjectAttributes) -> bool {
    if info.bytes != found.bytes {
        return false;
    }
    match found.extras() {
        Ok(extras) if extras.is_empty() => {
            FileAttributes::of_object(&found.key, info).as_ref() == Ok(&found.attributes)
        }
        Ok(extras) => extras.is_of(&found.attributes, info),
        // The import reports the failure.
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn no_key_fits_between() {
        assert_eq!(before(b"a\0"), b"a");
        assert_eq!(before(b""), b"");
        let start = before(b"ab");
        assert_eq!((&start[..3], start.len()), (&b"aa\xff"[..], KEY_BYTES_MAX));
    }

    proptest! {
        #[test]
        fn only_keys_before_are_skipped(
            key in prop::collection::vec(any::<u8>(), 1..20),
            other in prop::collection::vec(any::<u8>(), 1..20),
        ) {
            let start = before(&key);
            prop_assert!(start < key);
            prop_assert_eq!(other > start, other >= key, "a listing after it starts with the key");
        }
    }
}
