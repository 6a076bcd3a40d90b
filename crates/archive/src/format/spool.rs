//! The spool: segments that wait for the bucket, in a file beside the data file, as they will be sent.
//!
//! Each starts at a 4 KiB border, and the file is emptied once all are archived. The first place without the next segment of the log is the
//! end: a crash leaves a torn one there, which was never archived and is still in the store's log.

use std::io;

use bytes::Bytes;

use super::{ArchiveSegment, LogSlot, SEGMENT_HEADER_BYTES, SegmentHeader, VolumeId};

/// Each segment starts at a multiple of this number of bytes.
pub const SPOOL_ALIGNMENT: u64 = 4096;

/// Bytes of the file that a segment takes.
#[must_use]
pub fn spool_bytes(segment_bytes: u64) -> u64 {
    segment_bytes.div_ceil(SPOOL_ALIGNMENT) * SPOOL_ALIGNMENT
}

/// Reads a spool, segment by segment.
pub struct SpoolReader {
    volume: VolumeId,
    /// The slot of the next segment.
    next: LogSlot,
    before: Option<SegmentHeader>,
    at: u64,
}

impl SpoolReader {
    /// A reader at the start of the spool of `volume`, whose first segment belongs to the slot `first`.
    #[must_use]
    pub fn new(volume: VolumeId, first: LogSlot) -> Self {
        Self { volume, next: first, before: None, at: 0 }
    }

    /// The offset of the next segment; after the last one, the place at which the file is cut.
    #[must_use]
    pub fn at(&self) -> u64 {
        self.at
    }

    /// The next segment, its bytes included; `None` at the end. `read` fills a buffer from an offset of the file as far as the file goes, and
    /// returns the number of bytes.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn next_segment(
        &mut self,
        read: &mut dyn FnMut(u64, &mut [u8]) -> io::Result<usize>,
    ) -> io::Result<Option<(Bytes, ArchiveSegment)>> {
        let mut head = [0; SEGMENT_HEADER_BYTES];
        if read(self.at, &mut head)? < head.len() {
            return Ok(None);
        }
        let Ok(header) = SegmentHeader::decode(&head, &self.volume, self.next) else { return Ok(None) };
        if self.before.is_some_and(|before| header.check_follows(&before).is_err()) {
            return Ok(None);
        }
        // The header bounds the length.
        let mut bytes = vec![0; header.bytes as usize];
        if read(self.at, &mut bytes)? < bytes.len() {
            return Ok(None);
        }
        let bytes = Bytes::from(bytes);
        let Ok(segment) = ArchiveSegment::decode(&bytes, &self.volume, self.next) else { return Ok(None) };
        self.at += spool_bytes(header.bytes);
        self.before = Some(header);
        self.next.seq = self.next.seq.saturating_add(1);
        Ok(Some((bytes, segment)))
    }
}
