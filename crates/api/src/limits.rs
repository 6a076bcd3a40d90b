//! Limits and names of the gRPC frontend that both sides know. `docs/format/grpc.md` lists them.

use shoal_base::limits::VALUE_BYTES_SINGLE_MAX;

/// The longest chunk of a streamed value, in bytes: 1 MiB. Long enough that the cost of a message does not count, short
/// enough that a stalled stream holds little memory.
pub const CHUNK_BYTES_MAX: usize = 1 << 20;

/// Bytes that a message may have besides one value: key, metadata and framing, and the headers of the items of a batch.
const MESSAGE_SLACK_BYTES: usize = 256 << 10;

/// The longest message either way, in bytes: a value of 4 MiB with everything around it.
pub const MESSAGE_BYTES_MAX: usize = VALUE_BYTES_SINGLE_MAX as usize + MESSAGE_SLACK_BYTES;

/// The longest value of an operation of a stream of operations, in bytes, either way. So short that many of them may be under
/// way on one stream; a longer one hardly notices what a call of its own costs.
pub const OPERATION_VALUE_BYTES_MAX: usize = 64 << 10;

/// The longest message of a stream of operations to the server, in bytes: a stream may hold a few of these.
pub const OPERATIONS_MESSAGE_BYTES_MAX: usize = 256 << 10;

/// The metadata that says in which session a write is (R17): a number, in decimal digits.
pub const SESSION_HEADER: &str = "shoal-session";

/// The metadata that says which write of its session it is: a number, in decimal digits; the same when it is repeated.
pub const SEQUENCE_HEADER: &str = "shoal-sequence";
