//! One bit flips in a store that was closed in order; then it is opened again, and everything is read. The table shows the
//! results of the reads, for LMDB, SQLite, redb, fjall and Shoal, in one run.
//!
//! Each engine stores 400 keys with values of 100 bytes and closes. Bits are drawn from the pages of 4 KiB that are not empty,
//! the same way for all. The trials of an engine run in a separate process: one that is killed by a signal counts as such, and
//! the run continues with the next trial. The promises of the engines differ: LMDB, SQLite and redb do not check each read.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;
use shoal_base::{Entropy, SeededEntropy};
use shoal_device::FileOptions;
use shoal_engine::{
    ByteRange, Environment, FormatOptions, ObjectKey, OpenOptions, PutOptions, Store, block_on,
};

const KEYS: u64 = 400;
const VALUE_BYTES: usize = 100;
const PAGE_BYTES: usize = 4096;
/// A trial that takes longer counts as one that was killed.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(20);
/// Blocks of Shoal's file: the others' files are small, too.
const SHOAL_BLOCKS: u64 = 512;

const ENGINES: [&str; 6] = ["lmdb", "sqlite", "redb", "fjall-journal", "fjall-flushed", "shoal"];

/// One bit flips in a closed store: which stores notice it?
#[derive(Args)]
pub struct Arguments {
    /// Flips for each engine.
    #[arg(long, default_value_t = 2000)]
    trials: u64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only this engine; repeatable.
    #[arg(long = "engine", value_name = "NAME")]
    engines: Vec<String>,
    /// The folder for the stores; everything is removed in the end.
    #[arg(long, default_value = ".")]
    folder: PathBuf,
    /// Used by the parent: trials of one engine, from this one on.
    #[arg(long, hide = true)]
    from: Option<u64>,
}

/// The worst result of one flip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Seen {
    Harmless,
    /// The store, or a key, answered with an error.
    Error,
    /// A panic, a signal or no end.
    Killed,
    /// A stored key is reported as absent.
    Missing,
    /// Other bytes than the stored ones, without an error.
    Wrong,
}

const ALL_SEEN: [Seen; 5] = [Seen::Harmless, Seen::Error, Seen::Killed, Seen::Missing, Seen::Wrong];

/// Runs the trials. `words` bring the present program here, with the options after them.
pub fn run(arguments: &Arguments, words: &[&str]) -> Result<()> {
    if let Some(from) = arguments.from {
        return child(arguments, from);
    }
    let folder = std::path::absolute(&arguments.folder)?.join(format!("shoal-flips-{}", std::process::id()));
    fs::create_dir(&folder)?;
    let result = parent(arguments, words, &folder);
    fs::remove_dir_all(&folder)?;
    result
}

fn parent(arguments: &Arguments, words: &[&str], folder: &Path) -> Result<()> {
    println!(
        "{} keys of {VALUE_BYTES} bytes, seed {}, {}",
        KEYS,
        arguments.seed,
        shoal_bench::machine::describe()
    );
    println!(
        "| engine | flips | harmless | error | panic or signal | keys silently missing | wrong data, no error |"
    );
    println!("|---|---|---|---|---|---|---|");
    for engine in ENGINES {
        if !arguments.engines.is_empty() && !arguments.engines.iter().any(|wanted| wanted == engine) {
            continue;
        }
        let home = folder.join(engine);
        fs::create_dir_all(home.join("base"))?;
        make(engine, &home.join("base")).with_context(|| format!("{engine}: a new store"))?;
        ensure!(
            read(engine, &copy(&home.join("base"), &home.join("whole"))?)? == Seen::Harmless,
            "{engine}: an undamaged store does not read"
        );
        let began = Instant::now();
        let counts = trials(arguments, words, engine, &home)?;
        let cells: Vec<String> =
            ALL_SEEN.iter().map(|seen| counts.get(seen).unwrap_or(&0).to_string()).collect();
        println!("| {engine} | {} | {} |", counts.values().sum::<u64>(), cells.join(" | "));
        eprintln!("{engine}: {:.1} s", began.elapsed().as_secs_f64());
    }
    Ok(())
}

impl Seen {
    fn of(word: &str) -> Result<Self> {
        let found = ALL_SEEN.into_iter().find(|seen| format!("{seen:?}") == word);
        found.with_context(|| format!("a child said {word:?}"))
    }
}

/// Runs all trials of one engine; a child that dies is started again after the trial that killed it.
fn trials(arguments: &Arguments, words: &[&str], engine: &str, home: &Path) -> Result<BTreeMap<Seen, u64>> {
    let (mut counts, mut next) = (BTreeMap::new(), 0);
    while next < arguments.trials {
        let mut child = Command::new(std::env::current_exe()?)
            .args(words)
            .args(["--from", &next.to_string(), "--trials", &arguments.trials.to_string()])
            .args(["--seed", &arguments.seed.to_string(), "--engine", engine, "--folder"])
            .arg(home)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let output = child.stdout.take().context("a child has an output")?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(output).lines();
            lines.map_while(|line| line.ok()).for_each(|line| _ = sender.send(line));
        });
        loop {
            match lines.recv_timeout(TRIAL_TIMEOUT) {
                Ok(word) => {
                    *counts.entry(Seen::of(&word)?).or_insert(0) += 1;
                    next += 1;
                }
                Err(end) => {
                    if end == RecvTimeoutError::Timeout {
                        child.kill()?;
                    }
                    child.wait()?;
                    break;
                }
            }
        }
        if next < arguments.trials {
            *counts.entry(Seen::Killed).or_insert(0) += 1;
            next += 1;
        }
    }
    Ok(counts)
}

