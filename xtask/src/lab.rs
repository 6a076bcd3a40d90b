//! `cargo x lab` and `cargo x nightly`: the reliability laboratory at the sizes that `docs/reliability.md` promises.
//!
//! The tests themselves are the engine's; `cargo test` runs each of them small. This sets the size of each, in the
//! release profile, and reports its time. A failure prints the command that repeats it.

use std::fs::File;
use std::io::{self, Write};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

pub(crate) const USAGE: &str = "Usage: cargo x lab [--seed N] [--only NAME]
       cargo x lab --no-run
       cargo x nightly [--seed N] [--only NAME] [--part N]

Runs the reliability laboratory: crash states, crashes during recovery, damage, failing devices, histories. `lab` runs the
tests of a change, in some minutes; `nightly` about fifty times as much, every injected bug, and kills of the real server.

  --seed N     another part of the same space [default: 1]
  --only NAME  only the experiments whose names start with NAME, or with one of several, with commas between
  --no-run     build what this and `cargo x bugs` run, and run nothing
  --part N     a night of an Nth of its length (not shorter than in CI; work that only grows a little is done whole) [default: 1]";

/// An experiment that does at least this many times as much in a night as in CI is done in part in a part of a night.
const DIVIDED_FROM: u64 = 8;

/// One experiment: a test, and its sizes in CI and in a night.
struct Experiment {
    name: &'static str,
    /// The row of `docs/reliability.md`.
    row: &'static str,
    suite: Suite,
    /// Names, with spaces between, of which a test's has one in it.
    filter: &'static str,
    /// Variables, and their values in CI and in a night.
    sizes: Sizes,
    /// True if it mostly waits, and judges nothing that another experiment beside it makes worse: such neighbours in the list run
    /// at the same time. An experiment that measures the machine's maximum, or keeps all cores busy, runs alone.
    beside: bool,
}

/// The place of a test.
#[derive(Clone, Copy)]
enum Suite {
    /// The engine's tests against oracles, in the release profile, and with the injected bugs.
    Engine,
    /// The unit tests, as `cargo test --workspace` built them: in the dev profile, with checks of overflow.
    Units,
    /// The program's tests, as built by the same.
    Program,
    /// The odd tars, as built by the same.
    Tars,
    /// The schedules: a separate workspace, in the release profile, with other locks.
    Schedules,
}

/// Prepares `command`, which is cargo's, for the engine's tests. They are built with the injected bugs, none of which is at work unless it
/// is named, so that the laboratory and [`super::bugs`] need one build.
pub(crate) fn of_engine(command: &mut Command) -> Result<()> {
    with_bugs(command, "shoal-engine")
}

/// As [`of_engine`], for the unit tests of the crates below the engine that have injected bugs.
pub(crate) fn of_crates_below(command: &mut Command) -> Result<()> {
    command.args(["--lib", "-p", "shoal-memtable", "-p", "shoal-tablets"]);
    with_bugs(command, "shoal-tree")
}

fn with_bugs(command: &mut Command, package: &str) -> Result<()> {
    let root = super::root()?;
    command.args(["--release", "-p", package]);
    command.env("RUSTFLAGS", "--cfg shoal_bugs").env("CARGO_TARGET_DIR", root.join("target/bugs"));
    Ok(())
}

/// As [`of_engine`], of the schedules.
pub(crate) fn of_schedules(command: &mut Command) -> Result<()> {
    let root = super::root()?;
    command.args(["--release", "--manifest-path", "schedules/Cargo.toml"]);
    // Clippy does not look at this build: its warnings count here.
    command.env("RUSTFLAGS", "--cfg shoal_shuttle --cfg shoal_bugs -D warnings");
    command.env("CARGO_TARGET_DIR", root.join("target/schedules"));
    Ok(())
}

impl Suite {
    /// The arguments of cargo for it.
    fn words(self) -> Vec<&'static str> {
        match self {
            Self::Engine => vec!["--test", "store"],
            Self::Units => vec!["--workspace", "--lib", "--bins"],
            Self::Program => vec!["--workspace", "--test", "shoal"],
            Self::Tars => vec!["--workspace", "--test", "odd"],
            Self::Schedules => Vec::new(),
        }
    }

    /// A command that builds and runs its tests.
    fn cargo(self) -> Result<Command> {
        let mut command = Command::new("cargo");
        command.args(["test", "--quiet"]);
        match self {
            Self::Engine => of_engine(&mut command)?,
            Self::Schedules => of_schedules(&mut command)?,
            Self::Units | Self::Program | Self::Tars => {}
        }
        command.args(self.words()).current_dir(super::root()?);
        Ok(command)
    }
}

