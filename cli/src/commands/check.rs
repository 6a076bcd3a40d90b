//! `shoal check`: verifies a whole store that no server has open, and repairs it if asked.
//!
//! The walk itself is the engine's. This file opens the device, shows the progress, and reports the findings.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use indicatif::ProgressBar;
use serde_json::{Map, Value, json};
use shoal_engine::{CheckOptions, CheckProblem, CheckReport, DamagedRange, Losses};
use shoal_transfer::text::{counted, show_count, show_key};

use crate::arguments::size::Size;
use crate::failure::{Reported, Usage};
use crate::memory::check::CheckMemory;
use crate::output::progress::{self, Ticker};
use crate::output::{Output, set_bytes, warn};
use crate::store::file::{self, Access, Io};

const EXAMPLES: &str = "Examples:
  shoal check                              read and verify everything in ./shoal.data; nothing is written
  shoal check --data shoal.data --repair   also rebuild the free space from the trees
  shoal check --data shoal.data --acknowledge   repair, and accept the loss of the rest

Exit codes: 0 nothing is wrong (or nothing is left after --repair), 1 something is wrong, or there are losses that were not acknowledged
before this run, 2 wrong usage.";

/// The default data file, as in `shoal serve`.
const DEFAULT_DATA: &str = "./shoal.data";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The data file or device; it may be read-only without --repair. No server may have it open. A repair requires this option
    /// [default: ./shoal.data].
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// Rebuild the free space from the trees and lost objects from the log, and open a damaged log without the records
    /// that follow the damage.
    #[arg(long, requires = "data")]
    repair: bool,
    /// Repair, then accept the loss of the rest: keys in damaged ranges that were not written since no longer exist, and the
    /// ranges are no longer marked. Losses of earlier repairs are forgotten; those of this run are counted, and the exit code
    /// is 1.
    #[arg(long, requires = "data")]
    acknowledge: bool,
    /// Repair even if --memory has no room for all of the log after damage; its oldest part is lost then.
    #[arg(long)]
    in_part: bool,
    /// Write nothing. This is the default unless --repair or --acknowledge is given; the option makes it explicit.
    #[arg(long, conflicts_with_all = ["repair", "acknowledge"])]
    read_only: bool,
    /// Print one JSON object, and no progress.
    #[arg(long)]
    json: bool,
    /// Memory of the check, 64M or more: an eighth for the cache, and two eighths for records that a repair restores. The rest is for
    /// the log, and 12 bytes for each object of more than 16 KiB [default: the limit of the program's control group, or half of the
    /// machine's memory; then cache and records take at most 64M each].
    #[arg(long, value_name = "SIZE")]
    memory: Option<Size>,
    /// Memory for cached pages, at most half of --memory [default: the rest of --memory].
    #[arg(long, value_name = "SIZE")]
    cache: Option<Size>,
    /// How to do I/O on the device.
    #[arg(long, value_enum, default_value_t = Io::Auto)]
    io: Io,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let repairs = arguments.repair || arguments.acknowledge;
    if arguments.in_part && !repairs {
        return Err(Usage("--in-part is for --repair and --acknowledge".into()).into());
    }
    let memory = CheckMemory::of(arguments.memory, arguments.cache)?;
    let access = if repairs { Access::Write } else { Access::Read };
    let data = arguments.data.as_deref().unwrap_or(Path::new(DEFAULT_DATA));
    let device = file::open_existing(data, access, arguments.io)?;
    let what = || format!("cannot check {}", data.display());
    file::require_store(data, &device).await.with_context(what)?;
    let started = Instant::now();
    let sofar = Arc::new(Sofar::default());
    let shown = (!arguments.json).then(|| show(sofar.clone()));
    let bytes = |size: Size| usize::try_from(size.0).unwrap_or(usize::MAX);
    let options = |repair| {
        let sofar = sofar.clone();
        CheckOptions {
            repair,
            acknowledge: repair && arguments.acknowledge,
            in_part: arguments.in_part,
            cache_bytes: bytes(memory.cache),
            held_bytes: bytes(memory.held),
            progress: Some(Arc::new(move |objects, bytes| sofar.set(objects, bytes))),
            before_writing: Some(Arc::new(warn)),
        }
    };
    let found = shoal_engine::check(device.clone(), &options(repairs)).await.with_context(what)?;
    // A repair does not judge its own success: everything is checked once more.
    let checks_again = repairs && (found.problem_count > 0 || !found.remembered.is_none());
    let left = match checks_again {
        true => shoal_engine::check(device, &options(false)).await.with_context(what).map(Some),
        false => Ok(None),
    };
    if let Some((spinner, ticker)) = shown {
        drop(ticker);
        spinner.inspect(ProgressBar::finish_and_clear);
    }
    // If the second check fails, the work of the repair is still reported.
    let (left, failed) = match left {
        Ok(left) => (left, None),
        Err(error) => (None, Some(error)),
    };
    let outcome = Outcome { found, left, elapsed: started.elapsed() };
    let mut output = Output::new();
    if arguments.json {
        output.json(&outcome.json())?;
    } else {
        outcome.lines().iter().try_for_each(|line| output.line(line))?;
    }
    output.finish()?;
    match failed {
        Some(error) => Err(error),
        None if outcome.is_clean() => Ok(()),
        None => Err(Reported.into()),
    }
}

