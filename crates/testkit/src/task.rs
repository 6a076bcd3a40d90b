//! Futures that are polled by hand, and wakers that count their wakes.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use crate::wait::HANGS_AFTER;

/// A waker that counts.
#[derive(Debug, Default)]
pub struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Wakes {
    /// A waker, and its count.
    #[must_use]
    pub fn new() -> (Arc<Self>, Waker) {
        let own = Arc::<Self>::default();
        (own.clone(), Waker::from(own))
    }

    /// The number of wakes.
    pub fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    /// As [`count`](Self::count), which is 0 from now on.
    pub fn take(&self) -> usize {
        self.0.swap(0, Ordering::SeqCst)
    }
}

/// Polls `future` once, with a waker that does nothing.
pub fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs `future` as a runtime does: on a thread that must not block, so that the device completes its requests elsewhere.
/// (`shoal_base::task::block_on` runs them on the spot.)
///
/// # Panics
/// If the future is not woken for [`HANGS_AFTER`]: a wake was lost.
pub fn run_as_runtime<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    loop {
        let began = Instant::now();
        if let Some(output) = run_some(future.as_mut(), 1, HANGS_AFTER) {
            return output;
        }
        assert!(began.elapsed() < HANGS_AFTER, "a wake was lost");
    }
}

/// As [`run_as_runtime`], for at most `polls` polls, and at most `park_max` until the next one.
pub fn run_some<F: Future>(mut future: Pin<&mut F>, polls: u64, park_max: Duration) -> Option<F::Output> {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    for _ in 0..polls {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Some(output);
        }
        thread::park_timeout(park_max);
    }
    None
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    /// Ready at the poll with this number; wakes itself before.
    fn ready_at(number: u32) -> impl Future<Output = u32> {
        let mut polls = 0;
        poll_fn(move |context| {
            polls += 1;
            context.waker().wake_by_ref();
            if polls == number { Poll::Ready(polls) } else { Poll::Pending }
        })
    }

    #[test]
    fn a_future_runs_to_its_end_or_for_some_polls() {
        assert_eq!(run_as_runtime(ready_at(4)), 4);
        assert_eq!(run_some(pin!(ready_at(4)), 3, HANGS_AFTER), None);
        assert!(poll_once(pin!(ready_at(2))).is_pending() && poll_once(pin!(ready_at(1))).is_ready());
    }

    #[test]
    fn wakes_are_counted() {
        let (wakes, waker) = Wakes::new();
        let mut future = pin!(ready_at(3));
        for count in 1..4 {
            let _ = future.as_mut().poll(&mut Context::from_waker(&waker));
            assert_eq!(wakes.count(), count);
        }
        assert_eq!((wakes.take(), wakes.count()), (3, 0));
    }
}
