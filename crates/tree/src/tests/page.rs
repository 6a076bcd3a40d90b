//! Pages made by tests, each with one fault: the check refuses them and names the fault.

use shoal_base::BLOCK_BYTES;

use super::*;
use crate::format::{Child, Header};

type Item<'a> = (&'a [u8], &'a [u8]);

/// A page as in docs/format/page.md, with the right length and order of its items, which are short.
fn page(level: u8, flags: u8, bounds: &[u8], items: &[Item<'_>]) -> [u8; BLOCK_BYTES] {
    let mut bytes = vec![0; 40 + 2 * items.len()];
    bytes[4..9].copy_from_slice(&[b'S', b'p', 1, level, flags]);
    bytes[12] = items.len() as u8;
    bytes.extend_from_slice(bounds);
    for (index, (suffix, payload)) in items.iter().enumerate() {
        let at = bytes.len() as u16;
        bytes[40 + 2 * index..42 + 2 * index].copy_from_slice(&at.to_le_bytes());
        bytes.extend_from_slice(&[suffix.len() as u8, payload.len() as u8]);
        bytes.extend_from_slice(suffix);
        bytes.extend_from_slice(payload);
    }
    bytes.resize(BLOCK_BYTES, 0);
    bytes.try_into().unwrap()
}

fn child() -> Vec<u8> {
    let mut payload = Vec::new();
    Child { page: PageRef { block: 7, crc: 8 }, entries: 9 }.encode(&mut payload);
    payload
}

fn judged(bytes: &[u8; BLOCK_BYTES]) -> std::result::Result<(), &'static str> {
    PageView::parse(bytes).and_then(|view| view.check(b"b", Some(b"x"))).map_err(|damage| damage.0)
}

#[test]
fn each_fault_of_a_page_is_named() {
    let child = child();
    assert_eq!(judged(&page(1, 0, b"", &[(b"", &child), (b"c", &child), (b"d", &child)])), Ok(()));
    assert_eq!(judged(&page(1, 0, b"", &[])), Err("an inner page has no children"));
    let separated = page(1, 0, b"", &[(b"c", &child), (b"d", &child)]);
    assert_eq!(judged(&separated), Err("the first child of an inner page has a separator"));
    assert_eq!(judged(&page(0, 0, b"", &[(b"c", b"entry"), (b"d", b"entry")])), Ok(()));
    assert_eq!(judged(&page(0, 0, b"", &[])), Err("a leaf has no entries"));
    assert_eq!(judged(&page(0, 0, b"", &[(b"c", b"")])), Err("an entry is empty"));
    // The lower bound with its length; then the length of the upper one plus one, or 0.
    for (bounds, is_within) in [
        (&b"\x01b\x02x"[..], true),
        (b"\x01c\x02d", true),
        (b"\x01a\x02d", false),
        (b"\x01c\x00", false),
        (b"\x01c\x02y", false),
        (b"\x01d\x02c", false),
    ] {
        let expected = if is_within {
            Ok(())
        } else {
            Err("the bounds of a lost leaf are not within those of its parent")
        };
        assert_eq!(judged(&page(0, 1, bounds, &[])), expected, "{bounds:?}");
    }
    let marked = page(1, 1, b"\x01c\x00", &[(b"", &child)]);
    assert_eq!(
        Header::read(&marked).map_err(|damage| damage.0),
        Err("an inner page is marked as a lost leaf")
    );
}

#[test]
fn a_lookup_in_an_inner_page_without_children_is_damage() {
    let bytes = page(1, 0, b"", &[]);
    let view = PageView::parse(&bytes).unwrap();
    assert_eq!(view.child_of(b"key").map_err(|damage| damage.0), Err("an inner page has no children"));
}
