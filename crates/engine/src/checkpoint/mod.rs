//! Checkpoints: the owners and the state that applies, compactions, gc and growth share, and the publish of a superblock
//! that names their new roots.
//!
//! All of them work with a [`checkpointer`], which has the owners that a checkpoint needs, not with the store.
//!
//! Reading order: [`checkpointer`], [`new_tree`] (a written tree and its publish), [`publish`], [`sole_writer`] (no other program
//! publishes), [`pause`], [`rate`] and [`quiet`] (limits of the background work), [`applier`] (its turn, and the waits that end its pace), [`closing`].

pub(crate) mod applier;
pub(crate) mod checkpointer;
pub(crate) mod closing;
pub(crate) mod features;
pub(crate) mod new_tree;
pub(crate) mod pause;
pub(crate) mod publish;
pub(crate) mod quiet;
pub(crate) mod rate;
pub(crate) mod runs;
pub(crate) mod sole_writer;
