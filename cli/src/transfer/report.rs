//! The report of an import or export: counts, one line for each failure as it happens, a summary at the end.

use std::collections::HashMap;
use std::time::Instant;

use indicatif::ProgressBar;
use parking_lot::Mutex;
use serde_json::{Value, json};

use shoal_client::DamagedRange;

use crate::damage::Damage;
use crate::failure::Reported;
use crate::output::{Output, show_count, warn};
use crate::size::Size;
use crate::transfer::attributes::Kind;

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

/// Shared by all threads of an import or export.
pub(crate) struct Report {
    verb: Verb,
    started: Instant,
    state: Mutex<State>,
    bar: Option<ProgressBar>,
}

#[derive(Default)]
struct State {
    counts: Counts,
    /// Failures that were told.
    failures: Vec<Value>,
    reasons: HashMap<String, u32>,
    /// The damaged ranges that a listing went past.
    damage: Damage,
    /// The total of items and bytes, if they were counted.
    total: Option<(u64, u64)>,
    /// Why it ended early.
    stopped: Option<String>,
}

/// How far it is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) files: u64,
    pub(crate) folders: u64,
    pub(crate) symlinks: u64,
    /// Of the completed items.
    pub(crate) bytes: u64,
    /// Items that were there already.
    pub(crate) unchanged: u64,
    pub(crate) unchanged_bytes: u64,
    pub(crate) special: u64,
    pub(crate) refused: u64,
    pub(crate) failed: u64,
}

impl Counts {
    /// Files, folders, symlinks and skipped items.
    pub(crate) fn items(&self) -> u64 {
        let done = self.files + self.folders + self.symlinks;
        done + self.unchanged + self.special + self.refused + self.failed
    }

    /// With those that were there already.
    pub(crate) fn all_bytes(&self) -> u64 {
        self.bytes + self.unchanged_bytes
    }
}

impl Report {
    pub(crate) fn new(verb: Verb, bar: Option<ProgressBar>) -> Self {
        Self { verb, started: Instant::now(), state: Mutex::default(), bar }
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
        let counts = &mut self.state.lock().counts;
        match kind {
            Kind::File => (counts.files, counts.bytes) = (counts.files + 1, counts.bytes + bytes),
            Kind::Folder => counts.folders += 1,
            Kind::Symlink => counts.symlinks += 1,
        }
    }

    /// A part of a large file was done.
    pub(crate) fn add_bytes(&self, bytes: u64) {
        self.state.lock().counts.bytes += bytes;
    }

    /// A large file failed after parts of it were counted.
    pub(crate) fn take_back_bytes(&self, bytes: u64) {
        self.state.lock().counts.bytes -= bytes;
    }

    /// One needed nothing to be done.
    pub(crate) fn unchanged(&self, bytes: u64) {
        let counts = &mut self.state.lock().counts;
        counts.unchanged += 1;
        counts.unchanged_bytes += bytes;
    }

    /// One is of a kind that cannot be stored.
    pub(crate) fn special(&self, name: &str, what: &str) {
        self.state.lock().counts.special += 1;
        self.tell(name, &format!("skipped: a {what} has no content to store"));
    }

    /// A key is no name that may be written.
    pub(crate) fn refused(&self, name: &str, why: &str) {
        self.state.lock().counts.refused += 1;
        self.tell(name, &format!("refused: {why}"));
    }

    /// One failed.
    pub(crate) fn failed(&self, name: &str, why: &str) {
        self.state.lock().counts.failed += 1;
        self.tell(name, why);
    }

    /// A listing went past damage.
    pub(crate) fn damaged(&self, ranges: Vec<DamagedRange>) {
        self.state.lock().damage.add(ranges);
    }

    fn tell(&self, name: &str, why: &str) {
        let mut state = self.state.lock();
        if state.failures.len() >= FAILURES_TOLD_MAX {
            return;
        }
        let same = state.reasons.entry(why.to_owned()).or_insert(0);
        *same += 1;
        let same = *same;
        if same > SAME_REASON_TOLD_MAX {
            return;
        }
        state.failures.push(json!({ "name": name, "reason": why }));
        let is_last = same == SAME_REASON_TOLD_MAX || state.failures.len() == FAILURES_TOLD_MAX;
        drop(state);
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

    /// Ends the work early; items in progress are finished.
    pub(crate) fn stop(&self, why: &str) {
        self.state.lock().stopped.get_or_insert_with(|| why.to_owned());
    }

    /// Whether it is to end early.
    pub(crate) fn is_stopped(&self) -> bool {
        self.state.lock().stopped.is_some()
    }

    /// There are so many items and bytes in all.
    pub(crate) fn set_total(&self, items: u64, bytes: u64) {
        self.state.lock().total = Some((items, bytes));
    }

    /// Items and bytes in all, where known.
    pub(crate) fn total(&self) -> Option<(u64, u64)> {
        self.state.lock().total
    }

    pub(crate) fn counts(&self) -> Counts {
        self.state.lock().counts
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
        let state = self.state.lock();
        let whole = state.damage.conclude("are missing here");
        if let Some(why) = &state.stopped {
            eprintln!(
                "shoal: {}: stopped: {why}; what is listed above was done, run it again to go on",
                self.verb.name
            );
            return Err(Reported.into());
        }
        if state.counts.failed + state.counts.refused > 0 { Err(Reported.into()) } else { whole }
    }

    fn summary(&self) -> Vec<String> {
        let (counts, seconds) = (self.counts(), self.started.elapsed().as_secs_f64());
        let mut lines = vec![format!(
            "{} {} files, {} folders, {} symlinks: {} in {seconds:.1} s ({} files/s, {:.1} MB/s)",
            self.verb.past,
            show_count(counts.files),
            show_count(counts.folders),
            show_count(counts.symlinks),
            Size(counts.bytes),
            show_count((counts.files as f64 / seconds) as u64),
            counts.bytes as f64 / 1e6 / seconds,
        )];
        for (count, what) in [
            (counts.unchanged, self.verb.unchanged),
            (counts.special, "skipped: sockets, fifos and devices have no content to store"),
            (counts.refused, "refused: their names cannot be written below the folder"),
            (counts.failed, "failed"),
        ] {
            if count > 0 {
                lines.push(format!("{} {what}", show_count(count)));
            }
        }
        lines
    }

    fn summary_json(&self) -> Value {
        let seconds = self.started.elapsed().as_secs_f64();
        let state = self.state.lock();
        let counts = state.counts;
        json!({
            "command": self.verb.name,
            "files": counts.files,
            "folders": counts.folders,
            "symlinks": counts.symlinks,
            "bytes": counts.bytes,
            "unchanged": counts.unchanged,
            "special": counts.special,
            "refused": counts.refused,
            "failed": counts.failed,
            "seconds": seconds,
            "files_per_s": counts.files as f64 / seconds,
            "mb_per_s": counts.bytes as f64 / 1e6 / seconds,
            "stopped": state.stopped,
            "failures": state.failures,
            "damaged": state.damage.json(),
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
        let counts = report.counts();
        assert_eq!((counts.items(), counts.all_bytes(), counts.unchanged), (4, 15, 1));
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
        let told = report.state.lock();
        assert_eq!(told.failures.len(), FAILURES_TOLD_MAX);
        let same = told.failures.iter().filter(|failure| failure["reason"] == "always the same").count();
        assert_eq!(same, SAME_REASON_TOLD_MAX as usize);
        assert!(told.reasons.len() <= FAILURES_TOLD_MAX);
        drop(told);
        assert_eq!(report.counts().failed, 2000);
    }
}
