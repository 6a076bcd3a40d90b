//! A trace of what a store allocates and frees, to be replayed with other allocators (`shoal bench space --replay`).
//!
//! Lines of text, described in `docs/format/space-trace.md`. What is freed is noted before it can be handed out again and what
//! is taken after it was, so a block's lines are in the order in which it had owners, whichever threads they were.

use std::fmt;
use std::io::{self, BufRead, Write};
use std::str::FromStr;

use parking_lot::Mutex;
use shoal_base::Run;
use shoal_space::Space;

/// The first line of a trace.
const FIRST_LINE: &str = "shoal space trace 1";

/// One line of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceLine {
    /// The device: how many blocks it may grow to, and the blocks of a group.
    Device {
        /// Blocks that it may grow to.
        blocks_max: u64,
        /// Blocks of a group of the store's allocator.
        group_blocks: u32,
    },
    /// A run that was free when the trace began.
    Free(Run),
    /// Blocks that were taken for one purpose, and the runs that they came in.
    Taken {
        /// How many blocks were wanted; fewer are in the runs where the longest free run was wanted instead.
        wanted: u64,
        /// The runs.
        runs: Vec<Run>,
    },
    /// Runs that were freed.
    Freed(Vec<Run>),
}

impl fmt::Display for TraceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = match self {
            Self::Device { blocks_max, group_blocks } => {
                return write!(f, "device {blocks_max} {group_blocks}");
            }
            Self::Free(run) => return write!(f, "free {}+{}", run.block, run.blocks),
            Self::Taken { wanted, runs } => {
                write!(f, "t {wanted}")?;
                runs
            }
            Self::Freed(runs) => {
                write!(f, "f")?;
                runs
            }
        };
        runs.iter().try_for_each(|run| write!(f, " {}+{}", run.block, run.blocks))
    }
}

impl FromStr for TraceLine {
    type Err = &'static str;

    fn from_str(line: &str) -> Result<Self, Self::Err> {
        let mut words = line.split(' ');
        let kind = words.next().unwrap_or_default();
        let number =
            |word: Option<&str>| word.and_then(|word| word.parse().ok()).ok_or("a number is missing");
        match kind {
            "device" => {
                let (blocks_max, group_blocks) = (number(words.next())?, number(words.next())?);
                let group_blocks = u32::try_from(group_blocks).map_err(|_| "the group is too large")?;
                Ok(Self::Device { blocks_max, group_blocks })
            }
            "free" => match runs(words)?[..] {
                [run] => Ok(Self::Free(run)),
                _ => Err("one run is wanted"),
            },
            "t" => {
                let wanted = number(words.next())?;
                Ok(Self::Taken { wanted, runs: runs(words)? })
            }
            "f" => Ok(Self::Freed(runs(words)?)),
            _ => Err("the line begins with none of device, free, t, f"),
        }
    }
}

fn runs<'a>(words: impl Iterator<Item = &'a str>) -> Result<Vec<Run>, &'static str> {
    let run = |word: &str| {
        let (block, blocks) = word.split_once('+')?;
        let (block, blocks): (u64, u32) = (block.parse().ok()?, blocks.parse().ok()?);
        (blocks > 0 && block.checked_add(u64::from(blocks)).is_some()).then(|| Run::new(block, blocks))
    };
    words.map(|word| run(word).ok_or("a run is written BLOCK+BLOCKS")).collect()
}

/// Writes a trace. Give it to [`OpenOptions::space_trace`](crate::OpenOptions): the store says when it begins and ends.
pub struct SpaceTrace(Mutex<Option<Box<dyn Write + Send>>>);

impl fmt::Debug for SpaceTrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SpaceTrace")
    }
}

impl SpaceTrace {
    /// A trace that goes to `out`, in small pieces: it should be buffered.
    #[must_use]
    pub fn new(out: Box<dyn Write + Send>) -> Self {
        Self(Mutex::new(Some(out)))
    }

    /// The beginning: the device and its free runs.
    pub(crate) fn begin(&self, space: &Space) {
        let device = TraceLine::Device { blocks_max: space.blocks_max(), group_blocks: space.group_blocks() };
        self.write(|out| writeln!(out, "{FIRST_LINE}\n{device}"));
        let mut free = Vec::new();
        space.for_each_run(&mut |run| free.push(run));
        self.write(|out| free.iter().try_for_each(|&run| writeln!(out, "{}", TraceLine::Free(run))));
    }

    pub(crate) fn taken(&self, wanted: u64, runs: &[Run]) {
        self.write(|out| writeln!(out, "{}", TraceLine::Taken { wanted, runs: runs.to_vec() }));
    }

    pub(crate) fn freed(&self, runs: &[Run]) {
        self.write(|out| writeln!(out, "{}", TraceLine::Freed(runs.to_vec())));
    }

    /// The end.
    pub(crate) fn end(&self) {
        self.write(|out| out.flush());
    }

    /// A trace that cannot be written ends: the store goes on.
    fn write(&self, write: impl FnOnce(&mut Box<dyn Write + Send>) -> io::Result<()>) {
        let mut out = self.0.lock();
        if let Some(Err(error)) = out.as_mut().map(write) {
            tracing::error!("the trace of allocations cannot be written and ends here: {error}");
            *out = None;
        }
    }
}

/// Reads a trace line by line. What follows the last end of a line was cut off by a crash and is left out.
pub struct TraceReader<R> {
    input: R,
    line: String,
    number: u64,
}

