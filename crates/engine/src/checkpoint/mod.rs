//! Checkpoints: an apply merges a memtable into its tree, values go home or move, and a superblock publishes the new
//! roots.
//!
//! All of it works with a [`checkpointer`], which has the owners that a checkpoint needs, and not the store.
//!
//! Reading order: [`apply`], [`home`] (the places of values), [`replace`] (the entries that a tree gets and loses),
//! [`progress`] and [`pause`] (room for writers meanwhile), [`liveness`] (the live values of packed runs), [`compact`] (the choice of
//! runs to rewrite), [`publish`], [`sole_writer`] (nobody else publishes), [`superblock`], [`space_image`], [`map_room`] (its room in a file), [`grow`] (growth of
//! the file, which a publish makes usable), [`longer_log`],
//! [`relocate`] (an apply that empties groups).

pub(crate) mod apply;
pub(crate) mod checkpointer;
pub(crate) mod closing;
pub(crate) mod compact;
pub(crate) mod copies;
pub(crate) mod features;
#[cfg(test)]
mod format_tests;
pub(crate) mod grow;
pub(crate) mod home;
pub(crate) mod layout;
pub(crate) mod liveness;
pub(crate) mod longer_log;
pub(crate) mod losses;
pub(crate) mod map_room;
pub(crate) mod merge;
pub(crate) mod pause;
pub(crate) mod progress;
pub(crate) mod publish;
pub(crate) mod rate;
pub(crate) mod relocate;
pub(crate) mod replace;
pub(crate) mod route;
pub(crate) mod runs;
pub(crate) mod snapshot;
pub(crate) mod sole_writer;
pub(crate) mod space_image;
pub(crate) mod superblock;
