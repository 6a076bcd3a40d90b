//! Openings that are refused or accepted: foreign contents, newer formats, truncated devices, damaged superblocks.

use shoal_base::BLOCK_BYTES;
use shoal_base::checksum::crc32c;
use shoal_device_sim::{Image, SimDevice};
use shoal_engine::{Error, FormatOptions, Store, block_on};

use crate::common::{self, ByName, device, formatted, open, tiny, tiny_format};

const BLOCKS: u64 = 320;
/// First and second copies of the superblock's two slots.
const FIRST_COPIES: [u64; 2] = [0, 1];
const SECOND_COPIES: [u64; 2] = [32, 33];

/// A closed store with one object.
fn store() -> Image {
    let sim = formatted(BLOCKS, 3);
    let device = device(&sim);
    let store = open(&device, tiny()).unwrap();
    store.set(b"here", b"value".to_vec()).unwrap();
    block_on(store.close()).unwrap();
    drop(store);
    sim.image()
}

fn opens(image: &Image) -> Result<(), Error> {
    let sim = SimDevice::from_image(image.clone());
    let store = open(&device(&sim), tiny())?;
    let object = store.find(b"here")?.expect("the object is there");
    assert_eq!(object.value.to_vec(), b"value");
    Ok(())
}

/// Checks that the image is refused with this message, that formatting over it is refused, too, and that nothing changed.
fn refused(image: &Image, says: &str) {
    let sim = SimDevice::from_image(image.clone());
    let error = open(&device(&sim), tiny()).err().expect("this must not open");
    assert!(matches!(error, Error::Unopenable(_)), "{error:?}");
    assert!(error.to_string().contains(says), "{error}");
    assert_eq!(sim.image(), *image, "an open that was refused changed the device");
}

fn format_refused(image: &Image) {
    let sim = SimDevice::from_image(image.clone());
    let formatted = block_on(Store::format(&device(&sim), &tiny_format(BLOCKS), &common::environment(9)));
    assert!(matches!(formatted, Err(Error::NotBlank(_))), "{formatted:?}");
    assert_eq!(sim.image(), *image, "a format that was refused changed the device");
}

fn wiped(image: &Image, blocks: &[u64]) -> Image {
    let mut image = image.clone();
    blocks.iter().for_each(|&block| image.write(block, &[0; BLOCK_BYTES]));
    image
}

#[test]
fn an_empty_device_holds_no_store() {
    refused(&Image::new(BLOCKS), "no store");
}

#[test]
fn foreign_contents_are_left_alone() {
    let mut image = Image::new(BLOCKS);
    image.write(0, &[b'x'; BLOCK_BYTES]);
    refused(&image, "not a Shoal store");
    format_refused(&image);
    // Data after the first block only, as in many file systems.
    let mut image = Image::new(BLOCKS);
    image.write(1, &[b'x'; BLOCK_BYTES]);
    refused(&image, "not a Shoal store");
    format_refused(&image);
}

/// Seen by users: contents outside of the four blocks of superblocks were formatted over. A file may hold foreign data, as a block device
/// may; both take this path.
#[test]
fn foreign_contents_elsewhere_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    let mut headless = store();
    (0..34).for_each(|block| headless.write(block, &[0; BLOCK_BYTES]));
    let mut btrfs = Image::new(BLOCKS);
    btrfs.write(16, &std::array::from_fn(|at| *b"_BHRfS_M".get(at.wrapping_sub(64)).unwrap_or(&0)));
    let mut data = Image::new(BLOCKS);
    data.write(2, &[b'x'; BLOCK_BYTES]);
    for (image, says) in [(headless, "data"), (btrfs, "a btrfs file system"), (data, "byte 8192")] {
        std::fs::write(&path, image.to_bytes()).unwrap();
        let device = shoal_device::open(&path, &shoal_device::FileOptions::default()).unwrap();
        let format = |overwrite| {
            let options = FormatOptions { overwrite, ..tiny_format(BLOCKS) };
            block_on(Store::format(&device, &options, &common::environment(9)))
        };
        let refused = format(false);
        assert!(matches!(&refused, Err(Error::NotBlank(what)) if what.contains(says)), "{refused:?}");
        assert!(std::fs::read(&path).unwrap() == image.to_bytes(), "it was changed");
        format(true).unwrap();
        let again = format(false);
        assert!(matches!(&again, Err(Error::NotBlank(what)) if what.contains("a Shoal store")), "{again:?}");
        drop(open(&device, tiny()).unwrap());
    }
}

#[test]
fn a_store_is_not_formatted_again() {
    format_refused(&store());
}

#[test]
fn other_formats_are_refused_with_their_version() {
    for version in [1, 4, 7] {
        refuses_version(version);
    }
}

fn refuses_version(version: u32) {
    let mut image = store();
    for block in FIRST_COPIES.into_iter().chain(SECOND_COPIES) {
        let mut bytes = *image.block(block);
        if bytes[..7] != *b"SHOALSB" {
            continue;
        }
        bytes[8..12].copy_from_slice(&version.to_le_bytes());
        let crc = crc32c(&bytes[..BLOCK_BYTES - 4]);
        bytes[BLOCK_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
        image.write(block, &bytes);
    }
    refused(&image, &format!("format version {version}"));
    format_refused(&image);
}

#[test]
fn a_truncated_device_is_refused() {
    let image = store();
    for blocks in [BLOCKS - 1, 200, 40] {
        let short = Image::from_bytes(&image.to_bytes()[..blocks as usize * BLOCK_BYTES]);
        refused(&short, "truncated");
    }
    // A larger device is fine: it has grown.
    let mut bytes = image.to_bytes();
    bytes.resize(2 * BLOCKS as usize * BLOCK_BYTES, 0);
    opens(&Image::from_bytes(&bytes)).unwrap();
}

#[test]
fn second_copies_serve_when_the_first_are_gone() {
    let image = store();
    opens(&wiped(&image, &FIRST_COPIES)).unwrap();
    opens(&wiped(&image, &SECOND_COPIES)).unwrap();
    opens(&wiped(&image, &[0, 33])).unwrap();
    opens(&wiped(&image, &[1, 32])).unwrap();
    // Zeros at all places of superblocks mean an empty device, unless another block has contents.
    refused(&wiped(&image, &[0, 1, 32, 33]), "no store");
}

/// Both copies of the newest superblock: the previous one either does not know the promised records, or knows all of them.
#[test]
fn lost_newest_superblock_is_detected_or_harmless() {
    let image = store();
    for slot in 0..2 {
        match opens(&wiped(&image, &[FIRST_COPIES[slot], SECOND_COPIES[slot]])) {
            Ok(()) | Err(Error::Corrupt { .. }) => {}
            Err(error) => panic!("slot {slot}: {error}"),
        }
    }
}
