//! `shoal man` and `shoal completions`: manual pages, and completion scripts of shells, from the same text as --help.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Command};
use clap_complete::Shell;

use crate::failure::output_error;
use crate::output::Output;

const MAN_EXAMPLES: &str = "\
Examples:
  shoal man ~/.local/share/man/man1     then: man shoal-serve

Each command has a page: shoal.1, shoal-serve.1, shoal-bucket-ls.1 and so on.";

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  shoal completions bash > ~/.local/share/bash-completion/completions/shoal
  shoal completions zsh > ~/.zfunc/_shoal
  shoal completions fish > ~/.config/fish/completions/shoal.fish";

#[derive(Args)]
#[command(after_help = MAN_EXAMPLES)]
pub(crate) struct ManArguments {
    /// The folder for the pages; created if it does not exist.
    dir: PathBuf,
}

#[derive(Args)]
#[command(after_help = COMPLETIONS_EXAMPLES)]
pub(crate) struct CompletionsArguments {
    /// The shell.
    shell: Shell,
}

/// Prints the completion script of `program`, the whole command line.
pub(crate) fn completions(arguments: &CompletionsArguments, mut program: Command) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut program, "shoal", &mut script);
    io::stdout().write_all(&script).map_err(output_error)
}

/// Writes the pages of `program`, the whole command line.
pub(crate) fn pages(arguments: &ManArguments, program: Command) -> anyhow::Result<()> {
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
