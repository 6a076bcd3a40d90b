//! The places of units: a hash table of chains through the slots.
//!
//! A hit follows a chain without a lock; a chain changes only under the lock of its shard. Slots are never freed, so a
//! reader that follows a chain while it changes sees some slot, perhaps of another chain. It may miss the unit (then it
//! looks again under the lock), but it never returns a wrong one: it pins first and compares again.
//!
//! Invariant: a slot is in the chain of the block that it names from before the start of its load until after its
//! frames were claimed, and in no other. The thread that claims the frames removes the slot before it hands the frames
//! on.

pub(crate) mod load;

use std::sync::Arc;

use shoal_base::sync::atomic::{AtomicU32, Ordering};
use shoal_base::sync::{Mutex, MutexGuard, stripes};

use crate::memory::frame::Frames;
use crate::memory::free::NONE;
use crate::resident::slot::Slot;
use crate::unit::Unit;
use load::Load;

/// Locks of the table. Many more than threads, so that two misses hardly ever meet.
const SHARDS: usize = stripes(128);

/// Chains for each slot: twice as many keep most chains at one slot.
const CHAINS_PER_SLOT: usize = 2;

/// Slots that are followed without a lock; beyond that the chain may have changed meanwhile.
const CHAIN_MAX: usize = 64;

pub(crate) struct Table {
    slots: Arc<[Slot]>,
    chains: Box<[AtomicU32]>,
    shift: u32,
    shards: Box<[Shard]>,
}

#[repr(align(64))]
#[derive(Default)]
struct Shard(Mutex<InFlight>);

/// The image of a page that changes in place, in a side buffer.
pub(crate) struct Image {
    pub(crate) block: u64,
    pub(crate) bytes: Arc<Frames>,
    /// True if its write failed, and none is in flight.
    pub(crate) failed: bool,
}

/// Units in flight in the chains of one shard.
#[derive(Default)]
pub(crate) struct InFlight {
    /// Units that are being read.
    pub(crate) loads: Vec<Arc<Load>>,
    /// Images in side buffers.
    pub(crate) images: Vec<Image>,
}

impl InFlight {
    /// Returns true if the unit is being read.
    pub(crate) fn is_loading(&self, unit: &Unit) -> bool {
        self.loads.iter().any(|load| load.unit == *unit)
    }
}

/// The lock of one shard.
pub(crate) type ShardGuard<'a> = MutexGuard<'a, InFlight>;

impl Table {
    pub(crate) fn new(slots: Arc<[Slot]>) -> Self {
        let chains = (slots.len() * CHAINS_PER_SLOT).next_power_of_two().max(SHARDS);
        Self {
            slots,
            chains: (0..chains).map(|_| AtomicU32::new(NONE)).collect(),
            shift: u64::BITS - chains.trailing_zeros(),
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
        }
    }

    /// Multiplicative hashing spreads neighbouring blocks evenly.
    fn chain_of(&self, block: u64) -> usize {
        (block.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> self.shift) as usize
    }

    /// Locks the shard of `block`.
    pub(crate) fn lock(&self, block: u64) -> ShardGuard<'_> {
        self.shards[self.chain_of(block) % SHARDS].0.lock()
    }

    /// Locks one shard after the other.
    pub(crate) fn each_shard(&self, mut each: impl FnMut(ShardGuard<'_>)) {
        self.shards.iter().for_each(|shard| each(shard.0.lock()));
    }

    /// The slots that name `block`, as seen without the lock.
    #[inline]
    pub(crate) fn glance(&self, block: u64) -> Chain<'_> {
        Chain {
            slots: &self.slots,
            next: self.chains[self.chain_of(block)].load(Ordering::Acquire),
            block,
            left: CHAIN_MAX,
        }
    }

    /// The slots that name `block`: all of them, while `_guard` is held.
    pub(crate) fn chain(&self, block: u64, _guard: &ShardGuard<'_>) -> Chain<'_> {
        Chain { left: self.slots.len(), ..self.glance(block) }
    }

    /// Adds a slot that was named.
    pub(crate) fn link(&self, index: u32, _guard: &ShardGuard<'_>) {
        let slot = &self.slots[index as usize];
        let chain = &self.chains[self.chain_of(slot.block())];
        slot.chain.store(chain.load(Ordering::Relaxed), Ordering::Relaxed);
        // Release pairs with `glance`: a reader that finds the slot sees its name.
        chain.store(index, Ordering::Release);
    }

    /// Takes a slot out.
    pub(crate) fn unlink(&self, index: u32, _guard: &ShardGuard<'_>) {
        let slot = &self.slots[index as usize];
        let mut from = &self.chains[self.chain_of(slot.block())];
        for _ in 0..self.slots.len() {
            let at = from.load(Ordering::Relaxed);
            assert_ne!(at, NONE, "a slot was not in the chain of its block");
            if at == index {
                from.store(slot.chain.load(Ordering::Relaxed), Ordering::Release);
                return;
            }
            from = &self.slots[at as usize].chain;
        }
        unreachable!("a chain with a cycle");
    }
}

/// Indices of slots that name one block.
pub(crate) struct Chain<'a> {
    slots: &'a [Slot],
    next: u32,
    block: u64,
    left: usize,
}

impl Iterator for Chain<'_> {
    type Item = u32;

    #[inline]
    fn next(&mut self) -> Option<u32> {
        while self.next != NONE && self.left > 0 {
            let index = self.next;
            let slot = &self.slots[index as usize];
            self.next = slot.chain.load(Ordering::Acquire);
            self.left -= 1;
            if slot.block() == self.block {
                return Some(index);
            }
        }
        None
    }
}
