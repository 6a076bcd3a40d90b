//! The superblock: what recovery starts from. Two slots of two copies; the newest valid one counts.
//!
//! Bytes: `docs/format/superblock.md`. Publishing a superblock is the only way in which a tree, the space image, the log's tail
//! or the device's size change durably.

use std::ops::Range;

use shoal_base::checksum::crc32c;
use shoal_base::codec::{Reader, Truncated};
use shoal_base::{BLOCK_BYTES, Lsn};
use shoal_device::{Device, IoBuf};
use shoal_space::{GROUP_BLOCKS_MAX, GROUP_BLOCKS_MIN, SPACE_BLOCKS_MAX};

use crate::error::{Error, Result};
use crate::layout::{Layout, SUPERBLOCK_COPIES};
use crate::log::format::COUNTER_MAX;
use crate::options::TABLETS_MAX;
use crate::packed::Totals;
use crate::plant::{Plant, planted};
use crate::tree::{PageRef, Root};

/// "SHOALSB" and a line end that text transfers would change.
const MAGIC: [u8; 8] = *b"SHOALSB\n";
/// Version of all formats on the device together.
pub(crate) const FORMAT_VERSION: u32 = 2;
const CRC_OFFSET: usize = BLOCK_BYTES - 4;
const TABLETS_OFFSET: usize = 256;
const TABLET_BYTES: usize = 96;
const _: () = assert!(TABLETS_OFFSET + TABLET_BYTES * TABLETS_MAX as usize <= CRC_OFFSET);

/// A place in the log: where the next batch begins and what it must say of the one before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogPlace {
    /// Blocks written since the store was made; modulo the ring's size the place in the ring.
    pub position: u64,
    /// Checksum of the batch before.
    pub chain: u32,
    /// No record from here on has a smaller number.
    pub first_lsn: Lsn,
}

/// Where the space image lies.
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
    /// Deltas behind the snapshot.
    pub deltas: u32,
    /// Superblock number under which the snapshot was written.
    pub snapshot_number: u64,
}

impl SpacePlace {
    /// Whether the image fits in its area; pieces and deltas have a block at least.
    fn is_sensible(&self, layout: &Layout) -> bool {
        self.used_blocks <= layout.space_area_blocks
            && self.snapshot_blocks <= self.used_blocks
            && self.snapshot_pieces <= self.snapshot_blocks
            && self.deltas <= self.used_blocks - self.snapshot_blocks
    }
}

/// A tablet as published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TabletRecord {
    pub slot_first: u16,
    pub slot_last: u16,
    pub root: Root,
    /// Records up to here are in the tree.
    pub applied: Lsn,
    /// What the tree holds in all.
    pub totals: Totals,
}

impl TabletRecord {
    /// Whether the root lies in `usable` blocks, and sums with the figures do not overflow.
    fn is_sensible(&self, usable: &Range<u64>) -> bool {
        let Totals { runs, packed_blocks, packed_live_bytes, value_bytes, expiring } = self.totals;
        let counters = [self.root.entries, self.applied.0, value_bytes];
        let expiring = expiring.unwrap_or_default();
        self.root.page.is_none_or(|page| usable.contains(&page.block))
            && runs.max(packed_blocks) <= SPACE_BLOCKS_MAX
            && packed_live_bytes <= SPACE_BLOCKS_MAX * BLOCK_BYTES as u64
            && counters.iter().all(|&counter| counter <= COUNTER_MAX)
            && expiring <= COUNTER_MAX
    }
}

/// Everything a superblock says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub identity: [u8; 16],
    /// Secret seed of the log's checksums (R24).
    pub log_seed: u64,
    pub layout: Layout,
    /// Grows with every superblock; never used twice.
    pub number: u64,
    /// This opening's epoch (R1), and where its batches begin.
    pub epoch: u64,
    pub epoch_position: u64,
    /// Everything up to here was flushed when this was written (R15).
    pub durable_lsn: Lsn,
    /// Numbering never passes this without a new superblock (R5).
    pub lsn_ceiling: Lsn,
    /// Blocks of the device that are zeroed and usable.
    pub device_blocks: u64,
    pub log_tail: LogPlace,
    pub space: SpacePlace,
    /// The expiry clock, nanoseconds since the Unix epoch (R18).
    pub expiry_clock_ns: u64,
    pub tablets: Vec<TabletRecord>,
}

