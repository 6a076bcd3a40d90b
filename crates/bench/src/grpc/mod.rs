//! `bench grpc`: loads on Shoal's server over gRPC, in a separate process on a separate core if there are two; the client has
//! the other one: one thread, one connection. Every returned value is compared with the sent one (`keys`).
//!
//! All cases except the last are calls of the key-value service of the gRPC series (docs/sources.md); `multi-100b` is 100
//! bytes, reads and writes in turn, counted in operations, over the stream of operations. Its further variants are one pattern
//! and one kind each, and `stream-futures` is `durable` with a future for each operation. The study `key-value-service` runs
//! the same loads on other servers.

mod bench;
mod calls;
mod keys;
mod load;
mod many;
mod pipelined;
mod process;
mod seed;
mod serve;
pub mod wire;

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use shoal_device::IoMode;

use crate::report::Metric;
use crate::select;
pub use bench::{Bed, Bench, Contender, Row, Work};
pub use calls::Calls;
pub use keys::{Key, KeySource, Slice};
pub use load::{Call, CallOutcome, Ended, Load, Tally};
pub use pipelined::Pipelined;
pub use process::Remote;
pub use seed::{READ_WORK, WRITE_WORK};
pub use serve::{Serve, ServeOptions, Servers, serve_durable, serve_until_input_ends};

/// The seed of choices, keys, sizes and bytes.
const SEED: u64 = 20_261_121;

/// Parts of a soak that are printed one by one.
const SOAK_PARTS: u32 = 10;

/// Lengths of keys and values.
const LARGE: [usize; 2] = [64, 64 << 10];
/// The same of small objects.
pub const SMALL: [usize; 2] = [24, 100];

/// Number of objects of 100 bytes for each one of 64 KiB.
pub const SMALL_OBJECTS: usize = 20;

/// All cases.
pub const CASES: [&str; 6] = ["crud-64k", "read-64k", "write-64k", "read-100b", "write-100b", "multi-100b"];

/// Variants of Shoal's server.
pub const VARIANTS: [&str; 6] =
    ["durable", "stream-get", "stream-put", "stream-futures", "multi-get", "multi-put"];

const METRICS: [Metric; 10] = [
    Metric { name: "calls_per_s", unit: "1/s", head: "calls/s" },
    Metric { name: "p50_us", unit: "us", head: "p50 us" },
    Metric { name: "p99_us", unit: "us", head: "p99 us" },
    Metric { name: "cpu_us_per_call", unit: "us", head: "CPU us" },
    Metric { name: "client_us_per_call", unit: "us", head: "client us" },
    Metric { name: "ok", unit: "count", head: "OK" },
    Metric { name: "not_found", unit: "count", head: "NOT_FOUND" },
    Metric { name: "already_exists", unit: "count", head: "EXISTS" },
    Metric { name: "x_memory", unit: "1", head: "x memory" },
    Metric { name: "of_ceiling", unit: "1", head: "ceiling" },
];

/// The selected cases, and their parameters.
#[derive(Clone, Debug)]
pub struct GrpcOptions {
    /// Version of the program, for the header.
    pub version: String,
    /// JSON lines instead of a table.
    pub json: bool,
    /// Cases by name, or by prefix and `*`; none: all.
    pub cases: Vec<String>,
    /// Variants likewise.
    pub variants: Vec<String>,
    /// Time for each variant of a case.
    pub time: Duration,
    /// Calls in flight.
    pub in_flight: usize,
    /// Objects of 64 KiB; of 100 bytes there are 20 times as many.
    pub objects: usize,
    /// The data file of the durable server, which must not exist and is removed at the end; none: one in the current folder.
    pub data: Option<PathBuf>,
    /// How its device is driven.
    pub io: IoMode,
    /// How servers are started.
    pub servers: Servers,
    /// Only the series' load on the durable server for this time, and then every object read again.
    pub soak: Option<Duration>,
}

/// Measures and prints. Must not run on a runtime's thread.
///
/// # Errors
/// A name that selects nothing; a server, a call or the output failed; an answer was wrong.
pub fn run(options: &GrpcOptions, out: &mut dyn Write) -> Result<()> {
    let cases = select("case", &CASES, &options.cases)?;
    let variants = select("variant", &VARIANTS, &options.variants)?;
    let what = "grpc: one client, and Shoal's server in a separate process";
    let mut bench = Bench::new(out, what, options, variants, false)?;
    match options.soak {
        Some(time) => bench.soak(time, SOAK_PARTS)?,
        None if bench.wants_shoal(&cases) => {
            let bed = bench.start(serve::DURABLE)?;
            for case in cases {
                let contenders = bench.of_shoal(&bed, case)?;
                bench.take_turns(case, &contenders)?;
            }
            bench.stop(bed)?;
        }
        None => {}
    }
    bench.end().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> GrpcOptions {
        GrpcOptions {
            version: "test".into(),
            json: true,
            cases: Vec::new(),
            variants: Vec::new(),
            time: Duration::ZERO,
            in_flight: 20,
            objects: 20,
            data: None,
            io: IoMode::Auto,
            servers: Servers::Threads(serve_durable),
            soak: None,
        }
    }

    #[test]
    fn every_case_gives_figures_of_every_variant() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let options = GrpcOptions { data: Some(data.clone()), ..options() };
        let mut out = Vec::new();
        run(&options, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        for case in CASES {
            let start = format!("\"case\":\"{case}\",\"metric\":\"calls_per_s\"");
            let is_row = |line: &&str| line.contains(&start) && line.contains("\"durable\"");
            assert!(text.lines().any(|line| is_row(&line)), "{case}: {text}");
        }
        for variant in VARIANTS {
            assert!(text.contains(&format!("\"variant\":\"{variant}\"")), "{variant}: {text}");
        }
        assert!(!data.exists());
    }

    #[test]
    fn a_soak_reads_everything_again() {
        let folder = tempfile::tempdir().unwrap();
        let soak = Some(Duration::ZERO);
        let options = GrpcOptions { data: Some(folder.path().join("data")), soak, ..options() };
        let mut out = Vec::new();
        run(&options, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("none was lost"), "{text}");
    }
}
