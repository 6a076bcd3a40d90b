//! Early refusals and their errors: names, metadata, layouts, devices, unreadable logs (T25).

use shoal_base::TabletId;
use shoal_base::codec::Reader;
use shoal_base::limits::{CONTENT_TYPE_BYTES_MAX, KEY_BYTES_MAX, USER_METADATA_BYTES_MAX};
use shoal_common::key::Bucket;
use shoal_common::object::Metadata;
use shoal_device::Device;
use shoal_device_sim::{Fault, FaultOp, Image};
use shoal_image::layout::Layout;
use shoal_log::format::{RecordKind, decode_record, encode_record};
use shoal_value::encode_metadata;

use crate::recovery::recount::TreeCount;
use crate::testing::fixtures::{device as device_of, environment, newest, options};
use crate::{ByteRange, Error, FormatOptions, ObjectKey, PutOptions, Store, block_on};

const BLOCKS: u64 = 256;
const EIO: i32 = 5;

fn format(device: &Device, options: &FormatOptions) -> crate::Result<()> {
    block_on(Store::format(device, options, &environment()))
}

fn open(device: &Device) -> crate::Result<Store> {
    block_on(Store::open(device.clone(), options(), environment()))
}

fn small() -> FormatOptions {
    FormatOptions { tablets: 1, log_blocks: Some(16), ..FormatOptions::for_blocks(BLOCKS) }
}

fn is_invalid<T>(result: crate::Result<T>, words: &str) -> bool {
    matches!(result, Err(Error::Invalid(why)) if why.contains(words))
}

fn is_unopenable<T>(result: crate::Result<T>, words: &str) -> bool {
    matches!(result, Err(Error::Unopenable(why)) if why.contains(words))
}

#[test]
fn name_length_limits_are_exact() {
    let bucket = Bucket::new("default").unwrap();
    assert!(is_invalid(bucket.key(b""), "this one has 0"));
    assert!(is_invalid(bucket.key(&[0; KEY_BYTES_MAX + 1]), "this one has 1025"));
    assert!(is_invalid(ObjectKey::new("default", b""), "this one has 0"));
    let longest = bucket.key(&[0xFF; KEY_BYTES_MAX]).unwrap();
    assert_eq!(longest, ObjectKey::new("default", &[0xFF; KEY_BYTES_MAX]).unwrap());
    let odd = bucket.key(b"a\0\xFF").unwrap();
    assert_eq!(format!("{odd} {odd:?}"), r"default/a\x00\xff default/a\x00\xff");
}

#[test]
fn metadata_length_limits_are_exact() {
    let metadata = |content_type: usize, pairs: usize, bytes: usize| Metadata {
        content_type: "t".repeat(content_type),
        user: (0..pairs).map(|_| ("n".to_owned(), vec![1; bytes - 1].into())).collect(),
        ..Metadata::default()
    };
    assert!(is_invalid(encode_metadata(&metadata(CONTENT_TYPE_BYTES_MAX + 1, 0, 1)), "256 bytes; 255"));
    assert!(is_invalid(
        encode_metadata(&metadata(0, 1, USER_METADATA_BYTES_MAX + 1)),
        "2049 bytes in 1 pairs"
    ));
    assert!(is_invalid(encode_metadata(&metadata(0, USER_METADATA_BYTES_MAX / 8 + 1, 1)), "in 257 pairs"));
    encode_metadata(&metadata(CONTENT_TYPE_BYTES_MAX, 1, USER_METADATA_BYTES_MAX)).unwrap();
}

#[test]
fn impossible_layouts_and_devices_are_rejected_unmodified() {
    let (sim, device) = device_of(Image::new(BLOCKS));
    assert!(is_unopenable(open(&device), "it is empty"));
    assert!(is_invalid(format(&device, &FormatOptions { tablets: 0, ..small() }), "tablets"));
    assert!(is_invalid(format(&device, &FormatOptions { tablets: u16::MAX, ..small() }), "tablets"));
    assert!(is_invalid(Layout::new(&FormatOptions { log_blocks: Some(7), ..small() }), "at least 8 blocks"));
    assert!(is_invalid(format(&device, &FormatOptions { blocks_max: 70, ..small() }), "is too small"));
    let (_, tiny) = device_of(Image::new(80));
    assert!(is_invalid(format(&tiny, &small()), "the device has 80 blocks"));
    assert!((0..BLOCKS).all(|block| sim.image().block(block).iter().all(|&byte| byte == 0)), "untouched");
    format(&device, &small()).unwrap();
    let before = sim.image();
    let again = format(&device, &small());
    assert!(
        matches!(&again, Err(Error::NotBlank(what)) if what == "it holds a Shoal store already"),
        "{again:?}"
    );
    assert!((0..BLOCKS).all(|block| sim.image().block(block) == before.block(block)), "nothing was changed");
}

/// A bad sector anywhere in the log is an error of the device, never an end of the log: once the device reads again, the store opens with
/// everything.
#[test]
fn a_bad_sector_in_the_log_is_no_torn_tail() {
    let (sim, device) = device_of(Image::new(BLOCKS));
    format(&device, &small()).unwrap();
    let store = open(&device).unwrap();
    let key = |which: u8| ObjectKey::new("default", &[which]).unwrap();
    for which in 0..4 {
        block_on(store.put(&key(which), vec![which; 50].into(), PutOptions::default())).unwrap();
    }
    drop(store);
    let superblock = newest(&device);
    let image = sim.image();
    for block in 0..u64::from(superblock.layout.log_blocks) {
        let (sim, device) = device_of(image.clone());
        let bad = superblock.layout.log_first() + block;
        sim.inject(Fault::fail(FaultOp::Read, EIO).at(bad..bad + 1).for_good());
        let opened = open(&device).map(|_| ());
        assert!(matches!(opened, Err(Error::Io(_))), "block {block}: {opened:?}");
        sim.clear_faults();
        let store = open(&device).unwrap();
        for which in 0..4 {
            let object = block_on(store.get(&key(which), ByteRange::ALL)).unwrap().unwrap();
            assert_eq!(object.value.to_vec(), [which; 50], "block {block}");
        }
    }
}

/// A record of the right length whose bytes differ from the written ones.
#[test]
fn record_checksum_is_verified() {
    let record = encode_record(RecordKind::Put, TabletId(2), b"key", &[b"body"], true);
    for bit in 32..record.bytes.len() * 8 {
        let mut bytes = record.bytes.to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(decode_record(&mut Reader::new(&bytes)).is_err(), "bit {bit}");
    }
}

#[test]
fn invalid_reserved_entry_is_reported() {
    let mut count = TreeCount::default();
    assert!(count.reserved(b"\0?", b"entry").is_some_and(|what| what.contains("does not know")));
    let key = shoal_value::packed::run_key(77);
    assert!(count.reserved(&key, &[0xFF; 3]).is_some_and(|what| what.contains("cannot be read")));
    assert_eq!(count.runs().count(), 0, "neither counts");
}
