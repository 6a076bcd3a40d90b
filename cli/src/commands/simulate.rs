//! `shoal simulate`: models of what the store does, played by chance beside their formulas. The models are in the crate
//! `shoal-bench`.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::Mutex;
use shoal_bench::apples::{APPLES_MAX, ApplesOptions, BUCKETS_MAX, Choice, Method, ROUNDS_MAX, Supply};

use crate::failure::output_error;
use crate::logging;
use crate::output::{show_count, warn};

const EXAMPLES: &str = "\
Examples:
  shoal simulate apples                              the four questions, for seven ways to choose
  shoal simulate apples --buckets 1024 --apples 100000 --choice uniform --choice zipf-0.5
  shoal simulate apples --matched                    as many apples as a bucket's demand
  shoal simulate apples --returns                    what is freed comes back: when a pooled allocator fails
  shoal simulate apples --plot charts                with charts in the folder charts

What the figures mean for an allocator is in docs/space.md.";

/// Between two lines of progress where there is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    model: Model,
}

#[derive(Subcommand)]
enum Model {
    /// Buckets of apples, and a monkey that steals one a day: the pools of an allocator.
    Apples(ApplesArguments),
}

#[derive(Args)]
#[command(after_help = EXAMPLES)]
struct ApplesArguments {
    /// Buckets: sizes of an allocator.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(2..=i64::from(BUCKETS_MAX)))]
    buckets: u32,
    /// Apples in a bucket, on average: pieces of a size.
    #[arg(long, value_name = "M", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=i64::from(APPLES_MAX)))]
    apples: u32,
    /// How the monkey chooses: uniform, normal-K (standard deviation N/K), linear, halves-P (P per cent for the lower
    /// half), zipf-S, log-normal (sizes of small files); may be given again [default: seven of them].
    #[arg(long = "choice", value_name = "HOW")]
    choices: Vec<Choice>,
    /// Give each bucket as many apples as it is chosen for, with the same number in all.
    #[arg(long)]
    matched: bool,
    /// Rounds for each choice.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=ROUNDS_MAX))]
    rounds: u64,
    /// How rounds are played.
    #[arg(long, value_name = "HOW", value_enum, default_value_t = Way::Auto)]
    way: Way,
    /// What is freed comes back: when an allocator with pools fails, beside the random-walk laws.
    #[arg(long, conflicts_with_all = ["apples", "choices", "matched", "way"])]
    returns: bool,
    /// The same seed gives the same figures.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
    /// Write charts as SVG files into this folder.
    #[arg(long, value_name = "DIR")]
    plot: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Way {
    /// Day by day if that takes seconds, else in leaps.
    Auto,
    /// Day by day, as the question says.
    Days,
    /// From the moments at which the buckets would be found empty: as exact, whatever the number of apples.
    Leaps,
}

/// Runs on the program's first thread, outside of any runtime: it computes on all cores.
pub(crate) fn run(arguments: Arguments, log: Option<&str>) -> anyhow::Result<()> {
    logging::start(log.unwrap_or("warn"))?;
    let Model::Apples(arguments) = arguments.model;
    let method = match arguments.way {
        Way::Auto => Method::Auto,
        Way::Days => Method::Days,
        Way::Leaps => Method::Leaps,
    };
    let options = ApplesOptions {
        version: env!("CARGO_PKG_VERSION").into(),
        buckets: arguments.buckets,
        apples: arguments.apples,
        choices: arguments.choices,
        supply: if arguments.matched { Supply::Matched } else { Supply::Equal },
        rounds: arguments.rounds,
        method,
        returns: arguments.returns,
        seed: arguments.seed,
        json: arguments.json,
        plot: arguments.plot,
    };
    let progress = Progress::new();
    // What is printed waits for the bar to go, so that the two do not mix.
    let mut text = Vec::new();
    let result =
        shoal_bench::apples::run(&options, &mut text, &|what, done, count| progress.show(what, done, count));
    progress.end();
    result?;
    let mut out = io::stdout().lock();
    out.write_all(&text).and_then(|()| out.flush()).map_err(output_error)
}

/// A bar on a terminal, a line every few seconds elsewhere, both on standard error.
struct Progress {
    bar: Option<ProgressBar>,
    last_line: Mutex<Instant>,
}

impl Progress {
    fn new() -> Self {
        let bar = io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::no_length();
            let style = ProgressStyle::with_template("{spinner} [{bar:20}] {wide_msg}")
                .unwrap_or_else(|_| ProgressStyle::default_bar());
            bar.set_style(style.progress_chars("=> "));
            bar
        });
        Self { bar, last_line: Mutex::new(Instant::now()) }
    }

    fn show(&self, what: &str, done: u64, count: u64) {
        let text = || format!("{what}: {} of {} rounds", show_count(done), show_count(count));
        if let Some(bar) = &self.bar {
            bar.set_length(count);
            bar.set_position(done);
            bar.set_message(text());
            bar.tick();
            return;
        }
        // A thread that finds another one here has nothing to say that this one does not.
        let Some(mut last) = self.last_line.try_lock() else { return };
        if last.elapsed() >= LINE_INTERVAL {
            *last = Instant::now();
            warn(&text());
        }
    }

    fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