/// The trials from `from` on, a word a line.
fn child(arguments: &Arguments, from: u64) -> Result<()> {
    let [engine] = &arguments.engines[..] else { bail!("a child has one engine") };
    let (base, work) = (arguments.folder.join("base"), arguments.folder.join("work"));
    let places = places(&base)?;
    std::panic::set_hook(Box::new(|_| {}));
    let mut out = std::io::stdout();
    for trial in from..arguments.trials {
        let dice = SeededEntropy::new(arguments.seed.wrapping_mul(1_000_003).wrapping_add(trial));
        let (file, page) = &places[dice.below(places.len() as u64) as usize];
        let bit = dice.below(PAGE_BYTES as u64 * 8);
        copy(&base, &work)?;
        flip(&work.join(file), page * PAGE_BYTES as u64 + bit / 8, 1 << (bit % 8))?;
        // A returned error is seen as one; a panic counts as a killed process.
        let seen = catch_unwind(AssertUnwindSafe(|| read(engine, &work)));
        let seen = match seen {
            Ok(Ok(seen)) => seen,
            Ok(Err(_)) => Seen::Error,
            Err(_) => Seen::Killed,
        };
        writeln!(out, "{seen:?}")?;
        out.flush()?;
    }
    Ok(())
}

/// All pages that are not empty: the file, and the number of the page. A file's last page may be shorter.
fn places(base: &Path) -> Result<Vec<(PathBuf, u64)>> {
    let mut places = Vec::new();
    for file in files(base)? {
        let bytes = fs::read(base.join(&file))?;
        for (page, content) in bytes.chunks_exact(PAGE_BYTES).enumerate() {
            if content.iter().any(|&byte| byte != 0) {
                places.push((file.clone(), page as u64));
            }
        }
    }
    ensure!(!places.is_empty(), "the store has no page");
    Ok(places)
}

/// All files below `folder`, in order.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let (mut found, mut folders) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(inner) = folders.pop() {
        for entry in fs::read_dir(folder.join(&inner))? {
            let entry = entry?;
            let path = inner.join(entry.file_name());
            if entry.file_type()?.is_dir() { folders.push(path) } else { found.push(path) }
        }
    }
    found.sort();
    Ok(found)
}

fn copy(from: &Path, to: &Path) -> Result<PathBuf> {
    if to.exists() {
        fs::remove_dir_all(to)?;
    }
    fs::create_dir_all(to)?;
    for file in files(from)? {
        let target = to.join(&file);
        fs::create_dir_all(target.parent().context("a file has a folder")?)?;
        fs::copy(from.join(&file), target)?;
    }
    Ok(to.to_owned())
}

fn flip(path: &Path, at: u64, mask: u8) -> Result<()> {
    let file = fs::OpenOptions::new().read(true).write(true).open(path)?;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at)?;
    file.write_all_at(&[byte[0] ^ mask], at)?;
    Ok(())
}

fn key(number: u64) -> String {
    format!("key-{number:06}")
}

fn value(number: u64) -> Vec<u8> {
    let dice = SeededEntropy::new(number ^ 0x5EED);
    (0..VALUE_BYTES.div_ceil(8)).flat_map(|_| dice.next_u64().to_le_bytes()).take(VALUE_BYTES).collect()
}

/// Reads all keys through `get`, and returns the worst result.
fn read_all(mut get: impl FnMut(&str) -> Result<Option<Vec<u8>>>) -> Seen {
    let one = |number| match get(&key(number)) {
        Ok(Some(bytes)) if bytes == value(number) => Seen::Harmless,
        Ok(Some(_)) => Seen::Wrong,
        Ok(None) => Seen::Missing,
        Err(_) => Seen::Error,
    };
    (0..KEYS).map(one).max().unwrap_or(Seen::Harmless)
}

const REDB: redb::TableDefinition<'_, &str, &[u8]> = redb::TableDefinition::new("objects");

fn lmdb(folder: &Path) -> Result<heed::Env> {
    crate::lmdb::open(folder, 16 << 20)
}

fn fjall(folder: &Path) -> Result<(fjall::Database, fjall::Keyspace)> {
    let database = fjall::Database::builder(folder.join("fjall")).open()?;
    let objects = database.keyspace("objects", fjall::KeyspaceCreateOptions::default)?;
    Ok((database, objects))
}

