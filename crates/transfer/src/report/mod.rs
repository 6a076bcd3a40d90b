//! The report of an import or export: counts, failures, and the reason of an early stop.
//!
//! All threads of a transfer share one [`TransferReport`]. It passes each failure to [`TransferEvents`] at once; a program that shows
//! progress reads [`TransferReport::counts`]. At the end [`TransferReport::outcome`] has everything.

mod damage;

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use shoal_client::DamagedRange;

pub use self::damage::DamagedRanges;
use crate::attributes::FileKind;
use crate::attributes::extras::now_ns;

/// Failures that are reported one by one; later ones are only counted.
const FAILURES_REPORTED_MAX: usize = 200;
/// Failures with the same reason that are reported one by one.
const SAME_REASON_REPORTED_MAX: u32 = 20;

/// Receives the events of a transfer as they happen, from all of its threads.
pub trait TransferEvents: Send + Sync {
    /// `name` failed, or is left out or incomplete, because of `why`. With `is_last`, further failures like this are only counted.
    fn failure(&self, name: &str, why: &str, is_last: bool);

    /// A dry run would store or write `key`. Returns false if no more keys are wanted.
    fn planned(&self, key: &[u8]) -> bool;
}

/// The manner of an import or export.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    /// Write nothing, and report the keys.
    pub dry_run: bool,
    /// Continue without the objects, or their parts, that the destination cannot represent.
    pub lossy: bool,
    /// The name of the destination: `the store`, `the folder`.
    pub place: &'static str,
}

/// Shared by all threads of an import or export.
pub struct TransferReport {
    manner: Manner,
    events: Arc<dyn TransferEvents>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    outcome: TransferOutcome,
    /// Reported failures by reason.
    reasons: HashMap<String, u32>,
    /// The total of items and bytes, if known.
    total: Option<(u64, u64)>,
}

/// The outcome of a transfer.
#[derive(Clone, Debug, Default)]
pub struct TransferOutcome {
    /// The number of items by their fate.
    pub counts: Counts,
    /// The first reported failures: the item and the reason.
    pub failures: Vec<(String, String)>,
    /// The damaged ranges of the listings.
    pub damage: DamagedRanges,
    /// Why the transfer stopped early.
    pub stopped: Option<Stop>,
}

/// The reason of an early stop.
#[derive(Clone, Debug)]
pub struct Stop {
    /// The reason.
    pub why: String,
    /// The destination cannot represent an object; a lossy transfer would continue.
    pub is_refusal: bool,
}

/// The number of items by their fate.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Stored or written files.
    pub files: u64,
    /// Stored or written folders.
    pub folders: u64,
    /// Stored or written symlinks.
    pub symlinks: u64,
    /// Bytes of the values of these, and of parts of large ones.
    pub bytes: u64,
    /// Items that the destination has already.
    pub unchanged: u64,
    /// Bytes of those.
    pub unchanged_bytes: u64,
    /// Sockets, fifos and devices, which are skipped.
    pub special: u64,
    /// Temporary files of killed commands, which are skipped.
    pub leftovers: u64,
    /// Items that the destination cannot represent, which are skipped.
    pub refused: u64,
    /// Items written without some of their metadata or their deadline.
    pub dropped: u64,
    /// Items whose deadline passed, which are skipped.
    pub expired: u64,
    /// Items that the filter excludes.
    pub excluded: u64,
    /// Failed items.
    pub failed: u64,
}

impl Counts {
    /// All items but the excluded ones.
    pub fn items(&self) -> u64 {
        let done = self.files + self.folders + self.symlinks;
        done + self.unchanged + self.special + self.leftovers + self.refused + self.failed + self.expired
    }

    /// Returns true if an item is missing or incomplete at the destination.
    pub fn is_lossy(&self) -> bool {
        self.refused + self.dropped > 0
    }

    /// Bytes, including those of unchanged items.
    pub fn all_bytes(&self) -> u64 {
        self.bytes + self.unchanged_bytes
    }
}

impl TransferReport {
    /// The report of a transfer that has not started.
    pub fn new(manner: Manner, events: Arc<dyn TransferEvents>) -> Self {
        Self { manner, events, state: Mutex::default() }
    }

