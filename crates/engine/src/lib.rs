//! Shoal's engine: the embedded store, asynchronous and blocking, independent of any runtime.
//!
//! ```
//! use shoal_engine::{ByteRange, ObjectKey, PathOptions, PutOptions, Store, block_on};
//!
//! # fn main() -> Result<(), shoal_engine::Error> {
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("notes.data");
//! # let options = PathOptions { bytes_max: 64 << 20, ..PathOptions::default() };
//! block_on(async {
//!     // A file, which is made if it is not there, and `PathOptions::default()`.
//!     let store = Store::open_path(path, options).await?;
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
//! Batches, listings and snapshots: `examples/embedded.rs`. Other devices: [`Store::open`].
//!
//! Under [`block_on`] the calling thread does its own I/O, and commits if no other thread does: no hand-off. The same
//! futures run on any runtime; then the device completes them from its own threads.
//!
//! Modules import in one direction: `bucket`, `store`, `growth`, and last the verbs `read`, `write`, `maintenance` and `recovery`. Applies,
//! compactions, garbage collection and publishes are the crate `shoal-tablets`. The log, the memtables, the values, the trees, the space and
//! the superblock are the crates `shoal-log`, `shoal-memtable`, `shoal-value`, `shoal-tree`, `shoal-space-manager` and `shoal-image`. Each has a
//! map in its `lib.rs`.
//!
//! The path of a put: [`put`](Store::put) (`write/put.rs`), `write/append.rs`, the memtable, the log; later `apply/` and
//! `checkpoint/publish.rs` of `shoal-tablets`. The path of a get: the read cache, `read/get.rs`, the memtables, the trees, the
//! value. Recovery: `recovery/read.rs`, `recovery/open.rs`. Rules R1 to R47 (INV-1 to INV-47) are in `docs/invariants.md`.

mod bucket;
mod growth;
mod maintenance;
mod read;
mod recovery;
mod store;
mod testing;
mod write;

#[cfg(any(test, fuzzing))]
pub use testing::hostile;

pub use bucket::{BUCKETS_MAX, BucketState};
pub use growth::raise_cap::CapChange;
pub use maintenance::scrub::{ScrubReport, ScrubStart};
pub use read::buckets::BucketRecords;
pub use read::changes::{ChangedObject, ChangesPage, ChangesPlace, KeyPlace, PlacedKey, Since, TreePage};
pub use read::counted::CountedReader;
pub use read::flushed::{FlushedBatch, FlushedRecord};
pub use read::get::{Lookup, ShortObject, TryGet};
pub use read::list::ListSink;
pub use read::snapshot::{SNAPSHOT_PAGE_MAX, Snapshot, SnapshotPage, SnapshotPlace};
pub use read::streams::DAMAGED_RANGES_MAX;
pub use read::value_reader::ValueReader;
pub use recovery::close::Closed;
pub use recovery::open_path::PathOptions;
pub use recovery::repair::check::check;
pub use recovery::report::{CheckOptions, CheckReport};
pub use shoal_base::task::block_on;
pub use shoal_base::{Lsn, RequestId, Run, TabletId};
pub use shoal_buffer::Buffer;
pub use shoal_common::bucket::{BUCKET_RECORD_BYTES_MAX, BucketConfig};
pub use shoal_common::error::{Error, Result};
pub use shoal_common::key::{Bucket, ObjectKey, check_bucket};
pub use shoal_common::object::{
    Attributes, BucketPage, ByteRange, DEFAULT_BUCKET, DamagedRange, Deadline, DeleteResult, Expiry,
    ListPage, ListRequest, Metadata, Object, ObjectInfo, PutOptions, PutResult, RejectRules,
};
pub use shoal_common::options::{Environment, FormatOptions, OpenOptions, TABLETS_MAX, Tuning};
pub use shoal_common::problem::CheckProblem;
pub use shoal_common::upload::{
    Completed, NewUpload, ObjectPart, PARTS_MAX, PartInfo, PartPage, PartRef, PartedObject, Upload, UploadId,
    UploadInfo, UploadPage, UploadsAfter,
};
pub use shoal_image::losses::Losses;
pub use shoal_log::Waiting;
pub use shoal_space::GroupState;
pub use shoal_space_manager::OWN_SPACES_MAX;
pub use store::Store;
pub use store::census::{BucketSize, CENSUS_BUCKETS_MAX, Census, KindCount, PartKinds};
pub use store::free_space::FreeRunIter;
pub use store::last_backup::BackupNote;
pub use store::log_facts::LogFacts;
pub use store::space_plan::SpacePlan;
pub use store::stat::StoreStat;
pub use write::buckets::CreatedBucket;
pub use write::change::{Change, ReadLevel};
pub use write::receive_buffer::ReceiveBuffer;
pub use write::restore::LoggedKey;
pub use write::ticket::Ticket;
pub use write::try_write::SHORT_PUTS_MAX;
pub use write::txn::dedup::{RESULT_BYTES_MAX, RESULT_LIFE_NS, RESULTS_KEPT};
pub use write::txn::look::Admit;
pub use write::txn::{Changes, Decision, Keeping, Outcome, TransactOptions, Updated};
pub use write::upload::{CompleteOptions, Completing, Judge, PartValue};
pub use write::value_writer::ValueWriter;
pub use write::watch::Watch;
pub use write::write_batch::{Write, WriteBatch};
