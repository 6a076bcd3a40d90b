//! Every limit of the archive, with its unit and its reason.

/// Most bytes of a segment. A batch is never divided, and a batch of the log has up to 16 MiB of records; carried values may fill the rest.
pub const SEGMENT_BYTES_MAX: usize = 32 << 20;

/// Bytes of a piece of a value that does not travel with its record; the last one is shorter.
pub const PIECE_BYTES: usize = 4 << 20;

/// Most bytes of the values that a batch carries; longer ones, and those without room, come in pieces.
pub const CARRIED_BYTES_MAX: u64 = 8 << 20;

/// Segments that an owner of this program has in flight, W of the records that it creates.
pub const IN_FLIGHT_MAX: u16 = 8;

/// Most slots that an owner may have in flight, W of the record: a seal creates a tombstone for each of them.
pub const SEAL_WIDTH_MAX: u16 = 1024;

/// Most bytes of a part of a base.
pub const PART_BYTES_MAX: u64 = 64 << 20;

/// Most parts of a base: 64 TiB of them. Their list has 12 MiB.
pub const PARTS_MAX: u32 = 1 << 20;

/// Most logs that a record names.
pub const LOGS_MAX: usize = 512;

/// Most bases that a record names.
pub const BASES_MAX: usize = 64;

/// Most pins of a record.
pub const PINS_MAX: usize = 64;

/// Most bytes of a record.
pub const RECORD_BYTES_MAX: usize = 128 << 10;

/// Most bytes of a name or an address.
pub const NAME_BYTES_MAX: usize = 255;

/// Milliseconds of a lease: at least three heartbeats of a third of it on a bucket that answers in 300 ms, at most an hour.
pub const LEASE_MS: std::ops::RangeInclusive<u32> = 1_000..=3_600_000;
