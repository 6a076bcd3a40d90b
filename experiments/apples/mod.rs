//! The seed's probability model of a pooled allocator, answered by simulation beside the exact formulas.
//!
//! N buckets hold M apples each. Every day a monkey chooses a bucket at random and steals an apple from it. On the day on which
//! the chosen bucket is empty: (1) which day is it? (2) How many apples are left? (3) What are they worth, if an apple of bucket
//! n costs n? (4) And if the monkey does not choose evenly? Buckets are the pools of an allocator that keeps free pieces by exact
//! size, apples their pieces, and the apples that are left are space that the allocator holds and cannot use.
//! This study is the source of the figures about it in `docs/space.md`.
//!
//! Bottom-up: `random` and `poisson` (numbers), [`Choice`] and [`Supply`] (the question), `law` (the formulas), `simulate`
//! (the monkey), `walk` (the same with returns), `charts`.

mod charts;
mod choice;
mod law;
mod poisson;
mod progress;
mod random;
mod simulate;
mod walk;

use std::io::Write;
use std::path::PathBuf;

use anyhow::{bail, ensure};
use clap::{Args, ValueEnum, value_parser};

use choice::{Choice, Supply};

use choice::Orchard;
use law::{Figures, Law};
use random::Random;
use shoal_bench::report::{Metric, Report};
use simulate::{Round, Stepping, figures, on_all_cores, play};

/// Most buckets.
pub(crate) const BUCKETS_MAX: u32 = 1 << 16;
/// Most apples in a bucket.
pub(crate) const APPLES_MAX: u32 = 100_000_000;
/// Most rounds: their results are kept.
pub(crate) const ROUNDS_MAX: u64 = 1_000_000;
/// By default, rounds are played day by day if they are not expected to take more days in all: some seconds.
const DAYS_MAX: f64 = 2e9;
/// Most rounds of a quick run.
const ROUNDS_QUICK: u64 = 50;

const EXAMPLES: &str = "\
Examples:
  experiments apples                              the four questions, for seven ways to choose
  experiments apples --buckets 1024 --apples 100000 --choice uniform --choice zipf-0.5
  experiments apples --matched                    as many apples as a bucket's demand
  experiments apples --returns                    what is freed comes back: when a pooled allocator fails
  experiments apples --plot charts                with charts in the folder charts";

/// How the rounds are played.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Method {
    /// Day by day if that takes seconds, else in leaps.
    Auto,
    /// Day by day, as in the question.
    Days,
    /// From the moments at which the buckets would be found empty: equally exact, and independent of the number of apples.
    Leaps,
}

/// The cases to simulate.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ApplesOptions {
    /// Only 50 rounds.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Buckets: sizes of an allocator.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = value_parser!(u32).range(2..=i64::from(BUCKETS_MAX)))]
    pub(crate) buckets: u32,
    /// Apples in a bucket, on average: pieces of a size.
    #[arg(long, value_name = "M", default_value_t = 1000, value_parser = value_parser!(u32).range(1..=i64::from(APPLES_MAX)))]
    pub(crate) apples: u32,
    /// The monkey's choice: uniform, normal-K (standard deviation N/K), linear, halves-P (P per cent for the lower
    /// half), zipf-S, log-normal (sizes of small files); repeatable [default: seven of them].
    #[arg(long = "choice", value_name = "HOW")]
    pub(crate) choices: Vec<Choice>,
    /// Fill each bucket in proportion to its probability, with the same number of apples in all.
    #[arg(long)]
    pub(crate) matched: bool,
    /// Rounds for each choice.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = value_parser!(u64).range(1..=ROUNDS_MAX))]
    pub(crate) rounds: u64,
    /// How rounds are played.
    #[arg(long = "way", value_name = "HOW", value_enum, default_value_t = Method::Auto)]
    pub(crate) method: Method,
    /// Freed pieces come back: when an allocator with pools fails, beside the random-walk laws.
    #[arg(long, conflicts_with_all = ["apples", "choices", "matched", "method"])]
    pub(crate) returns: bool,
    /// The same seed yields the same figures.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Print one JSON object a line.
    #[arg(long)]
    pub(crate) json: bool,
    /// Write charts as SVG files into this folder.
    #[arg(long, value_name = "DIR")]
    pub(crate) plot: Option<PathBuf>,
}

