//! Values whose places contradict their lengths, and reads while every frame of the cache is in use.

use std::sync::Arc;

use proptest::prelude::*;
use shoal_base::checksum::crc32c;
use shoal_base::task::block_on;
use shoal_device::MemDevice;
use shoal_pool::PoolOptions;

use super::*;
use crate::entry::Meta;
use crate::verify::read_direct;

/// Frames of a cache in which a value of two units does not bypass the pool.
const FRAMES: usize = 18 * 64;
const BLOCKS: u64 = FRAMES as u64 + 64;
const VERSION: Lsn = Lsn(7);

/// The entry of an object without metadata.
fn entry(value_bytes: u64, home: Home) -> Entry {
    Entry { modified_ns: 1, end: None, value_bytes, meta: Meta::Inline(SmallVec::new()), home }
}

fn filled() -> (Device, Pool, Vec<u8>) {
    let device = Device::new(Arc::new(MemDevice::new(BLOCKS)));
    let bytes: Vec<u8> = (0..BLOCKS as usize * BLOCK_BYTES).map(|at| (at / 7 + at / 4096) as u8).collect();
    for (block, bytes) in (0..).zip(bytes.chunks(BLOCK_BYTES)) {
        block_on(device.write(block, IoBuf::copied_from(bytes))).ok().unwrap();
    }
    let pool = Pool::new(device.clone(), PoolOptions::new(FRAMES)).unwrap();
    (device, pool, bytes)
}

/// The value in the blocks from `first` on.
fn extents(bytes: &[u8], first: u64, length: usize) -> Entry {
    let start = first as usize * BLOCK_BYTES;
    let checksums = bytes[start..start + length].chunks(VALUE_UNIT_BYTES).map(crc32c).collect();
    let runs = SmallVec::from_slice(&[Run::new(first, length.div_ceil(BLOCK_BYTES) as u32)]);
    entry(length as u64, Home::Extents { offset: 0, runs, checksums })
}

fn corrupt<T>(result: Result<T>) -> (String, u64) {
    match result {
        Err(Error::Corrupt { what, block }) => (what, block),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it was understood"),
    }
}

/// Manifests with the right checksum that do not fit the length of the value.
#[test]
fn runs_that_do_not_fit_the_length_are_damage() {
    let (device, pool, _) = filled();
    let find = |place: u64, runs: &[Run], units: usize| {
        let (mut bytes, checksum) = Manifest { runs: runs.to_vec(), checksums: vec![0; units] }.encode();
        let length = bytes.len() as u32;
        bytes.resize(BLOCK_BYTES, 0);
        block_on(device.write(place, IoBuf::copied_from(&bytes))).ok().unwrap();
        let runs = SmallVec::from_slice(&[Run::new(place, 1)]);
        let entry = entry(400_000, Home::Manifest { runs, bytes: length, checksum });
        block_on(Located::find(&device, &pool, &entry, Lsn(place)))
    };
    let wrong = |block| ("the runs of a value do not fit its length".to_owned(), block);
    assert!(find(1, &[Run::new(20, 98)], 7).is_ok());
    assert_eq!(corrupt(find(2, &[Run::new(20, 97)], 7)), wrong(20), "too few blocks");
    assert_eq!(corrupt(find(3, &[Run::new(21, 98)], 6)), wrong(21), "too few checksums");
    assert_eq!(corrupt(find(4, &[], 7)), wrong(0), "no runs at all");
}

/// A second protection: a request for a unit that does not exist never gets bytes of other data.
#[test]
fn a_unit_outside_of_its_runs_is_damage() {
    let located = |blocks, units| Located {
        version: VERSION,
        stored: 200_000,
        offset: 0,
        runs: SmallVec::from_slice(&[Run::new(30, blocks)]),
        checksums: SmallVec::from_vec(vec![0; units]),
        pieces: Vec::new(),
    };
    let outside = ("a value's unit is outside its runs".to_owned(), 30);
    assert!(located(49, 4).unit(3).is_ok());
    assert_eq!(corrupt(located(49, 4).unit(4)), outside, "behind the last one");
    assert_eq!(corrupt(located(49, 4).unit(u64::MAX)), outside);
    assert_eq!(corrupt(located(16, 4).unit(2)), outside, "the runs end before it");
}

/// Reads of values need no frame: without a free frame they go past the cache.
#[test]
fn values_are_read_past_a_cache_that_is_in_use() {
    let (device, pool, bytes) = filled();
    let held: Vec<Pinned> = (0..FRAMES as u64 / 16)
        .map(|unit| {
            let entry = extents(&bytes, unit * 16, VALUE_UNIT_BYTES);
            let located = block_on(Located::find(&device, &pool, &entry, VERSION)).unwrap();
            let UnitPlace::Whole(unit) = located.unit(0).unwrap() else { panic!("it has one run") };
            block_on(pool.fetch(unit, Hint::Lookup)).unwrap()
        })
        .collect();
    assert_eq!(held.len() * 16, FRAMES, "every frame is pinned");
    for length in [10_000, 70_000] {
        let mut entry = extents(&bytes, FRAMES as u64, length);
        let read_it = |entry: &Entry| {
            let located = block_on(Located::find(&device, &pool, entry, VERSION)).unwrap();
            block_on(read(&device, &pool, &located, 5, length as u64 - 5, Hint::Lookup))
        };
        let start = FRAMES * BLOCK_BYTES;
        assert_eq!(read_it(&entry).unwrap().to_vec(), bytes[start + 5..start + length], "{length}");
        let Home::Extents { checksums, .. } = &mut entry.home else { panic!("extents") };
        checksums[0] ^= 1;
        assert_eq!(corrupt(read_it(&entry)).1, FRAMES as u64, "{length}: and they are verified");
    }
}

