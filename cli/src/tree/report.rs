//! What an import or export did: counts, one line for each failure as it happens, a summary at the end.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use indicatif::ProgressBar;
use parking_lot::Mutex;
use serde_json::{Value, json};

use shoal_client::DamagedRange;

use crate::damage::Damage;
use crate::failure::Reported;
use crate::output::{Output, show_count, warn};
use crate::size::Size;
use crate::tree::attributes::Kind;

/// Failures that are told one by one; the rest is only counted.
const FAILURES_TOLD_MAX: usize = 200;
/// Of those, failures for the same reason.
const SAME_REASON_TOLD_MAX: u32 = 20;

/// The words for one direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Verb {
    pub(crate) name: &'static str,
    pub(crate) past: &'static str,
    pub(crate) unchanged: &'static str,
}

/// Import's words.
pub(crate) const IMPORT: Verb = Verb { name: "import", past: "imported", unchanged: "already in the store" };
/// Export's words.
pub(crate) const EXPORT: Verb = Verb { name: "export", past: "exported", unchanged: "already in the folder" };

/// Shared by all threads of an import or export. The counters are statistics: nothing else depends on their order.
pub(crate) struct Report {
    verb: Verb,
    started: Instant,
    files: AtomicU64,
    folders: AtomicU64,
    symlinks: AtomicU64,
    bytes: AtomicU64,
    unchanged: AtomicU64,
    unchanged_bytes: AtomicU64,
    special: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    told: Mutex<Told>,
    /// The damaged ranges that a listing went past.
    damage: Mutex<Damage>,
    /// How much there is in all, where somebody counted: items and bytes.
    total: Mutex<Option<(u64, u64)>>,
    stop: AtomicBool,
    /// Why it ended early.
    stopped: Mutex<Option<String>>,
    bar: Option<ProgressBar>,
}

/// Failures that were told.
#[derive(Default)]
struct Told {
    failures: Vec<Value>,
    reasons: HashMap<String, u32>,
}

/// How far it is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sofar {
    /// Files, folders, symlinks and what was passed over.
    pub(crate) items: u64,
    pub(crate) bytes: u64,
    /// Of the items those that were there already.
    pub(crate) unchanged: u64,
    /// Of the bytes those that were there already.
    pub(crate) unchanged_bytes: u64,
    pub(crate) failed: u64,
}

impl Report {
    pub(crate) fn new(verb: Verb, bar: Option<ProgressBar>) -> Self {
        Self {
            verb,
            started: Instant::now(),
            files: AtomicU64::new(0),
            folders: AtomicU64::new(0),
            symlinks: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            unchanged: AtomicU64::new(0),
            unchanged_bytes: AtomicU64::new(0),
            special: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            told: Mutex::default(),
            damage: Mutex::default(),
            total: Mutex::new(None),
            stop: AtomicBool::new(false),
            stopped: Mutex::new(None),
            bar,
        }
    }

    pub(crate) fn verb(&self) -> Verb {
        self.verb
    }

    pub(crate) fn bar(&self) -> Option<&ProgressBar> {
        self.bar.as_ref()
    }

    pub(crate) fn started(&self) -> Instant {
        self.started
    }

    /// One more was done.
    pub(crate) fn done(&self, kind: Kind, bytes: u64) {
        let counter = match kind {
            Kind::File => &self.files,
            Kind::Folder => &self.folders,
            Kind::Symlink => &self.symlinks,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        self.add_bytes(if kind == Kind::File { bytes } else { 0 });
    }

    /// A part of a large file was done.
    pub(crate) fn add_bytes(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A large file failed after parts of it were counted.
    pub(crate) fn take_back_bytes(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// One needed nothing to be done.
    pub(crate) fn unchanged(&self, bytes: u64) {
        self.unchanged.fetch_add(1, Ordering::Relaxed);
        self.unchanged_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// One is of a kind that cannot be stored.
    pub(crate) fn special(&self, name: &str, what: &str) {
        self.special.fetch_add(1, Ordering::Relaxed);
        self.tell(name, &format!("skipped: a {what} has no content to store"));
    }

    /// A key is no name that may be written.
    pub(crate) fn refused(&self, name: &str, why: &str) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        self.tell(name, &format!("refused: {why}"));
    }

    /// One failed.
    pub(crate) fn failed(&self, name: &str, why: &str) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        self.tell(name, why);
    }

    /// A listing went past damage.
    pub(crate) fn damaged(&self, ranges: Vec<DamagedRange>) {
        self.damage.lock().add(ranges);
    }

    fn tell(&self, name: &str, why: &str) {
        let mut told = self.told.lock();
        if told.failures.len() >= FAILURES_TOLD_MAX {
            return;
        }
        let same = told.reasons.entry(why.to_owned()).or_insert(0);
        *same += 1;
        let same = *same;
        if same > SAME_REASON_TOLD_MAX {
            return;
        }
        told.failures.push(json!({ "name": name, "reason": why }));
        let is_last = same == SAME_REASON_TOLD_MAX || told.failures.len() == FAILURES_TOLD_MAX;
        drop(told);
        let note = if is_last { " (more like this are only counted)" } else { "" };
        self.line(&format!("shoal: {}: {name}: {}{note}", self.verb.name, why.replace('\n', " ")));
    }

    /// A line on standard error, above the progress bar.
    pub(crate) fn line(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| warn(text)),
            None => warn(text),
        }
    }

