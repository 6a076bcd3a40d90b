//! The image through a life of publishes: a space hands out and takes back, each "apply" publishes a delta, now
//! and then a snapshot is written; at any moment snapshot and deltas restore the published state (R10).

use shoal_base::{Run, SeededEntropy};
use shoal_space::image::{Delta, FreeImage, SnapshotReader};
use shoal_space::{Space, group_blocks_for};

const DEVICE: [u8; 16] = [7; 16];
const BLOCKS: u64 = 30_000;

/// The content of a device: a snapshot, and the deltas after it.
#[derive(Default)]
struct Stored {
    superblock: u64,
    pieces: Vec<Vec<u8>>,
    deltas: Vec<u8>,
}

impl Stored {
    fn open(&self) -> FreeImage {
        let empty = FreeImage::new(BLOCKS, group_blocks_for(BLOCKS));
        let mut reader = SnapshotReader::new(empty, DEVICE, self.superblock, self.pieces.len() as u32);
        for (sequence, piece) in self.pieces.iter().enumerate() {
            reader.piece(sequence as u32, piece).expect("valid");
        }
        let (mut image, lost) = reader.finish();
        assert_eq!(lost, []);
        let mut rest = self.deltas.as_slice();
        let mut superblock = self.superblock;
        while !rest.is_empty() {
            let (delta, bytes) = Delta::decode(rest, &DEVICE).expect("valid");
            superblock += 1;
            assert_eq!(delta.superblock(), superblock);
            image.apply(&delta).expect("valid");
            rest = &rest[bytes.next_multiple_of(4096)..];
        }
        image
    }
}

#[test]
fn snapshot_and_deltas_restore_published_state() {
    let random = SeededEntropy::new(3);
    let mut image = FreeImage::new(BLOCKS, group_blocks_for(BLOCKS));
    image.free(Run::new(100, BLOCKS as u32 - 100)).expect("valid");
    let space = Space::from_image(&image);
    let mut stored =
        Stored { pieces: image.snapshot(DEVICE, 0).map(|piece| piece.bytes).collect(), ..Stored::default() };
    let mut live: Vec<Run> = Vec::new();
    for superblock in 1..200 {
        // The allocator runs ahead: a run that is taken here and not logged never reaches the image.
        let unlogged: Vec<Run> = (0..5).filter_map(|_| space.allocate(1 + random.below(50) as u32)).collect();
        let taken: Vec<Run> = (0..20).filter_map(|_| space.allocate(1 + random.below(50) as u32)).collect();
        live.extend(&taken);
        let freed: Vec<Run> =
            (0..random.below(40)).filter_map(|_| live.pop_at(random.below(live.len() as u64))).collect();
        let delta = Delta::new(superblock, &taken, &freed).expect("valid");
        image.apply(&delta).expect("valid");
        let mut bytes = delta.encode(&DEVICE);
        bytes.resize(bytes.len().next_multiple_of(4096), 0);
        stored.deltas.extend(bytes);
        if superblock % 30 == 0 {
            let pieces = image.snapshot(DEVICE, superblock).map(|piece| piece.bytes).collect();
            stored = Stored { superblock, pieces, deltas: Vec::new() };
        }
        let opened = stored.open();
        assert_eq!(opened, image, "after superblock {superblock}");
        // Published: now the allocator may have it. A run that was never logged is free again.
        space.free_batch(&freed).expect("valid");
        space.free_batch(&unlogged).expect("valid");
        let reopened = Space::from_image(&opened);
        reopened.audit();
        assert_eq!(reopened.free_blocks(), space.free_blocks());
        assert!(live.iter().all(|&run| !reopened.is_free(run)));
    }
    assert!(live.len() > 100 && space.free_blocks() < BLOCKS, "the test did something");
}

trait PopAt {
    fn pop_at(&mut self, index: u64) -> Option<Run>;
}

impl PopAt for Vec<Run> {
    fn pop_at(&mut self, index: u64) -> Option<Run> {
        (!self.is_empty()).then(|| self.swap_remove(index as usize))
    }
}
