//! A store of the comparison.

use anyhow::Result;
use shoal_bench::scale::Target;

/// A store that a load goes into, and that is closed in order.
pub trait Peer: Target {
    /// Closes it.
    fn close(self: Box<Self>) -> Result<()>;
}
