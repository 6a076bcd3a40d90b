//! `shoal relocation`: stops the relocation of values in a running server, and lets it go on.

use anyhow::Context;
use clap::{Args, ValueEnum};

use crate::objects::Objects;
use crate::store_file::Access;
use crate::target::StoreArguments;

const EXAMPLES: &str = "\
Examples:
  shoal relocation pause      nothing is moved until the server's next start, or until:
  shoal relocation resume

A store that no server has open moves nothing, so there is nothing to pause with --data.
A store moves values in the background so that a few groups of blocks are always wholly free. `shoal stat` shows how far
that is (relocation.*).";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Whether values are moved from now on.
    what: What,
    #[command(flatten)]
    store: StoreArguments,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    /// Stop moving values.
    Pause,
    /// Values that are due are moved again.
    Resume,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let pause = async |objects: &Objects| {
        objects.pause_relocation(arguments.what == What::Pause).await.context("cannot tell the store")
    };
    arguments.store.with(Access::Write, pause).await
}
