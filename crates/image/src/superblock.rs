//! The superblock, from which recovery starts. Two slots of two copies; the newest valid copy counts.
//!
//! Bytes: `docs/format/superblock.md`. A tree, the space image, the log's tail and the device's size change durably
//! only by publishing a superblock.

use shoal_base::checksum::crc32c;
use shoal_base::codec::{Reader, Truncated};
use shoal_base::{BLOCK_BYTES, Lsn};
use shoal_common::error::Result;
use shoal_common::injected_bug::{Bug, injected};
use shoal_common::options::TABLETS_MAX;
use shoal_device::IoBuf;
use shoal_log::format::COUNTER_MAX;
use shoal_log::{CLOCK_RECORD_BYTES, ClockRecord, FoundTime, LogPlace, PublishedLog};
use shoal_space::{GROUP_BLOCKS_MAX, GROUP_BLOCKS_MIN, SPACE_BLOCKS_MAX};

use crate::features::{Features, MOVED_AREAS, MOVED_LOG};
use crate::layout::{Layout, Places};
use crate::losses::Losses;
use crate::tablet_record::{TABLET_BYTES, TabletRecord};

/// "SHOALSB" and a line end that text transfers would change.
pub(crate) const MAGIC: [u8; 8] = *b"SHOALSB\n";
/// The version of all formats on the device.
pub const FORMAT_VERSION: u32 = 3;
/// The oldest version that can be opened: the first opening for writing upgrades it to [`FORMAT_VERSION`]
/// (`docs/operate/upgrade.md`).
pub(crate) const FORMAT_VERSION_OLDEST: u32 = 2;
/// The largest counter of a superblock that is read: no store counts so far that its successors reach [`COUNTER_MAX`].
const COUNTER_FOUND_MAX: u64 = COUNTER_MAX / 2;
const CRC_OFFSET: usize = BLOCK_BYTES - 4;
/// The offset of the version, the same in every version.
const VERSION_OFFSET: usize = 8;
const IDENTITY_OFFSET: usize = 16;
/// The offset of the number, the same in every version.
pub(crate) const NUMBER_OFFSET: usize = 32;
const FEATURES_OFFSET: usize = 164;
const TABLETS_OFFSET: usize = 256;
const CLOCK_OFFSET: usize = TABLETS_OFFSET + TABLET_BYTES * TABLETS_MAX as usize;
const ARCHIVE_OFFSET: usize = CLOCK_OFFSET + CLOCK_RECORD_BYTES + 16;
const ARCHIVE_BYTES: usize = 24;
const _: () = assert!(ARCHIVE_OFFSET == 3520 && ARCHIVE_OFFSET + ARCHIVE_BYTES <= CRC_OFFSET);

/// The place of a store's archive. Zeros if an opening without an archive wrote the superblock, also one by a program that does not
/// know an archive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArchiveMark {
    /// The log of the archive that was written last; 0: none.
    pub log: u64,
    /// No record from here on was released: the log has it from its tail on, and no block of its value was reused. 0: not known.
    pub first_lsn: Lsn,
    /// Records from here on are of openings that wrote to no log of the archive; 0: the opening of this superblock has one.
    pub unowned_lsn: Lsn,
}

/// The place of the space image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpacePlace {
    /// Area 0 or 1.
    pub area: u8,
    /// Pieces of the snapshot, at the area's start.
    pub snapshot_pieces: u32,
    /// Blocks from the area's start to the end of the last piece; deltas follow.
    pub snapshot_blocks: u32,
    /// Blocks of the area that snapshot and deltas fill.
    pub used_blocks: u32,
    /// Deltas after the snapshot.
    pub deltas: u32,
    /// The number of the superblock under which the snapshot was written.
    pub snapshot_number: u64,
}

impl SpacePlace {
    /// Returns true if the image fits in its area. Each piece and each delta has at least one block.
    pub(crate) fn is_sensible(&self, layout: &Layout) -> bool {
        self.used_blocks <= layout.space_area_blocks
            && self.snapshot_blocks <= self.used_blocks
            && self.snapshot_pieces <= self.snapshot_blocks
            && self.deltas <= self.used_blocks - self.snapshot_blocks
    }
}

