//! `ramcloud-lessons`: the lessons of the seeds' authors on RAMCloud's request path, each in its old form and its new one,
//! here.
//!
//! The old forms are in this benchmark only; the live path has no switches for them. A figure is the median of slices, old and new in
//! turn, so that both meet the same machine. The seeds' own figures are printed beside ours: theirs are of 2014's processors and a
//! network without the kernel, so read the ratios. Nothing is judged: the ratio shows if a step has no effect here.

mod buffer;
mod handing;
mod lookup;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;

use crate::args::seconds;
use shoal_bench::machine;
use shoal_bench::plot::{Axis, BarChart};
use shoal_bench::report::{Metric, Report};
use shoal_bench::select;

const METRICS: &[Metric] = &[
    Metric { name: "ns_old", unit: "ns", head: "old ns" },
    Metric { name: "ns_new", unit: "ns", head: "new ns" },
    Metric { name: "ns_saved", unit: "ns", head: "saved ns" },
    Metric { name: "old_per_new", unit: "1", head: "old/new" },
    Metric { name: "seed_old", unit: "", head: "seed old" },
    Metric { name: "seed_new", unit: "", head: "seed new" },
];

/// Slices of each form.
const SLICES: usize = 41;

/// The cases to measure, and the way to.
#[derive(Args, Clone, Debug)]
pub(crate) struct LessonOptions {
    /// End within seconds.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Only this case, or with a final `*` all that start with NAME; repeatable.
    #[arg(long = "case", value_name = "NAME")]
    pub(crate) cases: Vec<String>,
    /// Print one JSON object a line.
    #[arg(long)]
    pub(crate) json: bool,
    /// Write a chart of both forms to this folder, as an SVG file.
    #[arg(long, value_name = "DIR")]
    pub(crate) plot: Option<PathBuf>,
    /// Seconds that each lesson is measured [default: 1, with --quick 0.1].
    #[arg(long = "seconds", value_name = "N", value_parser = seconds)]
    pub(crate) time: Option<Duration>,
}

impl LessonOptions {
    fn time(&self) -> Duration {
        self.time.unwrap_or(Duration::from_secs_f64(if self.quick { 0.1 } else { 1.0 }))
    }
}

/// One lesson.
struct Lesson {
    name: &'static str,
    /// Old and new, as words for the header.
    forms: &'static str,
    /// The figure of the source, with its unit; none if it has only a saving.
    seed: Option<(f64, f64)>,
    /// The claim of the source in words.
    says: &'static str,
    measure: fn(Duration) -> Result<Pair>,
}

/// Nanoseconds of an operation in both forms.
struct Pair {
    old: f64,
    new: f64,
}

const LESSONS: &[Lesson] = &[
    Lesson {
        name: "buffer-append-1",
        forms: "append 1 byte: three layers, six conditions | one test",
        seed: Some((8.8, 4.75)),
        says: "8.8 to 4.75 ns",
        measure: buffer::append,
    },
    Lesson {
        name: "buffer-life",
        forms: "create, copy in 6 bytes, drop: layers and an allocation | built-in storage",
        seed: Some((25.4, 13.2)),
        says: "25.4 to 13.2 ns",
        measure: buffer::life,
    },
    Lesson {
        name: "buffer-iterate-5",
        forms: "iterate 5 chunks: computed at every access | precomputed",
        seed: Some((51.0, 22.6)),
        says: "51.0 to 22.6 ns",
        measure: buffer::iterate,
    },
    Lesson {
        name: "object-contiguous",
        forms: "read 3 fields of a contiguous object: through the Buffer's ranges | as one slice",
        seed: None,
        says: "25 ns less a read",
        measure: buffer::contiguous,
    },
    Lesson {
        name: "completions",
        forms: "32 small messages: a receive for each | one receive for all (each message)",
        seed: Some((1e6 / 875.0, 1e6 / 948.0)),
        says: "875 to 948 kreads/s, so 1,143 to 1,055 ns a read",
        measure: handing::completions,
    },
    Lesson {
        name: "give-back",
        forms: "receive buffers given back: one by one | 32 at a time (each buffer)",
        seed: Some((1e6 / 812.0, 1e6 / 875.0)),
        says: "812 to 875 kreads/s, so 1,232 to 1,143 ns a read",
        measure: handing::give_back,
    },
    Lesson {
        name: "hand-over",
        forms: "work for the dispatch thread: by its lock | through a queue (what the worker waits)",
        seed: Some((14_400.0, 13_400.0)),
        says: "14.4 to 13.4 us a write",
        measure: handing::pass_on,
    },
    Lesson {
        name: "tablet-once",
        forms: "the tablet of a key: looked up twice and copied | once",
        seed: None,
        says: "40 ns less a read",
        measure: lookup::tablet,
    },
    Lesson {
        name: "prefetch",
        forms: "batch of 16 requests on 256 MiB: each looks where it points | all are loaded ahead (each request)",
        seed: Some((4_940.0, 4_750.0)),
        says: "4.94 to 4.75 us a random read",
        measure: lookup::prefetch,
    },
    Lesson {
        name: "address-string",
        forms: "the server's session: a string made for each look-up | looked up by what is there",
        seed: None,
        says: "80 ns less a call",
        measure: lookup::address,
    },
    Lesson {
        name: "session-cached",
        forms: "the server's session: looked up by address | in the tablet map's entry",
        seed: None,
        says: "60 ns less a call",
        measure: lookup::session,
    },
];

