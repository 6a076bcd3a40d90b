//! The bytes of packed runs: the reserved keys and entries of their liveness, and the footer (`docs/format/packed.md`).
//! No other file encodes or decodes them.

use shoal_base::codec::{Reader, Truncated, put_prefixed, put_varint};
use shoal_base::{BLOCK_BYTES, Crc32c, Lsn, Run, TabletId};
use shoal_common::error::{Error, Result};
use shoal_common::key::RESERVED;
use shoal_device::{Completion, Device, IoBuf, IoFuture};

/// Second byte of the keys of packed runs.
const RUN_KEYS: u8 = b'r';
/// Bytes of a packed run's key.
pub const RUN_KEY_BYTES: usize = 10;

/// Blocks of a packed run at most: 1 MiB.
pub const RUN_BLOCKS_MAX: u32 = 256;

/// Bytes of a footer besides its items.
pub const TAIL_BYTES: usize = 40;
const FOOTER_MAGIC: u32 = 0x464B_5053; // "SPKF"

/// Blocks at the end of a run that are read first for its footer: 4 KiB values fill a run with items of two blocks.
const FOOTER_BLOCKS_GUESSED: u32 = 4;

/// The liveness is not trusted: the run is neither freed nor moved until a repair recounts it.
const UNCERTAIN: u8 = 1;
/// The footer or a live value is damaged: the run is not moved, and is freed when none of its values is alive.
const FIXED: u8 = 2;

/// The key of the run at `block`; keys sort in the order of blocks.
#[inline]
pub fn run_key(block: u64) -> [u8; RUN_KEY_BYTES] {
    let mut key = [RESERVED, RUN_KEYS, 0, 0, 0, 0, 0, 0, 0, 0];
    key[2..].copy_from_slice(&block.to_be_bytes());
    key
}

/// The first key after those of packed runs.
pub const fn run_keys_end() -> [u8; 2] {
    [RESERVED, RUN_KEYS + 1]
}

/// The first block of the run that has this key.
pub fn block_of_run_key(key: &[u8]) -> Option<u64> {
    let block = key.strip_prefix(&[RESERVED, RUN_KEYS])?;
    Some(u64::from_be_bytes(block.try_into().ok()?))
}

/// A packed run's entry in the tree: its liveness.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunEntry {
    /// Blocks of the run.
    pub blocks: u32,
    /// Values that the run was written with.
    pub values: u32,
    /// Stored bytes of all values.
    pub value_bytes: u32,
    /// Values that the tree still names.
    pub live_values: u32,
    /// Stored bytes of the live values.
    pub live_bytes: u32,
    /// The liveness is not trusted.
    pub uncertain: bool,
    /// The run cannot be rewritten.
    pub fixed: bool,
}

impl RunEntry {
    /// Appends the entry.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(if self.uncertain { UNCERTAIN } else { 0 } | if self.fixed { FIXED } else { 0 });
        for field in [self.blocks, self.values, self.value_bytes, self.live_values, self.live_bytes] {
            put_varint(out, u64::from(field));
        }
    }

    /// The entry in `bytes`.
    ///
    /// # Errors
    /// [`Truncated`] if the bytes are no entry, or if its numbers are impossible.
    pub fn decode(bytes: &[u8]) -> std::result::Result<Self, Truncated> {
        let mut reader = Reader::new(bytes);
        let flags = reader.u8()?;
        let mut field = || u32::try_from(reader.varint()?).map_err(|_| Truncated);
        let entry = Self {
            blocks: field()?,
            values: field()?,
            value_bytes: field()?,
            live_values: field()?,
            live_bytes: field()?,
            uncertain: flags & UNCERTAIN != 0,
            fixed: flags & FIXED != 0,
        };
        let sensible = (1..=RUN_BLOCKS_MAX).contains(&entry.blocks)
            && entry.value_bytes <= entry.bytes()
            && (entry.uncertain
                || entry.live_values <= entry.values && entry.live_bytes <= entry.value_bytes);
        if flags & !(UNCERTAIN | FIXED) != 0 || !reader.is_empty() || !sensible {
            return Err(Truncated);
        }
        Ok(entry)
    }

    /// Bytes of the run's blocks.
    pub fn bytes(&self) -> u32 {
        self.blocks * BLOCK_BYTES as u32
    }

    /// The run's blocks, from `block` on.
    pub fn run(&self, block: u64) -> Run {
        Run::new(block, self.blocks)
    }
}