impl ApplesOptions {
    fn supply(&self) -> Supply {
        if self.matched { Supply::Matched } else { Supply::Equal }
    }

    fn rounds(&self) -> u64 {
        if self.quick { self.rounds.min(ROUNDS_QUICK) } else { self.rounds }
    }
}

/// Receives the name of the work, the amount done, and the total; from several threads.
type Progress<'a> = &'a (dyn Fn(&str, u64, u64) + Sync);

/// The answers for one choice.
struct Answer {
    choice: Choice,
    way: Stepping,
    orchard: Orchard,
    law: Law,
    rounds: Vec<Round>,
}

/// Columns of a question's table whose quantity is in `$unit`.
macro_rules! columns {
    ($unit:literal) => {
        &[
            Metric { name: "simulated_mean", unit: $unit, head: "mean" },
            Metric { name: "simulated_mean_error", unit: $unit, head: "+- error" },
            Metric { name: "law_mean", unit: $unit, head: "law" },
            Metric { name: "simulated_deviation", unit: $unit, head: "sd" },
            Metric { name: "law_deviation", unit: $unit, head: "law" },
            Metric { name: "simulated_p5", unit: $unit, head: "5 %" },
            Metric { name: "law_p5", unit: $unit, head: "law" },
            Metric { name: "simulated_p50", unit: $unit, head: "50 %" },
            Metric { name: "law_p50", unit: $unit, head: "law" },
            Metric { name: "simulated_p95", unit: $unit, head: "95 %" },
            Metric { name: "law_p95", unit: $unit, head: "law" },
        ]
    };
}
const DAYS: &[Metric] = columns!("days");
const PERCENT: &[Metric] = columns!("%");
const RETURNS: &[Metric] = &[
    Metric { name: "simulated_mean", unit: "", head: "mean" },
    Metric { name: "simulated_mean_error", unit: "", head: "+- error" },
    Metric { name: "law_mean", unit: "", head: "law" },
    Metric { name: "ratio", unit: "", head: "ratio" },
];

/// Answers the questions and prints them, with charts if asked for.
///
/// # Errors
/// A number is out of its range, the output fails, or a chart cannot be written.
pub(crate) fn run(options: &ApplesOptions, out: &mut dyn Write) -> anyhow::Result<()> {
    let lines = progress::Lines::new();
    run_heard(options, out, &|what, done, count| lines.show(what, done, count))
}

fn run_heard(options: &ApplesOptions, out: &mut dyn Write, progress: Progress<'_>) -> anyhow::Result<()> {
    let in_range = |what: &str, value: u64, least: u64, most: u64| {
        ensure!((least..=most).contains(&value), "{what} can be {least} to {most}, not {value}");
        Ok(())
    };
    in_range("buckets", options.buckets.into(), 2, BUCKETS_MAX.into())?;
    in_range("apples", options.apples.into(), 1, APPLES_MAX.into())?;
    in_range("rounds", options.rounds(), 1, ROUNDS_MAX)?;
    if options.returns {
        return run_returns(options, out, progress);
    }
    let choices = if options.choices.is_empty() { &Choice::ALL[..] } else { &options.choices };
    let answers =
        choices.iter().map(|&choice| answer(options, choice, progress)).collect::<Result<Vec<_>, _>>()?;
    print(options, &answers, out)?;
    if let (Some(directory), Some(first)) = (&options.plot, answers.first()) {
        let mut paths = charts::distributions(first, options.supply(), directory)?;
        paths.extend(charts::by_depth(options, choices, directory, progress)?);
        note_charts(options, &paths, out)?;
    }
    Ok(())
}

