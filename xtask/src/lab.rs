//! `cargo x lab` and `cargo x nightly`: the reliability laboratory at the sizes that `docs/reliability.md` promises.
//!
//! The tests themselves are the engine's; `cargo test` runs each of them small. This says how much each does, in the
//! release profile, and tells how long each took. A failure prints the command that repeats it.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};

pub(crate) const USAGE: &str = "\
Usage: cargo x lab [--seed N] [--only NAME]
       cargo x nightly [--seed N] [--only NAME]

Runs the reliability laboratory: crash states, crashes during recovery, damage, failing devices, histories. `lab` does what
a change has to pass, in some minutes; `nightly` about fifty times as much, every planted bug, and kills of the real server.

  --seed N     another part of the same space [default: 1]
  --only NAME  only the experiments that begin with NAME";

/// One experiment: a test, and how much it does in CI and in a night.
struct Experiment {
    name: &'static str,
    /// The row of `docs/reliability.md`.
    row: &'static str,
    package: &'static str,
    target: &'static str,
    filter: &'static str,
    /// Variables, and their values in CI and in a night.
    sizes: &'static [(&'static str, u64, u64)],
}

const fn engine(
    name: &'static str,
    row: &'static str,
    target: &'static str,
    filter: &'static str,
    sizes: &'static [(&'static str, u64, u64)],
) -> Experiment {
    Experiment { name, row, package: "shoal-engine", target, filter, sizes }
}

const EXPERIMENTS: [Experiment; 11] = [
    engine("model", "T1", "model", "", &[("SEQUENCES", 20_000, 1_000_000)]),
    engine("crash", "T2", "explore", "crash_states", &[("STATES", 400_000, 25_000_000)]),
    engine("short", "T2a", "explore", "every_short_sequence", &[("LENGTH", 3, 4), ("PER_POINT", 24, 24)]),
    engine("recovery", "T3", "explore", "crashes_during_recovery", &[("RECOVERIES", 40_000, 3_000_000)]),
    engine("bits", "T4", "flips", "every_bit", &[("FLIP_BITS", 2_097_152, 8_388_608)]),
    engine("sectors", "T5", "flips", "sector_faults", &[("FAULT_SWAPS", 1_000, 1_000)]),
    engine("damage", "T4, T5", "damage", "", &[]),
    engine("errors", "T6", "faults", "", &[("FAULT_OPERATIONS", 200, 2_000)]),
    engine("full", "R3", "full", "", &[]),
    engine("threads", "R6", "concurrency", "", &[]),
    engine("histories", "T11", "histories", "", &[("HISTORIES", 500, 20_000)]),
];

/// What the command line says.
#[derive(Debug, PartialEq)]
pub(crate) struct Options {
    pub(crate) seed: u64,
    pub(crate) only: String,
}

impl Options {
    pub(crate) fn parse(words: &[&str]) -> Result<Self> {
        let mut options = Self { seed: 1, only: String::new() };
        let mut words = words.iter();
        while let Some(&word) = words.next() {
            let value = words.next().with_context(|| format!("{word} needs a value"))?;
            match word {
                "--seed" => {
                    options.seed = value.parse().with_context(|| format!("{value:?} is no number"))?
                }
                "--only" => options.only = (*value).to_owned(),
                _ => bail!("there is no option {word}"),
            }
        }
        Ok(options)
    }
}

/// Runs the experiments, in order, all of them even where one fails.
pub(crate) fn run(options: &Options, nightly: bool) -> Result<()> {
    let chosen: Vec<&Experiment> =
        EXPERIMENTS.iter().filter(|experiment| experiment.name.starts_with(&options.only)).collect();
    if chosen.is_empty() {
        bail!("no experiment begins with {:?}", options.only);
    }
    let mut failed = Vec::new();
    for experiment in chosen {
        let began = Instant::now();
        let mut command = Command::new("cargo");
        command.args(["test", "--release", "--quiet", "-p", experiment.package, "--test", experiment.target]);
        command.args(["--", "--nocapture", experiment.filter]);
        command.env("LAB_SEED", options.seed.to_string());
        for (name, in_ci, in_a_night) in experiment.sizes {
            let size = if nightly { in_a_night } else { in_ci };
            command.env(format!("LAB_{name}"), size.to_string());
        }
        println!("== {} ({})", experiment.name, experiment.row);
        let status = command.current_dir(super::root()?).status().context("cannot start cargo")?;
        println!("-- {} ({}): {:.0} s", experiment.name, experiment.row, began.elapsed().as_secs_f64());
        if !status.success() {
            failed.push(experiment.name);
        }
    }
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_understood() {
        assert_eq!(Options::parse(&[]).unwrap(), Options { seed: 1, only: String::new() });
        let both = Options::parse(&["--seed", "7", "--only", "crash"]).unwrap();
        assert_eq!(both, Options { seed: 7, only: "crash".into() });
        for wrong in [&["--seed"][..], &["--seed", "x"], &["--sed", "1"]] {
            assert!(Options::parse(wrong).is_err(), "{wrong:?}");
        }
        assert!(run(&Options { seed: 1, only: "nothing".into() }, false).is_err());
    }
}
