//! `--include` and `--exclude`: the keys that take part in an import or export.

use clap::Args;
use shoal_base::glob;
use shoal_transfer::filter::Filter;

/// The patterns.
#[derive(Args, Clone, Debug)]
pub(crate) struct FilterArguments {
    /// Only keys that match one of these, without the prefix: * any bytes (/ too), ? one byte, [a-z]. Repeatable.
    #[arg(long, value_name = "PATTERN", value_parser = whole)]
    include: Vec<String>,
    /// No keys that match one of these, even if they match --include. Repeatable.
    #[arg(long, value_name = "PATTERN", value_parser = whole)]
    exclude: Vec<String>,
}

impl FilterArguments {
    /// The filter.
    pub(crate) fn filter(&self) -> Filter {
        Filter { include: self.include.clone(), exclude: self.exclude.clone() }
    }
}

/// Checks for clap that every set in a pattern is closed.
fn whole(pattern: &str) -> Result<String, String> {
    match glob::cut_at(pattern.as_bytes()) {
        None => Ok(pattern.to_owned()),
        Some(at) => Err(format!(
            "at byte {at} it has a set without `]`, or a last backslash: write `\\[` or `\\\\` for the byte"
        )),
    }
}
