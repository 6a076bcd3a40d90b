//! A process that puts into the store and is really killed: the next opening has a log to read.
//!
//! The child reports the number of durable puts after each batch. It exits only by SIGKILL, or with an error.

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

/// Objects of the child are numbered from here on: the load does not use these numbers.
const FIRST: u64 = 1 << 50;

/// Puts of the child's load: it is killed before it completes them.
const PUTS: u64 = 1 << 40;

/// The command of the child.
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
    /// As arguments of the program.
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

/// Puts into the store until this process is killed, and reports the number of durable puts on `out`.
///
/// # Errors
/// The store failed, or `out` is closed.
pub fn put_until_killed(options: &ChildOptions, out: &mut dyn Write) -> Result<()> {
    let mut shoal = Shoal::open(device(&options.data, options.io)?, options.cache)?;
    let mut load = Load::new(Order::Random, options.value_bytes, PUTS, FIRST);
    loop {
        shoal.put(&load.batch(options.batch))?;
        writeln!(out, "{}", load.puts())?;
        out.flush()?;
    }
}

/// Kills a child that still runs, in all cases.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        // It has exited already, or nothing more can be done.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a child on the store in `data`, kills it in the middle of its work, and returns the number of puts that it reported
/// as durable.
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
    // The lines that it wrote before it died also count. Its last line may be incomplete.
    for line in lines.map_while(Result::ok) {
        durable = durable.max(line.trim().parse().unwrap_or_default());
    }
    Ok(durable)
}

/// Checks that the newest of the child's `durable` puts exist.
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
