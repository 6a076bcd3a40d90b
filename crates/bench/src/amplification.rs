//! `bench amplification`: the space that objects take, and the bytes written for them.
//!
//! Each row is a separate store in a new data file. A load is put by some clients; when the trees hold everything, the
//! allocated bytes over the live ones are recorded (including tree pages, without log and superblocks). Then a random half is
//! deleted, and the store's work on it is watched for at most a minute. The written bytes are counted by kind, in bytes of the
//! device for each byte of the puts.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use shoal_base::BLOCK_BYTES_U64;
use shoal_device::IoMode;
use shoal_engine::{
    Environment, FormatOptions, ObjectKey, OpenOptions, PutOptions, RejectRules, Store, StoreStat, block_on,
};

use crate::data_file::NewFile;
use crate::machine;
use crate::payload::{self, ObjectSet, Pool, Sizes};
use crate::report::{Metric, Report};
use crate::select;
use crate::settle::settle;

const SEED: u64 = 20_261_121;

/// Names of the cases: the files of a folder, and sizes that are log-normally distributed.
const CASES: [&str; 2] = ["alloc-live-tree", "alloc-live-logn"];
/// Clients that put and delete.
const VARIANTS: [(&str, u64); 2] = [("c1", 1), ("c16", 16)];

/// Time limit for watching the store after the deletes.
const WATCHED_MAX: Duration = Duration::from_secs(60);
/// Without an apply for this time, nothing is left to do.
const QUIET: Duration = Duration::from_secs(6);
/// The goal after the deletes.
const GOAL: f64 = 1.08;

const METRICS: &[Metric] = &[
    Metric { name: "objects", unit: "1", head: "objects" },
    Metric { name: "put_mib", unit: "MiB", head: "put MiB" },
    Metric { name: "put_seconds", unit: "s", head: "put s" },
    Metric { name: "alloc_live_after_puts", unit: "1", head: "put a/l" },
    Metric { name: "alloc_live_after_deletes", unit: "1", head: "half a/l" },
    Metric { name: "seconds_to_goal", unit: "s", head: "s to 1.08" },
    Metric { name: "alloc_live_at_end", unit: "1", head: "end a/l" },
    Metric { name: "moved_mib", unit: "MiB", head: "moved MiB" },
    Metric { name: "written_per_user_byte", unit: "1", head: "dev/user" },
    Metric { name: "log_per_user_byte", unit: "1", head: "log" },
    Metric { name: "extents_per_user_byte", unit: "1", head: "extents" },
    Metric { name: "home_per_user_byte", unit: "1", head: "home" },
    Metric { name: "pages_per_user_byte", unit: "1", head: "pages" },
    Metric { name: "moves_per_user_byte", unit: "1", head: "moves" },
];

/// The selected cases, and their parameters.
#[derive(Clone, Debug)]
pub struct AmplificationOptions {
    /// Version of the program, for the header.
    pub version: String,
    /// JSON lines instead of a table.
    pub json: bool,
    /// Cases by name, or by prefix and `*`; none: all.
    pub cases: Vec<String>,
    /// Variants likewise.
    pub variants: Vec<String>,
    /// The data file, which must not exist and is removed at the end; none: a temporary one in the current folder.
    pub data: Option<PathBuf>,
    /// Minimum bytes of values to put.
    pub bytes: u64,
    /// Bytes of cache.
    pub cache: u64,
    /// The folder whose files are put, repeatedly if necessary.
    pub tree: PathBuf,
    /// How the device is driven.
    pub io: IoMode,
}

/// Runs the cases of `options` and prints the results to `out`. Must not run on a runtime's thread.
///
/// # Errors
/// An unknown case or variant; the store, the device, the folder or the output failed.
pub fn run(options: &AmplificationOptions, out: &mut dyn Write) -> Result<()> {
    let cases = select("case", &CASES, &options.cases)?;
    let variants = select("variant", &VARIANTS.map(|(name, _)| name), &options.variants)?;
    let mut report = Report::new(out, "amplification", METRICS, options.json);
    let parameters = format!(
        "at least {} MiB of values; cache {} MiB; files of {}; log-normal sizes: median 16 KiB, sigma 1.5, at most 4 MiB",
        options.bytes >> 20,
        options.cache >> 20,
        options.tree.display()
    );
    for (name, value) in [
        (
            "bench",
            "amplification: allocated over live bytes, and bytes written for each byte put; home includes moves",
        ),
        ("machine", &machine::describe()),
        ("load average", &machine::load()),
        ("version", &options.version),
        ("parameters", &parameters),
        ("seed", &SEED.to_string()),
    ] {
        report.fact(name, value)?;
    }
    for case in cases {
        let load = if case == CASES[0] { Load::tree(&options.tree)? } else { Load::log_normal() };
        for (variant, clients) in VARIANTS.iter().filter(|(name, _)| variants.contains(name)) {
            let figures = Row { options, load: &load, clients: *clients }.measure()?;
            report.row(case, variant, &figures)?;
        }
    }
    Ok(())
}

