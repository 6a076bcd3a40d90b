//! `cargo x fuzz`: libFuzzer against every target of `fuzz/` (T13), with a nightly compiler.
//!
//! It starts from the stored corpora (`fuzz/corpus`); inputs that it finds besides go to the build's folder, and with `--keep`
//! those that reach new code are stored. `cargo test` replays what is stored, without a fuzzer and on the stable compiler.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};

pub(crate) const USAGE: &str = "\
Usage: cargo x fuzz [--seconds N] [--seed N] [--only NAME] [--keep]

Builds the fuzz targets with a nightly compiler and runs each for a while, from its stored corpus on. An input that fails is
left in target/fuzz, and the command that repeats it is printed.

  --seconds N  how long each target runs [default: 10]
  --seed N     the dice [default: 1]
  --only NAME  only the targets that begin with NAME
  --keep       store the inputs that reach new code, at most 120 a target, in fuzz/corpus";

/// Memory that a target may take. `crates/engine/src/testing/hostile/limit.rs` holds the limit of one allocation: libFuzzer's own
/// limit acts with a sanitizer only.
const MEMORY_MIB: u32 = 2048;
/// Seconds after which an input hangs.
const HANGS_AFTER_S: u32 = 20;
/// Bytes of an input.
const INPUT_BYTES_MAX: u32 = 16 << 10;
/// Bytes of an input that is stored, and inputs of one target.
const KEPT_BYTES_MAX: u64 = 4 << 10;
const KEPT_MAX: usize = 120;

/// Flags of the compiler for libFuzzer, as cargo-fuzz sets them; no address sanitizer, for the code under attack is safe.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
     -Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions -Coverflow-checks";
const PLATFORM: &str = "x86_64-unknown-linux-gnu";

/// The options of the command line.
#[derive(Debug, PartialEq)]
pub(crate) struct Options {
    seconds: u64,
    seed: u64,
    only: String,
    keep: bool,
}

impl Options {
    pub(crate) fn parse(words: &[&str]) -> Result<Self> {
        let mut options = Self { seconds: 10, seed: 1, only: String::new(), keep: false };
        let mut words = words.iter();
        while let Some(&word) = words.next() {
            let mut value = || words.next().with_context(|| format!("{word} needs a value"));
            let number = |text: &str| text.parse().with_context(|| format!("{text:?} is no number"));
            match word {
                "--seconds" => options.seconds = number(value()?)?,
                "--seed" => options.seed = number(value()?)?,
                "--only" => options.only = (*value()?).to_owned(),
                "--keep" => options.keep = true,
                _ => bail!("there is no option {word}"),
            }
        }
        Ok(options)
    }
}

/// Runs the targets, one after the other, all of them even where one fails.
pub(crate) fn run(options: &Options) -> Result<()> {
    let root = super::root()?;
    let targets = targets(&root, &options.only)?;
    let work = root.join("target/fuzz");
    build(&root, &work)?;
    let mut failed = Vec::new();
    for target in &targets {
        let began = Instant::now();
        println!("== fuzz {target}");
        let is_sound = fuzz(&root, &work, target, options)?;
        println!("-- fuzz {target}: {:.0} s", began.elapsed().as_secs_f64());
        if !is_sound {
            failed.push(target.as_str());
        } else if options.keep {
            keep(&root.join("fuzz/corpus").join(target), &work.join("corpus").join(target))?;
        }
    }
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

/// The targets whose names begin with `only`: the files of `fuzz/fuzz_targets`.
fn targets(root: &Path, only: &str) -> Result<Vec<String>> {
    let folder = root.join("fuzz/fuzz_targets");
    let files = std::fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let name = |path: PathBuf| path.file_stem().and_then(|stem| stem.to_str()).map(str::to_owned);
    let mut names: Vec<String> =
        files.filter_map(|file| name(file.ok()?.path())).filter(|name| name.starts_with(only)).collect();
    names.sort();
    if names.is_empty() {
        bail!("no fuzz target begins with {only:?}");
    }
    Ok(names)
}

fn build(root: &Path, work: &Path) -> Result<()> {
    let mut command = Command::new("cargo");
    command.args(["+nightly", "build", "--release", "--quiet", "--target", PLATFORM]);
    command.arg("--manifest-path").arg(root.join("fuzz/Cargo.toml"));
    command.env("RUSTFLAGS", FLAGS).env("CARGO_TARGET_DIR", work).env_remove("RUSTUP_TOOLCHAIN");
    let status = command.status().context("cannot start cargo")?;
    if !status.success() {
        bail!("the fuzz targets do not build with `cargo +nightly` ({status})");
    }
    Ok(())
}

/// Whether nothing was found.
fn fuzz(root: &Path, work: &Path, target: &str, options: &Options) -> Result<bool> {
    let own = work.join("corpus").join(target);
    std::fs::create_dir_all(&own)?;
    let mut command = Command::new(work.join(PLATFORM).join("release").join(target));
    command.args([
        format!("-max_total_time={}", options.seconds),
        format!("-seed={}", options.seed),
        format!("-rss_limit_mb={MEMORY_MIB}"),
        format!("-timeout={HANGS_AFTER_S}"),
        format!("-max_len={INPUT_BYTES_MAX}"),
        format!("-artifact_prefix={}/found-{target}-", work.display()),
        "-print_final_stats=1".to_owned(),
        "-verbosity=0".to_owned(),
    ]);
    command.arg(&own).arg(root.join("fuzz/corpus").join(target));
    let status = command.status().with_context(|| format!("cannot start the fuzzer of {target}"))?;
    Ok(status.success())
}

/// Stores what the fuzzer kept: the shortest inputs first, up to the limit.
fn keep(stored: &Path, found: &Path) -> Result<()> {
    let mut files = Vec::new();
    for file in std::fs::read_dir(found)? {
        let file = file?;
        files.push((file.metadata()?.len(), file.path()));
    }
    files.retain(|(bytes, _)| *bytes <= KEPT_BYTES_MAX);
    files.sort();
    let room = KEPT_MAX.saturating_sub(std::fs::read_dir(stored)?.count());
    for (_, path) in files.into_iter().take(room) {
        let name = path.file_name().context("a file has a name")?;
        std::fs::copy(&path, stored.join(name))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_understood() {
        let options = Options::parse(&["--seconds", "3", "--only", "page", "--keep"]).unwrap();
        assert_eq!(options, Options { seconds: 3, seed: 1, only: "page".into(), keep: true });
        for wrong in [&["--seconds"][..], &["--seconds", "x"], &["--second", "1"]] {
            assert!(Options::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn every_target_has_a_corpus_and_is_built() {
        let root = super::super::root().unwrap();
        let manifest = std::fs::read_to_string(root.join("fuzz/Cargo.toml")).unwrap();
        let all = targets(&root, "").unwrap();
        assert!(all.len() >= 7 && targets(&root, "nothing").is_err());
        for target in all {
            assert!(manifest.contains(&format!("name = \"{target}\"")), "{target} is in fuzz/Cargo.toml");
            let source = root.join("fuzz/fuzz_targets").join(&target).with_extension("rs");
            let source = std::fs::read_to_string(source).unwrap();
            assert!(source.contains("shoal_engine"), "{target} has the allocator with a limit");
            let corpus = root.join("fuzz/corpus").join(&target);
            assert!(std::fs::read_dir(corpus).unwrap().next().is_some(), "{target} has a corpus");
        }
    }
}
