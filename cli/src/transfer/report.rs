//! The report of an import or export: counts, one line for each failure as it happens, a summary at the end.

use std::collections::HashMap;
use std::time::Instant;

use indicatif::ProgressBar;
use parking_lot::Mutex;
use serde_json::{Value, json};

use shoal_client::DamagedRange;

use crate::damage::Damage;
use crate::failure::{EXIT_LOSSY, Reported, ReportedCode};
use crate::output::{Output, counted, show_count, warn};
use crate::size::Size;
use crate::transfer::attributes::Kind;
use crate::transfer::extras::now_ns;

/// Failures that are reported one by one; the rest is only counted.
const FAILURES_TOLD_MAX: usize = 200;
/// Of those, failures for the same reason.
const SAME_REASON_TOLD_MAX: u32 = 20;

/// The words for one direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Verb {
    pub(crate) name: &'static str,
    pub(crate) past: &'static str,
    /// The name of the destination.
    pub(crate) place: &'static str,
    /// Printed after the reason of an early stop.
    pub(crate) after_stop: &'static str,
    /// There are only objects, no files and folders.
    pub(crate) is_flat: bool,
}

const GO_ON: &str = "everything listed above was done; run it again to continue";

/// Import's words.
pub(crate) const IMPORT: Verb =
    Verb { name: "import", past: "imported", place: "the store", after_stop: GO_ON, is_flat: false };
/// Export's words.
pub(crate) const EXPORT: Verb =
    Verb { name: "export", past: "exported", place: "the folder", after_stop: GO_ON, is_flat: false };
/// The words of an export into a tar.
pub(crate) const EXPORT_TAR: Verb = Verb {
    name: "export",
    past: "exported",
    place: "the tar",
    after_stop: "no whole tar was made",
    is_flat: false,
};
/// The words of an import of a tar.
pub(crate) const IMPORT_TAR: Verb = Verb { after_stop: "everything listed above was done", ..IMPORT };
/// The words of an import of strings.
pub(crate) const IMPORT_STRINGS: Verb = Verb { is_flat: true, ..IMPORT };

/// The manner of an import or export, and of its reports.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Manner {
    /// Print one JSON object at the end, and no progress.
    pub(crate) json: bool,
    /// Write nothing, and print the keys.
    pub(crate) dry_run: bool,
    /// Continue without the parts that cannot be held.
    pub(crate) lossy: bool,
    /// The summary is written to standard error, as standard output has other bytes.
    pub(crate) on_error: bool,
}

/// Shared by all threads of an import or export.
pub(crate) struct Report {
    verb: Verb,
    manner: Manner,
    started: Instant,
    state: Mutex<State>,
    /// The keys of a dry run.
    listing: Mutex<Option<Output>>,
    bar: Option<ProgressBar>,
}

#[derive(Default)]
struct State {
    counts: Counts,
    /// Failures that were reported.
    failures: Vec<Value>,
    reasons: HashMap<String, u32>,
    /// The damaged ranges that a listing went past.
    damage: Damage,
    /// The total of items and bytes, if they were counted.
    total: Option<(u64, u64)>,
    /// Why it ended early.
    stopped: Option<String>,
    /// It ended early because of an object that cannot be held.
    is_refusal: bool,
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
    /// Temporary files that a killed command left.
    pub(crate) leftovers: u64,
    /// Items that cannot be held and are left out.
    pub(crate) refused: u64,
    /// Items that are there, without all of their metadata or without their deadline.
    pub(crate) dropped: u64,
    /// Items whose time was over.
    pub(crate) expired: u64,
    /// Items that --include and --exclude leave out.
    pub(crate) excluded: u64,
    pub(crate) failed: u64,
}

impl Counts {
    /// Files, folders, symlinks and skipped items.
    pub(crate) fn items(&self) -> u64 {
        let done = self.files + self.folders + self.symlinks;
        done + self.unchanged + self.special + self.leftovers + self.refused + self.failed + self.expired
    }

    /// Returns true if an item is missing or incomplete at its destination.
    pub(crate) fn is_lossy(&self) -> bool {
        self.refused + self.dropped > 0
    }

    /// With the bytes of unchanged items.
    pub(crate) fn all_bytes(&self) -> u64 {
        self.bytes + self.unchanged_bytes
    }
}

