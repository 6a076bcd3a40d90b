//! A backup that is read, from a file or from standard input.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;

use anyhow::Context;
use shoal_backup::{Damage, Decoder, Event};

/// Bytes that are read at a time.
const READ_BYTES: usize = 1 << 20;

/// A backup that is read.
pub(crate) struct Source {
    input: Box<dyn Read + Send>,
    name: String,
    decoder: Decoder,
    buffer: Vec<u8>,
    is_over: bool,
}

impl Source {
    /// The backup in the file `path`, `-` for standard input.
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        let name = path.display().to_string();
        let input: Box<dyn Read + Send> = if path == Path::new("-") {
            Box::new(io::stdin())
        } else {
            Box::new(File::open(path).with_context(|| format!("cannot open the backup {name}"))?)
        };
        Ok(Self { input, name, decoder: Decoder::new(), buffer: vec![0; READ_BYTES], is_over: false })
    }

    /// The next part, or a damage, after which decoding continues; none at the end.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn next(&mut self) -> anyhow::Result<Option<Result<Event, Damage>>> {
        loop {
            match self.decoder.next_event() {
                Ok(Some(event)) => return Ok(Some(Ok(event))),
                Err(damage) => return Ok(Some(Err(damage))),
                Ok(None) if self.is_over => return Ok(None),
                Ok(None) => {}
            }
            let read = tokio::task::block_in_place(|| self.input.read(&mut self.buffer));
            match read {
                Ok(0) => {
                    self.decoder.complete();
                    self.is_over = true;
                }
                Ok(count) => self.decoder.push(&self.buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    return Err(error).with_context(|| format!("cannot read the backup {}", self.name));
                }
            }
        }
    }

    /// The random number of the backup; 0: no frame was read.
    pub(crate) fn number(&self) -> u64 {
        self.decoder.number().unwrap_or(0)
    }

    /// The place of the last part's frame.
    pub(crate) fn last_frame(&self) -> Range<u64> {
        self.decoder.last_frame()
    }

    /// Whole objects so far with the bytes of their values, and bytes of the backup.
    pub(crate) fn counts(&self) -> ((u64, u64), u64) {
        (self.decoder.counts(), self.decoder.offset())
    }
}
