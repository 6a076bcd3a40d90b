//! Stores with valid checksums that no writer produces, for the tests of readers.

use std::fmt::Display;
use std::sync::Arc;

use shoal_base::{BLOCK_BYTES, Lsn, ManualClock, Run, SeededEntropy, TabletId};
use shoal_device::{Device, IoBuf, MemDevice};
use shoal_device_sim::{Image, SimDevice};
use shoal_image::copies::{FoundCopies, read_newest};
use shoal_image::space_image;
use shoal_image::superblock::Superblock;
use shoal_log::format::{BatchBuilder, BatchHeader, BatchTimes, EncodedRecord};
use shoal_log::read_log;
use shoal_space::FreeImage;
use shoal_tablets::tablet::tree_io::tree_of;
use shoal_testkit::device::quiet;
use shoal_tree::fixtures::Made;
use shoal_tree::{PageRef, Root, Tree};
use shoal_value::{Entry, Home, Meta};
use smallvec::SmallVec;

use crate::recovery::read::Recovery;
use crate::{
    ByteRange, CheckOptions, CheckReport, Environment, FormatOptions, ObjectKey, OpenOptions, PutOptions,
    Result, Store, block_on, check,
};

pub(crate) const BLOCKS: u64 = 256;

pub(crate) fn environment() -> Environment {
    Environment { clock: Arc::new(ManualClock::new(1_000)), entropy: Arc::new(SeededEntropy::new(5)) }
}

/// An in-memory device, and its faults.
pub(crate) fn device(image: Image) -> (Arc<SimDevice>, Device) {
    let sim = quiet(image);
    (sim.clone(), Device::new(sim))
}

/// An in-memory device with an empty store.
pub(crate) fn formatted(blocks: u64, tablets: u16, log_blocks: u32) -> (Arc<SimDevice>, Device) {
    let (sim, device) = device(Image::new(blocks));
    let format = FormatOptions { tablets, log_blocks: Some(log_blocks), ..FormatOptions::for_blocks(blocks) };
    block_on(Store::format(&device, &format, &environment())).unwrap();
    (sim, device)
}

/// An in-memory device of the size of a small disk, with an empty store of four tablets.
pub(crate) fn in_memory() -> Device {
    in_memory_as(&FormatOptions { tablets: 4, ..FormatOptions::for_blocks(32_768) })
}

/// An in-memory device with an empty store of this layout.
pub(crate) fn in_memory_as(format: &FormatOptions) -> Device {
    let device = Device::new(Arc::new(MemDevice::new(format.blocks_max)));
    block_on(Store::format(&device, format, &Environment::default())).unwrap();
    device
}

/// Opens the store on `device`.
pub(crate) fn open_in(device: &Device, options: OpenOptions, environment: Environment) -> Store {
    block_on(Store::open(device.clone(), options, environment)).unwrap()
}

pub(crate) fn options() -> OpenOptions {
    OpenOptions { cache_bytes: 256 << 10, background: false, ..OpenOptions::default() }
}

/// The key of the object with this number.
pub(crate) fn key(which: impl Display) -> ObjectKey {
    // As text first: a number and its text are the same key.
    let name = which.to_string();
    ObjectKey::new("default", format!("{name:0>4}").as_bytes()).unwrap()
}

/// Puts an object with default options.
pub(crate) fn put(store: &Store, key: &ObjectKey, value: impl Into<Vec<u8>>) {
    block_on(store.put(key, value.into().into(), PutOptions::default())).unwrap();
}

/// The value of an object.
pub(crate) fn get(store: &Store, key: &ObjectKey) -> Result<Option<Vec<u8>>> {
    let object = block_on(store.get(key, ByteRange::ALL))?;
    Ok(object.map(|object| object.value.to_vec()))
}

/// The entry of an object without metadata.
pub(crate) fn entry(value_bytes: u64, home: Home) -> Entry {
    Entry { modified_ns: 1, end: None, value_bytes, meta: Meta::Inline(SmallVec::new()), home }
}

/// A leaf's entry with an inline value.
pub(crate) fn inline_entry(value: &[u8]) -> Vec<u8> {
    leaf_entry(1, &entry(value.len() as u64, Home::Inline), value)
}

/// A leaf's entry: version and body.
pub(crate) fn leaf_entry(version: u64, entry: &Entry, inline: &[u8]) -> Vec<u8> {
    let mut bytes = version.to_le_bytes().to_vec();
    entry.encode(&mut bytes);
    bytes.extend_from_slice(inline);
    bytes
}

