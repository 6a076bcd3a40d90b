//! `cargo run --release --bin flips`: one bit flips in a closed store; the table shows the stores that notice it.

use anyhow::Result;
use clap::Parser;
use shoal_compare::flips;

/// One bit flips in a closed store: which stores notice it?
#[derive(Parser)]
struct Program {
    #[command(flatten)]
    arguments: flips::Arguments,
}

fn main() -> Result<()> {
    flips::run(&Program::parse().arguments, &[])
}
