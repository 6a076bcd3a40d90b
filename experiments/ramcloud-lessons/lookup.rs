//! Finding things: the tablet of a key, a server's session, and memory before it is needed.

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use shoal_base::slot::{SLOT_COUNT, hash_slot};

use super::{Pair, compare};

/// Servers of the cluster whose sessions are looked up.
const SERVERS: u16 = 16;
/// Keys that are asked for in turn.
const KEYS: usize = 64;

/// A tablet as a server knows it.
#[derive(Clone)]
struct Tablet {
    slots: (u16, u16),
    reads: Arc<AtomicU64>,
    address: Arc<str>,
}

fn tablets() -> Vec<Tablet> {
    let share = SLOT_COUNT / SERVERS;
    (0..SERVERS)
        .map(|number| Tablet {
            slots: (number * share, (number + 1) * share - 1),
            reads: Arc::default(),
            address: format!("basic+tcp:host=server-{number}.example.net,port=12246").into(),
        })
        .collect()
}

fn keys() -> Vec<String> {
    (0..KEYS).map(|number| format!("user-{number}")).collect()
}

fn position_of(tablets: &[Tablet], slot: u16) -> usize {
    tablets.partition_point(|tablet| tablet.slots.1 < slot)
}

pub(super) fn tablet(time: Duration) -> Result<Pair> {
    let (tablets, keys) = (tablets(), keys());
    let old = || {
        for key in black_box(&keys) {
            let slot = hash_slot(key.as_bytes());
            // It exists: a copy of it, as RAMCloud's was.
            let Some(found) = tablets.get(position_of(&tablets, slot)).cloned() else { continue };
            if !(found.slots.0..=found.slots.1).contains(&slot) {
                continue;
            }
            // The read would be here; then the same tablet again, to count it.
            let slot = hash_slot(black_box(key).as_bytes());
            if let Some(again) = tablets.get(position_of(&tablets, slot)) {
                again.reads.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    let new = || {
        for key in black_box(&keys) {
            let slot = hash_slot(key.as_bytes());
            if let Some(found) = tablets.get(position_of(&tablets, slot))
                && (found.slots.0..=found.slots.1).contains(&slot)
            {
                found.reads.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    Ok(compare(time, KEYS, old, new))
}

/// A session, and those by address.
type Sessions = HashMap<String, Arc<u64>>;

fn sessions(tablets: &[Tablet]) -> Sessions {
    (0..).zip(tablets).map(|(number, tablet)| (tablet.address.to_string(), Arc::new(number))).collect()
}

pub(super) fn address(time: Duration) -> Result<Pair> {
    let (tablets, keys) = (tablets(), keys());
    let sessions = sessions(&tablets);
    let slots: Vec<u16> = keys.iter().map(|key| hash_slot(key.as_bytes())).collect();
    let found = |slot: &u16| tablets.get(position_of(&tablets, *slot));
    let old = || {
        for tablet in black_box(&slots).iter().filter_map(found) {
            let address = String::from(&*tablet.address);
            black_box(sessions.get(&address).cloned());
        }
    };
    let new = || {
        for tablet in black_box(&slots).iter().filter_map(found) {
            black_box(sessions.get(&*tablet.address).cloned());
        }
    };
    Ok(compare(time, KEYS, old, new))
}

pub(super) fn session(time: Duration) -> Result<Pair> {
    let (tablets, keys) = (tablets(), keys());
    let sessions = sessions(&tablets);
    let cached: Vec<(Tablet, Arc<u64>)> = tablets
        .iter()
        .filter_map(|tablet| Some((tablet.clone(), sessions.get(&*tablet.address)?.clone())))
        .collect();
    let slots: Vec<u16> = keys.iter().map(|key| hash_slot(key.as_bytes())).collect();
    let old = || {
        for slot in black_box(&slots) {
            if let Some(tablet) = tablets.get(position_of(&tablets, *slot)) {
                black_box(sessions.get(&*tablet.address).cloned());
            }
        }
    };
    let new = || {
        for slot in black_box(&slots) {
            let at = cached.partition_point(|(tablet, _)| tablet.slots.1 < *slot);
            if let Some((_, session)) = cached.get(at) {
                black_box(session.clone());
            }
        }
    };
    Ok(compare(time, KEYS, old, new))
}

/// A batch of requests, each of which follows three addresses one after the other, as request, tree and value do: first all of one
/// request, or the first of all requests, then the second of all. (A load instead of the processor's prefetch instruction, which safe
/// code does not have; it takes a register, and it brings the same.)
pub(super) fn prefetch(time: Duration) -> Result<Pair> {
    const BATCH: usize = 16;
    const STEPS: usize = 3;
    /// 256 MiB of words, a cache line apart.
    const LINES: usize = 4 << 20;
    let words: Vec<[u64; 8]> =
        (0..LINES as u64).map(|line| [line.wrapping_mul(0x9E37_79B9_7F4A_7C15); 8]).collect();
    let follow = |from: u64| words.get(from as usize % LINES).map_or(0, |line| line[0] >> 20);
    let seeds = std::cell::Cell::new(1_u64);
    let batch = || -> [u64; BATCH] {
        let seed = seeds.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        seeds.set(seed);
        std::array::from_fn(|index| (seed >> 16).wrapping_add(index as u64 * 0x0005_DEEC_E66D))
    };
    let old = || {
        // The server's work between two requests is more than a processor sees ahead: the next one waits for this one's end.
        let mut last = 0;
        for request in batch() {
            let mut at = request ^ (last & 1);
            for _ in 0..STEPS {
                at = follow(at);
            }
            last = black_box(at);
        }
    };
    let new = || {
        let mut places = batch();
        for _ in 0..STEPS {
            for place in &mut places {
                *place = follow(*place);
            }
        }
        let mut last = 0;
        for place in places {
            last = black_box(place ^ (last & 1));
        }
    };
    Ok(compare(time, BATCH, old, new))
}
