//! A token that is revoked closes the streams that were opened with it, and no others.

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::uri::PathAndQuery;
use prost::Message;
use shoal_api::v1;
use shoal_api::v1::operation::Action;
use shoal_client::{Client, ConnectOptions, PutOptions};
use shoal_engine::ObjectKey;
use shoal_server::{Security, ServerOptions};
use shoal_testkit::wait::HANGS_AFTER;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tonic_prost::ProstCodec;

use crate::support::{Running, chunk, credentials_of, grpc_over, header, value, with_token};

const OLD: &str = "correct-horse-battery";
const NEW: &str = "incorrect-horse-battery";

/// A stream with its sending side, which stays open.
struct Open<A, B> {
    asks: Option<mpsc::Sender<A>>,
    answers: Streaming<B>,
}

/// Opens a stream with its first message; closes the sending side if nothing more is to come.
async fn open<A, B>(channel: &Channel, path: &'static str, token: &str, first: A, goes_on: bool) -> Open<A, B>
where
    A: Message + 'static,
    B: Message + Default + 'static,
{
    let (asks, requests) = mpsc::channel(4);
    asks.send(first).await.unwrap();
    let asks = goes_on.then_some(asks);
    let requests =
        stream::unfold(requests, async |mut requests| requests.recv().await.map(|next| (next, requests)));
    let (mut grpc, request) = (grpc_over(channel).await, with_token(requests, token));
    let codec = ProstCodec::<A, B>::default();
    let answer = grpc.streaming(request, PathAndQuery::from_static(path), codec).await.unwrap();
    Open { asks, answers: answer.into_inner() }
}

impl<A, B> Open<A, B> {
    async fn next(&mut self) -> Result<Option<B>, Status> {
        timeout(HANGS_AFTER, self.answers.message()).await.expect("an answer or an end")
    }

    /// The status at its end.
    async fn end(mut self) -> Option<Code> {
        loop {
            match self.next().await {
                Ok(Some(_)) => {}
                Ok(None) => return None,
                Err(status) => return Some(status.code()),
            }
        }
    }
}

fn put(number: u64) -> v1::OperationsRequest {
    let put = v1::Operation {
        number,
        action: Action::Put.into(),
        key: "k".into(),
        value: Bytes::from_static(b"v"),
        ..Default::default()
    };
    v1::OperationsRequest { operations: vec![put], ..Default::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_token_ends_the_streams_that_it_opened() {
    type Operations = Open<v1::OperationsRequest, v1::OperationsResponse>;
    let security = Security::new(credentials_of(&format!("{OLD}\n{NEW}\n")));
    let server =
        Running::told(ServerOptions { security: security.clone(), ..ServerOptions::default() }).await;
    let options = ConnectOptions { token: Some(OLD.into()), ..server.options() };
    let client = Client::connect(options).await.unwrap();
    client.put("", b"long", value(16 << 20, 1), PutOptions::default()).await.unwrap();
    let (first, second) = (server.channel().await, server.channel().await);
    let path = "/shoal.v1.ObjectStore/Operations";
    let mut old: Operations = open(&first, path, OLD, put(1), true).await;
    let mut new: Operations = open(&first, path, NEW, put(2), true).await;
    assert_eq!(old.next().await.unwrap().unwrap().results[0].number, 1);
    assert_eq!(new.next().await.unwrap().unwrap().results[0].number, 2);
    let get = v1::GetStreamRequest { key: "long".into(), ..Default::default() };
    let mut get: Open<_, v1::GetStreamResponse> =
        open(&second, "/shoal.v1.ObjectStore/GetStream", OLD, get, false).await;
    assert!(get.next().await.unwrap().is_some());
    let check = HealthCheckRequest { service: String::new() };
    let mut watch: Open<_, HealthCheckResponse> =
        open(&second, "/grpc.health.v1.Health/Watch", OLD, check, false).await;
    assert!(watch.next().await.unwrap().is_some());
    let puts = tokio::spawn({
        let channel = first.clone();
        async move {
            let parts = stream::iter([header("half"), chunk("abc".into())]);
            let request = with_token(parts.chain(stream::pending()), OLD);
            let codec = ProstCodec::<v1::PutStreamRequest, v1::PutResponse>::default();
            let path = PathAndQuery::from_static("/shoal.v1.ObjectStore/PutStream");
            grpc_over(&channel).await.client_streaming(request, path, codec).await.map(drop)
        }
    });
    // Read again with both of them: nothing is closed.
    security.replace(credentials_of(&format!("{NEW}\n{OLD}\n")));
    old.asks.as_ref().unwrap().send(put(3)).await.unwrap();
    assert_eq!(old.next().await.unwrap().unwrap().results[0].number, 3);

    security.replace(credentials_of(NEW));
    assert_eq!(old.end().await, Some(Code::Unauthenticated));
    assert_eq!(get.end().await, Some(Code::Unauthenticated), "it was not sent to its end");
    assert_eq!(watch.end().await, Some(Code::Unauthenticated));
    let put_end = timeout(HANGS_AFTER, puts).await.expect("an end").unwrap();
    assert_eq!(put_end.unwrap_err().code(), Code::Unauthenticated);
    assert!(server.store.head(&ObjectKey::new("default", b"half").unwrap()).await.unwrap().is_none());
    // On the same connection, with the other token.
    new.asks.as_ref().unwrap().send(put(4)).await.unwrap();
    assert_eq!(new.next().await.unwrap().unwrap().results[0].number, 4);
    drop(new);
    server.stop().await;
}