/// Objects by number, without a limit.
enum Load {
    /// Paths below a folder; object n is file n modulo their number, under another key each time.
    Tree {
        root: PathBuf,
        files: Vec<PathBuf>,
    },
    Sizes(ObjectSet),
}

impl Load {
    fn tree(root: &Path) -> Result<Self> {
        let mut files = Vec::new();
        let mut folders = vec![root.to_path_buf()];
        while let Some(folder) = folders.pop() {
            let entries = fs::read_dir(&folder).with_context(|| format!("{}", folder.display()))?;
            for entry in entries {
                let entry = entry?;
                let kind = entry.file_type()?;
                if kind.is_dir() {
                    folders.push(entry.path());
                } else if kind.is_file() && (1..=4 << 20).contains(&entry.metadata()?.len()) {
                    files.push(entry.path());
                }
            }
        }
        files.sort_unstable();
        ensure!(!files.is_empty(), "{} has no files of 1 byte to 4 MiB", root.display());
        Ok(Self::Tree { root: root.to_path_buf(), files })
    }

    fn log_normal() -> Self {
        Self::Sizes(Pool::new(SEED).set("amplification", Sizes::LOG_NORMAL))
    }

    fn key(&self, number: u64) -> Vec<u8> {
        match self {
            Self::Tree { root, files } => {
                let file = &files[(number % files.len() as u64) as usize];
                let name = file.strip_prefix(root).unwrap_or(file);
                let round = number / files.len() as u64;
                let mut key = format!("{round}/").into_bytes();
                key.extend_from_slice(name.as_os_str().as_encoded_bytes());
                key
            }
            Self::Sizes(set) => set.key(number),
        }
    }

    fn value(&self, number: u64) -> Result<Bytes> {
        match self {
            Self::Tree { files, .. } => {
                let file = &files[(number % files.len() as u64) as usize];
                Ok(fs::read(file).with_context(|| format!("{}", file.display()))?.into())
            }
            Self::Sizes(set) => Ok(set.value(number)),
        }
    }
}

struct Row<'a> {
    options: &'a AmplificationOptions,
    load: &'a Load,
    clients: u64,
}

fn ratio(stat: &StoreStat) -> f64 {
    (stat.allocated_blocks * BLOCK_BYTES_U64) as f64 / stat.live_value_bytes.max(1) as f64
}