fn answer(options: &ApplesOptions, choice: Choice, progress: Progress<'_>) -> anyhow::Result<Answer> {
    let orchard = Orchard::new(options.buckets, options.apples, choice, options.supply());
    if orchard.apples.iter().any(|&apples| apples > APPLES_MAX) {
        bail!("matched supplies of {choice} give a bucket more than {APPLES_MAX} apples");
    }
    progress(&format!("{choice}: formulas"), 0, options.rounds());
    let law = Law::new(&orchard);
    let days = law.day().mean * options.rounds() as f64;
    let way = match options.method {
        Method::Days => Stepping::Days,
        Method::Auto if days <= DAYS_MAX => Stepping::Days,
        Method::Auto | Method::Leaps => Stepping::Leaps,
    };
    let what = choice.to_string();
    let rounds =
        play(&orchard, way, options.rounds(), options.seed, &|done| progress(&what, done, options.rounds()));
    Ok(Answer { choice, way, orchard, law, rounds })
}

fn print(options: &ApplesOptions, answers: &[Answer], out: &mut dyn Write) -> anyhow::Result<()> {
    print_facts(options, answers, out)?;
    let tables: [(&str, &str, &[Metric], Quantity); 3] = [
        ("1. On which day does the monkey find its bucket empty?", "day", DAYS, Quantity::Day),
        ("2. How many apples are left, in per cent of all?", "apples", PERCENT, Quantity::Apples),
        ("3. What are they worth, in per cent of the value of all?", "value", PERCENT, Quantity::Value),
    ];
    for (question, variant, metrics, quantity) in tables {
        if !options.json {
            write!(out, "\n{question}")?;
        }
        let mut report = Report::new(out, "apples", metrics, options.json);
        for answer in answers {
            let (drawn, law) = answer.figures(quantity);
            report.row(&answer.choice.to_string(), variant, &row(drawn, law, answer.rounds.len()))?;
        }
    }
    Ok(())
}

fn print_facts(options: &ApplesOptions, answers: &[Answer], out: &mut dyn Write) -> anyhow::Result<()> {
    let mut report = Report::new(out, "apples", DAYS, options.json);
    let supply = match options.supply() {
        Supply::Equal => format!("{} in each", options.apples),
        Supply::Matched => format!("{} in each on average, as often as it is chosen", options.apples),
    };
    report.fact("shoal", crate::VERSION)?;
    report.fact("buckets", &options.buckets.to_string())?;
    report.fact("apples", &supply)?;
    let ways: Vec<&str> = [(Stepping::Days, "day by day"), (Stepping::Leaps, "in leaps")]
        .into_iter()
        .filter(|(way, _)| answers.iter().any(|answer| answer.way == *way))
        .map(|(_, name)| name)
        .collect();
    report.fact("rounds", &format!("{} for each choice, {}", options.rounds(), ways.join(" and ")))?;
    report.fact("seed", &options.seed.to_string())?;
    if options.supply() == Supply::Equal && answers.iter().any(|answer| answer.choice == Choice::Uniform) {
        let found = law::asymptotic(options.buckets, options.apples);
        let (deep, shallow) = (100.0 * found.deep, 100.0 * found.shallow);
        let text = format!("{deep:.3} % as of deep buckets, {shallow:.3} % as of shallow ones");
        report.fact("uniform, apples left by the formulas without an integral", &text)?;
    }
    Ok(())
}

#[derive(Clone, Copy)]
enum Quantity {
    Day,
    Apples,
    Value,
}

