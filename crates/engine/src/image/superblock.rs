//! The superblock, from which recovery starts. Two slots of two copies; the newest valid copy counts.
//!
//! Bytes: `docs/format/superblock.md`. A tree, the space image, the log's tail and the device's size change durably
//! only by publishing a superblock.

use std::ops::Range;

use shoal_base::checksum::crc32c;
use shoal_base::codec::{Reader, Truncated};
use shoal_base::{BLOCK_BYTES, Lsn};
use shoal_common::error::Result;
use shoal_common::injected_bug::{Bug, injected};
use shoal_common::options::TABLETS_MAX;
use shoal_device::IoBuf;
use shoal_space::{GROUP_BLOCKS_MAX, GROUP_BLOCKS_MIN, SPACE_BLOCKS_MAX};
use shoal_tree::layers::LayersRef;
use shoal_tree::{ENTRIES_MAX, PageRef, Root};

use crate::image::features::{Features, MOVED_AREAS, MOVED_LOG};
use crate::image::layout::{Layout, Places};
use crate::image::losses::Losses;
use crate::log::clock_record::{CLOCK_RECORD_BYTES, ClockRecord};
use crate::log::expiry::FoundTime;
use crate::log::format::COUNTER_MAX;
use crate::log::read::PublishedLog;
use crate::log::ring::LogPlace;
use crate::tablet::view::TabletRecord;
use crate::value::packed::Totals;

/// "SHOALSB" and a line end that text transfers would change.
pub(crate) const MAGIC: [u8; 8] = *b"SHOALSB\n";
/// The version of all formats on the device.
pub(crate) const FORMAT_VERSION: u32 = 3;
/// The oldest version that can be opened: the first opening for writing upgrades it to [`FORMAT_VERSION`]
/// (`docs/operate/upgrade.md`).
pub(crate) const FORMAT_VERSION_OLDEST: u32 = 2;
const CRC_OFFSET: usize = BLOCK_BYTES - 4;
/// Version and number lie here in every version, future ones included.
const VERSION_OFFSET: usize = 8;
pub(crate) const NUMBER_OFFSET: usize = 32;
const FEATURES_OFFSET: usize = 164;
const TABLETS_OFFSET: usize = 256;
const TABLET_BYTES: usize = 96;
/// Of a tablet's record: where the list of its layers lies.
const LAYERS_OFFSET: usize = 80;
const CLOCK_OFFSET: usize = TABLETS_OFFSET + TABLET_BYTES * TABLETS_MAX as usize;
const _: () = assert!(CLOCK_OFFSET + CLOCK_RECORD_BYTES <= CRC_OFFSET);

/// The place of the space image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpacePlace {
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
    fn is_sensible(&self, layout: &Layout) -> bool {
        self.used_blocks <= layout.space_area_blocks
            && self.snapshot_blocks <= self.used_blocks
            && self.snapshot_pieces <= self.snapshot_blocks
            && self.deltas <= self.used_blocks - self.snapshot_blocks
    }
}

impl TabletRecord {
    /// Returns true if the root lies in `usable` blocks and sums of the totals cannot overflow.
    fn is_sensible(&self, usable: &Range<u64>) -> bool {
        let Totals { runs, packed_blocks, packed_live_bytes, value_bytes, expiring } = self.totals;
        let expiring = expiring.unwrap_or_default();
        let lists = |stored: LayersRef| {
            let end = stored.block.checked_add(u64::from(stored.copies));
            stored.copies > 0 && usable.contains(&stored.block) && end.is_some_and(|end| end <= usable.end)
        };
        self.root.page.is_none_or(|page| usable.contains(&page.block))
            && self.layers.is_none_or(lists)
            && runs.max(packed_blocks) <= SPACE_BLOCKS_MAX
            && packed_live_bytes <= SPACE_BLOCKS_MAX * BLOCK_BYTES as u64
            && self.root.entries.max(expiring) <= ENTRIES_MAX
            && value_bytes <= COUNTER_MAX / TABLETS_MAX as u64
            && self.applied.0 <= COUNTER_MAX
    }
}

