//! The records of the file: its header, and one for each change. `docs/format/space-service.md` describes every byte.
//!
//! Reading returns a record or `None`, for any bytes.

use shoal_base::Run;
use shoal_base::checksum::crc32c_seeded;
use shoal_base::codec::{Reader, Truncated, put_varint};

use crate::state::{Change, Counters, Deed, HeldLease, Part, SessionState, SpaceReply};

/// Bytes of the header.
pub(crate) const HEADER_BYTES: usize = 64;

/// Bytes of a record before its payload.
pub(crate) const RECORD_HEADER_BYTES: usize = 32;

/// Records start at multiples of this.
pub(crate) const ALIGNMENT: usize = 8;

/// The longest record: 131,072 runs (a commit of 65,536 kept and as many freed) of 15 bytes each, and a bit.
const RECORD_BYTES_MAX: usize = 4 << 20;

const MAGIC: [u8; 4] = *b"SHss";
const VERSION: u16 = 2;

/// The space that the file describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) identity: [u8; 16],
    pub(crate) blocks: u64,
    pub(crate) group_blocks: u32,
    /// The number of the record before the file's first one.
    pub(crate) base: u64,
}

/// The reason why a header is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoHeader {
    Damaged,
    Version(u16),
}

impl From<Truncated> for NoHeader {
    fn from(_: Truncated) -> Self {
        Self::Damaged
    }
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        bytes.extend([0; 4]);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend([0; 2]);
        bytes.extend((HEADER_BYTES as u32).to_le_bytes());
        bytes.extend(self.identity);
        bytes.extend(self.blocks.to_le_bytes());
        bytes.extend(self.group_blocks.to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend(self.base.to_le_bytes());
        let mut header = [0; HEADER_BYTES];
        header[..bytes.len()].copy_from_slice(&bytes);
        let crc = crc32c_seeded(0, &header[4..]);
        header[..4].copy_from_slice(&crc.to_le_bytes());
        header
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, NoHeader> {
        let whole = bytes.get(..HEADER_BYTES).ok_or(NoHeader::Damaged)?;
        let mut reader = Reader::new(whole);
        let (crc, magic) = (reader.u32()?, reader.bytes(4)?);
        if magic != MAGIC || crc != crc32c_seeded(0, &whole[4..]) {
            return Err(NoHeader::Damaged);
        }
        let (version, flags, length) = (reader.u16()?, reader.u16()?, reader.u32()?);
        if version != VERSION {
            return Err(NoHeader::Version(version));
        }
        if flags != 0 || length as usize != HEADER_BYTES {
            return Err(NoHeader::Damaged);
        }
        let mut identity = [0; 16];
        identity.copy_from_slice(reader.bytes(16)?);
        let (blocks, group_blocks, reserved) = (reader.u64()?, reader.u32()?, reader.u32()?);
        let header = Self { identity, blocks, group_blocks, base: reader.u64()? };
        if reserved != 0 || reader.rest().iter().any(|&byte| byte != 0) {
            return Err(NoHeader::Damaged);
        }
        Ok(header)
    }

    /// The start of the checksums of records: a record of another file is never taken for one of this file.
    pub(crate) fn seed(&self) -> u64 {
        Reader::new(&self.identity).u64().unwrap_or_default()
    }
}

/// One record.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Record {
    pub(crate) number: u64,
    /// Everything up to this number was on the device when the record was written: a promise.
    pub(crate) synced: u64,
    pub(crate) content: Content,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Content {
    Change(Change),
    Part(Part),
}

/// Appends a record.
pub(crate) fn encode(seed: u64, record: &Record, out: &mut Vec<u8>) {
    let begin = out.len();
    out.extend([0; 8]);
    out.extend(record.number.to_le_bytes());
    out.extend(record.synced.to_le_bytes());
    out.extend(kind_of(&record.content).to_le_bytes());
    out.extend([0; 6]);
    match &record.content {
        Content::Change(change) => put_change(change, out),
        Content::Part(part) => put_part(part, out),
    }
    let length = out.len() - begin;
    assert!(length <= RECORD_BYTES_MAX, "a record of {length} bytes");
    let written = &mut out[begin..];
    written[4..8].copy_from_slice(&(length as u32).to_le_bytes());
    let crc = crc32c_seeded(seed, &written[4..]);
    written[..4].copy_from_slice(&crc.to_le_bytes());
    out.resize(begin + length.next_multiple_of(ALIGNMENT), 0);
}

/// The record at the start of `bytes`, and its length; `None` if there is no whole one.
pub(crate) fn decode(seed: u64, bytes: &[u8]) -> Option<(Record, usize)> {
    let mut reader = Reader::new(bytes);
    let (crc, length) = (reader.u32().ok()?, reader.u32().ok()? as usize);
    if !(RECORD_HEADER_BYTES..=RECORD_BYTES_MAX).contains(&length) {
        return None;
    }
    let whole = bytes.get(..length)?;
    if crc32c_seeded(seed, &whole[4..]) != crc {
        return None;
    }
    let mut reader = Reader::new(&whole[8..]);
    let record = read(&mut reader).ok().flatten()?;
    let taken = length.next_multiple_of(ALIGNMENT);
    (reader.is_empty() && taken <= bytes.len()).then_some((record, taken))
}

fn kind_of(content: &Content) -> u16 {
    match content {
        Content::Change(Change::Open { .. }) => 1,
        Content::Change(Change::Did { deed, .. }) => match deed {
            Deed::Allocated { .. } => 2,
            Deed::Freed { .. } => 3,
            Deed::Granted { .. } => 4,
            Deed::Committed { .. } => 5,
            Deed::GivenBack { .. } => 6,
        },
        Content::Change(Change::End { .. }) => 7,
        Content::Part(Part::Counters(_)) => 16,
        Content::Part(Part::Free(_)) => 17,
        Content::Part(Part::Session(_)) => 18,
        Content::Part(Part::Lease(_)) => 19,
        Content::Part(Part::Committed { .. }) => 20,
        Content::Part(Part::Finished) => 21,
    }
}

fn put_change(change: &Change, out: &mut Vec<u8>) {
    match change {
        Change::Open { session, time_to_live_ms } => {
            put_varint(out, *session);
            put_varint(out, u64::from(*time_to_live_ms));
        }
        Change::Did { session, sequence, deed } => {
            put_varint(out, *session);
            put_varint(out, *sequence);
            match deed {
                Deed::Allocated { values } => put_values(values, out),
                Deed::Freed { runs } => put_runs(runs, out),
                Deed::Granted { lease, groups } => {
                    put_varint(out, *lease);
                    put_runs(groups, out);
                }
                Deed::Committed { lease, kept, freed } => {
                    put_varint(out, *lease);
                    put_runs(kept, out);
                    put_runs(freed, out);
                }
                Deed::GivenBack { lease } => put_varint(out, *lease),
            }
        }
        Change::End { session } => put_varint(out, *session),
    }
}

fn put_part(part: &Part, out: &mut Vec<u8>) {
    match part {
        Part::Counters(counters) => {
            put_varint(out, counters.next_session);
            put_varint(out, counters.next_lease);
        }
        Part::Free(runs) => put_runs(runs, out),
        Part::Session(state) => {
            put_varint(out, state.session);
            put_varint(out, u64::from(state.time_to_live_ms));
            put_varint(out, state.sequence);
            put_varint(out, u64::from(state.mark));
            match &state.answer {
                SpaceReply::Done => out.push(0),
                SpaceReply::Values(values) => {
                    out.push(1);
                    put_values(values, out);
                }
                SpaceReply::Lease { lease, groups } => {
                    out.push(2);
                    put_varint(out, *lease);
                    put_runs(groups, out);
                }
            }
        }
        Part::Lease(held) => {
            put_varint(out, held.lease);
            put_varint(out, held.session);
            put_runs(&held.groups, out);
        }
        Part::Committed { lease, runs } => {
            put_varint(out, *lease);
            put_runs(runs, out);
        }
        Part::Finished => {}
    }
}

fn put_runs(runs: &[Run], out: &mut Vec<u8>) {
    put_varint(out, runs.len() as u64);
    for run in runs {
        put_varint(out, run.block);
        put_varint(out, u64::from(run.blocks));
    }
}

fn put_values(values: &[Vec<Run>], out: &mut Vec<u8>) {
    put_varint(out, values.len() as u64);
    values.iter().for_each(|runs| put_runs(runs, out));
}

/// A record after its length; `None` if a field has a value that no writer writes.
fn read(reader: &mut Reader<'_>) -> Result<Option<Record>, Truncated> {
    let (number, synced, kind) = (reader.u64()?, reader.u64()?, reader.u16()?);
    let (flags, reserved) = (reader.u16()?, reader.u32()?);
    if flags != 0 || reserved != 0 {
        return Ok(None);
    }
    let content = match kind {
        1 => {
            let (session, time_to_live_ms) = (reader.varint()?, number32(reader)?);
            Content::Change(Change::Open { session, time_to_live_ms })
        }
        2..=6 => {
            let (session, sequence) = (reader.varint()?, reader.varint()?);
            let deed = match kind {
                2 => Deed::Allocated { values: values(reader)? },
                3 => Deed::Freed { runs: runs(reader)? },
                4 => Deed::Granted { lease: reader.varint()?, groups: runs(reader)? },
                5 => Deed::Committed { lease: reader.varint()?, kept: runs(reader)?, freed: runs(reader)? },
                _ => Deed::GivenBack { lease: reader.varint()? },
            };
            Content::Change(Change::Did { session, sequence, deed })
        }
        7 => Content::Change(Change::End { session: reader.varint()? }),
        16 => {
            let (next_session, next_lease) = (reader.varint()?, reader.varint()?);
            Content::Part(Part::Counters(Counters { next_session, next_lease }))
        }
        17 => Content::Part(Part::Free(runs(reader)?)),
        18 => {
            let (session, time_to_live_ms) = (reader.varint()?, number32(reader)?);
            let (sequence, mark) = (reader.varint()?, number32(reader)?);
            let answer = match reader.u8()? {
                0 => SpaceReply::Done,
                1 => SpaceReply::Values(values(reader)?),
                2 => SpaceReply::Lease { lease: reader.varint()?, groups: runs(reader)? },
                _ => return Ok(None),
            };
            Content::Part(Part::Session(SessionState { session, time_to_live_ms, sequence, mark, answer }))
        }
        19 => {
            let (lease, session) = (reader.varint()?, reader.varint()?);
            Content::Part(Part::Lease(HeldLease { lease, session, groups: runs(reader)? }))
        }
        20 => Content::Part(Part::Committed { lease: reader.varint()?, runs: runs(reader)? }),
        21 => Content::Part(Part::Finished),
        _ => return Ok(None),
    };
    Ok(Some(Record { number, synced, content }))
}

fn number32(reader: &mut Reader<'_>) -> Result<u32, Truncated> {
    u32::try_from(reader.varint()?).map_err(|_| Truncated)
}

fn runs(reader: &mut Reader<'_>) -> Result<Vec<Run>, Truncated> {
    let count = reader.varint()?;
    // Every run takes at least two bytes: the length of the input bounds the memory that a wrong count asks for.
    if count > reader.rest().len() as u64 {
        return Err(Truncated);
    }
    (0..count).map(|_| Ok(Run::new(reader.varint()?, number32(reader)?))).collect()
}

fn values(reader: &mut Reader<'_>) -> Result<Vec<Vec<Run>>, Truncated> {
    let count = reader.varint()?;
    if count > reader.rest().len() as u64 {
        return Err(Truncated);
    }
    (0..count).map(|_| runs(reader)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn some_runs() -> impl Strategy<Value = Vec<Run>> {
        prop::collection::vec(
            (any::<u64>(), any::<u32>()).prop_map(|(block, blocks)| Run::new(block, blocks)),
            0..5,
        )
    }

    fn some_content() -> impl Strategy<Value = Content> {
        let deed = prop_oneof![
            prop::collection::vec(some_runs(), 0..4).prop_map(|values| Deed::Allocated { values }),
            some_runs().prop_map(|runs| Deed::Freed { runs }),
            (any::<u64>(), some_runs()).prop_map(|(lease, groups)| Deed::Granted { lease, groups }),
            (any::<u64>(), some_runs(), some_runs()).prop_map(|(lease, kept, freed)| Deed::Committed {
                lease,
                kept,
                freed
            }),
            any::<u64>().prop_map(|lease| Deed::GivenBack { lease }),
        ];
        let answer = prop_oneof![
            Just(SpaceReply::Done),
            prop::collection::vec(some_runs(), 0..4).prop_map(SpaceReply::Values),
            (any::<u64>(), some_runs()).prop_map(|(lease, groups)| SpaceReply::Lease { lease, groups }),
        ];
        prop_oneof![
            (any::<u64>(), any::<u32>()).prop_map(|(session, time_to_live_ms)| Content::Change(
                Change::Open { session, time_to_live_ms }
            )),
            (any::<u64>(), any::<u64>(), deed).prop_map(|(session, sequence, deed)| Content::Change(
                Change::Did { session, sequence, deed }
            )),
            any::<u64>().prop_map(|session| Content::Change(Change::End { session })),
            (any::<u64>(), any::<u64>()).prop_map(|(next_session, next_lease)| Content::Part(
                Part::Counters(Counters { next_session, next_lease })
            )),
            some_runs().prop_map(|runs| Content::Part(Part::Free(runs))),
            (any::<u64>(), any::<u32>(), any::<u64>(), any::<u32>(), answer).prop_map(
                |(session, time_to_live_ms, sequence, mark, answer)| Content::Part(Part::Session(
                    SessionState { session, time_to_live_ms, sequence, mark, answer }
                ))
            ),
            (any::<u64>(), any::<u64>(), some_runs()).prop_map(|(lease, session, groups)| Content::Part(
                Part::Lease(HeldLease { lease, session, groups })
            )),
            (any::<u64>(), some_runs())
                .prop_map(|(lease, runs)| Content::Part(Part::Committed { lease, runs })),
            Just(Content::Part(Part::Finished)),
        ]
    }

    proptest! {
        #[test]
        fn a_record_is_read_as_it_was_written(content in some_content(), number in any::<u64>(), synced in any::<u64>(), flip in any::<usize>()) {
            let record = Record { number, synced, content };
            let mut bytes = Vec::new();
            encode(7, &record, &mut bytes);
            prop_assert!(bytes.len().is_multiple_of(ALIGNMENT));
            prop_assert_eq!(decode(7, &bytes), Some((record, bytes.len())));
            prop_assert_eq!(decode(8, &bytes), None, "of another file");
            prop_assert_eq!(decode(7, &bytes[..bytes.len() - 1]), None);
            let length = Reader::new(&bytes[4..]).u32().unwrap() as usize;
            bytes[flip % length] ^= 1 << (flip % 8);
            prop_assert_eq!(decode(7, &bytes), None);
        }

        #[test]
        fn random_bytes_never_panic_reader(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            drop(decode(1, &bytes));
            let mut framed = vec![0; 8];
            framed.extend(&bytes);
            framed.resize(framed.len().max(RECORD_HEADER_BYTES), 0);
            let length = framed.len() as u32;
            framed[4..8].copy_from_slice(&length.to_le_bytes());
            let crc = crc32c_seeded(1, &framed[4..]);
            framed[..4].copy_from_slice(&crc.to_le_bytes());
            // Checksums are right here: any accepted record has the same bytes when it is encoded again.
            if let Some((record, _)) = decode(1, &framed) {
                let mut again = Vec::new();
                encode(1, &record, &mut again);
                prop_assert_eq!(decode(1, &again).map(|(record, _)| record), Some(record));
            }
            prop_assert!(Header::decode(&framed).is_err());
        }
    }

    #[test]
    fn a_header_is_read_as_it_was_written() {
        let header =
            Header { identity: *b"0123456789abcdef", blocks: 1 << 32, group_blocks: 65_536, base: 9 };
        let bytes = header.encode();
        assert_eq!(Header::decode(&bytes), Ok(header));
        for at in 0..HEADER_BYTES {
            let mut damaged = bytes;
            damaged[at] ^= 1;
            assert_eq!(Header::decode(&damaged), Err(NoHeader::Damaged), "byte {at}");
        }
        let mut later = bytes;
        later[8] = 3;
        let crc = crc32c_seeded(0, &later[4..]);
        later[..4].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(Header::decode(&later), Err(NoHeader::Version(3)));
        for reserved in [44, 56] {
            let mut used = bytes;
            used[reserved] = 1;
            let crc = crc32c_seeded(0, &used[4..]);
            used[..4].copy_from_slice(&crc.to_le_bytes());
            assert_eq!(Header::decode(&used), Err(NoHeader::Damaged), "byte {reserved}");
        }
    }
}
