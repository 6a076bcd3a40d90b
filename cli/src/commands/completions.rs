//! `shoal completions`: what a shell needs to complete this program's command line.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::args::Cli;
use crate::failure::output_error;

const EXAMPLES: &str = "\
Examples:
  shoal completions bash > ~/.local/share/bash-completion/completions/shoal
  shoal completions zsh > ~/.zfunc/_shoal
  shoal completions fish > ~/.config/fish/completions/shoal.fish";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The shell.
    shell: Shell,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "shoal", &mut script);
    std::io::Write::write_all(&mut std::io::stdout(), &script).map_err(output_error)
}
