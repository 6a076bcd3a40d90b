//! `charts`: five questions of a user who chooses a store, asked of all stores that run in a program, and a chart for each.
//!
//! One store after the other, each in a separate process and in a new folder, takes a growing load (growth), answers gets (gets), takes
//! puts one by one (puts), and loses a random half of its objects (room). Bits flip at the end ([`flips`](shoal_compare::flips)). The
//! charts are drawn from the table on standard output: kept in a file, it draws them again (`--from`).

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use shoal_base::SeededEntropy;
use shoal_bench::disk;
use shoal_bench::machine;
use shoal_bench::questions::draw_all;
use shoal_bench::scale::{Load, Order, SEED, climb, marks};

use crate::scale::peer::Peer;
use crate::scale::stored_bytes;
use crate::scale::stores::{self, STORES};

/// Bytes of a value.
const VALUE_BYTES: u32 = 100;
/// Puts of a batch while the store grows, and deletes.
const BATCH: u64 = 1_000;
/// Memory of each store's cache: all objects have room in it.
const CACHE_BYTES: u64 = 1 << 30;
/// Files whose size did not change for this time are settled.
const SETTLED: Duration = Duration::from_secs(3);
/// The wait for that at most.
const SETTLING_MAX: Duration = Duration::from_secs(60);
/// Gets between two looks at the clock.
const GETS_AT_ONCE: u64 = 100;
/// Bytes that a store may take for an object, and that must stay free besides.
const ROOM: (u64, u64) = (10_000, 4 << 30);

/// Five questions, and a chart for each.
#[derive(Args)]
pub struct Arguments {
    /// The stores [default: all that this program was built with].
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    stores: Vec<String>,
    /// Objects of each store [default: 1000000, with --quick 20000].
    #[arg(long, value_name = "N")]
    objects: Option<u64>,
    /// Flips for each engine [default: 2000, with --quick 20].
    #[arg(long, value_name = "N")]
    flips: Option<u64>,
    /// A small run, to see that it works: its figures are meaningless.
    #[arg(long)]
    quick: bool,
    /// Draw the table in this file, and measure nothing.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["stores", "objects", "flips", "quick"])]
    from: Option<PathBuf>,
    /// The folder for the charts.
    #[arg(long, value_name = "FOLDER", default_value = "charts")]
    out: PathBuf,
    /// The folder for the stores; everything is removed in the end.
    #[arg(long, default_value = ".")]
    folder: PathBuf,
    /// This is the process of the only store.
    #[arg(long, hide = true)]
    child: bool,
}

/// Measures, prints the table and draws; or only draws.
pub fn run(arguments: &Arguments) -> Result<()> {
    if let Some(from) = &arguments.from {
        let table = fs::read_to_string(from).with_context(|| format!("cannot read {}", from.display()))?;
        return show(&arguments.out, &table);
    }
    let objects = arguments.objects.unwrap_or(if arguments.quick { 20_000 } else { 1_000_000 });
    ensure!(objects >= BATCH, "--objects is at least {BATCH}");
    let known = || STORES.iter().map(|(name, _)| *name).filter(|name| stores::is_known(name));
    let names: Vec<String> = match &arguments.stores[..] {
        [] => known().map(String::from).collect(),
        given => given.to_vec(),
    };
    for name in &names {
        ensure!(stores::is_known(name), "{}", stores::missing(name));
    }
    if arguments.child {
        return child(&names[0], objects, &arguments.folder, arguments.quick);
    }
    let folder = std::path::absolute(&arguments.folder)?;
    let (needed, free) = (objects.saturating_mul(ROOM.0).saturating_add(ROOM.1), disk::free_bytes(&folder)?);
    ensure!(free >= needed, "{} MiB are free, and {} MiB may be needed", free >> 20, needed >> 20);
    let work = folder.join(format!("shoal-charts-{}", std::process::id()));
    fs::create_dir(&work)?;
    let table = ask_all(arguments, &names, objects, &work);
    fs::remove_dir_all(&work)?;
    show(&arguments.out, &table?)
}

fn show(out: &Path, table: &str) -> Result<()> {
    let paths = draw_all(out, table)?;
    ensure!(!paths.is_empty(), "the table has no answer: a row is a question, a store and a number");
    for path in paths {
        eprintln!("{}", path.display());
    }
    Ok(())
}

/// Measures all stores, and returns the table, which it prints on the way.
fn ask_all(arguments: &Arguments, names: &[String], objects: u64, work: &Path) -> Result<String> {
    let mut table = String::new();
    let mut say = |line: &str| -> Result<()> {
        table.push_str(line);
        table.push('\n');
        let mut out = std::io::stdout();
        writeln!(out, "{line}")?;
        Ok(out.flush()?)
    };
    say(&format!("# machine: {}", machine::describe()))?;
    say(&format!("# load average: {}", machine::load()))?;
    say(&format!(
        "# parameters: {objects} objects of {VALUE_BYTES} bytes in random order, batches of {BATCH}, cache {} MiB; one client in the process",
        CACHE_BYTES >> 20
    ))?;
    say(&format!("# stores: {}", stores::CONFIGURED))?;
    say(
        "# rows: a question, a store, the answer; of growth a store, the objects, durable puts a second since the row before",
    )?;
    for name in names {
        let home = work.join(name);
        fs::create_dir(&home)?;
        // Dirty pages of the store before must not be written by the kernel during this one.
        rustix::fs::syncfs(fs::File::open(work)?)?;
        let mut words = vec!["charts".into(), "--child".into(), "--stores".into(), name.clone()];
        words.extend([
            "--objects".into(),
            objects.to_string(),
            "--folder".into(),
            home.display().to_string(),
        ]);
        words.extend(arguments.quick.then(|| "--quick".into()));
        lines_of(&words, &mut say).with_context(|| format!("{name} failed"))?;
        fs::remove_dir_all(&home)?;
    }
    let trials = arguments.flips.unwrap_or(if arguments.quick { 20 } else { 2_000 });
    let words = ["flips", "--trials", &trials.to_string(), "--folder", &work.display().to_string()];
    lines_of(&words.map(String::from), &mut |line| hidden(line).map_or(Ok(()), |line| say(&line)))
        .context("the flips failed")?;
    say(&format!("# load average at the end: {}", machine::load()))?;
    Ok(table)
}

