//! `bench s3`: durable puts, gets and lists over S3 of a running server, Shoal or another one.
//!
//! A case is named by its request and the bytes of a value: `put-4k`, `get-64k`; `list` lists all keys of a prefix by pages, and
//! `list-folders` their common prefixes. The variants of a put differ in what the client computes for it. Every client is a thread with a
//! connection and one request in flight. A get is compared with the value that was put.

mod link;
mod list;
mod load;
mod objects;
mod sign;
#[cfg(test)]
mod tests;

use std::io::Write;
use std::net::ToSocketAddrs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use shoal_base::limits::LIST_PAGE_MAX;

use self::list::{list, listed_key};
use self::load::{MeasuredServer, S3Client, S3Row, crowd};
use self::objects::{Objects, PutVariant, delete, each};
use self::sign::UNSIGNED;
pub use self::sign::{S3Endpoint, S3Request, S3Signer};
use crate::machine;
use crate::report::{Metric, Report};
use crate::select;

const METRICS: &[Metric] = &[
    Metric { name: "ops_per_s", unit: "1/s", head: "ops/s" },
    Metric { name: "mb_per_s", unit: "MB/s", head: "MB/s" },
    Metric { name: "keys_per_s", unit: "1/s", head: "keys/s" },
    Metric { name: "p50_us", unit: "us", head: "p50 us" },
    Metric { name: "p99_us", unit: "us", head: "p99 us" },
    Metric { name: "p999_us", unit: "us", head: "p99.9 us" },
    Metric { name: "first_byte_p50_us", unit: "us", head: "1st p50" },
    Metric { name: "first_byte_p99_us", unit: "us", head: "1st p99" },
    Metric { name: "server_cpu_us", unit: "us", head: "server us" },
    Metric { name: "client_cpu_us", unit: "us", head: "client us" },
    Metric { name: "server_resident_mib", unit: "MiB", head: "RSS MiB" },
];

/// Longest value: the bytes of all values come from one region.
const VALUE_BYTES_MAX: u64 = 8 << 20;
/// Most clients.
const CONNECTIONS_MAX: usize = 10_000;
/// Bytes of a value of a listed object.
const LISTED_BYTES: usize = 10;

/// The parameters of `bench s3`.
#[derive(Clone, Debug)]
pub struct S3BenchOptions {
    /// Version of the program, for the header.
    pub version: String,
    /// JSON lines instead of a table.
    pub json: bool,
    /// Cases by name, or by prefix and `*`; none: all.
    pub cases: Vec<String>,
    /// Variants of puts; none: all.
    pub variants: Vec<String>,
    /// The server.
    pub endpoint: S3Endpoint,
    /// Its process, if it runs on this machine: for its processor time and memory.
    pub process: Option<u32>,
    /// The bucket. One that is missing is made, and deleted at the end.
    pub bucket: String,
    /// Bytes of the values.
    pub sizes: Vec<u64>,
    /// Clients of puts and gets.
    pub connections: usize,
    /// Time for each case.
    pub time: Duration,
    /// Objects of each size.
    pub objects: u64,
    /// Listed objects.
    pub listed: u64,
    /// The objects exist already.
    pub filled: bool,
    /// The objects stay at the end.
    pub keep: bool,
}

impl S3BenchOptions {
    /// Checks that a run is possible with these options.
    ///
    /// # Errors
    /// The error of the options, as a text for the user.
    pub fn check(&self) -> Result<(), String> {
        for (name, number, max) in [
            ("--connections", self.connections as u64, CONNECTIONS_MAX as u64),
            ("--objects", self.objects, u64::from(u32::MAX)),
            ("--listed", self.listed, u64::from(u32::MAX)),
        ] {
            if !(1..=max).contains(&number) {
                return Err(format!("{name} is between 1 and {max}"));
            }
        }
        match self.sizes.iter().find(|bytes| **bytes > VALUE_BYTES_MAX) {
            Some(_) => Err(format!("--value-bytes is at most {VALUE_BYTES_MAX}")),
            None => Ok(()),
        }
    }
}

/// The name of a number of bytes.
fn size_name(bytes: u64) -> String {
    match bytes {
        0 => "0".to_owned(),
        _ if bytes.is_multiple_of(1 << 20) => format!("{}m", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{}k", bytes >> 10),
        _ => format!("{bytes}b"),
    }
}

/// Makes the bucket if it is missing; returns true if it was.
fn make_bucket(server: &MeasuredServer, bucket: &str) -> Result<bool> {
    let (mut client, path) = (S3Client::new(server, 0), format!("/{bucket}"));
    let look = S3Request {
        method: "GET",
        path: &path,
        query: "list-type=2&max-keys=1",
        headers: &[],
        payload: UNSIGNED,
    };
    match client.send(&look, b"")?.status {
        200 => Ok(false),
        404 => client.expect(&S3Request { method: "PUT", query: "", ..look }, b"", 200).map(|()| true),
        status => client.refused(&look, status),
    }
}

/// A run.
struct Run<'a> {
    options: &'a S3BenchOptions,
    server: MeasuredServer,
    cases: Vec<String>,
    variants: Vec<PutVariant>,
}

