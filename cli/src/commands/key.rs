//! `shoal key`: the file of keys of a server on this machine.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::json;
use shoal_base::{Clock, SystemClock};
use shoal_server::{KeyEntry, KeyFile, ROTATION_OVERLAP, seconds_of};

use crate::arguments::credentials::read_key_file;
use crate::arguments::key_file::change;
use crate::failure::{NotFound, Usage};
use crate::output::Output;

const EXAMPLES: &str = "Examples:
  shoal key create --name uploads --allow 'read,list,write photos/incoming/*' --expires 90d
  shoal key create --allow 'all *'               a key that may do everything
  shoal key list
  shoal key rotate SHK7Q2M4XZA4B3C5D7E2          a new secret; the old one stays valid for a day
  shoal key rm SHK7Q2M4XZA4B3C5D7E2
  eval \"$(shoal key env)\"                        the first key for programs that speak S3: aws s3 ls

A grant is ACTION,... BUCKET[*][/PREFIX*]. The actions are read, list, write, delete, bucket (make or empty a bucket) and admin
(operate the server), or all; * is all buckets. Everything else is denied. `shoal serve --key-file FILE` reads the file again
within a second of a change. Clients show a key as `authorization: Bearer ID.SECRET` (gRPC; a command by a --token-file with that
line) or AUTH ID SECRET (Redis), or sign with it (S3).";

/// The file of keys, if no option names one.
pub(crate) const DEFAULT_KEY_FILE: &str = "./shoal.keys";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Args)]
struct KeyPath {
    /// The file of keys.
    #[arg(long, value_name = "FILE", env = "SHOAL_KEY_FILE", hide_env_values = true, default_value = DEFAULT_KEY_FILE)]
    key_file: PathBuf,
}

#[derive(Subcommand)]
enum Command {
    /// Make a key, and print its id and secret once. The file is created if it does not exist.
    Create {
        /// A name for people.
        #[arg(long)]
        name: Option<String>,
        /// A grant; may be repeated.
        #[arg(long, value_name = "GRANT", required = true)]
        allow: Vec<String>,
        /// The time after which the key is not accepted any more [default: never].
        #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
        expires: Option<Duration>,
        /// Print a JSON object.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        path: KeyPath,
    },
    /// List the keys, without their secrets.
    List {
        /// Print one JSON object a line.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        path: KeyPath,
    },
    /// Remove a key.
    Rm {
        /// The id of the key.
        id: String,
        #[command(flatten)]
        path: KeyPath,
    },
    /// Print a key, with its secret, as the environment of programs that speak S3.
    Env {
        /// The id of the key [default: the first one with a secret that has not expired].
        id: Option<String>,
        /// The address of the server.
        #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:7413")]
        endpoint: String,
        /// The region that the server has by --s3-region.
        #[arg(long, value_name = "REGION", default_value = shoal_s3::DEFAULT_REGION)]
        region: String,
        #[command(flatten)]
        path: KeyPath,
    },
    /// Give a key a new secret, and print it once.
    Rotate {
        /// The id of the key.
        id: String,
        /// The time for which the old secret is accepted as well [default: 24h].
        #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
        overlap: Option<Duration>,
        /// Print a JSON object.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        path: KeyPath,
    },
}

pub(crate) fn run(arguments: Arguments) -> anyhow::Result<()> {
    let now_s = SystemClock::default().wall_ns() / 1_000_000_000;
    match arguments.command {
        Command::Create { name, allow, expires, json, path } => {
            let expires_s = expires.map(|expires| now_s.saturating_add(expires.as_secs()));
            let create = |file: &mut KeyFile| {
                let entry = file.create(name, allow, now_s, expires_s).cloned();
                entry.map_err(|error| Usage(error.to_string()).into())
            };
            show_secret(&change(&path.key_file, true, create)?, json)
        }
        Command::List { json, path } => list(&read_key_file(&path.key_file)?, now_s, json),
        Command::Rm { id, path } => change(&path.key_file, false, |file| {
            must_exist(file, &id)?;
            file.remove(&id)?;
            Ok(())
        }),
        Command::Env { id, endpoint, region, path } => {
            environment(&read_key_file(&path.key_file)?, id.as_deref(), (&endpoint, &region), now_s)
        }
        Command::Rotate { id, overlap, json, path } => {
            let rotated = change(&path.key_file, false, |file| {
                must_exist(file, &id)?;
                Ok(file.rotate(&id, now_s, overlap.unwrap_or(ROTATION_OVERLAP))?.clone())
            })?;
            show_secret(&rotated, json)
        }
    }
}