impl Row<'_> {
    fn measure(&self) -> Result<Vec<Option<f64>>> {
        let (device, _file) =
            NewFile::create(self.options.data.as_deref(), "amplification", self.options.io)?;
        let size = (self.options.bytes * 2).max(1 << 30) / BLOCK_BYTES_U64;
        block_on(Store::format(&device, &FormatOptions::for_blocks(size), &Environment::default()))?;
        let options =
            OpenOptions { cache_bytes: usize::try_from(self.options.cache)?, ..OpenOptions::default() };
        let store = block_on(Store::open(device, options, Environment::default()))?;
        let began = Instant::now();
        let (objects, put_bytes) = self.put(&store)?;
        let put_seconds = began.elapsed().as_secs_f64();
        let after_puts = settled_ratio(&store);
        self.delete_half(&store, objects)?;
        let watched = watch(&store);
        let stat = store.stat();
        block_on(store.close())?;
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let per_byte = |blocks: u64| Some((blocks * BLOCK_BYTES_U64) as f64 / put_bytes.max(1) as f64);
        Ok(vec![
            Some(objects as f64),
            Some(mib(put_bytes)),
            Some(put_seconds),
            Some(after_puts),
            Some(watched.first),
            watched.seconds_to_goal,
            Some(watched.last),
            Some(mib(stat.moved_bytes)),
            per_byte(stat.device.blocks_written.saturating_sub(stat.growth_blocks_written)),
            per_byte(stat.log_blocks_written),
            per_byte(stat.extent_blocks_written),
            per_byte(stat.home_blocks_written),
            per_byte(stat.page_blocks_written),
            Some(stat.moved_bytes as f64 / put_bytes.max(1) as f64),
        ])
    }

    /// Puts objects until they have the requested bytes; returns the number of objects and bytes.
    fn put(&self, store: &Store) -> Result<(u64, u64)> {
        let (next, bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        self.in_threads(|| {
            while bytes.load(Ordering::Relaxed) < self.options.bytes {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let key = ObjectKey::new("bench", &self.load.key(number))?;
                let value = self.load.value(number)?;
                bytes.fetch_add(value.len() as u64, Ordering::Relaxed);
                block_on(store.put(&key, value.into(), PutOptions::default()))?;
            }
            Ok(())
        })?;
        Ok((next.into_inner(), bytes.into_inner()))
    }

    fn delete_half(&self, store: &Store, objects: u64) -> Result<()> {
        let next = AtomicU64::new(0);
        self.in_threads(|| {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= objects {
                    return Ok(());
                }
                if payload::salt(SEED ^ number, "dies") & 1 == 1 {
                    let key = ObjectKey::new("bench", &self.load.key(number))?;
                    block_on(store.delete(&key, RejectRules::default()))?;
                }
            }
        })
    }

    fn in_threads(&self, work: impl Fn() -> Result<()> + Sync) -> Result<()> {
        let first_error = Mutex::new(Ok(()));
        thread::scope(|scope| {
            for _ in 0..self.clients {
                scope.spawn(|| {
                    if let Err(error) = work()
                        && let Ok(mut first) = first_error.lock()
                        && first.is_ok()
                    {
                        *first = Err(error);
                    }
                });
            }
        });
        first_error.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Waits until the trees hold everything; returns the allocated bytes over the live ones.
fn settled_ratio(store: &Store) -> f64 {
    settle(store);
    ratio(&store.stat())
}

struct Watched {
    first: f64,
    last: f64,
    seconds_to_goal: Option<f64>,
}

/// Watches an idle store until nothing happens any more.
fn watch(store: &Store) -> Watched {
    let began = Instant::now();
    let first = settled_ratio(store);
    let mut watched = Watched { first, last: first, seconds_to_goal: None };
    let (mut applies, mut changed) = (0, Instant::now());
    while began.elapsed() < WATCHED_MAX && changed.elapsed() < QUIET {
        let stat = store.stat();
        watched.last = ratio(&stat);
        if watched.last <= GOAL && watched.seconds_to_goal.is_none() {
            watched.seconds_to_goal = Some(began.elapsed().as_secs_f64());
        }
        if stat.applies != applies {
            (applies, changed) = (stat.applies, Instant::now());
        }
        thread::sleep(Duration::from_millis(50));
    }
    watched
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_run_gives_all_figures() {
        let folder = std::env::temp_dir().join(format!("shoal-amplification-{}", std::process::id()));
        fs::create_dir_all(folder.join("tree/inner")).unwrap();
        for number in 0..40_usize {
            fs::write(folder.join(format!("tree/inner/{number}")), vec![1; 300 + 900 * number]).unwrap();
        }
        let options = AmplificationOptions {
            version: "0".into(),
            json: false,
            cases: vec!["alloc-live-tree".into()],
            variants: vec!["c16".into()],
            data: Some(folder.join("data")),
            bytes: 4 << 20,
            cache: 8 << 20,
            tree: folder.join("tree"),
            io: IoMode::Auto,
        };
        let load = Load::tree(&options.tree).unwrap();
        let figures = Row { options: &options, load: &load, clients: 4 }.measure().unwrap();
        fs::remove_dir_all(&folder).unwrap();
        let figure = |name: &str| {
            let at = METRICS.iter().position(|metric| metric.name == name).unwrap();
            figures[at].unwrap_or(f64::NAN)
        };
        assert!(figure("put_mib") >= 4.0 && figure("objects") > 200.0, "{figures:?}");
        assert!((1.0..1.3).contains(&figure("alloc_live_after_puts")), "{figures:?}");
        assert!((1.0..1.5).contains(&figure("alloc_live_at_end")), "{figures:?}");
        assert!(figure("written_per_user_byte") > figure("log_per_user_byte"), "{figures:?}");
    }
}
