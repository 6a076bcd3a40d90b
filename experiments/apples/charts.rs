//! The charts of the answers.

use std::path::{Path, PathBuf};

use shoal_bench::plot::{Axis, LineChart, Mark};

use super::choice::{Choice, Orchard, Supply};
use super::law::{Law, expected_maximum};
use super::simulate::{Round, Stepping, figures, on_all_cores, play};
use super::walk::{pools_mean, turnovers_law};
use super::{Answer, ApplesOptions, Progress, WALK_DEVICES, Walked};

/// Bins of a distribution.
const BINS: usize = 40;
/// Apples in a bucket that the chart by depth shows.
const DEPTHS: [u32; 7] = [1, 10, 100, 1000, 10_000, 100_000, 1_000_000];
/// Rounds of each of its points.
const DEPTH_ROUNDS: u64 = 60;

/// The distributions of day, apples and value of one answer: drawn, beside the law.
pub(super) fn distributions(
    answer: &Answer,
    supply: Supply,
    directory: &Path,
) -> anyhow::Result<Vec<PathBuf>> {
    let (total, worth) = (answer.orchard.total() as f64, answer.orchard.value());
    let (apples, value) = (answer.law.apples(), answer.law.value());
    let buckets = answer.orchard.apples.len();
    let depth = answer.orchard.total() / buckets as u64;
    let title = |what: &str| format!("{what} ({}, {buckets} buckets of {depth})", answer.choice);
    let drawn = |get: &dyn Fn(&Round) -> f64| answer.rounds.iter().map(get).collect::<Vec<f64>>();
    let days = density(
        LineChart::new(&title("The day on which an empty bucket is met"), Axis::new("day", ""), per_bin()),
        &drawn(&|round| round.day),
        // At most this day: at least this many left.
        &|day| 1.0 - apples.at_most(total - day),
    );
    let left = density(
        LineChart::new(&title("Apples left on that day"), Axis::new("apples left", "% of all"), per_bin()),
        &drawn(&|round| 100.0 * round.apples / total),
        &|percent| apples.at_most(percent / 100.0 * total),
    );
    let worths = density(
        LineChart::new(
            &title("What they are worth"),
            Axis::new("value left", "% of the value of all"),
            per_bin(),
        ),
        &drawn(&|round| 100.0 * round.value / worth),
        &|percent| value.at_most(percent / 100.0 * worth),
    );
    Ok(vec![
        days.write(directory, &named("apples-day", supply))?,
        left.write(directory, &named("apples-left", supply))?,
        worths.write(directory, &named("apples-value", supply))?,
    ])
}

/// The name of a chart: those of both supplies can be in one folder.
fn named(name: &str, supply: Supply) -> String {
    match supply {
        Supply::Equal => name.to_owned(),
        Supply::Matched => format!("{name}-matched"),
    }
}

fn per_bin() -> Axis {
    Axis::new("rounds in a bin", "%").with_zero()
}

/// The share of `draws`, and of the law `at_most`, in each of some bins.
fn density(mut chart: LineChart, draws: &[f64], at_most: &dyn Fn(f64) -> f64) -> LineChart {
    let low = draws.iter().copied().fold(f64::INFINITY, f64::min);
    let high = draws.iter().copied().fold(f64::NEG_INFINITY, f64::max).max(low + 1e-9);
    let width = (high - low) / BINS as f64;
    let mut counts = [0u32; BINS];
    for draw in draws {
        counts[(((draw - low) / width) as usize).min(BINS - 1)] += 1;
    }
    let centre = |bin: usize| low + width * (bin as f64 + 0.5);
    let law = (0..BINS).map(|bin| {
        let begin = low + width * bin as f64;
        (centre(bin), 100.0 * (at_most(begin + width) - at_most(begin)))
    });
    let drawn = counts
        .iter()
        .enumerate()
        .map(|(bin, count)| (centre(bin), 100.0 * f64::from(*count) / draws.len() as f64));
    chart.add("law", Mark::Line, law.collect::<Vec<_>>());
    chart.add(&format!("{} rounds", draws.len()), Mark::Points, drawn);
    chart
}

