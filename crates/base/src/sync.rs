//! Locks, atomics and thread locals: the means by which threads share state.
//!
//! They are parking_lot's and the standard library's. A build with `--cfg shoal_shuttle` has shuttle's in their place, which runs the same
//! code one schedule after another (T10, `cargo x lab --only schedules`). There everything on the path of a put and of a get must come from
//! here: a thread that waits in any other way waits for ever, because all threads of a schedule are one thread of the system.
//! A lock that covers no use of this module may stay as it is, and so may a count that orders nothing.

#[cfg(not(shoal_shuttle))]
pub use parking_lot::{Mutex, MutexGuard};
#[cfg(shoal_shuttle)]
pub use shuttle::{sync::MutexGuard, sync::atomic, thread_local};
#[cfg(not(shoal_shuttle))]
pub use std::{sync::atomic, thread_local};

/// As parking_lot's: it is free again when a thread panicked under it.
#[cfg(shoal_shuttle)]
#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized>(shuttle::sync::Mutex<T>);

#[cfg(shoal_shuttle)]
impl<T> Mutex<T> {
    /// A free lock.
    pub const fn new(value: T) -> Self {
        Self(shuttle::sync::Mutex::new(value))
    }
}

#[cfg(shoal_shuttle)]
impl<T: ?Sized> Mutex<T> {
    /// Waits until the lock is free, and takes it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The value, which no other thread can reach.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Lets other threads run for about `duration`.
pub fn pause(duration: std::time::Duration) {
    #[cfg(not(shoal_shuttle))]
    std::thread::sleep(duration);
    #[cfg(shoal_shuttle)]
    {
        let _ = duration;
        shuttle::thread::yield_now();
    }
}

/// The number of locks or counters from which a key's is chosen by its hash: `count`; few in schedules, each of which makes all of them
/// anew.
#[must_use]
pub const fn stripes(count: usize) -> usize {
    if cfg!(shoal_shuttle) && count > 8 { 8 } else { count }
}