/// An empty store of one tablet, to be changed and published.
pub(crate) struct Fixture {
    pub sim: Arc<SimDevice>,
    pub device: Device,
    pub superblock: Superblock,
    /// All blocks before this one are in use.
    pub next: u64,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self::with_blocks(BLOCKS)
    }

    pub(crate) fn with_blocks(blocks: u64) -> Self {
        let (sim, device) = formatted(blocks, 1, 16);
        let superblock = newest(&device);
        let next = superblock.layout.data_first();
        Self { sim, device, superblock, next }
    }

    pub(crate) fn tree(&self) -> Tree {
        tree_of(self.superblock.identity, TabletId(0))
    }

    /// Takes the next free block.
    pub(crate) fn block(&mut self) -> u64 {
        self.blocks(1).block
    }

    pub(crate) fn blocks(&mut self, blocks: u32) -> Run {
        self.next += u64::from(blocks);
        Run::new(self.next - u64::from(blocks), blocks)
    }

    pub(crate) fn write(&self, block: u64, bytes: &[u8; BLOCK_BYTES]) {
        block_on(self.device.write(block, IoBuf::copied_from(bytes))).ok().unwrap();
    }

    /// Writes a page to its block.
    pub(crate) fn page(&self, (page, bytes): Made) -> PageRef {
        self.write(page.block, &bytes);
        page
    }

    /// Sets the root of the only tablet's tree.
    pub(crate) fn root(&mut self, page: PageRef, height: u8, entries: u64) {
        self.superblock.tablets[0].root = Root { page: Some(page), height, entries };
        self.superblock.tablets[0].applied = Lsn(1);
        self.superblock.lsn_ceiling = self.superblock.lsn_ceiling.max(Lsn(1));
    }

    /// Writes an image in which all blocks from `next` are free, and the superblock.
    pub(crate) fn publish(&mut self) {
        let layout = self.superblock.layout;
        let mut image = FreeImage::new(layout.blocks_max, layout.group_blocks);
        image.free(Run::new(self.next, (self.superblock.device_blocks - self.next) as u32)).unwrap();
        self.publish_with(&image);
    }

    pub(crate) fn publish_with(&mut self, image: &FreeImage) {
        self.superblock.number += 1;
        block_on(async {
            self.superblock.space = space_image::rewrite(&self.device, &self.superblock, image).await?;
            shoal_image::copies::write(&self.device, &self.superblock).await
        })
        .unwrap();
    }

    /// Writes these records as the next batch of the log.
    pub(crate) fn batch(&self, records: &[EncodedRecord]) {
        let superblock = &self.superblock;
        let ring = superblock.layout.ring();
        let head = block_on(read_log(&self.device, &superblock.log())).unwrap().head;
        let record_bytes = records.iter().map(|record| record.bytes.len()).sum::<usize>();
        let mut builder = BatchBuilder::new(record_bytes);
        records.iter().for_each(|record| builder.push(&record.bytes));
        let header = BatchHeader {
            epoch: superblock.epoch,
            position: head.position,
            blocks: builder.blocks(),
            records: records.len() as u32,
            first_lsn: head.first_lsn,
            durable_lsn: Lsn(head.first_lsn.0 - 1),
            superblock: superblock.number,
            stamp: BatchTimes::Now { store_ns: 0, wall_ns: 0 },
            chain: head.chain,
            record_bytes: record_bytes as u32,
        };
        assert!(header.blocks <= ring.rest(head.position), "the ring does not turn here");
        let (batch, _) = builder.finish(&header, superblock.log_seed);
        block_on(self.device.write(ring.block(head.position), batch)).ok().unwrap();
    }

    /// Opens the store: only the log has been read, so the cache is cold.
    pub(crate) fn open(&self) -> Result<Store> {
        block_on(async {
            let recovery = Recovery::read(self.device.clone(), &options()).await?;
            recovery.start_cold(options(), environment()).await
        })
    }

    pub(crate) fn check(&self, repair: bool) -> CheckReport {
        checked(&self.device, repair)
    }
}

/// The report of a check, or of a repair.
pub(crate) fn checked(device: &Device, repair: bool) -> CheckReport {
    let options = CheckOptions { repair, cache_bytes: 256 << 10, ..CheckOptions::default() };
    block_on(check(device.clone(), &options)).unwrap()
}

pub(crate) fn newest(device: &Device) -> Superblock {
    match block_on(read_newest(device)).unwrap() {
        FoundCopies::Newest(superblock) => *superblock,
        FoundCopies::Nothing => panic!("there is a store"),
    }
}
