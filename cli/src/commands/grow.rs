//! `shoal grow`: raises the cap of a store, of a running server or in a file that no server has open.

use clap::Args;
use serde_json::json;
use shoal_base::BLOCK_BYTES_U64;

use crate::arguments::size::Size;
use crate::arguments::target::StoreArguments;
use crate::failure::Usage;
use crate::output::{Output, warn};
use crate::store::file::{self, Io};
use crate::store::growing;

const EXAMPLES: &str = "Examples:
  shoal grow --size 200G                            the store of the running server, while it serves
  shoal grow                                        the same on an enlarged device: all of it
  shoal grow --data /srv/shoal.data --size 200G     a file that no server has open; it now grows up to 200G as it fills
  shoal grow --data /dev/nvme1n1                    a device that no server has open: all of it

A server with credentials requires a token without restrictions. An interrupted growth leaves the store intact, with its old or its new
size. A store cannot shrink. Versions of shoal that do not have this command cannot open a store that grew.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The new maximum size of the store [default for a device: all of it].
    #[arg(long, value_name = "SIZE")]
    size: Option<Size>,
    /// Accept a size beyond the free space of the file system, which you are going to enlarge. A store cannot shrink again.
    #[arg(long)]
    force: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// With --data: how to do I/O on the device [default: auto].
    #[arg(long, value_enum)]
    io: Option<Io>,
    #[command(flatten)]
    store: StoreArguments,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let store = &arguments.store;
    if store.is_read_only() {
        return Err(Usage("this command writes: it cannot be done with --read-only".into()).into());
    }
    if arguments.io.is_some() && !store.is_file() {
        return Err(Usage("--io is for a store in a file or on a device: it goes with --data".into()).into());
    }
    let (name, from, to) = match store.data() {
        Some(path) => {
            let grown =
                file::grow(path, arguments.size, arguments.io.unwrap_or_default(), arguments.force).await?;
            let bytes = |blocks| Size(blocks * BLOCK_BYTES_U64);
            (path.display().to_string(), bytes(grown.from), bytes(grown.to))
        }
        None => {
            let client = store.connect().await?;
            let grown = client.grow(arguments.size.map(|size| size.0), arguments.force).await?;
            if let Some(room) = grown.room.filter(|&room| room < grown.now) {
                warn(&growing::beyond_room("its file", Size(grown.now), Size(room)));
            }
            (store.server(), Size(grown.before), Size(grown.now))
        }
    };
    let mut output = Output::new();
    if arguments.json {
        let name = if store.is_file() { ("data", name) } else { ("server", name) };
        let mut object = json!({ "grown": to > from, "bytes_before": from.0, "bytes": to.0 });
        object[name.0] = name.1.into();
        output.json(&object)?;
    } else if to > from {
        output.line(&format!("{name}: a store of at most {to} now; it had at most {from}"))?;
    } else {
        output.line(&format!("{name}: a store of at most {from} already; nothing was changed"))?;
    }
    output.finish()
}
