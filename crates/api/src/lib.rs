//! Shoal's messages on the wire, shared by server and client: the protobuf schema of `proto/` as Rust types, one marker type a
//! method, the encoding of failures, and the timeouts that both keep. `cargo x proto` writes the folder `generated` from the schema.
//!
//! Nothing here does I/O or decides anything. The rules that a schema cannot express are in `docs/format/grpc.md`.

mod awake;
mod codec;
mod failure;
pub mod fields;
mod limits;
mod method;
#[cfg(feature = "timer")]
mod timer;

/// The messages and methods of the package `shoal.v1` (`proto/shoal/v1/object_store.proto`).
pub mod v1 {
    #![allow(clippy::all, unreachable_pub, unused_qualifications)]
    include!("generated/shoal.v1.rs");
}

/// The messages and methods of the package `io.grpc` (`proto/io/grpc/key_value.proto`): the key-value service of the series "So
/// you want to optimize gRPC" (`docs/sources.md`).
pub mod key_value {
    #![allow(clippy::all, unreachable_pub, unused_qualifications)]
    include!("generated/io.grpc.rs");
}

pub use awake::{AwakeSleep, within};
pub use codec::{BytesCodec, Encodes, OutgoingMessage, decode};
pub use failure::{Code, Described};
pub use limits::*;
pub use method::{Bidirectional, ClientStreaming, Method, ServerStreaming, Unary};
#[cfg(feature = "timer")]
pub use timer::AwakeTimer;

/// The schema as an encoded `google.protobuf.FileDescriptorSet`, for reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!("generated/descriptors.bin");
