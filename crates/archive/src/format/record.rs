//! The record of an archive: its owner, its logs, its bases. The one object that changes, by compare-and-swap.
//!
//! It changes at claims, at bases and at collections only. Each version has a revision and a nonce, so two versions never have the same
//! bytes, and an ETag that is a hash of the content identifies one version.

use shoal_base::Lsn;
use shoal_base::codec::put_prefixed;

use super::{ArchiveName, Fields, FormatError, VolumeId, seal, started};
use crate::limits::{
    BASES_MAX, LEASE_MS, LOGS_MAX, NAME_BYTES_MAX, PARTS_MAX, PINS_MAX, RECORD_BYTES_MAX, SEAL_WIDTH_MAX,
};

const MAGIC: [u8; 4] = *b"SHrc";
/// Bytes before the lists.
const HEAD_BYTES: usize = 124;
const LOG_BYTES: usize = 48;
const BASE_BYTES: usize = 64;
/// Bytes of a pin without the text of its name.
const PIN_BYTES_MIN: usize = 17;
/// The end of a log that is open.
const OPEN: u64 = u64::MAX;
const FAILOVER: u16 = 1;
const SYNC: u16 = 1 << 1;
const WITHOUT_FENCE: u16 = 1 << 2;

/// The modes of an archive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordFlags {
    /// Followers may take over.
    pub failover: bool,
    /// Writes are answered when they are archived.
    pub sync: bool,
    /// The bucket has no create-if-absent that works: nobody may take over.
    pub without_fence: bool,
}

/// A log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordLog {
    /// Its id, not 0.
    pub id: u64,
    /// The epoch of its owner's claim.
    pub epoch: u64,
    /// Slots below this one are dead.
    pub first: u64,
    /// The slot of its tombstone; `None` while it is open.
    pub end: Option<u64>,
    /// The last number in it, once it has an end.
    pub last_lsn: Lsn,
    /// The wall clock at the claim, nanoseconds since the Unix epoch.
    pub claimed_ns: u64,
}

/// A base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordBase {
    /// Its id, not 0.
    pub id: u64,
    /// Its version: it has every write up to this one, and none above.
    pub version: Lsn,
    /// The log, and the slot of it, from which a restore replays.
    pub log: u64,
    /// See `log`.
    pub seq: u64,
    /// Its parts.
    pub parts: u32,
    /// The checksum of the list of its parts.
    pub end_crc: u32,
    /// Bytes of all parts.
    pub bytes: u64,
    /// Its objects.
    pub objects: u64,
    /// The wall clock at its version, nanoseconds since the Unix epoch.
    pub taken_ns: u64,
}

/// A base that stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordPin {
    /// The base.
    pub base: u64,
    /// The wall clock until which it stays, nanoseconds since the Unix epoch; `None`: for ever.
    pub until_ns: Option<u64>,
    /// The name of the pin.
    pub name: String,
}

/// The name and the addresses of the owner, for people and for clients that are sent there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnerName {
    /// The server.
    pub node: String,
    /// Its address for the Redis protocol; empty if it has none.
    pub resp: String,
    /// Its address for gRPC; empty if it has none.
    pub grpc: String,
}

/// The record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchiveRecord {
    /// The modes.
    pub flags: RecordFlags,
    /// The volume.
    pub volume: VolumeId,
    /// Counts the versions of the record.
    pub revision: u64,
    /// Random, another one in each version.
    pub nonce: u64,
    /// The epoch of the newest claim.
    pub epoch: u64,
    /// The owner's incarnation, random; `None`: nobody owns the volume.
    pub owner: Option<[u8; 16]>,
    /// The base that is being uploaded; 0 if none is.
    pub building: u64,
    /// Every moment from this version on can be restored, once a base is named.
    pub oldest_lsn: Lsn,
    /// The wall clock at that version.
    pub oldest_ns: u64,
    /// Tablets of the store.
    pub tablets: u16,
    /// W: slots that an owner may have in flight.
    pub window: u16,
    /// The lease, milliseconds.
    pub lease_ms: u32,
    /// The logs, oldest first. The owner's log is the last one.
    pub logs: Vec<RecordLog>,
    /// The bases, oldest first.
    pub bases: Vec<RecordBase>,
    /// The pins.
    pub pins: Vec<RecordPin>,
    /// The owner, or the last one.
    pub owner_name: OwnerName,
}

/// A record is longer than a record may be: something must be dropped from it first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the record of the archive would have {count} {things}, and {max} are allowed")]
pub struct RecordTooLong {
    /// Things of which there are too many.
    pub things: &'static str,
    /// Their number.
    pub count: usize,
    /// The limit.
    pub max: usize,
}

impl RecordFlags {
    fn bits(self) -> u16 {
        let bit = |is_set, bit| if is_set { bit } else { 0 };
        bit(self.failover, FAILOVER) | bit(self.sync, SYNC) | bit(self.without_fence, WITHOUT_FENCE)
    }

