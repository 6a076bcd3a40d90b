//! `cargo x fuzz`: libFuzzer against every target of `fuzz/` (T13), with a nightly compiler.
//!
//! It starts from the stored corpora, a tar for each target in `fuzz/corpus`. New inputs are written to the build's folder;
//! `--keep` merges them into the archive. `cargo test` replays the archives, without a fuzzer and on the stable compiler.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};

pub(crate) const USAGE: &str = "Usage: cargo x fuzz [--seconds N] [--seed N] [--only NAME] [--keep]

Builds the fuzz targets with a nightly compiler and runs each for a while, from its stored corpus on. An input that fails is
left in target/fuzz, and the command that repeats it is printed.

  --seconds N  how long each target runs [default: 10]
  --seed N     the dice [default: 1]
  --only NAME  only the targets whose names start with NAME
  --keep       write fuzz/corpus again: the inputs with a name, and the fewest others that reach the same code";

/// Memory that a target may take. `crates/engine/src/testing/hostile/limit.rs` holds the limit of one allocation: libFuzzer's own
/// limit acts with a sanitizer only.
const MEMORY_MIB: u32 = 2048;
/// Seconds after which an input hangs.
const HANGS_AFTER_S: u32 = 20;
/// Bytes of an input.
const INPUT_BYTES_MAX: u32 = 16 << 10;
/// Bytes of an input that is stored.
const KEPT_BYTES_MAX: u64 = 4 << 10;

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

