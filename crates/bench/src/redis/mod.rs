//! `bench redis`: SET and GET of a running server, or of one in this process on a new data file, over the Redis protocol.
//!
//! A case is named by its command, the bytes of a value, the clients and, if there are several, the commands that a client
//! sends at once: `get-100b-c50-p16`. Every client is a thread with a connection and one batch of commands in flight; times are
//! of a batch. Keys start with `shoal-bench:` and are deleted at the end.

mod bed;
mod link;
mod load;

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use shoal_device::IoMode;

pub use bed::{Bed, BedOptions, StoreLocation, load};
pub use link::{Link, alone, command};
pub use load::{Random, Row, crowd};

use crate::cores::Cores;
use crate::enough::Enough;
use crate::machine;
use crate::report::{Metric, Report};
use crate::select;

const METRICS: &[Metric] = &[
    Metric { name: "ops_per_s", unit: "1/s", head: "ops/s" },
    Metric { name: "mb_per_s", unit: "MB/s", head: "MB/s" },
    Metric { name: "p50_us", unit: "us", head: "p50 us" },
    Metric { name: "p99_us", unit: "us", head: "p99 us" },
    Metric { name: "p999_us", unit: "us", head: "p99.9 us" },
];

/// Sizes of values by name, and objects of each; those of 64 KiB are fewer.
const SIZES: [(&str, usize, u64); 2] = [("100b", 100, 1), ("64k", 64 << 10, 50)];

/// Clients, and commands that each sends at once.
const CROWDS: [(usize, usize); 3] = [(1, 1), (50, 1), (50, 16)];

/// The selected cases, and their parameters.
#[derive(Clone, Debug)]
pub struct RedisBenchOptions {
    /// Version of the program, for the header.
    pub version: String,
    /// JSON lines instead of a table.
    pub json: bool,
    /// Cases by name, or by prefix and `*`; none: all.
    pub cases: Vec<String>,
    /// Time for each case.
    pub time: Duration,
    /// Objects of 100 bytes; of 64 KiB there are fifty times fewer.
    pub objects: u64,
    /// The server; none: one in this process.
    pub server: Option<SocketAddr>,
    /// The data file of that one, which must not exist and is removed at the end; none: a temporary one in the current folder.
    pub data: Option<PathBuf>,
    /// How its device is driven.
    pub io: IoMode,
}

/// One row: the work of the clients.
struct Case {
    name: String,
    is_get: bool,
    bytes: usize,
    objects: u64,
    clients: usize,
    at_once: usize,
}

fn cases(objects: u64) -> Vec<Case> {
    let mut cases = Vec::new();
    for (size, bytes, fewer) in SIZES {
        for (word, is_get) in [("set", false), ("get", true)] {
            for (clients, at_once) in CROWDS {
                let batch = if at_once == 1 { String::new() } else { format!("-p{at_once}") };
                let name = format!("{word}-{size}-c{clients}{batch}");
                cases.push(Case { name, is_get, bytes, objects: (objects / fewer).max(1), clients, at_once });
            }
        }
    }
    cases
}

fn key(bytes: usize, number: u64) -> Vec<u8> {
    format!("shoal-bench:{bytes}:{number:010}").into_bytes()
}

/// Measures and prints.
///
/// # Errors
/// A name that selects nothing; the store, a connection or the output failed.
pub fn run(options: &RedisBenchOptions, out: &mut dyn Write) -> Result<()> {
    let cases = cases(options.objects);
    let names: Vec<&str> = cases.iter().map(|case| case.name.as_str()).collect();
    let wanted = select("case", &names, &options.cases)?;
    // Before this thread is pinned to one core.
    let machine = machine::describe();
    let place = StoreLocation::File(options.data.as_deref(), options.io);
    let bed = if options.server.is_none() { Some(Bed::new(place)?) } else { None };
    let address = match (options.server, &bed) {
        (Some(address), _) => address,
        (None, Some(bed)) => bed.address,
        (None, None) => return Ok(()),
    };
    let mut report = Report::new(out, "redis", METRICS, options.json);
    for (name, value) in [
        ("bench", "redis: SET and GET over the Redis protocol"),
        ("machine", &machine),
        ("load average", &machine::load()),
        ("version", &options.version),
        ("server", &bed.as_ref().map_or(address.to_string(), |_| "in this process, on a data file".into())),
        ("cores", Cores::describe(bed.as_ref().and_then(|bed| bed.cores))),
        ("seconds a case", &options.time.as_secs_f64().to_string()),
    ] {
        report.fact(name, value)?;
    }
    let mut link = Link::connect(address)?;
    let cases: Vec<&Case> = cases.iter().filter(|case| wanted.contains(&case.name.as_str())).collect();
    for (_, bytes, _) in SIZES {
        let cases: Vec<&&Case> = cases.iter().filter(|case| case.bytes == bytes).collect();
        let Some(objects) = cases.first().map(|case| case.objects) else { continue };
        load(&mut link, objects, bytes, |number| key(bytes, number))?;
        for case in cases {
            report.row(&case.name, "server", &case.measure(address, options.time)?)?;
        }
        for number in 0..objects {
            link.call(&alone(&[b"DEL", &key(bytes, number)]), 1)?;
        }
    }
    report.fact("load average at the end", &machine::load())?;
    Ok(())
}

impl Case {
    fn measure(&self, address: SocketAddr, time: Duration) -> Result<Vec<Option<f64>>> {
        let value = vec![b'w'; self.bytes];
        let row = crowd(address, Enough::after(time), self.clients, self.at_once, |random| {
            let mut commands = Vec::new();
            for _ in 0..self.at_once {
                let key = key(self.bytes, random.below(self.objects));
                let words: [&[u8]; 3] =
                    if self.is_get { [b"GET", &key, b""] } else { [b"SET", &key, &value] };
                command(&mut commands, if self.is_get { &words[..2] } else { &words });
            }
            commands
        })?;
        let per_s =
            (row.times.count() * self.at_once as u64) as f64 / row.took.as_secs_f64().max(f64::MIN_POSITIVE);
        let at = |permille| Some(row.times.quantile_us(permille));
        Ok(vec![Some(per_s), Some(per_s * self.bytes as f64 / 1e6), at(500), at(990), at(999)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_gives_figures_and_no_key_stays() {
        let bed = Bed::new(StoreLocation::Memory).unwrap();
        let options = RedisBenchOptions {
            version: "test".into(),
            json: true,
            cases: Vec::new(),
            time: Duration::ZERO,
            objects: 200,
            server: Some(bed.address),
            data: None,
            io: IoMode::Auto,
        };
        let mut out = Vec::new();
        run(&options, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        for case in cases(200) {
            assert!(text.contains(&format!("\"case\":\"{}\"", case.name)), "{}: {text}", case.name);
        }
        for bytes in [100, 64 << 10] {
            let got = bed.link().unwrap().call(&alone(&[b"GET", &key(bytes, 1)]), 1).unwrap();
            assert_eq!(got, 0);
        }
    }
}
