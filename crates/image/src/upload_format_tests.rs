//! Checks the code of uploads against `docs/format/object.md`, as `format_tests.rs` does for everything else.

use shoal_base::Run;
use shoal_common::object::Attributes;
use shoal_common::upload::{UploadRecord, UploadState};
use shoal_testkit::bytes::number;
use shoal_value::JoinedManifest;

use crate::format_tests::table;

#[test]
fn joined_manifest_layout_matches_document() {
    let doc = include_str!("../../../docs/format/object.md");
    let (head, segment) = (table(doc, "joined"), table(doc, "segment"));
    let mut manifest = JoinedManifest::default();
    manifest.push((5, b"note"), (70_000, 9), &[Run::new(7, 18)], &[3, 4]);
    manifest.put_in_front(6, &[Run::new(5, 1)], &[2]);
    let (bytes, _) = manifest.encode();
    for (field, expected) in
        [("magic", 0x324E_4D53), ("segments", 2), ("runs", 2), ("units", 3), ("note_bytes", 4), ("zero", 0)]
    {
        assert_eq!(number(&bytes, head[field]), expected, "{field}");
    }
    let start = head["list"].0 + 16;
    for (field, expected) in
        [("bytes", 70_000), ("runs", 1), ("number", 5), ("first", 9), ("note_bytes", 4), ("zero", 0)]
    {
        assert_eq!(number(&bytes[start..], segment[field]), expected, "{field}");
    }
    let runs = start + 16;
    assert_eq!((number(&bytes, (runs, 8)), number(&bytes, (runs + 20, 4))), (5, 18));
    assert_eq!((number(&bytes, (runs + 24, 4)), &bytes[runs + 36..]), (2, &b"note"[..]));
}

#[test]
fn upload_record_layout_matches_document() {
    let rows = table(include_str!("../../../docs/format/object.md"), "upload");
    let mut items = Attributes::default();
    items.set(1, Some(b"me"));
    let state = UploadState::Completed { answer: items.clone(), after_object: 300 };
    let bytes = UploadRecord { state, created_ns: 0x0102_0304_0506_0708, items }.encode();
    for (field, expected) in [("version", 1), ("state", 1), ("created", 0x0102_0304_0506_0708)] {
        assert_eq!(number(&bytes, rows[field]), expected, "{field}");
    }
    assert_eq!(&bytes[rows["items"].0..], b"\x01\x04\x01\x02me\x02\x04\x01\x02me\x03\x02\xAC\x02");
}
