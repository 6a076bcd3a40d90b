//! The free list alone.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use crate::memory::free::{FreeList, List};

fn frames_of(free: &FreeList, list: List) -> Vec<u32> {
    let mut frames = vec![list.head];
    for _ in 1..list.count {
        frames.push(free.next(frames[frames.len() - 1]));
    }
    frames
}

#[test]
fn all_or_nothing_and_neighbours_stay_together() {
    let free = FreeList::new(8);
    let five = free.take(5).unwrap();
    assert_eq!(frames_of(&free, five), [0, 1, 2, 3, 4]);
    assert_eq!(free.touched(), 5);
    assert!(free.take(4).is_none());
    assert_eq!(free.used(), 5, "a failed attempt gives back what it took");
    free.give(five);
    assert_eq!(free.used(), 0);
    assert_eq!(free.take(5).map(|list| frames_of(&free, list)), Some(vec![0, 1, 2, 3, 4]));
    assert!(free.take(3).is_some());
    assert!(free.take(1).is_none());
}

#[test]
fn free_list_detects_aba() {
    let free = FreeList::new(3);
    let all = free.take(3).unwrap();
    free.give(all);
    let seen = free.top.load(Ordering::Relaxed);
    let first = free.take(1).unwrap();
    let second = free.take(1).unwrap();
    free.give(first);
    assert_eq!(free.top.load(Ordering::Relaxed) as u32, seen as u32, "the same frame is on top");
    for _ in 0..100 {
        assert!(
            free.pop_seen(seen).is_err(),
            "taking it would put frame {} on top, which is in use",
            second.head
        );
    }
    assert_eq!(free.used(), 1);
}

#[test]
fn no_frame_is_allocated_twice() {
    const FRAMES: u32 = 32;
    let rounds = if cfg!(miri) { 50 } else { 20_000 };
    let free = Arc::new(FreeList::new(FRAMES));
    let owned: Arc<Vec<AtomicU32>> = Arc::new((0..FRAMES).map(|_| AtomicU32::new(0)).collect());
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let (free, owned) = (free.clone(), owned.clone());
            thread::spawn(move || {
                for round in 0..rounds {
                    let Some(list) = free.take(1 + (round + thread) % 9) else { continue };
                    let frames = frames_of(&free, list);
                    for &frame in &frames {
                        assert_eq!(owned[frame as usize].swap(1, Ordering::AcqRel), 0);
                    }
                    for &frame in &frames {
                        owned[frame as usize].store(0, Ordering::Release);
                    }
                    free.give(list);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(free.used(), 0);
    let mut all = HashSet::new();
    while let Some(list) = free.take(1) {
        assert!(all.insert(list.head));
    }
    assert_eq!(all.len(), FRAMES as usize);
}
