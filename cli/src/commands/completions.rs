//! `shoal completions`: the script with which a shell completes this program's command line.

use clap::{Args, Command};
use clap_complete::Shell;

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

/// Prints the completion script of `command`, which is the whole command line.
pub(crate) fn run(arguments: &Arguments, mut command: Command) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "shoal", &mut script);
    std::io::Write::write_all(&mut std::io::stdout(), &script).map_err(output_error)
}