fn shoal(folder: &Path, create: bool) -> Result<shoal_device::Device> {
    let path = folder.join("shoal.data");
    Ok(shoal_device::open(&path, &FileOptions { create, ..FileOptions::default() })?)
}

fn shoal_options() -> OpenOptions {
    OpenOptions { cache_bytes: 1 << 20, ..OpenOptions::default() }
}

/// A new store of `engine` in `folder`, closed in order.
fn make(engine: &str, folder: &Path) -> Result<()> {
    match engine {
        "lmdb" => {
            let env = lmdb(folder)?;
            let mut write = env.write_txn()?;
            let objects: heed::Database<heed::types::Str, heed::types::Bytes> =
                env.create_database(&mut write, Some("objects"))?;
            (0..KEYS).try_for_each(|number| objects.put(&mut write, &key(number), &value(number)))?;
            write.commit()?;
            env.prepare_for_closing().wait();
        }
        "sqlite" => {
            let mut database = rusqlite::Connection::open(folder.join("objects.db"))?;
            database.execute_batch("CREATE TABLE objects (key TEXT PRIMARY KEY, value BLOB NOT NULL);")?;
            let write = database.transaction()?;
            for number in 0..KEYS {
                write.execute("INSERT INTO objects VALUES (?1, ?2)", (key(number), value(number)))?;
            }
            write.commit()?;
            database.close().map_err(|(_, error)| error)?;
        }
        "redb" => {
            let database = redb::Database::create(folder.join("objects.redb"))?;
            let write = database.begin_write()?;
            {
                let mut objects = write.open_table(REDB)?;
                for number in 0..KEYS {
                    objects.insert(key(number).as_str(), value(number).as_slice())?;
                }
            }
            write.commit()?;
        }
        "fjall-journal" | "fjall-flushed" => {
            let (database, objects) = fjall(folder)?;
            (0..KEYS).try_for_each(|number| objects.insert(key(number), value(number)))?;
            database.persist(fjall::PersistMode::SyncAll)?;
            if engine == "fjall-flushed" {
                objects.rotate_memtable_and_wait()?;
            }
        }
        "shoal" => {
            let device = shoal(folder, true)?;
            let layout = FormatOptions {
                tablets: 4,
                initial_blocks: Some(SHOAL_BLOCKS),
                ..FormatOptions::for_blocks(SHOAL_BLOCKS)
            };
            block_on(async {
                Store::format(&device, &layout, &Environment::default()).await?;
                let store = Store::open(device, shoal_options(), Environment::default()).await?;
                for number in 0..KEYS {
                    let key = ObjectKey::new("default", key(number).as_bytes())?;
                    store.put(&key, value(number).into(), PutOptions::default()).await?;
                }
                store.close().await
            })?;
        }
        _ => bail!("there is no engine {engine}"),
    }
    Ok(())
}

/// Opens the store in `folder` and reads everything.
fn read(engine: &str, folder: &Path) -> Result<Seen> {
    match engine {
        "lmdb" => {
            let env = lmdb(folder)?;
            let read = env.read_txn()?;
            let objects: heed::Database<heed::types::Str, heed::types::Bytes> =
                env.open_database(&read, Some("objects"))?.ok_or_else(|| anyhow!("there is no table"))?;
            let seen = read_all(|key| Ok(objects.get(&read, key)?.map(<[u8]>::to_vec)));
            drop(read);
            env.prepare_for_closing().wait();
            Ok(seen)
        }
        "sqlite" => {
            let database = rusqlite::Connection::open(folder.join("objects.db"))?;
            let mut get = database.prepare("SELECT value FROM objects WHERE key = ?1")?;
            Ok(read_all(|key| {
                use rusqlite::OptionalExtension;
                Ok(get.query_row([key], |row| row.get(0)).optional()?)
            }))
        }
        "redb" => {
            use redb::ReadableDatabase;
            let database = redb::Database::open(folder.join("objects.redb"))?;
            let read = database.begin_read()?;
            let objects = read.open_table(REDB)?;
            Ok(read_all(|key| Ok(objects.get(key)?.map(|value| value.value().to_vec()))))
        }
        "fjall-journal" | "fjall-flushed" => {
            let (_database, objects) = fjall(folder)?;
            Ok(read_all(|key| Ok(objects.get(key)?.map(|value| value.to_vec()))))
        }
        "shoal" => block_on(async {
            let store = Store::open(shoal(folder, false)?, shoal_options(), Environment::default()).await?;
            let mut worst = Seen::Harmless;
            for number in 0..KEYS {
                let key = ObjectKey::new("default", key(number).as_bytes())?;
                let seen = match store.get(&key, ByteRange::ALL).await {
                    Ok(Some(object)) if object.value.to_vec() == value(number) => Seen::Harmless,
                    Ok(Some(_)) => Seen::Wrong,
                    Ok(None) => Seen::Missing,
                    Err(_) => Seen::Error,
                };
                worst = worst.max(seen);
            }
            Ok(worst)
        }),
        _ => bail!("there is no engine {engine}"),
    }
}