impl Superblock {
    /// The block's bytes.
    pub(crate) fn encode(&self) -> IoBuf {
        assert!(self.tablets.len() <= usize::from(TABLETS_MAX), "the table of tablets fits");
        let mut head = Vec::with_capacity(TABLETS_OFFSET);
        head.extend_from_slice(&MAGIC);
        head.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
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
            self.expiry_clock_ns,
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
        assert!(head.len() <= TABLETS_OFFSET, "the head fits before the tablets");
        let mut block = IoBuf::new(1);
        block[..head.len()].copy_from_slice(&head);
        for (index, tablet) in self.tablets.iter().enumerate() {
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
            let at = TABLETS_OFFSET + index * TABLET_BYTES;
            block[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        let crc = crc32c(&block[..CRC_OFFSET]);
        block[CRC_OFFSET..].copy_from_slice(&crc.to_le_bytes());
        block
    }

    /// What `block` says; none where it is no valid superblock of this format.
    pub(crate) fn decode(block: &[u8]) -> Option<Self> {
        if block.len() != BLOCK_BYTES || block.get(..8) != Some(&MAGIC[..]) {
            return None;
        }
        let crc = Reader::new(block.get(CRC_OFFSET..)?).u32().ok()?;
        if crc != crc32c(block.get(..CRC_OFFSET)?) && !planted(Plant::SuperblockNotChecked) {
            return None;
        }
        Self::decode_fields(block).ok().filter(Self::is_sensible)
    }

    fn decode_fields(block: &[u8]) -> std::result::Result<Self, Truncated> {
        let mut reader = Reader::new(block);
        reader.bytes(8)?;
        if reader.u32()? != FORMAT_VERSION {
            return Err(Truncated);
        }
        let tablets = reader.u32()?;
        let mut identity = [0; 16];
        identity.copy_from_slice(reader.bytes(16)?);
        let [number, epoch, epoch_position, durable, ceiling, log_seed] = fields(&mut reader)?;
        let [blocks_max, device_blocks, expiry_clock_ns, position, first_lsn, snapshot_number] =
            fields(&mut reader)?;
        let chain = reader.u32()?;
        let layout = Layout {
            blocks_max,
            group_blocks: reader.u32()?,
            log_blocks: reader.u32()?,
            space_area_blocks: reader.u32()?,
        };
        let space = SpacePlace {
            area: (reader.u32()? & 1) as u8,
            snapshot_pieces: reader.u32()?,
            snapshot_blocks: reader.u32()?,
            used_blocks: reader.u32()?,
            deltas: reader.u32()?,
            snapshot_number,
        };
        let tablets = (0..tablets.min(u32::from(TABLETS_MAX)) as usize)
            .map(|index| decode_tablet(block.get(TABLETS_OFFSET + index * TABLET_BYTES..).unwrap_or(&[])))
            .collect::<std::result::Result<Vec<_>, _>>()?;
        Ok(Self {
            identity,
            log_seed,
            layout,
            number,
            epoch,
            epoch_position,
            durable_lsn: Lsn(durable),
            lsn_ceiling: Lsn(ceiling),
            device_blocks,
            log_tail: LogPlace { position, chain, first_lsn: Lsn(first_lsn) },
            space,
            expiry_clock_ns,
            tablets,
        })
    }

    /// Whether the figures can be true: a decoder of what they describe may rely on it.
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
        ];
        layout.log_blocks >= 8
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
            && !self.tablets.is_empty()
            && self.tablets.iter().all(|tablet| tablet.is_sensible(&usable))
    }
}

