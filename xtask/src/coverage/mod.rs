//! `cargo x coverage`: which lines of formats, recovery and error arms no test reaches (T25).
//!
//! The tests of the storage crates run with the compiler's own counters, in a separate target folder; LLVM's tools sum them up.
//! `list.rs` names the files that must be covered as a whole, and the exempt lines, each with its reason. In every other file
//! of these crates the error arms must be covered: the lines that make an error or match one.

mod list;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use self::list::{CRATES, EXEMPT, NOT_COUNTED, WHOLE};

pub(crate) const USAGE: &str = "Usage: cargo x coverage [--lines] [--only TEXT] [--again]

Builds the tests of the storage crates with counters (target/coverage), runs them at low priority, prints a table of the files
that must be covered, and fails if a line of formats, recovery or error arms was not reached or if less than 90 % of all lines
were. Needs LLVM's tools: rustup component add llvm-tools.

  --lines      print the lines that were not reached
  --only TEXT  only files whose path has TEXT in it
  --again      judge the last run's counts again, without a build or a run";

/// Share of all counted lines that tests must reach, in percent.
const ALL_PERCENT_MIN: f64 = 90.0;

/// The options of the command line.
#[derive(Debug, PartialEq)]
pub(crate) struct Options {
    lines: bool,
    only: String,
    again: bool,
}

impl Options {
    pub(crate) fn parse(words: &[&str]) -> Result<Self> {
        let mut options = Self { lines: false, only: String::new(), again: false };
        let mut words = words.iter();
        while let Some(&word) = words.next() {
            match word {
                "--lines" => options.lines = true,
                "--only" => options.only = (*words.next().context("--only needs a value")?).to_owned(),
                "--again" => options.again = true,
                _ => bail!("there is no option {word}"),
            }
        }
        Ok(options)
    }
}

/// Builds, runs, counts and judges.
pub(crate) fn run(options: &Options) -> Result<()> {
    let root = super::root()?;
    let work = root.join("target/coverage");
    let report = work.join("lines.info");
    if !options.again {
        let tools = tools()?;
        let started = std::time::Instant::now();
        let binaries = build(&root, &work)?;
        eprintln!("{} test programs were built in {} s", binaries.len(), started.elapsed().as_secs());
        count(&root, &work)?;
        export(&tools, &work, &binaries, &report)?;
    }
    let report = std::fs::read_to_string(&report)
        .with_context(|| format!("cannot read {}: run without --again first", report.display()))?;
    judge(&root, &report, options)
}

/// The folder of LLVM's tools that belong to this compiler.
fn tools() -> Result<PathBuf> {
    let output = Command::new("rustc").args(["--print", "sysroot"]).output().context("cannot start rustc")?;
    let sysroot = String::from_utf8(output.stdout).context("rustc's sysroot")?;
    let host =
        Command::new("rustc").args(["--print", "host-tuple"]).output().context("cannot start rustc")?;
    let host = String::from_utf8(host.stdout).context("rustc's host")?;
    let folder = Path::new(sysroot.trim()).join("lib/rustlib").join(host.trim()).join("bin");
    if !folder.join("llvm-cov").exists() || !folder.join("llvm-profdata").exists() {
        bail!("{} has no llvm-cov: `rustup component add llvm-tools`", folder.display());
    }
    Ok(folder)
}

/// `cargo test` of the crates, with counters and at low priority.
fn cargo(root: &Path, work: &Path) -> Command {
    let mut command = Command::new("nice");
    command.args(["-n", "10", "cargo", "test"]);
    for name in CRATES {
        command.args(["-p", name]);
    }
    // A process adds to one of four files, under a lock: hundreds of processes would leave a file each.
    command.env("LLVM_PROFILE_FILE", work.join("profiles/%4m.profraw"));
    command.env("RUSTFLAGS", "-C instrument-coverage").env("CARGO_TARGET_DIR", work);
    command.env("CARGO_TERM_COLOR", "never").current_dir(root);
    command
}

/// Builds the tests; returns their programs.
fn build(root: &Path, work: &Path) -> Result<Vec<PathBuf>> {
    let mut building = cargo(root, work)
        .arg("--no-run")
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start nice and cargo")?;
    let mut said = String::new();
    for line in BufReader::new(building.stderr.take().context("the output of cargo")?).lines() {
        let line = line?;
        eprintln!("{line}");
        said.push_str(&line);
        said.push('\n');
    }
    let status = building.wait()?;
    if !status.success() {
        bail!("the tests do not build with counters ({status})");
    }
    let binaries: Vec<PathBuf> = executables(&said).map(|path| root.join(path)).collect();
    if binaries.is_empty() {
        bail!("cargo named no test program");
    }
    Ok(binaries)
}

