//! Finds the contents of a tablet in the groups that are being emptied, by one walk over its tree for all of them
//! (`docs/adr/2026-11-21-relocation.md`): values with separate extents, packed runs by their liveness, and pages by the walk itself.

use std::sync::Arc;

use bytes::Bytes;
use shoal_base::{Lsn, Run, blocks_for};
use shoal_common::error::{Error, Result};
use shoal_common::hidden_key::is_part;
use shoal_common::key::is_reserved;
use shoal_device::IoBuf;
use shoal_space_manager::TREE_BLOCKS_PER_RECORD;
use shoal_tree::layers::Trees;
use shoal_tree::{Cursor, PageRef};
use shoal_value::{Entry, Home, Located, decode_leaf_entry, manifest_blocks};

use super::Relocator;
use crate::gc::rewrite::{LiveValue, Moves, VictimRun};
use crate::tablet::tree_io::{PoolPages, tree_of};
use crate::tablet::view::Tablet;

/// Limit on the leaves that one step reads while it holds the applier's token.
const LEAVES_MAX: usize = 512;

/// Blocks that are being emptied, and the free runs that their contents fill.
pub struct Emptied {
    /// In ascending order.
    pub runs: Arc<[Run]>,
    /// The longest free run that may be filled, in blocks. Longer values stay.
    pub hole_blocks: u32,
}

impl Emptied {
    fn overlap(&self, run: Run) -> bool {
        let next = self.runs.partition_point(|emptied| emptied.end() <= run.block);
        self.runs.get(next).is_some_and(|emptied| emptied.overlaps(run))
    }
}

/// A value with separate runs, some of which are in a group that is being emptied.
struct Placed {
    key: Bytes,
    version: Lsn,
    entry: Entry,
    located: Located,
}

/// The result of a part of the walk.
#[derive(Default)]
pub struct FoundValues {
    values: Vec<Placed>,
    runs: Vec<VictimRun>,
    touches: Vec<Bytes>,
    /// The key at which the walk continues; `None` at the end of the tree.
    pub next: Option<Vec<u8>>,
    bytes: u64,
    hole_blocks: u32,
}

impl FoundValues {
    pub(crate) fn is_empty(&self) -> bool {
        self.values.is_empty() && self.runs.is_empty() && self.touches.is_empty()
    }

    /// Blocks that the relocation of all of it takes, before the old places become free.
    fn blocks(&self) -> u64 {
        let own = |value: &Placed| {
            let stored = value.entry.stored_bytes();
            blocks_for(stored)
                + manifest_blocks(value.located.runs().len(), stored.div_ceil(1 << 16) as usize)
        };
        let of_runs = |run: &VictimRun| blocks_for(run.bytes_after()) + 1;
        let values: u64 = self.runs.iter().map(|run| u64::from(run.entry.live_values)).sum();
        let records = values + (self.values.len() + self.touches.len()) as u64;
        self.values.iter().map(own).sum::<u64>()
            + self.runs.iter().map(of_runs).sum::<u64>()
            + records * TREE_BLOCKS_PER_RECORD
    }
}

impl Relocator {
    /// Searches the base of `trees` from `position` on, until it finds `bytes_max` bytes to move or reaches the limit of leaves.
    ///
    /// # Errors
    /// As the device. Damage is skipped.
    pub async fn find_in_groups(
        &self,
        tablet: &Tablet,
        trees: &Trees,
        emptied: &Emptied,
        position: &[u8],
        bytes_max: u64,
    ) -> Result<FoundValues> {
        let tree = tree_of(self.checkpointer.identity, tablet.id);
        let mut cursor =
            Cursor::new(tree, PoolPages::new(&self.checkpointer.pool), trees.base, position, None);
        let mut found = FoundValues { hole_blocks: emptied.hole_blocks, ..FoundValues::default() };
        let mut leaf: Option<PageRef> = None;
        let mut leaves = 0;
        loop {
            let (key, entry) = match cursor.next().await {
                Ok(Some(item)) => (Bytes::copy_from_slice(item.key), item.found()),
                Ok(None) => return Ok(found),
                // The cursor continues after a damaged page.
                Err(Error::Corrupt { .. }) => continue,
                Err(error) => return Err(error),
            };
            let mut pages = cursor.pages().peekable();
            if leaves > LEAVES_MAX || found.bytes >= bytes_max {
                // The keys of a forged leaf may be in any order; the walk ends there (R13).
                found.next = (position < &key[..]).then(|| key.to_vec());
                return Ok(found);
            }
            if pages.peek() != leaf.as_ref() {
                leaf = pages.peek().copied();
                leaves += 1;
                if pages.any(|page| emptied.overlap(Run::new(page.block, 1))) {
                    found.touches.push(key.clone());
                }
            }
            if is_reserved(&key) {
                let is_moved = |run: Run| run.blocks <= emptied.hole_blocks && emptied.overlap(run);
                let run = VictimRun::of_entry(&key, &entry).filter(|run| is_moved(run.run()));
                found.bytes += run.as_ref().map_or(0, |run| u64::from(run.entry.bytes()));
                found.runs.extend(run);
            } else if !is_part(&key)
                && let Some(value) = self.placed_in(&key, &entry, emptied).await?
                && !trees
                    .is_shadowed(
                        tree,
                        &PoolPages::new(&self.checkpointer.pool).of_pass(),
                        trees.layers.list.len(),
                        &key,
                    )
                    .await
            {
                found.bytes += value.entry.stored_bytes();
                found.values.push(value);
            }
        }
    }

