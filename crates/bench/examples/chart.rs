//! Draws the chart of puts a second against objects from a table that `shoal-compare scale` printed:
//! `cargo run -p shoal-bench --example chart -- TABLE docs/charts/growth.svg`; with a folder, the charts of the five questions:
//! `... -- TABLE docs/charts`

use std::path::Path;

use anyhow::{Context, Result, ensure};
use shoal_bench::questions::draw_all;
use shoal_bench::scale::chart::{curves_of, draw};

fn main() -> Result<()> {
    let mut names = std::env::args().skip(1);
    let (Some(table), Some(chart), None) = (names.next(), names.next(), names.next()) else {
        anyhow::bail!("give the file with the table, and the file for the chart or the folder for several");
    };
    let text = std::fs::read_to_string(&table).with_context(|| format!("cannot read {table}"))?;
    if Path::new(&chart).is_dir() {
        for path in draw_all(Path::new(&chart), &text)? {
            println!("{}", path.display());
        }
        return Ok(());
    }
    let curves = curves_of(&text);
    ensure!(!curves.is_empty(), "{table} has no row with a store, its objects and its puts a second");
    draw(Path::new(&chart), &curves)
}