/// Measures and prints.
///
/// # Errors
/// A name that selects nothing; the system or the output failed.
pub(crate) fn run(options: &LessonOptions, out: &mut dyn Write) -> Result<()> {
    let names: Vec<&str> = LESSONS.iter().map(|lesson| lesson.name).collect();
    let wanted = select("case", &names, &options.cases)?;
    let mut report = Report::new(out, "lessons", METRICS, options.json);
    for (name, value) in [
        ("bench", "lessons: the request path's steps in their old form and their new one; ns an operation"),
        ("machine", &machine::describe()),
        ("load average", &machine::load()),
        ("version", crate::VERSION),
        ("seconds a lesson", &options.time().as_secs_f64().to_string()),
    ] {
        report.fact(name, value)?;
    }
    let wanted: Vec<&Lesson> = LESSONS.iter().filter(|lesson| wanted.contains(&lesson.name)).collect();
    for lesson in &wanted {
        report.fact(lesson.name, &format!("{}; the seed: {}", lesson.forms, lesson.says))?;
    }
    let mut pairs = Vec::new();
    for lesson in wanted {
        let Pair { old, new } = (lesson.measure)(options.time())?;
        pairs.push((lesson.name, old, new));
        let figures = [
            Some(old),
            Some(new),
            Some(old - new),
            Some(old / new),
            lesson.seed.map(|(old, _)| old),
            lesson.seed.map(|(_, new)| new),
        ];
        report.row(lesson.name, "old, new", &figures)?;
    }
    if let Some(folder) = &options.plot {
        report.fact("chart", &chart(&pairs, folder)?.display().to_string())?;
    }
    Ok(())
}

/// Draws the old and the new form of each lesson.
fn chart(pairs: &[(&str, f64, f64)], directory: &Path) -> Result<PathBuf> {
    let names: Vec<&str> = pairs.iter().map(|(name, ..)| *name).collect();
    let time = Axis::new("time of an operation", "ns").log();
    let mut chart = BarChart::new("RAMCloud's lessons: old form and new form", "", time, &names);
    chart.add("old", pairs.iter().map(|(_, old, _)| Some(*old)));
    chart.add("new", pairs.iter().map(|(_, _, new)| Some(*new)));
    chart.write(directory, "ramcloud-lessons")
}

/// Both forms in turn, in slices that take `time` together; each call does `operations` operations.
fn compare(time: Duration, operations: usize, mut old: impl FnMut(), mut new: impl FnMut()) -> Pair {
    let slice = time / (2 * SLICES as u32);
    let run = |form: &mut dyn FnMut()| {
        let (mut calls, began) = (0_u64, Instant::now());
        loop {
            // The clock is read seldom enough not to count.
            for _ in 0..16 {
                form();
            }
            calls += 16;
            let took = began.elapsed();
            if took >= slice {
                return took.as_nanos() as f64 / (calls * operations as u64) as f64;
            }
        }
    };
    let (mut olds, mut news) = (Vec::new(), Vec::new());
    for _ in 0..SLICES {
        olds.push(run(&mut old));
        news.push(run(&mut new));
    }
    Pair { old: median(olds), new: median(news) }
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::parsed;

    #[test]
    fn every_lesson_gives_figures() {
        let options = parsed(&["--json", "--seconds", "0"]);
        let mut out = Vec::new();
        run(&options, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        for lesson in LESSONS {
            let figure = format!("\"case\":\"{}\",\"metric\":\"ns_new\"", lesson.name);
            assert!(text.contains(&figure), "{}: {text}", lesson.name);
        }
    }
}
