//! Relocation without a pause: keeps a small reserve of whole free groups, by emptying the emptiest groups into holes
//! elsewhere (`docs/adr/2026-11-21-relocation.md`).
//!
//! A *round* closes some groups to the allocator and walks over the tablets' trees once. Each *step* of it holds the applier's token, finds
//! a part of the contents of these groups, reads and verifies it, and rewrites it by an apply (R13). So values, packed runs and pages move
//! by the same publish as everything else, and newer entries win. At the end of the round the groups are opened, wholly free unless
//! something in them could not move.
//!
//! A quiet store empties parts of groups, too, to return scattered free blocks to the file system ([`gather`]).
//!
//! The same thread tidies the packed runs of a calm store, at the same rate; the same switch pauses both.
//!
//! Reading order: this file (the choice of work), [`find`] (the contents of a group), [`ClosedGroups`](shoal_space_manager::ClosedGroups),
//! [`rate`](crate::checkpoint::rate), [`discard`], [`gather`].

mod discard;
mod find;
mod gather;

use std::sync::Arc;
use std::time::Duration;

use shoal_base::sync::Mutex;
use shoal_base::sync::atomic::{AtomicU64, Ordering};
use shoal_base::{BLOCK_BYTES_U64, Run};
use shoal_common::error::Result;
use shoal_common::event::Token;
use shoal_space::Victim;
use shoal_space_manager::{SHORT_BLOCKS_MAX, SpaceManager};

use self::discard::Giving;
pub use self::find::Emptied;
use self::gather::Gathering;
use crate::checkpoint::checkpointer::Checkpointer;
use crate::compaction::{Compacted, Wanted};

/// Longest hole for moved values, in blocks: longer free runs belong to the reserve.
pub const HOLE_BLOCKS_MAX: u32 = 1023;
/// Groups that one round empties: in a larger store, more groups share the cost of a walk.
const GROUPS_AT_ONCE: std::ops::RangeInclusive<u64> = 4..=512;
/// A group is not emptied if more than this many thousandths of it are in use; the second limit applies while values are in splinters.
const USED_PERMILLE_MAX: [u64; 2] = [960, 985];
/// A splintered value makes relocation urgent for this time.
const URGENT_NS: u64 = 10_000_000_000;
/// Readers may hold moved values for this time before the round finishes without their space.
const DRAIN_NS: u64 = 5_000_000_000;
/// A group that could not be emptied is skipped for this time.
const AVOID_NS: u64 = 60_000_000_000;
/// Limit on such groups that are remembered.
const AVOIDED_MAX: usize = 1024;
/// Below this fill of the memtables, in thousandths, the store is calm: packed runs are tidied.
const CALM_PERMILLE: usize = 100;
/// More operations than this in a tenth of a second count as load.
const IDLE_OPERATIONS: u64 = 10;
const LOOK_NS: u64 = 100_000_000;

/// The result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing is due.
    Idle,
    /// Some work was done, or waits for readers or other threads.
    Worked,
}

/// Empties groups, tidies packed runs and releases free blocks, a step at a time. The store has one.
pub struct Relocator {
    checkpointer: Arc<Checkpointer>,
    space: Arc<SpaceManager>,
    load: Mutex<Load>,
    urgent_until_ns: AtomicU64,
    /// The progress of the round; its holder takes the next step.
    pub round: Token<Option<Round>>,
    /// Groups that could not be emptied, each with the time until which no round tries again.
    avoid: Mutex<Vec<(Run, u64)>>,
    /// Whole free groups at the start of the round.
    whole_before: AtomicU64,
    /// Emptied groups at the start of the round.
    emptied_before: AtomicU64,
    /// The last round gained nothing: no new one starts before this time.
    quiet_until_ns: AtomicU64,
    /// Bytes of values that were moved.
    pub bytes_moved: AtomicU64,
    /// Groups of blocks that were emptied.
    pub groups_emptied: AtomicU64,
    /// Bytes of the device that were discarded.
    pub bytes_discarded: AtomicU64,
    giving: Giving,
    gathering: Gathering,
}

/// The load by requests.
#[derive(Default)]
struct Load {
    operations: u64,
    last_ns: u64,
    is_busy: bool,
}

/// The progress of a round.
pub enum Round {
    /// Dead entries are compacted, before windows are chosen to be emptied.
    Compact,
    /// The walk over the trees.
    Walk {
        /// The index of the tablet.
        tablet: usize,
        /// The encoded key at which the walk continues.
        position: Vec<u8>,
    },
    /// All values have moved. Space that readers still hold is awaited until this time, then skipped in this round.
    Drain {
        /// The end of the wait, in nanoseconds of the store's clock.
        until_ns: u64,
    },
}

