//! Time to live: the clocks that decide about expiry (R18).
//!
//! A *relative* deadline ("for 60 seconds") is a moment of **store time**, which runs with the machine's boot-time
//! clock: setting the wall clock does not move it, and the time of a suspended machine counts. While the store is
//! closed, store time continues by boot time if the boot-time clock is the same one, else by the wall clock's
//! difference, and never goes back. If both clocks measured the time and differ by more than [`DISAGREEMENT_NS`], the
//! shorter time counts: an object that lives longer is better than a lost one.
//!
//! An *absolute* deadline ("at noon") is a moment of the **wall clock** as it is then. If the wall clock was ahead and
//! is set back, versions that a reader may have seen absent stay absent: a [`WallMark`] holds the last such deadline
//! and version. A step of less than [`STEP_NS`] does not count: the clock stops until the wall clock has caught up.
//!
//! Each log batch and each superblock stores both clocks. While any object has a deadline, a superblock is published
//! for them at least every [`SAVE_NS`].

use std::sync::Arc;
use std::time::Duration;

use shoal_base::sync::Mutex;
use shoal_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use shoal_base::{Clock, Lsn};
use shoal_common::injected_bug::{Bug, injected};
use shoal_common::object::{Deadline, EndTime, Expiry};

use super::record::{ClockRecord, WALL_MARKS_MAX, WallMark};
use crate::format::{BatchHeader, BatchTimes, CLOCK_MAX_NS};

/// A sudden move of the wall clock against boot time counts as a step from this size on.
const STEP_NS: u64 = 1_000_000_000;
/// The boot-time clock's duration of a closed store counts if it exceeds the wall clock's by at most this.
const DISAGREEMENT_NS: u64 = 3_600_000_000_000;
/// Two clocks are read one after the other: a difference of this size is insignificant.
const JITTER_NS: u64 = 1_000_000;
/// The longest time without a stored clock, while any object has a deadline.
const SAVE_NS: u64 = 10_000_000_000;
/// Steps of the wall clock are logged at most once in this time.
const SAY_NS: u64 = 60_000_000_000;

/// The source of the newest record's number, which prevents new records while it is used.
pub trait Newest {
    /// Calls `mark` with the number that the newest queued record has or will have. No record is queued meanwhile.
    fn with_newest(&self, mark: &mut dyn FnMut(Lsn));
}

/// A log with an empty queue: the newest record has this number.
pub struct Numbered(pub Lsn);

impl Newest for Numbered {
    fn with_newest(&self, mark: &mut dyn FnMut(Lsn)) {
        mark(self.0);
    }
}

/// The record of a new store, whose store time starts now.
pub fn first_record(clock: &dyn Clock) -> ClockRecord {
    ClockRecord {
        store_ns: 0,
        wall_ns: clock.wall_ns().min(CLOCK_MAX_NS),
        boot_ns: clock.boot_ns().min(CLOCK_MAX_NS),
        boot_id: clock.boot_id(),
        marks: Vec::new(),
    }
}

/// The clocks of expiry of an open store.
pub struct ExpiryClock {
    clock: Arc<dyn Clock>,
    /// A store time, and the boot-time clock at that moment.
    base: (u64, u64),
    boot_id: [u8; 16],
    /// The latest time of the wall clock since its last step back. Release after a mark was added, acquire before a
    /// judgement by it.
    wall_high: AtomicU64,
    marks: Mutex<Vec<WallMark>>,
    has_marks: AtomicBool,
    /// The wall clock minus store time, as a signed number. Relaxed, as all fields below: each is independent
    /// of the others.
    offset: AtomicU64,
    steps: AtomicU64,
    /// The sum of all steps, as a signed number.
    skew: AtomicU64,
    /// Steps that were not logged, and the store time of the last logged one.
    unsaid: AtomicU64,
    said_ns: AtomicU64,
    /// The store time that was stored last.
    saved_ns: AtomicU64,
    /// True if the clocks must be stored now.
    is_unsaved: AtomicBool,
}

/// The times found in a superblock and in the batches after it.
pub struct FoundTime {
    record: ClockRecord,
    wall_high_ns: u64,
    epoch: u64,
    is_older: bool,
}

impl FoundTime {
    /// The times of a superblock that the opening of number `epoch` wrote. `is_older` is true if it had version
    /// 2.
    pub fn new(mut record: ClockRecord, wall_high_ns: u64, epoch: u64, is_older: bool) -> Self {
        if is_older {
            record.wall_ns = wall_high_ns.min(CLOCK_MAX_NS);
        }
        Self { record, wall_high_ns, epoch, is_older }
    }

