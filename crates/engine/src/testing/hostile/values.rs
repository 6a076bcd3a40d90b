//! Hostile headers of values: entries, metadata, manifests, and the footers of packed runs.

use std::sync::Arc;

use shoal_base::codec::Reader;
use shoal_base::{BLOCK_BYTES, Crc32c, Lsn, TabletId};
use shoal_device::{Device, MemDevice};
use shoal_pool::{Hint, Pool, PoolOptions};
use shoal_value::packed::{Footer, RunEntry, RunOwner};
use shoal_value::{
    Entry, Home, Located, Manifest, decode_metadata, encode_metadata, end_of, read, split_leaf_entry,
    verify_direct,
};

use crate::block_on;

/// Blocks of the device that entries refer to.
const BLOCKS: u64 = 64;
/// Maximum number of bytes of a value that are read.
const READ_BYTES_MAX: u64 = 1 << 20;
/// Bytes of a footer after its items: docs/format/packed.md.
const TAIL_BYTES: usize = 40;
const ITEM_BYTES_AT: usize = 32;
/// Blocks of a packed run's memory here.
const RUN_BLOCKS: usize = 4;

pub(super) fn header(input: &[u8]) {
    if let Ok((_, body)) = split_leaf_entry(input) {
        entry(body);
    }
    entry(input);
    if let Ok(metadata) = decode_metadata(input)
        && let Ok(bytes) = encode_metadata(&metadata)
    {
        assert_eq!(decode_metadata(&bytes), Ok(metadata));
    }
    if let Ok(manifest) = Manifest::decode(input) {
        assert_eq!(manifest.encode().0, input);
    }
}

fn entry(body: &[u8]) {
    let Ok((entry, inline)) = Entry::decode(body) else { return };
    let mut again = Vec::new();
    entry.encode(&mut again);
    again.extend_from_slice(inline);
    assert_eq!(Entry::decode(&again), Ok((entry.clone(), inline)));
    assert_eq!(end_of(body), entry.end);
    if entry.home != Home::Inline {
        // Errors are fine.
        let _ = block_on(read_it(&entry));
    }
}

async fn read_it(entry: &Entry) -> crate::Result<()> {
    let device = Device::new(Arc::new(MemDevice::new(BLOCKS)));
    let pool = Pool::new(device.clone(), PoolOptions::new(64)).map_err(shoal_value::pool_error)?;
    let _ = verify_direct(&device, &pool, BLOCKS, entry, Lsn(7)).await;
    let located = Located::find(&device, &pool, entry, Lsn(7)).await?;
    let bytes = entry.stored_bytes().min(READ_BYTES_MAX);
    for (first, hint) in [(0, Hint::Lookup), (entry.stored_bytes() - bytes, Hint::Scan)] {
        if let Ok(value) = read(&device, &pool, &located, first, bytes, hint).await {
            assert_eq!(value.len() as u64, bytes);
        }
    }
    Ok(())
}

pub(super) fn packed_run(input: &[u8]) {
    if let Ok(entry) = RunEntry::decode(input) {
        let mut again = Vec::new();
        entry.encode(&mut again);
        assert_eq!(RunEntry::decode(&again), Ok(entry));
    }
    let input = &input[input.len().saturating_sub(RUN_BLOCKS * BLOCK_BYTES)..];
    let mut memory = vec![0; input.len().next_multiple_of(BLOCK_BYTES).max(BLOCK_BYTES)];
    let (bytes, tail_at) = (memory.len(), memory.len() - TAIL_BYTES);
    memory[bytes - input.len()..].copy_from_slice(input);
    let items = Reader::new(&memory[tail_at + ITEM_BYTES_AT..]).u32().map_or(0, |items| items as usize);
    let Some(items_at) = tail_at.checked_sub(items) else { return };
    let mut crc = Crc32c::new();
    crc.update(&memory[items_at..tail_at]);
    crc.update(&memory[tail_at + 4..]);
    let crc = crc.finish();
    memory[tail_at..tail_at + 4].copy_from_slice(&crc.to_le_bytes());
    let Ok(owner) = owner_of(&memory[tail_at + 8..]) else { return };
    let Ok(footer) = Footer::decode(&memory, owner) else { return };
    let mut end = 0;
    for item in footer.items() {
        let item = item.unwrap_or_else(|_| unreachable!("the items of a footer that was checked"));
        assert_eq!(item.at, end, "values lie one behind the other");
        end += item.bytes;
    }
    let _ = footer.fits(&RunEntry::default());
}

fn owner_of(tail: &[u8]) -> Result<RunOwner, shoal_base::codec::Truncated> {
    let mut reader = Reader::new(tail);
    let (device, block) = (reader.u64()?, reader.u64()?);
    Ok(RunOwner { device, tablet: TabletId(reader.u16()?), block })
}
