//! Shoal's engine: the embedded store. (Interface skeleton: the store itself is kept in memory until the log lands.)

mod error;
mod key;
mod object;
mod store;
#[allow(dead_code, unused_imports)]
pub(crate) mod tree;

pub use error::{Error, Result};
pub use key::{DEFAULT_BUCKET, ObjectKey, check_bucket};
pub use object::*;
pub use shoal_base::task::block_on;
pub use shoal_base::{Lsn, Run, TabletId};
pub use store::*;
