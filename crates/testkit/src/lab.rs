//! Tests that are small in `cargo test` and large in the laboratory (`cargo x lab`, docs/reliability.md).

use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// The amount of work of a laboratory test: the variable `LAB_<name>` if it is set, else `quick`.
///
/// # Panics
/// If the variable is no number.
#[must_use]
pub fn number(name: &str, quick: u64) -> u64 {
    given(name).unwrap_or(quick)
}

/// The variable `LAB_<name>`, if it is set.
///
/// # Panics
/// If the variable is no number.
#[must_use]
pub fn given(name: &str) -> Option<u64> {
    let text = std::env::var(format!("LAB_{name}")).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("LAB_{name}: {text:?} is no number")))
}

/// Calls `trial` with every number below `count`, on all cores.
///
/// # Panics
/// As `trial` does.
pub fn on_all_cores(count: u64, trial: impl Fn(u64) + Sync) {
    on_each_core(1, count, trial);
}

/// The same with `several` threads a core: for trials that wait for a while.
///
/// # Panics
/// As `trial` does.
pub fn on_each_core(several: usize, count: u64, trial: impl Fn(u64) + Sync) {
    let next = AtomicU64::new(0);
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return;
            }
            trial(number);
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..cores() * several).map(|_| scope.spawn(work)).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
    });
}

/// The cores of this machine.
#[must_use]
pub fn cores() -> usize {
    thread::available_parallelism().map_or(2, NonZero::get)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_has_one_trial() {
        let seen: Vec<AtomicU64> = (0..100).map(|_| AtomicU64::new(0)).collect();
        on_each_core(3, 100, |number| _ = seen[number as usize].fetch_add(1, Ordering::Relaxed));
        assert!(seen.iter().all(|count| count.load(Ordering::Relaxed) == 1));
    }

    #[test]
    fn a_number_without_a_variable_is_the_quick_one() {
        assert_eq!((number("OF_NO_TEST", 7), given("OF_NO_TEST")), (7, None));
    }
}