impl Report {
    pub(crate) fn new(verb: Verb, manner: Manner, bar: Option<ProgressBar>) -> Self {
        let listing = (manner.dry_run && !manner.json).then(Output::new);
        let (started, state) = (Instant::now(), Mutex::default());
        Self { verb, manner, started, state, listing: Mutex::new(listing), bar }
    }

    pub(crate) fn manner(&self) -> Manner {
        self.manner
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

    /// One would be done, but this is a dry run.
    pub(crate) fn would(&self, kind: Kind, key: &[u8], bytes: u64) {
        self.done(kind, bytes);
        if let Some(listing) = &mut *self.listing.lock()
            && listing.key_line(key).is_err()
        {
            self.stop("nobody reads the keys any more");
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

    /// One is a temporary file of a command that was killed.
    pub(crate) fn leftover(&self, name: &str) {
        self.state.lock().counts.leftovers += 1;
        self.tell(name, "left out: a temporary file of a killed command of Shoal");
    }

    /// The destination cannot hold an item: it is left out, or the work stops without `--lossy`.
    pub(crate) fn refused(&self, name: &str, why: &str) {
        self.state.lock().counts.refused += 1;
        self.tell_loss(name, &format!("refused: {why}"));
        if !self.manner.lossy {
            let mut state = self.state.lock();
            state.is_refusal |= state.stopped.is_none();
            let place = self.verb.place;
            state.stopped.get_or_insert_with(|| format!("{place} cannot hold {name:?}: {why}"));
        }
    }

    /// An item was done without a part of its attributes. Only with `--lossy`.
    pub(crate) fn dropped(&self, name: &str, why: &str) {
        self.state.lock().counts.dropped += 1;
        self.tell_loss(name, &format!("written without its metadata and deadline: {why}"));
    }

    /// The time of one is over.
    pub(crate) fn expired(&self) {
        self.state.lock().counts.expired += 1;
    }

    /// One with this deadline was listed, and is not there any more: a failure, unless its time is over.
    pub(crate) fn gone(&self, name: &str, expires_ns: Option<u64>) {
        match expires_ns.is_some_and(|at_ns| at_ns <= now_ns()) {
            true => self.expired(),
            false => self.failed(name, "it was deleted meanwhile"),
        }
    }

    /// One does not take part.
    pub(crate) fn excluded(&self) {
        self.state.lock().counts.excluded += 1;
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

    /// Each loss is named; the list for programs is bounded.
    fn tell_loss(&self, name: &str, why: &str) {
        let mut state = self.state.lock();
        if state.failures.len() < FAILURES_TOLD_MAX {
            state.failures.push(json!({ "name": name, "reason": why }));
        }
        drop(state);
        self.line(&format!("shoal: {}: {name}: {}", self.verb.name, why.replace('\n', " ")));
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

    /// Stops the work early; items in progress are finished.
    pub(crate) fn stop(&self, why: &str) {
        self.state.lock().stopped.get_or_insert_with(|| why.to_owned());
    }

    /// Returns true if it must stop early.
    pub(crate) fn is_stopped(&self) -> bool {
        self.state.lock().stopped.is_some()
    }

    /// Sets the number of all items and bytes.
    pub(crate) fn set_total(&self, items: u64, bytes: u64) {
        self.state.lock().total = Some((items, bytes));
    }

    /// All items and bytes, if known.
    pub(crate) fn total(&self) -> Option<(u64, u64)> {
        self.state.lock().total
    }

    pub(crate) fn counts(&self) -> Counts {
        self.state.lock().counts
    }

    /// Prints the summary and returns the result of the command.
    pub(crate) fn conclude(&self) -> anyhow::Result<()> {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        let lines = if self.manner.json { vec![self.summary_json().to_string()] } else { self.summary() };
        let mut output = self.listing.lock().take().unwrap_or_else(Output::new);
        match self.manner.on_error {
            true => lines.iter().for_each(|line| warn(line)),
            false => lines.iter().try_for_each(|line| output.line(line))?,
        }
        output.finish()?;
        let state = self.state.lock();
        let whole = state.damage.conclude("are missing here");
        if let Some(why) = &state.stopped {
            let advice = match (state.is_refusal, self.manner.dry_run) {
                (true, _) => {
                    "--lossy leaves out such objects, or the parts of them that would be lost, and continues"
                }
                (false, true) => "nothing was changed",
                (false, false) => self.verb.after_stop,
            };
            warn(&format!("shoal: {}: stopped: {why}; {advice}", self.verb.name));
            return Err(Reported.into());
        }
        if state.counts.failed > 0 {
            return Err(Reported.into());
        }
        whole?;
        if state.counts.is_lossy() { Err(ReportedCode(EXIT_LOSSY).into()) } else { Ok(()) }
    }

    fn summary(&self) -> Vec<String> {
        let (counts, seconds) = (self.counts(), self.started.elapsed().as_secs_f64());
        let what = match self.verb.is_flat {
            true => format!("{}: {}", counted(counts.files, "object"), Size(counts.bytes)),
            false => format!(
                "{}, {}, {}: {}",
                counted(counts.files, "file"),
                counted(counts.folders, "folder"),
                counted(counts.symlinks, "symlink"),
                Size(counts.bytes)
            ),
        };
        let mut lines = vec![match self.manner.dry_run {
            true => format!("would {} {what}", self.verb.name),
            false => format!(
                "{} {what} in {seconds:.1} s ({} files/s, {:.1} MB/s)",
                self.verb.past,
                show_count((counts.files as f64 / seconds) as u64),
                counts.bytes as f64 / 1e6 / seconds,
            ),
        }];
        let place = self.verb.place;
        for (count, what) in [
            (counts.unchanged, format!("already in {place}")),
            (counts.excluded, "left out by --include and --exclude".into()),
            (counts.expired, "left out: their time was over".into()),
            (counts.special, "skipped: sockets, fifos and devices have no content to store".into()),
            (counts.leftovers, "left out: temporary files of killed commands".into()),
            (counts.refused, format!("refused: {place} cannot hold them")),
            (counts.dropped, format!("without metadata or deadline, which {place} cannot hold")),
            (counts.failed, "failed".into()),
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
            "leftovers": counts.leftovers,
            "expired": counts.expired,
            "excluded": counts.excluded,
            "refused": counts.refused,
            "dropped": counts.dropped,
            "lossy": counts.is_lossy(),
            "dry_run": self.manner.dry_run,
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
    use crate::failure::{EXIT_FAILED, exit_code};

    #[test]
    fn counts_and_concludes() {
        let report = Report::new(IMPORT, Manner::default(), None);
        report.done(Kind::File, 10);
        report.done(Kind::Folder, 0);
        report.unchanged(5);
        report.special("s", "socket");
        assert!(report.conclude().is_ok(), "special files are no failure");
        let counts = report.counts();
        assert_eq!((counts.items(), counts.all_bytes(), counts.unchanged), (4, 15, 1));
        report.refused("../x", "leaves the folder");
        assert!(report.is_stopped() && report.conclude().unwrap_err().is::<Reported>());
        let summary = report.summary_json();
        assert_eq!(summary["files"], 1);
        assert_eq!(summary["failures"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn a_loss_that_was_allowed_has_its_own_exit_code() {
        let manner = Manner { lossy: true, json: true, ..Manner::default() };
        for lose in [Report::refused, Report::dropped] {
            let report = Report::new(EXPORT, manner, None);
            lose(&report, "x", "it cannot be held");
            assert!(!report.is_stopped());
            assert_eq!(exit_code(&report.conclude().unwrap_err()), EXIT_LOSSY);
            assert_eq!(report.summary_json()["lossy"], true);
            report.failed("y", "else");
            assert_eq!(exit_code(&report.conclude().unwrap_err()), EXIT_FAILED);
        }
    }

    #[test]
    fn stopping_is_a_failure_with_its_first_reason() {
        let report = Report::new(EXPORT, Manner::default(), None);
        report.stop("interrupted");
        report.stop("something else");
        assert!(report.is_stopped() && report.conclude().unwrap_err().is::<Reported>());
        assert_eq!(report.summary_json()["stopped"], "interrupted");
    }

    #[test]
    fn failures_told_are_bounded() {
        let report = Report::new(IMPORT, Manner::default(), None);
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