    /// Adds the times of a batch. Batches older than the superblock change nothing.
    pub fn note(&mut self, header: &BatchHeader) {
        match header.stamp {
            BatchTimes::Older { expiry_clock_ns } if self.is_older => {
                self.wall_high_ns = self.wall_high_ns.max(expiry_clock_ns);
                self.record.wall_ns = self.wall_high_ns.min(CLOCK_MAX_NS);
            }
            BatchTimes::Now { store_ns, wall_ns } if store_ns > self.record.store_ns => {
                if header.epoch == self.epoch {
                    self.record.boot_ns = self.record.boot_ns.saturating_add(store_ns - self.record.store_ns);
                } else {
                    self.record.boot_id = [0; 16];
                }
                self.record.store_ns = store_ns;
                self.record.wall_ns = wall_ns;
                self.see_wall(wall_ns, Lsn(header.first_lsn.0.saturating_sub(1)));
            }
            BatchTimes::Older { .. } | BatchTimes::Now { .. } => {}
        }
    }

    fn see_wall(&mut self, wall_ns: u64, newest: Lsn) {
        if wall_ns.saturating_add(STEP_NS) < self.wall_high_ns {
            add_mark(
                &mut self.record.marks,
                WallMark { wall_ns: self.wall_high_ns.min(CLOCK_MAX_NS), lsn: newest },
            );
            self.wall_high_ns = wall_ns;
        }
        self.wall_high_ns = self.wall_high_ns.max(wall_ns);
    }

    /// The times for a superblock that takes them over without an opening.
    pub fn into_parts(self) -> (ClockRecord, u64) {
        (self.record, self.wall_high_ns)
    }

    /// The clocks of the store that is being opened. `newest` is the largest number of any record.
    pub fn open(mut self, clock: Arc<dyn Clock>, newest: Lsn) -> Arc<ExpiryClock> {
        if injected(Bug::ExpiryGoesBack) {
            (self.record, self.wall_high_ns) = (ClockRecord::default(), 0);
        }
        let (wall_ns, boot_ns, boot_id) = (clock.wall_ns(), clock.boot_ns(), clock.boot_id());
        let is_same_clock =
            boot_id != [0; 16] && boot_id == self.record.boot_id && boot_ns >= self.record.boot_ns;
        let closed = ClosedTime {
            by_boot: is_same_clock.then(|| boot_ns - self.record.boot_ns),
            by_wall: (wall_ns as i64).wrapping_sub(self.record.wall_ns as i64),
        };
        if let Some(what) = closed.disagreement() {
            tracing::warn!("{what}");
        }
        let store_ns = self.record.store_ns.saturating_add(closed.elapsed_ns()).min(CLOCK_MAX_NS);
        assert!(store_ns >= self.record.store_ns, "store time does not go back (R18)");
        self.see_wall(wall_ns, newest);
        Arc::new(ExpiryClock {
            clock,
            base: (store_ns, boot_ns),
            boot_id,
            wall_high: AtomicU64::new(self.wall_high_ns),
            has_marks: AtomicBool::new(!self.record.marks.is_empty()),
            marks: Mutex::new(self.record.marks),
            offset: AtomicU64::new((wall_ns as i64).wrapping_sub(store_ns as i64) as u64),
            steps: AtomicU64::new(0),
            skew: AtomicU64::new(0),
            unsaid: AtomicU64::new(0),
            said_ns: AtomicU64::new(0),
            saved_ns: AtomicU64::new(store_ns),
            is_unsaved: AtomicBool::new(false),
        })
    }
}

/// The time in which a store was closed, in nanoseconds, by the two clocks.
#[derive(Clone, Copy)]
struct ClosedTime {
    /// `None` if the boot-time clock is not the one that the store knows.
    by_boot: Option<u64>,
    /// Negative if the wall clock went back.
    by_wall: i64,
}

impl ClosedTime {
    /// The time that counts.
    fn elapsed_ns(self) -> u64 {
        let by_wall = self.by_wall.max(0) as u64;
        match self.by_boot {
            Some(by_boot) if !self.is_too_long(by_boot) => by_boot,
            _ => by_wall,
        }
    }

    /// Returns true if the time by the boot-time clock is implausible.
    fn is_too_long(self, by_boot: u64) -> bool {
        by_boot > (self.by_wall.max(0) as u64).saturating_add(DISAGREEMENT_NS)
    }

