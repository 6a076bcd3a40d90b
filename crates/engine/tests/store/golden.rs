//! Stores written by earlier programs still open with the same bytes (T14 of `docs/reliability.md`): one image for each version of the
//! formats, in `golden/`, and one with layers. Stores of other versions are refused: `format_refusal.rs`.
//!
//! An image is a list of blocks that are not zero: number (8 bytes, little-endian), then 4,096 bytes. A change of a format needs a new
//! version and new images: `cargo test -p shoal-engine --test store golden::write -- --ignored`.

use std::path::PathBuf;
use std::time::Duration;

use shoal_base::BLOCK_BYTES;
use shoal_device::Device;
use shoal_device_sim::{Image, SimDevice};
use shoal_engine::{Expiry, ListRequest, Metadata, PutOptions, Store, block_on};
use shoal_testkit::Value;

use crate::common::{
    ByName, assert_clean, formatted, key, name_in_image as name_of, open, tiny, tiny_with_layers,
};

pub(crate) const BLOCKS: u64 = 192;
/// An absolute deadline: in the year 2033.
const AT_NS: u64 = 2_000_000_000_000_000_000;
/// The oldest version that this program opens.
const OLDEST: u32 = 2;
/// The version that this program writes.
const NEWEST: u32 = 3;
/// The images, each with the version of its format.
const IMAGES: [(&str, u32); 3] = [("v2", 2), ("v3", 3), (LAYERS, 3)];
/// A store whose trees have layers, written without compactions.
const LAYERS: &str = "v3-layers";
const SIZES: [usize; 6] = [0, 30, 95, 700, 1_800, 5_000];

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/store/golden/{name}.blocks"))
}

/// The object `which` of the images; `None` if it was deleted.
fn held(which: u64) -> Option<(Value, Metadata)> {
    let seed = if which.is_multiple_of(5) { 100 + which } else { which };
    let bytes = if which == 20 { 70_000 } else { SIZES[((which + seed / 100) % 6) as usize] };
    let user = if which % 7 == 3 { vec![("colour".into(), vec![b'c'; 40].into())] } else { Vec::new() };
    let metadata = Metadata {
        content_type: if which.is_multiple_of(2) { "text/plain".into() } else { String::new() },
        user,
        ..Metadata::default()
    };
    (which != 4 && which != 9).then_some((Value { key: which, seed, bytes }, metadata))
}

/// The image of `version`.
pub(crate) fn image(version: u32) -> Image {
    image_of(&format!("v{version}"))
}

fn image_of(name: &str) -> Image {
    let bytes = std::fs::read(path(name)).unwrap();
    let mut image = Image::new(BLOCKS);
    for entry in bytes.chunks(8 + BLOCK_BYTES) {
        let block = u64::from_le_bytes(entry[..8].try_into().unwrap());
        image.write(block, entry[8..].try_into().unwrap());
    }
    image
}

/// Finds an object of the images that is missing from `store` or differs.
pub(crate) fn find_missing(store: &Store) -> Result<(), String> {
    for which in 0..21 {
        let found = store.find(name_of(which)).map_err(|error| format!("object {which}: {error}"))?;
        match (found, held(which)) {
            (None, None) => {}
            (Some(object), Some((value, metadata))) => {
                value.check(&object.value.to_vec()).map_err(|wrong| format!("object {which}: {wrong}"))?;
                if object.info.metadata != metadata {
                    return Err(format!("object {which}: {:?}", object.info));
                }
            }
            (found, _) => return Err(format!("object {which}: {:?}", found.map(|object| object.info))),
        }
    }
    Ok(())
}

/// Deadlines of both kinds: the image of version 2 has none.
fn expiry(which: u64) -> Expiry {
    match which {
        1 => Expiry::After(Duration::from_secs(1_000)),
        2 => Expiry::At(AT_NS),
        _ => Expiry::Never,
    }
}

fn put(store: &Store, which: u64, value: Value, metadata: Metadata) {
    let options = PutOptions { metadata, expiry: expiry(which), ..PutOptions::default() };
    store.set_with(name_of(which), value.to_vec(), options).unwrap();
}

/// Writes the missing images of the newest version: part of each in the trees, part in the log, as a kill leaves it.
#[test]
#[ignore = "writes images that the other test reads"]
fn write() {
    for (name, _) in IMAGES.iter().filter(|&&(name, version)| version == NEWEST && !path(name).exists()) {
        let sim = formatted(BLOCKS, 2);
        let device = Device::new(sim.clone());
        let mut options = tiny();
        if *name == LAYERS {
            options = tiny_with_layers();
            options.tuning.merge_permille = 1_000_000;
        }
        let mut store = open(&device, options.clone()).unwrap();
        for which in 0..21 {
            // Overwritten or deleted below, or permanent.
            let (value, metadata) =
                held(which).unwrap_or((Value { key: which, seed: 7, bytes: 60 }, Metadata::default()));
            put(&store, which, value, metadata);
            if *name == LAYERS && which % 4 == 3 {
                // A close applies the log.
                block_on(store.close()).unwrap();
                store = open(&device, options.clone()).unwrap();
            }
        }
        for which in [4, 9] {
            store.remove(name_of(which)).unwrap();
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
        std::fs::write(path(name), bytes).unwrap();
    }
}

/// Each twice: after the first opening an image of an older version has the newest one.
#[test]
fn images_of_all_versions_open() {
    assert!((OLDEST..=NEWEST).all(|version| IMAGES.iter().any(|image| image.1 == version)));
    for (image, version) in IMAGES {
        let device = Device::new(SimDevice::from_image(image_of(image)));
        for opening in 1..=2 {
            let what = format!("image {image}, opening {opening}");
            assert_clean(&device, &what);
            let store = open(&device, tiny()).unwrap();
            assert!(opening > 1 || store.stat().layers >= 4 || image != LAYERS, "{what}: layers");
            find_missing(&store).unwrap_or_else(|missing| panic!("{what}: {missing}"));
            let mut names: Vec<_> = (0..21).filter(|&which| held(which).is_some()).map(name_of).collect();
            names.sort();
            let request = ListRequest { bucket: "default".into(), limit: 100, ..ListRequest::default() };
            let listed = block_on(store.list(&request)).unwrap().entries;
            assert!(listed.iter().map(|(key, _)| key).eq(&names), "{what}: the listing");
            let deadline = |which| {
                block_on(store.head(&key(name_of(which)))).unwrap().unwrap().expiry.filter(|_| version > 2)
            };
            // The clocks are those of another boot, and show the stored times.
            let relative = deadline(1).map(|it| (it.is_relative(), it.left_ns));
            let absolute = deadline(2).map(|it| (it.is_relative(), it.at_ns));
            let expected = [(true, 1_000_000_000_000), (false, AT_NS)].map(|it| (version > 2).then_some(it));
            assert_eq!([relative, absolute], expected, "{what}: deadlines");
            block_on(store.close()).unwrap();
        }
        assert_clean(&device, &format!("image {image}, written on"));
    }
}