impl Relocator {
    /// The relocation of a store whose applies `checkpointer` makes.
    pub fn new(checkpointer: Arc<Checkpointer>) -> Self {
        Self {
            space: checkpointer.space.clone(),
            checkpointer,
            load: Mutex::default(),
            urgent_until_ns: AtomicU64::default(),
            round: Token::default(),
            avoid: Mutex::default(),
            whole_before: AtomicU64::default(),
            emptied_before: AtomicU64::default(),
            quiet_until_ns: AtomicU64::default(),
            bytes_moved: AtomicU64::default(),
            groups_emptied: AtomicU64::default(),
            bytes_discarded: AtomicU64::default(),
            giving: Giving::default(),
            gathering: Gathering::default(),
        }
    }

    fn is_urgent(&self, now_ns: u64) -> bool {
        now_ns < self.urgent_until_ns.load(Ordering::Relaxed)
    }

    /// Nanoseconds until more may be moved.
    pub fn wait_ns(&self) -> u64 {
        let now_ns = self.checkpointer.now_ns();
        if self.space.take_splintered() {
            self.urgent_until_ns.store(now_ns.saturating_add(URGENT_NS), Ordering::Relaxed);
        }
        let bytes_per_s = if self.is_urgent(now_ns) {
            self.checkpointer.tuning.move_idle_bytes_per_s.saturating_mul(16)
        } else if self.is_busy(now_ns) {
            self.checkpointer.tuning.move_load_bytes_per_s
        } else {
            self.checkpointer.tuning.move_idle_bytes_per_s
        };
        self.checkpointer.move_limits.rate.lock().wait_ns(now_ns, bytes_per_s)
    }

    /// Returns true if requests used the store over the last tenth of a second.
    fn is_busy(&self, now_ns: u64) -> bool {
        let mut load = self.load.lock();
        if now_ns.saturating_sub(load.last_ns) >= LOOK_NS {
            let counters = &self.checkpointer.counters;
            let all = [&counters.puts, &counters.gets, &counters.deletes];
            let operations = all.iter().map(|count| count.load(Ordering::Relaxed)).sum::<u64>();
            load.is_busy = operations - load.operations > IDLE_OPERATIONS;
            (load.operations, load.last_ns) = (operations, now_ns);
        }
        load.is_busy
    }

    /// Does one bounded step of due work.
    ///
    /// # Errors
    /// As an apply.
    pub async fn step(&self) -> Result<Progress> {
        if self.checkpointer.move_limits.is_paused() {
            return Ok(Progress::Idle);
        }
        self.checkpointer.note_writes();
        let mut round = self.round.take().await;
        let stepped = match round.take() {
            None => self.begin_round().await,
            Some(Round::Compact) => self.prepare_gathering().await,
            Some(Round::Walk { tablet, position }) => self.walk_on(tablet, position).await,
            Some(Round::Drain { until_ns }) => Ok(self.drain(until_ns)),
        };
        let progress = match &stepped {
            Ok(Some(Round::Compact | Round::Walk { .. })) => Progress::Worked,
            _ => Progress::Idle,
        };
        match stepped {
            Ok(next) => *round = next,
            Err(error) => {
                self.space.open_closed();
                self.gathering.ended();
                return Err(error);
            }
        }
        drop(round);
        if progress == Progress::Worked {
            return Ok(progress);
        }
        if self.checkpointer.tablets.admission.fill_permille() < CALM_PERMILLE
            && self.checkpointer.tidy_idle().await?
        {
            return Ok(Progress::Worked);
        }
        Ok(self.discard_some().await)
    }

    /// Returns true if the round waits for readers of the old places, or another thread takes a step.
    pub fn awaits_readers(&self) -> bool {
        self.round.try_take().is_none_or(|round| round.is_some())
    }

    /// The time until a round may start if the last one gained nothing; `None` if that is not the reason why there is none.
    pub fn next_round_in(&self) -> Option<Duration> {
        let until_ns = self.quiet_until_ns.load(Ordering::Relaxed);
        let rest_ns = until_ns.saturating_sub(self.checkpointer.now_ns());
        (rest_ns > 0).then(|| Duration::from_nanos(rest_ns))
    }

    /// The number of whole free groups that are missing from the reserve.
    pub fn groups_wanted(&self) -> u64 {
        let layout = self.checkpointer.layout();
        let there = self.checkpointer.device.blocks().min(layout.blocks_max) / u64::from(layout.group_blocks);
        let kept = (there * u64::from(self.checkpointer.tuning.reserve_permille)).div_ceil(1000);
        kept.saturating_sub(self.space.allocator().whole_groups() as u64 + self.space.hole_groups())
    }