type Sizes = &'static [(&'static str, u64, u64)];

const fn engine(name: &'static str, row: &'static str, filter: &'static str, sizes: Sizes) -> Experiment {
    Experiment { name, row, suite: Suite::Engine, filter, sizes, beside: false }
}

const fn units(name: &'static str, row: &'static str, filter: &'static str, sizes: Sizes) -> Experiment {
    Experiment { name, row, suite: Suite::Units, filter, sizes, beside: false }
}

const fn program(name: &'static str, row: &'static str, filter: &'static str, sizes: Sizes) -> Experiment {
    Experiment { name, row, suite: Suite::Program, filter, sizes, beside: false }
}

/// An experiment that runs at the same time as its neighbours.
const fn beside(experiment: Experiment) -> Experiment {
    Experiment { beside: true, ..experiment }
}

const ABUSE: Sizes = &[
    ("SLOW_MS", 8_000, 300_000),
    ("STALL_MS", 12_000, 300_000),
    ("CONNECTS", 10_000, 20_000),
    ("IDLE_S", 5, 30),
    ("LORIS", 1_000, 1_000),
    ("HTTP2_S", 20, 600),
];

const BASE: Sizes = &[
    ("LAYERS", 0, 0),
    ("SEQUENCES", 2_000, 20_000),
    ("STATES", 40_000, 400_000),
    ("FLIP_BITS", 200_000, 1_000_000),
    ("FAULT_SWAPS", 100, 1_000),
    ("FAULT_OPERATIONS", 60, 200),
];

const EXPERIMENTS: [Experiment; 26] = [
    engine("model", "T1", "model::", &[("SEQUENCES", 20_000, 1_000_000)]),
    engine("crash", "T2", "explore::crash_states", &[("STATES", 400_000, 25_000_000)]),
    engine("short", "T2a", "explore::every_short_sequence", &[("LENGTH", 3, 4), ("PER_POINT", 24, 24)]),
    engine("recovery", "T3", "explore::crashes_during_recovery", &[("RECOVERIES", 40_000, 3_000_000)]),
    engine("bits", "T4", "flips::every_bit", &[("FLIP_BITS", 4_194_304, 8_388_608)]),
    engine("sectors", "T5", "flips::sector_faults", &[("FAULT_SWAPS", 1_000, 1_000)]),
    engine("damage", "T4, T5", "damage::", &[]),
    engine("repair", "T4", "repair_work::", &[("REPAIR_OBJECTS", 100_000, 1_000_000)]),
    engine("errors", "T6", "faults::", &[("FAULT_OPERATIONS", 200, 2_000), ("FAULT_CODES", 2, 2)]),
    engine("full", "R3", "full::", &[]),
    engine("expiry", "C01", "expired::", &[]),
    engine("threads", "R6", "concurrency::", &[]),
    engine("histories", "T11", "histories::", &[("HISTORIES", 500, 20_000)]),
    engine("transactions", "T11", "transactions::", &[("TRANSACTIONS", 400, 10_000)]),
    engine("layers", "T29", "layers::", &[("DIVISIONS", 1_000, 50_000)]),
    // The trees of small stores: without layers and filters.
    engine("base", "T1 to T6", "model:: crash:: explore::crash_states damage:: faults:: flips::", BASE),
    Experiment {
        name: "schedules",
        row: "T10",
        suite: Suite::Schedules,
        filter: "",
        sizes: &[("SCHEDULES", 60_000, 1_000_000)],
        beside: false,
    },
    units("archive", "T30", "writer::tests::simulation", &[("ARCHIVE_ROUNDS", 7_000, 70_000)]),
    units("hostile", "T13", "testing::hostile", &[("HOSTILE_MS", 6_000, 600_000)]),
    Experiment {
        name: "tars",
        row: "C08, C09",
        suite: Suite::Tars,
        filter: "",
        sizes: &[("ODD_TARS", 2_000, 100_000)],
        beside: false,
    },
    // These measure a server's maximum, and then ask for a part or a multiple of it.
    program("load", "T15", "load::sustained", &[("LOAD_S", 30, 1_800)]),
    program("overload", "T16", "load::overload", &[("OVERLOAD_S", 20, 600), ("OVERLOAD_KEYS", 1_000, 1_000)]),
    // Each judges its own server: its survival, its memory, the clients that it cuts.
    beside(program("kills", "T8", "kill::rounds_of_the_laboratory", &[("KILLS", 20, 2_000)])),
    beside(program("archive-kills", "T30", "archive::kills::", &[("ARCHIVE_KILLS", 8, 400)])),
    beside(program(
        "memory",
        "T7",
        "memory:: containers::",
        &[("MEMORY_S", 30, 600), ("CONTAINER_S", 15, 150)],
    )),
    beside(program("abuse", "T17 to T20", "abuse::", ABUSE)),
];