    /// A warning if the clocks disagree; `None` if they do not.
    fn disagreement(self) -> Option<String> {
        let step = |by_boot: u64| self.by_wall.wrapping_sub(by_boot as i64);
        match self.by_boot {
            Some(by_boot) if self.is_too_long(by_boot) => Some(format!(
                "the store was closed for {:.1} s by the clock since boot, but the wall clock shows only {:.1} s: one of \
                 them was set, or the machine was restored from a snapshot. Times to live continue by the shorter time",
                by_boot as f64 / 1e9,
                self.by_wall.max(0) as f64 / 1e9,
            )),
            Some(by_boot) if step(by_boot).unsigned_abs() > STEP_NS => Some(format!(
                "the wall clock was set while the store was closed: it shows {} than was expected. {MEANING}",
                difference(step(by_boot))
            )),
            None if self.by_wall.saturating_add(STEP_NS as i64) < 0 => Some(format!(
                "the wall clock shows {} than when the store was last open, and the clock since boot is another one: \
                 nobody knows how long the store was closed. Times to live continue as if it had not been closed",
                difference(self.by_wall)
            )),
            Some(_) | None => None,
        }
    }
}

const MEANING: &str = "A time to live is not affected; an absolute deadline (EXPIREAT) is compared with the wall clock as it is then";

/// A difference of clocks, as text.
fn difference(ns: i64) -> String {
    let seconds = ns.unsigned_abs() as f64 / 1e9;
    format!("{seconds:.1} s {}", if ns < 0 { "less" } else { "more" })
}

/// Adds the newest mark. It replaces marks whose deadlines it covers. If there are too many, two close ones become one,
/// which covers both.
fn add_mark(marks: &mut Vec<WallMark>, mark: WallMark) {
    if injected(Bug::StepBackForgotten) {
        return;
    }
    while marks.last().is_some_and(|last| last.wall_ns <= mark.wall_ns) {
        marks.pop();
    }
    match marks.last() {
        // The older mark covers it.
        Some(last) if last.lsn >= mark.lsn => return,
        _ => marks.push(mark),
    }
    while marks.len() > WALL_MARKS_MAX {
        let gap = |at: &usize| marks[*at].wall_ns - marks[*at + 1].wall_ns;
        let Some(at) = (0..marks.len() - 1).min_by_key(gap) else { return };
        let lsn = marks.remove(at + 1).lsn;
        marks[at].lsn = lsn;
    }
    assert!(
        marks.is_sorted_by(|one, next| one.wall_ns > next.wall_ns && one.lsn < next.lsn),
        "a later mark has a smaller time and a larger number (R18)"
    );
}

impl ExpiryClock {
    /// Store time.
    #[inline]
    pub fn store_ns(&self) -> u64 {
        let (store_ns, boot_ns) = self.base;
        if injected(Bug::RelativeByWall) {
            return self.clock.wall_ns();
        }
        store_ns.saturating_add(self.clock.boot_ns().saturating_sub(boot_ns))
    }

    /// The time of the wall clock. Notices a step back.
    pub(crate) fn wall_ns(&self, newest: &impl Newest) -> u64 {
        loop {
            let high = self.wall_high.load(Ordering::Acquire);
            let wall = self.clock.wall_ns();
            if wall == high || wall < high && high - wall <= STEP_NS {
                return high;
            }
            if wall > high {
                // A thread that read the clock before a step back cannot undo the step, because the step changes
                // `wall_high`.
                let swapped =
                    self.wall_high.compare_exchange(high, wall, Ordering::AcqRel, Ordering::Acquire);
                if swapped.is_ok() {
                    return wall;
                }
                continue;
            }
            // A record that is queued later is judged by the new time only, so no record may come in between.
            newest.with_newest(&mut |lsn| {
                let mut marks = self.marks.lock();
                let wall = self.clock.wall_ns();
                if self.wall_high.load(Ordering::Acquire) == high && wall.saturating_add(STEP_NS) < high {
                    add_mark(&mut marks, WallMark { wall_ns: high.min(CLOCK_MAX_NS), lsn });
                    self.has_marks.store(!marks.is_empty(), Ordering::Release);
                    self.wall_high.store(wall, Ordering::Release);
                    self.is_unsaved.store(true, Ordering::Relaxed);
                }
            });
        }
    }

