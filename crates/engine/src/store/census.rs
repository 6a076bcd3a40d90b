//! A census counts the blocks of pages, packed runs and extents by part of the device, and objects by bucket.
//!
//! The allocator knows which blocks are used. Their kind, only the trees know: a census walks over all entries of all trees. It works in
//! pieces as a scrub does: each reads some leaves of one tablet under a separate view, so it delays the reuse of space only for a moment
//! (R16, R23), and the next one continues after the last key. It reads pages through the cache and no values, and it keeps nothing between
//! the pieces but its counts. Records that no apply has moved into the trees are not counted, and entries that move between trees
//! while the census is under way may be counted twice or not at all.

use std::collections::BTreeMap;

use shoal_base::{Lsn, Run};
use shoal_common::error::{Error, Result};
use shoal_common::key::{is_own, is_reserved};
use shoal_tablets::tablet::tree_io::{PoolPages, tree_of};
use shoal_tree::layers::{Trees, is_tombstone};
use shoal_tree::{PageRef, Problem, Tree, Visitor};
use shoal_value::packed::{RunEntry, block_of_run_key};
use shoal_value::{Entry, decode_leaf_entry, owned_runs};

use crate::store::{Inner, Store};

/// Leaves of one piece, at least two: a piece starts in the leaf where the last one ended.
const LEAVES_AT_A_TIME: usize = 64;
/// Buckets that a census counts at most; the objects of further ones are counted together.
pub const CENSUS_BUCKETS_MAX: usize = 10_000;

/// Blocks in use of one kind in a part of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KindCount {
    /// The runs that start there.
    pub runs: u32,
    /// Blocks.
    pub blocks: u32,
}

/// The kinds of a part of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartKinds {
    /// Pages of the trees, and the lists of layers; each is a run.
    pub pages: KindCount,
    /// Runs of several values.
    pub packed: KindCount,
    /// Runs of single values, and of manifests.
    pub extents: KindCount,
}

/// The objects of a bucket, those that have expired and were not deleted yet included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BucketSize {
    /// Their number.
    pub objects: u64,
    /// Bytes of their values.
    pub bytes: u64,
}

impl BucketSize {
    fn add(&mut self, bytes: u64) {
        (self.objects, self.bytes) = (self.objects + 1, self.bytes + bytes);
    }
}

/// A census, complete or under way.
#[derive(Clone, Debug)]
pub struct Census {
    /// Blocks of a part.
    pub part_blocks: u64,
    /// The kinds of each part.
    pub parts: Vec<PartKinds>,
    /// The objects of each bucket.
    pub buckets: BTreeMap<String, BucketSize>,
    /// The objects of buckets above the limit.
    pub others: BucketSize,
    /// Pages that were read.
    pub pages: u64,
    /// Objects so far.
    pub objects: u64,
    buckets_max: usize,
    place: CensusPlace,
}

/// The place at which a census continues.
#[derive(Clone, Debug, Default)]
struct CensusPlace {
    tablet: usize,
    /// Trees of the tablet that were read: the base, then the layers from the oldest on.
    trees: usize,
    from: Vec<u8>,
    /// The last page of each level, which the next piece reads again.
    path: Vec<u64>,
}

impl CensusPlace {
    fn next_tablet(&mut self) {
        *self = Self { tablet: self.tablet + 1, ..Self::default() };
    }
}

impl Census {
    fn new(device_blocks: u64, part_blocks: u64, buckets_max: usize) -> Self {
        let part_blocks = part_blocks.max(1);
        Self {
            part_blocks,
            parts: vec![PartKinds::default(); device_blocks.div_ceil(part_blocks) as usize],
            buckets: BTreeMap::new(),
            others: BucketSize::default(),
            pages: 0,
            objects: 0,
            buckets_max: buckets_max.min(CENSUS_BUCKETS_MAX),
            place: CensusPlace::default(),
        }
    }

    /// Counts a run. Blocks past the end of the device, which has grown since, are left out.
    fn add(&mut self, run: Run, kind: fn(&mut PartKinds) -> &mut KindCount) {
        let first = run.block / self.part_blocks;
        for part in first..run.end().div_ceil(self.part_blocks) {
            let (start, end) = (part * self.part_blocks, (part + 1) * self.part_blocks);
            let Some(kinds) = self.parts.get_mut(part as usize) else { return };
            let count = kind(kinds);
            count.runs = count.runs.saturating_add(u32::from(part == first));
            count.blocks = count.blocks.saturating_add((run.end().min(end) - run.block.max(start)) as u32);
        }
    }

