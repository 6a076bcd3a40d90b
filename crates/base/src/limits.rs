//! Every limit that more than one layer knows, with its unit and its reason. `docs/limits.md` lists them all.

/// Longest key, in bytes (as S3's).
pub const KEY_BYTES_MAX: usize = 1024;

/// Longest bucket name, in bytes (as S3's).
pub const BUCKET_BYTES_MAX: usize = 63;

/// Largest value, in bytes (as S3's single upload): 5 GiB.
pub const VALUE_BYTES_MAX: u64 = 5 << 30;

/// Values up to this size travel in one message and one piece of memory; larger ones are streamed.
pub const VALUE_BYTES_SINGLE_MAX: u64 = 4 << 20;

/// Longest content type, in bytes.
pub const CONTENT_TYPE_BYTES_MAX: usize = 255;

/// User metadata: names and values together, in bytes (as S3's).
pub const USER_METADATA_BYTES_MAX: usize = 2048;

/// Metadata, encoded: content type, attributes and user metadata together, in bytes. S3 needs up to 2 KiB for each of six headers, and 8 KiB for tags.
pub const METADATA_BYTES_MAX: usize = 24 << 10;

/// A value is checksummed, loaded and verified in units of this many bytes.
pub const VALUE_UNIT_BYTES: usize = 64 << 10;

/// Keys in one page of a listing.
pub const LIST_PAGE_MAX: usize = 1000;

/// Keys whose objects were deleted or have expired that one page of a listing skips. After them the page is returned, short or empty, and
/// the next one continues.
pub const LIST_PASSED_MAX: usize = 4096;

/// A scan yields to the other work of its thread after this many nanoseconds, and reads the clock after every [`SCAN_LOOK_KEYS`] keys.
pub const SCAN_TURN_NS: u64 = 1_000_000;

/// See [`SCAN_TURN_NS`].
pub const SCAN_LOOK_KEYS: usize = 64;

/// Keys in one batch request.
pub const BATCH_KEYS_MAX: usize = 1000;