/// With room in the cache, the cache reports the damage.
#[test]
fn damage_of_one_of_several_units_is_said() {
    let (device, pool, bytes) = filled();
    let mut entry = extents(&bytes, 64, 70_000);
    let Home::Extents { checksums, .. } = &mut entry.home else { panic!("extents") };
    checksums[1] ^= 1;
    let located = block_on(Located::find(&device, &pool, &entry, VERSION)).unwrap();
    let damaged = block_on(read(&device, &pool, &located, 0, 70_000, Hint::Lookup));
    assert_eq!(corrupt(damaged), ("a checksum does not match".to_owned(), 80));
}

#[test]
fn failures_of_the_cache_mean_something_to_the_caller() {
    let busy = pool_error(PoolError::Exhausted { frames: 8 });
    assert!(matches!(busy, Error::Busy("every frame of the cache is in use")), "{busy}");
    let setup = pool_error(PoolError::Setup { frames: 8, message: "no memory".into() });
    assert!(matches!(&setup, Error::Unopenable(why) if why == "no memory"), "{setup}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// A value that was joined from parts of any lengths, in any runs: each range of it has the bytes of the parts, whichever way they are
    /// read, and a damaged checksum is met.
    #[test]
    fn ranges_of_joined_values_have_the_bytes_of_their_parts(
        parts in proptest::collection::vec((0..200_000_u64, 0..3_u16, 1..4_usize), 1..8),
        ranges in proptest::collection::vec((0..1_000_000_u64, 0..300_000_u64), 12),
        front in 0..300_u32,
        hint in prop_oneof![Just(Hint::Lookup), Just(Hint::Scan)],
    ) {
        let (device, pool, bytes) = filled();
        let (mut manifest, mut expected, mut next) = (JoinedManifest::default(), Vec::new(), 1);
        for (number, (length, offset, splits)) in (1..).zip([(u64::from(front), 0, 1)].into_iter().chain(parts)) {
            // Parts are in the wrong order on the device, and a run may end within a unit.
            let offset = if length == 0 { 0 } else { offset * 100 };
            let blocks = blocks_for(u64::from(offset) + length);
            let mut runs = Vec::new();
            for split in 1..=splits {
                let rest = blocks - runs.iter().map(|run: &Run| u64::from(run.blocks)).sum::<u64>();
                let taken = if split == splits { rest } else { rest / 2 };
                if taken > 0 {
                    runs.push(Run::new(next, taken as u32));
                    next += taken + 1;
                }
            }
            let all: Vec<u8> = runs.iter().flat_map(|run| {
                bytes[run.block as usize * BLOCK_BYTES..run.end() as usize * BLOCK_BYTES].to_vec()
            }).collect();
            let stored = &all[usize::from(offset)..usize::from(offset) + length as usize];
            let checksums: Vec<u32> = stored.chunks(VALUE_UNIT_BYTES).map(crc32c).collect();
            manifest.push((number - 1, b"note"), (length, offset), &runs, &checksums);
            expected.extend_from_slice(stored);
        }
        manifest.check().unwrap();
        prop_assume!(!expected.is_empty());
        let (mut encoded, checksum) = manifest.encode();
        let (place, length) = (FRAMES as u64 + 60, encoded.len() as u32);
        encoded.resize(BLOCK_BYTES, 0);
        block_on(device.write(place, IoBuf::copied_from(&encoded))).ok().unwrap();
        let home = Home::Manifest { runs: SmallVec::from_slice(&[Run::new(place, 1)]), bytes: length, checksum };
        let mut entry = entry(expected.len() as u64 - u64::from(front), home);
        entry.meta = Meta::InFront { bytes: front, summary: SmallVec::new() };
        let located = block_on(Located::find(&device, &pool, &entry, VERSION)).unwrap();
        prop_assert!(located.is_joined() && located.matches(&expected));
        prop_assert_eq!(block_on(read_joined(&device, &pool, &entry, VERSION)).unwrap(), Some(manifest));
        for (first, wanted) in ranges {
            let first = first.min(expected.len() as u64);
            let wanted = wanted.min(expected.len() as u64 - first);
            let found = block_on(read(&device, &pool, &located, first, wanted, hint)).unwrap();
            prop_assert_eq!(found.to_vec(), &expected[first as usize..(first + wanted) as usize]);
        }
        let direct = block_on(read_direct(&device, &pool, BLOCKS, &entry, VERSION)).unwrap();
        prop_assert_eq!(direct, expected);
    }
}
