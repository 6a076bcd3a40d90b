//! The cases, each of which reads from top to bottom.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use shoal_base::limits::KEY_BYTES_MAX;

use shoal_bench::cores::Cores;
use shoal_bench::redis::{Bed, Link, Random, Row, alone, crowd, load};

use super::{ClusterOptions, Sink};
use shoal_bench::enough::Enough;

/// Bytes of an object and of a key, unless a case sets others.
const OBJECT_BYTES: usize = 100;
const KEY_BYTES: usize = 30;

/// RAMCloud's sizes.
const SIZES: [(usize, &str); 5] =
    [(100, "100"), (1_000, "1K"), (10_000, "10K"), (100_000, "100K"), (1_000_000, "1M")];

/// Objects of a command of multiRead and multiWrite.
const COUNTS: [usize; 6] = [1, 10, 50, 100, 500, 1_000];

type Case = fn(&Bed, &ClusterOptions, &mut Sink<'_>) -> Result<()>;

/// All cases, by RAMCloud's names.
pub(super) const ALL: &[(&str, Case)] = &[
    ("basic", basic),
    ("readDist", read_dist),
    ("readDistRandom", read_dist_random),
    ("writeDistRandom", write_dist_random),
    ("readThroughput", read_throughput),
    ("writeThroughput", write_throughput),
    ("readNotFound", read_not_found),
    ("readLoaded", read_loaded),
    ("readInterference", read_interference),
    ("writeInterference", write_interference),
    ("readVaryingKeyLength", read_varying_key_length),
    ("multiRead", multi_read),
    ("multiWrite", multi_write),
    ("echo", echo),
];

/// The key of object `number`, of `bytes` bytes.
fn key_of(number: u64, bytes: usize) -> Vec<u8> {
    let mut key = format!("{number:010}").into_bytes();
    key.resize(bytes, b'k');
    if bytes < 10 {
        key = vec![b'a' + (number % 26) as u8; bytes];
    }
    key
}

fn key(number: u64) -> Vec<u8> {
    key_of(number, KEY_BYTES)
}

/// Repeats `operation` for this time, and for the minimum number of a row; it returns the bytes of values that it moved. `prepare`
/// is not timed.
fn timed<T>(
    time: Duration,
    mut prepare: impl FnMut() -> T,
    mut operation: impl FnMut(T) -> Result<usize>,
) -> Result<Row> {
    let mut row = Row { objects: 1, ..Row::default() };
    let warming = Instant::now();
    // A tenth of the time is not counted.
    while warming.elapsed() < time / 10 {
        operation(prepare())?;
    }
    let enough = Enough::after(time);
    while !enough.is_reached(row.times.count()) {
        let prepared = prepare();
        let before = Instant::now();
        let bytes = operation(prepared)?;
        let took = before.elapsed();
        row.times.record(took);
        row.took += took;
        row.bytes += bytes as u64;
    }
    Ok(row)
}

/// The same command again and again.
fn repeated(bed: &Bed, time: Duration, command: &[u8]) -> Result<Row> {
    let mut link = bed.link()?;
    timed(time, || (), |()| link.call(command, 1))
}

fn basic(bed: &Bed, options: &ClusterOptions, sink: &mut Sink<'_>) -> Result<()> {
    for (bytes, name) in SIZES {
        // As many objects as make 20 MB: neither all in the processor's cache nor slow to load.
        let objects = (20_000_000 / bytes as u64).clamp(20, options.objects().max(20));
        load(&mut bed.link()?, objects, bytes, key)?;
        let (mut link, mut random) = (bed.link()?, Random::new(7));
        let read = timed(
            options.time(),
            || alone(&[b"GET", &key(random.below(objects))]),
            |command| link.call(&command, 1),
        )?;
        sink.row(&format!("basic-read{name}"), "client", &read)?;
        let value = vec![b'y'; bytes];
        let write = timed(
            options.time(),
            || alone(&[b"SET", &key(random.below(objects)), &value]),
            |command| link.call(&command, 1).map(|_| bytes),
        )?;
        sink.row(&format!("basic-write{name}"), "client", &write)?;
    }
    Ok(())
}

/// One object, beside the server's own ECHO of as many bytes and beside a bare echo, one after the other: so all three meet the
/// same machine.
fn read_dist(bed: &Bed, options: &ClusterOptions, sink: &mut Sink<'_>) -> Result<()> {
    load(&mut bed.link()?, 1, OBJECT_BYTES, key)?;
    let mut link = bed.link()?;
    let mut bare = Link::connect(Cores::on_servers(bed.cores, bare_echo)?)?;
    let get = alone(&[b"GET", &key(0)]);
    let echo = alone(&[b"ECHO", &[b'e'; OBJECT_BYTES]]);
    // A reply of the same length as GET's, which is sent back.
    let reply = [format!("${OBJECT_BYTES}\r\n").as_bytes(), &[b'e'; OBJECT_BYTES], b"\r\n"].concat();
    let mut rows = [(); 3].map(|()| Row { objects: 1, ..Row::default() });
    let enough = Enough::after(3 * options.time());
    // All three have as many.
    while !enough.is_reached(rows[0].times.count()) {
        for (index, row) in rows.iter_mut().enumerate() {
            let before = Instant::now();
            match index {
                0 => link.call(&get, 1)?,
                1 => link.call(&echo, 1)?,
                _ => bare.call(&reply, 1)?,
            };
            let took = before.elapsed();
            row.times.record(took);
            row.took += took;
        }
    }
    for (variant, row) in ["GET", "ECHO", "bare echo"].iter().zip(&rows) {
        sink.row("readDist", variant, row)?;
    }
    Ok(())
}

fn read_dist_random(bed: &Bed, options: &ClusterOptions, sink: &mut Sink<'_>) -> Result<()> {
    load(&mut bed.link()?, options.objects(), OBJECT_BYTES, key)?;
    let (mut link, mut random) = (bed.link()?, Random::new(3));
    let row = timed(
        options.time(),
        || alone(&[b"GET", &key(random.below(options.objects()))]),
        |command| link.call(&command, 1),
    )?;
    sink.row("readDistRandom", "client", &row)
}

fn write_dist_random(bed: &Bed, options: &ClusterOptions, sink: &mut Sink<'_>) -> Result<()> {
    let (mut link, mut random) = (bed.link()?, Random::new(5));
    let row = timed(
        options.time(),
        || alone(&[b"SET", &key(random.below(options.objects())), &[b'w'; OBJECT_BYTES]]),
        |command| link.call(&command, 1).map(|_| OBJECT_BYTES),
    )?;
    sink.row("writeDistRandom", "client", &row)
}

/// 1, 2, 4 ... clients up to the allowed number.
fn client_counts(options: &ClusterOptions) -> impl Iterator<Item = usize> {
    let most = options.clients.max(1);
    std::iter::successors(Some(1), |count| Some(count * 2)).take_while(move |&count| count <= most)
}

fn read_throughput(bed: &Bed, options: &ClusterOptions, sink: &mut Sink<'_>) -> Result<()> {
    load(&mut bed.link()?, options.objects(), OBJECT_BYTES, key)?;
    for clients in client_counts(options) {
        let row = crowd(bed.address, Enough::after(options.time()), clients, 1, |random| {
            alone(&[b"GET", &key(random.below(options.objects()))])
        })?;
        sink.row("readThroughput", &format!("{clients} clients"), &row)?;
    }
    Ok(())
}

fn write_throughput(bed: &Bed, options: &ClusterOptions, sink: &mut Sink<'_>) -> Result<()> {
    for clients in client_counts(options) {
        let row = crowd(bed.address, Enough::after(options.time()), clients, 1, |random| {
            alone(&[b"SET", &key(random.below(options.objects())), &[b'w'; OBJECT_BYTES]])
        })?;
        sink.row("writeThroughput", &format!("{clients} clients"), &row)?;
    }
    Ok(())
}

fn read_not_found(bed: &Bed, options: &ClusterOptions, sink: &mut Sink<'_>) -> Result<()> {
    let row = repeated(bed, options.time(), &alone(&[b"GET", b"there is no such object at all"]))?;
    sink.row("readNotFound", "client", &row)
}

fn read_loaded(bed: &Bed, options: &ClusterOptions, sink: &mut Sink<'_>) -> Result<()> {
    load(&mut bed.link()?, 1, OBJECT_BYTES, key)?;
    for clients in client_counts(options) {
        let row =
            crowd(bed.address, Enough::after(options.time()), clients, 1, |_| alone(&[b"GET", &key(0)]))?;
        sink.row("readLoaded", &format!("{clients} clients"), &row)?;
    }
    Ok(())
}

/// All five sizes under way at the same time, each by a separate client: measures how long small ones wait for large ones.
fn interference(
    bed: &Bed,
    options: &ClusterOptions,
    sink: &mut Sink<'_>,
    case: &str,
    command: impl Fn(usize) -> Vec<u8> + Sync,
) -> Result<()> {
    let rows: Vec<Result<Row>> = thread::scope(|scope| {
        let threads: Vec<_> = SIZES
            .iter()
            .map(|&(bytes, _)| {
                let command = command(bytes);
                scope.spawn(move || repeated(bed, options.time(), &command))
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| anyhow::bail!("a client panicked")))
            .collect()
    });
    for ((_, name), row) in SIZES.iter().zip(rows) {
        sink.row(case, name, &row?)?;
    }
    Ok(())
}

/// An object for each size.
fn sized_key(bytes: usize) -> Vec<u8> {
    format!("interference-{bytes}").into_bytes()
}

fn read_interference(bed: &Bed, options: &ClusterOptions, sink: &mut Sink<'_>) -> Result<()> {
    for (bytes, _) in SIZES {
        load(&mut bed.link()?, 1, bytes, |_| sized_key(bytes))?;
    }
    interference(bed, options, sink, "readInterference", |bytes| alone(&[b"GET", &sized_key(bytes)]))
}

fn write_interference(bed: &Bed, options: &ClusterOptions, sink: &mut Sink<'_>) -> Result<()> {
    interference(bed, options, sink, "writeInterference", |bytes| {
        alone(&[b"SET", &sized_key(bytes), &vec![b'w'; bytes]])
    })
}

/// RAMCloud's maximum is 60,000 bytes; keys have at most 1,024 here.
fn read_varying_key_length(bed: &Bed, options: &ClusterOptions, sink: &mut Sink<'_>) -> Result<()> {
    for bytes in [1, 5, 10, 20, 30, 50, 100, 200, 500, KEY_BYTES_MAX] {
        load(&mut bed.link()?, 1, OBJECT_BYTES, |_| key_of(1, bytes))?;
        let row = repeated(bed, options.time(), &alone(&[b"GET", &key_of(1, bytes)]))?;
        sink.row("readVaryingKeyLength", &format!("{bytes} B"), &row)?;
    }
    Ok(())
}

fn multi_read(bed: &Bed, options: &ClusterOptions, sink: &mut Sink<'_>) -> Result<()> {
    let most = COUNTS.last().copied().unwrap_or(1);
    load(&mut bed.link()?, most as u64, OBJECT_BYTES, key)?;
    for count in COUNTS {
        let keys: Vec<Vec<u8>> = (0..count as u64).map(key).collect();
        let mut words: Vec<&[u8]> = vec![b"MGET"];
        words.extend(keys.iter().map(Vec::as_slice));
        let row = Row { objects: count, ..repeated(bed, options.time(), &alone(&words))? };
        sink.row("multiRead", &format!("{count} objects"), &row)?;
    }
    Ok(())
}

/// One write batch of each number of objects: durable as a whole or not at all.
fn multi_write(bed: &Bed, options: &ClusterOptions, sink: &mut Sink<'_>) -> Result<()> {
    for count in COUNTS {
        let keys: Vec<Vec<u8>> = (0..count as u64).map(key).collect();
        let mut words: Vec<&[u8]> = vec![b"MSET"];
        words.extend(keys.iter().flat_map(|key| [key.as_slice(), &[b'w'; OBJECT_BYTES][..]]));
        let row = Row { objects: count, ..repeated(bed, options.time(), &alone(&words))? };
        sink.row("multiWrite", &format!("{count} objects"), &row)?;
    }
    Ok(())
}

/// As many bytes there as back.
fn echo(bed: &Bed, options: &ClusterOptions, sink: &mut Sink<'_>) -> Result<()> {
    for (bytes, name) in SIZES {
        let row = repeated(bed, options.time(), &alone(&[b"ECHO", &vec![b'e'; bytes]]))?;
        sink.row(&format!("echo-{name}"), "client", &row)?;
    }
    Ok(())
}

/// A server that sends back every byte at once, and does nothing else: a thread for each connection, which exits with it.
fn bare_echo() -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    thread::Builder::new().name("bench-echo".into()).spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.set_nodelay(true);
            thread::spawn(move || {
                let mut bytes = vec![0; 64 << 10];
                while let Ok(count @ 1..) = stream.read(&mut bytes) {
                    if stream.write_all(bytes.get(..count).unwrap_or_default()).is_err() {
                        return;
                    }
                }
            });
        }
    })?;
    Ok(address)
}
