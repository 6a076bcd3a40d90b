//! The parts that the programs of this workspace share.

pub mod lmdb;
