//! Tablets: a memtable of the newest records over a tree of pages, read through views.

pub(crate) mod admission;
pub(crate) mod damage;
pub(crate) mod held;
pub(crate) mod memtable;
pub(crate) mod merges;
pub(crate) mod result_totals;
pub(crate) mod snapshots;
pub(crate) mod tablets;
pub(crate) mod tree_io;
pub(crate) mod turns;
pub(crate) mod view;
pub(crate) mod watch;
pub(crate) mod withdraw;
pub(crate) mod write_counts;
