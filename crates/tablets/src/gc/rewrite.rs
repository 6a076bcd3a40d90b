//! Chooses the packed runs to rewrite, and reads their live values.
//!
//! The search visits a tablet's runs window by window and takes the emptiest of each window, so its memory does not grow with the number of
//! runs. A run's footer names its values; a value is alive if the tree still names it at this place. The values move with the apply that
//! chose them, on the root that it read (R13).

use std::sync::Arc;

use bytes::Bytes;
use shoal_base::checksum::crc32c;
use shoal_base::{BLOCK_BYTES_U64, Lsn, Run, blocks_for};
use shoal_common::error::{Error, Result};
use shoal_device::IoBuf;
use shoal_space_manager::{Reservation, TREE_BLOCKS_PER_RECORD};
use shoal_tree::layers::Trees;
use shoal_tree::{Cursor, Root, Tree};
use shoal_value::packed::{Footer, RunEntry, TAIL_BYTES, block_of_run_key, run_key, run_keys_end};
use shoal_value::{Entry, Home, decode_leaf_entry};

use crate::checkpoint::checkpointer::Checkpointer;
use crate::gc::liveness::Doubt;
use crate::tablet::tree_io::{PoolPages, owner_of, tree_of};
use crate::tablet::view::Tablet;

/// Runs in a window, of which the emptiest are taken.
const WINDOW_RUNS: usize = 1024;

/// Packed blocks over live bytes, in thousandths: the aim of applies under load. Under random overwrites 1.25 multiplies the written bytes
/// by 2.7; 1.05 would multiply them by 10.7.
const AIM_UNDER_LOAD: u64 = 1250;
/// The aim of an idle store, and of one that is short of space.
const AIM_IDLE: u64 = 1050;

/// Runs that one apply may rewrite even if it writes little else: fewer would often not free a single block.
const MOVED_RUNS_MIN: u64 = 4;

/// The effort of a rewrite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pressure {
    /// Beside fresh values: at most three times their bytes are rewritten.
    Load {
        /// Bytes of the fresh values.
        fresh_bytes: usize,
    },
    /// No request waits.
    Idle,
    /// A write found too little free space.
    Shortage,
}

impl Pressure {
    pub(crate) fn aim(self) -> u64 {
        match self {
            Self::Load { .. } => AIM_UNDER_LOAD,
            Self::Idle | Self::Shortage => AIM_IDLE,
        }
    }

    /// Limit on the bytes of runs that one apply reads and rewrites.
    fn budget(self, checkpointer: &Checkpointer) -> u64 {
        let most = checkpointer.tuning.move_bytes_max as u64;
        let run = u64::from(checkpointer.run_blocks_max()) * BLOCK_BYTES_U64;
        match self {
            // Steady overwrites at 1.25 need to move twice the fresh bytes; the runs also hold dead bytes.
            Self::Load { fresh_bytes } => (3 * fresh_bytes as u64).min(most),
            Self::Idle | Self::Shortage => most / 4,
        }
        .max(MOVED_RUNS_MIN * run)
    }
}

/// A value to move.
pub struct LiveValue {
    /// The encoded key of the object.
    pub key: Bytes,
    /// The version of the object.
    pub version: Lsn,
    /// The tree's entry, which names the old place.
    pub entry: Entry,
    /// The stored bytes: the metadata and the value.
    pub stored: Bytes,
    /// The CRC-32C of the stored bytes.
    pub checksum: u32,
}

/// The moves of one apply, and the runs whose contents do not match their liveness.
#[derive(Default)]
pub struct Moves {
    /// The values to move.
    pub values: Vec<LiveValue>,
    /// Keys whose leaves, and the pages above them, must go to other blocks.
    pub touches: Vec<Bytes>,
    /// First blocks of runs whose contents do not match their liveness, each with the reason.
    pub doubtful: Vec<(u64, Doubt)>,
    /// If values are to fill holes: the length of the longest free run that counts as a hole, in blocks.
    pub hole_blocks: Option<u32>,
    /// The reservation for the values and the pages that name them, held until the end of the apply (R3).
    pub reservation: Option<Reservation>,
}

/// A step of an apply in addition to the memtable's records.
pub(crate) enum MoveStep {
    /// A value moves to another place.
    Value(Box<LiveValue>),
    /// The leaf that holds this key moves to another block.
    Touch(Bytes),
}

impl MoveStep {
    pub(crate) fn key(&self) -> &Bytes {
        match self {
            Self::Value(value) => &value.key,
            Self::Touch(key) => key,
        }
    }
}

