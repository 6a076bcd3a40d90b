//! Changes of the free space on the device that contradict the published image.

use shoal_base::Run;
use shoal_image::space_image::{append, load};
use shoal_image::superblock::Superblock;

use crate::testing::fixtures::Fixture;
use crate::{Error, block_on};

/// The image follows from the published trees: a change that contradicts it fails the publish, and the error names a block.
#[test]
fn a_change_that_does_not_follow_is_refused() {
    let mut made = Fixture::new();
    made.publish();
    let (free, used) = (Run::new(made.next, 2), Run::new(made.next - 1, 1));
    let refused = |superblock: &Superblock, taken: &[Run], freed: &[Run]| match block_on(append(
        &made.device,
        superblock,
        taken,
        freed,
    )) {
        Err(Error::Corrupt { what, block }) => (what, block),
        other => panic!("{other:?}"),
    };
    let mut superblock = Superblock { number: made.superblock.number + 1, ..made.superblock.clone() };
    let what = |error: &str| format!("the space image: {error}");
    let twice = refused(&superblock, &[free, free], &[]);
    assert_eq!(twice, (what(&format!("run {free} cannot be taken: {free} is not free")), free.block));
    let twice = refused(&superblock, &[], &[used, used]);
    assert_eq!(twice, (what(&format!("run {used} cannot be freed: {used} is free already")), used.block));
    // The area is full: the image is read back, and the change is compared with it.
    superblock.space.used_blocks = superblock.layout.space_area_blocks;
    let not_free = refused(&superblock, &[used], &[]);
    assert_eq!(not_free.1, used.block);
    assert!(not_free.0.starts_with("the space image: "), "{not_free:?}");
    let place = block_on(append(&made.device, &superblock, &[free], &[])).unwrap();
    assert_eq!((place.area, place.deltas), (made.superblock.space.area ^ 1, 0), "a new snapshot");
}

/// Deltas of other superblocks, with valid checksums.
#[test]
fn a_delta_of_another_superblock_is_damage() {
    let mut made = Fixture::new();
    made.publish();
    let free = Run::new(made.next, 2);
    let newest = made.superblock.clone();
    for (number, is_right) in [(newest.number, false), (newest.number + 1, true), (newest.number + 2, false)]
    {
        let mut superblock = Superblock { number, ..newest.clone() };
        superblock.space = block_on(append(&made.device, &superblock, &[free], &[])).unwrap();
        superblock.number = newest.number + 1;
        let loaded = block_on(load(&made.device, &superblock)).map(|image| image.free_blocks());
        match loaded {
            Ok(blocks) if is_right => assert_eq!(blocks, newest.device_blocks - made.next - 2),
            Err(Error::Corrupt { what, .. }) if !is_right => {
                assert_eq!(what, "the space image: it belongs to another superblock");
            }
            other => panic!("{number}: {other:?}"),
        }
    }
}
