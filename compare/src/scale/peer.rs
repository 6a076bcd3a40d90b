//! A store of the comparison.

use anyhow::Result;
use shoal_bench::scale::Target;

/// A store that a load goes into, that answers, and that is closed in order.
pub trait Peer: Target {
    /// Whether there is an object of this key; its value is read.
    fn get(&mut self, key: &[u8]) -> Result<bool>;

    /// Deletes these objects; that is durable when this returns.
    fn delete(&mut self, keys: &[Vec<u8>]) -> Result<()>;

    /// Closes it.
    fn close(self: Box<Self>) -> Result<()>;
}
