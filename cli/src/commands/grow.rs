//! `shoal grow`: raises the cap of a store that no server has open.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use shoal_base::BLOCK_BYTES_U64;

use crate::output::Output;
use crate::size::Size;
use crate::store_file::{self, Grown, Io};

const EXAMPLES: &str = "\
Examples:
  shoal grow --data /srv/shoal.data --size 200G     a file; it grows on as it fills, up to 200G now
  shoal grow --data /dev/nvme1n1                    a device that became larger: all of it

No server may have the store open. A running one is restarted with the larger --size instead, which does the same; a restart takes
about a second. An interruption leaves the store with its old size or with its new one, whole either way. A store cannot shrink.
A program older than this one cannot open a store that grew.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The data file, or the block device.
    #[arg(long, value_name = "FILE", env = "SHOAL_DATA", hide_env_values = true)]
    data: PathBuf,
    /// How large the store may be from now on [default for a device: all of it].
    #[arg(long, value_name = "SIZE")]
    size: Option<Size>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// How the device is driven.
    #[arg(long, value_enum, default_value_t = Io::Auto)]
    io: Io,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let Grown { from, to } = store_file::grow(&arguments.data, arguments.size, arguments.io).await?;
    let (from, to) = (Size(from * BLOCK_BYTES_U64), Size(to * BLOCK_BYTES_U64));
    let mut output = Output::new();
    if arguments.json {
        output.json(&json!({
            "data": arguments.data.to_string_lossy(),
            "grown": to > from,
            "bytes_before": from.0,
            "bytes": to.0,
        }))?;
    } else if to > from {
        output.line(&format!(
            "{}: a store of at most {to} now; it had at most {from}",
            arguments.data.display()
        ))?;
    } else {
        output.line(&format!(
            "{}: a store of at most {from} already; nothing was changed",
            arguments.data.display()
        ))?;
    }
    output.finish()
}
