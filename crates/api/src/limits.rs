//! Limits and names of the gRPC frontend that both sides know. `docs/format/grpc.md` lists them.

use shoal_base::limits::VALUE_BYTES_SINGLE_MAX;

/// The longest chunk of a streamed value, in bytes: 1 MiB. Long enough that the cost of a message is negligible, short enough
/// that a stalled stream holds little memory.
pub const CHUNK_BYTES_MAX: usize = 1 << 20;

/// Bytes that a message may have besides one value: key, metadata and framing, and the headers of the items of a batch.
const MESSAGE_SLACK_BYTES: usize = 256 << 10;

/// The longest message either way, in bytes: a value of 4 MiB with everything around it.
pub const MESSAGE_BYTES_MAX: usize = VALUE_BYTES_SINGLE_MAX as usize + MESSAGE_SLACK_BYTES;

/// The longest value of an operation of a stream of operations, in bytes, either way. It is short, so that many operations may
/// be in flight on one stream; for a longer value, the cost of a separate call hardly matters.
pub const OPERATION_VALUE_BYTES_MAX: usize = 64 << 10;

/// The longest message of a stream of operations to the server, in bytes: a stream may hold a few of these.
pub const OPERATIONS_MESSAGE_BYTES_MAX: usize = 256 << 10;

/// The metadata with the session of a write (R17): a number, in decimal digits.
pub const SESSION_HEADER: &str = "shoal-session";

/// The metadata with the number of a write in its session, in decimal digits; a repetition has the same number.
pub const SEQUENCE_HEADER: &str = "shoal-sequence";
