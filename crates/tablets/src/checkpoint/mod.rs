//! Checkpoints: the owners and the state that applies, compactions, gc and growth share, and the publish of a superblock
//! that names their new roots.
//!
//! All of them work with a [`checkpointer`], which has the owners that a checkpoint needs, not with the store.
//!
//! Reading order: [`checkpointer`], [`new_tree`] (a written tree and its publish), [`publish`], [`sole_writer`] (no other program
//! publishes), [`pause`], [`rate`] and [`quiet`] (limits of the background work), [`applier`] (its turn, and the waits that end its pace), [`closing`].

pub mod applier;
pub mod checkpointer;
pub mod closing;
pub mod features;
pub mod new_tree;
pub mod pause;
pub mod publish;
pub mod quiet;
pub mod rate;
pub mod runs;
pub mod sole_writer;
