//! `shoal man`: the manual pages, from the same text as --help.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Command};

use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  shoal man ~/.local/share/man/man1     then: man shoal-serve

Each command has a page: shoal.1, shoal-serve.1, shoal-bucket-ls.1 and so on.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The folder for the pages; created if it does not exist.
    dir: PathBuf,
}

/// Writes the pages of `program`, which is the whole command line.
pub(crate) fn run(arguments: &Arguments, program: Command) -> anyhow::Result<()> {
    let dir = &arguments.dir;
    let written = fs::create_dir_all(dir).and_then(|()| clap_mangen::generate_to(without_help(program), dir));
    written.with_context(|| format!("cannot write manual pages into {}", dir.display()))?;
    let mut output = Output::new();
    output.line(&format!("manual pages are in {}", dir.display()))?;
    output.finish()
}

/// The commands `help` add nothing to --help.
fn without_help(command: Command) -> Command {
    let names: Vec<String> = command.get_subcommands().map(|it| it.get_name().to_owned()).collect();
    let command = command.disable_help_subcommand(true);
    names.into_iter().fold(command, |command, name| command.mut_subcommand(name, without_help))
}
