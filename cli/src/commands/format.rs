//! `shoal format`: makes a new store in a file or on a block device, if nothing is lost by it.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use shoal_base::BLOCK_BYTES_U64;

use crate::arguments::size::Size;
use crate::failure::Usage;
use crate::output::Output;
use crate::store::file::{self, Access, Formatted, Io, StoreOptions};

const EXAMPLES: &str = "Examples:
  shoal format /dev/nvme1n1               a whole device, which must be blank: it reads as zeros (blkdiscard, shred -zn0)
  shoal format --if-blank /dev/nvme1n1    for start scripts: does nothing if it already holds a store
  shoal format --force=/dev/nvme1n1 /dev/nvme1n1
                                          destroys the data on the device; its name is given twice
  shoal format /srv/shoal.data --size 200G

A device that is not blank is refused, and its content is named if known: file systems, volume managers, partition tables, RAID and
encrypted volumes, another store. A device that is mounted or otherwise in use is always refused.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The block device, or the file; a file that does not exist is created.
    #[arg(value_name = "DEV|FILE")]
    data: PathBuf,
    /// How large the store may grow [default: all of a device; for a file 80 % of the disk's free space, at most 64G].
    #[arg(long, value_name = "SIZE")]
    size: Option<Size>,
    /// The number of tablets, 1 to 32 [default: the number of cores, at least 4].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=32))]
    tablets: Option<u16>,
    /// Also format a device or file that is not blank, and destroy its contents; also accept a size beyond the free space of
    /// the file system. The value repeats the name of the device or file.
    #[arg(long, value_name = "DEV|FILE", require_equals = true, conflicts_with = "if_blank")]
    force: Option<OsString>,
    /// If there is a Shoal store already, change nothing and succeed.
    #[arg(long)]
    if_blank: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// How to do I/O on the device.
    #[arg(long, value_enum, default_value_t = Io::Auto)]
    io: Io,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let data = &arguments.data;
    if arguments.force.as_ref().is_some_and(|name| name != data.as_os_str()) {
        let why = format!("--force does not repeat the name: write --force={0} {0}", data.display());
        return Err(Usage(why).into());
    }
    let options = StoreOptions {
        access: Access::Create,
        size: arguments.size,
        beyond_room: arguments.force.is_some(),
        tablets: arguments.tablets,
        io: arguments.io,
        ..StoreOptions::default()
    };
    let overwrite = arguments.force.is_some();
    let formatted = file::format(data, &options, overwrite, arguments.if_blank).await?;
    let mut output = Output::new();
    match (&formatted, arguments.json) {
        (Formatted::New(layout), true) => output.json(&json!({
            "data": data.to_string_lossy(),
            "formatted": true,
            "bytes": layout.blocks_max * BLOCK_BYTES_U64,
            "tablets": layout.tablets,
        }))?,
        (Formatted::Kept, true) => {
            output.json(&json!({ "data": data.to_string_lossy(), "formatted": false }))?;
        }
        (Formatted::New(layout), false) => output.line(&format!(
            "{}: a new store of at most {}, {} tablets",
            data.display(),
            Size(layout.blocks_max * BLOCK_BYTES_U64),
            layout.tablets
        ))?,
        (Formatted::Kept, false) => {
            output.line(&format!("{}: a store is there already; nothing was changed", data.display()))?;
        }
    }
    output.finish()
}