impl<R: BufRead> TraceReader<R> {
    /// A reader of `input`.
    ///
    /// # Errors
    /// Where `input` does not begin as a trace; as the input.
    pub fn new(mut input: R) -> io::Result<Self> {
        let mut line = String::new();
        // A file of another kind may have no line at all.
        io::Read::take(&mut input, FIRST_LINE.len() as u64 + 1).read_line(&mut line)?;
        if line.trim_end() != FIRST_LINE {
            let what = format!("this is no trace of allocations: it does not begin with {FIRST_LINE:?}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Ok(Self { input, line, number: 1 })
    }
}

impl<R: BufRead> Iterator for TraceReader<R> {
    type Item = io::Result<TraceLine>;

    fn next(&mut self) -> Option<Self::Item> {
        self.line.clear();
        self.number += 1;
        if let Err(error) = self.input.read_line(&mut self.line) {
            return Some(Err(error));
        }
        let line = self.line.strip_suffix('\n')?;
        let wrong = |what| {
            io::Error::new(io::ErrorKind::InvalidData, format!("line {} of the trace: {what}", self.number))
        };
        Some(line.parse().map_err(wrong))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use shoal_device::{Device, MemDevice};

    use super::*;
    use crate::{Environment, FormatOptions, ObjectKey, OpenOptions, PutOptions, Store, block_on};

    /// Has room for so many bytes.
    struct Failing(usize);

    impl Write for Failing {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_trace_that_cannot_be_written_ends() {
        let trace = SpaceTrace::new(Box::new(Failing(10)));
        trace.taken(0, &[]);
        assert!(trace.0.lock().is_some(), "the first line fits");
        trace.freed(&[Run::new(5, 1), Run::new(9, 1)]);
        assert!(trace.0.lock().is_none());
        trace.end();
    }

    #[test]
    fn a_trace_that_cannot_be_read_says_where() {
        let text = format!("{FIRST_LINE}\nf 5+1\nf 5+0\n");
        let mut lines = TraceReader::new(text.as_bytes()).unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), TraceLine::Freed(vec![Run::new(5, 1)]));
        let wrong = lines.next().unwrap().unwrap_err();
        assert_eq!(wrong.to_string(), "line 3 of the trace: a run is written BLOCK+BLOCKS");
        assert!(lines.next().is_none());
        // Text that is none.
        let bytes = [FIRST_LINE.as_bytes(), b"\nf \xFF\n"].concat();
        let error = TraceReader::new(&bytes[..]).unwrap().next().unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_are_read_as_they_were_written() {
        let lines = [
            TraceLine::Device { blocks_max: 1 << 32, group_blocks: 65_536 },
            TraceLine::Free(Run::new(7, 9)),
            TraceLine::Taken { wanted: 12, runs: vec![Run::new(1, 4), Run::new(9, 8)] },
            TraceLine::Freed(vec![Run::new(1, 4)]),
            TraceLine::Freed(Vec::new()),
        ];
        for line in lines {
            assert_eq!(line.to_string().parse(), Ok(line));
        }
        for wrong in [
            "",
            "free",
            "free 1",
            "free 1+0",
            "t",
            "t x 1+2",
            "f 18446744073709551615+1",
            "x 1+1",
            "device 5",
        ] {
            assert!(wrong.parse::<TraceLine>().is_err(), "{wrong}");
        }
        assert!(TraceReader::new(&b"something else"[..]).is_err());
        let cut = TraceReader::new(&b"shoal space trace 1\nf 1+2\nf 3+"[..]).unwrap();
        assert_eq!(cut.map(Result::unwrap).collect::<Vec<_>>(), [TraceLine::Freed(vec![Run::new(1, 2)])]);
    }

    /// Who follows the trace has the same free blocks as the store at its end.
    #[test]
    fn a_trace_explains_the_free_space() {
        let out = Shared::default();
        let device = Device::new(Arc::new(MemDevice::new(8192)));
        let free = block_on(async {
            Store::format(&device, &FormatOptions::for_blocks(8192), &Environment::default()).await.unwrap();
            let trace = Some(Arc::new(SpaceTrace::new(Box::new(out.clone()))));
            let options = OpenOptions { space_trace: trace, background: false, ..OpenOptions::default() };
            let store = Store::open(device, options, Environment::default()).await.unwrap();
            for index in 0..120u8 {
                let key = ObjectKey::new("default", &[index % 50]).unwrap();
                let bytes = 1000 + usize::from(index) * 700;
                store.put(&key, vec![index; bytes].into(), PutOptions::default()).await.unwrap();
            }
            store.close().await.unwrap();
            store.free_space().flat_map(|run| run.block..run.end()).collect::<Vec<u64>>()
        });
        let text = out.0.lock().clone();
        let mut found = std::collections::BTreeSet::new();
        let blocks = |runs: Vec<Run>| runs.into_iter().flat_map(|run| run.block..run.end());
        for line in TraceReader::new(&text[..]).unwrap().map(Result::unwrap) {
            match line {
                TraceLine::Device { blocks_max, .. } => assert_eq!(blocks_max, 8192),
                TraceLine::Free(run) => found.extend(blocks(vec![run])),
                TraceLine::Taken { runs, .. } => {
                    blocks(runs).for_each(|block| assert!(found.remove(&block), "{block}"))
                }
                TraceLine::Freed(runs) => {
                    blocks(runs).for_each(|block| assert!(found.insert(block), "{block}"))
                }
            }
        }
        assert!(text.len() > 2000, "{} bytes", text.len());
        assert_eq!(found.into_iter().collect::<Vec<u64>>(), free);
    }
}
