//! Conditions on a write, as flags.

use clap::Args;
use shoal_client::{Lsn, RejectRules};

/// The write fails, and changes nothing, unless these hold.
#[derive(Args, Clone, Copy, Debug, Default)]
#[command(next_help_heading = "Conditions")]
pub(crate) struct Conditions {
    /// Only if there is no such object yet.
    #[arg(long, conflicts_with_all = ["if_exists", "if_version"])]
    if_absent: bool,
    /// Only if there is such an object.
    #[arg(long)]
    if_exists: bool,
    /// Only if the object's version is V (`shoal stat KEY` shows it).
    #[arg(long, value_name = "V")]
    if_version: Option<u64>,
}

impl Conditions {
    /// The rules of the store.
    pub(crate) fn rules(self) -> RejectRules {
        RejectRules {
            if_exists: self.if_absent,
            if_missing: self.if_exists,
            if_version_not: self.if_version.map(Lsn),
            if_version_at_most: None,
        }
    }
}
