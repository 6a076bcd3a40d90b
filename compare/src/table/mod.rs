//! `table`: the questions of people with millions of files around 16 KiB, one row for each store, all from one run.
//!
//! Each store imports the same objects by durable puts of many clients. Then its process kills itself, the page cache is dropped, and
//! a new process opens the store (restart), reads a quarter of the objects once each (cold), a small part again and again (warm), and lists all keys.
//! The stores take turns, and each cell is the median of the rounds. The table on standard output is Markdown.

mod stores;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use shoal_base::SeededEntropy;
use shoal_bench::disk;
use shoal_bench::machine;
use shoal_bench::payload::{ObjectSet, RandomBytes, Sizes};

use self::stores::STORES;
use crate::scale::stored_bytes;

const SEED: u64 = 20_261_128;
/// Objects that are read while they are warm.
const WARM_OBJECTS: u64 = 10_000;
/// Share of the objects that is read once each while all are cold: the page cache must not turn cold reads into warm ones.
const COLD_SHARE: u64 = 4;
/// Object `i * COLD_STRIDE` modulo the number of objects is read i-th. A prime, so no object is read twice unless their number is a multiple of it.
const COLD_STRIDE: u64 = 7_368_787;
/// Bytes that a store may take for a byte of values, and that must stay free besides.
const ROOM: (u64, u64) = (3, 4 << 30);
/// The figures of a store, in the order of the columns.
const COLUMNS: [&str; 6] = [
    "durable puts/s",
    "gets/s, warm",
    "gets/s, cold",
    "keys/s, list",
    "restart after a kill, ms",
    "disk bytes a byte",
];

/// Import, gets, list, restart and room, one row for each store.
#[derive(Args)]
pub struct Arguments {
    /// The stores; all that this program was built with unless they are named: ext4, sqlite, lmdb, rocksdb, shoal.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    stores: Vec<String>,
    /// Objects of each store [default: 200000, with --quick 2000].
    #[arg(long, value_name = "N")]
    objects: Option<u64>,
    /// Bytes of a value.
    #[arg(long, value_name = "BYTES", default_value_t = 16 << 10)]
    value: u32,
    /// Clients, one thread each.
    #[arg(long, value_name = "N", default_value_t = 16)]
    clients: usize,
    /// MiB of each store's cache.
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    cache: u64,
    /// Rounds, of which medians are taken [default: 3, with --quick 1].
    #[arg(long)]
    rounds: Option<usize>,
    /// A small run, to see that it works: its figures mean nothing.
    #[arg(long)]
    quick: bool,
    /// Where to write; everything is removed at the end.
    #[arg(long, default_value = ".")]
    folder: PathBuf,
    /// This is the process of the only store, and its part: import or read.
    #[arg(long, hide = true)]
    part: Option<String>,
}

/// Measures all stores and prints the table.
pub fn run(arguments: &Arguments) -> Result<()> {
    let objects = arguments.objects.unwrap_or(if arguments.quick { 2_000 } else { 200_000 });
    let is_built = |name: &str| cfg!(feature = "rocksdb") || name != "rocksdb";
    let names: Vec<&str> = STORES
        .iter()
        .map(|(name, _)| *name)
        .filter(|name| {
            if arguments.stores.is_empty() {
                is_built(name)
            } else {
                arguments.stores.iter().any(|it| it == name)
            }
        })
        .collect();
    ensure!(
        arguments.stores.is_empty() || names.len() == arguments.stores.len(),
        "--stores: {}",
        all_names()
    );
    ensure!(objects > 0 && arguments.clients > 0, "--objects and --clients are at least 1");
    match arguments.part.as_deref() {
        Some("import") => return import(arguments, names[0], objects),
        Some(_) => return read(arguments, names[0], objects),
        None => {}
    }
    let folder = std::path::absolute(&arguments.folder)?;
    let needed =
        objects.saturating_mul(u64::from(arguments.value)).saturating_mul(ROOM.0).saturating_add(ROOM.1);
    let free = disk::free_bytes(&folder)?;
    ensure!(free >= needed, "{} MiB are free, and {} MiB may be needed", free >> 20, needed >> 20);
    let work = folder.join(format!("shoal-table-{}", std::process::id()));
    fs::create_dir(&work)?;
    let result = measure_all(arguments, &names, objects, &work);
    fs::remove_dir_all(&work)?;
    print(arguments, &names, objects, &result?);
    Ok(())
}

fn all_names() -> String {
    STORES.map(|(name, _)| name).join(", ")
}

