//! Several threads on one [`Space`]: no block is ever handed to two of them, and nothing is lost.

use std::sync::atomic::{AtomicBool, Ordering};

use shoal_base::{Run, SeededEntropy};
use shoal_space::Space;

const BLOCKS: u64 = 20_000;
const THREADS: u64 = 4;
const STEPS: u64 = 20_000;

/// Marks a run as owned by the caller or by no one; returns true if all of it was the opposite before.
fn swap(owned: &[AtomicBool], run: Run, is_owned: bool) -> bool {
    let blocks = &owned[run.block as usize..run.end() as usize];
    // Relaxed is enough: the space's lock orders the free by the old owner before the allocation by the new
    // one.
    blocks.iter().all(|block| block.swap(is_owned, Ordering::Relaxed) != is_owned)
}

fn work(space: &Space, owned: &[AtomicBool], seed: u64) {
    let random = SeededEntropy::new(seed);
    let mut live: Vec<Run> = Vec::new();
    for _ in 0..STEPS {
        let before = live.len();
        match random.below(8) {
            0..=2 => live.extend(space.allocate(1 + random.below(40) as u32)),
            3 => live.extend(space.allocate_runs(1 + random.below(200) as u32, 4).into_iter().flatten()),
            4 => live.extend(space.allocate_at_most(16)),
            5 if live.len() > 3 => {
                let batch = live.split_off(live.len() - 3);
                assert!(batch.iter().all(|&run| swap(owned, run, false)));
                space.free_batch(&batch).expect("it was ours");
                continue;
            }
            _ if !live.is_empty() => {
                let run = live.swap_remove(random.below(live.len() as u64) as usize);
                assert!(swap(owned, run, false), "{run} was lost");
                space.free(run).expect("it was ours");
                continue;
            }
            _ => {}
        }
        for &run in &live[before..] {
            assert!(swap(owned, run, true), "{run} has two owners");
        }
    }
    for run in live {
        assert!(swap(owned, run, false), "{run} was lost");
        space.free(run).expect("it was ours");
    }
}

#[test]
fn no_block_has_two_owners() {
    let space = &Space::new(BLOCKS, 64);
    space.free(Run::new(0, BLOCKS as u32)).expect("it was ours");
    let owned: Vec<AtomicBool> = (0..BLOCKS).map(|_| AtomicBool::new(false)).collect();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let owned = &owned;
            scope.spawn(move || work(space, owned, thread));
        }
    });
    space.audit();
    let mut runs = Vec::new();
    space.for_each_run(&mut |run| runs.push(run));
    assert_eq!(runs, [Run::new(0, BLOCKS as u32)], "all is free again and merged");
}
