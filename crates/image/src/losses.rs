//! The losses of repairs, counted in the superblock until a user acknowledges them.

use std::fmt::{self, Display, Formatter};

use shoal_log::format::COUNTER_MAX;

/// The losses of repairs that no user has acknowledged yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Number of the superblock that the first of these repairs published; 0: nothing was lost.
    pub since_number: u64,
    /// Lost objects, or lost records of the log if their objects are unknown.
    pub lost: u64,
    /// Objects that went back to an older state.
    pub reverted: u64,
    /// Objects whose deletion was undone.
    pub resurrected: u64,
}

impl Losses {
    /// Returns true if nothing was lost.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.lost + self.reverted + self.resurrected == 0
    }

    /// The sum of these losses and `later` ones, which superblock `number` is the first to list.
    pub fn and(self, later: Self, number: u64) -> Self {
        let sum = |one: u64, other: u64| (one + other).min(COUNTER_MAX);
        let since_number = match (self.is_none(), later.is_none()) {
            (true, true) => 0,
            (true, false) => number,
            (false, _) => self.since_number,
        };
        Self {
            since_number,
            lost: sum(self.lost, later.lost),
            reverted: sum(self.reverted, later.reverted),
            resurrected: sum(self.resurrected, later.resurrected),
        }
    }
}

impl Display for Losses {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let Self { lost, reverted, resurrected, .. } = self;
        let kinds = [
            (*lost, "lost (objects, or records of the log whose objects are not known)"),
            (*reverted, "reverted (objects in an older state)"),
            (*resurrected, "resurrected (objects whose deletion was undone)"),
        ];
        let told = kinds.iter().filter(|(count, _)| *count > 0);
        for (index, (count, what)) in told.enumerate() {
            write!(out, "{}{count} {what}", if index > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_add_up_since_the_first() {
        let some = Losses { lost: 2, resurrected: 1, ..Losses::default() };
        let none = Losses::default();
        assert!(none.is_none() && !some.is_none());
        assert_eq!(none.and(none, 7), none);
        let first = none.and(some, 7);
        assert_eq!(first, Losses { since_number: 7, lost: 2, reverted: 0, resurrected: 1 });
        assert_eq!(first.and(none, 9), first);
        let most = first.and(Losses { lost: COUNTER_MAX, reverted: 3, ..some }, 9);
        assert_eq!(most, Losses { since_number: 7, lost: COUNTER_MAX, reverted: 3, resurrected: 2 });
        assert_eq!(
            some.to_string(),
            "2 lost (objects, or records of the log whose objects are not known), 1 resurrected (objects whose deletion was undone)"
        );
    }
}
