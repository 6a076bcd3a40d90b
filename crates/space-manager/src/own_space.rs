//! Buckets with their own space: their values are stored in whole groups that serve no other bucket, for a heavy load
//! that does not fit the others (`docs/adr/2026-11-21-space-of-ones-own.md`).
//!
//! An object of the store's own bucket saves the groups; it is rewritten after changes. Losing a change in a crash
//! costs order, not data: the group is then a shared one. Tree pages and packed small values share groups with all
//! others.

use shoal_base::Run;
use shoal_base::sync::Mutex;
use shoal_common::error::{Error, Result};
use shoal_common::hidden_key::is_hidden;
use shoal_common::key::{ObjectKey, check_bucket};

use crate::manager::{OwnerId, SpaceManager};

/// Most buckets with their own space: the allocator has an index in memory for each.
pub const OWN_SPACES_MAX: usize = 64;

/// The first line of the saved text.
const FIRST_LINE: &str = "shoal own space 1";

/// The buckets with their own space.
#[derive(Debug, Default)]
pub struct OwnSpace {
    buckets: Vec<String>,
    /// The allocator's count of changes that was saved last.
    pub saved: Mutex<u64>,
}

impl OwnSpace {
    /// # Errors
    /// [`Error::Invalid`] for an invalid name of a bucket, for one that is named twice, and for too many.
    pub fn new(buckets: Vec<String>) -> Result<Self> {
        if buckets.len() > OWN_SPACES_MAX {
            let count = buckets.len();
            let what =
                format!("{count} buckets are named for own space; at most {OWN_SPACES_MAX} can have it");
            return Err(Error::Invalid(what));
        }
        for (index, bucket) in buckets.iter().enumerate() {
            check_bucket(bucket)?;
            if buckets[..index].contains(bucket) {
                let what = format!("bucket {bucket:?} is named twice for own space");
                return Err(Error::Invalid(what));
            }
        }
        Ok(Self { buckets, saved: Mutex::default() })
    }

    /// The number of buckets with their own space.
    #[inline]
    pub fn count(&self) -> usize {
        self.buckets.len()
    }

    /// The owner of the space for an object: its bucket, or 0.
    #[inline]
    pub fn owner_of(&self, key: &ObjectKey) -> OwnerId {
        self.owner(key.bucket().as_bytes())
    }

    /// As [`Self::owner_of`], of an encoded key.
    #[inline]
    pub fn owner_of_encoded(&self, key: &[u8]) -> OwnerId {
        if self.buckets.is_empty() {
            return 0;
        }
        let key = if is_hidden(key) { &key[1..] } else { key };
        self.owner(key.split(|&byte| byte == 0).next().unwrap_or_default())
    }

    #[inline]
    fn owner(&self, bucket: &[u8]) -> OwnerId {
        let place = self.buckets.iter().position(|own| own.as_bytes() == bucket);
        place.map_or(0, |place| place as OwnerId + 1)
    }

    /// The buckets, in the order of their owners.
    pub fn buckets(&self) -> impl Iterator<Item = &str> {
        self.buckets.iter().map(String::as_str)
    }

    fn owners(&self) -> impl Iterator<Item = (OwnerId, &str)> {
        (1..).zip(self.buckets())
    }

    /// Blocks of the groups that serve one bucket only.
    pub fn blocks(&self, space: &SpaceManager) -> u64 {
        let groups = self.owners().flat_map(|(owner, _)| space.allocator().groups_of(owner));
        groups.map(|run| u64::from(run.blocks)).sum()
    }

    /// The text that saves the groups of every bucket.
    pub fn text(&self, space: &SpaceManager) -> String {
        let mut text = format!("{FIRST_LINE}\n");
        for (owner, bucket) in self.owners() {
            text.push_str(bucket);
            for run in space.allocator().groups_of(owner) {
                text.push_str(&format!(" {}+{}", run.block, run.blocks));
            }
            text.push('\n');
        }
        text
    }

    /// Assigns the groups in `text` to their buckets again; groups of other buckets are ignored.
    pub fn restore(&self, text: &str, space: &SpaceManager) -> Option<()> {
        let mut lines = text.lines();
        if lines.next()? != FIRST_LINE {
            return None;
        }
        for line in lines {
            let mut words = line.split(' ');
            let owner = self.owner(words.next()?.as_bytes());
            let run = |word: &str| {
                let (block, blocks) = word.split_once('+')?;
                Some(Run::new(block.parse().ok()?, blocks.parse().ok()?))
            };
            let runs: Vec<Run> = words.map(run).collect::<Option<_>>()?;
            if owner > 0 {
                space.allocator().own(owner, &runs);
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use shoal_space::Space;

    use super::*;
    use crate::manager::DataBlocks;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.into()).collect()
    }

    #[test]
    fn names_are_checked() {
        assert!(OwnSpace::new(names(&["a", "a"])).is_err());
        assert!(OwnSpace::new(names(&["Not a bucket"])).is_err());
        assert!(OwnSpace::new((0..65).map(|number| number.to_string()).collect()).is_err());
        let own = OwnSpace::new(names(&["a", "b"])).unwrap();
        assert_eq!(own.owner_of(&ObjectKey::new("b", b"a").unwrap()), 2);
        assert_eq!(
            (own.owner_of_encoded(b"a\0b"), own.owner_of_encoded(b"ab\0"), own.owner_of_encoded(b"")),
            (1, 0, 0)
        );
    }

    #[test]
    fn a_text_of_another_kind_changes_nothing() {
        let data = DataBlocks { blocks: 0..1024, areas: Vec::new() };
        let space = SpaceManager::new(Space::new(1024, 64), 1, 1024, data);
        let own = OwnSpace::new(names(&["a"])).unwrap();
        for text in ["", "x", "shoal own space 1\na 5", "shoal own space 1\na x+y"] {
            assert_eq!(own.restore(text, &space), None, "{text}");
        }
        assert_eq!(own.restore("shoal own space 1\nb 0+64\na 64+128\n", &space), Some(()));
        assert_eq!(space.allocator().groups_of(1), [Run::new(64, 128)]);
        assert_eq!(own.text(&space), "shoal own space 1\na 64+128\n");
    }
}