    /// Returns true if this version of an object has expired. Reads a clock only if it has a deadline.
    pub(crate) fn is_over(&self, end: Option<EndTime>, version: Lsn, newest: &impl Newest) -> bool {
        match end {
            None => false,
            Some(EndTime::Store(ns)) => ns <= self.store_ns(),
            Some(EndTime::Wall(ns)) => {
                // The time is read before the marks: a thread that sees the time after a step also sees its mark.
                ns <= self.wall_ns(newest)
                    || self.has_marks.load(Ordering::Acquire)
                        && self.marks.lock().iter().any(|mark| version <= mark.lsn && ns <= mark.wall_ns)
            }
        }
    }

    /// The deadline of a write that is not queued yet.
    pub(crate) fn end_of(&self, expiry: Expiry, newest: &impl Newest) -> Option<EndTime> {
        let end = match expiry {
            Expiry::Never => return None,
            Expiry::After(time) => EndTime::Store(self.store_ns().saturating_add(ns_of(time))),
            Expiry::At(wall_ns) => EndTime::Wall(wall_ns),
            Expiry::Same(deadline) => deadline.end,
        };
        if matches!(end, EndTime::Wall(_)) {
            // A step back that was not noticed yet is older than this write, and must not affect it.
            self.wall_ns(newest);
        }
        Some(end)
    }

    /// The deadline as users see it.
    pub(crate) fn deadline(&self, end: EndTime, newest: &impl Newest) -> Deadline {
        let (left_ns, at_ns) = match end {
            EndTime::Store(ns) => (ns.saturating_sub(self.store_ns()), ns.saturating_add_signed(self.look())),
            EndTime::Wall(ns) => (ns.saturating_sub(self.wall_ns(newest)), ns),
        };
        Deadline { end, left_ns, at_ns }
    }

    /// The clocks at this moment, by which a snapshot judges.
    pub(crate) fn moment(&self, newest: &impl Newest) -> Moment {
        // The time before the marks, as in `is_over`.
        let wall_ns = self.wall_ns(newest);
        let marks = self.marks.lock().clone();
        Moment { store_ns: self.store_ns(), wall_ns, offset_ns: self.look(), marks }
    }