impl Answer {
    /// The drawn figures, and those of the formulas.
    fn figures(&self, quantity: Quantity) -> (Figures, Figures) {
        let (apples, value) = (100.0 / self.orchard.total() as f64, 100.0 / self.orchard.value());
        let drawn = |get: fn(&Round) -> f64| figures(self.rounds.iter().map(get));
        match quantity {
            Quantity::Day => (drawn(|round| round.day), self.law.day()),
            Quantity::Apples => {
                (drawn(|round| round.apples).scaled(apples), self.law.apples().figures().scaled(apples))
            }
            Quantity::Value => {
                (drawn(|round| round.value).scaled(value), self.law.value().figures().scaled(value))
            }
        }
    }
}

fn row(drawn: Figures, law: Figures, rounds: usize) -> Vec<Option<f64>> {
    let error = drawn.deviation / (rounds as f64).sqrt();
    let mut row = vec![drawn.mean, error, law.mean, drawn.deviation, law.deviation];
    row.extend(drawn.quantiles.into_iter().zip(law.quantiles).flat_map(|(drawn, law)| [drawn, law]));
    row.into_iter().map(Some).collect()
}

/// One line of the table of the results with returns.
struct Walked {
    case: String,
    variant: &'static str,
    drawn: Figures,
    rounds: u64,
    law: f64,
}

/// Depths of the pools that are shown.
const WALK_DEPTHS: [u32; 4] = [10, 30, 100, 200];
/// Devices that are shown: a name, blocks of 4 KiB, free shares.
const WALK_DEVICES: [(&str, u64, &[f64]); 3] =
    [("512g", 1 << 27, &[0.1, 0.05, 0.02]), ("2t", 1 << 29, &[0.05, 0.02]), ("16t", 1 << 32, &[0.02])];
/// Turnovers after which a device is taken to live on.
const WALK_TURNOVERS_MAX: f64 = 30.0;
/// More rounds than this take minutes.
const WALK_ROUNDS_MAX: u64 = 40;
/// Rounds of a device: its population is large, so they hardly differ.
const WALK_DEVICE_ROUNDS: u64 = 2;

fn run_returns(options: &ApplesOptions, out: &mut dyn Write, progress: Progress<'_>) -> anyhow::Result<()> {
    let rounds = options.rounds().min(WALK_ROUNDS_MAX);
    {
        let mut report = Report::new(out, "apples-returns", RETURNS, options.json);
        report.fact("shoal", crate::VERSION)?;
        report.fact("seed", &options.seed.to_string())?;
        report.fact("pools", &format!("days until an empty pool is met, {rounds} rounds"))?;
        report.fact(
            "device",
            &format!("turnovers until the pooled allocator fails, {WALK_DEVICE_ROUNDS} rounds"),
        )?;
    }
    let mut walked = Vec::new();
    for depth in WALK_DEPTHS {
        let case = format!("pools-{}x{depth}", options.buckets);
        let play =
            |round| walk::pools_until_empty(options.buckets, depth, &mut Random::new(options.seed, round));
        let days = on_all_cores(rounds, 1, &play, &|done| progress(&case, done, rounds));
        let (drawn, law) = (figures(days.into_iter()), walk::pools_mean(options.buckets, depth));
        walked.push(Walked { case, variant: "days", drawn, rounds, law });
    }
    for (name, blocks, frees) in WALK_DEVICES {
        for &free in frees {
            let case = format!("device-{name}-{:.0}", 100.0 * (1.0 - free));
            let rounds = WALK_DEVICE_ROUNDS;
            let play = |round| {
                let random = &mut Random::new(options.seed, round);
                walk::turnovers_until_full(blocks, free, options.buckets, WALK_TURNOVERS_MAX, random)
            };
            let turnovers = on_all_cores(rounds, 1, &play, &|done| progress(&case, done, rounds));
            let law = walk::turnovers_law(blocks as f64, free, options.buckets);
            walked.push(Walked {
                case,
                variant: "turnovers",
                drawn: figures(turnovers.into_iter()),
                rounds,
                law,
            });
        }
    }
    let mut report = Report::new(out, "apples-returns", RETURNS, options.json);
    for Walked { case, variant, drawn, rounds, law } in &walked {
        let error = drawn.deviation / (*rounds as f64).sqrt();
        report.row(case, variant, &[Some(drawn.mean), Some(error), Some(*law), Some(drawn.mean / law)])?;
    }
    if let Some(directory) = &options.plot {
        let paths = charts::returns(options.buckets, &walked, directory)?;
        note_charts(options, &paths, out)?;
    }
    Ok(())
}

