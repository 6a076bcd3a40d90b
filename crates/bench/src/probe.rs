//! The device's own latency: plain system calls with direct I/O, without any part of the store in between.
//!
//! Writes go to a separate file that was written once before, so that a flush never touches the file system's journal; reads go
//! to the store's own data, at random places. One thread, one request at a time.

use std::fs::{File, OpenOptions};
use std::io::IoSlice;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use rustix::fs::OFlags;
use rustix::io::{ReadWriteFlags, pread, pwrite, pwritev2};
use shoal_base::{BLOCK_BYTES, Entropy, SeededEntropy};

use crate::histogram::Histogram;

/// Bytes of the region that is written over and over.
const REGION_BYTES: u64 = 128 << 20;

/// Writes of each way that decide which one is the faster.
const TRIALS: u32 = 100;

/// The way to make a write durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Durably {
    /// A write, then `fdatasync`.
    Flush,
    /// A write with `RWF_DSYNC`.
    Dsync,
}

/// Measures writes that are durable when they return.
pub(crate) struct WriteProbe {
    file: File,
    memory: Aligned,
    bytes: usize,
    at: u64,
    way: Durably,
    pub(crate) latencies: Histogram,
}

impl WriteProbe {
    /// A probe that writes `bytes` bytes, rounded up to blocks, into the new file at `path`, whose name is removed at once.
    pub(crate) fn new(path: &Path, bytes: usize) -> Result<Self> {
        Self::for_groups(path, bytes, bytes)
    }

    /// The same for writes of up to `group_bytes` bytes.
    pub(crate) fn for_groups(path: &Path, bytes: usize, group_bytes: usize) -> Result<Self> {
        let file = direct(OpenOptions::new().read(true).write(true).create_new(true), path)?;
        std::fs::remove_file(path)?;
        let random = SeededEntropy::new(9);
        let mut memory = Aligned::new(group_bytes.max(1 << 20));
        memory.get().fill_with(|| random.next_u64() as u8);
        for at in (0..REGION_BYTES).step_by(1 << 20) {
            write_all(&file, &memory.get()[..1 << 20], at, ReadWriteFlags::empty())?;
        }
        rustix::fs::fdatasync(&file)?;
        let mut probe = Self {
            file,
            memory: memory.cut(group_bytes),
            bytes,
            at: 0,
            way: Durably::Flush,
            latencies: Histogram::default(),
        };
        probe.way = probe.faster()?;
        Ok(probe)
    }

    /// Its way to make writes durable, as text.
    pub(crate) fn way(&self) -> &'static str {
        match self.way {
            Durably::Flush => "write + fdatasync",
            Durably::Dsync => "write with RWF_DSYNC",
        }
    }

    fn faster(&mut self) -> Result<Durably> {
        let mut trial = |way| {
            self.way = way;
            self.latencies = Histogram::default();
            self.run(TRIALS)?;
            Ok::<_, anyhow::Error>(self.latencies.quantile_us(500))
        };
        let (flush, dsync) = (trial(Durably::Flush)?, trial(Durably::Dsync)?);
        self.latencies = Histogram::default();
        Ok(if dsync < flush { Durably::Dsync } else { Durably::Flush })
    }

    /// Writes `count` times.
    pub(crate) fn run(&mut self, count: u32) -> Result<()> {
        for _ in 0..count {
            let began = Instant::now();
            self.write(self.bytes)?;
            self.latencies.record(began.elapsed());
        }
        Ok(())
    }

    /// Writes `bytes` bytes once, rounded up to blocks and at most those of a group.
    pub(crate) fn write(&mut self, bytes: usize) -> Result<()> {
        let memory = self.memory.get();
        let bytes = bytes.next_multiple_of(BLOCK_BYTES).min(memory.len());
        let memory = &memory[..bytes];
        if self.at + memory.len() as u64 > REGION_BYTES {
            self.at = 0;
        }
        match self.way {
            Durably::Flush => {
                write_all(&self.file, memory, self.at, ReadWriteFlags::empty())?;
                rustix::fs::fdatasync(&self.file)?;
            }
            Durably::Dsync => write_all(&self.file, memory, self.at, ReadWriteFlags::DSYNC)?,
        }
        self.at += memory.len() as u64;
        Ok(())
    }
}