    fn add_object(&mut self, key: &[u8], bytes: u64) {
        let Some(name) = key.split(|&byte| byte == 0).next().and_then(|name| str::from_utf8(name).ok())
        else {
            return;
        };
        self.objects += 1;
        if let Some(size) = self.buckets.get_mut(name) {
            size.add(bytes);
        } else if self.buckets.len() < self.buckets_max {
            self.buckets.entry(name.to_owned()).or_default().add(bytes);
        } else {
            self.others.add(bytes);
        }
    }
}

impl Store {
    /// A census that has not counted yet, for parts of `part_blocks` blocks and at most `buckets_max` buckets.
    #[must_use]
    pub fn new_census(&self, part_blocks: u64, buckets_max: usize) -> Census {
        Census::new(self.0.usable_blocks(), part_blocks, buckets_max)
    }

    /// Counts one piece more. Returns true if the census is complete.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub async fn census_some(&self, census: &mut Census) -> Result<bool> {
        self.0.census_some(census).await
    }
}

impl Inner {
    async fn census_some(&self, census: &mut Census) -> Result<bool> {
        self.check_open()?;
        let Some(tablet) = self.tablets.all().get(census.place.tablet) else { return Ok(true) };
        let view = tablet.view();
        let Some(number) = view.trees.layers.list.len().checked_sub(census.place.trees) else {
            // Layers were compacted meanwhile: their entries are in the base.
            census.place.next_tablet();
            return Ok(false);
        };
        let tree = tree_of(self.identity, tablet.id);
        if census.place.trees == 0
            && census.place.from.is_empty()
            && let Some(list) = view.trees.layers.stored
        {
            census.add(Run::new(list.block, u32::from(list.copies)), |kinds| &mut kinds.pages);
        }
        let from = census.place.from.clone();
        let mut piece = Piece {
            inner: self,
            trees: (tree, &view.trees, number),
            path: std::mem::take(&mut census.place.path),
            last: std::mem::take(&mut census.place.from),
            census,
            entries: Vec::new(),
            leaves: 0,
            has_passed: false,
            is_full: false,
        };
        let source = PoolPages::new(&self.pool).of_pass();
        let walked = tree.walk_from(&source, view.trees.root(number), from, &mut piece).await;
        let Piece { is_full, last, path, census, .. } = piece;
        match (walked, is_full) {
            (Ok(_), _) if number == 0 => census.place.next_tablet(),
            (Ok(_), _) => {
                let CensusPlace { tablet, trees, .. } = census.place;
                census.place = CensusPlace { tablet, trees: trees + 1, ..CensusPlace::default() };
            }
            (Err(_), true) => (census.place.from, census.place.path) = (last, path),
            (Err(error), false) => return Err(error),
        }
        Ok(false)
    }
}

/// One piece of a walk.
struct Piece<'a> {
    inner: &'a Inner,
    /// The trees of the tablet, and the number of the one that is read.
    trees: (Tree, &'a Trees, usize),
    census: &'a mut Census,
    /// Entries of the current leaf.
    entries: Vec<(Vec<u8>, Lsn, Entry)>,
    leaves: usize,
    path: Vec<u64>,
    /// The next piece starts at this key.
    last: Vec<u8>,
    /// True if that is above the first key of this piece.
    has_passed: bool,
    is_full: bool,
}

impl Visitor for Piece<'_> {
    fn page(&mut self, page: PageRef, level: u8, _used_bytes: usize) {
        let level = usize::from(level);
        if self.path.len() <= level {
            self.path.resize(level + 1, u64::MAX);
        }
        // The piece before has counted the pages on the way to its last leaf.
        if self.path[level] != page.block {
            self.path[level] = page.block;
            self.census.pages += 1;
            self.census.add(Run::new(page.block, 1), |kinds| &mut kinds.pages);
        }
    }

    fn entry(&mut self, key: &[u8], entry: &[u8], _page: PageRef) {
        // The piece before has counted this entry.
        if *key < *self.last {
            return;
        }
        self.has_passed = true;
        self.last.clear();
        self.last.extend_from_slice(key);
        self.last.push(0);
        if is_reserved(key) {
            if let (Some(block), Ok(entry)) = (block_of_run_key(key), RunEntry::decode(entry)) {
                self.census.add(entry.run(block), |kinds| &mut kinds.packed);
            }
            return;
        }
        let (_, trees, number) = self.trees;
        if number < trees.layers.list.len() && is_tombstone(entry) {
            return;
        }
        if let Ok((version, entry)) = decode_leaf_entry(entry) {
            self.entries.push((key.to_vec(), version, entry));
        }
    }

    /// Damage is reported by scrubs and reads.
    fn problem(&mut self, _problem: Problem) {}

    async fn leaf_done(&mut self) -> Result<()> {
        let inner = self.inner;
        inner.check_open()?;
        let (tree, trees, number) = self.trees;
        let pages = PoolPages::new(&inner.pool).of_pass();
        for (key, version, entry) in std::mem::take(&mut self.entries) {
            // The blocks that a shadowed entry names were freed.
            if trees.is_shadowed(tree, &pages, number, &key).await {
                continue;
            }
            for run in owned_runs(&inner.device, &inner.pool, &entry, version).await.0 {
                self.census.add(run, |kinds| &mut kinds.extents);
            }
            if !is_own(&key) {
                self.census.add_object(&key, entry.value_bytes);
            }
        }
        self.leaves += 1;
        // Leaves that were lost with a page have no entries: a piece of them alone would be read again for ever.
        if self.leaves >= LEAVES_AT_A_TIME && self.has_passed {
            self.is_full = true;
            return Err(Error::Busy("the piece of a census is over"));
        }
        Ok(())
    }
}

