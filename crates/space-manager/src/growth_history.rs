//! The history of growing the file, and the distance that it should grow ahead of need.

use shoal_base::sync::Mutex;
use shoal_base::sync::atomic::{AtomicU64, Ordering};

/// The shortest time between two log lines about a file that cannot grow.
const SAY_AGAIN_NS: u64 = 60_000_000_000;
/// The shortest time between two measurements of the write rate.
const RATE_PERIOD_NS: u64 = 250_000_000;
/// The file grows ahead by the blocks that this many seconds of writing take.
const AHEAD_S: u64 = 2;

/// After this number of periods without writing, no rate is left to speak of: 25 s.
const PERIODS_MAX: u64 = 100;

/// A lower rate keeps no more blocks ahead than an idle store does: 1 MiB in two seconds.
const CALM_BLOCKS: u64 = 256;

/// The room of the file system is not known.
const UNKNOWN: u64 = 0;

/// The state of growing: on a full file system steps get shorter, and that is logged once.
#[derive(Default)]
pub struct GrowthHistory {
    /// Blocks of the next step at most; 0: a whole step.
    pub step_max: AtomicU64,
    limit: Mutex<Limit>,
    /// Blocks that the file could have if it took all free space of its file system, as of the last look; 0:
    /// not known.
    room: AtomicU64,
    /// Blocks of the disk that the file or device takes, as of the last look.
    taken: AtomicU64,
    /// The time of the last measurement of the write rate, and the blocks written by then.
    seen: Mutex<(u64, u64)>,
    /// Blocks that [`AHEAD_S`] seconds of writing take.
    ahead: AtomicU64,
    /// Blocks of values that an apply frees, as the last applies did.
    dead: AtomicU64,
}

#[derive(Default)]
struct Limit {
    /// The reason why not even the shortest step fits; `None` if the last step did.
    reached: Option<String>,
    said_ns: Option<u64>,
    /// The last time that a step did not fit.
    last_ns: Option<u64>,
    /// The number of times that this was reached and not logged.
    unsaid: u64,
}

impl GrowthHistory {
    /// Notes that not even the shortest step fits. If that must be logged now, returns the number of earlier unlogged
    /// times.
    pub fn reached(&self, now_ns: u64, why: &str) -> Option<u64> {
        let mut limit = self.limit.lock();
        limit.last_ns = Some(now_ns);
        if limit.reached.replace(why.to_owned()).is_some() {
            return None;
        }
        if limit.said_ns.is_some_and(|said_ns| now_ns.saturating_sub(said_ns) < SAY_AGAIN_NS) {
            limit.unsaid += 1;
            return None;
        }
        limit.said_ns = Some(now_ns);
        Some(std::mem::take(&mut limit.unsaid))
    }

    /// The reason why the file cannot grow; `None` if the last attempt could.
    pub fn cannot_grow(&self) -> Option<String> {
        self.limit.lock().reached.clone()
    }

    /// Returns true if the file cannot grow, or could not within the last `time_ns`.
    pub fn was_reached(&self, now_ns: u64, time_ns: u64) -> bool {
        let limit = self.limit.lock();
        limit.reached.is_some()
            || limit.last_ns.is_some_and(|last_ns| now_ns.saturating_sub(last_ns) < time_ns)
    }

    /// Notes the blocks that the file could have if it took all free space of its file system; `None` if that is
    /// not known.
    pub fn note_room(&self, blocks: Option<u64>) {
        self.room.store(blocks.unwrap_or(UNKNOWN), Ordering::Relaxed);
    }

    /// Notes the blocks of the disk that the file or device takes.
    pub fn note_taken(&self, blocks: u64) {
        self.taken.store(blocks, Ordering::Relaxed);
    }

    /// The blocks of the disk that the file or device takes, as of the last look.
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// The blocks that the file can grow by: up to the cap as far as its file system has room, and none while it cannot
    /// grow.
    pub fn room_to_grow(&self, device_blocks: u64, blocks_max: u64) -> u64 {
        if self.limit.lock().reached.is_some() {
            return 0;
        }
        let most = match self.room.load(Ordering::Relaxed) {
            UNKNOWN => blocks_max,
            room => room.min(blocks_max),
        };
        most.saturating_sub(device_blocks)
    }

    /// Notes that a step of `blocks` blocks fits.
    pub fn grew(&self, blocks: u64, step_blocks: u64) {
        self.limit.lock().reached = None;
        let next = blocks.saturating_mul(2);
        self.step_max.store(if next >= step_blocks { 0 } else { next }, Ordering::Relaxed);
    }