    /// Closes groups to be emptied if there are too few whole free ones; otherwise gathers free blocks if it is time for that.
    async fn begin_round(&self) -> Result<Option<Round>> {
        let wanted = self.groups_wanted();
        let now_ns = self.checkpointer.now_ns();
        if wanted == 0 || now_ns < self.quiet_until_ns.load(Ordering::Relaxed) {
            return Ok(self.begin_gathering());
        }
        let whole = self.space.allocator().whole_groups() as u64;
        self.whole_before.store(whole, Ordering::Relaxed);
        let emptied = self.groups_emptied.load(Ordering::Relaxed);
        self.emptied_before.store(emptied, Ordering::Relaxed);
        let layout = self.checkpointer.layout();
        let groups = layout.blocks_max / u64::from(layout.group_blocks);
        let at_once = (groups / 128).clamp(*GROUPS_AT_ONCE.start(), *GROUPS_AT_ONCE.end()).min(wanted);
        let except = self.not_to_be_emptied().await;
        let used_max = USED_PERMILLE_MAX[usize::from(self.is_urgent(now_ns))];
        // Closed groups serve no writes, and their contents need space elsewhere.
        let most = (self.space.available() + self.space.holes().blocks()) / 8 * 7;
        let mut room = most;
        for _ in 0..at_once {
            let closed = self.space.closed.close(self.space.allocator(), &except, |victim| {
                let (used, free) = (victim.used_blocks, victim.group.blocks - victim.used_blocks);
                let needed = u64::from(free) + u64::from(used) / 8 * 9;
                let has_room = needed <= room;
                room = room.saturating_sub(needed);
                has_room && u64::from(used) * 1000 <= u64::from(victim.group.blocks) * used_max
            });
            if !closed {
                break;
            }
        }
        if self.space.closed.groups().is_empty() {
            return Ok(self.begin_gathering());
        }
        let missing = (most - room).saturating_sub(self.space.available());
        if missing > 0 {
            self.checkpointer.fill_holes(missing).await;
        }
        // Values in the memtables already have their places: the walk must meet them in the trees.
        self.checkpointer.apply_all().await?;
        Ok(Some(Round::Walk { tablet: 0, position: Vec::new() }))
    }

    /// Blocks outside of the data, areas among the data, and blocks beyond the present size in units of `unit_blocks`.
    async fn blocks_of_no_value(&self, unit_blocks: u32) -> Vec<Run> {
        let layout = self.checkpointer.layout();
        let unit = u64::from(unit_blocks);
        let there = self.checkpointer.publisher.take().await.device_blocks / unit * unit;
        let mut except: Vec<Run> = layout.areas_in_data().collect();
        for (mut at, end) in [(0, layout.data_first()), (there, layout.blocks_max)] {
            while at < end {
                let blocks = (end - at).min(u64::from(u32::MAX)) as u32;
                except.push(Run::new(at, blocks));
                at += u64::from(blocks);
            }
        }
        except
    }

    /// Blocks of no value, groups that could not be emptied recently, and groups with holes.
    async fn not_to_be_emptied(&self) -> Vec<Run> {
        let mut except = self.blocks_of_no_value(self.checkpointer.layout().group_blocks).await;
        let now_ns = self.checkpointer.now_ns();
        let mut avoid = self.avoid.lock();
        avoid.retain(|&(_, until_ns)| now_ns < until_ns);
        except.extend(avoid.iter().map(|&(group, _)| group));
        // Blocks of holes are no used blocks that could move.
        except.extend(self.space.groups_with_holes());
        except
    }

    /// Takes one step of the walk.
    async fn walk_on(&self, tablet: usize, position: Vec<u8>) -> Result<Option<Round>> {
        let rest = self.checkpointer.tablets.all().get(tablet);
        let Some(of_tablet) = rest.filter(|_| !self.ends_early()) else {
            return Ok(self.end_walk().await);
        };
        let turn = self.checkpointer.applier.turn().await;
        self.checkpointer.log.poison.check()?;
        let view = of_tablet.view();
        let again = Round::Walk { tablet, position: position.clone() };
        // An earlier apply failed: its memtable comes first.
        // An apply or a compaction instead of a step of the walk takes a while. No view is held meanwhile: it would keep freed blocks from being
        // reused.
        if view.frozen.is_some() {
            drop((view, turn));
            self.checkpointer.apply_tablet(of_tablet).await?;
            return Ok(Some(again));
        }
        // Pages of layers do not move. Without load, the layers are compacted first, unless the choice of windows counts on their blocks.
        if position.is_empty()
            && self.gathering.windows().is_none()
            && !view.trees.layers.list.is_empty()
            && !self.is_busy(self.checkpointer.now_ns())
        {
            drop((view, turn));
            let compacted = self.checkpointer.compact_some(of_tablet, Wanted::ByForce).await?;
            let position = if compacted == Compacted::Nothing { vec![0] } else { position };
            return Ok(Some(Round::Walk { tablet, position }));
        }
        // Moved values whose entries are in layers need a new layer.
        if !view.trees.has_place_for_a_layer() {
            drop((view, turn));
            return Ok(self.end_walk().await);
        }
        let budget = (self.checkpointer.tuning.move_bytes_max / 8) as u64;
        let found = self.find_in_groups(of_tablet, &view.trees, &self.emptied(), &position, budget).await?;
        let next = match &found.next {
            Some(position) => Round::Walk { tablet, position: position.clone() },
            None => Round::Walk { tablet: tablet + 1, position: Vec::new() },
        };
        if found.is_empty() {
            return Ok(Some(next));
        }
        let short = self.is_urgent(self.checkpointer.now_ns());
        let Some(moves) = self.read_found(of_tablet, &view.trees, found, short).await else {
            drop((view, turn));
            return Ok(self.end_walk().await);
        };
        let touched_bytes = moves.touches.len() as u64 * BLOCK_BYTES_U64;
        if !moves.is_empty() {
            let bytes = self
                .checkpointer
                .run_apply(of_tablet, &view, (view.applied, None), moves, self.checkpointer.unread())
                .await?;
            self.bytes_moved.fetch_add(bytes, Ordering::Relaxed);
            // The values are charged by the apply.
            self.checkpointer.move_limits.charge(2 * touched_bytes);
        }
        drop((view, turn));
        self.reclaim_moved().await;
        self.space.reclaim(self.checkpointer.log.committer.named_superblock());
        self.open_emptied();
        Ok(Some(next))
    }

