//! The developer loop: `cargo x check`, `cargo x ci`, `cargo x tidy`.
//!
//! The same commands run locally and in CI. Nothing here is part of the product.

mod tidy;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

const USAGE: &str = "\
Usage: cargo x COMMAND

Commands:
  check   format, clippy without warnings, tidy, and the workspace's unit tests: before each commit
  ci      what CI runs: .ci/run
  tidy    the rules of the house that no other tool checks (layers, file headers, unsafe, docs links, ...)";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words[..] {
        ["check"] => check(),
        ["ci"] => run("bash", &[".ci/run"]),
        ["tidy"] => tidy(),
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

/// Runs a command at the workspace's root; what fails is printed as the line that repeats it.
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
    own.parent().map(Path::to_path_buf).context("xtask lies outside a workspace")
}
