//! Requests of a simulated device that take time: the end of each is known at its start.
//!
//! The device serves a limited number at once; the others start when a place is free. Submitted requests wait for their
//! moment in a queue that one thread watches; executed ones sleep on the caller's thread.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Decides when requests end.
pub(crate) struct Lanes {
    /// When each place is free again, earliest first.
    free_at: BinaryHeap<Reverse<Instant>>,
    places: usize,
}

impl Lanes {
    /// A device that serves `places` requests at once.
    pub(crate) fn new(places: usize) -> Self {
        assert!(places > 0, "a device without a place would never complete a request");
        Self { free_at: BinaryHeap::new(), places }
    }

    /// The end of a request that arrives now and takes `cost`.
    pub(crate) fn ends(&mut self, now: Instant, cost: Duration) -> Instant {
        let start = if self.free_at.len() < self.places {
            now
        } else {
            self.free_at.pop().map_or(now, |Reverse(free)| free.max(now))
        };
        let end = start + cost;
        self.free_at.push(Reverse(end));
        end
    }
}

struct Queue<T> {
    /// By moment, then in the order they came.
    due: BTreeMap<(Instant, u64), T>,
    next: u64,
    closed: bool,
}

/// Things that wait for their moment.
pub(crate) struct Line<T> {
    queue: Mutex<Queue<T>>,
    changed: Condvar,
}

impl<T> Line<T> {
    pub(crate) fn new() -> Self {
        let queue = Queue { due: BTreeMap::new(), next: 0, closed: false };
        Self { queue: Mutex::new(queue), changed: Condvar::new() }
    }

    pub(crate) fn push(&self, due: Instant, thing: T) {
        let mut queue = self.queue.lock();
        let number = queue.next;
        queue.next += 1;
        queue.due.insert((due, number), thing);
        drop(queue);
        self.changed.notify_one();
    }

    /// Waits for the next thing whose moment came. None when the line is closed and empty.
    pub(crate) fn pop(&self) -> Option<T> {
        let mut queue = self.queue.lock();
        loop {
            match queue.due.first_key_value() {
                None if queue.closed => return None,
                None => self.changed.wait(&mut queue),
                Some((&(due, _), _)) if due <= Instant::now() => {
                    return queue.due.pop_first().map(|(_, thing)| thing);
                }
                Some((&(due, _), _)) => {
                    self.changed.wait_until(&mut queue, due);
                }
            }
        }
    }

    /// Nothing more will be pushed.
    pub(crate) fn close(&self) {
        self.queue.lock().closed = true;
        self.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_limit_what_runs_at_once() {
        let (now, cost) = (Instant::now(), Duration::from_millis(10));
        let mut lanes = Lanes::new(2);
        let ends: Vec<Duration> = (0..5).map(|_| lanes.ends(now, cost) - now).collect();
        assert_eq!(ends.iter().map(Duration::as_millis).collect::<Vec<_>>(), [10, 10, 20, 20, 30]);
        let later = now + Duration::from_millis(100);
        assert_eq!(lanes.ends(later, cost) - later, cost);
    }

    #[test]
    fn items_come_out_when_due() {
        let line = Line::new();
        let now = Instant::now();
        line.push(now + Duration::from_millis(4), 'c');
        line.push(now, 'a');
        line.push(now, 'b');
        line.close();
        let out: String = std::iter::from_fn(|| line.pop()).collect();
        assert_eq!(out, "abc");
        assert!(now.elapsed() >= Duration::from_millis(4));
    }
}
