//! Stores that earlier programs wrote still open, byte for byte what they held (T14 of `docs/reliability.md`): one image for
//! each version of the formats, in `golden/`. Stores of other versions are refused: `format_refusal.rs`.
//!
//! An image is a list of blocks that are not zero: number (8 bytes, little-endian), then 4,096 bytes. Whoever changes a format
//! gives it a new version and adds an image: `cargo test -p shoal-engine --test store golden::write -- --ignored`.

use std::path::PathBuf;

use shoal_base::BLOCK_BYTES;
use shoal_device::Device;
use shoal_device::sim::{Image, SimDevice};
use shoal_engine::{ByteRange, ListRequest, Metadata, PutOptions, RejectRules, Store, block_on};
use shoal_testkit::Value;

use crate::common::{assert_clean, format, key, open, tiny};

const BLOCKS: u64 = 192;
/// The version that this program writes.
const NEWEST: u32 = 2;
const SIZES: [usize; 6] = [0, 30, 95, 700, 1_800, 5_000];

fn path(version: u32) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/store/golden/v{version}.blocks"))
}

fn name(which: u64) -> Vec<u8> {
    format!("{}{which}", "folder/".repeat((which % 3) as usize)).into_bytes()
}

/// What the images hold: of object `which`, none where it was deleted.
fn held(which: u64) -> Option<(Value, Metadata)> {
    let seed = if which.is_multiple_of(5) { 100 + which } else { which };
    let bytes = if which == 20 { 70_000 } else { SIZES[((which + seed / 100) % 6) as usize] };
    let user = if which % 7 == 3 { vec![("colour".into(), vec![b'c'; 40])] } else { Vec::new() };
    let metadata = Metadata {
        content_type: if which.is_multiple_of(2) { "text/plain".into() } else { String::new() },
        user,
    };
    (which != 4 && which != 9).then_some((Value { key: which, seed, bytes }, metadata))
}

fn put(store: &Store, which: u64, value: Value, metadata: Metadata) {
    let options = PutOptions { metadata, ..PutOptions::default() };
    block_on(store.put(&key(&name(which)), value.to_vec().into(), options)).unwrap();
}

/// Writes the image of the newest version: part of it in the trees, part in the log, as a kill leaves it.
#[test]
#[ignore = "writes the image that the other test reads"]
fn write() {
    let sim = SimDevice::new(BLOCKS);
    let device = Device::new(sim.clone());
    format(&device, BLOCKS, 2);
    let store = open(&device, tiny()).unwrap();
    for which in 0..21 {
        // Overwritten or deleted below, or for good.
        let (value, metadata) =
            held(which).unwrap_or((Value { key: which, seed: 7, bytes: 60 }, Metadata::default()));
        put(&store, which, value, metadata);
    }
    for which in [4, 9] {
        block_on(store.delete(&key(&name(which)), RejectRules::default())).unwrap();
    }
    let (value, metadata) = held(20).unwrap();
    put(&store, 20, value, metadata);
    drop(store);
    let image = sim.image();
    let mut bytes = Vec::new();
    for block in (0..BLOCKS).filter(|&block| image.block(block).iter().any(|&byte| byte != 0)) {
        bytes.extend_from_slice(&block.to_le_bytes());
        bytes.extend_from_slice(image.block(block));
    }
    std::fs::create_dir_all(path(NEWEST).parent().unwrap()).unwrap();
    std::fs::write(path(NEWEST), bytes).unwrap();
}

#[test]
fn images_of_all_versions_open() {
    for version in [NEWEST] {
        let bytes = std::fs::read(path(version)).unwrap();
        let mut image = Image::new(BLOCKS);
        for entry in bytes.chunks(8 + BLOCK_BYTES) {
            let block = u64::from_le_bytes(entry[..8].try_into().unwrap());
            image.write(block, entry[8..].try_into().unwrap());
        }
        let device = Device::new(SimDevice::from_image(image));
        assert_clean(&device, &format!("version {version}"));
        let store = open(&device, tiny()).unwrap();
        let mut names = Vec::new();
        for which in 0..21 {
            let found = block_on(store.get(&key(&name(which)), ByteRange::ALL)).unwrap();
            match (found, held(which)) {
                (None, None) => {}
                (Some(object), Some((value, metadata))) => {
                    value.check(&object.value.to_vec()).unwrap();
                    assert_eq!(object.info.metadata, metadata, "version {version}, object {which}");
                    names.push(name(which));
                }
                (found, _) => {
                    panic!("version {version}, object {which}: {:?}", found.map(|object| object.info))
                }
            }
        }
        names.sort();
        let request = ListRequest { bucket: "default".into(), limit: 100, ..ListRequest::default() };
        let listed = block_on(store.list(&request)).unwrap().entries;
        assert!(listed.iter().map(|(key, _)| key).eq(&names), "version {version}: the listing");
        block_on(store.close()).unwrap();
        assert_clean(&device, &format!("version {version}, written on"));
    }
}
