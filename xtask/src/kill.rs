//! `cargo x kill`: kills a server under load, again and again, on one store.
//!
//! The rounds themselves are a test of the CLI (`cli/tests/shoal/kill.rs`); this sets their number, place and
//! profile. It is not a part of `cargo test`, because it takes minutes and holds opening to its promised two seconds.

use std::process::Command;

use anyhow::{Context, Result, bail};

pub(crate) const USAGE: &str = "Usage: cargo x kill [--rounds N] [--files N] [--data FILE|DEVICE] [--reopen-ms N] [--seed N] [--dev] [--direct] [--loop]

Starts a server, and in each round kills it (SIGKILL) at a random moment of an import with concurrent puts, overwrites
and deletes. Then `shoal check` must find nothing wrong, opening must not take too long, and everything that was
acknowledged must be there with the right bytes.

  --rounds N      how many kills [default: 10]
  --files N       files of the tree that each round imports [default: 6000]
  --data PATH     the data file, which must not exist, or a blank device [default: a temporary file]
  --reopen-ms N   an opening that takes longer is reported as slow [default: 2000]
  --seed N        repeats the dice of a run, but not its timing
  --dev           the dev profile instead of release
  --direct        fail if the kernel's cache is between (no O_DIRECT)
  --loop          on a loop device that is made for it, with O_DIRECT below it, too; needs root";

/// Bytes of the loop device.
const LOOP_BYTES: u64 = 4 << 30;

/// Options with a value, and the variables by which the test gets them.
const VALUES: [(&str, &str); 5] = [
    ("--rounds", "KILL_ROUNDS"),
    ("--files", "KILL_FILES"),
    ("--data", "KILL_DATA"),
    ("--reopen-ms", "KILL_REOPEN_MS"),
    ("--seed", "KILL_SEED"),
];

/// The options of the command line.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Options {
    dev: bool,
    /// Makes a loop device.
    looped: bool,
    /// Variables and their values.
    values: Vec<(&'static str, String)>,
}

impl Options {
    pub(crate) fn parse(words: &[&str]) -> Result<Self> {
        let mut options = Self::default();
        let mut words = words.iter();
        while let Some(&word) = words.next() {
            match word {
                "--dev" => options.dev = true,
                "--loop" => options.looped = true,
                "--direct" => options.values.push(("KILL_DIRECT", "1".to_owned())),
                _ => {}
            }
            if ["--dev", "--loop", "--direct"].contains(&word) {
                continue;
            }
            let Some((option, variable)) = VALUES.iter().find(|(option, _)| *option == word) else {
                bail!("there is no option {word}");
            };
            let value = words.next().with_context(|| format!("{option} needs a value"))?;
            if *option != "--data" && value.parse::<u64>().is_err() {
                bail!("{option}: {value:?} is not a number");
            }
            // The test runs in another folder.
            let value = if *option == "--data" {
                std::path::absolute(value)?.to_str().context("the path is not UTF-8")?.to_owned()
            } else {
                (*value).to_owned()
            };
            options.values.push((variable, value));
        }
        Ok(options)
    }
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let mut command = Command::new("cargo");
    command.args(["test", "--quiet", "-p", "shoal", "--test", "shoal"]);
    if !options.dev {
        command.arg("--release");
    }
    command.args(["--", "--exact", "kill::rounds_from_environment", "--ignored", "--nocapture"]);
    command.envs(options.values.iter().map(|(variable, value)| (variable, value)));
    let device = options.looped.then(LoopDevice::make).transpose()?;
    if let Some(device) = &device {
        command.env("KILL_DATA", &device.path);
    }
    let status = command.current_dir(super::root()?).status().context("cannot start cargo")?;
    if !status.success() {
        bail!("the rounds failed ({status})");
    }
    Ok(())
}

/// A block device over a sparse file in the build's folder. Taken down when it is dropped.
struct LoopDevice {
    path: String,
    file: std::path::PathBuf,
}

impl LoopDevice {
    fn make() -> Result<Self> {
        let file = super::root()?.join(format!("target/kill-{}.img", std::process::id()));
        std::fs::File::create(&file)?.set_len(LOOP_BYTES)?;
        let mut losetup = Command::new("losetup");
        let output = losetup.args(["--find", "--show", "--direct-io=on"]).arg(&file).output();
        let mut device = Self { path: String::new(), file };
        let output = output.context("cannot start losetup")?;
        if !output.status.success() {
            bail!("no loop device: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        device.path = String::from_utf8(output.stdout)?.trim().to_owned();
        Ok(device)
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        if !self.path.is_empty() {
            let _ = Command::new("losetup").args(["--detach", &self.path]).status();
        }
        let _ = std::fs::remove_file(&self.file);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_become_variables() {
        let options = Options::parse(&["--rounds", "3", "--dev", "--data", "/x/y"]).unwrap();
        let values = vec![("KILL_ROUNDS", "3".to_owned()), ("KILL_DATA", "/x/y".to_owned())];
        assert_eq!(options, Options { dev: true, looped: false, values });
        assert_eq!(Options::parse(&[]).unwrap(), Options::default());
        let options = Options::parse(&["--loop", "--direct"]).unwrap();
        assert!(options.looped && options.values == [("KILL_DIRECT", "1".to_owned())]);
        for wrong in [&["--round", "3"][..], &["--rounds"], &["--rounds", "many"]] {
            assert!(Options::parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
