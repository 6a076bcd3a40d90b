//! `cargo x models`: every state of the archive's protocol, and the planted bugs of its model (`models/`, a separate workspace).

use std::process::Command;

use anyhow::{Context, Result, bail};

pub(crate) const USAGE: &str = "Usage: cargo x models [--no-run | --write [BUG...]]

Explores each run of the archive's protocol completely, and finds each planted bug: minutes on two cores. models/README.md has the
runs, the bugs and the figures.

  --no-run  only builds it
  --write   writes the shortest trace of each planted bug (or of those named, as P12) to models/traces";

/// Explorations at a time: the largest ones take gigabytes.
const RUNNING_MAX: &str = "2";

/// The options of the command line.
#[derive(Debug, PartialEq)]
pub(crate) enum Options {
    Check,
    Build,
    Write(Vec<String>),
}

impl Options {
    pub(crate) fn parse(words: &[&str]) -> Result<Self> {
        match words {
            [] => Ok(Self::Check),
            ["--no-run"] => Ok(Self::Build),
            ["--write", bugs @ ..] => Ok(Self::Write(bugs.iter().map(|bug| (*bug).to_owned()).collect())),
            _ => bail!("{words:?} is no option of models"),
        }
    }
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let root = super::root()?;
    let mut command = Command::new("cargo");
    match options {
        Options::Check => command.args(["test", "--quiet"]),
        Options::Build => command.args(["test", "--quiet", "--no-run"]),
        Options::Write(_) => command.args(["run", "--quiet"]),
    };
    command.args(["--release", "--locked", "--manifest-path", "models/Cargo.toml"]);
    match options {
        Options::Check => command.args(["--", "--nocapture", "--test-threads", RUNNING_MAX]),
        Options::Build => &mut command,
        Options::Write(bugs) => command.arg("--").args(bugs),
    };
    // Clippy does not look at this build: its warnings count here.
    command.env("RUSTFLAGS", "-D warnings").env("CARGO_TARGET_DIR", root.join("target/models"));
    let status = command.current_dir(root).status().context("cannot start cargo")?;
    if !status.success() {
        bail!("the models failed ({status})");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_understood() {
        assert_eq!(Options::parse(&[]).unwrap(), Options::Check);
        assert_eq!(Options::parse(&["--no-run"]).unwrap(), Options::Build);
        assert_eq!(Options::parse(&["--write", "P1"]).unwrap(), Options::Write(vec!["P1".to_owned()]));
        assert!(Options::parse(&["--wr"]).is_err() && Options::parse(&["P1"]).is_err());
    }
}