/// Prints a key as commands of a shell that set the environment.
fn environment(
    file: &KeyFile,
    id: Option<&str>,
    (endpoint, region): (&str, &str),
    now_s: u64,
) -> anyhow::Result<()> {
    if let Some(id) = id {
        must_exist(file, id)?;
    }
    let is_over =
        |entry: &KeyEntry| entry.expires.as_ref().and_then(seconds_of).is_some_and(|end| now_s >= end);
    let mut usable = file.entries.iter().filter_map(|entry| Some((entry, entry.secret.as_deref()?)));
    let found = match id {
        Some(id) => usable.find(|(entry, _)| entry.id == id),
        None => usable.find(|(entry, _)| !is_over(entry)),
    };
    let Some((entry, secret)) = found else {
        let problem = "there is no key with a secret; `shoal key create` makes one";
        return Err(NotFound(problem.to_owned()).into());
    };
    let mut output = Output::new();
    for (name, value) in [
        ("AWS_ACCESS_KEY_ID", entry.id.as_str()),
        ("AWS_SECRET_ACCESS_KEY", secret),
        ("AWS_ENDPOINT_URL", endpoint),
        ("AWS_REGION", region),
        ("AWS_DEFAULT_REGION", region),
    ] {
        output.line(&format!("export {name}={}", quoted(value)))?;
    }
    output.finish()
}

/// A word of a shell with this value.
fn quoted(value: &str) -> String {
    format!("'{}'", value.replace('\'', "'\\''"))
}

fn must_exist(file: &KeyFile, id: &str) -> anyhow::Result<()> {
    match file.entries.iter().any(|entry| entry.id == id) {
        true => Ok(()),
        false => Err(NotFound(format!("there is no key {id:?}; `shoal key list` lists the keys")).into()),
    }
}

fn show_secret(entry: &KeyEntry, json: bool) -> anyhow::Result<()> {
    let (mut output, secret) = (Output::new(), entry.secret.as_deref().unwrap_or_default());
    if json {
        output.json(&json!({ "id": entry.id, "secret": secret }))?;
    } else {
        output.line(&format!("id      {}", entry.id))?;
        output.line(&format!("secret  {secret}"))?;
    }
    output.finish()
}

fn list(file: &KeyFile, now_s: u64, json: bool) -> anyhow::Result<()> {
    let mut output = Output::new();
    for entry in &file.entries {
        let time = |date: &Option<_>| date.as_ref().map(ToString::to_string);
        let is_over = entry.expires.as_ref().and_then(seconds_of).is_some_and(|end_s| now_s >= end_s);
        if json {
            output.json(&json!({
                "id": entry.id,
                "name": entry.name,
                "certificate": entry.certificate,
                "created": time(&entry.created),
                "expires": time(&entry.expires),
                "expired": is_over,
                "old_until": time(&entry.old_until),
                "allow": entry.allow,
            }))?;
            continue;
        }
        let end = match time(&entry.expires) {
            Some(_) if is_over => "expired".to_owned(),
            Some(end) => end,
            None => "no end".to_owned(),
        };
        let name = entry.name.as_deref().unwrap_or("-");
        output.line(&format!("{}  {end:<20}  {name}  ({})", entry.id, entry.allow.join("; ")))?;
    }
    output.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_of_a_shell_keeps_its_value() {
        assert_eq!(quoted("a$b"), "'a$b'");
        assert_eq!(quoted("a'b"), r"'a'\''b'");
    }
}
