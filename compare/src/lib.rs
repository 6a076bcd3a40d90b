//! The parts that the programs of this workspace share.

pub mod flips;
pub mod lmdb;
