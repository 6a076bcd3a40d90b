//! A method of a service as a type: its path and its messages. `cargo x proto` implements these for each method.

use prost::Message;

/// A method of a gRPC service.
pub trait Method: Send + Sync + 'static {
    /// Its HTTP path, as `/shoal.v1.ObjectStore/Put`.
    const PATH: &'static str;
    /// The message, or each message, of the caller.
    type Request: Message + Default + 'static;
    /// The message, or each message, of the answer.
    type Response: Message + Default + 'static;
}

/// One message to the server, one message back.
pub trait Unary: Method {}

/// A stream of messages to the server, one message back.
pub trait ClientStreaming: Method {}

/// One message to the server, a stream of messages back.
pub trait ServerStreaming: Method {}

/// Streams both ways.
pub trait Bidirectional: Method {}
