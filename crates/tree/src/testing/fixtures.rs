//! Pages made by tests: their checksums are valid, their contents arbitrary.

use shoal_base::{BLOCK_BYTES, Lsn};

use crate::format::{Bounds, Child, Draft, Stamp};
use crate::{PageRef, Tree};

/// A page, and its parent's reference to it.
pub type Made = (PageRef, [u8; BLOCK_BYTES]);

/// The number of leading bytes that all keys share.
fn shared(keys: &[&[u8]]) -> usize {
    let (Some(first), Some(last)) = (keys.first(), keys.last()) else { return 0 };
    first.iter().zip(*last).take_while(|(one, other)| one == other).count()
}

fn draft(stamp: Stamp, items: &[(&[u8], Vec<u8>)], block: u64, bounds: Option<Bounds<'_>>) -> Made {
    // The first child of an inner page has no separator.
    let first = usize::from(stamp.level > 0);
    let keys: Vec<&[u8]> = items.iter().skip(first).map(|(key, _)| *key).collect();
    let prefix = keys.first().map_or(&[][..], |key| &key[..shared(&keys)]);
    let mut draft = Draft::new();
    draft.begin(stamp, items.len(), prefix, bounds);
    for (index, (key, payload)) in items.iter().enumerate() {
        draft.push(if index < first { &[] } else { &key[prefix.len()..] }, payload);
    }
    let (page, bytes) = draft.seal(block);
    (page, *bytes)
}

/// A leaf at `block`.
pub fn leaf(tree: Tree, block: u64, items: &[(&[u8], Vec<u8>)]) -> Made {
    draft(Stamp { tree, lsn: Lsn(1), level: 0 }, items, block, None)
}

/// A leaf marked "base lost": the keys from `low` and below `high` are unknown.
pub fn lost_leaf(
    tree: Tree,
    block: u64,
    (low, high): (&[u8], Option<&[u8]>),
    items: &[(&[u8], Vec<u8>)],
) -> Made {
    draft(Stamp { tree, lsn: Lsn(1), level: 0 }, items, block, Some(Bounds { low, high }))
}

/// An inner page: children with their separators (the first one's is ignored) and numbers of entries.
pub fn inner(tree: Tree, block: u64, level: u8, children: &[(&[u8], PageRef, u64)]) -> Made {
    let payload = |page, entries| {
        let mut payload = Vec::new();
        Child { page, entries }.encode(&mut payload);
        payload
    };
    let items: Vec<_> =
        children.iter().map(|&(separator, page, entries)| (separator, payload(page, entries))).collect();
    draft(Stamp { tree, lsn: Lsn(1), level }, &items, block, None)
}
