//! `shoal config`: the configuration that `shoal serve` would have, without a start.

use std::collections::BTreeMap;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Subcommand};
use serde_json::{Map, Value, json};
use shoal_metrics::MemoryParts;
use shoal_transfer::text::one_line;

use crate::commands::serve::{self, check, defaults, divided_memory, keys, read_file};
use crate::failure::Usage;
use crate::memory::budget::MemoryBudget;
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  shoal config check --config /etc/shoal/shoal.toml
  shoal config show --config /etc/shoal/shoal.toml --cache 4G
  shoal config show                        all keys, and the defaults as comments

Both take the options of `shoal serve`, and its environment variables: the command line overrides the environment,
which overrides the file. Files with secrets are named, and never shown.

Exit codes: 0 the configuration is valid, 2 it is not, and the reason is printed.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Check the configuration as a start would: values, files with credentials, addresses. No port is taken, no data file is
    /// opened.
    #[command(after_help = EXAMPLES)]
    Check {
        /// Print a JSON object.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        serve: serve::Arguments,
    },
    /// Show the configuration as a file, with the source of each value.
    #[command(after_help = EXAMPLES)]
    Show {
        /// Print a JSON object.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        serve: serve::Arguments,
    },
}

/// `program` is the whole command line: its parser knows the source of each value.
pub(crate) async fn run(
    arguments: Arguments,
    log: Option<String>,
    program: clap::Command,
) -> anyhow::Result<()> {
    let mut output = Output::new();
    match arguments.command {
        Command::Check { json, serve } => {
            // Every failure here is one of the configuration.
            check(serve, log).await.map_err(|error| Usage(one_line(&error)))?;
            if json {
                output.json(&json!({ "valid": true }))?;
            } else {
                output.line("the configuration is valid")?;
            }
        }
        Command::Show { json, serve } => {
            let matches = program.get_matches();
            let matches = matches.subcommand_matches("config").and_then(|it| it.subcommand_matches("show"));
            let memory = divided_memory(&serve).map_err(|error| one_line(&error));
            show(&mut output, &all(&serve, log, matches)?, &memory, json)?;
        }
    }
    output.finish()
}

/// A key of the configuration.
struct Entry {
    key: String,
    /// None: its default holds.
    value: Option<toml::Value>,
    source: &'static str,
    default: String,
}

/// All keys with their values, from the options, the environment and the file.
fn all(
    given: &serve::Arguments,
    log: Option<String>,
    matches: Option<&ArgMatches>,
) -> anyhow::Result<Vec<Entry>> {
    let file = given.config.as_deref().map(read_file).transpose()?.unwrap_or_default();
    let in_file = toml::Table::try_from(&file)?;
    let mut options = toml::Table::try_from(given)?;
    options.extend(log.map(|log| ("log".to_owned(), log.into())));
    let mut defaults = defaults();
    let entry = |key: String| {
        let (given, in_file) = (options.get(&key), in_file.get(&key));
        let id = key.replace('-', "_");
        let source = match matches.and_then(|matches| matches.value_source(&id)) {
            Some(ValueSource::EnvVariable) if given.is_some() => "environment",
            _ if given.is_some() => "option",
            _ if in_file.is_some() => "file",
            _ => "default",
        };
        let default = defaults.remove(&key).unwrap_or_default();
        Entry { value: given.or(in_file).cloned(), source, default, key }
    };
    Ok(keys().into_iter().map(entry).collect())
}

/// `memory`: how the server would divide its memory, or why it cannot.
fn show(
    output: &mut Output,
    entries: &[Entry],
    memory: &Result<MemoryBudget, String>,
    json: bool,
) -> anyhow::Result<()> {
    if json {
        let mut object = Map::new();
        for Entry { key, value, source, default } in entries {
            let value = value.as_ref().map(serde_json::to_value).transpose()?;
            let entry = match value {
                Some(value) => json!({ "value": value, "source": source }),
                None => json!({ "source": source, "default": default }),
            };
            object.insert(key.clone(), entry);
        }
        let divided = match memory {
            Ok(memory) => {
                let MemoryParts { total, parts } = memory.figures();
                json!({ "total": total, "parts": parts.into_iter().collect::<BTreeMap<_, _>>() })
            }
            Err(error) => json!({ "error": error }),
        };
        object.insert("memory-division".into(), divided);
        return output.json(&Value::from(object));
    }
    for Entry { key, value, source, default } in entries {
        match value {
            Some(value) => output.line(&format!("{key} = {value}  # {source}"))?,
            None => output.line(&format!("# {key}: {default}"))?,
        }
    }
    match memory {
        Ok(memory) => output.line(&format!("# the memory is divided: {}", memory.words())),
        Err(error) => output.line(&format!("# the memory cannot be divided: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_its_source() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shoal.toml");
        std::fs::write(&path, "cache = '2G'\nlisten = '127.0.0.1:1'\nlog = 'debug'\n").unwrap();
        let given = serve::Arguments {
            config: Some(path),
            listen: Some("127.0.0.1:2".into()),
            ..serve::Arguments::default()
        };
        let entries = all(&given, None, None).unwrap();
        let of = |key: &str| entries.iter().find(|entry| entry.key == key).unwrap();
        assert_eq!((of("listen").source, of("cache").source, of("log").source), ("option", "file", "file"));
        assert_eq!(of("listen").value, Some("127.0.0.1:2".into()));
        assert_eq!((of("data").source, of("data").default.as_str()), ("default", "./shoal.data"));
        assert_eq!(
            (of("resp-bucket").default.as_str(), of("insecure").default.as_str()),
            (
                "default, as for all other clients, or redis if that bucket has objects at the start",
                "not set"
            )
        );
        // The entries that have values make a file with the same meaning.
        let mut text = String::new();
        for entry in &entries {
            if let Some(value) = &entry.value {
                text += &format!("{} = {value}\n", entry.key);
            }
        }
        let again: serve::Arguments = toml::from_str(&text).unwrap();
        assert_eq!(again.listen.as_deref(), Some("127.0.0.1:2"));
        assert_eq!(again.cache, Some(crate::arguments::size::Size(2 << 30)));
    }
}
