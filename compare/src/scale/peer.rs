//! A store of the comparison.

use anyhow::Result;
use shoal_bench::scale::Target;

/// A store that takes a load, answers gets, and is closed in order.
pub trait Peer: Target {
    /// Returns true if there is an object of this key; its value is read.
    fn get(&mut self, key: &[u8]) -> Result<bool>;

    /// Deletes these objects; that is durable when this returns.
    fn delete(&mut self, keys: &[Vec<u8>]) -> Result<()>;

    /// Closes it.
    fn close(self: Box<Self>) -> Result<()>;
}
