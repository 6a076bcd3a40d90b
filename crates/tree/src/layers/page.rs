//! The page that lists a tablet's layers: `docs/format/layers.md`. The only place that encodes it or decodes a field.

use shoal_base::checksum::crc32c;
use shoal_base::codec::{Reader, Truncated};
use shoal_base::{BLOCK_BYTES, Lsn};
use shoal_common::error::{Error, Result};
use shoal_device::{Device, IoBuf};

use crate::layers::{LAYERS_MAX, Layers, LayersRef};
use crate::{ENTRIES_MAX, PageRef, Root, TREE_KEY_BYTES_MAX, Tree};

const MAGIC: [u8; 2] = *b"Sc";
const VERSION: u8 = 2;
/// The header of version 1 has no `unsettled`.
const HEADER_BYTES_1: usize = 48;
const HEADER_BYTES: usize = 56;
const ITEM_BYTES: usize = 24;
const _: () = assert!(HEADER_BYTES_1 < HEADER_BYTES);
const _: () = assert!(HEADER_BYTES + LAYERS_MAX * ITEM_BYTES + TREE_KEY_BYTES_MAX < BLOCK_BYTES);

/// Copies of the page, so that a damaged one loses nothing.
pub const COPIES: u32 = 2;

/// Returns the page's bytes at `block`, and its checksum. `lsn` is the newest record that the layers hold.
pub fn encode(tree: Tree, layers: &Layers, lsn: Lsn, block: u64) -> (IoBuf, u32) {
    assert!(layers.list.len() <= LAYERS_MAX, "the list of layers fits (INV-33)");
    let mut bytes = Vec::with_capacity(BLOCK_BYTES);
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&[VERSION, layers.list.len() as u8]);
    bytes.extend_from_slice(&tree.tablet.0.to_le_bytes());
    bytes.extend_from_slice(&(layers.frontier.len() as u16).to_le_bytes());
    bytes.extend_from_slice(&[layers.compacting as u8, 0, 0, 0]);
    for field in [block, lsn.0, tree.device, layers.live, layers.unsettled] {
        bytes.extend_from_slice(&field.to_le_bytes());
    }
    assert_eq!(bytes.len(), HEADER_BYTES, "the header ends here");
    for root in &layers.list {
        let page = root.page.unwrap_or_default();
        bytes.extend_from_slice(&page.block.to_le_bytes());
        bytes.extend_from_slice(&page.crc.to_le_bytes());
        bytes.extend_from_slice(&[root.height, 0, 0, 0]);
        bytes.extend_from_slice(&root.entries.to_le_bytes());
    }
    bytes.extend_from_slice(&layers.frontier);
    bytes.resize(BLOCK_BYTES, 0);
    let crc = crc32c(&bytes[4..]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
    let mut memory = IoBuf::new(1);
    memory.copy_from_slice(&bytes);
    (memory, crc)
}

/// Returns the layers that `bytes` list; `None` if `bytes` are not the page that `stored` refers to.
pub fn decode(tree: Tree, stored: LayersRef, bytes: &[u8]) -> Option<Layers> {
    let is_whole = bytes.len() == BLOCK_BYTES && crc32c(&bytes[4..]) == stored.crc;
    is_whole.then(|| decode_fields(tree, stored, bytes).ok().flatten()).flatten()
}

fn decode_fields(
    tree: Tree,
    stored: LayersRef,
    bytes: &[u8],
) -> std::result::Result<Option<Layers>, Truncated> {
    let mut reader = Reader::new(bytes);
    let crc = reader.u32()?;
    let (magic, version) = (reader.bytes(2)?, reader.u8()?);
    let count = usize::from(reader.u8()?);
    let tablet = reader.u16()?;
    let frontier_bytes = usize::from(reader.u16()?);
    let compacting = usize::from(reader.u8()?);
    reader.bytes(3)?;
    let (block, _lsn, device, live) = (reader.u64()?, reader.u64()?, reader.u64()?, reader.u64()?);
    let unsettled = if version == 1 { 0 } else { reader.u64()? };
    let is_ours = crc == stored.crc
        && magic == MAGIC
        && (1..=VERSION).contains(&version)
        && (block, device, tablet) == (stored.block, tree.device, tree.tablet.0);
    let is_sensible = count <= LAYERS_MAX
        && compacting <= count
        && frontier_bytes <= TREE_KEY_BYTES_MAX
        && live.max(unsettled) <= ENTRIES_MAX;
    if !is_ours || !is_sensible {
        return Ok(None);
    }
    let mut list = Vec::with_capacity(count);
    for _ in 0..count {
        let page = PageRef { block: reader.u64()?, crc: reader.u32()? };
        let height = reader.u8()?;
        reader.bytes(3)?;
        let entries = reader.u64()?;
        if entries > ENTRIES_MAX {
            return Ok(None);
        }
        list.push(Root { page: Some(page), height, entries });
    }
    let frontier = reader.bytes(frontier_bytes)?.to_vec();
    Ok(Some(Layers { list, compacting, frontier, live, unsettled, stored: Some(stored) }))
}

/// Reads the layers of a tablet; damaged copies are ignored. If no copy can be read, the list is one unreadable layer, so that every key of
/// the tablet returns an error until it is written again. The flag is false in that case.
///
/// # Errors
/// As the device, unless `gives_up`.
pub async fn load(device: &Device, tree: Tree, stored: LayersRef, gives_up: bool) -> Result<(Layers, bool)> {
    for copy in 0..u64::from(stored.copies) {
        match device.read(stored.block + copy, IoBuf::unfilled(1)).await.ok() {
            Ok(bytes) => {
                if let Some(layers) = decode(tree, stored, &bytes) {
                    return Ok((layers, true));
                }
            }
            Err(error) if copy + 1 == u64::from(stored.copies) && !gives_up => return Err(Error::Io(error)),
            Err(_) => {}
        }
    }
    let unreadable =
        Root { page: Some(PageRef { block: stored.block, crc: stored.crc }), height: 1, entries: 0 };
    Ok((Layers { list: vec![unreadable], stored: Some(stored), ..Layers::default() }, false))
}

