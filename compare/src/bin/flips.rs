//! `cargo run --release --bin flips`: one bit flips in a closed store; who notices?

use anyhow::Result;
use clap::Parser;
use shoal_compare::flips;

/// One bit flips in a closed store: who notices?
#[derive(Parser)]
struct Program {
    #[command(flatten)]
    arguments: flips::Arguments,
}

fn main() -> Result<()> {
    flips::run(&Program::parse().arguments, &[])
}
