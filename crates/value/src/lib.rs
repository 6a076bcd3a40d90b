//! The values of objects: the entry that names one, the layout and the writing of its bytes, and reading with verification.
//!
//! An [`Entry`] is everything about an object except its key and its version. It has the same bytes in a log record and in a leaf, and
//! ends with the [`Home`] of the value:
//!
//! | home | the bytes are | placed by |
//! |---|---|---|
//! | inline | in the entry | the put, if the leaf has room for them |
//! | extents | in runs of blocks of their own | the put, or the apply for a value that rode in the log |
//! | packed | in a run with other small values | the apply (`packed/`) |
//! | manifest | in more runs than an entry names; a manifest lists them | the put of a long value, and the completion of an upload |
//!
//! Every 64 KiB of a value is a *unit* with a checksum in the entry or the manifest. A unit is verified as it enters memory, kept in the
//! pool, and referred to from there: a get copies no value, and a put copies it once.
//!
//! The crate allocates nothing: callers take the blocks from `shoal-space-manager` and hand the writes to `shoal-log`.
//!
//! # Reading order
//!
//! 1. `entry.rs`, `metadata.rs`, `manifest.rs`, `joined.rs` and `docs/format/object.md`: the bytes of entries, metadata and manifests.
//! 2. `prepare.rs`: a put chooses the first place of a value ([`placement_of`]) and lays it out ([`lay_out`]).
//! 3. `read.rs`: finds the units of a value ([`Located`]) and reads them ([`read`]); `manifest_cache.rs` keeps long manifests.
//! 4. `packed/`: runs of small values.
//! 5. `verify.rs`: many values at a time, for check, scrub and repair; `owned.rs`: the runs that an entry owns.

mod entry;
mod joined;
mod manifest;
mod manifest_cache;
mod metadata;
mod owned;
pub mod packed;
mod prepare;
mod read;
mod verify;

pub use entry::{
    BodyHead, Entry, Home, INLINE_RUNS_MAX, InlineEntry, Meta, decode_leaf_entry, end_of, split_home,
    split_leaf_entry, value_bytes_of,
};
pub use joined::{JoinedManifest, ManifestSegment, NOTE_BYTES_MAX};
pub use manifest::Manifest;
pub use manifest_cache::{FoundPlaces, ManifestCache};
pub use metadata::{decode_metadata, encode_metadata, place_of_metadata};
pub use owned::{adopting_runs, manifest_of, owned_runs};
pub use prepare::{
    Filler, LaidOut, Placement, UnitChecksums, ValueContent, fits_leaf, home_of, lay_out, manifest_blocks,
    placement_of, write_manifest,
};
pub use read::{Located, pool_error, read, read_joined};
pub use verify::{read_direct, verify_adopting, verify_all, verify_direct};