/// The contents of a tablet: a part of its record in the superblock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Packed runs.
    pub runs: u64,
    /// Blocks of the packed runs.
    pub packed_blocks: u64,
    /// Stored bytes of the live values in packed runs.
    pub packed_live_bytes: u64,
    /// Bytes of all values of the tree, in any place.
    pub value_bytes: u64,
    /// Objects of the tree with a deadline; `None` if they were not counted, as in stores of earlier builds.
    pub expiring: Option<u64>,
}

impl Totals {
    /// Returns true if it is certain that no object of the tree has a deadline.
    #[inline]
    pub fn is_for_ever(&self) -> bool {
        self.expiring == Some(0)
    }

    /// Adds a run to the totals.
    pub fn add_run(&mut self, entry: &RunEntry) {
        self.runs += 1;
        self.packed_blocks += u64::from(entry.blocks);
        self.packed_live_bytes += u64::from(entry.live_bytes);
    }

    /// Removes a run from the totals. Saturating: after damage the totals may be too small, until a repair.
    pub fn remove_run(&mut self, entry: &RunEntry) {
        self.runs = self.runs.saturating_sub(1);
        self.packed_blocks = self.packed_blocks.saturating_sub(u64::from(entry.blocks));
        self.packed_live_bytes = self.packed_live_bytes.saturating_sub(u64::from(entry.live_bytes));
    }

    /// Bytes of the packed runs' blocks.
    pub fn packed_bytes(&self) -> u64 {
        self.packed_blocks * BLOCK_BYTES as u64
    }
}

/// One value of a packed run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FooterItem<'a> {
    /// The key of the object.
    pub key: &'a [u8],
    /// The version that was packed.
    pub version: Lsn,
    /// Byte of the run at which the value starts.
    pub at: u32,
    /// Stored bytes of the value.
    pub bytes: u32,
}

/// Bytes that a value takes in the footer.
#[inline]
pub(crate) fn item_bytes(key_bytes: usize, stored: usize) -> usize {
    let varint = |value: usize| (usize::BITS - (value | 1).leading_zeros()).div_ceil(7) as usize;
    varint(key_bytes) + key_bytes + 8 + varint(stored)
}

/// Appends a footer's item.
pub fn put_item(out: &mut Vec<u8>, key: &[u8], version: Lsn, stored: usize) {
    put_prefixed(out, key);
    out.extend_from_slice(&version.0.to_le_bytes());
    put_varint(out, stored as u64);
}

/// Writes items and tail to the end of a run's memory, and zeros after the values, which end at `values_end`.
pub fn put_footer(memory: &mut [u8], values_end: usize, items: &[u8], values: u32, owner: RunOwner) {
    let tail_at = memory.len() - TAIL_BYTES;
    let items_at = tail_at - items.len();
    assert!(values_end <= items_at, "values and footer overlap");
    memory[values_end..items_at].fill(0);
    memory[items_at..tail_at].copy_from_slice(items);
    let mut tail = Vec::with_capacity(TAIL_BYTES);
    tail.extend_from_slice(&FOOTER_MAGIC.to_le_bytes());
    tail.extend_from_slice(&owner.device.to_le_bytes());
    tail.extend_from_slice(&owner.block.to_le_bytes());
    tail.extend_from_slice(&owner.tablet.0.to_le_bytes());
    tail.extend_from_slice(&[0; 2]);
    tail.extend_from_slice(&values.to_le_bytes());
    tail.extend_from_slice(&(items.len() as u32).to_le_bytes());
    tail.extend_from_slice(&(values_end as u32).to_le_bytes());
    memory[tail_at + 4..].copy_from_slice(&tail);
    let crc = footer_crc(&memory[items_at..tail_at], &tail);
    memory[tail_at..tail_at + 4].copy_from_slice(&crc.to_le_bytes());
}

/// The checksum of the items, followed by the tail after the checksum itself.
fn footer_crc(items: &[u8], tail: &[u8]) -> u32 {
    let mut crc = Crc32c::new();
    crc.update(items);
    crc.update(tail);
    crc.finish()
}

/// The owner of a run, and the run's first block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunOwner {
    /// Identity of the store, as its superblock has it.
    pub device: u64,
    /// The tablet that owns the run.
    pub tablet: TabletId,
    /// The first block of the run.
    pub block: u64,
}

/// A footer that was read and checked.
pub struct Footer {
    items: Vec<u8>,
    values: u32,
    values_end: u32,
}

