//! Values of several pieces, over several slots, more of them than are kept in memory.

use shoal_base::checksum::crc32c;
use shoal_base::{Lsn, Run, TabletId};
use shoal_engine::ObjectKey;
use shoal_log::format::{RecordKind, encode_record};
use shoal_value::{Entry, Home, Meta};

use super::*;
use crate::format::*;
use crate::limits::PIECE_BYTES;

/// A value of five pieces.
fn value(tag: u64) -> Bytes {
    let bytes = 4 * PIECE_BYTES + 1_000;
    (0..bytes as u64).map(|at| (at / 5 + at * tag) as u8).collect::<Vec<u8>>().into()
}

fn record_of(value: &Bytes, key: &[u8]) -> (shoal_log::format::EncodedRecord, Vec<u32>) {
    let checksums: Vec<u32> = value.chunks(64 << 10).map(crc32c).collect();
    let entry = Entry {
        modified_ns: 1,
        end: None,
        value_bytes: value.len() as u64,
        meta: Meta::Inline(smallvec::SmallVec::new()),
        home: Home::Manifest { runs: smallvec::smallvec![Run::new(9, 1)], bytes: 1_000, checksum: 5 },
    };
    let mut body = Vec::new();
    entry.encode(&mut body);
    let key = ObjectKey::new("b", key).unwrap();
    (encode_record(RecordKind::Put, TabletId(0), key.encoded(), &[&body], false), checksums)
}

/// The pieces of `value`, each in a slot, in several turns with those of another value.
fn write_pieces(history: &mut History, id: u64, value: &Bytes, skip: Option<usize>) {
    for (index, bytes) in value.chunks(PIECE_BYTES).enumerate() {
        if Some(index) == skip {
            continue;
        }
        let mut batch = BatchWriter::new(Lsn::NONE, 1, history.wall_ns());
        let bytes = Bytes::copy_from_slice(bytes);
        batch.push_piece(&ValuePiece { id, index: index as u32, bytes });
        history.push(batch, None);
    }
}

#[tokio::test]
async fn long_values_are_put_together() {
    let mut history = History::new(1);
    history.put_alone();
    let values: Vec<Bytes> = (1..=5).map(value).collect();
    // All pieces, then all records: 80 MiB, and 64 are kept.
    for (id, value) in (1..).zip(&values) {
        write_pieces(&mut history, id, value, None);
    }
    let mut expected = history.state_at(|_| true).0;
    for (id, value) in (1..).zip(&values) {
        let key = format!("long {id}");
        let (record, checksums) = record_of(value, key.as_bytes());
        let mut batch = BatchWriter::new(Lsn(1 + id), 1, history.wall_ns());
        batch.push_in_pieces(&record, id, &checksums);
        history.push(batch, Some(Lsn(1 + id)));
        let held = Held { value: value.to_vec(), content_type: String::new(), end_ns: None };
        expected.insert(format!("b\0{key}").into_bytes(), held);
    }
    // Pieces whose record never came.
    write_pieces(&mut history, 99, &value(9), None);
    let (found, _) = restore(&store_of(&history, 1, 0), RestoreMoment::Newest).await.unwrap();
    assert!(found == expected, "{:?}", found.keys().collect::<Vec<_>>());
}

#[tokio::test]
async fn values_with_wrong_pieces_are_refused() {
    let error_with = async |skip: Option<usize>, spoil: bool| {
        let mut history = History::new(1);
        let value = value(3);
        write_pieces(&mut history, 1, &value, skip);
        let (record, mut checksums) = record_of(&value, b"long");
        if spoil {
            *checksums.last_mut().unwrap() ^= 1;
        }
        let mut batch = BatchWriter::new(Lsn(1), 1, history.wall_ns());
        batch.push_in_pieces(&record, 1, &checksums);
        history.push(batch, Some(Lsn(1)));
        restore(&store_of(&history, 1, 0), RestoreMoment::Newest).await.map(|_| ()).unwrap_err().to_string()
    };
    for skip in [0, 3, 4] {
        let error = error_with(Some(skip), false).await;
        assert!(error.contains("pieces of a value before its record are missing"), "{skip}: {error}");
    }
    let error = error_with(None, true).await;
    assert!(error.contains("do not match its checksums"), "{error}");
}