/// The damage that was found, and the rest of it after a repair.
struct Outcome {
    found: CheckReport,
    /// The check after a repair, if there was something to repair.
    left: Option<CheckReport>,
    elapsed: Duration,
}

impl Outcome {
    fn last(&self) -> &CheckReport {
        self.left.as_ref().unwrap_or(&self.found)
    }

    fn is_clean(&self) -> bool {
        self.last().is_clean()
    }

    fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = problem_lines("problem", &self.found).collect();
        lines.extend(named("note", &self.found.notes));
        lines.extend(named("restored", &self.found.restored));
        for range in &self.found.lost_records {
            lines.push(format!("lost: records {} to {} of the log", range.start, range.end - 1));
        }
        for (word, names) in self.losses_by_name() {
            lines.extend(named(word, names));
        }
        if let Some(left) = &self.left {
            lines.extend(problem_lines("left", left));
        }
        let report = self.last();
        lines.extend(named("may be among the lost", &report.may_be_lost));
        if report.may_be_lost_more {
            lines.push("may be among the lost: more, which are not listed".into());
        }
        lines.push(format!(
            "checked {} ({}) in {}, {} of the log; {} in use, {} free; {:.1} s",
            counted(report.objects, "object"),
            Size(report.value_bytes),
            counted(report.pages, "page"),
            counted(report.log_records, "record"),
            counted(report.owned_blocks, "block"),
            show_count(report.free_blocks),
            self.elapsed.as_secs_f64(),
        ));
        if !report.remembered.is_none() {
            lines.push(format!(
                "repaired with losses: {}; acknowledge this with --acknowledge",
                report.remembered
            ));
        }
        lines.push(match (self.found.problem_count, &self.left) {
            (0, _) if !report.remembered.is_none() => "no other problems".into(),
            (0, _) => "no problems".into(),
            (count, None) => format!("{} found", problems(count)),
            (count, Some(left)) => {
                format!("{} found, {} left after the repair", problems(count), show_count(left.problem_count))
            }
        });
        lines
    }

    /// Names of the objects that the repair lost, by the kind of loss.
    fn losses_by_name(&self) -> [(&'static str, &Vec<String>); 3] {
        let CheckReport { lost, reverted, resurrected, .. } = &self.found;
        [("lost", lost), ("reverted", reverted), ("resurrected", resurrected)]
    }

    fn json(&self) -> Value {
        let report = self.last();
        let losses = |losses: &Losses| json!({ "lost": losses.lost, "reverted": losses.reverted, "resurrected": losses.resurrected });
        let ranges = self.found.lost_records.iter();
        let mut object = json!({
            "clean": self.is_clean(),
            "problems_found": self.found.problem_count,
            "problems": self.found.problems.iter().map(problem_json).collect::<Vec<_>>(),
            "repaired": self.left.is_some(),
            "problems_left": report.problem_count,
            "left": self.left.iter().flat_map(|left| &left.problems).map(problem_json).collect::<Vec<_>>(),
            "notes": self.found.notes,
            "restored": self.found.restored,
            "restored_count": self.found.restored_count,
            "damaged_ranges": report.damaged_ranges.iter().map(range_json).collect::<Vec<_>>(),
            "acknowledged": self.found.given_up.iter().map(range_json).collect::<Vec<_>>(),
            "may_be_lost": report.may_be_lost,
            "may_be_lost_more": report.may_be_lost_more,
            "objects": report.objects,
            "own_objects": report.own_objects,
            "value_bytes": report.value_bytes,
            "pages": report.pages,
            "log_records": report.log_records,
            "owned_blocks": report.owned_blocks,
            "free_blocks": report.free_blocks,
            "seconds": self.elapsed.as_secs_f64(),
            "losses": losses(&self.found.losses),
            "lost_records": ranges.map(|range| json!([range.start, range.end - 1])).collect::<Vec<_>>(),
            "losses_remembered": losses(&report.remembered),
        });
        for (word, names) in self.losses_by_name() {
            object[word] = json!(names);
        }
        object
    }
}

/// A line for each of `names`.
fn named<'a>(
    word: &'static str,
    names: impl IntoIterator<Item = &'a String>,
) -> impl Iterator<Item = String> {
    names.into_iter().map(move |name| format!("{word}: {}", show_key(name.as_bytes())))
}

