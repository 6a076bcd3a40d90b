//! The client of the key-value service: one connection, and a call for each method.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use bytes::Bytes;
use http::uri::PathAndQuery;
use prost::Message;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

use super::wire::{CREATE, DELETE, Key, Nothing, Pair, RETRIEVE, RetrieveResponse, UPDATE};

/// The same as in Shoal's client.
const STREAM_WINDOW_BYTES: u32 = 2 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 8 << 20;
const FRAME_BYTES_MAX: u32 = 32 << 10;

/// The longest message, in bytes.
const MESSAGE_BYTES_MAX: usize = 8 << 20;

/// A connection to a server of the key-value service, or to etcd. Clones share it.
#[derive(Clone)]
pub struct Calls(Channel);

impl Calls {
    /// Connects on the current runtime.
    ///
    /// # Errors
    /// No server listens.
    pub(super) async fn connect(address: SocketAddr) -> Result<Self> {
        let endpoint = Endpoint::from_shared(format!("http://{address}"))?
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_frame_size(FRAME_BYTES_MAX);
        let channel = shoal_client::connect(endpoint).await;
        Ok(Self(channel.with_context(|| format!("no server answers at {address}"))?))
    }

    pub(super) async fn create(&self, key: Bytes, value: Bytes) -> Result<(), Status> {
        self.call::<_, Nothing>(CREATE, Pair { key, value }).await.map(drop)
    }

    pub(super) async fn retrieve(&self, key: Bytes) -> Result<Bytes, Status> {
        Ok(self.call::<_, RetrieveResponse>(RETRIEVE, Key { key }).await?.value)
    }

    pub(super) async fn update(&self, key: Bytes, value: Bytes) -> Result<(), Status> {
        self.call::<_, Nothing>(UPDATE, Pair { key, value }).await.map(drop)
    }

    pub(super) async fn delete(&self, key: Bytes) -> Result<(), Status> {
        self.call::<_, Nothing>(DELETE, Key { key }).await.map(drop)
    }

    /// Any unary call.
    ///
    /// # Errors
    /// The status that the server returns, or that of a connection that failed.
    pub async fn call<Q: Message + 'static, A: Message + Default + 'static>(
        &self,
        path: &'static str,
        request: Q,
    ) -> Result<A, Status> {
        let mut grpc = Grpc::new(self.0.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX);
        grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let codec = ProstCodec::<Q, A>::default();
        Ok(grpc.unary(Request::new(request), PathAndQuery::from_static(path), codec).await?.into_inner())
    }
}