/// The contents of a superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    /// Version of the formats: 2 until the first opening for writing, then 3.
    pub version: u32,
    pub features: Features,
    pub identity: [u8; 16],
    /// Secret seed of the log's checksums (R24).
    pub log_seed: u64,
    pub layout: Layout,
    /// Grows with every superblock; no number is used twice.
    pub number: u64,
    /// This opening's epoch (R1), and the position at which its batches begin.
    pub epoch: u64,
    pub epoch_position: u64,
    /// All records up to this one were flushed when the superblock was written (R15).
    pub durable_lsn: Lsn,
    /// No record gets a number above this one without a new superblock (R5).
    pub lsn_ceiling: Lsn,
    /// Blocks of the device that are zeroed and usable.
    pub device_blocks: u64,
    /// Blocks of the log's ring, from its start on, that were written once: batches lie only in these.
    pub log_prepared: u32,
    pub log_tail: LogPlace,
    pub space: SpacePlace,
    /// The latest time that the wall clock showed since its last step back, in nanoseconds since the Unix epoch (R18).
    /// In version 2, the clock of expiry, which never went back.
    pub wall_high_ns: u64,
    pub clock: ClockRecord,
    pub losses: Losses,
    pub tablets: Vec<TabletRecord>,
}

impl Superblock {
    /// Upgrades the superblock of a store that this program may write to the newest version. Returns true if it had an
    /// older version (see [`has_older`]).
    ///
    /// # Errors
    /// [`Error::Unopenable`] if the store has a feature that this program cannot write.
    pub(crate) fn upgrade(&mut self) -> Result<bool> {
        self.features.check_writable()?;
        let is_older = self.version < FORMAT_VERSION;
        self.version = FORMAT_VERSION;
        Ok(is_older)
    }

    /// Takes the layout of a raised cap.
    pub(crate) fn grow(&mut self, layout: Layout) {
        self.layout = layout;
        self.features.incompatible |= MOVED_AREAS;
    }

    /// Takes a layout with another ring for the log, in which no batch lies yet. Its first `prepared` blocks are written.
    pub(crate) fn move_log(&mut self, layout: Layout, prepared: u32) {
        self.layout = layout;
        self.features.incompatible |= MOVED_LOG;
        self.log_prepared = prepared;
        // The next batch begins at the start of the ring.
        self.log_tail.position = layout.ring().turn(self.log_tail.position);
    }

