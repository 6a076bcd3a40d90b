//! The groups that serve nobody because they are being emptied.
//!
//! Their free blocks count as free (R3: an apply may always have them): whoever finds no room elsewhere opens them all, and
//! the emptying is over. Only memory knows them: after a restart every group serves everybody.

use shoal_base::Run;
use shoal_base::sync::Mutex;
use shoal_space::{Space, Victim};

/// See the top of the file.
#[derive(Default)]
pub(crate) struct Closed {
    /// Above the allocator's locks.
    victims: Mutex<Vec<Victim>>,
}

impl Closed {
    /// Closes the emptiest group of those that do not lie in `except`, if it is worth its cost.
    pub(crate) fn close(
        &self,
        space: &Space,
        except: &[Run],
        is_worth: impl FnOnce(&Victim) -> bool,
    ) -> bool {
        let mut victims = self.victims.lock();
        let Some(victim) = space.close_emptiest(except) else { return false };
        if !is_worth(&victim) {
            space.open(victim);
            return false;
        }
        victims.push(victim);
        true
    }

    /// The groups, and how many blocks of them were in use when they were closed.
    pub(crate) fn groups(&self) -> Vec<Victim> {
        self.victims.lock().clone()
    }

    /// Opens those of which `is_done` says so, and gives them.
    pub(crate) fn open(&self, space: &Space, mut is_done: impl FnMut(&Victim) -> bool) -> Vec<Victim> {
        let mut victims = self.victims.lock();
        let opened: Vec<Victim> = victims.extract_if(.., |victim| is_done(victim)).collect();
        opened.iter().for_each(|&victim| space.open(victim));
        opened
    }
}
