//! The messages of the seed's service (`io.grpc.KeyValueService`), and of the one call of etcd that is measured, by hand: a
//! client of its own, written for the seed's schema, proves more than one that shares the server's code.

use bytes::Bytes;
use prost::Message;

/// Paths of the seed's methods.
pub(super) const CREATE: &str = "/io.grpc.KeyValueService/Create";
pub(super) const RETRIEVE: &str = "/io.grpc.KeyValueService/Retrieve";
pub(super) const UPDATE: &str = "/io.grpc.KeyValueService/Update";
pub(super) const DELETE: &str = "/io.grpc.KeyValueService/Delete";

/// etcd's put.
pub(super) const ETCD_PUT: &str = "/etcdserverpb.KV/Put";

/// CreateRequest and UpdateRequest; also the first fields of etcd's PutRequest.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Pair {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) value: Bytes,
}

/// RetrieveRequest and DeleteRequest.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Key {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) key: Bytes,
}

/// RetrieveResponse.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Value {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) value: Bytes,
}

/// CreateResponse, UpdateResponse and DeleteResponse; whatever etcd answers, too.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Nothing {}