fn note_charts(options: &ApplesOptions, paths: &[PathBuf], out: &mut dyn Write) -> anyhow::Result<()> {
    if !options.json {
        writeln!(out)?;
    }
    let mut report = Report::new(out, "apples", DAYS, options.json);
    for path in paths {
        report.fact("chart", &path.display().to_string())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::parsed;

    fn options() -> ApplesOptions {
        parsed(&["--buckets", "16", "--apples", "20", "--rounds", "50"])
    }

    fn printed(options: &ApplesOptions) -> String {
        let mut out = Vec::new();
        run_heard(options, &mut out, &|_, _, _| {}).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn every_question_is_answered_for_every_choice() {
        let text = printed(&options());
        for choice in Choice::ALL {
            let begin = format!("{choice} ");
            assert_eq!(text.lines().filter(|line| line.starts_with(&begin)).count(), 3, "{choice}: {text}");
        }
        for question in ["1. On which day", "2. How many", "3. What"] {
            assert!(text.contains(question), "{text}");
        }
        assert_eq!(text, printed(&options()), "the same seed gives the same figures");
    }

    #[test]
    fn json_lines_name_case_variant_metric_and_unit() {
        let text = printed(&ApplesOptions { json: true, choices: vec![Choice::Linear], ..options() });
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let find = |variant: &str, metric: &str| {
            let line =
                lines.iter().find(|line| line["variant"] == variant && line["metric"] == metric).unwrap();
            assert_eq!((line["bench"].as_str(), line["case"].as_str()), (Some("apples"), Some("linear")));
            (line["value"].as_f64().unwrap(), line["unit"].as_str().unwrap().to_owned())
        };
        let (day, unit) = find("day", "law_mean");
        assert_eq!(unit, "days");
        let (apples, unit) = find("apples", "law_mean");
        assert_eq!(unit, "%");
        assert!((day - (320.0 * (1.0 - apples / 100.0) + 1.0)).abs() < 1e-6, "{day} {apples}");
        assert!(find("value", "simulated_p50").0 > 0.0);
    }

    #[test]
    fn both_ways_can_be_asked_for() {
        let choices = vec![Choice::Uniform];
        let text = |method| printed(&ApplesOptions { method, choices: choices.clone(), ..options() });
        assert!(text(Method::Auto).contains("day by day") && text(Method::Days).contains("day by day"));
        assert!(text(Method::Leaps).contains("in leaps"));
    }

    #[test]
    fn charts_are_written() {
        let folder = tempfile::tempdir().unwrap();
        let choices = vec![Choice::Uniform, Choice::Halves(60.0)];
        let text = printed(&ApplesOptions { plot: Some(folder.path().into()), choices, ..options() });
        for name in ["apples-day", "apples-left", "apples-value", "apples-by-depth"] {
            let path = folder.path().join(format!("{name}.svg"));
            assert!(text.contains(&path.display().to_string()), "{text}");
            assert!(std::fs::read_to_string(path).unwrap().contains("</svg>"));
        }
    }

    #[test]
    fn wrong_numbers_are_refused() {
        let wrong = [
            ApplesOptions { buckets: 1, ..options() },
            ApplesOptions { apples: 0, ..options() },
            ApplesOptions { rounds: ROUNDS_MAX + 1, ..options() },
            ApplesOptions { buckets: BUCKETS_MAX, apples: APPLES_MAX, matched: true, ..options() },
        ];
        for options in wrong {
            assert!(run_heard(&options, &mut Vec::new(), &|_, _, _| {}).is_err(), "{options:?}");
        }
    }
}