/// For each store and column, the figures of all rounds.
fn measure_all(
    arguments: &Arguments,
    names: &[&str],
    objects: u64,
    work: &Path,
) -> Result<Vec<Vec<Vec<f64>>>> {
    let mut figures = vec![vec![Vec::new(); COLUMNS.len()]; names.len()];
    for round in 0..arguments.rounds.unwrap_or(if arguments.quick { 1 } else { 3 }) {
        for turn in 0..names.len() {
            // Each round starts with another store.
            let place = (turn + round) % names.len();
            let home = work.join(names[place]);
            let mut row = child(arguments, names[place], objects, &home, "import")?;
            drop_page_cache(work)?;
            row.extend(child(arguments, names[place], objects, &home, "read")?);
            row.push(stored_bytes(&home)? as f64 / (objects * u64::from(arguments.value)) as f64);
            ensure!(row.len() == COLUMNS.len(), "{} printed {} figures", names[place], row.len());
            eprintln!("round {round} {:8} {row:.1?}", names[place]);
            // Import, cold, warm, list, restart, room: as the columns.
            let order = [0, 3, 2, 4, 1, 5];
            order.iter().zip(&mut figures[place]).for_each(|(at, figures)| figures.push(row[*at]));
            fs::remove_dir_all(&home)?;
        }
    }
    Ok(figures)
}

/// Runs one part of one store in a new process and returns the figures that it prints.
fn child(arguments: &Arguments, name: &str, objects: u64, home: &Path, part: &str) -> Result<Vec<f64>> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["table", "--part", part, "--stores", name, "--objects", &objects.to_string()]);
    command.args(["--value", &arguments.value.to_string(), "--clients", &arguments.clients.to_string()]);
    command.args(["--cache", &arguments.cache.to_string(), "--folder"]).arg(home);
    command.args(arguments.quick.then_some("--quick"));
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    // The import kills itself when everything is durable.
    ensure!(output.status.success() || part == "import", "{name} failed ({})", output.status);
    let text = String::from_utf8(output.stdout)?;
    let figures = text
        .split_whitespace()
        .map(|figure| figure.parse().context("a figure"))
        .collect::<Result<Vec<f64>>>()?;
    ensure!(!figures.is_empty(), "{name} failed ({})", output.status);
    Ok(figures)
}

/// Writes back and forgets all cached pages, folders and inodes: cold gets read the device.
fn drop_page_cache(work: &Path) -> Result<()> {
    rustix::fs::syncfs(fs::File::open(work)?)?;
    fs::write("/proc/sys/vm/drop_caches", "3").context("cold gets need root, to drop the page cache")
}

fn objects_of(arguments: &Arguments) -> ObjectSet {
    RandomBytes::new(SEED).set("table", Sizes::Fixed(arguments.value))
}

/// Puts all objects, prints the rate, and kills this process.
fn import(arguments: &Arguments, name: &str, objects: u64) -> Result<()> {
    let store = stores::open(name, &arguments.folder, arguments.cache << 20, arguments.clients)?;
    let set = objects_of(arguments);
    let (next, began) = (AtomicU64::new(0), Instant::now());
    by_all_clients(arguments.clients, |client| {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= objects {
                return Ok(0);
            }
            store.put(client, &set.key(number), &set.value(number))?;
        }
    })?;
    println!("{}", objects as f64 / began.elapsed().as_secs_f64());
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)?;
    Ok(())
}

/// Opens the store after the kill and prints: restart, cold gets, warm gets, listed keys.
fn read(arguments: &Arguments, name: &str, objects: u64) -> Result<()> {
    let began = Instant::now();
    let store = stores::open(name, &arguments.folder, arguments.cache << 20, arguments.clients)?;
    let set = objects_of(arguments);
    let get = |client: usize, number: u64| -> Result<()> {
        let bytes = store.get(client, &set.key(number))?;
        ensure!(bytes == arguments.value as usize, "object {number} has {bytes} bytes");
        Ok(())
    };
    get(0, 0)?;
    println!("{}", began.elapsed().as_secs_f64() * 1e3);
    let time = Duration::from_millis(if arguments.quick { 200 } else { 5_000 });
    println!("{}", cold_gets_per_s(arguments.clients, objects, &get)?);
    let warm = objects.min(WARM_OBJECTS);
    by_all_clients(arguments.clients, |client| {
        (client as u64..warm)
            .step_by(arguments.clients)
            .try_for_each(|number| get(client, number))
            .map(|()| 0)
    })?;
    println!("{}", gets_per_s(arguments.clients, warm, time, &get)?);
    ensure!(store.list()? == objects, "{name} does not list all objects");
    let began = Instant::now();
    let keys = store.list()?;
    println!("{}", keys as f64 / began.elapsed().as_secs_f64());
    store.close()
}

