//! A process that puts into the store and is killed for real: the next opening has a log to read.
//!
//! The child says after each batch how many puts are durable. It ends by SIGKILL alone, or with an error of its own.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use shoal_device::IoMode;
use shoal_engine::{ByteRange, ObjectKey, Store, block_on};

use super::Sizes;
use super::climb::Target;
use super::load::{Load, Order};
use super::shoal::{BUCKET, Shoal, device};

/// Objects of the child are numbered from here on: the load has none of them.
const FIRST: u64 = 1 << 50;

/// Puts that the child's load is for: it is killed before them.
const PUTS: u64 = 1 << 40;

/// How to start the child.
#[derive(Clone, Debug)]
pub struct Killer {
    /// The program.
    pub program: PathBuf,
    /// Its first arguments; those of [`ChildOptions::arguments`] follow.
    pub first: &'static [&'static str],
}

/// The child's work.
#[derive(Clone, Debug)]
pub struct ChildOptions {
    /// The file of the store.
    pub data: PathBuf,
    /// Bytes of cache.
    pub cache: u64,
    /// Bytes of a value.
    pub value_bytes: u32,
    /// Puts of a batch.
    pub batch: u64,
    /// How the device is driven.
    pub io: IoMode,
}

impl ChildOptions {
    /// As the program gets them.
    fn arguments(&self) -> Vec<OsString> {
        let io = match self.io {
            IoMode::Auto => "auto",
            IoMode::Uring => "uring",
            IoMode::Threads => "threads",
        };
        let texts = [
            ("--cache", self.cache.to_string()),
            ("--value", self.value_bytes.to_string()),
            ("--batch", self.batch.to_string()),
            ("--io", io.to_owned()),
        ];
        let texts = texts.into_iter().flat_map(|(name, text)| [name.into(), text.into()]);
        texts.chain(["--data".into(), self.data.clone().into_os_string()]).collect()
    }
}

/// Puts into the store until this process is killed, and says on `out` how many puts are durable.
///
/// # Errors
/// The store failed, or nobody reads `out` any more.
pub fn put_until_killed(options: &ChildOptions, out: &mut dyn Write) -> Result<()> {
    let mut shoal = Shoal::open(device(&options.data, options.io)?, options.cache)?;
    let mut load = Load::new(Order::Random, options.value_bytes, PUTS, FIRST);
    loop {
        shoal.put(&load.batch(options.batch))?;
        writeln!(out, "{}", load.puts())?;
        out.flush()?;
    }
}

/// Ends a child that is still there, whatever happens.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        // It has ended already, or there is nothing more to be had from it.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a child on the store in `data`, kills it in the middle of its work, and gives the number of puts that it said are
/// durable.
pub(super) fn put_and_kill(killer: &Killer, data: &Path, sizes: &Sizes) -> Result<u64> {
    let options = ChildOptions {
        data: data.to_owned(),
        cache: sizes.cache,
        value_bytes: sizes.value_bytes,
        batch: sizes.batch,
        io: sizes.io,
    };
    let mut command = Command::new(&killer.program);
    command.args(killer.first).args(options.arguments()).stdin(Stdio::null()).stdout(Stdio::piped());
    let child = command.spawn().with_context(|| format!("cannot start {}", killer.program.display()))?;
    let mut child = Guard(child);
    let mut lines = BufReader::new(child.0.stdout.take().context("the child has no output")?).lines();
    let mut durable = 0;
    while durable < sizes.killed_after {
        let line = lines.next().context("the process that was to be killed ended by itself")??;
        durable = line.trim().parse().with_context(|| format!("the child printed {line:?}"))?;
    }
    child.0.kill().context("cannot kill the child")?;
    child.0.wait()?;
    // The lines that it wrote before it died count, too. Its last line may be a part of one.
    for line in lines.map_while(Result::ok) {
        durable = durable.max(line.trim().parse().unwrap_or_default());
    }
    Ok(durable)
}

/// Whether the newest of the `durable` puts of the child are there.
pub(super) fn verify(store: &Store, sizes: &Sizes, durable: u64) -> Result<()> {
    let load = Load::new(Order::Random, sizes.value_bytes, PUTS, FIRST);
    for number in (FIRST..FIRST + durable).rev().take(sizes.gets as usize) {
        let key = ObjectKey::new(BUCKET, &load.key(number))?;
        let object = block_on(store.get(&key, ByteRange::ALL))?;
        let is_right = object.is_some_and(|object| object.value.to_vec() == load.value(number));
        ensure!(
            is_right,
            "a put that was durable before the kill is lost: {}",
            String::from_utf8_lossy(key.key())
        );
    }
    Ok(())
}
