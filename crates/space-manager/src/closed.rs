//! The closed groups: the allocator hands out none of their blocks because they are being emptied.
//!
//! Their free blocks count as free (R3: an apply may always have them). A caller that finds no other space opens all of
//! them, and the emptying stops. They are known in memory only: after a restart no group is closed.

use shoal_base::Run;
use shoal_base::sync::Mutex;
use shoal_base::sync::atomic::{AtomicBool, Ordering};
use shoal_space::{Space, Victim};

/// See the top of the file.
#[derive(Default)]
pub struct ClosedGroups {
    /// This lock comes before the allocator's locks.
    victims: Mutex<Vec<Victim>>,
    /// True while the contents of the groups go to short free runs only.
    fills_short_runs: AtomicBool,
}

impl ClosedGroups {
    /// Closes the emptiest group outside of `except` if emptying it is worth its cost.
    pub fn close(&self, space: &Space, except: &[Run], is_worth: impl FnOnce(&Victim) -> bool) -> bool {
        let mut victims = self.victims.lock();
        let Some(victim) = space.close_emptiest(except) else { return false };
        if !is_worth(&victim) {
            space.open(victim);
            return false;
        }
        victims.push(victim);
        true
    }

    /// Closes `groups`, whose contents go to short free runs, as the pages of applies do until all groups are open. Returns false if none
    /// could be closed.
    pub fn close_scattered(&self, space: &Space, groups: &[Run]) -> bool {
        let mut victims = self.victims.lock();
        assert!(victims.is_empty(), "one round at a time closes groups");
        victims.extend(groups.iter().filter_map(|&group| space.close(group)));
        self.fills_short_runs.store(!victims.is_empty(), Ordering::Relaxed);
        !victims.is_empty()
    }

    /// Returns true if pages should go to short free runs, because long ones are being made.
    pub fn fills_short_runs(&self) -> bool {
        self.fills_short_runs.load(Ordering::Relaxed)
    }

    /// The closed groups, with the number of their used blocks when they were closed.
    pub fn groups(&self) -> Vec<Victim> {
        self.victims.lock().clone()
    }

    /// Opens the groups for which `is_done` returns true; returns them.
    pub fn open(&self, space: &Space, mut is_done: impl FnMut(&Victim) -> bool) -> Vec<Victim> {
        let mut victims = self.victims.lock();
        let opened: Vec<Victim> = victims.extract_if(.., |victim| is_done(victim)).collect();
        opened.iter().for_each(|&victim| space.open(victim));
        if victims.is_empty() {
            self.fills_short_runs.store(false, Ordering::Relaxed);
        }
        opened
    }
}
