//! Tablets: a memtable of the newest records over trees of pages, read through views.

pub mod compactions;
pub mod damage;
pub mod held;
pub mod result_totals;
pub mod snapshots;
pub mod tablets;
pub mod tree_io;
pub mod view;
pub mod withdraw;
