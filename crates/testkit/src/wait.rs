//! Waits with a time limit: a test that hangs reports its place.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// An answer that takes longer than this never comes, even on a slow machine.
pub const HANGS_AFTER: Duration = Duration::from_secs(150);

/// A time limit for the code under test that no test reaches.
pub const FOR_EVER: Duration = Duration::from_secs(3_600);

/// The interval at which [`eventually`] looks.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Waits until `holds`.
///
/// # Panics
/// If it does not hold within [`HANGS_AFTER`]; the message contains `what`.
pub fn eventually(what: &str, holds: impl FnMut() -> bool) {
    eventually_within(HANGS_AFTER, what, holds);
}

/// As [`eventually`], with another limit: for a condition that takes many steps, each of which does I/O.
///
/// # Panics
/// If it does not hold within `limit`.
pub fn eventually_within(limit: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < limit, "not after {} s: {what}", limit.as_secs());
        thread::sleep(LOOK_EVERY);
    }
}

/// Seconds after which the body of [`within`] hangs: a whole test may take longer than an answer.
const BODY_HANGS_AFTER: Duration = Duration::from_secs(600);

/// Runs `body` on a separate thread; returns its value, and passes its panic on.
///
/// # Panics
/// If it does not return: a hang must not be a silent one.
pub fn within<T: Send + 'static>(what: &str, body: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = channel();
    let thread = thread::spawn(move || {
        let _ = sender.send(body());
    });
    match receiver.recv_timeout(BODY_HANGS_AFTER) {
        Ok(value) => value,
        Err(RecvTimeoutError::Timeout) => panic!("{what}: hangs"),
        Err(RecvTimeoutError::Disconnected) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => unreachable!("the thread ended without a value"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeout_body_returns_value_or_panic() {
        assert_eq!(within("seven", || 7), 7);
        let panic = std::panic::catch_unwind(|| within("a panic", || panic!("this is part of the test")));
        assert_eq!(panic.unwrap_err().downcast_ref(), Some(&"this is part of the test"));
    }

    #[test]
    fn condition_is_polled_until_true() {
        let mut looks = 0;
        eventually("the third look", || {
            looks += 1;
            looks == 3
        });
        assert_eq!(looks, 3);
    }
}