/// The options of the command line.
#[derive(Debug, PartialEq)]
pub(crate) struct Options {
    pub(crate) seed: u64,
    pub(crate) only: String,
    /// Which part of a night: 2 for a half.
    pub(crate) part: u64,
}

impl Options {
    pub(crate) fn parse(words: &[&str]) -> Result<Self> {
        let mut options = Self { seed: 1, only: String::new(), part: 1 };
        let mut words = words.iter();
        while let Some(&word) = words.next() {
            let value = words.next().with_context(|| format!("{word} needs a value"))?;
            let number = || value.parse().with_context(|| format!("{value:?} is no number"));
            match word {
                "--seed" => options.seed = number()?,
                "--part" => options.part = number().map(|part: u64| part.max(1))?,
                "--only" => options.only = (*value).to_owned(),
                _ => bail!("there is no option {word}"),
            }
        }
        Ok(options)
    }

    fn wants(&self, name: &str) -> bool {
        self.only.split(',').any(|only| name.starts_with(only))
    }
}

/// Builds the tests in separate folders that [`run`] and [`super::bugs::run`] need: the engine's, those of the crates
/// below it, and the schedules.
pub(crate) fn build() -> Result<()> {
    let [mut engine, mut below, mut schedules] = std::array::from_fn(|_| Command::new("cargo"));
    for command in [&mut engine, &mut below, &mut schedules] {
        command.args(["test", "--no-run", "--quiet"]).current_dir(super::root()?);
    }
    of_engine(&mut engine)?;
    engine.args(["--lib", "--test", "store"]);
    of_crates_below(&mut below)?;
    of_schedules(&mut schedules)?;
    for mut command in [engine, below, schedules] {
        if !command.status().context("cannot start cargo")?.success() {
            bail!("the tests of the laboratory do not build");
        }
    }
    Ok(())
}

/// Runs the experiments, in order, all of them even if one fails.
pub(crate) fn run(options: &Options, nightly: bool) -> Result<()> {
    let chosen: Vec<&Experiment> =
        EXPERIMENTS.iter().filter(|experiment| options.wants(experiment.name)).collect();
    if !nightly && options.part != 1 {
        bail!("--part is for `cargo x nightly`");
    }
    if chosen.is_empty() {
        bail!("no experiment starts with {:?}", options.only);
    }
    let mut failed = Vec::new();
    for group in chosen.chunk_by(|one, next| one.beside && next.beside) {
        let fine = if let [experiment] = group {
            vec![experiment.run(options, nightly, None)?]
        } else {
            beside_each_other(group, options, nightly)?
        };
        failed.extend(group.iter().zip(fine).filter(|(_, is_fine)| !is_fine).map(|(it, _)| it.name));
    }
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

/// Runs all of `group` at a time. The output of each is printed in one piece when it finishes; until then it is in target/lab.
fn beside_each_other(group: &[&Experiment], options: &Options, nightly: bool) -> Result<Vec<bool>> {
    let names: Vec<&str> = group.iter().map(|experiment| experiment.name).collect();
    println!("== {}: beside each other", names.join(", "));
    let folder = super::root()?.join("target/lab");
    std::fs::create_dir_all(&folder)?;
    let run = |experiment: &Experiment| -> Result<bool> {
        let path = folder.join(format!("{}.log", experiment.name));
        let is_fine = experiment.run(options, nightly, Some(&File::create(&path)?));
        let said = std::fs::read(&path)?;
        // One call of print: no other experiment's output comes between.
        io::stdout().lock().write_all(&said)?;
        is_fine
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = group.iter().map(|experiment| scope.spawn(|| run(experiment))).collect();
        let ended = running.into_iter().map(|it| it.join().expect("it does not panic"));
        ended.collect()
    })
}

impl Experiment {
    fn cargo(&self) -> Result<Command> {
        let mut command = self.suite.cargo()?;
        command.arg("--");
        Ok(command)
    }

    /// Runs it between two lines that name it, on this program's output or into `log`; returns true if it passed.
    fn run(&self, options: &Options, nightly: bool, log: Option<&File>) -> Result<bool> {
        let say = |line: String| match log {
            Some(mut log) => writeln!(log, "{line}"),
            None => writeln!(io::stdout(), "{line}"),
        };
        let began = Instant::now();
        say(format!("== {} ({})", self.name, self.row))?;
        let is_fine = self.passes(options, nightly, log)?;
        say(format!("-- {} ({}): {:.0} s", self.name, self.row, began.elapsed().as_secs_f64()))?;
        Ok(is_fine)
    }