fn problems(count: u64) -> String {
    format!("{} problem{}", show_count(count), if count == 1 { "" } else { "s" })
}

/// One line for each problem that the report lists, and one for the problems that it only counts.
fn problem_lines(word: &str, report: &CheckReport) -> impl Iterator<Item = String> {
    let listed = report.problems.iter().map(move |problem| {
        let place = place(problem).map_or(String::new(), |block| format!(" at block {block}"));
        format!("{word}{place}: {}", show_key(problem.what.as_bytes()))
    });
    let more = report.problem_count.saturating_sub(report.problems.len() as u64);
    let rest = (more > 0).then(|| format!("{word}: {} more like these are only counted", show_count(more)));
    listed.chain(rest)
}

fn problem_json(problem: &CheckProblem) -> Value {
    json!({ "what": problem.what, "block": place(problem) })
}

/// A range of keys of one tablet, with the buckets of its ends.
fn range_json(range: &DamagedRange) -> Value {
    let mut object = Map::new();
    object.insert("tablet".into(), range.tablet.0.into());
    let mut end = |name: &str, encoded: Option<&[u8]>| match encoded {
        Some(encoded) => {
            let mut parts = encoded.splitn(2, |&byte| byte == 0);
            set_bytes(&mut object, &format!("{name}_bucket"), parts.next().unwrap_or_default());
            set_bytes(&mut object, name, parts.next().unwrap_or_default());
        }
        None => _ = object.insert(name.into(), Value::Null),
    };
    end("from", Some(&range.from));
    end("to", range.to.as_deref());
    object.insert("block".into(), range.block.into());
    object.insert("why".into(), range.why.clone().into());
    object.into()
}

/// The place of a problem: the engine uses block 0 for a problem without a place.
fn place(problem: &CheckProblem) -> Option<u64> {
    (problem.block > 0).then_some(problem.block)
}

/// The progress of the walk. Statistics: nothing else depends on their order.
#[derive(Default)]
struct Sofar {
    objects: AtomicU64,
    bytes: AtomicU64,
}

impl Sofar {
    fn set(&self, objects: u64, bytes: u64) {
        self.objects.store(objects, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    fn message(&self, elapsed: Duration) -> String {
        let (objects, bytes) = (self.objects.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed));
        let seconds = elapsed.as_secs_f64().max(1e-3);
        format!(
            "{}, {}, {} objects/s, {:.1} MB/s",
            counted(objects, "object"),
            Size(bytes),
            show_count((objects as f64 / seconds) as u64),
            bytes as f64 / seconds / 1e6,
        )
    }
}

/// Shows how far it is until both are dropped.
fn show(sofar: Arc<Sofar>) -> (Option<ProgressBar>, Ticker) {
    let (spinner, started) = (progress::drawn("{spinner} {wide_msg}"), Instant::now());
    let drawn = spinner.clone();
    let ticker = Ticker::start(drawn.is_some(), move || {
        let message = sofar.message(started.elapsed());
        match &drawn {
            Some(spinner) => {
                spinner.set_message(message);
                spinner.tick();
            }
            None => warn(&format!("check: {message}")),
        }
    });
    (spinner, ticker)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(problems: u64, listed: usize) -> CheckReport {
        let problem = CheckProblem { what: "object default/a\nb: torn".into(), block: 7 };
        CheckReport { problems: vec![problem; listed], problem_count: problems, ..CheckReport::default() }
    }

    #[test]
    fn problems_are_listed_with_place_up_to_limit() {
        let lines: Vec<String> = problem_lines("problem", &report(1003, 2)).collect();
        assert_eq!(lines[0], "problem at block 7: object default/a\\nb: torn");
        assert_eq!(lines[2], "problem: 1,001 more like these are only counted");
        assert_eq!(lines.len(), 3);
    }

    #[test]
    fn problems_left_after_a_repair_decide() {
        let elapsed = Duration::from_secs(1);
        for (found, left, clean, words) in [
            (0, None, true, "no problems"),
            (1, None, false, "1 problem found"),
            (2, Some(0), true, "2 problems found, 0 left after the repair"),
            (2, Some(1), false, "2 problems found, 1 left after the repair"),
        ] {
            let outcome =
                Outcome { found: report(found, 1), left: left.map(|left| report(left, 0)), elapsed };
            assert_eq!(outcome.is_clean(), clean);
            assert_eq!(outcome.lines().last().unwrap(), words);
            assert_eq!(outcome.json()["clean"], clean);
            assert_eq!(outcome.json()["problems_left"], left.unwrap_or(found));
        }
    }

    #[test]
    fn progress_reports_rates() {
        let sofar = Sofar::default();
        sofar.set(5000, 3 << 20);
        assert_eq!(
            sofar.message(Duration::from_secs(2)),
            "5,000 objects, 3.0 MiB, 2,500 objects/s, 1.6 MB/s"
        );
    }
}
