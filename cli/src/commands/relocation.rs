//! `shoal relocation`: pauses and resumes the relocation of values in a running server.

use anyhow::Context;
use clap::{Args, ValueEnum};
use serde_json::json;
use shoal_transfer::objects::Objects;

use crate::arguments::target::StoreArguments;
use crate::output::Output;
use crate::store::file::Access;

const EXAMPLES: &str = "\
Examples:
  shoal relocation pause      nothing is moved until the server's next start, or until:
  shoal relocation resume

A store that no server has open moves nothing, so there is nothing to pause with --data.
A store moves values in the background so that a few groups of blocks are always wholly free. `shoal stat` shows the
progress (relocation.*).";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Pause or resume relocation.
    what: What,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: StoreArguments,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    /// Stop relocation.
    Pause,
    /// Resume relocation.
    Resume,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let pause = async |objects: &Objects| {
        let is_paused = arguments.what == What::Pause;
        objects.pause_relocation(is_paused).await.context("cannot pause or resume relocation")?;
        if !arguments.json {
            return Ok(());
        }
        let mut output = Output::new();
        output.json(&json!({ "paused": is_paused }))?;
        output.finish()
    };
    arguments.store.with(Access::Write, pause).await
}