    /// The value of a leaf's entry if it has separate runs in the groups and a hole may hold it.
    async fn placed_in(&self, key: &Bytes, leaf_entry: &[u8], emptied: &Emptied) -> Result<Option<Placed>> {
        let Ok((version, entry)) = decode_leaf_entry(leaf_entry) else { return Ok(None) };
        let (runs, has_manifest) = match &entry.home {
            Home::Inline | Home::Packed { .. } => return Ok(None),
            Home::Extents { runs, .. } => (runs, false),
            Home::Manifest { runs, .. } => (runs, true),
        };
        let is_inside = runs.iter().any(|&run| emptied.overlap(run));
        // Longer values stay: a group that holds a part of one is not emptied.
        if blocks_for(entry.stored_bytes()) > u64::from(emptied.hole_blocks) || !(is_inside || has_manifest) {
            return Ok(None);
        }
        match Located::find(&self.checkpointer.device, &self.checkpointer.pool, &entry, version).await {
            // An object that an upload made stays as its parts are.
            Ok(located) if located.is_joined() => Ok(None),
            Ok(located) if is_inside || located.runs().iter().any(|&run| emptied.overlap(run)) => {
                Ok(Some(Placed { key: key.clone(), version, entry, located }))
            }
            Ok(_) | Err(Error::Corrupt { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads the found values and runs in the form that an apply takes. Returns `None` if there is no space to move them; `short` lowers
    /// the reserve to keep.
    pub async fn read_found(
        &self,
        tablet: &Tablet,
        trees: &Trees,
        found: FoundValues,
        short: bool,
    ) -> Option<Moves> {
        let reservation = self.space.reserve_for_moves(found.blocks(), short)?;
        let hole_blocks = found.hole_blocks.min(self.checkpointer.layout().group_blocks - 1);
        let mut moves = Moves {
            touches: found.touches,
            hole_blocks: Some(hole_blocks),
            reservation: Some(reservation),
            ..Moves::default()
        };
        moves.values = self.read_placed(found.values).await;
        self.checkpointer.read_live(tablet, trees, found.runs, &mut moves).await;
        Some(moves)
    }

    /// Reads whole values, all with one submission. Values that are damaged or cannot be read stay in their places.
    async fn read_placed(&self, values: Vec<Placed>) -> Vec<LiveValue> {
        let mut batch = self.checkpointer.device.batch();
        let mut reads = Vec::with_capacity(values.len());
        for value in &values {
            let read =
                |run: &Run| self.checkpointer.device.read(run.block, IoBuf::unfilled(run.blocks as usize));
            reads.push(value.located.runs().iter().map(|run| batch.add(read(run))).collect::<Vec<_>>());
        }
        batch.start();
        let mut out = Vec::with_capacity(values.len());
        for (value, reads) in values.into_iter().zip(reads) {
            let mut parts = Vec::with_capacity(reads.len());
            let mut failed = false;
            for read in reads {
                match read.await.ok() {
                    Ok(memory) => parts.push(Bytes::from_owner(memory)),
                    Err(error) => {
                        tracing::warn!("a value that is to move could not be read: {error}");
                        failed = true;
                    }
                }
            }
            out.extend(if failed { None } else { value.with_bytes(parts) });
        }
        out
    }
}

impl Placed {
    /// The value with the bytes of its runs; `None` if it is damaged.
    fn with_bytes(self, parts: Vec<Bytes>) -> Option<LiveValue> {
        let bytes = match <[Bytes; 1]>::try_from(parts) {
            Ok([only]) => only,
            Err(parts) => Bytes::from(parts.concat()),
        };
        let first = self.located.offset();
        let stored_bytes = usize::try_from(self.entry.stored_bytes()).ok()?;
        let range = first..first + stored_bytes;
        let stored = bytes.get(range.clone()).map(|_| bytes.slice(range))?;
        if !self.located.matches(&stored) {
            tracing::warn!("version {} of {} is damaged and stays", self.version, self.key.escape_ascii());
            return None;
        }
        let checksum = shoal_base::checksum::crc32c(&stored);
        Some(LiveValue { key: self.key, version: self.version, entry: self.entry, stored, checksum })
    }
}
