//! Shoal's engine: the embedded store, asynchronous and blocking, independent of any runtime.
//!
//! ```
//! use std::sync::Arc;
//!
//! use shoal_device::{Device, MemDevice};
//! use shoal_engine::{ByteRange, Environment, FormatOptions, ObjectKey, OpenOptions, PutOptions, Store, block_on};
//!
//! # fn main() -> Result<(), shoal_engine::Error> {
//! let device = Device::new(Arc::new(MemDevice::new(4096)));
//! block_on(async {
//!     Store::format(&device, &FormatOptions::for_blocks(4096), &Environment::default()).await?;
//!     let store = Store::open(device, OpenOptions::default(), Environment::default()).await?;
//!     let key = ObjectKey::new("default", b"greeting")?;
//!     let put = store.put(&key, b"hello".to_vec().into(), PutOptions::default()).await?;
//!     let object = store.get(&key, ByteRange::ALL).await?.expect("it was just put");
//!     assert_eq!(object.value.to_vec(), b"hello");
//!     assert_eq!(object.info.version, put.version);
//!     store.close().await
//! })
//! # }
//! ```
//!
//! Under [`block_on`] the calling thread does its own I/O and, where nobody else commits, commits: no hand-off. The same
//! futures run on any runtime; then the device completes them from its own threads.
//!
//! The way of a put: [`put`](Store::put) (`put.rs`, `value/prepare.rs`), `write.rs`, `overlay/`, `log/commit.rs`; later
//! `apply.rs`, `packed/`, `tree/`, `publish.rs`. The way of a get: `near.rs` (on a dispatch thread), `get.rs`, `overlay/`, `tree/`, `value/read.rs`. Recovery: `open.rs`,
//! `superblock.rs`, `space_image.rs`, `log/read.rs`. Rules R1 to R24 are in `docs/invariants.md`.

#![allow(unexpected_cfgs)] // Fuzzers set `fuzzing`.

mod acknowledge;
mod admission;
mod apply;
mod background;
mod behind;
#[cfg(test)]
mod by_hand;
mod check;
mod clock_record;
mod close;
mod damage;
mod delete;
mod entry;
mod error;
mod event;
mod expiry;
mod features;
mod fence;
mod free_space;
mod get;
mod grow;
#[cfg(any(test, fuzzing))]
pub mod hostile;
mod key;
mod layout;
mod list;
mod log;
mod losses;
mod moving;
mod near;
mod object;
mod open;
mod options;
mod overlay;
mod own_space;
mod owners;
mod packed;
mod pending;
mod plant;
mod poison;
mod publish;
mod put;
mod reap;
mod repair;
mod retry;
mod salvage;
mod scrub;
mod short;
mod space;
mod space_image;
mod stat;
mod store;
mod stream;
mod superblock;
/// Locks, by one name: the models of `models.rs` put others there.
mod sync {
    pub(crate) use shoal_base::sync::Mutex;
}
mod tablet;
mod together;
mod transact;
mod tree;
mod tree_io;
mod turns;
mod update;
mod value;
mod watch;
mod write;

#[cfg(test)]
mod arms_tests;
#[cfg(test)]
mod event_tests;
#[cfg(test)]
mod fence_tests;
#[cfg(test)]
mod format_tests;
#[cfg(test)]
mod models;
#[cfg(test)]
mod refusal_tests;
#[cfg(test)]
mod warm_tests;

pub use check::{CheckOptions, CheckProblem, CheckReport, check};
pub use close::Closed;
pub use damage::DamagedRange;
pub use error::{Error, Result};
pub use free_space::FreeSpace;
pub use key::{Bucket, DEFAULT_BUCKET, ObjectKey, check_bucket};
pub use list::DAMAGED_RANGES_MAX;
pub use losses::Losses;
pub use near::Near;
pub use object::{
    ByteRange, Deadline, DeleteResult, Expiry, ListPage, ListRequest, Metadata, Object, ObjectInfo,
    PutOptions, PutResult, RejectRules,
};
pub use options::{Environment, FormatOptions, OpenOptions, TABLETS_MAX, Tuning};
pub use own_space::OWN_SPACES_MAX;
pub use pending::Pending;
pub use retry::{Identity, Once, RESULT_BYTES_MAX, RESULT_LIFE_NS, RESULTS_KEPT};
pub use scrub::ScrubReport;
pub use shoal_base::task::block_on;
pub use shoal_base::{Lsn, Run, TabletId};
pub use short::{PendingPuts, SHORT_PUTS_MAX};
pub use stat::StoreStat;
pub use store::Store;
pub use stream::{GetStream, PutStream};
pub use together::Together;
pub use transact::{Decision, Transacted};
pub use update::{Change, Look, Updated};
pub use value::room::Room;
pub use watch::Watch;
