//! The pause after an apply whose tablet's compactions lag.
//!
//! Applies and compactions share the cores. A lasting load at the speed of the applies starves the compactions: the number of layers grows to its
//! limit (INV-33), and then every write waits for a whole compaction, which takes seconds. Such an apply reserves a part of its memtable's room.
//! The applier thread lends that part in small steps during a pause, and applies nothing meanwhile: compactions have its core and the applier's
//! turn. The pause grows with the entries and layers that wait, so a lasting load settles at the speed of the compactions.

use std::thread;
use std::time::Duration;

use shoal_memtable::admission::Lent;
use shoal_tree::layers::{LAYERS_MAX, Layers};

/// A tablet's compactions lag if its layers have more than this many thousandths of the entries that make a compaction into the base due. Twice the
/// due number is usual: new layers arrive while the compaction runs.
const BEHIND_PERMILLE: u64 = 2_000;
/// A tablet's compactions also lag if it has more layers than this.
const BEHIND_LAYERS: usize = LAYERS_MAX * 7 / 10;
/// The pause for each additional layer, in thousandths of the time of the apply.
const PERMILLE_A_LAYER: u64 = 400;
/// The longest pause, in thousandths of the time of its apply.
const PAUSE_PERMILLE_MAX: u64 = 4_000;
/// The longest pause in absolute terms, for slow devices.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// The time between two steps in which a pause lends room.
const LEND_EVERY: Duration = Duration::from_millis(1);

/// The length of the pause after the next apply of a tablet, in thousandths of the time of that apply. `due_entries` is the number of
/// entries that make a compaction into the base due.
pub(crate) fn permille(layers: &Layers, due_entries: u64) -> u64 {
    let entries = layers.entries().saturating_mul(1000) / due_entries.max(1);
    let by_entries = entries.saturating_sub(BEHIND_PERMILLE) * 3 / 2;
    let by_layers = layers.list.len().saturating_sub(BEHIND_LAYERS) as u64 * PERMILLE_A_LAYER;
    by_entries.max(by_layers).min(PAUSE_PERMILLE_MAX)
}

/// The room that an apply reserved for a pause. Dropping the pause frees all of it.
pub struct Pause {
    lent: Option<Lent>,
    /// The parts of the room lent during the apply, and the total.
    done: usize,
    whole: usize,
    length: Duration,
}

impl Pause {
    /// A pause after an apply that took `apply_ns` and did `done` of `whole`: the rest is lent in the pause.
    pub(crate) fn new(lent: Lent, (done, whole): (usize, usize), apply_ns: u64) -> Self {
        assert!(done <= whole, "an apply lends at most its room");
        let rest = (whole - done) as u128;
        let length_ns = u128::from(apply_ns) * rest / done.max(1) as u128;
        let length = Duration::from_nanos(u64::try_from(length_ns).unwrap_or(u64::MAX)).min(PAUSE_MAX);
        Self { lent: Some(lent), done, whole, length }
    }

    /// Lends the room on this thread until the time of the pause is over or `is_over` returns true. Calls `lends` after each step.
    pub(crate) fn run(mut self, is_over: impl Fn() -> bool, lends: impl Fn()) {
        let steps = (self.length.as_nanos() / LEND_EVERY.as_nanos()) as usize;
        for step in 1..=steps {
            if is_over() {
                break;
            }
            thread::sleep(LEND_EVERY);
            let now = self.done + (self.whole - self.done) / steps * step;
            if self.lent.as_mut().is_some_and(|lent| lent.advance(now, self.whole)) {
                lends();
            }
        }
        drop(self);
        lends();
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        if let Some(lent) = self.lent.take() {
            lent.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use shoal_tree::Root;

    use super::*;
    use shoal_memtable::admission::MemtableAdmission;

    fn layers(count: usize, entries: u64) -> Layers {
        let list = (0..count).map(|_| Root { entries: entries / count as u64, ..Root::EMPTY }).collect();
        Layers { list, ..Layers::default() }
    }

    #[test]
    fn it_grows_with_the_distance() {
        assert_eq!(permille(&layers(10, 1_000), 1_000), 0);
        assert_eq!(permille(&layers(10, 2_000), 1_000), 0);
        assert_eq!(permille(&layers(10, 3_000), 1_000), 1_500);
        assert_eq!(permille(&layers(10, 9_000), 1_000), PAUSE_PERMILLE_MAX);
        assert_eq!(permille(&layers(28, 280), 1_000), 0);
        assert_eq!(permille(&layers(30, 300), 1_000), 800);
        assert_eq!(permille(&layers(39, 390), 1_000), PAUSE_PERMILLE_MAX);
        assert_eq!(permille(&layers(1, 5), 0), PAUSE_PERMILLE_MAX, "there is no base");
    }

    #[test]
    fn the_rest_of_the_room_is_lent_step_by_step_and_free_at_the_end() {
        let admission = MemtableAdmission::new(1 << 20, 1_000, 4_000);
        admission.take(1_000, 100_000);
        let mut lent = admission.lend(1_000, 100_000);
        assert!(lent.advance(10, 40));
        assert_eq!(admission.held(), (750, 75_000));
        let pause = Pause::new(lent, (10, 40), 10_000_000);
        assert_eq!(pause.length, Duration::from_millis(30));
        let steps = AtomicUsize::new(0);
        pause.run(
            || false,
            || {
                steps.fetch_add(1, Ordering::Relaxed);
            },
        );
        assert!(steps.into_inner() > 1, "all of it came at once");
        assert_eq!(admission.held(), (0, 0));
        // A pause that is cut short, and one that is never run.
        admission.take(1_000, 100_000);
        Pause::new(admission.lend(1_000, 100_000), (10, 40), 60_000_000_000).run(|| true, || {});
        assert_eq!(admission.held(), (0, 0));
        admission.take(1_000, 100_000);
        let pause = Pause::new(admission.lend(1_000, 100_000), (10, 40), 60_000_000_000);
        assert_eq!(pause.length, PAUSE_MAX);
        drop(pause);
        assert_eq!(admission.held(), (0, 0));
    }
}
