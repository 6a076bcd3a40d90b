//! Imports and exports on the terminal: failures as they happen, keys of a dry run, [`progress`], and the summary at the end.

pub(crate) mod progress;

use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use indicatif::ProgressBar;
use parking_lot::Mutex;
use serde_json::{Value, json};
use shoal_transfer::objects::Objects;
use shoal_transfer::report::{Manner, TransferEvents, TransferOutcome, TransferReport};
use shoal_transfer::text::{counted, show_bytes, show_count};

use crate::failure::{EXIT_LOSSY, Reported, ReportedCode};
use crate::output::{Output, damage, warn};
use crate::process::signals::stop_in_order;

/// The words for one direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Verb {
    name: &'static str,
    past: &'static str,
    /// The name of the destination.
    place: &'static str,
    /// Printed after the reason of an early stop.
    after_stop: &'static str,
    /// The items are objects, not files and folders.
    is_flat: bool,
}

const AGAIN: &str = "everything listed above was done; run it again to continue";

/// An import of a folder.
pub(crate) const IMPORT: Verb =
    Verb { name: "import", past: "imported", place: "the store", after_stop: AGAIN, is_flat: false };
/// An export into a folder.
pub(crate) const EXPORT: Verb =
    Verb { name: "export", past: "exported", place: "the folder", after_stop: AGAIN, is_flat: false };
/// An export into a tar.
pub(crate) const EXPORT_TAR: Verb = Verb { place: "the tar", after_stop: "no whole tar was made", ..EXPORT };
/// An import of a tar.
pub(crate) const IMPORT_TAR: Verb = Verb { after_stop: "everything listed above was done", ..IMPORT };
/// An import of strings.
pub(crate) const IMPORT_STRINGS: Verb = Verb { is_flat: true, ..IMPORT };

/// An import or export on the terminal.
pub(crate) struct Shown {
    pub(crate) report: Arc<TransferReport>,
    screen: Arc<Screen>,
}

/// The output of an import or export.
struct Screen {
    verb: Verb,
    manner: Manner,
    json: bool,
    on_error: bool,
    started: Instant,
    /// The keys of a dry run.
    listing: Mutex<Option<Output>>,
    bar: Option<ProgressBar>,
}

impl TransferEvents for Screen {
    fn failure(&self, name: &str, why: &str, is_last: bool) {
        let note = if is_last { " (more like this are only counted)" } else { "" };
        self.line(&format!("shoal: {}: {name}: {}{note}", self.verb.name, why.replace('\n', " ")));
    }

    fn planned(&self, key: &[u8]) -> bool {
        self.listing.lock().as_mut().is_none_or(|listing| listing.key_line(key).is_ok())
    }
}

impl Screen {
    /// A line on standard error, above the progress bar.
    fn line(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| warn(text)),
            None => warn(text),
        }
    }
}

impl Shown {
    /// With `json` it prints one JSON object at the end, and no progress; with `on_error` the summary goes to standard error, because
    /// standard output has other bytes.
    pub(crate) fn new(verb: Verb, (dry_run, lossy): (bool, bool), json: bool, on_error: bool) -> Self {
        let manner = Manner { dry_run, lossy, place: verb.place };
        let listing = Mutex::new((dry_run && !json).then(Output::new));
        let (started, bar) = (Instant::now(), progress::bar(json));
        let screen = Arc::new(Screen { verb, manner, json, on_error, started, listing, bar });
        Self { report: Arc::new(TransferReport::new(manner, screen.clone())), screen }
    }

    /// Returns true if there is a progress bar, which has a use for the total.
    pub(crate) fn has_bar(&self) -> bool {
        self.screen.bar.is_some()
    }

    /// Stops the transfer in order at Ctrl-C or SIGTERM, and the program at the second signal.
    pub(crate) fn stop_on_signal(&self) -> anyhow::Result<()> {
        let report = self.report.clone();
        stop_in_order(move || report.stop("interrupted"))
    }

