//! A store on its device: the superblock, from which everything else is found, the layout of the device, and the image of its free space.
//!
//! A store is the newest valid [`Superblock`](superblock::Superblock) and the blocks that it names. There are two slots of two copies, and a
//! publish overwrites the older slot, so a crash leaves the state before it or the state after it. The superblock names the roots of all
//! tablets ([`TabletRecord`](tablet_record::TabletRecord)), the tail of the log, the areas of the space image, and the features that a
//! program needs.
//!
//! The crate reads, checks and writes these bytes. It does not decide when: publishing is the engine's `checkpoint/publish.rs`, and recovery
//! its `recovery/read.rs`.
//!
//! # Reading order
//!
//! 1. `layout.rs`: the areas of the device.
//! 2. `superblock.rs` and `docs/format/superblock.md`: the bytes; `tablet_record.rs`, `losses.rs`: parts of them.
//! 3. `copies.rs`: two slots of two copies; the newest valid copy counts.
//! 4. `features.rs`: the flags that a program needs to open a store.
//! 5. `slot_watch.rs`: another opening of a shared device.
//! 6. `space_image.rs` and `docs/format/space.md`: a snapshot of the free space, and deltas.

pub mod copies;
pub mod features;
#[cfg(test)]
mod format_tests;
pub mod layout;
pub mod losses;
pub mod slot_watch;
pub mod space_image;
pub mod superblock;
pub mod tablet_record;
#[cfg(test)]
mod upload_format_tests;