impl Moves {
    /// Returns true if there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty() && self.touches.is_empty() && self.doubtful.is_empty()
    }

    /// At most one step for each key, in the order of the keys, and their reservation.
    pub(crate) fn into_steps(self) -> (Vec<MoveStep>, Option<Reservation>) {
        let values = self.values.into_iter().map(|value| MoveStep::Value(Box::new(value)));
        let mut steps: Vec<MoveStep> = values.chain(self.touches.into_iter().map(MoveStep::Touch)).collect();
        // The sort is stable: a moved value also moves its leaf.
        steps.sort_by(|a, b| a.key().cmp(b.key()));
        steps.dedup_by(|later, first| later.key() == first.key());
        assert!(steps.is_sorted_by(|one, next| one.key() < next.key()), "a key moves once in an apply (R13)");
        (steps, self.reservation)
    }
}

/// A run to rewrite.
pub struct VictimRun {
    /// The first block of the run.
    pub block: u64,
    /// Its entry in the tree.
    pub entry: RunEntry,
}

impl VictimRun {
    /// The run that the tree has under this key; `None` if the key is of another kind, the entry is unreadable, or the run must not be
    /// rewritten.
    pub(crate) fn of_entry(key: &[u8], entry: &[u8]) -> Option<Self> {
        let block = block_of_run_key(key)?;
        let entry = RunEntry::decode(entry).ok()?;
        (!entry.uncertain && !entry.fixed).then_some(Self { block, entry })
    }

    pub(crate) fn run(&self) -> Run {
        self.entry.run(self.block)
    }

    /// Returns true if `values` match the liveness of the run.
    fn counts(&self, values: &[LiveValue]) -> bool {
        let bytes: usize = values.iter().map(|value| value.stored.len()).sum();
        (values.len(), bytes) == (self.entry.live_values as usize, self.entry.live_bytes as usize)
    }

    /// Bytes that the live values will take, with their share of a footer.
    pub(crate) fn bytes_after(&self) -> u64 {
        let footer = u64::from(self.entry.bytes() - self.entry.value_bytes);
        let share = footer * u64::from(self.entry.live_values) / u64::from(self.entry.values.max(1));
        u64::from(self.entry.live_bytes) + share.min(footer)
    }
}

/// The choice from one window.
struct Choice {
    chosen: Vec<VictimRun>,
    reservation: Option<Reservation>,
    /// True if more runs were worth rewriting, but there was no space to move them.
    no_room: bool,
}

impl Checkpointer {
    /// Returns true if the packed runs of a tablet take more blocks than `pressure` allows.
    pub(crate) fn wants_tidying(&self, tablet: &Tablet, pressure: Pressure) -> bool {
        let totals = tablet.view().totals;
        is_above(totals.packed_bytes(), totals.packed_live_bytes, pressure.aim())
            && tablet.tidy.lock().quiet != Some((pressure.aim(), totals))
    }

    /// Rewrites packed runs of the tablet with the largest gain. Returns true if there was anything to do.
    ///
    /// # Errors
    /// As an apply.
    pub(crate) async fn tidy_idle(&self) -> Result<bool> {
        let wasted = |tablet: &Arc<Tablet>| {
            let totals = tablet.view().totals;
            totals.packed_bytes().saturating_sub(totals.packed_live_bytes)
        };
        let wanting = self.tablets.all().iter().filter(|tablet| self.wants_tidying(tablet, Pressure::Idle));
        match wanting.max_by_key(|tablet| wasted(tablet)) {
            Some(tablet) => self.tidy_tablet(tablet, Pressure::Idle).await,
            None => Ok(false),
        }
    }