    /// The wall clock minus store time. Notices a step of the wall clock.
    fn look(&self) -> i64 {
        let now = self.store_ns();
        let offset = (self.clock.wall_ns() as i64).wrapping_sub(now as i64);
        let before = self.offset.load(Ordering::Relaxed);
        let step = offset.wrapping_sub(before as i64);
        if step.unsigned_abs() <= JITTER_NS {
            return before as i64;
        }
        let is_first =
            self.offset.compare_exchange(before, offset as u64, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if is_first && step.unsigned_abs() >= STEP_NS {
            self.steps.fetch_add(1, Ordering::Relaxed);
            self.skew.fetch_add(step as u64, Ordering::Relaxed);
            self.is_unsaved.store(true, Ordering::Relaxed);
            self.say(now, step);
        }
        offset
    }

    fn say(&self, now: u64, step: i64) {
        let said = self.said_ns.load(Ordering::Relaxed);
        if said != 0 && now.saturating_sub(said) < SAY_NS {
            self.unsaid.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.said_ns.store(now.max(1), Ordering::Relaxed);
        let unsaid = self.unsaid.swap(0, Ordering::Relaxed);
        let more =
            if unsaid > 0 { format!(" ({unsaid} steps before it were not logged)") } else { String::new() };
        tracing::warn!(
            "the wall clock was set: it shows {} than the elapsed time{more}. {MEANING}",
            difference(step)
        );
    }

    /// Reads the clocks, so that a step is noticed without requests.
    pub(crate) fn tick(&self, newest: &impl Newest) {
        self.look();
        self.wall_ns(newest);
    }

    /// The times for a batch.
    pub(crate) fn stamp(&self, newest: &impl Newest) -> BatchTimes {
        self.tick(newest);
        let store_ns = self.store_ns();
        self.saved_ns.store(store_ns, Ordering::Relaxed);
        BatchTimes::Now { store_ns, wall_ns: self.clock.wall_ns().min(CLOCK_MAX_NS) }
    }

    /// The times for a superblock: its record, and the latest time of the wall clock since its last step back.
    pub fn record(&self, newest: &impl Newest) -> (ClockRecord, u64) {
        self.is_unsaved.store(false, Ordering::Relaxed);
        self.tick(newest);
        let (store_ns, high) = (self.store_ns(), self.wall_high.load(Ordering::Acquire));
        self.saved_ns.store(store_ns, Ordering::Relaxed);
        let mut marks = self.marks.lock();
        // The wall clock is beyond these marks again: the next step back makes new ones.
        marks.retain(|mark| mark.wall_ns > high);
        self.has_marks.store(!marks.is_empty(), Ordering::Release);
        let record = ClockRecord {
            store_ns: store_ns.min(CLOCK_MAX_NS),
            wall_ns: self.clock.wall_ns().min(CLOCK_MAX_NS),
            boot_ns: self.clock.boot_ns().min(CLOCK_MAX_NS),
            boot_id: self.boot_id,
            marks: marks.clone(),
        };
        assert!(record.is_sensible(), "an opening accepts the clocks that are stored (R18)");
        (record, high)
    }

    /// Returns true if the clocks must be stored now. `has_deadlines` is true if any object has a deadline.
    pub fn wants_saving(&self, has_deadlines: bool) -> bool {
        let since = self.store_ns().saturating_sub(self.saved_ns.load(Ordering::Relaxed));
        has_deadlines && (self.is_unsaved.load(Ordering::Relaxed) || since >= SAVE_NS)
    }

    /// The number of steps of the wall clock since the store was opened, and their sum in nanoseconds.
    pub fn skew(&self) -> (u64, i64) {
        (self.steps.load(Ordering::Relaxed), self.skew.load(Ordering::Relaxed) as i64)
    }
}

/// The clocks at one moment.
#[derive(Clone, Debug)]
pub struct Moment {
    store_ns: u64,
    wall_ns: u64,
    offset_ns: i64,
    marks: Vec<WallMark>,
}

impl Moment {
    /// The wall clock's time, in nanoseconds since the Unix epoch.
    #[inline]
    pub fn wall_ns(&self) -> u64 {
        self.wall_ns
    }

    /// Returns true if this version of an object had expired.
    #[inline]
    pub fn is_over(&self, end: Option<EndTime>, version: Lsn) -> bool {
        match end {
            None => false,
            Some(EndTime::Store(ns)) => ns <= self.store_ns,
            Some(EndTime::Wall(ns)) => {
                ns <= self.wall_ns || self.marks.iter().any(|mark| version <= mark.lsn && ns <= mark.wall_ns)
            }
        }
    }

    /// The deadline as users saw it.
    pub fn deadline(&self, end: EndTime) -> Deadline {
        let (left_ns, at_ns) = match end {
            EndTime::Store(ns) => {
                (ns.saturating_sub(self.store_ns), ns.saturating_add_signed(self.offset_ns))
            }
            EndTime::Wall(ns) => (ns.saturating_sub(self.wall_ns), ns),
        };
        Deadline { end, left_ns, at_ns }
    }
}

fn ns_of(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;
    const HOUR: i64 = DISAGREEMENT_NS as i64;

    /// The time that counts, and the start of the warning, for each combination of the two clocks.
    #[test]
    fn the_shorter_time_counts_if_the_clocks_disagree_by_much() {
        let year = 365 * 24 * HOUR;
        let cases = [
            // Both clocks ran.
            (Some(10 * SECOND), 10 * SECOND, 10 * SECOND, None),
            (Some(year), year, year, None),
            // The wall clock was set, by little and by much.
            (Some(10 * SECOND), 100 * SECOND, 10 * SECOND, Some("the wall clock was set")),
            (Some(10 * SECOND), year, 10 * SECOND, Some("the wall clock was set")),
            (Some(100 * SECOND), 10 * SECOND, 100 * SECOND, Some("the wall clock was set")),
            (Some(HOUR), -year, HOUR, Some("the wall clock was set")),
            // The clock since boot jumped, or the wall clock was set back by more than an hour.
            (Some(year), 10 * SECOND, 10 * SECOND, Some("the store was closed for")),
            (Some(HOUR + 1), 0, 0, Some("the store was closed for")),
            (Some(2 * HOUR), -year, 0, Some("the store was closed for")),
            // Another boot-time clock: only the wall clock is known.
            (None, 10 * SECOND, 10 * SECOND, None),
            (None, year, year, None),
            (None, -10 * SECOND, 0, Some("the wall clock shows 10.0 s less")),
        ];
        for (by_boot, by_wall, counts, warning) in cases {
            let closed = ClosedTime { by_boot: by_boot.map(|ns| ns as u64), by_wall };
            assert_eq!(closed.elapsed_ns(), counts as u64, "{by_boot:?}, {by_wall}");
            let said = closed.disagreement();
            let is_right = match (&said, warning) {
                (None, None) => true,
                (Some(said), Some(start)) => said.starts_with(start),
                _ => false,
            };
            assert!(is_right, "{by_boot:?}, {by_wall}: {said:?}");
        }
    }
}