    /// Runs `work` on a thread that may block, with progress, closes the store, and concludes. `at_end` runs before the store is closed.
    pub(crate) async fn run(
        &self,
        objects: Objects,
        work: impl FnOnce() + Send + 'static,
        at_end: impl AsyncFnOnce(&Objects),
    ) -> anyhow::Result<()> {
        let progress = progress::start(self);
        let worked = tokio::task::spawn_blocking(work).await;
        drop(progress);
        at_end(&objects).await;
        let closed = objects.close().await;
        let concluded = self.conclude();
        worked.with_context(|| format!("the {} broke off", self.screen.verb.name))?;
        closed?;
        concluded
    }

    /// Prints the summary.
    ///
    /// # Errors
    /// [`Reported`], if items failed or the transfer stopped early; [`ReportedCode`] after losses.
    pub(crate) fn conclude(&self) -> anyhow::Result<()> {
        let Screen { verb, manner, bar, .. } = &*self.screen;
        if let Some(bar) = bar {
            bar.finish_and_clear();
        }
        let outcome = self.report.outcome();
        let lines = if self.screen.json {
            vec![self.summary_json(&outcome).to_string()]
        } else {
            self.summary(&outcome)
        };
        let mut output = self.screen.listing.lock().take().unwrap_or_else(Output::new);
        match self.screen.on_error {
            true => lines.iter().for_each(|line| warn(line)),
            false => lines.iter().try_for_each(|line| output.line(line))?,
        }
        output.finish()?;
        let whole = damage::conclude(&outcome.damage, "are missing here");
        if let Some(stop) = &outcome.stopped {
            let advice = match (stop.is_refusal, manner.dry_run) {
                (true, _) => {
                    "--lossy leaves out such objects, or the parts of them that would be lost, and continues"
                }
                (false, true) => "nothing was changed",
                (false, false) => verb.after_stop,
            };
            warn(&format!("shoal: {}: stopped: {}; {advice}", verb.name, stop.why));
            return Err(Reported.into());
        }
        if outcome.counts.failed > 0 {
            return Err(Reported.into());
        }
        whole?;
        if outcome.counts.is_lossy() { Err(ReportedCode(EXIT_LOSSY).into()) } else { Ok(()) }
    }

    fn summary(&self, outcome: &TransferOutcome) -> Vec<String> {
        let Screen { verb, manner, started, .. } = &*self.screen;
        let (counts, seconds) = (outcome.counts, started.elapsed().as_secs_f64());
        let bytes = show_bytes(counts.bytes);
        let done = match verb.is_flat {
            true => format!("{}: {bytes}", counted(counts.files, "object")),
            false => format!(
                "{}, {}, {}: {bytes}",
                counted(counts.files, "file"),
                counted(counts.folders, "folder"),
                counted(counts.symlinks, "symlink"),
            ),
        };
        let mut lines = vec![match manner.dry_run {
            true => format!("would {} {done}", verb.name),
            false => format!(
                "{} {done} in {seconds:.1} s ({} files/s, {:.1} MB/s)",
                verb.past,
                show_count((counts.files as f64 / seconds) as u64),
                counts.bytes as f64 / 1e6 / seconds,
            ),
        }];
        let place = verb.place;
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

    fn summary_json(&self, outcome: &TransferOutcome) -> Value {
        let Screen { verb, manner, started, .. } = &*self.screen;
        let (counts, seconds) = (outcome.counts, started.elapsed().as_secs_f64());
        let failure = |(name, why): &(String, String)| json!({ "name": name, "reason": why });
        json!({
            "command": verb.name,
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
            "dry_run": manner.dry_run,
            "failed": counts.failed,
            "seconds": seconds,
            "files_per_s": counts.files as f64 / seconds,
            "mb_per_s": counts.bytes as f64 / 1e6 / seconds,
            "stopped": outcome.stopped.as_ref().map(|stop| &stop.why),
            "failures": outcome.failures.iter().map(failure).collect::<Vec<_>>(),
            "damaged": damage::json(&outcome.damage),
        })
    }
}
