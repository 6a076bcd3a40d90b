//! `buffer_table SLICES FILTER`: what the buffer's operations cost beside those of other buffers, for a program to read.
//!
//! Prints a line `implementation<TAB>test<TAB>median ns<TAB>best ns` for each test whose name contains FILTER. The
//! tests are RAMCloud's (`cases`), a slice is 20,000 iterations of one, and the slices of all tests and
//! implementations take turns, so that a disturbance hits all alike.
#![allow(missing_docs)]

mod cases;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let slices = arguments.next().map_or(Ok(100), |slices| slices.parse::<usize>());
    let filter = arguments.next().unwrap_or_default();
    match slices {
        Ok(slices) if slices > 0 => {
            for row in cases::measure(slices, &filter) {
                println!("{}\t{}\t{:.3}\t{:.3}", row.implementation, row.test, row.median_ns, row.best_ns);
            }
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("usage: buffer_table [SLICES [FILTER]], with at least one slice");
            ExitCode::FAILURE
        }
    }
}