/// Gets a second of a share of the objects, each read once in a scattered order.
fn cold_gets_per_s(
    clients: usize,
    objects: u64,
    get: &(impl Fn(usize, u64) -> Result<()> + Sync),
) -> Result<f64> {
    let began = Instant::now();
    let gets = by_all_clients(clients, |client| {
        let places = (client as u64..objects.div_ceil(COLD_SHARE)).step_by(clients);
        let gets = places.clone().count() as u64;
        for place in places {
            get(client, place.wrapping_mul(COLD_STRIDE) % objects)?;
        }
        Ok(gets)
    })?;
    Ok(gets as f64 / began.elapsed().as_secs_f64())
}

/// Random gets of the first `objects` objects by all clients, for `time`.
fn gets_per_s(
    clients: usize,
    objects: u64,
    time: Duration,
    get: &(impl Fn(usize, u64) -> Result<()> + Sync),
) -> Result<f64> {
    let (is_over, began) = (AtomicBool::new(false), Instant::now());
    let gets = by_all_clients(clients, |client| {
        let random = SeededEntropy::new(SEED + client as u64);
        let mut gets = 0;
        while !is_over.load(Ordering::Relaxed) {
            get(client, random.below(objects))?;
            gets += 1;
            if began.elapsed() >= time {
                is_over.store(true, Ordering::Relaxed);
            }
        }
        Ok(gets)
    })?;
    Ok(gets as f64 / began.elapsed().as_secs_f64())
}

/// Runs `work` in a thread for each client, and adds up the results.
fn by_all_clients(clients: usize, work: impl Fn(usize) -> Result<u64> + Sync) -> Result<u64> {
    let work = &work;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..clients).map(|client| scope.spawn(move || work(client))).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, Result<u64>>| {
            thread.join().unwrap_or_else(|_| Err(anyhow!("a client panicked")))
        };
        threads.into_iter().map(join).sum()
    })
}

/// Prints the conditions as a comment and the table.
fn print(arguments: &Arguments, names: &[&str], objects: u64, figures: &[Vec<Vec<f64>>]) {
    println!("<!-- machine: {}; load average: {}", machine::describe(), machine::load());
    println!(
        "{objects} objects of {} bytes, {} clients, cache {} MiB, medians of {} rounds, {} objects warm",
        arguments.value,
        arguments.clients,
        arguments.cache,
        figures.first().map_or(0, |row| row[0].len()),
        objects.min(WARM_OBJECTS)
    );
    println!("{} -->\n", stores::CONFIGURED);
    println!("| | {} |\n|---|{}", COLUMNS.join(" | "), "---|".repeat(COLUMNS.len()));
    for (name, row) in names.iter().zip(figures) {
        let shown = STORES.iter().find(|(known, _)| known == name).map_or(*name, |(_, shown)| *shown);
        let cells: Vec<String> = row.iter().map(|figures| cell(median(figures))).collect();
        println!("| {shown} | {} |", cells.join(" | "));
    }
}

fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// Three digits, and commas between thousands.
fn cell(figure: f64) -> String {
    if figure < 100.0 {
        return format!("{figure:.*}", if figure < 10.0 { 2 } else { 1 });
    }
    let unit = 10_f64.powi(figure.log10().floor() as i32 - 2);
    let digits = format!("{:.0}", (figure / unit).round() * unit);
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_have_three_digits() {
        for (figure, text) in
            [(1.066, "1.07"), (12.34, "12.3"), (123.4, "123"), (8_217.0, "8,220"), (1_234_567.0, "1,230,000")]
        {
            assert_eq!(cell(figure), text);
        }
    }

    #[test]
    fn every_store_keeps_what_was_put() {
        let folder = std::env::temp_dir().join(format!("shoal-table-test-{}", std::process::id()));
        let set = RandomBytes::new(SEED).set("table", Sizes::Fixed(5_000));
        for (name, _) in
            STORES.into_iter().filter(|(name, _)| cfg!(feature = "rocksdb") || *name != "rocksdb")
        {
            let store = stores::open(name, &folder.join(name), 16 << 20, 4).unwrap();
            by_all_clients(4, |client| {
                for number in (client as u64..100).step_by(4) {
                    store.put(client, &set.key(number), &set.value(number))?;
                }
                Ok(0)
            })
            .unwrap();
            assert_eq!(store.list().unwrap(), 100, "{name}");
            let gets = gets_per_s(4, 100, Duration::from_millis(20), &|client, number| {
                ensure!(store.get(client, &set.key(number))? == 5_000);
                Ok(())
            });
            assert!(gets.unwrap() > 0.0, "{name}");
            store.close().unwrap();
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
