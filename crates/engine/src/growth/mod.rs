//! The cap of a store: the largest number of blocks that it may have.
//!
//! [`raise_cap`] raises it while the store is open, [`at_opening`] at an opening. The file grows in `growth/` of `shoal-tablets`.

pub(crate) mod at_opening;
pub(crate) mod raise_cap;