/// The apples left by the depth of the buckets, for each choice.
pub(super) fn by_depth(
    options: &ApplesOptions,
    choices: &[Choice],
    directory: &Path,
    progress: Progress<'_>,
) -> anyhow::Result<Vec<PathBuf>> {
    let count = (choices.len() * DEPTHS.len()) as u64;
    let point = |number: u64| {
        let (choice, depth) = (number as usize / DEPTHS.len(), number as usize % DEPTHS.len());
        let orchard = Orchard::new(options.buckets, DEPTHS[depth], choices[choice], options.supply());
        let share = 100.0 / orchard.total() as f64;
        let rounds = play(&orchard, Stepping::Leaps, DEPTH_ROUNDS, options.seed, &|_| {});
        let drawn = figures(rounds.iter().map(|round| round.apples)).mean * share;
        (Law::new(&orchard).apples().figures().mean * share, drawn)
    };
    let points = on_all_cores(count, 1, &point, &|done| progress("chart by depth", done, count));
    let title = match options.supply() {
        Supply::Equal => "Apples left by depth",
        Supply::Matched => "Apples left by depth, supply matched to demand",
    };
    let title = format!("{title} ({} buckets; lines: law, dots: {DEPTH_ROUNDS} rounds)", options.buckets);
    let x = Axis::new("apples in a bucket", "").log();
    let mut chart = LineChart::new(&title, x, Axis::new("left", "% of all").log()).legend(true, true);
    for (choice, points) in choices.iter().zip(points.chunks(DEPTHS.len())) {
        let at = |value: fn(&(f64, f64)) -> f64| {
            DEPTHS.into_iter().map(f64::from).zip(points.iter().map(value)).collect::<Vec<_>>()
        };
        chart.add(&choice.to_string(), Mark::Line, at(|point| point.0));
        chart.add_alike("", Mark::Points, at(|point| point.1));
    }
    let limit = 100.0 * expected_maximum(options.buckets);
    let root = DEPTHS
        .into_iter()
        .filter(|depth| *depth >= 100)
        .map(f64::from)
        .map(|depth| (depth, limit / depth.sqrt()));
    chart.add("uniform, limit b / sqrt(M)", Mark::Dashed, root);
    Ok(vec![chart.write(directory, &named("apples-by-depth", options.supply()))?])
}

/// When a pooled allocator fails though nothing of the load changes: drawn, beside the laws.
pub(super) fn returns(buckets: u32, walked: &[Walked], directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let drawn = |variant: &'static str| walked.iter().filter(move |walked| walked.variant == variant);
    let depth_of =
        |walked: &Walked| walked.case.rsplit('x').next().and_then(|depth| depth.parse::<f64>().ok());
    let mut pools = LineChart::new(
        &format!("{buckets} pools, one piece taken and one given back a day"),
        Axis::new("pieces in a pool at first", "").log(),
        Axis::new("days until a pool is found empty", "").log(),
    )
    .legend(true, false);
    let depths = [5u32, 10, 20, 50, 100, 200, 500, 1000];
    pools.add("law", Mark::Line, depths.map(|depth| (f64::from(depth), pools_mean(buckets, depth))));
    let points = drawn("days").filter_map(|walked| Some((depth_of(walked)?, walked.drawn.mean)));
    pools.add("simulated", Mark::Points, points.collect::<Vec<_>>());

    let mut devices = LineChart::new(
        &format!("A pooled allocator, sizes even from 1 to {buckets} blocks, replaced at one fill"),
        Axis::new("free", "% of the device").log(),
        Axis::new("turnovers until it fails", "").log(),
    )
    .legend(true, false);
    for (name, blocks, _) in WALK_DEVICES {
        let frees = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2];
        let law = frees.map(|free| (100.0 * free, turnovers_law(blocks as f64, free, buckets)));
        devices.add(&format!("{name}, law"), Mark::Line, law);
        let begin = format!("device-{name}-");
        let point = |walked: &Walked| {
            Some((100.0 - walked.case.strip_prefix(&begin)?.parse::<f64>().ok()?, walked.drawn.mean))
        };
        devices.add_alike(
            &format!("{name}, simulated"),
            Mark::Points,
            drawn("turnovers").filter_map(point).collect::<Vec<_>>(),
        );
    }
    Ok(vec![pools.write(directory, "pools-walk")?, devices.write(directory, "pools-turnovers")?])
}