/// The contents of a superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Version of the formats: 2 until the first opening for writing, then 3.
    pub version: u32,
    /// The features that a program must know.
    pub features: Features,
    /// The identity of the store.
    pub identity: [u8; 16],
    /// Secret seed of the log's checksums (R24).
    pub log_seed: u64,
    /// The areas of the device.
    pub layout: Layout,
    /// Increases with every superblock; no number is used twice.
    pub number: u64,
    /// This opening's epoch (R1).
    pub epoch: u64,
    /// Position of the first batch of that epoch.
    pub epoch_position: u64,
    /// All records up to this one were flushed when the superblock was written (R15).
    pub durable_lsn: Lsn,
    /// No record gets a number above this one without a new superblock (R5).
    pub lsn_ceiling: Lsn,
    /// Blocks of the device that are zeroed and usable.
    pub device_blocks: u64,
    /// Blocks of the log's ring, from its start on, that were written once: batches are stored only in these.
    pub log_prepared: u32,
    /// The place of the first batch that recovery needs.
    pub log_tail: LogPlace,
    /// The place of the space image.
    pub space: SpacePlace,
    /// The latest time that the wall clock showed since its last step back, in nanoseconds since the Unix epoch (R18).
    /// In version 2, the clock of expiry, which never went back.
    pub wall_high_ns: u64,
    /// The clocks of expiry (R18).
    pub clock: ClockRecord,
    /// The losses that no user has acknowledged.
    pub losses: Losses,
    /// The place of the archive.
    pub archive: ArchiveMark,
    /// The tablets, by their number.
    pub tablets: Vec<TabletRecord>,
}

impl Superblock {
    /// Upgrades the superblock of a store that this program may write to the newest version. Returns true if it had an older version (see
    /// [`has_older`]).
    ///
    /// # Errors
    /// [`Error::Unopenable`] if the store has a feature that this program cannot write.
    pub fn upgrade(&mut self) -> Result<bool> {
        self.features.check_writable()?;
        let is_older = self.version < FORMAT_VERSION;
        self.version = FORMAT_VERSION;
        Ok(is_older)
    }

    /// Takes the layout of a raised cap.
    pub fn grow(&mut self, layout: Layout) {
        self.layout = layout;
        self.features.incompatible |= MOVED_AREAS;
    }

    /// Takes a layout with another ring for the log that has no batch yet. The first `prepared` blocks of the ring are written.
    pub fn move_log(&mut self, layout: Layout, prepared: u32) {
        self.layout = layout;
        self.features.incompatible |= MOVED_LOG;
        self.log_prepared = prepared;
        // The next batch starts at the start of the ring.
        self.log_tail.position = layout.ring().turn(self.log_tail.position);
    }