    /// Returns true if its tests pass, and there are some: an experiment without tests, renamed or left out, would pass
    /// for ever.
    fn passes(&self, options: &Options, nightly: bool, log: Option<&File>) -> Result<bool> {
        let output = || -> Result<Stdio> {
            Ok(match log {
                Some(log) => log.try_clone()?.into(),
                None => Stdio::inherit(),
            })
        };
        let list = |words: &[&str]| -> Result<Option<usize>> {
            let mut command = self.cargo()?;
            let listed = command.args(words).args(self.filter.split(' ')).stderr(output()?).output();
            let listed = listed.context("cannot start cargo")?;
            let count = count_tests(&String::from_utf8_lossy(&listed.stdout));
            Ok(listed.status.success().then_some(count))
        };
        if !runs_some(list(&["--list"])?, list(&["--list", "--ignored"])?) {
            eprintln!("{}: no test that runs is called {:?}", self.name, self.filter);
            return Ok(false);
        }
        let mut command = self.cargo()?;
        command.arg("--nocapture").args(self.filter.split(' ')).env("LAB_SEED", options.seed.to_string());
        for (name, in_ci, in_a_night) in self.sizes {
            let size = if nightly { of_night(*in_ci, *in_a_night, options.part) } else { *in_ci };
            let name = format!("LAB_{name}");
            // A size of the caller's environment counts.
            if std::env::var_os(&name).is_none() {
                command.env(name, size.to_string());
            }
        }
        command.stdout(output()?).stderr(output()?);
        Ok(command.status().context("cannot start cargo")?.success())
    }
}

/// The size of an experiment in a part of a night.
fn of_night(in_ci: u64, in_a_night: u64, part: u64) -> u64 {
    if in_a_night < DIVIDED_FROM * in_ci.max(1) { in_a_night } else { in_ci.max(in_a_night / part) }
}

/// Returns true if tests run: of `all` tests, `ignored` are ignored. A program whose tests cannot be listed does not build:
/// its run reports that.
fn runs_some(all: Option<usize>, ignored: Option<usize>) -> bool {
    all.is_none_or(|all| all > ignored.unwrap_or(0))
}

/// The number of tests in a listing.
fn count_tests(listing: &str) -> usize {
    listing.lines().filter(|line| line.ends_with(": test")).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_is_counted() {
        assert_eq!(count_tests("every_bit: test\nsector_faults: test\n\n2 tests, 0 benchmarks\n"), 2);
        assert_eq!(count_tests("0 tests, 0 benchmarks\n"), 0);
    }

    #[test]
    fn a_filter_of_ignored_tests_runs_none() {
        assert!(runs_some(Some(2), Some(1)) && runs_some(Some(1), Some(0)) && runs_some(None, None));
        assert!(!runs_some(Some(0), Some(0)) && !runs_some(Some(2), Some(2)));
    }

    #[test]
    fn an_experiment_that_measures_the_machine_runs_alone() {
        let groups = EXPERIMENTS.chunk_by(|one, next| one.beside && next.beside);
        let together: Vec<Vec<&str>> = groups
            .filter(|group| group.len() > 1)
            .map(|group| group.iter().map(|it| it.name).collect())
            .collect();
        assert_eq!(together, [["kills", "archive-kills", "memory", "abuse"]]);
    }

    #[test]
    fn night_shard_covers_the_change_gate() {
        assert_eq!(
            [of_night(10, 1_000, 1), of_night(10, 1_000, 4), of_night(10, 1_000, 200)],
            [1_000, 250, 10]
        );
        assert_eq!((of_night(3, 4, 8), of_night(0, 0, 8)), (4, 0));
    }

    #[test]
    fn options_are_understood() {
        assert_eq!(Options::parse(&[]).unwrap(), Options { seed: 1, only: String::new(), part: 1 });
        let both = Options::parse(&["--seed", "7", "--only", "crash", "--part", "3"]).unwrap();
        assert_eq!(both, Options { seed: 7, only: "crash".into(), part: 3 });
        assert!(!both.wants("model") && both.wants("crash"));
        let several = Options::parse(&["--only", "kills,mem"]).unwrap();
        assert_eq!(["kills", "model", "memory"].map(|name| several.wants(name)), [true, false, true]);
        for wrong in [&["--seed"][..], &["--seed", "x"], &["--sed", "1"]] {
            assert!(Options::parse(wrong).is_err(), "{wrong:?}");
        }
        assert!(run(&Options { seed: 1, only: "nothing".into(), part: 1 }, false).is_err());
    }
}