/// Runs the targets, one after the other, all of them even if one fails.
pub(crate) fn run(options: &Options) -> Result<()> {
    let root = super::root()?;
    let targets = targets(&root, &options.only)?;
    let work = root.join("target/fuzz");
    build(&root, &work)?;
    let mut failed = Vec::new();
    for target in &targets {
        let began = Instant::now();
        println!("== fuzz {target}");
        let places = Places::new(&root, &work, target)?;
        let is_sound = fuzz(&work, &places, options)?;
        println!("-- fuzz {target}: {:.0} s", began.elapsed().as_secs_f64());
        if !is_sound {
            failed.push(target.as_str());
        } else if options.keep {
            places.keep()?;
        }
    }
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

/// The targets whose names start with `only`: the files of `fuzz/fuzz_targets`.
fn targets(root: &Path, only: &str) -> Result<Vec<String>> {
    let folder = root.join("fuzz/fuzz_targets");
    let files = fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let name = |path: PathBuf| path.file_stem().and_then(|stem| stem.to_str()).map(str::to_owned);
    let mut names: Vec<String> =
        files.filter_map(|file| name(file.ok()?.path())).filter(|name| name.starts_with(only)).collect();
    names.sort();
    if names.is_empty() {
        bail!("no fuzz target starts with {only:?}");
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

/// The files of one target.
struct Places<'a> {
    target: &'a str,
    /// The fuzzer.
    program: PathBuf,
    /// The stored corpus, and a folder that it is unpacked to.
    archive: PathBuf,
    stored: PathBuf,
    /// Inputs of earlier runs on this machine.
    found: PathBuf,
}

impl<'a> Places<'a> {
    /// Unpacks the stored corpus of `target` below `work`.
    fn new(root: &Path, work: &Path, target: &'a str) -> Result<Self> {
        let places = Self {
            target,
            program: work.join(PLATFORM).join("release").join(target),
            archive: root.join("fuzz/corpus").join(target).with_extension("tar"),
            stored: work.join("stored").join(target),
            found: work.join("corpus").join(target),
        };
        fs::create_dir_all(&places.found)?;
        if places.stored.exists() {
            fs::remove_dir_all(&places.stored)?;
        }
        let file = fs::File::open(&places.archive)
            .with_context(|| format!("cannot open {}", places.archive.display()))?;
        tar::Archive::new(file).unpack(&places.stored)?;
        Ok(places)
    }

    /// Writes the archive again: inputs with a name as they are, and of all others the fewest that reach the same code.
    fn keep(&self) -> Result<()> {
        let merged = self.stored.with_extension("merged");
        if merged.exists() {
            fs::remove_dir_all(&merged)?;
        }
        fs::create_dir_all(&merged)?;
        // The first folder receives the inputs that reach code which those in it do not.
        for file in fs::read_dir(&self.stored)? {
            let file = file?;
            if has_name(&file.file_name().to_string_lossy()) {
                fs::copy(file.path(), merged.join(file.file_name()))?;
            }
        }
        let mut command = Command::new(&self.program);
        command.args([
            "-merge=1".to_owned(),
            format!("-max_len={KEPT_BYTES_MAX}"),
            "-verbosity=0".to_owned(),
        ]);
        let status = command.arg(&merged).arg(&self.stored).arg(&self.found).status()?;
        if !status.success() {
            bail!("the corpus of {} was not merged ({status})", self.target);
        }
        pack(&merged, &self.archive)
    }
}

/// Returns true if an input was named by hand: it is a seed, or showed a fault. libFuzzer names inputs by their hashes.
fn has_name(file: &str) -> bool {
    !(file.len() >= 16 && file.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Writes the files of `folder` into `archive`, sorted by name; the same files are the same bytes.
fn pack(folder: &Path, archive: &Path) -> Result<()> {
    let files = fs::read_dir(folder)?.map(|file| Ok(file?.path()));
    let mut files = files.collect::<Result<Vec<_>>>()?;
    files.sort();
    let mut packed = tar::Builder::new(Vec::new());
    packed.mode(tar::HeaderMode::Deterministic);
    for path in files {
        packed.append_path_with_name(&path, path.file_name().context("a file has a name")?)?;
    }
    // A crash leaves the old archive or the new one.
    let unfinished = archive.with_extension("tar.unfinished");
    fs::write(&unfinished, packed.into_inner()?)?;
    fs::rename(&unfinished, archive).with_context(|| format!("cannot write {}", archive.display()))
}

/// Runs the fuzzer of a target. Returns true if it found nothing.
fn fuzz(work: &Path, places: &Places<'_>, options: &Options) -> Result<bool> {
    let mut command = Command::new(&places.program);
    command.args([
        format!("-max_total_time={}", options.seconds),
        format!("-seed={}", options.seed),
        format!("-rss_limit_mb={MEMORY_MIB}"),
        format!("-timeout={HANGS_AFTER_S}"),
        format!("-max_len={INPUT_BYTES_MAX}"),
        format!("-artifact_prefix={}/found-{}-", work.display(), places.target),
        "-print_final_stats=1".to_owned(),
        "-verbosity=0".to_owned(),
    ]);
    command.arg(&places.found).arg(&places.stored);
    let status = command.status().with_context(|| format!("cannot start the fuzzer of {}", places.target))?;
    Ok(status.success())
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
    fn a_corpus_that_is_packed_again_is_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let (files, archive) = (folder.path().join("files"), folder.path().join("target.tar"));
        fs::create_dir(&files).unwrap();
        for name in ["seed-1", "found-bounds", "0010f37201764bf2"] {
            fs::write(files.join(name), name).unwrap();
        }
        pack(&files, &archive).unwrap();
        let first = fs::read(&archive).unwrap();
        let unpacked = folder.path().join("unpacked");
        tar::Archive::new(&first[..]).unpack(&unpacked).unwrap();
        pack(&unpacked, &archive).unwrap();
        assert_eq!(fs::read(&archive).unwrap(), first);
        assert_eq!(fs::read_to_string(unpacked.join("seed-1")).unwrap(), "seed-1");
        assert!(has_name("seed-1") && has_name("found-bounds") && !has_name("0010f37201764bf2"));
    }

    #[test]
    fn every_target_has_a_corpus_and_is_built() {
        let root = super::super::root().unwrap();
        let manifest = fs::read_to_string(root.join("fuzz/Cargo.toml")).unwrap();
        let all = targets(&root, "").unwrap();
        assert!(all.len() >= 7 && targets(&root, "nothing").is_err());
        for target in all {
            assert!(manifest.contains(&format!("name = \"{target}\"")), "{target} is in fuzz/Cargo.toml");
            let source = root.join("fuzz/fuzz_targets").join(&target).with_extension("rs");
            let source = fs::read_to_string(source).unwrap();
            assert!(source.contains("shoal_engine"), "{target} has the allocator with a limit");
            let corpus = root.join("fuzz/corpus").join(&target).with_extension("tar");
            let corpus = fs::File::open(corpus).unwrap();
            assert!(tar::Archive::new(corpus).entries().unwrap().count() > 0, "{target} has a corpus");
        }
    }
}