/// A census beside a model of the objects, and beside the allocator.
#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::testing::fixtures::{in_memory_as, open_in, options};
    use crate::{Environment, FormatOptions, ObjectKey, OpenOptions, PutOptions, RejectRules, block_on};

    const PART_BLOCKS: u64 = 64;

    fn store() -> Store {
        let format =
            FormatOptions { tablets: 2, log_blocks: Some(8_192), ..FormatOptions::for_blocks(32_768) };
        open_in(
            &in_memory_as(&format),
            OpenOptions { background: false, cache_bytes: 16 << 20, ..options() },
            Environment::default(),
        )
    }

    /// A complete census, and the number of its pieces.
    fn census(store: &Store) -> (Census, usize) {
        let (mut census, mut pieces) = (store.new_census(PART_BLOCKS, usize::MAX), 1);
        while !block_on(store.census_some(&mut census)).unwrap() {
            pieces += 1;
        }
        (census, pieces)
    }

    fn apply(store: &Store) {
        block_on(store.0.checkpointer.apply_all()).unwrap();
    }

    /// The objects that a store should have: the bytes of each value.
    #[derive(Default)]
    struct Model(BTreeMap<(&'static str, u32), usize>);

    impl Model {
        fn put(&mut self, store: &Store, bucket: &'static str, which: u32, bytes: usize) {
            let (key, value) =
                (ObjectKey::new(bucket, &which.to_be_bytes()).unwrap(), vec![which as u8; bytes]);
            block_on(async {
                let mut stream = store.put_stream(&key, PutOptions::default()).unwrap();
                stream.write(&value).await.unwrap();
                stream.finish().await.unwrap();
            });
            self.0.insert((bucket, which), bytes);
        }

        fn delete(&mut self, store: &Store, bucket: &'static str, which: u32) {
            let key = ObjectKey::new(bucket, &which.to_be_bytes()).unwrap();
            block_on(store.delete(&key, RejectRules::default())).unwrap();
            self.0.remove(&(bucket, which));
        }

        fn buckets(&self) -> BTreeMap<String, BucketSize> {
            let mut sizes: BTreeMap<String, BucketSize> = BTreeMap::new();
            for (&(bucket, _), &bytes) in &self.0 {
                sizes.entry(bucket.to_owned()).or_default().add(bytes as u64);
            }
            sizes
        }
    }

    /// The blocks of all kinds together are those that the allocator has allocated.
    fn check(store: &Store, model: &Model) -> (Census, usize) {
        let (census, pieces) = census(store);
        assert_eq!(census.buckets, model.buckets());
        assert_eq!(census.objects, model.0.len() as u64);
        let kinds = |part: &PartKinds| [part.pages, part.packed, part.extents];
        let blocks = |part: &PartKinds| kinds(part).iter().map(|kind| u64::from(kind.blocks)).sum::<u64>();
        assert!(census.parts.iter().all(|part| blocks(part) <= PART_BLOCKS), "{:?}", census.parts);
        let sum: u64 = census.parts.iter().map(blocks).sum();
        assert_eq!(sum, store.stat().allocated_blocks, "a block has one kind");
        let free = store.free_space().map(|run| u64::from(run.blocks)).sum::<u64>();
        assert!(sum + free <= store.space_plan().device_blocks);
        for run in store.free_space() {
            let part = run.block.div_ceil(PART_BLOCKS)..run.end() / PART_BLOCKS;
            let within = census.parts.get(part.start as usize..(part.end as usize).max(part.start as usize));
            assert!(within.unwrap_or_default().iter().all(|part| blocks(part) == 0), "{run:?} is free");
        }
        (census, pieces)
    }

    #[test]
    fn each_allocated_block_has_a_kind_and_each_object_its_bucket() {
        let store = store();
        let mut model = Model::default();
        assert_eq!(check(&store, &model).0.buckets, BTreeMap::new());
        // Values in leaves, in packed runs, in extents, and with a manifest.
        (0..300).for_each(|which| model.put(&store, "short", which, 90));
        (0..200).for_each(|which| model.put(&store, "packed", which, 3_000 + which as usize));
        (0..20).for_each(|which| model.put(&store, "films", which, 90_000));
        model.put(&store, "films", 99, 20 << 20);
        // Nothing is in the trees yet.
        assert_eq!(census(&store).0.objects, 0);
        apply(&store);
        let (first, _) = check(&store, &model);
        let sum = |kind: fn(&PartKinds) -> KindCount| {
            first.parts.iter().map(kind).fold((0, 0), |sum, count| (sum.0 + count.runs, sum.1 + count.blocks))
        };
        assert!(sum(|part| part.pages).1 > 10 && sum(|part| part.packed).1 > 100, "{:?}", first.parts);
        assert!(sum(|part| part.packed).0 < 50, "a packed run has many values");
        assert!(sum(|part| part.extents).1 >= 20 * 22 + 5_120, "{:?}", sum(|part| part.extents));
        // Layers above the base: replaced and deleted objects count once, or not.
        for round in 0..3 {
            (0..100).for_each(|which| model.put(&store, "short", 3 * which + round, 120));
            (0..20).for_each(|which| model.delete(&store, "packed", 20 * round + which));
            model.put(&store, "films", round, 150_000);
            apply(&store);
            check(&store, &model);
        }
    }

    #[test]
    fn a_census_in_pieces_counts_everything_once() {
        let store = store();
        let mut model = Model::default();
        for which in 0..12_000 {
            let bucket = if which % 3 == 0 { "a" } else { "b" };
            model.put(&store, bucket, which, 200 + which as usize % 300);
            if which % 4_000 == 3_999 {
                apply(&store);
            }
        }
        let (found, pieces) = check(&store, &model);
        assert!(pieces > 10 && found.pages > 10 * LEAVES_AT_A_TIME as u64, "{pieces}, {}", found.pages);
    }

    /// A census of a store that serves: within 10 % of the objects although they change under it.
    #[test]
    fn changes_under_a_census_change_it_little() {
        let store = store();
        let mut model = Model::default();
        (0..12_000).for_each(|which| model.put(&store, "a", which, 300));
        apply(&store);
        let (mut census, mut next) = (store.new_census(PART_BLOCKS, usize::MAX), 0);
        while !block_on(store.census_some(&mut census)).unwrap() {
            (0..100).for_each(|which| model.put(&store, "a", (next + which) % 12_000, 301));
            next += 100;
            apply(&store);
        }
        let found = census.buckets["a"];
        let within = |found: u64, model: u64| found.abs_diff(model) * 10 <= model;
        assert!(
            next >= 500 && within(found.objects, 12_000) && within(found.bytes, 12_000 * 300),
            "{found:?}"
        );
    }

    #[test]
    fn objects_of_further_buckets_are_counted_together() {
        let mut census = Census::new(1_000, 64, usize::MAX);
        for bucket in 0..CENSUS_BUCKETS_MAX + 3 {
            census.add_object(format!("b{bucket}\0key").as_bytes(), 5);
            census.add_object(b"b0\0other\0key", 7);
        }
        assert_eq!(census.buckets.len(), CENSUS_BUCKETS_MAX);
        assert_eq!(census.others, BucketSize { objects: 3, bytes: 15 });
        assert_eq!(census.buckets["b1"], BucketSize { objects: 1, bytes: 5 });
        assert_eq!(census.objects, 2 * (CENSUS_BUCKETS_MAX as u64 + 3));
    }

    #[test]
    fn runs_across_parts_are_split_and_those_past_the_end_left_out() {
        let mut census = Census::new(100, 64, 0);
        census.add(Run::new(60, 10), |kinds| &mut kinds.extents);
        census.add(Run::new(120, 40), |kinds| &mut kinds.extents);
        census.add(Run::new(4_000, 1), |kinds| &mut kinds.extents);
        let of = |runs, blocks| KindCount { runs, blocks };
        assert_eq!(census.parts.iter().map(|part| part.extents).collect::<Vec<_>>(), [of(1, 4), of(1, 14)]);
    }
}
