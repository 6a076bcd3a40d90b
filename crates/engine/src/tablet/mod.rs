//! Tablets: a memtable of the newest records over trees of pages, read through views.

pub(crate) mod compactions;
pub(crate) mod damage;
pub(crate) mod held;
pub(crate) mod result_totals;
pub(crate) mod snapshots;
pub(crate) mod tablets;
pub(crate) mod tree_io;
pub(crate) mod view;
pub(crate) mod withdraw;