    fn of(bits: u16) -> Option<Self> {
        let is = |bit| bits & bit != 0;
        let known = bits & !(FAILOVER | SYNC | WITHOUT_FENCE) == 0;
        known.then_some(Self { failover: is(FAILOVER), sync: is(SYNC), without_fence: is(WITHOUT_FENCE) })
    }
}

impl ArchiveRecord {
    /// The owner's log; `None` if nobody owns the volume.
    #[must_use]
    pub fn owner_log(&self) -> Option<&RecordLog> {
        self.owner.and(self.logs.last())
    }

    /// Its bytes.
    ///
    /// # Errors
    /// [`RecordTooLong`].
    ///
    /// # Panics
    /// If a reader would refuse the record: it is this program's own.
    pub fn encode(&self) -> Result<Vec<u8>, RecordTooLong> {
        let counts = [
            ("logs", self.logs.len(), LOGS_MAX),
            ("bases", self.bases.len(), BASES_MAX),
            ("pins", self.pins.len(), PINS_MAX),
        ];
        let names = [&self.owner_name.node, &self.owner_name.resp, &self.owner_name.grpc].into_iter();
        let names = names.chain(self.pins.iter().map(|pin| &pin.name));
        let longest = names.map(String::len).max().unwrap_or(0);
        let texts = [("bytes in a name or an address", longest, NAME_BYTES_MAX)];
        for (things, count, max) in counts.into_iter().chain(texts) {
            if count > max {
                return Err(RecordTooLong { things, count, max });
            }
        }
        assert_eq!(self.wrong(), None, "a record that readers accept");
        let mut out = self.encode_head();
        self.encode_lists(&mut out);
        let bytes = out.len();
        assert!(bytes <= RECORD_BYTES_MAX, "the counts bound the length: {bytes}");
        out[12..16].copy_from_slice(&(bytes as u32).to_le_bytes());
        Ok(seal(out, bytes))
    }

    fn encode_head(&self) -> Vec<u8> {
        let mut out = started(MAGIC, HEAD_BYTES + LOG_BYTES * self.logs.len());
        out.extend_from_slice(&self.flags.bits().to_le_bytes());
        // The length, which is known at the end.
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.volume);
        for number in [self.revision, self.nonce, self.epoch] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&self.owner.unwrap_or_default());
        let owner_log = self.owner_log().map_or(0, |log| log.id);
        for number in [owner_log, self.building, self.oldest_lsn.0, self.oldest_ns] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        let counts = [self.logs.len(), self.bases.len(), self.pins.len()].map(|count| count as u16);
        let [logs, bases, pins] = counts;
        // Volumes and nodes: none in this version.
        for number in [self.tablets, logs, bases, pins, 0, 0, self.window, 0] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&self.lease_ms.to_le_bytes());
        assert_eq!(out.len(), HEAD_BYTES, "the first part has a fixed length");
        out
    }

    fn encode_lists(&self, out: &mut Vec<u8>) {
        for log in &self.logs {
            let end = log.end.unwrap_or(OPEN);
            for number in [log.id, log.epoch, log.first, end, log.last_lsn.0, log.claimed_ns] {
                out.extend_from_slice(&number.to_le_bytes());
            }
        }
        for base in &self.bases {
            for number in [base.id, base.version.0, base.log, base.seq] {
                out.extend_from_slice(&number.to_le_bytes());
            }
            for number in [base.parts, base.end_crc] {
                out.extend_from_slice(&number.to_le_bytes());
            }
            for number in [base.bytes, base.objects, base.taken_ns] {
                out.extend_from_slice(&number.to_le_bytes());
            }
        }
        for pin in &self.pins {
            out.extend_from_slice(&pin.base.to_le_bytes());
            out.extend_from_slice(&pin.until_ns.unwrap_or(0).to_le_bytes());
            put_prefixed(out, pin.name.as_bytes());
        }
        for text in [&self.owner_name.node, &self.owner_name.resp, &self.owner_name.grpc] {
            put_prefixed(out, text.as_bytes());
        }
    }

    /// The record in `bytes`.
    ///
    /// # Errors
    /// The bytes are not a record of this version.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut fields = Fields::new(&ArchiveName::Record, 0, bytes);
        fields.start(MAGIC, bytes.len())?;
        let flags = RecordFlags::of(fields.u16()?).ok_or_else(|| fields.newer("a flag"))?;
        if fields.u32()? as usize != bytes.len() || bytes.len() > RECORD_BYTES_MAX {
            return Err(fields.damaged_at(12, "its length is wrong"));
        }
        let volume = fields.array()?;
        let [revision, nonce, epoch] = [fields.u64()?, fields.u64()?, fields.u64()?];
        let incarnation: [u8; 16] = fields.array()?;
        let owner = (incarnation != [0; 16]).then_some(incarnation);
        let [owner_log, building] = [fields.u64()?, fields.u64()?];
        let [oldest_lsn, oldest_ns] = [fields.u64()?, fields.u64()?];
        let tablets = fields.u16()?;
        let [logs, bases, pins] = [fields.u16()?, fields.u16()?, fields.u16()?].map(usize::from);
        // The counts of volumes and nodes.
        fields.zeros(4)?;
        let window = fields.u16()?;
        fields.zeros(2)?;
        let lease_ms = fields.u32()?;
        let record = Self {
            flags,
            volume,
            revision,
            nonce,
            epoch,
            owner,
            building,
            oldest_lsn: Lsn(oldest_lsn),
            oldest_ns,
            tablets,
            window,
            lease_ms,
            logs: list(&mut fields, logs, (LOG_BYTES, LOGS_MAX), RecordLog::decode)?,
            bases: list(&mut fields, bases, (BASE_BYTES, BASES_MAX), RecordBase::decode)?,
            pins: list(&mut fields, pins, (PIN_BYTES_MIN, PINS_MAX), RecordPin::decode)?,
            owner_name: OwnerName { node: fields.text()?, resp: fields.text()?, grpc: fields.text()? },
        };
        fields.end()?;
        match record.wrong() {
            None if owner_log == record.owner_log().map_or(0, |log| log.id) => Ok(record),
            None => Err(fields.damaged_at(80, "the owner's log is not the newest one")),
            Some(why) => Err(fields.damaged_at(0, why)),
        }
    }

    /// The reason why the record is none; `None` if it is one.
    fn wrong(&self) -> Option<&'static str> {
        let ids = |ids: &[u64]| ids.iter().enumerate().all(|(at, id)| *id != 0 && !ids[..at].contains(id));
        let logs: Vec<u64> = self.logs.iter().map(|log| log.id).collect();
        let bases: Vec<u64> = self.bases.iter().map(|base| base.id).collect();
        let epochs = self.logs.windows(2).all(|pair| pair[0].epoch < pair[1].epoch);
        let is_base = |base: &RecordBase| (1..=PARTS_MAX).contains(&base.parts);
        let checks = [
            (self.window > 0 && self.window <= SEAL_WIDTH_MAX, "slots in flight are 1 to 1,024"),
            (LEASE_MS.contains(&self.lease_ms), "a lease is 1 s to 1 h"),
            (self.tablets > 0, "a store has a tablet"),
            (self.owner != Some([0; 16]), "an incarnation is not zero"),
            (self.owner.is_none() || !self.logs.is_empty(), "the owner has no log"),
            (ids(&logs) && ids(&bases), "an id is 0, or occurs twice"),
            (epochs, "the epochs of the logs do not ascend"),
            (self.logs.iter().all(|log| log.epoch <= self.epoch), "a log is newer than the newest claim"),
            (self.logs.iter().all(|log| log.is_one()), "a log starts after its end"),
            (
                self.bases.windows(2).all(|pair| pair[0].version <= pair[1].version),
                "the bases are not in order",
            ),
            (self.bases.iter().all(is_base), "a base has no part, or too many"),
            (!bases.contains(&self.building), "the base that is being uploaded is named already"),
            (self.pins.iter().all(|pin| bases.contains(&pin.base)), "a pin names no base"),
            (self.pins.iter().all(|pin| pin.until_ns != Some(0)), "a pin ended in 1970"),
        ];
        checks.into_iter().find(|(is_right, _)| !is_right).map(|(_, why)| why)
    }
}

