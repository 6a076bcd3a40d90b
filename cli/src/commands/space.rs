//! `shoal space serve`: the disk-space allocator as a separate service, for programs that lay out a device themselves.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use clap::{Args, Subcommand};
use shoal_base::{SystemClock, SystemEntropy};
use shoal_space_service::{Owner, OwnerOptions, SpaceServer, SpaceServerError};
use tokio::sync::oneshot;

use crate::arguments::size::Size;
use crate::failure::{Usage, announce};
use crate::process::resolve::resolve;
use crate::process::signals::stop_in_order;

const DEFAULT_LISTEN: &str = "127.0.0.1:7414";

const EXAMPLES: &str = "Examples:
  shoal space serve --file space.log --size 2T       the space of a device of 2 TiB; on 127.0.0.1:7414
  shoal space serve --file space.log                 again, after a stop or a crash

Blocks of 4 KiB are handed out, in runs; only FILE is read or written. Clients call for each allocation, or lease whole
groups and commit the blocks that they keep (crate shoal-space-service, docs/format/space-service.md). A client that goes silent is fenced
when its time to live is over. That protects FILE, not the device: several writers on one network device need a device that
supports fencing.";

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Space,
}

#[derive(Subcommand)]
enum Space {
    /// Serve the allocator over gRPC until a signal stops it.
    Serve(ServeArguments),
}

#[derive(Args)]
#[command(after_help = EXAMPLES)]
struct ServeArguments {
    /// The journal of allocations and leases; it is created at the first start.
    #[arg(long, value_name = "FILE")]
    file: PathBuf,
    /// For a new file: the space to hand out.
    #[arg(long, value_name = "SIZE")]
    size: Option<Size>,
    /// The address to listen on; port 0 takes a free one.
    #[arg(long, value_name = "HOST:PORT", default_value = DEFAULT_LISTEN)]
    listen: String,
    /// Accept other machines although clients need no credentials and nothing is encrypted.
    #[arg(long)]
    insecure: bool,
    /// Answer before a change is durable: a kill loses nothing, a power failure may.
    #[arg(long)]
    no_sync: bool,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let Space::Serve(arguments) = arguments.command;
    let (stop, stopped) = oneshot::channel();
    stop_in_order(move || {
        // The receiver is dropped if the server is not running yet or not any more.
        let _ = stop.send(());
    })?;
    let server = bind(&arguments).await?;
    let options = OwnerOptions { size: arguments.size.map(|size| size.0), sync: !arguments.no_sync };
    let owner = Owner::open(&arguments.file, &options, Arc::new(SystemClock::new()), &SystemEntropy)
        .context("the space service was not started")?;
    let lines = server.addresses().iter().map(|address| format!("gRPC  http://{address}\n"));
    announce(&lines.collect::<String>());
    server.run(owner.clone(), async { drop(stopped.await) }).await;
    owner.close();
    Ok(())
}

/// Takes the address before the file is touched.
async fn bind(arguments: &ServeArguments) -> anyhow::Result<SpaceServer> {
    let (address, others) = resolve(&arguments.listen, DEFAULT_LISTEN).await?;
    match SpaceServer::bind(address, &others, arguments.insecure) {
        Err(error @ SpaceServerError::NotLoopback(_)) => Err(Usage(error.to_string()).into()),
        result => result.context("the space service was not started; --listen names another address"),
    }
}
