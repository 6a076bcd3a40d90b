//! The check that a device is blank, before a new layout is written to it.
//!
//! A device is blank if all of it reads as zeros, to the last byte: the bytes after the last whole block count, too. A file is read whole,
//! except for its holes. Of a device, the first and the last 16 MiB are read whole, which hold the signatures of file systems and the like.
//! From the middle, the check reads 64 KiB at each of 4,096 places, a random one in each of 4,096 parts of equal size, so that no regular
//! layout escapes, and the known places of superblock copies. A device of up to 288 MiB is read whole.
//! A small piece of data in the middle of a large device can be missed: data that cover a share s of it are found with a
//! probability of at least 1 - (1 - s)^4096 (a thousandth of it: 98 %).

use std::fmt;
use std::io;
use std::ops::Range;

use shoal_base::{BLOCK_BYTES, BLOCK_BYTES_U64, Entropy, Run};

pub use crate::signature::Signature;
use crate::signature::{known_blocks, signatures};
use crate::{Device, DeviceError, IoBuf, Op};

/// Blocks at the start, and at the end, all of which are read.
pub const DENSE_BLOCKS: u64 = 4096;

/// Places between them, each of which is read.
pub const SPREAD_PLACES: u64 = 4096;

/// Blocks that are read at each of these places.
const PLACE_BLOCKS: u64 = 16;

/// Blocks of one request when all are read.
const BLOCKS_PER_READ: u64 = 256;

/// Places that are read at a time.
const READS_AT_ONCE: usize = 32;

/// Signatures that are kept, at most.
const SIGNATURES_MAX: usize = 8;

static ZEROS: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];

/// The result of the check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// The first byte that was read and is not zero.
    pub first_byte: Option<u64>,
    /// The known formats on the device, in its order; each once.
    pub signatures: Vec<Signature>,
    /// Blocks that were read.
    pub blocks_read: u64,
}

impl Content {
    /// Returns true if all bytes read were zero.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        self.first_byte.is_none()
    }

    fn take(&mut self, first: u64, bytes: &[u8]) {
        for (block, bytes) in (first..).zip(bytes.chunks(BLOCK_BYTES)) {
            self.blocks_read += 1;
            if *bytes == ZEROS[..bytes.len()] {
                continue;
            }
            let offset = bytes.iter().position(|&byte| byte != 0).unwrap_or(0) as u64;
            let byte = block * BLOCK_BYTES_U64 + offset;
            self.first_byte = Some(self.first_byte.map_or(byte, |first| first.min(byte)));
            for found in signatures(block, bytes) {
                if self.signatures.len() < SIGNATURES_MAX
                    && self.signatures.iter().all(|other| other.what != found.what)
                {
                    self.signatures.push(found);
                }
            }
        }
    }
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(first_byte) = self.first_byte else {
            return write!(f, "it holds only zeros in the {} blocks that were read", self.blocks_read);
        };
        if self.signatures.is_empty() {
            return write!(f, "it is not blank: it holds data (the first at byte {first_byte})");
        }
        write!(f, "it is not blank: it holds ")?;
        for (place, signature) in self.signatures.iter().enumerate() {
            let before = if place == 0 { "" } else { ", " };
            write!(f, "{before}{} (byte {})", signature.what, signature.byte)?;
        }
        Ok(())
    }
}

/// Reads all of a file, and enough of a device to recognise its contents. Writes nothing.
///
/// # Errors
/// As the device: a block that cannot be read is not known to be blank.
pub async fn look(device: &Device, entropy: &dyn Entropy) -> Result<Content, DeviceError> {
    let blocks = device.blocks();
    let mut content = Content::default();
    let start = DENSE_BLOCKS.min(blocks);
    let end = blocks.saturating_sub(DENSE_BLOCKS).max(start);
    read_all(device, 0, start, &mut content).await?;
    read_all(device, end, blocks, &mut content).await?;
    // XFS has four allocation groups of equal size by default, and each starts with a superblock.
    let quarters = (1..4).map(|quarter| blocks.div_ceil(4) * quarter);
    let mut known: Vec<u64> =
        known_blocks().chain(quarters).filter(|block| (start..end).contains(block)).collect();
    known.sort_unstable();
    known.dedup();
    read_each(device, known.into_iter().map(|block| Run::new(block, 1)), &mut content).await?;
    content.take(blocks, &device.inner().tail().map_err(|error| unread(blocks, &error))?);
    if content.is_blank() && !read_data(device, start..end, &mut content).await? {
        read_each(device, spread(start, end, entropy), &mut content).await?;
    }
    content.signatures.sort_by_key(|signature| signature.byte);
    Ok(content)
}

/// [`PLACE_BLOCKS`] blocks at a random place in each of [`SPREAD_PLACES`] parts of the blocks from `start` to `end`; all of them if there
/// are no more.
fn spread(start: u64, end: u64, entropy: &dyn Entropy) -> impl Iterator<Item = Run> {
    let blocks = end - start;
    let parts = SPREAD_PLACES.min(blocks.div_ceil(PLACE_BLOCKS));
    let border =
        move |part: u64| start + (u128::from(blocks) * u128::from(part) / u128::from(parts.max(1))) as u64;
    (0..parts).map(move |part| {
        let (from, to) = (border(part), border(part + 1));
        let length = PLACE_BLOCKS.min(to - from);
        Run::new(from + entropy.next_u64() % (to - from - length + 1), length as u32)
    })
}

/// Reads all of `blocks` except the holes of a file, until it finds a byte that is not zero. Returns false, and reads nothing, if the
/// device knows no holes.
async fn read_data(device: &Device, blocks: Range<u64>, content: &mut Content) -> Result<bool, DeviceError> {
    let mut at = blocks.start;
    while at < blocks.end && content.is_blank() {
        let Some(data) = device.inner().data_after(at) else { return Ok(false) };
        let data = data.map_err(|error| unread(at, &error))?;
        // Data in a long run is found early.
        let end = data.end.min(blocks.end).min(data.start.saturating_add(DENSE_BLOCKS));
        read_all(device, data.start.min(end), end, content).await?;
        at = if data.is_empty() { blocks.end } else { end };
    }
    Ok(true)
}

/// The error of a read outside of requests.
fn unread(block: u64, error: &io::Error) -> DeviceError {
    DeviceError::Io {
        op: Op::Read.name(),
        block,
        blocks: 1,
        code: error.raw_os_error(),
        message: error.to_string(),
    }
}

async fn read_all(device: &Device, from: u64, to: u64, content: &mut Content) -> Result<(), DeviceError> {
    let mut at = from;
    while at < to {
        let blocks = (to - at).min(BLOCKS_PER_READ);
        let bytes = device.read(at, IoBuf::unfilled(blocks as usize)).await.ok()?;
        content.take(at, &bytes);
        at += blocks;
    }
    Ok(())
}

/// Reads these places, until it finds a byte that is not zero.
async fn read_each(
    device: &Device,
    mut places: impl Iterator<Item = Run>,
    content: &mut Content,
) -> Result<(), DeviceError> {
    loop {
        let mut batch = device.batch();
        let read =
            |run: Run| (run.block, batch.add(device.read(run.block, IoBuf::unfilled(run.blocks as usize))));
        let reads: Vec<_> = places.by_ref().take(READS_AT_ONCE).map(read).collect();
        if reads.is_empty() {
            return Ok(());
        }
        batch.start();
        for (block, read) in reads {
            content.take(block, &read.await.ok()?);
        }
        if !content.is_blank() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests;