    /// The bytes of the block.
    pub fn encode(&self) -> IoBuf {
        assert!(self.tablets.len() <= usize::from(TABLETS_MAX), "the table of tablets fits");
        let mut head = Vec::with_capacity(TABLETS_OFFSET);
        head.extend_from_slice(&MAGIC);
        head.extend_from_slice(&self.version.to_le_bytes());
        head.extend_from_slice(&(self.tablets.len() as u32).to_le_bytes());
        head.extend_from_slice(&self.identity);
        for field in [
            self.number,
            self.epoch,
            self.epoch_position,
            self.durable_lsn.0,
            self.lsn_ceiling.0,
            self.log_seed,
            self.layout.blocks_max,
            self.device_blocks,
            self.wall_high_ns,
            self.log_tail.position,
            self.log_tail.first_lsn.0,
            self.space.snapshot_number,
        ] {
            head.extend_from_slice(&field.to_le_bytes());
        }
        for field in [
            self.log_tail.chain,
            self.layout.group_blocks,
            self.layout.log_blocks,
            self.layout.space_area_blocks,
            u32::from(self.space.area),
            self.space.snapshot_pieces,
            self.space.snapshot_blocks,
            self.space.used_blocks,
            self.space.deltas,
        ] {
            head.extend_from_slice(&field.to_le_bytes());
        }
        assert_eq!(head.len(), FEATURES_OFFSET, "version 2 ends here");
        let mut block = IoBuf::new(1);
        if self.version > FORMAT_VERSION_OLDEST {
            self.encode_newer(&mut head);
            block[CLOCK_OFFSET..CLOCK_OFFSET + CLOCK_RECORD_BYTES].copy_from_slice(&self.clock.encode());
            let ArchiveMark { log, first_lsn, unowned_lsn } = self.archive;
            let fields = [log, first_lsn.0, unowned_lsn.0].map(u64::to_le_bytes);
            block[ARCHIVE_OFFSET..ARCHIVE_OFFSET + ARCHIVE_BYTES].copy_from_slice(fields.as_flattened());
        }
        assert!(head.len() <= TABLETS_OFFSET, "the head fits before the tablets");
        block[..head.len()].copy_from_slice(&head);
        for (index, tablet) in self.tablets.iter().enumerate() {
            let at = TABLETS_OFFSET + index * TABLET_BYTES;
            let bytes = tablet.encode();
            block[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        let crc = crc32c(&block[..CRC_OFFSET]);
        block[CRC_OFFSET..].copy_from_slice(&crc.to_le_bytes());
        block
    }

    /// Appends the fields that version 3 has before the tablets.
    fn encode_newer(&self, head: &mut Vec<u8>) {
        for field in [self.features.compatible, self.features.read_only, self.features.incompatible] {
            head.extend_from_slice(&field.to_le_bytes());
        }
        let Places { log, space_areas: [first, second], data } = self.layout.places;
        let Losses { since_number, lost, reverted, resurrected } = self.losses;
        for field in [log, first, second, data, since_number, lost, reverted, resurrected] {
            head.extend_from_slice(&field.to_le_bytes());
        }
        let is_whole = self.log_prepared == self.layout.log_blocks;
        head.extend_from_slice(&if is_whole { 0 } else { self.log_prepared }.to_le_bytes());
    }

    /// Decodes `block`; `None` if it is no valid superblock, or has an unknown version or unknown features.
    pub fn decode(block: &[u8]) -> Option<Self> {
        if !is_whole(block) || needs(block).is_some() {
            return None;
        }
        Self::decode_fields(block).ok().filter(|superblock| superblock.is_sensible(COUNTER_FOUND_MAX))
    }

    fn decode_fields(block: &[u8]) -> std::result::Result<Self, Truncated> {
        let mut reader = Reader::new(block);
        reader.bytes(VERSION_OFFSET)?;
        let version = reader.u32()?;
        let tablets = reader.u32()?;
        let mut identity = [0; 16];
        identity.copy_from_slice(reader.bytes(16)?);
        let [number, epoch, epoch_position, durable, ceiling, log_seed] = fields(&mut reader)?;
        let [blocks_max, device_blocks, wall_high_ns, position, first_lsn, snapshot_number] =
            fields(&mut reader)?;
        let chain = reader.u32()?;
        let (group_blocks, log_blocks, space_area_blocks) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let space = SpacePlace {
            area: (reader.u32()? & 1) as u8,
            snapshot_pieces: reader.u32()?,
            snapshot_blocks: reader.u32()?,
            used_blocks: reader.u32()?,
            deltas: reader.u32()?,
            snapshot_number,
        };
        let mut places = Places::one_after_the_other(log_blocks, space_area_blocks);
        let mut log_prepared = log_blocks;
        let (mut features, mut losses, mut clock, mut archive) = Default::default();
        if version > FORMAT_VERSION_OLDEST {
            features = decode_features(&mut reader)?;
            let [log, first, second, data] = fields(&mut reader)?;
            places = Places { log, space_areas: [first, second], data };
            let [since_number, lost, reverted, resurrected] = fields(&mut reader)?;
            losses = Losses { since_number, lost, reverted, resurrected };
            log_prepared = Some(reader.u32()?).filter(|&blocks| blocks > 0).unwrap_or(log_blocks);
            clock = ClockRecord::decode(block.get(CLOCK_OFFSET..CRC_OFFSET).ok_or(Truncated)?)?;
            let [log, first_lsn, unowned_lsn] =
                fields(&mut Reader::new(block.get(ARCHIVE_OFFSET..).ok_or(Truncated)?))?;
            archive = ArchiveMark { log, first_lsn: Lsn(first_lsn), unowned_lsn: Lsn(unowned_lsn) };
        }
        let layout = Layout { blocks_max, group_blocks, log_blocks, space_area_blocks, places };
        let tablets = (0..tablets.min(u32::from(TABLETS_MAX)) as usize)
            .map(|index| {
                TabletRecord::decode(block.get(TABLETS_OFFSET + index * TABLET_BYTES..).unwrap_or(&[]))
            })
            .collect::<std::result::Result<Vec<_>, _>>()?;
        Ok(Self {
            version,
            features,
            identity,
            log_seed,
            layout,
            number,
            epoch,
            epoch_position,
            durable_lsn: Lsn(durable),
            lsn_ceiling: Lsn(ceiling),
            device_blocks,
            log_prepared,
            log_tail: LogPlace { position, chain, first_lsn: Lsn(first_lsn) },
            space,
            wall_high_ns,
            clock,
            losses,
            archive,
            tablets,
        })
    }

    /// The fields that recovery needs to read the log.
    pub fn log(&self) -> PublishedLog {
        PublishedLog {
            ring: self.layout.ring(),
            seed: self.log_seed,
            tail: self.log_tail,
            durable_lsn: self.durable_lsn,
            ceiling: self.lsn_ceiling,
            epoch: self.epoch,
            epoch_position: self.epoch_position,
            superblock: self.number,
        }
    }

    /// The fields about time. `is_older` is true if the superblock had version 2.
    pub fn time(&self, is_older: bool) -> FoundTime {
        FoundTime::new(self.clock.clone(), self.wall_high_ns, self.epoch, is_older)
    }

    /// Returns true if the fields are plausible and no counter is above `counter_max`: decoders of the structures that they describe rely on
    /// this.
    pub(crate) fn is_sensible(&self, counter_max: u64) -> bool {
        let (layout, tail) = (&self.layout, &self.log_tail);
        let usable = layout.data_first()..self.device_blocks;
        let groups = layout.blocks_max.div_ceil(u64::from(layout.group_blocks.max(1)));
        let counters = [
            self.number,
            self.epoch,
            self.epoch_position,
            self.durable_lsn.0,
            self.lsn_ceiling.0,
            tail.position,
            tail.first_lsn.0,
            self.space.snapshot_number,
            self.losses.since_number,
            self.losses.lost,
            self.losses.reverted,
            self.losses.resurrected,
            self.archive.first_lsn.0,
            self.archive.unowned_lsn.0,
        ];
        (8..=layout.log_blocks).contains(&self.log_prepared)
            && layout.is_sensible(self.device_blocks, self.features.incompatible)
            && layout.group_blocks.is_power_of_two()
            && (GROUP_BLOCKS_MIN..=GROUP_BLOCKS_MAX).contains(&layout.group_blocks)
            && groups <= SPACE_BLOCKS_MAX / u64::from(GROUP_BLOCKS_MAX)
            && layout.blocks_max <= SPACE_BLOCKS_MAX
            && self.device_blocks <= layout.blocks_max
            && !usable.is_empty()
            && self.space.is_sensible(layout)
            // The first record has number 1.
            && tail.first_lsn > Lsn::NONE
            && counters.iter().all(|&counter| counter <= counter_max)
            && self.clock.is_sensible()
            && !self.tablets.is_empty()
            && self.tablets.iter().all(|tablet| tablet.is_sensible(&usable))
            // An opening gives numbers above the ceiling only: an apply never takes a tablet's number back.
            && self.tablets.iter().all(|tablet| tablet.applied <= self.lsn_ceiling)
    }
}

/// The fields that identify a superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SuperblockHead {
    /// The identity of the store.
    pub identity: [u8; 16],
    /// The number.
    pub number: u64,
    /// The epoch of its opening.
    pub epoch: u64,
    /// The checksum of all other bytes.
    pub crc: u32,
    /// This program knows its version and features.
    pub is_known: bool,
}

impl SuperblockHead {
    /// The head of a whole superblock of any version; `None` if `block` is damaged, or none.
    pub fn of(block: &[u8]) -> Option<Self> {
        if !is_whole(block) {
            return None;
        }
        let mut reader = Reader::new(block.get(IDENTITY_OFFSET..)?);
        let mut identity = [0; 16];
        identity.copy_from_slice(reader.bytes(16).ok()?);
        let [number, epoch] = fields(&mut reader).ok()?;
        let crc = Reader::new(block.get(CRC_OFFSET..)?).u32().ok()?;
        Some(Self { identity, number, epoch, crc, is_known: needs(block).is_none() })
    }
}

/// Returns true if `block` is a superblock that a program wrote, of any version.
pub(crate) fn is_whole(block: &[u8]) -> bool {
    let (Some(body), Some(crc)) = (block.get(..CRC_OFFSET), block.get(CRC_OFFSET..BLOCK_BYTES)) else {
        return false;
    };
    block.get(..8) == Some(&MAGIC[..])
        && (Reader::new(crc).u32() == Ok(crc32c(body)) || injected(Bug::SuperblockNotChecked))
}

/// The reason why this program cannot use the store: its version, or a feature. Ignores the rest of the superblock.
pub(crate) fn needs(block: &[u8]) -> Option<String> {
    let version = Reader::new(block.get(VERSION_OFFSET..)?).u32().ok()?;
    let is_known = (FORMAT_VERSION_OLDEST..=FORMAT_VERSION).contains(&version);
    if !is_known {
        let newer = if version > FORMAT_VERSION { ", or a newer one" } else { "" };
        return Some(format!(
            "this store has format version {version}; this program knows versions {FORMAT_VERSION_OLDEST} and {FORMAT_VERSION}: \
             use the version of shoal that wrote it{newer}"
        ));
    }
    if version == FORMAT_VERSION_OLDEST {
        return None;
    }
    decode_features(&mut Reader::new(block.get(FEATURES_OFFSET..)?)).ok()?.unreadable()
}

fn decode_features(reader: &mut Reader<'_>) -> std::result::Result<Features, Truncated> {
    Ok(Features { compatible: reader.u32()?, read_only: reader.u32()?, incompatible: reader.u32()? })
}

pub(crate) fn fields<const N: usize>(reader: &mut Reader<'_>) -> std::result::Result<[u64; N], Truncated> {
    let mut out = [0; N];
    for field in &mut out {
        *field = reader.u64()?;
    }
    Ok(out)
}
