//! Compares a walk with the objects in a store: one listing page for up to 1,000 objects instead of a request for each.

use std::collections::VecDeque;

use shoal_base::limits::KEY_BYTES_MAX;
use shoal_client::{ListEntry, ListRequest, ObjectInfo, Result};
use tokio::runtime::Handle;

use crate::objects::Objects;
use crate::transfer::attributes::Attributes;
use crate::tree::walk::Found;

/// A listing that is read along with a walk.
pub(crate) struct Existing {
    objects: Objects,
    handle: Handle,
    request: ListRequest,
    page: VecDeque<ListEntry>,
    is_last_page: bool,
}

impl Existing {
    /// Starts at the first key of `bucket` with `prefix`. [`find`](Self::find) waits on `handle`'s runtime.
    pub(crate) fn new(objects: Objects, handle: Handle, bucket: &str, prefix: &[u8]) -> Self {
        let request =
            ListRequest { bucket: bucket.to_owned(), prefix: prefix.to_vec(), ..ListRequest::default() };
        Self { objects, handle, request, page: VecDeque::new(), is_last_page: false }
    }

    /// The object `key` if it exists. Call this with keys in ascending order.
    pub(crate) fn find(&mut self, key: &[u8]) -> Result<Option<ObjectInfo>> {
        loop {
            while let Some(entry) = self.page.front() {
                if entry.key[..] > *key {
                    return Ok(None);
                }
                let Some(entry) = self.page.pop_front() else { break };
                if entry.key[..] == *key {
                    return Ok(Some(entry.info));
                }
            }
            if self.is_last_page {
                return Ok(None);
            }
            self.next_page(key)?;
        }
    }

    fn next_page(&mut self, key: &[u8]) -> Result<()> {
        // The keys between the last page and `key` are skipped: they can be most of a large bucket.
        let start = before(key);
        if start[..] > self.request.start_after[..] {
            self.request.start_after = start;
        }
        let page = self.handle.block_on(self.objects.list(&self.request))?;
        self.page = page.entries.into();
        match page.next {
            Some(next) => self.request.start_after = next,
            None => self.is_last_page = true,
        }
        Ok(())
    }
}

/// A byte string before `key` with no other key between them.
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

/// Returns true if `found` would become this object, by size, type, permissions, modification time and extended attributes. A file
/// without any of Shoal's attributes leaves metadata and deadline open.
pub(crate) fn is_same(found: &Found, info: &ObjectInfo) -> bool {
    if info.bytes != found.bytes {
        return false;
    }
    match found.extras() {
        Ok(extras) if extras.is_empty() => {
            Attributes::of_object(&found.key, info).as_ref() == Ok(&found.attributes)
        }
        Ok(extras) => extras.is_of(&found.attributes, info),
        // The import itself meets and reports the failure.
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn nothing_fits_between() {
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
            prop_assert_eq!(other > start, other >= key, "a listing behind it begins with the key");
        }
    }
}
