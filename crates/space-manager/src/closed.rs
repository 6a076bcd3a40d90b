//! The closed groups: the allocator hands out none of their blocks because they are being emptied.
//!
//! Their free blocks count as free (R3: an apply may always have them). A caller that finds no other space opens all of
//! them, and the emptying stops. They are known in memory only: after a restart no group is closed.

use shoal_base::Run;
use shoal_base::sync::Mutex;
use shoal_space::{Space, Victim};

/// See the top of the file.
#[derive(Default)]
pub struct ClosedGroups {
    /// This lock comes before the allocator's locks.
    victims: Mutex<Vec<Victim>>,
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

    /// The closed groups, with the number of their used blocks when they were closed.
    pub fn groups(&self) -> Vec<Victim> {
        self.victims.lock().clone()
    }

    /// Opens the groups for which `is_done` returns true; returns them.
    pub fn open(&self, space: &Space, mut is_done: impl FnMut(&Victim) -> bool) -> Vec<Victim> {
        let mut victims = self.victims.lock();
        let opened: Vec<Victim> = victims.extract_if(.., |victim| is_done(victim)).collect();
        opened.iter().for_each(|&victim| space.open(victim));
        opened
    }
}
