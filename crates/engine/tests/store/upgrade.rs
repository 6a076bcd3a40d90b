//! The first opening for writing upgrades a store of format version 2 to version 3 (`docs/operate/upgrade.md`), with an interruption at any
//! point; and the features in the superblock are respected.
//!
//! A program that knows only version 2 ignores superblocks of version 3. So while it could find a valid superblock of version 2 on the
//! device, the log may hold nothing that such a program cannot read: it would continue without it, silently.

use shoal_base::BLOCK_BYTES;
use shoal_base::checksum::crc32c;
use shoal_device::Device;
use shoal_device_sim::{Image, SimDevice};
use shoal_engine::{Error, block_on};

use crate::common::{ByName, assert_clean, open, tiny};
use crate::golden::{find_missing, image};

const COPIES: [u64; 4] = [0, 1, 32, 33];
/// The ring of the log in the images.
const LOG: std::ops::Range<u64> = 34..58;
/// Number of objects that are put after the upgrade.
const PUTS: u64 = 6;

fn field(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// The versions of all valid superblocks.
fn versions(image: &Image) -> Vec<u32> {
    let is_valid = |bytes: &&[u8; BLOCK_BYTES]| {
        bytes[..7] == *b"SHOALSB" && field(&bytes[..], BLOCK_BYTES - 4) == crc32c(&bytes[..BLOCK_BYTES - 4])
    };
    COPIES.iter().map(|&block| image.block(block)).filter(is_valid).map(|bytes| field(bytes, 8)).collect()
}

fn name(put: u64) -> Vec<u8> {
    format!("after-{put}").into_bytes()
}

/// Returns the problem of the store after a crash when `acknowledged` objects had been put.
fn wrong(image: Image, acknowledged: u64) -> Result<(), String> {
    let device = Device::new(SimDevice::from_image(image));
    let store = open(&device, tiny()).map_err(|error| format!("did not open: {error}"))?;
    find_missing(&store)?;
    for put in 0..PUTS {
        let found = store.find(name(put)).map_err(|it| it.to_string())?;
        let is_right = found.as_ref().is_some_and(|object| object.value.to_vec() == name(put));
        if found.is_none() == (put < acknowledged) || found.is_some() && !is_right {
            return match found {
                // In flight: it may exist.
                Some(_) if put == acknowledged && is_right => Ok(()),
                found => Err(format!("{acknowledged} were put, and {put} is {:?}", found.map(|it| it.info))),
            };
        }
    }
    block_on(store.close()).map_err(|error| error.to_string())
}

/// All of it at every write, and once more with an interruption of the upgrade after the crash.
#[test]
fn every_crash_of_an_upgrade_recovers() {
    let old = image(2);
    let sim = SimDevice::from_image(old.clone());
    let device = Device::new(sim.clone());
    let store = open(&device, tiny()).unwrap();
    sim.mark(0);
    for put in 0..PUTS {
        store.set(name(put), name(put)).unwrap();
        sim.mark(put + 1);
    }
    block_on(store.close()).unwrap();
    let (mut states, mut halves, mut again) = (0, 0, 0);
    let visible_to_old = |image: &Image| {
        let found = versions(image);
        let is_visible = found.contains(&2);
        assert!(!found.is_empty(), "no valid superblock");
        if is_visible {
            let changed = LOG.filter(|&block| image.block(block) != old.block(block)).collect::<Vec<_>>();
            assert!(changed.is_empty(), "version 2 would start, and not see what is in blocks {changed:?}");
        }
        is_visible && found.contains(&3)
    };
    sim.history().for_each_crash_state(64, 1, |point, image| {
        states += 1;
        let is_half = visible_to_old(&image);
        halves += u64::from(is_half);
        let acknowledged = point.marks.last().copied().unwrap_or(0);
        wrong(image.clone(), acknowledged).unwrap_or_else(|it| panic!("state {}: {it}", point.id));
        if !is_half {
            return;
        }
        let second = SimDevice::from_image(image);
        drop(open(&Device::new(second.clone()), tiny()).unwrap());
        second.history().for_each_crash_state(16, 2, |inner, image| {
            again += 1;
            visible_to_old(&image);
            wrong(image, 0).unwrap_or_else(|it| panic!("state {} then {}: {it}", point.id, inner.id));
        });
    });
    assert!(
        states > 150 && halves > 10 && again > 200,
        "{states} states, {halves} in between, {again} again"
    );
}

/// A check without repair does not count as an opening for writing.
#[test]
fn a_check_does_not_upgrade() {
    let old = image(2);
    let sim = SimDevice::from_image(old.clone());
    assert_clean(&Device::new(sim.clone()), "version 2");
    assert_eq!(sim.image(), old);
}

/// The image of version 3 with its newest superblock changed.
fn changed(change: impl Fn(&mut [u8; BLOCK_BYTES])) -> Image {
    let mut image = image(3);
    for block in COPIES {
        let mut bytes = *image.block(block);
        change(&mut bytes);
        let crc = crc32c(&bytes[..BLOCK_BYTES - 4]);
        bytes[BLOCK_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
        image.write(block, &bytes);
    }
    image
}

fn opened(image: &Image) -> Result<(), Error> {
    let sim = SimDevice::from_image(image.clone());
    let store = open(&Device::new(sim.clone()), tiny());
    if store.is_err() {
        assert_eq!(sim.image(), *image, "a refused opening changed the device");
    }
    store.map(|store| find_missing(&store).unwrap())
}

#[test]
fn features_are_heeded_by_class() {
    let flag = |class: usize, bit: u8| changed(|bytes| bytes[164 + 4 * class] |= 1 << bit);
    opened(&flag(0, 3)).unwrap();
    let read_only = flag(1, 2);
    let refused = opened(&read_only).unwrap_err().to_string();
    assert!(refused.contains("read but not write (bit 2)"), "{refused}");
    assert_clean(&Device::new(SimDevice::from_image(read_only)), "it can be read");
    let refused = opened(&flag(2, 7)).unwrap_err().to_string();
    assert!(refused.contains("does not have (bit 7)"), "{refused}");
    (0..5).for_each(|bit| opened(&flag(2, bit)).unwrap());
}

/// Unknown flags stay set.
#[test]
fn compatible_flags_are_kept() {
    let sim = SimDevice::from_image(changed(|bytes| bytes[164] |= 8));
    let store = open(&Device::new(sim.clone()), tiny()).unwrap();
    block_on(store.close()).unwrap();
    assert!(COPIES.iter().all(|&block| sim.image().block(block)[164] == 8));
}

/// A newer superblock that this program does not know is not passed over for an older one that it knows.
#[test]
fn a_newer_superblock_of_another_version_counts() {
    let newest = image(3);
    let number = |block: u64| u64::from_le_bytes(newest.block(block)[32..40].try_into().unwrap());
    let slot = u64::from(number(1) > number(0));
    let of_version = |slot: u64, version: u32| {
        let mut image = newest.clone();
        for block in [slot, slot + 32] {
            let mut bytes = *image.block(block);
            bytes[8..12].copy_from_slice(&version.to_le_bytes());
            let crc = crc32c(&bytes[..BLOCK_BYTES - 4]);
            bytes[BLOCK_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
            image.write(block, &bytes);
        }
        image
    };
    let refused = opened(&of_version(slot, 4)).unwrap_err().to_string();
    assert!(refused.contains("format version 4") && refused.contains("a newer one"), "{refused}");
    opened(&of_version(1 - slot, 4)).unwrap();
}