/// The programs in cargo's output: `Executable unittests src/lib.rs (target/.../name-hash)`.
fn executables(said: &str) -> impl Iterator<Item = &str> {
    let line = |line: &'_ str| line.trim_start().starts_with("Executable");
    said.lines().filter(move |text| line(text)).filter_map(|line| {
        let (_, path) = line.rsplit_once('(')?;
        path.strip_suffix(')')
    })
}

fn count(root: &Path, work: &Path) -> Result<()> {
    let profiles = work.join("profiles");
    if profiles.exists() {
        std::fs::remove_dir_all(&profiles)?;
    }
    // Cargo names each program as it starts it; the output of the tests is written to a file.
    let said = work.join("tests.log");
    let status = cargo(root, work).arg("--no-fail-fast").stdout(std::fs::File::create(&said)?).status();
    if !status.context("cannot start nice and cargo")?.success() {
        let text = std::fs::read_to_string(&said).unwrap_or_default();
        let failed: Vec<&str> = failed(&text).collect();
        bail!(
            "the lines that failed tests would have reached are not known: {failed:?}, see {}",
            said.display()
        );
    }
    Ok(())
}

/// The names of the tests that failed, from their output: `test NAME ... FAILED`.
fn failed(said: &str) -> impl Iterator<Item = &str> {
    said.lines().filter_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"))
}

fn export(tools: &Path, work: &Path, binaries: &[PathBuf], report: &Path) -> Result<()> {
    let merged = work.join("merged.profdata");
    let profiles = std::fs::read_dir(work.join("profiles")).context("no test left counts")?;
    let profiles =
        profiles.map(|file| Ok(file?.path().into_os_string())).collect::<Result<Vec<OsString>>>()?;
    let mut merge = Command::new(tools.join("llvm-profdata"));
    merge.args(["merge", "-sparse", "-o"]).arg(&merged).args(profiles);
    if !merge.status().context("cannot start llvm-profdata")?.success() {
        bail!("llvm-profdata failed");
    }
    let mut export = Command::new(tools.join("llvm-cov"));
    export.args([
        "export",
        "--format=lcov",
        "--skip-functions",
        "--ignore-filename-regex=(/registry/|/rustc/)",
    ]);
    export.arg("--instr-profile").arg(&merged);
    for binary in binaries {
        export.arg("--object").arg(binary);
    }
    export.stdout(std::fs::File::create(report)?);
    if !export.status().context("cannot start llvm-cov")?.success() {
        bail!("llvm-cov failed");
    }
    Ok(())
}

/// The number of times that each line of code was reached, by file.
fn parse(report: &str, root: &Path) -> BTreeMap<String, BTreeMap<usize, u64>> {
    let mut files: BTreeMap<String, BTreeMap<usize, u64>> = BTreeMap::new();
    let mut lines = None;
    for record in report.lines() {
        if let Some(path) = record.strip_prefix("SF:") {
            let path = Path::new(path).strip_prefix(root).ok().and_then(Path::to_str);
            lines = path.map(|path| files.entry(path.to_owned()).or_default());
        } else if let (Some(lines), Some(counted)) = (&mut lines, record.strip_prefix("DA:")) {
            let mut fields = counted.split(',');
            let mut field = || fields.next()?.parse::<u64>().ok();
            if let (Some(line), Some(count)) = (field(), field()) {
                // A file can come more than once: a line that any program reached is reached.
                *lines.entry(line as usize).or_default() += count;
            }
        }
    }
    files
}

/// The demand on a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// It counts in the sum only.
    Plain,
    /// Tests must reach it: a format, recovery, an error arm.
    Wanted,
    /// Nothing is demanded. Holds the place in the list of exemptions, or none for an injected bug or an
    /// assertion, a line that is declared unreachable.
    Exempt(Option<usize>),
    /// Test code, and closing brackets: the compiler counts there the runs of a branch that has no lines.
    NotCounted,
}

/// Code that makes an error or matches one.
const ERROR_ARMS: [&str; 5] = ["Err(", "Error::", "map_err", ".poison(", "poison.set"];

/// The start of an injected bug. The product follows `!injected` and other conditions.
const INJECTED: &str = "if injected(Bug::";