fn write_all(file: &File, memory: &[u8], at: u64, flags: ReadWriteFlags) -> Result<()> {
    let written = if flags.is_empty() {
        pwrite(file, memory, at)
    } else {
        pwritev2(file, &[IoSlice::new(memory)], at, flags)
    };
    ensure!(written.context("cannot write the probe's file")? == memory.len(), "a write was cut short");
    Ok(())
}

/// Measures the reads of a get: a page, if it is not cached, and then the value.
pub(crate) struct ReadProbe {
    file: File,
    memory: Aligned,
    random: SeededEntropy,
    blocks: u64,
    /// Pages that are due: grows by the pages that a get reads on average.
    due: f64,
    pub(crate) latencies: Histogram,
}

impl ReadProbe {
    /// A probe that reads values of `bytes` bytes out of the first `blocks` blocks of the file at `path`.
    pub(crate) fn new(path: &Path, bytes: usize, blocks: u64) -> Result<Self> {
        let memory = Aligned::new(bytes);
        ensure!(blocks > memory.blocks(), "the file is too short to be read at random");
        Ok(Self {
            file: direct(OpenOptions::new().read(true), path)?,
            memory,
            random: SeededEntropy::new(10),
            blocks,
            due: 0.0,
            latencies: Histogram::default(),
        })
    }

    /// Reads `count` values, and on average `pages` pages before each.
    pub(crate) fn run(&mut self, count: u32, pages: f64) -> Result<()> {
        for _ in 0..count {
            self.due += pages;
            let began = Instant::now();
            while self.due >= 1.0 {
                self.due -= 1.0;
                self.read(1)?;
            }
            self.read(self.memory.blocks())?;
            self.latencies.record(began.elapsed());
        }
        Ok(())
    }

    fn read(&mut self, blocks: u64) -> Result<()> {
        let at = self.random.below(self.blocks - blocks) * BLOCK_BYTES as u64;
        let memory = &mut self.memory.get()[..blocks as usize * BLOCK_BYTES];
        let wanted = memory.len();
        ensure!(
            pread(&self.file, memory, at).context("cannot read the data file")? == wanted,
            "a read was cut short"
        );
        Ok(())
    }
}

fn direct(options: &mut OpenOptions, path: &Path) -> Result<File> {
    let flags = i32::try_from(OFlags::DIRECT.bits())?;
    let opened = options.custom_flags(flags).open(path);
    opened.with_context(|| format!("cannot open {} for direct I/O", path.display()))
}

/// Memory for direct I/O: it starts at a multiple of a block.
struct Aligned {
    memory: Vec<u8>,
    start: usize,
    bytes: usize,
}

impl Aligned {
    /// At least `bytes` bytes, in whole blocks, at least one.
    fn new(bytes: usize) -> Self {
        let bytes = bytes.next_multiple_of(BLOCK_BYTES).max(BLOCK_BYTES);
        let memory = vec![0; bytes + BLOCK_BYTES];
        let start = memory.as_ptr().align_offset(BLOCK_BYTES);
        Self { memory, start, bytes }
    }

    /// The first `bytes` bytes, in whole blocks.
    fn cut(mut self, bytes: usize) -> Self {
        self.bytes = bytes.next_multiple_of(BLOCK_BYTES).clamp(BLOCK_BYTES, self.bytes);
        self
    }

    fn blocks(&self) -> u64 {
        (self.bytes / BLOCK_BYTES) as u64
    }

    fn get(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.bytes]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_memory_is_aligned_and_whole() {
        for bytes in [0, 1, 4096, 4097, 70_000] {
            let mut memory = Aligned::new(bytes);
            let blocks = memory.blocks();
            assert!(memory.get().as_ptr().addr().is_multiple_of(BLOCK_BYTES));
            assert_eq!(memory.get().len() as u64, blocks * 4096);
            assert!(memory.get().len() >= bytes && memory.get().len() < bytes + 2 * BLOCK_BYTES);
        }
        assert_eq!(Aligned::new(1 << 20).cut(5000).blocks(), 2);
    }
}
