//! Checkpoints: an apply brings an overlay into its tree, values go home or move, and a superblock publishes the new roots.
//!
//! Reading order: [`apply`], [`home`] (where values go), [`replace`] (what a tree gets and loses), [`liveness`] (what of packed runs is
//! alive), [`compact`] (which of them are rewritten), [`publish`], [`space_image`].

pub(crate) mod apply;
pub(crate) mod compact;
pub(crate) mod home;
pub(crate) mod liveness;
pub(crate) mod merge;
pub(crate) mod publish;
pub(crate) mod replace;
pub(crate) mod route;
pub(crate) mod runs;
pub(crate) mod space_image;
