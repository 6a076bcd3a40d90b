//! A plug holds back, until the end of a thread's turn, the requests of a device and the bells of other threads: so the requests start
//! together, and each bell rings once.
//!
//! A write costs an entry into the kernel, a request of the device, a doorbell and an interrupt. Writes that start with one entry share
//! these, because the kernel merges adjacent ones. A thread that is rung for the first of many answers takes the core, delivers that
//! answer, and sleeps again before the next. Name and idea come from the plugs in the block layer of Linux, and so does the rule that a
//! thread starts the held requests before it blocks: another thread, for which it waits, may wait for them.

use std::cell::RefCell;
use std::sync::Arc;

use crate::sync::thread_local;

/// The most requests that a device holds back: with more it would idle while the thread works. 16 values of 64 KiB have the length of one
/// request of usual devices.
pub const HELD_MAX: usize = 16;

/// A device that can hold requests back, or the bell of a thread.
pub trait Hold {
    /// Starts the held requests, or rings.
    fn start_held(&self);
}

type Holders = Vec<Arc<dyn Hold>>;

thread_local! {
    /// The holders of requests and bells of this thread; `None` while the thread is not plugged.
    static PLUG: RefCell<Option<Holders>> = const { RefCell::new(None) };
}

fn replace(with: Option<Holders>) -> Option<Holders> {
    PLUG.with(|plug| plug.replace(with))
}

fn start(holders: Option<Holders>) {
    holders.into_iter().flatten().for_each(|holder| holder.start_held());
}

/// Plugs the thread again when dropped, or releases its plug. Also after a panic: the requests must start.
struct Restore {
    is_plugged: bool,
}

impl Drop for Restore {
    fn drop(&mut self) {
        start(replace(self.is_plugged.then(Vec::new)));
    }
}

/// Runs `work`. A device may hold writes of `work` back until it returns, so that they start together, and a thread that `work` wakes may
/// be rung only then. `work` waits for none of them, unless by [`block_on`](crate::task::block_on()).
pub fn plug<T>(work: impl FnOnce() -> T) -> T {
    let is_plugged = PLUG.with(|plug| plug.borrow().is_some());
    if is_plugged {
        return work();
    }
    replace(Some(Vec::new()));
    let _restore = Restore { is_plugged: false };
    work()
}

/// Starts the held requests, and runs `work`, which may block, without a plug.
pub(crate) fn unplugged<T>(work: impl FnOnce() -> T) -> T {
    let Some(devices) = replace(None) else { return work() };
    let _restore = Restore { is_plugged: true };
    start(Some(devices));
    work()
}

/// Returns true if `holder` may hold requests or bells of this thread back: [`Hold::start_held`] will start them.
pub fn may_hold(holder: &Arc<impl Hold + 'static>) -> bool {
    PLUG.with(|plug| {
        let mut plug = plug.borrow_mut();
        let Some(holders) = plug.as_mut() else { return false };
        let is_known = holders.iter().any(|known| Arc::as_ptr(known).addr() == Arc::as_ptr(holder).addr());
        if !is_known {
            holders.push(holder.clone());
        }
        true
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::task::block_on;

    #[derive(Default)]
    struct Counting(AtomicUsize);

    impl Hold for Counting {
        fn start_held(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn plugged_writes_start_once_per_device() {
        let devices = [Arc::new(Counting::default()), Arc::new(Counting::default())];
        let started = || devices.each_ref().map(|device| device.0.load(Ordering::Relaxed));
        assert!(!may_hold(&devices[0]), "no plug");
        plug(|| {
            for device in [0, 1, 0, 1] {
                assert!(plug(|| may_hold(&devices[device])));
            }
            assert_eq!(started(), [0, 0]);
        });
        assert_eq!(started(), [1, 1]);
        assert!(!may_hold(&devices[0]), "the plug is over");
        plug(|| assert!(may_hold(&devices[1])));
        assert_eq!(started(), [1, 2]);
    }

    #[test]
    fn blocking_thread_does_not_plug() {
        let device = Arc::new(Counting::default());
        let started = || device.0.load(Ordering::Relaxed);
        plug(|| {
            assert!(may_hold(&device));
            block_on(async {
                assert_eq!(started(), 1, "before it may block");
                assert!(!may_hold(&device));
            });
            assert!(may_hold(&device), "plugged again");
            assert_eq!(started(), 1);
        });
        assert_eq!(started(), 2);
        block_on(async { assert!(!may_hold(&device)) });
        assert!(!may_hold(&device));
    }

    #[test]
    fn a_panic_ends_the_plug() {
        let device = Arc::new(Counting::default());
        let held = device.clone();
        let panicked = std::panic::catch_unwind(move || plug(|| assert!(!may_hold(&held), "on purpose")));
        assert!(panicked.is_err());
        assert_eq!(device.0.load(Ordering::Relaxed), 1);
        assert!(!may_hold(&device));
    }
}