impl Footer {
    /// The footer at the end of `memory`, which is the end of the run of `owner`.
    ///
    /// # Errors
    /// [`Truncated`] if it is damaged, belongs to another run, or is longer than `memory`.
    pub fn decode(memory: &[u8], owner: RunOwner) -> std::result::Result<Self, Truncated> {
        let (items_bytes, values, values_end, crc) = decode_tail(memory, owner)?;
        let (front, tail) = memory.split_at(memory.len() - TAIL_BYTES);
        let items = front.get(front.len().checked_sub(items_bytes).ok_or(Truncated)?..).ok_or(Truncated)?;
        if crc != footer_crc(items, tail.get(4..).unwrap_or(&[])) {
            return Err(Truncated);
        }
        let footer = Self { items: items.to_vec(), values, values_end };
        let mut end = 0;
        let mut count = 0;
        for item in footer.items() {
            let item = item?;
            end = item.at + item.bytes;
            count += 1;
        }
        if end != values_end || count != values { Err(Truncated) } else { Ok(footer) }
    }

    /// The values, in the order of key and place.
    pub fn items(&self) -> impl Iterator<Item = std::result::Result<FooterItem<'_>, Truncated>> {
        let mut reader = Reader::new(&self.items);
        let mut at = 0_u32;
        let end = self.values_end;
        std::iter::from_fn(move || {
            if reader.is_empty() {
                return None;
            }
            let item = item(&mut reader, at, end);
            match &item {
                Ok(item) => at += item.bytes,
                Err(_) => reader = Reader::new(&[]),
            }
            Some(item)
        })
    }

    /// Returns true if the footer has the same number and bytes of values as `entry`.
    pub fn fits(&self, entry: &RunEntry) -> bool {
        (self.values, self.values_end) == (entry.values, entry.value_bytes)
    }
}

fn item<'a>(reader: &mut Reader<'a>, at: u32, end: u32) -> std::result::Result<FooterItem<'a>, Truncated> {
    let key = reader.prefixed()?;
    let version = Lsn(reader.u64()?);
    let bytes = u32::try_from(reader.varint()?).map_err(|_| Truncated)?;
    if at.checked_add(bytes).is_none_or(|item_end| item_end > end) {
        return Err(Truncated);
    }
    Ok(FooterItem { key, version, at, bytes })
}

/// Bytes of the items, number of values and their end, and the checksum.
fn decode_tail(memory: &[u8], owner: RunOwner) -> std::result::Result<(usize, u32, u32, u32), Truncated> {
    let tail = memory.get(memory.len().checked_sub(TAIL_BYTES).ok_or(Truncated)?..).ok_or(Truncated)?;
    let mut reader = Reader::new(tail);
    let crc = reader.u32()?;
    let magic = reader.u32()?;
    let (device, block, tablet, zero) = (reader.u64()?, reader.u64()?, reader.u16()?, reader.u16()?);
    let (values, items, end) = (reader.u32()?, reader.u32()?, reader.u32()?);
    let found = RunOwner { device, tablet: TabletId(tablet), block };
    if magic != FOOTER_MAGIC || zero != 0 || found != owner {
        return Err(Truncated);
    }
    Ok((items as usize, values, end, crc))
}

/// Reads the footers of runs and their owners with one submission: the last blocks of each run, which usually hold the
/// whole footer.
pub async fn read_footers(device: &Device, runs: &[(RunOwner, Run)]) -> Vec<Result<Footer>> {
    let mut batch = device.batch();
    let read = |(_, run): &(RunOwner, Run)| batch.add(read_end(device, *run, FOOTER_BLOCKS_GUESSED));
    let reads: Vec<_> = runs.iter().map(read).collect();
    batch.start();
    let mut footers = Vec::with_capacity(runs.len());
    for (&(owner, run), read) in runs.iter().zip(reads) {
        footers.push(decode_footer(device, owner, run, read.await).await);
    }
    footers
}

/// The last `blocks` blocks of a run, or all of it.
fn read_end(device: &Device, run: Run, blocks: u32) -> IoFuture<IoBuf> {
    let blocks = blocks.min(run.blocks);
    device.read(run.end() - u64::from(blocks), IoBuf::unfilled(blocks as usize))
}

/// Decodes the footer from the blocks read at the end of a run; reads again if the footer is longer.
async fn decode_footer(
    device: &Device,
    owner: RunOwner,
    run: Run,
    read: Completion<IoBuf>,
) -> Result<Footer> {
    let damaged = |_| Error::Corrupt { what: "the footer of a packed run".into(), block: run.block };
    let mut end = match read.ok() {
        Ok(end) => end,
        // The unreadable block may be another one than the footer's.
        Err(_) => read_end(device, run, 1).await.ok()?,
    };
    let (items, ..) = decode_tail(&end, owner).map_err(damaged)?;
    let blocks = (items + TAIL_BYTES).div_ceil(BLOCK_BYTES).min(run.blocks as usize);
    if blocks * BLOCK_BYTES > end.len() {
        end = read_end(device, run, blocks as u32).await.ok()?;
    }
    Footer::decode(&end[end.len() - blocks * BLOCK_BYTES..], owner).map_err(damaged)
}