/// The entries of a list, for which the bytes are there.
fn list<'a, T>(
    fields: &mut Fields<'a>,
    count: usize,
    (bytes_min, count_max): (usize, usize),
    decode: impl Fn(&mut Fields<'a>) -> Result<T, FormatError>,
) -> Result<Vec<T>, FormatError> {
    if count > count_max || fields.rest().len() < count * bytes_min {
        return Err(fields.damaged("a list has more entries than the record has room for"));
    }
    (0..count).map(|_| decode(fields)).collect()
}

impl RecordLog {
    fn is_one(&self) -> bool {
        self.end.is_none_or(|end| self.first <= end && end != OPEN)
    }

    fn decode(fields: &mut Fields<'_>) -> Result<Self, FormatError> {
        let [id, epoch, first, end] = [fields.u64()?, fields.u64()?, fields.u64()?, fields.u64()?];
        Ok(Self {
            id,
            epoch,
            first,
            end: (end != OPEN).then_some(end),
            last_lsn: Lsn(fields.u64()?),
            claimed_ns: fields.u64()?,
        })
    }
}

impl RecordBase {
    fn decode(fields: &mut Fields<'_>) -> Result<Self, FormatError> {
        Ok(Self {
            id: fields.u64()?,
            version: Lsn(fields.u64()?),
            log: fields.u64()?,
            seq: fields.u64()?,
            parts: fields.u32()?,
            end_crc: fields.u32()?,
            bytes: fields.u64()?,
            objects: fields.u64()?,
            taken_ns: fields.u64()?,
        })
    }
}

impl RecordPin {
    fn decode(fields: &mut Fields<'_>) -> Result<Self, FormatError> {
        let base = fields.u64()?;
        let until = fields.u64()?;
        Ok(Self { base, until_ns: (until != 0).then_some(until), name: fields.text()? })
    }
}