    /// Stops the transfer early; items in progress are finished. The first reason counts.
    pub fn stop(&self, why: &str) {
        self.stop_for(|| Stop { why: why.to_owned(), is_refusal: false });
    }

    fn stop_for(&self, reason: impl FnOnce() -> Stop) {
        self.state.lock().outcome.stopped.get_or_insert_with(reason);
    }

    /// Returns true if the transfer stops early.
    pub fn is_stopped(&self) -> bool {
        self.state.lock().outcome.stopped.is_some()
    }

    /// The total of items and bytes, if known.
    pub fn total(&self) -> Option<(u64, u64)> {
        self.state.lock().total
    }

    /// The counts so far.
    pub fn counts(&self) -> Counts {
        self.state.lock().outcome.counts
    }

    /// The outcome so far.
    pub fn outcome(&self) -> TransferOutcome {
        self.state.lock().outcome.clone()
    }

    pub(crate) fn manner(&self) -> Manner {
        self.manner
    }

    /// Sets the total of items and bytes.
    pub(crate) fn set_total(&self, items: u64, bytes: u64) {
        self.state.lock().total = Some((items, bytes));
    }

    fn count(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.state.lock().outcome.counts);
    }

    /// An item is stored or written.
    pub(crate) fn done(&self, kind: FileKind, bytes: u64) {
        self.count(|counts| match kind {
            FileKind::File => (counts.files, counts.bytes) = (counts.files + 1, counts.bytes + bytes),
            FileKind::Folder => counts.folders += 1,
            FileKind::Symlink => counts.symlinks += 1,
        });
    }

    /// An item would be stored or written, but this is a dry run.
    pub(crate) fn would(&self, kind: FileKind, key: &[u8], bytes: u64) {
        self.done(kind, bytes);
        if !self.events.planned(key) {
            self.stop("nobody reads the keys any more");
        }
    }

    /// A piece of a large file is done.
    pub(crate) fn add_bytes(&self, bytes: u64) {
        self.count(|counts| counts.bytes += bytes);
    }

    /// A large file failed after pieces of it were counted.
    pub(crate) fn take_back_bytes(&self, bytes: u64) {
        self.count(|counts| counts.bytes -= bytes);
    }

    /// The destination has the item already.
    pub(crate) fn unchanged(&self, bytes: u64) {
        self.count(|counts| {
            counts.unchanged += 1;
            counts.unchanged_bytes += bytes;
        });
    }

    /// The item is a file of a kind without content.
    pub(crate) fn special(&self, name: &str, kind: &str) {
        self.count(|counts| counts.special += 1);
        self.report(name, &format!("skipped: a {kind} has no content to store"));
    }

    /// The item is a temporary file of a killed command.
    pub(crate) fn leftover(&self, name: &str) {
        self.count(|counts| counts.leftovers += 1);
        self.report(name, "left out: a temporary file of a killed command of Shoal");
    }

    /// The destination cannot represent the item: it is left out, and unless the transfer is lossy it stops.
    pub(crate) fn refused(&self, name: &str, why: &str) {
        self.count(|counts| counts.refused += 1);
        self.report_loss(name, &format!("refused: {why}"));
        if !self.manner.lossy {
            let place = self.manner.place;
            self.stop_for(|| Stop { why: format!("{place} cannot hold {name:?}: {why}"), is_refusal: true });
        }
    }

    /// The item is written without a part of its attributes. Only in lossy transfers.
    pub(crate) fn dropped(&self, name: &str, why: &str) {
        self.count(|counts| counts.dropped += 1);
        self.report_loss(name, &format!("written without its metadata and deadline: {why}"));
    }

    /// The deadline of the item has passed.
    pub(crate) fn expired(&self) {
        self.count(|counts| counts.expired += 1);
    }

    /// The item was listed with this deadline, and no longer exists: a failure unless it expired.
    pub(crate) fn gone(&self, name: &str, expires_ns: Option<u64>) {
        match expires_ns.is_some_and(|at_ns| at_ns <= now_ns()) {
            true => self.expired(),
            false => self.failed(name, "it was deleted meanwhile"),
        }
    }

    /// The filter excludes `items`.
    pub(crate) fn excluded(&self, items: u64) {
        self.count(|counts| counts.excluded += items);
    }

    /// The item failed.
    pub(crate) fn failed(&self, name: &str, why: &str) {
        self.count(|counts| counts.failed += 1);
        self.report(name, why);
    }

    /// A listing skipped damaged ranges.
    pub(crate) fn damaged(&self, ranges: Vec<DamagedRange>) {
        self.state.lock().outcome.damage.add(ranges);
    }

    /// Reports a loss. Every loss is an event; the list of the outcome is bounded.
    fn report_loss(&self, name: &str, why: &str) {
        let mut state = self.state.lock();
        if state.outcome.failures.len() < FAILURES_REPORTED_MAX {
            state.outcome.failures.push((name.to_owned(), why.to_owned()));
        }
        drop(state);
        self.events.failure(name, why, false);
    }

    fn report(&self, name: &str, why: &str) {
        let mut guard = self.state.lock();
        let State { outcome: TransferOutcome { failures, .. }, reasons, .. } = &mut *guard;
        if failures.len() >= FAILURES_REPORTED_MAX {
            return;
        }
        let same = reasons.entry(why.to_owned()).or_insert(0);
        *same += 1;
        if *same > SAME_REASON_REPORTED_MAX {
            return;
        }
        failures.push((name.to_owned(), why.to_owned()));
        let is_last = *same == SAME_REASON_REPORTED_MAX || failures.len() == FAILURES_REPORTED_MAX;
        drop(guard);
        self.events.failure(name, why, is_last);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const MANNER: Manner = Manner { dry_run: false, lossy: false, place: "the store" };

    impl TransferEvents for () {
        fn failure(&self, _: &str, _: &str, _: bool) {}

        fn planned(&self, _: &[u8]) -> bool {
            true
        }
    }

    /// A report whose events are ignored.
    pub(crate) fn report() -> Arc<TransferReport> {
        Arc::new(TransferReport::new(MANNER, Arc::new(())))
    }

    #[test]
    fn a_refusal_stops_and_a_special_file_does_not() {
        let report = report();
        report.done(FileKind::File, 10);
        report.done(FileKind::Folder, 0);
        report.unchanged(5);
        report.special("s", "socket");
        let counts = report.counts();
        assert_eq!((counts.items(), counts.all_bytes(), counts.unchanged), (4, 15, 1));
        assert!(!report.is_stopped() && !counts.is_lossy());
        report.refused("../x", "leaves the folder");
        let outcome = report.outcome();
        assert!(outcome.stopped.is_some_and(|stop| stop.is_refusal && stop.why.contains("the store")));
        assert_eq!((outcome.counts.files, outcome.failures.len()), (1, 2));
    }

    #[test]
    fn a_lossy_transfer_continues_after_a_loss() {
        for lose in [TransferReport::refused, TransferReport::dropped] {
            let report = TransferReport::new(Manner { lossy: true, ..MANNER }, Arc::new(()));
            lose(&report, "x", "it cannot be represented");
            assert!(!report.is_stopped() && report.counts().is_lossy());
        }
    }

    #[test]
    fn the_first_reason_of_a_stop_counts() {
        let report = report();
        report.stop("interrupted");
        report.stop("something else");
        assert_eq!(report.outcome().stopped.map(|stop| stop.why), Some("interrupted".into()));
    }

    #[test]
    fn reported_failures_are_bounded() {
        let report = report();
        for index in 0..1000 {
            report.failed("x", "always the same");
            report.failed("y", &format!("reason {index}"));
        }
        let failures = report.outcome().failures;
        assert_eq!(failures.len(), FAILURES_REPORTED_MAX);
        let same = failures.iter().filter(|(_, why)| why == "always the same").count();
        assert_eq!(same, SAME_REASON_REPORTED_MAX as usize);
        assert!(report.state.lock().reasons.len() <= FAILURES_REPORTED_MAX);
        assert_eq!(report.counts().failed, 2000);
    }
}