    /// Rewrites packed runs of every tablet once and makes their dead space reusable at once. Returns true if there was
    /// anything to do.
    ///
    /// # Errors
    /// As an apply. A lack of space to move values is no error.
    pub async fn tidy_for_room(&self) -> Result<bool> {
        let mut any = false;
        for tablet in self.tablets.all() {
            match self.tidy_tablet(tablet, Pressure::Shortage).await {
                Ok(tidied) => any |= tidied,
                Err(Error::Full { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        if any {
            self.make_freed_reusable().await;
        }
        Ok(any)
    }

    /// Chooses runs of `tablet` to rewrite and reads their values that are alive under `trees`. Returns no moves if none is worthwhile.
    /// Runs that cannot be read are skipped.
    pub async fn choose_moves(&self, tablet: &Tablet, trees: &Trees, pressure: Pressure) -> Moves {
        let paused = self.move_limits.is_paused() && pressure != Pressure::Shortage;
        if paused || !self.wants_tidying(tablet, pressure) {
            return Moves::default();
        }
        let (mut victims, mut reservation) = self.choose_victims(tablet, trees.base, pressure).await;
        // An apply under load examines one window; other applies examine all of them.
        while victims.is_empty()
            && !matches!(pressure, Pressure::Load { .. })
            && tablet.tidy.lock().position > 0
        {
            (victims, reservation) = self.choose_victims(tablet, trees.base, pressure).await;
        }
        let mut moves = Moves { reservation, ..Moves::default() };
        self.read_live(tablet, trees, victims, &mut moves).await;
        moves
    }

    /// Reads the values of `victims` that are alive under `trees`. Runs that cannot be read are skipped.
    pub async fn read_live(
        &self,
        tablet: &Tablet,
        trees: &Trees,
        victims: Vec<VictimRun>,
        moves: &mut Moves,
    ) {
        let tree = tree_of(self.identity, tablet.id);
        for (victim, memory) in self.read_victims(victims).await {
            match self.live_values(tree, trees, &victim, &memory).await {
                Ok(values) if victim.counts(&values) => moves.values.extend(values),
                Ok(values) => {
                    let (run, alive) = (victim.run(), values.len());
                    tracing::error!("the packed run {run} has {alive} live values, not {:?}", victim.entry);
                    moves.doubtful.push((victim.block, Doubt::Count));
                }
                Err(Error::Corrupt { what, .. }) => {
                    tracing::warn!("the packed run {} cannot be rewritten: {what}", victim.run());
                    moves.doubtful.push((victim.block, Doubt::Contents));
                }
                // The run may be readable the next time; nothing else depends on it.
                Err(error) => tracing::warn!("the packed run {} is left for later: {error}", victim.run()),
            }
        }
    }

    /// The emptiest runs of the next window whose rewriting frees blocks, within the budget and the free space.
    async fn choose_victims(
        &self,
        tablet: &Tablet,
        root: Root,
        pressure: Pressure,
    ) -> (Vec<VictimRun>, Option<Reservation>) {
        let totals = tablet.view().totals;
        let position = tablet.tidy.lock().position;
        let (mut window, next) = self.window(tablet, root, position).await;
        window.retain(|victim| {
            !victim.entry.uncertain
                && !victim.entry.fixed
                && is_above(
                    u64::from(victim.entry.bytes()),
                    u64::from(victim.entry.live_bytes),
                    pressure.aim(),
                )
        });
        window.sort_unstable_by_key(|victim| {
            u64::from(victim.entry.live_bytes) * 1000 / u64::from(victim.entry.bytes())
        });
        let Choice { chosen, reservation, no_room } = self.within_budget(window, pressure);
        let mut tidy = tablet.tidy.lock();
        if position == 0 {
            tidy.found = false;
        }
        tidy.found |= !chosen.is_empty() || no_room;
        tidy.position = next.unwrap_or(0);
        if next.is_none() && !tidy.found {
            tidy.rest(pressure.aim(), totals);
        }
        (chosen, reservation)
    }

    /// The runs from `position` on, and the start of the next window if there are more.
    async fn window(&self, tablet: &Tablet, root: Root, position: u64) -> (Vec<VictimRun>, Option<u64>) {
        let tree = tree_of(self.identity, tablet.id);
        let source = PoolPages::new(&self.pool);
        let mut cursor = Cursor::new(tree, source, root, &run_key(position), Some(&run_keys_end()));
        let mut window = Vec::new();
        while window.len() < WINDOW_RUNS {
            let item = match cursor.next().await {
                Ok(Some(item)) => item,
                Ok(None) => return (window, None),
                // The cursor continues after a damaged page.
                Err(Error::Corrupt { .. }) => continue,
                Err(error) => {
                    tracing::warn!("the liveness of packed runs could not be read: {error}");
                    // Not the end: otherwise the search would skip the tablet until its totals change.
                    return (window, Some(0));
                }
            };
            let Some(block) = block_of_run_key(item.key) else { continue };
            if let Ok(entry) = RunEntry::decode(&item.found()) {
                window.push(VictimRun { block, entry });
            }
        }
        let next = window.last().map(|last| last.block + 1);
        (window, next)
    }

    /// The longest prefix of `window` that may be rewritten now; none if that would free nothing.
    fn within_budget(&self, window: Vec<VictimRun>, pressure: Pressure) -> Choice {
        let budget = pressure.budget(self);
        let (mut bytes, mut after, mut values, mut before_blocks) = (0, TAIL_BYTES as u64, 0, 0);
        let mut chosen: Vec<VictimRun> = Vec::new();
        let mut reservation: Option<Reservation> = None;
        let mut no_room = false;
        for victim in window {
            bytes += u64::from(victim.entry.bytes());
            if bytes > budget && !chosen.is_empty() {
                break;
            }
            after += victim.bytes_after();
            values += u64::from(victim.entry.live_values);
            let needed = blocks_for(after) + values * TREE_BLOCKS_PER_RECORD;
            let held = reservation.as_ref().map_or(0, Reservation::blocks);
            assert!(held <= needed, "more values need more blocks (R3)");
            // The larger reservation is made before the smaller one is dropped.
            let more = needed - held;
            let Some(added) = self.space.reserve_for_moves(more, pressure == Pressure::Shortage) else {
                no_room = true;
                break;
            };
            reservation = Some(added.and(reservation));
            before_blocks += u64::from(victim.entry.blocks);
            chosen.push(victim);
        }
        assert_eq!(reservation.is_some(), !chosen.is_empty(), "moves have their blocks (R3)");
        let bytes_after = chosen.iter().map(VictimRun::bytes_after).sum::<u64>() + TAIL_BYTES as u64;
        let after_blocks = blocks_for(bytes_after);
        // A gain of less than a block, or of less than a thirty-second, would repeat the same work without benefit.
        if before_blocks <= after_blocks + after_blocks / 32 {
            return Choice { chosen: Vec::new(), reservation: None, no_room };
        }
        Choice { chosen, reservation, no_room }
    }

    /// Reads whole runs, all with one submission. Leaves out runs that cannot be read.
    async fn read_victims(&self, victims: Vec<VictimRun>) -> Vec<(VictimRun, Bytes)> {
        let mut batch = self.device.batch();
        let reads: Vec<_> = victims
            .iter()
            .map(|victim| {
                batch.add(self.device.read(victim.block, IoBuf::unfilled(victim.entry.blocks as usize)))
            })
            .collect();
        batch.start();
        let mut out = Vec::with_capacity(victims.len());
        for (victim, read) in victims.into_iter().zip(reads) {
            match read.await.ok() {
                Ok(memory) => out.push((victim, Bytes::from_owner(memory))),
                Err(error) => tracing::warn!("the packed run {} could not be read: {error}", victim.run()),
            }
        }
        out
    }

    /// The values of a run that `trees` still name.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the footer, a live value, or a page on the way to an entry is damaged; as the device.
    async fn live_values(
        &self,
        tree: Tree,
        trees: &Trees,
        victim: &VictimRun,
        memory: &Bytes,
    ) -> Result<Vec<LiveValue>> {
        let damaged = |what: &str| Error::Corrupt { what: what.into(), block: victim.block };
        let footer = Footer::decode(memory, owner_of(tree, victim.block))
            .map_err(|_| damaged("its footer is damaged"))?;
        if !footer.fits(&victim.entry) {
            return Err(damaged("its footer does not match its liveness"));
        }
        let mut values = Vec::new();
        for item in footer.items() {
            let item = item.map_err(|_| damaged("its footer is damaged"))?;
            let found = trees.find(tree, &PoolPages::new(&self.pool).of_pass(), None, item.key).await?;
            let Some(found) = found else {
                continue;
            };
            let (version, entry) =
                decode_leaf_entry(&found).map_err(|_| damaged("an entry cannot be read"))?;
            let Home::Packed { run, at, checksum } = entry.home else { continue };
            if (run, at, version) != (victim.block, item.at, item.version) {
                continue;
            }
            let place = item.at as usize..(item.at + item.bytes) as usize;
            let stored = memory.slice(place);
            if entry.stored_bytes() != u64::from(item.bytes) || crc32c(&stored) != checksum {
                return Err(damaged("a value's checksum does not match"));
            }
            values.push(LiveValue {
                key: Bytes::copy_from_slice(item.key),
                version,
                entry,
                stored,
                checksum,
            });
        }
        Ok(values)
    }
}

/// Returns true if `bytes` are more than `aim` thousandths of `live`.
fn is_above(bytes: u64, live: u64, aim: u64) -> bool {
    bytes * 1000 > live * aim
}
