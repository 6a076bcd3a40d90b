//! The command line as a whole, and the arguments that several commands share. Other arguments are in the file of their command.
//!
//! [`target`] is a store and a bucket, [`credentials`] are secrets in files, [`key_file`] changes one, [`conditions`] are those of a write, [`filter`] selects keys,
//! [`range`] and [`size`] are values.

pub(crate) mod archive;
pub(crate) mod conditions;
pub(crate) mod credentials;
pub(crate) mod filter;
pub(crate) mod key_file;
pub(crate) mod range;
pub(crate) mod size;
pub(crate) mod target;

use clap::{Parser, Subcommand};

use crate::commands::{
    backup, bench, bucket, check, config, cp, du, export, format, get, grow, import, key, ls, man, mv, put,
    relocation, report, restore, rm, serve, space, stat, top,
};

const EXAMPLES: &str = "Examples:
  shoal serve                        start a server; its data file is ./shoal.data
  shoal put notes/today today.txt    store a file under a key
  shoal get notes/today              write it to standard output
  shoal ls notes/ --long             list keys with the prefix notes/
  shoal import ./photos --prefix photos/
                                     store a whole folder, with modes, times and symlinks
  shoal export photos/ ./restored    get it back
  shoal rm --prefix photos/          delete it
  shoal check --data shoal.data      verify everything, while no server runs

The server is at http://127.0.0.1:7411, unless --server or SHOAL_SERVER names another address. With
--data FILE, a command works on the data file itself, without a server.

Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 3 the object does not exist, 4 a condition (--if-...) failed,
5 done, except for the parts that --lossy skipped.
With --json, the output of a command is JSON: one object, or one object a line.";

/// Shoal stores lots of small objects, 0 to 4 MiB each, durably in one file or on one device.
#[derive(Parser)]
#[command(name = "shoal", version, after_help = EXAMPLES, max_term_width = 100, propagate_version = true)]
pub(crate) struct Cli {
    /// The level of the log on standard error: error, warn, info, debug, trace, or filters such as shoal_engine=debug.
    #[arg(long, global = true, env = "RUST_LOG", value_name = "LEVEL", hide_env_values = true)]
    pub(crate) log: Option<String>,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Run a server.
    Serve(Box<serve::Arguments>),
    /// Check or show a server's configuration.
    Config(Box<config::Arguments>),
    /// Create a store in a file or on a block device.
    Format(format::Arguments),
    /// Grow a store, of a running server or in a file.
    Grow(grow::Arguments),
    /// Store a file, or standard input, under a key.
    Put(put::Arguments),
    /// Write an object's value to standard output or to a file.
    Get(get::Arguments),
    /// List keys.
    Ls(ls::Arguments),
    /// Delete objects.
    Rm(rm::Arguments),
    /// Show the attributes of an object, or the state of the whole store.
    Stat(stat::Arguments),
    /// Show a running server's requests, rates and percentiles, live.
    Top(top::Arguments),
    /// Copy objects to other keys, with their metadata.
    Cp(cp::Arguments),
    /// Move objects to other keys.
    Mv(mv::Arguments),
    /// Show bytes and number of objects by prefix.
    Du(du::Arguments),
    /// List buckets, show one, or delete one.
    Bucket(bucket::Arguments),
    /// Make, list, replace or remove the keys that clients show to a server.
    Key(key::Arguments),
    /// Store a folder, a tar, or the strings of a Redis server.
    Import(import::Arguments),
    /// Write objects into a folder or a tar, in the form that import reads.
    Export(export::Arguments),
    /// Back up all objects, or the changes since another backup; or verify backups.
    Backup(backup::Arguments),
    /// Create a store from a backup, from a full backup and its increments, or from an archive.
    Restore(restore::Arguments),
    /// Show, verify and look after the archive of a store in a bucket.
    Archive(crate::commands::archive::Arguments),
    /// Verify a whole store that no server has open, and repair it.
    Check(check::Arguments),
    /// Pause or resume the relocation of values in a running server.
    Relocation(relocation::Arguments),
    /// Write an archive of configuration, figures, log and space map for a support case.
    Report(report::Arguments),
    /// Allocate disk space for other processes.
    Space(space::Arguments),
    /// Measure this program on this machine.
    Bench(bench::Arguments),
    /// Print the completion script of a shell.
    Completions(man::CompletionsArguments),
    /// Write the manual pages of all commands.
    Man(man::ManArguments),
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