/// Runs this program with `words` and passes each line of its output to `take`.
fn lines_of(words: &[String], take: &mut dyn FnMut(&str) -> Result<()>) -> Result<()> {
    let program = std::env::current_exe()?;
    let mut child = Command::new(program).args(words).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let output = child.stdout.take().context("a child has an output")?;
    let taken = BufReader::new(output).lines().try_for_each(|line| take(&line?));
    // A child whose lines cannot be used is not waited for.
    if taken.is_err() {
        child.kill()?;
    }
    let ended = child.wait()?;
    taken?;
    ensure!(ended.success(), "it ended with {ended}");
    Ok(())
}

/// The row of the question about flips, from a row of their table: keys missing in silence and wrong bytes together.
fn hidden(line: &str) -> Option<String> {
    let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
    let [engine, _, _, _, _, missing, wrong] = cells[..] else { return None };
    let (missing, wrong): (u64, u64) = (missing.parse().ok()?, wrong.parse().ok()?);
    Some(row("flips", engine, (missing + wrong) as f64))
}

fn row(case: &str, name: &str, figure: f64) -> String {
    format!("{case:15} {name:20} {figure:12.3}")
}

/// Asks one store in this process.
fn child(name: &str, objects: u64, folder: &Path, quick: bool) -> Result<()> {
    let time = Duration::from_millis(if quick { 200 } else { 5_000 });
    let mut peer = stores::create(name, folder, CACHE_BYTES)?;
    let mut load = Load::new(Order::Random, VALUE_BYTES, objects * 2, 0);
    climb(&mut load, &mut *peer, &marks(objects, BATCH), BATCH, &mut |load, interval| {
        println!("{}", row(name, &load.puts().to_string(), interval.puts_per_s()));
        Ok(())
    })?;
    println!("{}", row("gets", name, gets_per_s(&mut *peer, &load, time)?));
    println!("{}", row("puts", name, puts_per_s(&mut *peer, &mut load, time)?));
    println!("{}", row("room", name, room_after_deletes(&mut *peer, &load, folder, quick)?));
    peer.close()
}

/// Random gets of objects that are there.
fn gets_per_s(peer: &mut dyn Peer, load: &Load, time: Duration) -> Result<f64> {
    let random = SeededEntropy::new(SEED);
    let (began, mut gets) = (Instant::now(), 0);
    while began.elapsed() < time {
        for _ in 0..GETS_AT_ONCE {
            ensure!(peer.get(&load.key(load.stored(&random)))?, "an object that was put is not there");
        }
        gets += GETS_AT_ONCE;
    }
    Ok(gets as f64 / began.elapsed().as_secs_f64())
}

/// Puts of new objects one by one, each durable before the next.
fn puts_per_s(peer: &mut dyn Peer, load: &mut Load, time: Duration) -> Result<f64> {
    let (began, mut puts) = (Instant::now(), 0);
    while began.elapsed() < time {
        peer.put(&load.batch(1))?;
        puts += 1;
    }
    Ok(f64::from(puts) / began.elapsed().as_secs_f64())
}

/// Deletes a random half, waits until the files keep their size, and returns the bytes that they take for a byte of the rest, keys
/// included.
fn room_after_deletes(peer: &mut dyn Peer, load: &Load, folder: &Path, quick: bool) -> Result<f64> {
    let random = SeededEntropy::new(SEED ^ 1);
    let (mut gone, mut left, mut left_bytes) = (Vec::new(), 0_u64, 0_u64);
    for number in 0..load.objects() {
        let key = load.key(number);
        if random.below(2) == 1 {
            left += 1;
            left_bytes += key.len() as u64 + u64::from(VALUE_BYTES);
            continue;
        }
        gone.push(key);
        if gone.len() as u64 == BATCH {
            peer.delete(&gone)?;
            gone.clear();
        }
    }
    peer.delete(&gone)?;
    ensure!(left > 0, "no object is left");
    let (began, mut since, mut bytes) = (Instant::now(), Instant::now(), stored_bytes(folder)?);
    let settled = if quick { Duration::from_millis(300) } else { SETTLED };
    while since.elapsed() < settled && began.elapsed() < SETTLING_MAX {
        thread::sleep(Duration::from_millis(100));
        let now = stored_bytes(folder)?;
        if now != bytes {
            (bytes, since) = (now, Instant::now());
        }
    }
    Ok(bytes as f64 / left_bytes as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn undetected_flips_have_a_row() {
        let line = "| lmdb | 2000 | 680 | 7 | 30 | 150 | 1133 |";
        let words = hidden(line).unwrap();
        assert_eq!(words.split_whitespace().collect::<Vec<_>>(), ["flips", "lmdb", "1283.000"]);
        for other in [
            "| engine | flips | harmless | error | panic or signal | keys | wrong |",
            "|---|---|",
            "400 keys",
        ] {
            assert_eq!(hidden(other), None);
        }
    }

    #[test]
    fn every_store_answers_every_question() {
        let folder = std::env::temp_dir().join(format!("shoal-charts-test-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        for name in ["shoal", "sqlite"] {
            child(name, 2_000, &folder.join(name), true).unwrap();
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
