//! The waiters for latches: wakers in a few buckets by slot, so that a slot needs no room for them.
//!
//! A flag in the word is set while a task waits; it is set under the bucket's lock. The thread that removes the reason
//! clears the flag and wakes all waiters of the slot, which then look again. A bucket's lock is taken last, and no
//! waker is called under it.

use std::future::poll_fn;
use std::task::{Poll, Waker};

use shoal_base::sync::{Mutex, stripes};

/// Buckets: more than threads, so that they hardly ever meet.
const BUCKETS: usize = stripes(64);

#[repr(align(64))]
#[derive(Default)]
struct Bucket(Mutex<Vec<(u32, Waker)>>);

pub(crate) struct Latches(Box<[Bucket]>);

impl Latches {
    pub(crate) fn new() -> Self {
        Self((0..BUCKETS).map(|_| Bucket::default()).collect())
    }

    fn bucket(&self, slot: u32) -> &Mutex<Vec<(u32, Waker)>> {
        &self.0[slot as usize % BUCKETS].0
    }

    /// Waits while `must_wait`, which marks the word so that [`wake`](Self::wake) will be called.
    pub(crate) async fn wait(&self, slot: u32, must_wait: impl Fn() -> bool) {
        poll_fn(|context| {
            let mut bucket = self.bucket(slot).lock();
            if !must_wait() {
                return Poll::Ready(());
            }
            let known = |(other, waker): &(u32, Waker)| *other == slot && waker.will_wake(context.waker());
            if !bucket.iter().any(known) {
                bucket.push((slot, context.waker().clone()));
            }
            Poll::Pending
        })
        .await;
    }

    /// Wakes all waiters for this slot.
    pub(crate) fn wake(&self, slot: u32) {
        let woken: Vec<_> = self.bucket(slot).lock().extract_if(.., |(other, _)| *other == slot).collect();
        woken.into_iter().for_each(|(_, waker)| waker.wake());
    }
}