#[cfg(test)]
mod tests {
    use shoal_common::key::is_reserved;

    use super::*;

    fn owner() -> RunOwner {
        RunOwner { device: 0x1122_3344_5566_7788, tablet: TabletId(3), block: 0x0102_0304 }
    }

    #[test]
    fn run_keys_are_behind_all_objects_and_in_order() {
        assert!(run_key(0)[..] > b"zzzz"[..] && run_key(u64::MAX)[..] < run_keys_end()[..]);
        assert!(run_key(255) < run_key(256));
        assert_eq!(block_of_run_key(&run_key(77)), Some(77));
        assert_eq!(block_of_run_key(&run_key(77)[..9]), None);
        assert!(is_reserved(&run_key(1)) && !is_reserved(b"default\0key") && !is_reserved(b""));
    }

    #[test]
    fn entries_round_trip_and_are_judged() {
        let entry = RunEntry {
            blocks: 256,
            values: 100,
            value_bytes: 1 << 20,
            live_values: 99,
            live_bytes: 1_000_000,
            uncertain: false,
            fixed: false,
        };
        let encode = |entry: RunEntry| {
            let mut bytes = Vec::new();
            entry.encode(&mut bytes);
            bytes
        };
        assert_eq!(RunEntry::decode(&encode(entry)), Ok(entry));
        let uncertain = RunEntry { uncertain: true, live_values: 101, fixed: true, ..entry };
        assert_eq!(RunEntry::decode(&encode(uncertain)), Ok(uncertain));
        for wrong in [
            RunEntry { blocks: 0, ..entry },
            RunEntry { blocks: 257, ..entry },
            RunEntry { value_bytes: (1 << 20) + 1, ..entry },
            RunEntry { live_values: 101, ..entry },
            RunEntry { live_bytes: (1 << 20) + 1, ..entry },
        ] {
            assert!(RunEntry::decode(&encode(wrong)).is_err(), "{wrong:?}");
        }
        let bytes = encode(entry);
        assert!(RunEntry::decode(&bytes[..bytes.len() - 1]).is_err());
        assert!(RunEntry::decode(&[&bytes[..], &[0]].concat()).is_err());
    }

    fn run() -> Vec<u8> {
        let mut memory = vec![0xEE; 2 * BLOCK_BYTES];
        let mut items = Vec::new();
        put_item(&mut items, b"default\0a", Lsn(7), 1_000);
        put_item(&mut items, &[b'k'; 300], Lsn(u64::MAX), 4_000);
        assert_eq!(items.len(), item_bytes(9, 1_000) + item_bytes(300, 4_000));
        put_footer(&mut memory, 5_000, &items, 2, owner());
        memory
    }

    #[test]
    fn footers_round_trip() {
        let memory = run();
        let footer = Footer::decode(&memory, owner()).unwrap();
        let items: Vec<_> = footer.items().map(|item| item.unwrap()).collect();
        let entry = RunEntry { values: 2, value_bytes: 5_000, ..RunEntry::default() };
        assert!(footer.fits(&entry) && !footer.fits(&RunEntry { values: 3, ..entry }));
        assert_eq!(items[0], FooterItem { key: b"default\0a", version: Lsn(7), at: 0, bytes: 1_000 });
        assert_eq!((items[1].version, items[1].at, items[1].bytes), (Lsn(u64::MAX), 1_000, 4_000));
        // The space after the values is zero, up to the footer.
        assert!(memory[5_000..memory.len() - 400].iter().all(|&byte| byte == 0));
        let other = RunOwner { block: 5, ..owner() };
        assert!(Footer::decode(&memory, other).is_err(), "another run's");
        assert!(
            Footer::decode(&memory, RunOwner { tablet: TabletId(4), ..owner() }).is_err(),
            "another tablet's"
        );
    }

    #[test]
    fn no_flipped_bit_of_a_footer_passes() {
        let mut memory = run();
        let items = item_bytes(9, 1_000) + item_bytes(300, 4_000);
        for byte in memory.len() - TAIL_BYTES - items..memory.len() {
            for bit in 0..8 {
                memory[byte] ^= 1 << bit;
                assert!(Footer::decode(&memory, owner()).is_err(), "bit {bit} of byte {byte}");
                memory[byte] ^= 1 << bit;
            }
        }
        for cut in 0..TAIL_BYTES {
            assert!(Footer::decode(&memory[memory.len() - cut..], owner()).is_err());
        }
    }
}
