//! The image of a store: the superblock, the layout of the device, and the free space on the device.
//!
//! Reading order: [`layout`], [`superblock`], [`copies`] (two slots of two copies), [`features`] (what a program must know to open a
//! store), [`space_image`], [`losses`].

pub(crate) mod copies;
pub(crate) mod features;
#[cfg(test)]
mod format_tests;
pub(crate) mod layout;
pub(crate) mod losses;
pub(crate) mod space_image;
pub(crate) mod superblock;