    /// Returns true if a write needed the space of the closed groups, relocation was paused, or a round that gathers free blocks must not
    /// continue.
    fn ends_early(&self) -> bool {
        let gathers = self.gathering.windows().is_some();
        let ends = self.space.closed.groups().is_empty() || gathers && !self.may_gather();
        if ends && gathers {
            self.gathering.interrupted(self.checkpointer.now_ns());
            // Writers need long runs now, not after the readers of the moved values.
            self.space.open_closed();
        }
        ends
    }

    /// The blocks that the round empties.
    fn emptied(&self) -> Emptied {
        if let Some(runs) = self.gathering.windows() {
            return Emptied { runs, hole_blocks: SHORT_BLOCKS_MAX };
        }
        let mut groups: Vec<Run> = self.space.closed.groups().iter().map(|victim| victim.group).collect();
        groups.sort_unstable();
        assert!(groups.is_sorted_by(|one, next| one.end() <= next.block), "a group is closed once");
        Emptied { runs: groups.into(), hole_blocks: HOLE_BLOCKS_MAX }
    }

    async fn end_walk(&self) -> Option<Round> {
        self.checkpointer.make_freed_reusable().await;
        self.drain(self.checkpointer.now_ns().saturating_add(DRAIN_NS))
    }

    /// Waits for readers of the old places; the round is over after `until_ns`.
    fn drain(&self, until_ns: u64) -> Option<Round> {
        self.space.reclaim(self.checkpointer.log.committer.named_superblock());
        self.open_emptied();
        let now_ns = self.checkpointer.now_ns();
        if !self.space.closed.groups().is_empty() && self.space.pending_blocks() > 0 && now_ns < until_ns {
            return Some(Round::Drain { until_ns });
        }
        let left = self.space.closed.open(self.space.allocator(), |_| true);
        if self.gathering.ended() {
            self.giving.look_at_all();
            return None;
        }
        let until_ns = now_ns.saturating_add(AVOID_NS);
        let whole = self.space.allocator().whole_groups() as u64;
        let emptied = self.groups_emptied.load(Ordering::Relaxed);
        // Under load, writers take emptied groups at once: the round was still useful.
        let served = self.is_busy(now_ns) && emptied > self.emptied_before.load(Ordering::Relaxed);
        if whole <= self.whole_before.load(Ordering::Relaxed) && !served {
            self.quiet_until_ns.store(until_ns, Ordering::Relaxed);
        }
        let mut avoid = self.avoid.lock();
        avoid.extend(left.iter().map(|victim| (victim.group, until_ns)));
        let surplus = avoid.len().saturating_sub(AVOIDED_MAX);
        avoid.drain(..surplus);
        None
    }

    /// Opens the groups that are wholly free.
    fn open_emptied(&self) {
        let space = self.space.allocator();
        let emptied = self.space.closed.open(space, |victim| space.used_blocks(victim.group) == 0);
        self.groups_emptied.fetch_add(emptied.len() as u64, Ordering::Relaxed);
    }

    /// Bytes in groups that are being emptied.
    pub fn bytes_to_move(&self) -> u64 {
        let space = self.space.allocator();
        let used = |victim: &Victim| u64::from(space.used_blocks(victim.group));
        self.space.closed.groups().iter().map(used).sum::<u64>() * BLOCK_BYTES_U64
    }
}