/// Measures and prints.
///
/// # Errors
/// A name that selects nothing; the server, a connection or the output failed, or an object came back with other bytes.
pub fn run(options: &S3BenchOptions, out: &mut dyn Write) -> Result<()> {
    options.check().map_err(anyhow::Error::msg)?;
    let requests = ["put", "get"];
    let of_sizes = options.sizes.iter().flat_map(|bytes| {
        let size = size_name(*bytes);
        requests.map(|request| format!("{request}-{size}"))
    });
    let all: Vec<String> = of_sizes.chain(["list".to_owned(), "list-folders".to_owned()]).collect();
    let names: Vec<&str> = all.iter().map(String::as_str).collect();
    let cases = select("case", &names, &options.cases)?.into_iter().map(ToOwned::to_owned).collect();
    let names = PutVariant::ALL.map(PutVariant::name);
    let wanted = select("variant", &names, &options.variants)?;
    let variants = PutVariant::ALL.into_iter().filter(|variant| wanted.contains(&variant.name())).collect();
    let host = &options.endpoint.host;
    let mut addresses = host.to_socket_addrs().with_context(|| format!("{host} has no address"))?;
    let address = addresses.next().with_context(|| format!("{host} has no address"))?;
    let server = MeasuredServer { address, endpoint: options.endpoint.clone(), process: options.process };
    let run = Run { options, server, cases, variants };
    let mut report = Report::new(out, "s3", METRICS, options.json);
    for (name, value) in [
        ("bench", "s3: puts, gets and lists of a running server"),
        ("machine", &machine::describe()),
        ("load average", &machine::load()),
        ("version", &options.version),
        ("server", host),
        ("connections", &options.connections.to_string()),
        ("objects", &format!("{} of each size, {} listed", options.objects, options.listed)),
        ("seconds a case", &options.time.as_secs_f64().to_string()),
    ] {
        report.fact(name, value)?;
    }
    let is_new = make_bucket(&run.server, &options.bucket)?;
    for bytes in &options.sizes {
        run.measure_size(*bytes, &mut report)?;
    }
    run.measure_lists(&mut report)?;
    if is_new && !options.keep {
        delete(&mut S3Client::new(&run.server, 0), &format!("/{}", options.bucket))?;
    }
    report.fact("load average at the end", &machine::load())?;
    Ok(())
}

impl Run<'_> {
    fn is_wanted(&self, case: &str) -> bool {
        self.cases.iter().any(|wanted| wanted == case)
    }

    fn row(&self, report: &mut Report<'_>, case: &str, variant: &str, row: &S3Row) -> Result<()> {
        let seconds = row.took.as_secs_f64().max(f64::MIN_POSITIVE);
        let requests = row.times.count().max(1) as f64;
        let each = |time: Duration| time.as_secs_f64() * 1e6 / requests;
        let at = |permille| Some(row.times.quantile_us(permille));
        let resident = self.server.process.and_then(machine::resident_bytes_of);
        report.row(
            case,
            variant,
            &[
                Some(requests / seconds),
                (row.bytes > 0).then(|| row.bytes as f64 / seconds / 1e6),
                (row.keys > 0).then(|| row.keys as f64 / seconds),
                at(500),
                at(990),
                at(999),
                Some(row.first_bytes.quantile_us(500)),
                Some(row.first_bytes.quantile_us(990)),
                row.server_cpu.map(each),
                Some(each(row.client_cpu)),
                resident.map(|bytes| bytes as f64 / f64::from(1 << 20)),
            ],
        )?;
        Ok(())
    }

    /// Puts and gets of a size.
    fn measure_size(&self, bytes: u64, report: &mut Report<'_>) -> Result<()> {
        let Self { options, server, .. } = self;
        let size = size_name(bytes);
        let (put, get) = (format!("put-{size}"), format!("get-{size}"));
        if !self.is_wanted(&put) && !self.is_wanted(&get) {
            return Ok(());
        }
        let of_size = (size.as_str(), u32::try_from(bytes)?);
        let objects = Objects::new(server, &options.bucket, of_size, options.objects);
        if options.filled {
            objects.set_filled();
        }
        if self.is_wanted(&put) {
            for variant in &self.variants {
                let row = objects.measure_puts(options.connections, options.time, *variant)?;
                self.row(report, &put, variant.name(), &row)?;
            }
        }
        if self.is_wanted(&get) {
            objects.fill(options.connections)?;
            let row = objects.measure_gets(options.connections, options.time)?;
            self.row(report, &get, PutVariant::Unsigned.name(), &row)?;
        }
        if !options.keep {
            objects.delete(options.connections)?;
        }
        Ok(())
    }

    /// Lists by one client.
    fn measure_lists(&self, report: &mut Report<'_>) -> Result<()> {
        let Self { options, server, .. } = self;
        let cases = [("list", false, options.listed), ("list-folders", true, folders(options.listed))];
        if !cases.iter().any(|(case, ..)| self.is_wanted(case)) {
            return Ok(());
        }
        let path = |number| format!("/{}/{}", options.bucket, listed_key(number));
        if !options.filled {
            each(server, options.connections, 0..options.listed, |client, number| {
                let request = S3Request {
                    method: "PUT",
                    path: &path(number),
                    query: "",
                    headers: &[],
                    payload: UNSIGNED,
                };
                client.expect(&request, &[b'l'; LISTED_BYTES], 200)
            })?;
        }
        for (case, by_folders, expected) in cases.into_iter().filter(|(case, ..)| self.is_wanted(case)) {
            let row = crowd(server, 1, Some(options.time), |client| {
                let found = list(client, &options.bucket, LIST_PAGE_MAX, by_folders)?;
                ensure!(found == expected, "{case} has {found} names instead of {expected}");
                Ok(true)
            })?;
            self.row(report, case, PutVariant::Unsigned.name(), &row)?;
        }
        if !options.keep {
            each(server, options.connections, 0..options.listed, |client, number| {
                delete(client, &path(number))
            })?;
        }
        Ok(())
    }
}

/// Common prefixes of this number of listed keys.
fn folders(listed: u64) -> u64 {
    listed.div_ceil(list::FOLDER_KEYS)
}