    /// Ends the work early; what is under way is finished.
    pub(crate) fn stop(&self, why: &str) {
        let mut stopped = self.stopped.lock();
        if stopped.is_none() {
            *stopped = Some(why.to_owned());
        }
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Whether it is to end early.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// There are so many items and bytes in all.
    pub(crate) fn set_total(&self, items: u64, bytes: u64) {
        *self.total.lock() = Some((items, bytes));
    }

    /// Items and bytes in all, where known.
    pub(crate) fn total(&self) -> Option<(u64, u64)> {
        *self.total.lock()
    }

    pub(crate) fn sofar(&self) -> Sofar {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (unchanged, failed) = (get(&self.unchanged), get(&self.failed));
        let done = get(&self.files) + get(&self.folders) + get(&self.symlinks);
        let unchanged_bytes = get(&self.unchanged_bytes);
        Sofar {
            items: done + unchanged + failed + get(&self.special) + get(&self.refused),
            bytes: get(&self.bytes) + unchanged_bytes,
            unchanged,
            unchanged_bytes,
            failed,
        }
    }

    /// Prints the summary and says how the command ends.
    pub(crate) fn conclude(&self, as_json: bool) -> anyhow::Result<()> {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        let mut output = Output::new();
        if as_json {
            output.json(&self.summary_json())?;
        } else {
            self.summary().iter().try_for_each(|line| output.line(line))?;
        }
        output.finish()?;
        let whole = self.damage.lock().conclude("are missing here");
        let bad = self.failed.load(Ordering::Relaxed) + self.refused.load(Ordering::Relaxed);
        if let Some(why) = &*self.stopped.lock() {
            eprintln!(
                "shoal: {}: stopped: {why}; what is listed above was done, run it again to go on",
                self.verb.name
            );
            return Err(Reported.into());
        }
        if bad > 0 { Err(Reported.into()) } else { whole }
    }

    fn summary(&self) -> Vec<String> {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let seconds = self.started.elapsed().as_secs_f64();
        let (files, bytes) = (get(&self.files), get(&self.bytes));
        let mut lines = vec![format!(
            "{} {} files, {} folders, {} symlinks: {} in {seconds:.1} s ({} files/s, {:.1} MB/s)",
            self.verb.past,
            show_count(files),
            show_count(get(&self.folders)),
            show_count(get(&self.symlinks)),
            Size(bytes),
            show_count((files as f64 / seconds) as u64),
            bytes as f64 / 1e6 / seconds,
        )];
        for (count, what) in [
            (get(&self.unchanged), self.verb.unchanged),
            (get(&self.special), "skipped: sockets, fifos and devices have no content to store"),
            (get(&self.refused), "refused: their names cannot be written below the folder"),
            (get(&self.failed), "failed"),
        ] {
            if count > 0 {
                lines.push(format!("{} {what}", show_count(count)));
            }
        }
        lines
    }

    fn summary_json(&self) -> Value {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let seconds = self.started.elapsed().as_secs_f64();
        let (files, bytes) = (get(&self.files), get(&self.bytes));
        json!({
            "command": self.verb.name,
            "files": files,
            "folders": get(&self.folders),
            "symlinks": get(&self.symlinks),
            "bytes": bytes,
            "unchanged": get(&self.unchanged),
            "special": get(&self.special),
            "refused": get(&self.refused),
            "failed": get(&self.failed),
            "seconds": seconds,
            "files_per_s": files as f64 / seconds,
            "mb_per_s": bytes as f64 / 1e6 / seconds,
            "stopped": *self.stopped.lock(),
            "failures": self.told.lock().failures,
            "damaged": self.damage.lock().json(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_concludes() {
        let report = Report::new(IMPORT, None);
        report.done(Kind::File, 10);
        report.done(Kind::Folder, 0);
        report.unchanged(5);
        report.special("s", "socket");
        assert!(report.conclude(true).is_ok(), "special files are no failure");
        let sofar = report.sofar();
        assert_eq!((sofar.items, sofar.bytes, sofar.unchanged), (4, 15, 1));
        report.refused("../x", "leaves the folder");
        assert!(report.conclude(false).is_err());
        let summary = report.summary_json();
        assert_eq!(summary["files"], 1);
        assert_eq!(summary["failures"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn stopping_is_a_failure_with_its_first_reason() {
        let report = Report::new(EXPORT, None);
        report.stop("interrupted");
        report.stop("something else");
        assert!(report.is_stopped() && report.conclude(true).unwrap_err().is::<Reported>());
        assert_eq!(report.summary_json()["stopped"], "interrupted");
    }

    #[test]
    fn failures_told_are_bounded() {
        let report = Report::new(IMPORT, None);
        for index in 0..1000 {
            report.failed("x", "always the same");
            report.failed("y", &format!("reason {index}"));
        }
        let told = report.told.lock();
        assert_eq!(told.failures.len(), FAILURES_TOLD_MAX);
        let same = told.failures.iter().filter(|failure| failure["reason"] == "always the same").count();
        assert_eq!(same, SAME_REASON_TOLD_MAX as usize);
        assert!(told.reasons.len() <= FAILURES_TOLD_MAX);
        drop(told);
        assert_eq!(report.sofar().failed, 2000);
    }
}