/// Reads all copies of a list: returns the bytes of a whole one, and the blocks of the damaged ones. A block that cannot be read counts as
/// damaged.
pub async fn read_copies(device: &Device, tree: Tree, stored: LayersRef) -> (Option<IoBuf>, Vec<u64>) {
    let (mut whole, mut damaged) = (None, Vec::new());
    for block in stored.block..stored.block + u64::from(stored.copies) {
        match device.read(block, IoBuf::unfilled(1)).await.ok() {
            Ok(bytes) if decode(tree, stored, &bytes).is_some() => whole = Some(bytes),
            _ => damaged.push(block),
        }
    }
    (whole, damaged)
}

/// The words for a damaged copy of a list.
pub fn copy_problem(tree: Tree) -> String {
    format!("a copy of the list of the layers of tablet {} is damaged", tree.tablet)
}

/// Overwrites the damaged copies of a list with a whole one. The caller flushes; a crash leaves them damaged.
///
/// # Errors
/// As the device.
pub async fn mend_copies(device: &Device, tree: Tree, stored: LayersRef) -> Result<()> {
    let (Some(whole), damaged) = read_copies(device, tree, stored).await else { return Ok(()) };
    for block in damaged {
        let mut bytes = IoBuf::new(1);
        bytes.copy_from_slice(&whole);
        device.write(block, vec![bytes]).await.result?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use shoal_base::TabletId;

    use super::*;

    const TREE: Tree = Tree { device: 0x1122_3344_5566_7788, tablet: TabletId(3) };

    fn layers() -> Layers {
        let root = |block, height, entries| Root { page: Some(PageRef { block, crc: 77 }), height, entries };
        Layers {
            list: vec![root(100, 1, 3), root(200, 3, 90_000), root(300, 2, 4_000)],
            compacting: 2,
            frontier: b"default\0photos/17".to_vec(),
            live: 1 << 40,
            unsettled: 1 << 41,
            stored: None,
        }
    }

    #[test]
    fn page_round_trips() {
        let (bytes, crc) = encode(TREE, &layers(), Lsn(9), 64);
        let stored = LayersRef { block: 64, crc, copies: 2 };
        let read = decode(TREE, stored, &bytes).unwrap();
        assert_eq!(read, Layers { stored: Some(stored), ..layers() });
        assert_eq!(crc, GOLDEN_CRC, "the bytes of version 2 never change");
        // Of another tablet, another store, another block; with a flipped bit.
        let others = [
            (Tree { tablet: TabletId(2), ..TREE }, stored),
            (Tree { device: 1, ..TREE }, stored),
            (TREE, LayersRef { block: 65, ..stored }),
            (TREE, LayersRef { crc: crc ^ 1, ..stored }),
        ];
        assert!(others.iter().all(|&(tree, stored)| decode(tree, stored, &bytes).is_none()));
        for bit in (0..BLOCK_BYTES * 8).step_by(13) {
            let mut flipped = bytes.to_vec();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(TREE, stored, &flipped).is_none(), "bit {bit}");
        }
    }

    /// A list of version 1 has a shorter header, and no unsettled entries.
    #[test]
    fn version_1_is_read() {
        let (bytes, _) = encode(TREE, &layers(), Lsn(9), 64);
        let mut old = [&bytes[..HEADER_BYTES_1], &bytes[HEADER_BYTES..], &[0; 8]].concat();
        old[6] = 1;
        let crc = crc32c(&old[4..]);
        assert_eq!(crc, GOLDEN_CRC_1, "the bytes of version 1 never change");
        old[..4].copy_from_slice(&crc.to_le_bytes());
        let stored = LayersRef { block: 64, crc, copies: 2 };
        let read = decode(TREE, stored, &old).unwrap();
        assert_eq!(read, Layers { unsettled: 0, stored: Some(stored), ..layers() });
    }

    /// The checksum may be right and the fields wrong: an edit by hand, or a bug.
    #[test]
    fn impossible_counts_are_rejected() {
        let mut many = layers();
        many.list[1].entries = ENTRIES_MAX + 1;
        let unsettled = Layers { unsettled: ENTRIES_MAX + 1, ..layers() };
        for wrong in [many, unsettled, Layers { live: ENTRIES_MAX + 1, ..layers() }] {
            let (bytes, crc) = encode(TREE, &wrong, Lsn(9), 64);
            assert!(decode(TREE, LayersRef { block: 64, crc, copies: 2 }, &bytes).is_none());
        }
        for (at, value) in [(7, 41), (7, 255), (11, 255), (12, 4), (4, 0), (6, 0), (6, 3)] {
            let (mut bytes, _) = encode(TREE, &layers(), Lsn(9), 64);
            bytes[at] = value;
            let crc = crc32c(&bytes[4..]);
            bytes[..4].copy_from_slice(&crc.to_le_bytes());
            assert!(decode(TREE, LayersRef { block: 64, crc, copies: 1 }, &bytes).is_none(), "{at}: {value}");
        }
    }

    const GOLDEN_CRC_1: u32 = 2_102_206_907;
    const GOLDEN_CRC: u32 = 283_549_988;
}