    /// Notes that `blocks` blocks were written until now.
    pub fn note(&self, now_ns: u64, blocks: u64) {
        let mut seen = self.seen.lock();
        let took_ns = now_ns.saturating_sub(seen.0);
        if took_ns < RATE_PERIOD_NS {
            return;
        }
        let written = u128::from(blocks.saturating_sub(seen.1)) * u128::from(AHEAD_S * 1_000_000_000);
        let ahead = u64::try_from(written / u128::from(took_ns)).unwrap_or(u64::MAX);
        *seen = (now_ns, blocks);
        // A falling rate counts only slowly, because writing may resume after a pause. The thread that measures sleeps in an idle store.
        let mut before = self.ahead.load(Ordering::Relaxed);
        for _ in 0..(took_ns / RATE_PERIOD_NS).min(PERIODS_MAX) {
            before -= before.div_ceil(8);
        }
        self.ahead.store(ahead.max(before), Ordering::Relaxed);
    }

    /// Notes that an apply freed `blocks` blocks of values.
    pub fn applied(&self, blocks: u64) {
        let before = self.dead.load(Ordering::Relaxed);
        self.dead.store(blocks.max(before / 2), Ordering::Relaxed);
    }

    /// Blocks of values that the next apply probably frees.
    pub fn freed_by_an_apply(&self) -> u64 {
        self.dead.load(Ordering::Relaxed)
    }

    /// Blocks by which the file should be ahead of need at the present rate of writing.
    pub fn ahead_of_rate(&self) -> u64 {
        self.ahead.load(Ordering::Relaxed)
    }

    /// Returns true if next to nothing is written.
    pub fn is_calm(&self) -> bool {
        self.ahead_of_rate() < CALM_BLOCKS
    }

    /// Blocks of the next step at most; a whole step has `step_blocks`.
    pub fn step_max(&self, step_blocks: u64) -> u64 {
        match self.step_max.load(Ordering::Relaxed) {
            0 => step_blocks,
            blocks => blocks.min(step_blocks),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_file_system_is_said_once() {
        let growth = GrowthHistory::default();
        let said = (0..195).filter(|&put| growth.reached(put * 1_000_000_000, "no space").is_some()).count();
        assert_eq!(said, 1);
        // The file grows and fills up again, ten times in a minute.
        let again = |now_ns| {
            growth.grew(1, 256);
            growth.reached(now_ns, "no space")
        };
        let begin = 195_000_000_000;
        assert_eq!(again(begin), Some(0));
        for turn in 1..=9 {
            assert_eq!(again(begin + turn * 6_000_000_000), None);
        }
        assert_eq!(again(begin + 61_000_000_000), Some(9));
    }

    /// Symptom: 848 MB of room on a disk of 200 MB. Cause: room was only the rest of the cap.
    #[test]
    fn room_is_the_least_of_cap_and_file_system() {
        let growth = GrowthHistory::default();
        assert_eq!(growth.room_to_grow(100, 1_000), 900, "nobody has looked yet");
        growth.note_room(Some(150));
        assert_eq!(growth.room_to_grow(100, 1_000), 50);
        growth.note_room(Some(5_000));
        assert_eq!(growth.room_to_grow(100, 1_000), 900);
        growth.reached(0, "disk quota exceeded");
        assert_eq!(
            (growth.room_to_grow(100, 1_000), growth.cannot_grow().as_deref()),
            (0, Some("disk quota exceeded"))
        );
        growth.grew(1, 256);
        assert_eq!((growth.room_to_grow(100, 1_000), growth.cannot_grow()), (900, None));
        growth.note_room(None);
        assert_eq!(growth.room_to_grow(100, 1_000), 900, "a device");
        assert!(growth.was_reached(9, 10) && !growth.was_reached(10, 10), "it could not grow a while ago");
    }

    #[test]
    fn two_seconds_of_writing_are_kept_free() {
        let growth = GrowthHistory::default();
        growth.note(1_000_000_000, 0);
        growth.note(1_500_000_000, 1_000);
        assert_eq!(growth.ahead_of_rate(), 4_000, "1,000 blocks in half a second");
        growth.note(1_600_000_000, 9_000);
        assert_eq!(growth.ahead_of_rate(), 4_000, "too soon to say");
        growth.note(2_000_000_000, 1_000);
        assert_eq!(growth.ahead_of_rate(), 3_062, "a pause of two periods");
        growth.note(30_000_000_000, 1_000);
        assert_eq!(growth.ahead_of_rate(), 0, "one measurement after a long sleep");
    }

    #[test]
    fn blocks_that_applies_freed_are_forgotten_when_they_free_no_more() {
        let growth = GrowthHistory::default();
        assert_eq!(growth.freed_by_an_apply(), 0);
        growth.applied(64);
        growth.applied(8);
        assert_eq!(growth.freed_by_an_apply(), 32, "one apply may be an exception");
        (0..6).for_each(|_| growth.applied(0));
        assert_eq!(growth.freed_by_an_apply(), 0);
    }

    #[test]
    fn steps_get_longer_again() {
        let growth = GrowthHistory::default();
        assert_eq!(growth.step_max(256), 256);
        growth.grew(3, 256);
        assert_eq!(growth.step_max(256), 6);
        growth.grew(200, 256);
        assert_eq!(growth.step_max(256), 256);
    }
}