    /// The bytes of the block.
    pub(crate) fn encode(&self) -> IoBuf {
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
        }
        assert!(head.len() <= TABLETS_OFFSET, "the head fits before the tablets");
        block[..head.len()].copy_from_slice(&head);
        for (index, tablet) in self.tablets.iter().enumerate() {
            let at = TABLETS_OFFSET + index * TABLET_BYTES;
            let bytes = encode_tablet(tablet);
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

    /// Decodes `block`; `None` if it is no valid superblock, or has a version or features that this program does not
    /// know.
    pub(crate) fn decode(block: &[u8]) -> Option<Self> {
        if !is_whole(block) || needs(block).is_some() {
            return None;
        }
        Self::decode_fields(block).ok().filter(Self::is_sensible)
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
        let (mut features, mut losses, mut clock) =
            (Features::default(), Losses::default(), ClockRecord::default());
        if version > FORMAT_VERSION_OLDEST {
            features = decode_features(&mut reader)?;
            let [log, first, second, data] = fields(&mut reader)?;
            places = Places { log, space_areas: [first, second], data };
            let [since_number, lost, reverted, resurrected] = fields(&mut reader)?;
            losses = Losses { since_number, lost, reverted, resurrected };
            log_prepared = Some(reader.u32()?).filter(|&blocks| blocks > 0).unwrap_or(log_blocks);
            clock = ClockRecord::decode(block.get(CLOCK_OFFSET..CRC_OFFSET).ok_or(Truncated)?)?;
        }
        let layout = Layout { blocks_max, group_blocks, log_blocks, space_area_blocks, places };
        let tablets = (0..tablets.min(u32::from(TABLETS_MAX)) as usize)
            .map(|index| decode_tablet(block.get(TABLETS_OFFSET + index * TABLET_BYTES..).unwrap_or(&[])))
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
            tablets,
        })
    }

    /// The fields that recovery reads the log by.
    pub(crate) fn log(&self) -> PublishedLog {
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

    /// The fields about time. `is_older` says that the superblock had version 2.
    pub(crate) fn time(&self, is_older: bool) -> FoundTime {
        FoundTime::new(self.clock.clone(), self.wall_high_ns, self.epoch, is_older)
    }

    /// Returns true if the fields are possible: decoders of the structures that they describe may rely on it.
    fn is_sensible(&self) -> bool {
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
            && counters.iter().all(|&counter| counter <= COUNTER_MAX)
            && self.clock.is_sensible()
            && !self.tablets.is_empty()
            && self.tablets.iter().all(|tablet| tablet.is_sensible(&usable))
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

/// The reason why this program cannot use the store, whatever else its superblock holds: its version, or a feature.
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

fn fields<const N: usize>(reader: &mut Reader<'_>) -> std::result::Result<[u64; N], Truncated> {
    let mut out = [0; N];
    for field in &mut out {
        *field = reader.u64()?;
    }
    Ok(out)
}

fn encode_tablet(tablet: &TabletRecord) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(TABLET_BYTES);
    bytes.extend_from_slice(&tablet.slot_first.to_le_bytes());
    bytes.extend_from_slice(&tablet.slot_last.to_le_bytes());
    bytes.push(tablet.root.height);
    bytes.push(u8::from(tablet.root.page.is_some()));
    bytes.extend_from_slice(&[0; 2]);
    let page = tablet.root.page.unwrap_or(PageRef { block: 0, crc: 0 });
    bytes.extend_from_slice(&page.block.to_le_bytes());
    bytes.extend_from_slice(&page.crc.to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&tablet.root.entries.to_le_bytes());
    bytes.extend_from_slice(&tablet.applied.0.to_le_bytes());
    let Totals { runs, packed_blocks, packed_live_bytes, value_bytes, expiring } = tablet.totals;
    let expiring = expiring.map_or(0, |count| count + 1);
    for field in [runs, packed_blocks, packed_live_bytes, value_bytes, expiring] {
        bytes.extend_from_slice(&field.to_le_bytes());
    }
    assert_eq!(bytes.len(), LAYERS_OFFSET, "the record of a tablet without layers ends here");
    if let Some(LayersRef { block, crc, copies }) = tablet.layers {
        bytes.extend_from_slice(&block.to_le_bytes());
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes.extend_from_slice(&copies.to_le_bytes());
    }
    bytes
}

fn decode_tablet(bytes: &[u8]) -> std::result::Result<TabletRecord, Truncated> {
    let mut reader = Reader::new(bytes);
    let (slot_first, slot_last) = (reader.u16()?, reader.u16()?);
    let (height, some) = (reader.u8()?, reader.u8()?);
    reader.bytes(2)?;
    let page = PageRef { block: reader.u64()?, crc: reader.u32()? };
    reader.bytes(4)?;
    let root = Root { page: (some == 1).then_some(page), height, entries: reader.u64()? };
    let applied = Lsn(reader.u64()?);
    let [runs, packed_blocks, packed_live_bytes, value_bytes, expiring] = fields(&mut reader)?;
    let expiring = expiring.checked_sub(1);
    let totals = Totals { runs, packed_blocks, packed_live_bytes, value_bytes, expiring };
    let (block, crc, copies) = (reader.u64()?, reader.u32()?, reader.u16()?);
    let layers = (block > 0).then_some(LayersRef { block, crc, copies });
    Ok(TabletRecord { slot_first, slot_last, root, applied, totals, layers })
}
