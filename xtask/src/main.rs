//! The developer loop: `cargo x check`, `cargo x ci`, `cargo x tidy`, `cargo x kill`, `cargo x lab`, `cargo x bugs`,
//! `cargo x models`, `cargo x fuzz`, `cargo x coverage`, `cargo x dist`, `cargo x book`, `cargo x proto`, `cargo x miri`.
//!
//! The same commands run locally and in CI. Nothing here is part of the product.

mod book;
mod bugs;
mod coverage;
mod dist;
mod fuzz;
mod kill;
mod lab;
mod models;
mod proto;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

const USAGE: &str = "Usage: cargo x COMMAND

Commands:
  check   format, clippy without warnings, tidy, and the workspace's unit tests: before each commit
  ci      the checks of CI: .ci/run
  tidy    the rules of the house that no other tool checks (order of modules, file headers, unsafe, names and links in
          documents and comments, ...); with --words the habits of language that have ceilings
  kill    kill -9 of a server under load, again and again: acknowledged writes must be there (kill --help)
  lab     the reliability laboratory at its full size, some minutes (lab --help)
  bugs    injected bugs, which the laboratory must catch (bugs --help)
  models  every state of the archive's protocol, and its planted bugs (models --help)
  fuzz    libFuzzer against every format and protocol, with a nightly compiler (fuzz --help)
  coverage
          lines of formats, recovery and error arms that no test reaches (coverage --help)
  dist    the files of a release: static binary, archive, Debian package, container image, list of crates, checksums
          (dist --help)
  book    the documents as a book, in target/book; needs mdBook
  proto   the Rust code of the protobuf schemas, after a change of a .proto file
  miri    undefined behaviour in the message buffer's unsafe code, with a nightly compiler
  nightly the laboratory for hours, all injected bugs, many kills, fuzzers, coverage, miri";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words[..] {
        ["check"] => check(),
        ["ci"] => run("bash", &[".ci/run"]),
        ["tidy"] => tidy(),
        ["tidy", "--words"] => habits(),
        [command, "help" | "--help" | "-h"] if usage(command).is_some() => {
            println!("{}", usage(command).unwrap_or(USAGE));
            Ok(())
        }
        ["kill", ..] => match kill::Options::parse(&words[1..]) {
            Ok(options) => kill::run(&options),
            Err(error) => {
                eprintln!("error: {error:#}\n\n{}", kill::USAGE);
                return ExitCode::from(2);
            }
        },
        ["models", ..] => {
            told(models::Options::parse(&words[1..]), models::USAGE, |options| models::run(&options))
        }
        ["fuzz", ..] => told(fuzz::Options::parse(&words[1..]), fuzz::USAGE, |options| fuzz::run(&options)),
        ["coverage", ..] => {
            told(coverage::Options::parse(&words[1..]), coverage::USAGE, |options| coverage::run(&options))
        }
        ["dist", ..] => told(dist::Options::parse(&words[1..]), dist::USAGE, |options| dist::run(&options)),
        ["book"] => book::run(),
        ["proto"] => proto::run(),
        ["miri"] => miri(),
        ["lab", "--no-run"] => lab::build(),
        ["lab", ..] => {
            told(lab::Options::parse(&words[1..]), lab::USAGE, |options| lab::run(&options, false))
        }
        ["nightly", ..] => told(lab::Options::parse(&words[1..]), lab::USAGE, nightly),
        ["bugs", ..] => told(bugs::Options::parse(&words[1..]), bugs::USAGE, |options| bugs::run(&options)),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            Ok(())
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The usage of a command that has options.
fn usage(command: &str) -> Option<&'static str> {
    match command {
        "kill" => Some(kill::USAGE),
        "lab" | "nightly" => Some(lab::USAGE),
        "bugs" => Some(bugs::USAGE),
        "models" => Some(models::USAGE),
        "fuzz" => Some(fuzz::USAGE),
        "coverage" => Some(coverage::USAGE),
        "dist" => Some(dist::USAGE),
        _ => None,
    }
}

/// Does `work` with `options`; returns the usage if the command line cannot be understood.
fn told<O>(options: Result<O>, usage: &str, work: impl FnOnce(O) -> Result<()>) -> Result<()> {
    work(options.with_context(|| usage.to_owned())?)
}

/// Everything that takes hours; all of it even if something fails.
fn nightly(options: lab::Options) -> Result<()> {
    let seconds = (900 / options.part).max(1).to_string();
    let every = bugs::Options::parse(&[])?;
    let fuzzers = fuzz::Options::parse(&["--seconds", &seconds])?;
    let lines = coverage::Options::parse(&["--lines"])?;
    let results =
        [bugs::run(&every), lab::run(&options, true), fuzz::run(&fuzzers), coverage::run(&lines), miri()];
    results.into_iter().collect()
}

/// T26: the buffer's unit tests by Miri, a minute and a half besides the build. Pool and device map memory and call the kernel,
/// which Miri does not know.
fn miri() -> Result<()> {
    run("cargo", &["+nightly", "miri", "test", "-p", "shoal-buffer", "--lib", "--target-dir", "target/miri"])
}

fn check() -> Result<()> {
    run("cargo", &["fmt", "--all", "--check"])?;
    run("cargo", &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])?;
    tidy()?;
    run("cargo", &["test", "--workspace", "--lib", "--bins"])
}

fn tidy() -> Result<()> {
    let findings = tidy::findings(&root()?)?;
    for finding in &findings {
        eprintln!("{finding}");
    }
    if !findings.is_empty() {
        bail!("tidy found {} violation(s)", findings.len());
    }
    println!("tidy: no violations");
    Ok(())
}

fn habits() -> Result<()> {
    for count in tidy::words(&root()?)? {
        println!("{count}");
    }
    Ok(())
}

/// Runs a command at the workspace's root; one that fails is printed as the line that repeats it.
fn run(program: &str, arguments: &[&str]) -> Result<()> {
    let line = format!("{program} {}", arguments.join(" "));
    eprintln!("+ {line}");
    let status = Command::new(program)
        .args(arguments)
        .current_dir(root()?)
        .status()
        .with_context(|| format!("cannot start `{line}`"))?;
    if !status.success() {
        bail!("`{line}` failed ({status})");
    }
    Ok(())
}

fn root() -> Result<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().map(Path::to_path_buf).context("xtask is outside a workspace")
}
