//! Pieces of values that came before their records, in a bounded amount of memory: of more, only the places are kept.

use std::collections::HashMap;

use bytes::Bytes;

use super::slots::{decode, whole};
use super::{ArchiveReader, RestoreError};
use crate::format::{FormatError, LogSlot, LoggedRecord, ValuePiece};

/// Bytes of pieces that are kept; those of other ones are fetched again.
const KEPT_BYTES_MAX: usize = 64 << 20;

/// The pieces of a log that have no record yet.
#[derive(Default)]
pub(super) struct PendingPieces {
    values: HashMap<u64, Vec<PendingPiece>>,
    kept_bytes: usize,
}

/// A piece whose record did not come yet.
pub(super) struct PendingPiece {
    slot: LogSlot,
    id: u64,
    index: u32,
    bytes: usize,
    kept: Option<Bytes>,
}

impl PendingPieces {
    /// Takes the next piece, which is in `slot`.
    pub(super) fn add(&mut self, slot: LogSlot, piece: &ValuePiece) {
        let bytes = piece.bytes.len();
        let is_kept = self.kept_bytes + bytes <= KEPT_BYTES_MAX;
        self.kept_bytes += if is_kept { bytes } else { 0 };
        // A copy: the piece would keep its whole slot in memory.
        let kept = is_kept.then(|| Bytes::copy_from_slice(&piece.bytes));
        let pending = PendingPiece { slot, id: piece.id, index: piece.index, bytes, kept };
        self.values.entry(piece.id).or_default().push(pending);
    }

    /// The pieces of the value `id`, whose record is in `slot`, in order.
    ///
    /// # Errors
    /// They do not have `stored_bytes` bytes together.
    pub(super) fn take(
        &mut self,
        id: u64,
        stored_bytes: u64,
        slot: LogSlot,
    ) -> Result<Vec<PendingPiece>, FormatError> {
        let pieces = self.values.remove(&id).unwrap_or_default();
        self.kept_bytes -= kept_bytes(&pieces);
        let is_in_order = pieces.iter().enumerate().all(|(at, piece)| piece.index as usize == at);
        if !is_in_order || pieces.iter().map(|piece| piece.bytes as u64).sum::<u64>() != stored_bytes {
            let why = "the pieces of a value before its record are missing, or are others";
            return Err(FormatError::Damaged { object: slot.to_string(), offset: 0, why });
        }
        Ok(pieces)
    }

    /// Drops the pieces of the value `id`.
    pub(super) fn forget(&mut self, id: u64) {
        let pieces = self.values.remove(&id).unwrap_or_default();
        self.kept_bytes -= kept_bytes(&pieces);
    }

    /// A log is at its end: its pieces without a record are dropped.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

fn kept_bytes(pieces: &[PendingPiece]) -> usize {
    pieces.iter().filter_map(|piece| piece.kept.as_ref()).map(Bytes::len).sum()
}

impl PendingPiece {
    /// Its bytes. `last` is the slot that was fetched last, and its pieces.
    pub(super) async fn bytes(
        self,
        reader: &ArchiveReader,
        last: &mut Option<(LogSlot, Vec<ValuePiece>)>,
    ) -> Result<Bytes, RestoreError> {
        if let Some(kept) = self.kept {
            return Ok(kept);
        }
        if last.as_ref().is_none_or(|(slot, _)| *slot != self.slot) {
            let bytes = whole(&reader.bucket, self.slot).await?;
            let read = decode(&bytes, &reader.record.volume, self.slot)?;
            let records = read.batches.into_iter().flat_map(|batch| batch.records);
            let pieces = records.filter_map(|record| match record {
                LoggedRecord::Piece(piece) => Some(piece),
                LoggedRecord::Write { .. } => None,
            });
            *last = Some((self.slot, pieces.collect()));
        }
        let pieces = last.iter().flat_map(|(_, pieces)| pieces);
        let found = pieces.filter(|piece| piece.id == self.id && piece.index == self.index).last();
        let changed = || {
            let why = "it changed while it was read: a piece of a value is missing";
            FormatError::Foreign { object: self.slot.to_string(), why }
        };
        found.map(|piece| piece.bytes.clone()).ok_or_else(|| changed().into())
    }
}
