//! The messages of the key-value service (`io.grpc.KeyValueService`), by hand: an independent client, written for that schema,
//! proves more than one that shares the server's code.

use bytes::Bytes;
use prost::Message;

/// The path of a method of the key-value service.
pub const CREATE: &str = "/io.grpc.KeyValueService/Create";
/// See [`CREATE`].
pub const RETRIEVE: &str = "/io.grpc.KeyValueService/Retrieve";
/// See [`CREATE`].
pub const UPDATE: &str = "/io.grpc.KeyValueService/Update";
/// See [`CREATE`].
pub const DELETE: &str = "/io.grpc.KeyValueService/Delete";

/// CreateRequest and UpdateRequest; also the first fields of etcd's PutRequest.
#[derive(Clone, PartialEq, Message)]
pub struct Pair {
    /// The key.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// The value.
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
}

/// RetrieveRequest and DeleteRequest.
#[derive(Clone, PartialEq, Message)]
pub struct Key {
    /// The key.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
}

/// RetrieveResponse.
#[derive(Clone, PartialEq, Message)]
pub struct Value {
    /// The value.
    #[prost(bytes = "bytes", tag = "1")]
    pub value: Bytes,
}

/// CreateResponse, UpdateResponse and DeleteResponse; also any answer of etcd.
#[derive(Clone, PartialEq, Message)]
pub struct Nothing {}