fn indentation(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// The demand on each line of the file.
fn kinds(path: &str, text: &str) -> Vec<Kind> {
    let is_whole = WHOLE.iter().any(|(file, _)| *file == path);
    // The indentation of the line that started an exemption or an error arm; deeper lines belong to it.
    let mut open: Option<(usize, Kind)> = None;
    let mut in_tests = false;
    let mut kinds = Vec::new();
    for line in text.lines() {
        in_tests |= line == "#[cfg(test)]";
        let (deep, trimmed) = (indentation(line), line.trim());
        // A closing bracket belongs to the line that opened it at its depth.
        let closes = |from| trimmed.starts_with(['}', ')', ']']) && deep == from;
        if open.is_some_and(|(from, _)| deep <= from && !trimmed.is_empty() && !closes(from)) {
            open = None;
        }
        // Code after an `else` of an injected bug is the product's own.
        if open.is_some_and(|(_, kind)| kind == Kind::Exempt(None)) && trimmed.starts_with("} else") {
            open = None;
        }
        let exempt = EXEMPT.iter().position(|(file, text, _)| *file == path && line.contains(text));
        let is_code = !trimmed.chars().all(|sign| "})];,".contains(sign));
        let kind = if in_tests || !is_code {
            Kind::NotCounted
        } else if let Some((_, kind @ Kind::Exempt(_))) = open {
            kind
        } else if exempt.is_some() || line.contains(INJECTED) || line.contains("unreachable!(") {
            let kind = Kind::Exempt(exempt);
            open = Some((deep, kind));
            kind
        } else if is_whole || ERROR_ARMS.iter().any(|arm| line.contains(arm)) {
            if !is_whole {
                open = Some((deep, Kind::Wanted));
            }
            Kind::Wanted
        } else {
            open.map_or(Kind::Plain, |(_, kind)| kind)
        };
        kinds.push(kind);
        // A module or a function of tests reaches to the end of the file, to its closing brace, or to the end of its
        // line: `mod tests;`.
        in_tests &= line != "}" && !(line.ends_with(';') && indentation(line) == 0);
    }
    kinds
}

/// The lines of one file, counted.
#[derive(Default)]
struct Sum {
    lines: usize,
    reached: usize,
    wanted: usize,
    missed: Vec<usize>,
    exempt: usize,
}

impl Sum {
    fn of(kinds: &[Kind], counts: &BTreeMap<usize, u64>, used: &mut [bool]) -> Self {
        let mut sum = Self::default();
        for (&line, &count) in counts {
            let kind = kinds.get(line - 1).copied().unwrap_or(Kind::Plain);
            if kind == Kind::NotCounted {
                continue;
            }
            sum.lines += 1;
            sum.reached += usize::from(count > 0);
            match kind {
                Kind::Wanted => {
                    sum.wanted += 1;
                    if count == 0 {
                        sum.missed.push(line);
                    }
                }
                Kind::Exempt(place) if count == 0 => {
                    sum.exempt += 1;
                    if let Some(place) = place {
                        used[place] = true;
                    }
                }
                _ => {}
            }
        }
        sum
    }
}

fn percent(part: usize, all: usize) -> f64 {
    if all == 0 { 100.0 } else { 100.0 * part as f64 / all as f64 }
}

fn judge(root: &Path, report: &str, options: &Options) -> Result<()> {
    let files = parse(report, root);
    let mut used = vec![false; EXEMPT.len()];
    let mut all = Sum::default();
    println!(
        "{:>6} {:>6} {:>6} {:>6}  file (lines that must be reached, missed, exempt, % of all lines)",
        "must", "missed", "exempt", "%"
    );
    for (path, counts) in &files {
        let is_counted = path.contains("/src/") && !NOT_COUNTED.iter().any(|part| path.contains(part));
        if !is_counted || !path.contains(&options.only) {
            continue;
        }
        let text = std::fs::read_to_string(root.join(path)).with_context(|| format!("cannot read {path}"))?;
        let sum = Sum::of(&kinds(path, &text), counts, &mut used);
        let what = WHOLE.iter().find(|(file, _)| file == path).map(|(_, what)| *what);
        if what.is_some() || !sum.missed.is_empty() {
            println!(
                "{:>6} {:>6} {:>6} {:>6.1}  {path} ({})",
                sum.wanted,
                sum.missed.len(),
                sum.exempt,
                percent(sum.reached, sum.lines),
                what.unwrap_or("error arms")
            );
        }
        if options.lines {
            for &line in &sum.missed {
                println!("        {path}:{line}: {}", text.lines().nth(line - 1).unwrap_or("").trim());
            }
        }
        all.lines += sum.lines;
        all.reached += sum.reached;
        all.wanted += sum.wanted;
        all.exempt += sum.exempt;
        all.missed.extend(sum.missed);
    }
    let share = percent(all.reached, all.lines);
    println!(
        "{} of {} lines that must be reached were ({} exempt); {} of all {} lines: {share:.1} %",
        all.wanted - all.missed.len(),
        all.wanted,
        all.exempt,
        all.reached,
        all.lines
    );
    if options.only.is_empty() {
        let missing = WHOLE.iter().filter(|(file, _)| !files.contains_key(*file));
        let missing: Vec<&str> = missing.map(|(file, _)| *file).collect();
        let unused = EXEMPT.iter().zip(&used).filter(|(_, used)| !**used);
        let unused: Vec<String> = unused.map(|((file, text, _), _)| format!("{file}: {text:?}")).collect();
        if !missing.is_empty() {
            bail!("no counts for {}: moved, or not tested at all", missing.join(", "));
        }
        if !unused.is_empty() {
            bail!("exempt, but reached or not there any more: {}", unused.join("; "));
        }
    }
    if !all.missed.is_empty() {
        bail!(
            "{} line(s) of formats, recovery or error arms were not reached (--lines names them)",
            all.missed.len()
        );
    }
    if options.only.is_empty() && share < ALL_PERCENT_MIN {
        bail!("{share:.1} % of all lines were reached; the target is {ALL_PERCENT_MIN} %");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_understood() {
        let options = Options::parse(&["--lines", "--only", "open"]).unwrap();
        assert_eq!(options, Options { lines: true, only: "open".into(), again: false });
        assert!(Options::parse(&["--line"]).is_err() && Options::parse(&["--only"]).is_err());
    }

    #[test]
    fn programs_are_found_in_cargo_output() {
        let said = "   Compiling x\n  Executable unittests src/lib.rs (target/c/deps/x-1)\n  Executable tests/a.rs (/t/a-2)\n";
        assert_eq!(executables(said).collect::<Vec<_>>(), ["target/c/deps/x-1", "/t/a-2"]);
    }

    #[test]
    fn failed_tests_are_found_in_output() {
        let said =
            "test a::b ... ok\ntest a::c ... FAILED\ntest d - should panic ... ok\ntest e ... FAILED\n";
        assert_eq!(failed(said).collect::<Vec<_>>(), ["a::c", "e"]);
    }

    #[test]
    fn counts_of_a_file_are_summed_and_others_left_out() {
        let report = "SF:/r/a.rs\nDA:1,0\nDA:2,3\nend_of_record\nSF:/o/b.rs\nDA:1,1\nend_of_record\nSF:/r/a.rs\nDA:1,2\nDA:4,0\n";
        let files = parse(report, Path::new("/r"));
        assert_eq!(files.len(), 1);
        assert_eq!(files["a.rs"], BTreeMap::from([(1, 2), (2, 3), (4, 0)]));
    }

    #[test]
    fn error_arms_injected_bugs_and_tests_are_separated() {
        let text = "\
fn f() {
    g();
    if bad {
        return Err(Error::Corrupt {
            block,
        });
    }
    if injected(Bug::X) {
        h();
    } else {
        return Err(Error::Closed);
    }
    if bad && !injected(Bug::X) {
        return Err(Error::Closed);
    }
    let Some(x) = g() else {
        unreachable!(\"{}\", 1)
    };
    g();
}

#[cfg(test)]
mod tests {
    fn t() {}
}
fn k() {}
#[cfg(test)]
#[path = \"k_tests.rs\"]
mod tests;
fn l() {}
";
        use Kind::{Exempt, NotCounted, Plain, Wanted};
        let expected = [
            [Plain, Plain, Plain, Wanted, Wanted, NotCounted].as_slice(),
            &[NotCounted, Exempt(None), Exempt(None), Plain, Wanted, NotCounted],
            &[Plain, Wanted, NotCounted],
            &[Plain, Exempt(None), NotCounted, Plain, NotCounted, NotCounted],
            &[NotCounted, NotCounted, NotCounted, NotCounted, Plain],
            &[NotCounted, NotCounted, NotCounted, Plain],
        ]
        .concat();
        assert_eq!(kinds("crates/none.rs", text), expected);
    }

    #[test]
    fn a_line_that_was_missed_is_named() {
        let kinds = [Kind::Wanted, Kind::Wanted, Kind::Plain, Kind::Exempt(Some(0)), Kind::NotCounted];
        let counts = BTreeMap::from([(1, 1), (2, 0), (3, 0), (4, 0), (5, 0)]);
        let mut used = [false];
        let sum = Sum::of(&kinds, &counts, &mut used);
        assert_eq!((sum.lines, sum.reached, sum.wanted, sum.exempt), (4, 1, 2, 1));
        assert_eq!((sum.missed, used), (vec![2], [true]));
    }

    #[test]
    fn list_names_existing_files_and_lines() {
        let root = super::super::root().unwrap();
        let text = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_default();
        for (file, _) in WHOLE {
            assert!(!text(file).is_empty(), "{file} is not there");
        }
        for (file, line, why) in EXEMPT {
            assert!(text(file).contains(line), "{file} has no line with {line:?}");
            assert!(why.len() > 10, "{file}: {line:?}: no reason");
        }
    }
}