fn fields<const N: usize>(reader: &mut Reader<'_>) -> std::result::Result<[u64; N], Truncated> {
    let mut out = [0; N];
    for field in &mut out {
        *field = reader.u64()?;
    }
    Ok(out)
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
    Ok(TabletRecord { slot_first, slot_last, root, applied, totals })
}

/// What the four copies hold.
pub(crate) enum Found {
    /// Nothing but zeros where superblocks lie.
    Nothing,
    /// The newest valid superblock, and how many of the other copies that should be valid are damaged.
    Newest(Box<Superblock>),
}

/// Reads all copies and picks the newest valid one.
pub(crate) async fn read_newest(device: &Device) -> Result<Found> {
    let mut newest: Option<Superblock> = None;
    let mut foreign = None;
    let mut blank = true;
    let mut unreadable = None;
    for block in SUPERBLOCK_COPIES.into_iter().flatten() {
        if planted(Plant::SecondCopyForgotten) && block >= 32 {
            continue;
        }
        if block >= device.blocks() {
            continue;
        }
        let bytes = match device.read(block, IoBuf::unfilled(1)).await.ok() {
            Ok(bytes) => bytes,
            Err(error) => {
                unreadable = Some(error);
                blank = false;
                continue;
            }
        };
        blank &= bytes.iter().all(|&byte| byte == 0);
        match Superblock::decode(&bytes) {
            Some(superblock)
                if newest.as_ref().is_none_or(|best| {
                    (best.number < superblock.number) != planted(Plant::OldestSuperblock)
                }) =>
            {
                newest = Some(superblock);
            }
            Some(_) => {}
            None => foreign = foreign.or_else(|| foreign_message(&bytes)),
        }
    }
    match (newest, foreign, unreadable) {
        (Some(newest), ..) => Ok(Found::Newest(Box::new(newest))),
        (None, Some(message), _) => Err(Error::Unopenable(message)),
        (None, None, Some(error)) => Err(error.into()),
        (None, None, None) if blank => Ok(Found::Nothing),
        (None, None, None) => Err(Error::Unopenable(
            "this is not a Shoal store, or all copies of its superblock are damaged; nothing was changed"
                .into(),
        )),
    }
}

/// What to say of a block that is no superblock of this version, where it is recognisable.
fn foreign_message(block: &[u8]) -> Option<String> {
    if block.get(..8) != Some(&MAGIC[..]) {
        return None;
    }
    let version = Reader::new(block.get(8..)?).u32().ok()?;
    let newer = if version > FORMAT_VERSION { ", or a newer one" } else { "" };
    (version != FORMAT_VERSION).then(|| {
        format!("this store has format version {version}; this program knows version {FORMAT_VERSION}: use the version of shoal that wrote it{newer}")
    })
}

/// The blocks of both copies of superblock `number`.
pub(crate) fn copies(number: u64) -> [u64; 2] {
    SUPERBLOCK_COPIES[(number % 2) as usize]
}

/// Writes both copies of `superblock` to its slot and makes them durable.
///
/// # Errors
/// As [`write_copies`] and [`flush`].
pub(crate) async fn write(device: &Device, superblock: &Superblock) -> Result<()> {
    write_copies(device, superblock).await?;
    flush(device).await
}

/// Writes both copies of `superblock` to its slot; they are durable after a [`flush`].
///
/// # Errors
/// As the device; the number must not be used again then (R20).
pub(crate) async fn write_copies(device: &Device, superblock: &Superblock) -> Result<()> {
    let slot = if planted(Plant::OneSlot) { 0 } else { (superblock.number % 2) as usize };
    let slot = SUPERBLOCK_COPIES[slot];
    let mut batch = device.batch();
    let writes = slot.map(|block| batch.add(device.write(block, superblock.encode())));
    batch.start();
    for write in writes {
        write.await.ok()?;
    }
    Ok(())
}

/// Makes the copies of a superblock that were written durable.
///
/// # Errors
/// As the device; the number must not be used again then (R20).
pub(crate) async fn flush(device: &Device) -> Result<()> {
    if planted(Plant::SuperblockNotFlushed) {
        return Ok(());
    }
    device.flush().await.ok()?;
    Ok(())
}
