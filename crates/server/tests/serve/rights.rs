//! Tokens that may not do everything, in the hands of callers that try everything: each method, each shape of a request, and
//! rights that change while streams are open.

use bytes::Bytes;
use futures_util::stream;
use http::uri::PathAndQuery;
use shoal_api::v1::operation::Action;
use shoal_api::{Method, key_value as kv, v1};
use shoal_engine::{ListRequest, block_on};
use shoal_server::{Credentials, Security, ServerOptions};
use shoal_storekit::put;
use tonic::transport::Channel;
use tonic::{Code, Status};
use tonic_prost::ProstCodec;

use crate::support::{Running, chunk, credentials_of, end, grpc_over, with_token};

const ALL: &str = "everything-is-allowed";
const READS: &str = "reads-all-buckets";
const FILMS: &str = "reads-and-writes-films";
const READS_FILMS: &str = "reads-films-alone";

fn credentials() -> Credentials {
    credentials_of(&format!(
        "{ALL}\n{READS} read-only\n{FILMS} bucket=films\n{READS_FILMS} bucket=films,read-only\n"
    ))
}

/// A server whose bucket of `io.grpc.KeyValueService` is `films`.
async fn serve() -> (Running, Security) {
    let security = Security::new(credentials());
    let options =
        ServerOptions { security: security.clone(), kv_bucket: "films".into(), ..ServerOptions::default() };
    (Running::told(options).await, security)
}

/// All answers to `requests`, or the status with which the call fails. Each shape of a method is the same on the wire.
async fn ask<M: Method>(
    channel: &Channel,
    token: &str,
    requests: Vec<M::Request>,
) -> Result<Vec<M::Response>, Status> {
    let (mut grpc, request) = (grpc_over(channel).await, with_token(stream::iter(requests), token));
    let codec = ProstCodec::<M::Request, M::Response>::default();
    let mut answers = grpc.streaming(request, PathAndQuery::from_static(M::PATH), codec).await?.into_inner();
    let mut all = Vec::new();
    while let Some(answer) = answers.message().await? {
        all.push(answer);
    }
    Ok(all)
}

/// The rights that a request needs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Need {
    Read(&'static str),
    Write(&'static str),
    ReadAll,
    Administer,
}

fn is_allowed(token: &str, need: Need) -> bool {
    match (token, need) {
        (ALL, _) => true,
        (READS, need) => matches!(need, Need::Read(_) | Need::ReadAll),
        (FILMS, need) => matches!(need, Need::Read("films") | Need::Write("films")),
        (READS_FILMS, need) => need == Need::Read("films"),
        _ => false,
    }
}

/// Tries `requests` with every token, and records that the method was tried.
async fn attack<M: Method>(
    server: &Running,
    tried: &mut Vec<&'static str>,
    need: Need,
    requests: Vec<M::Request>,
) where
    M::Request: Clone,
{
    let channel = server.channel().await;
    for token in [READS, FILMS, READS_FILMS, ALL] {
        let before = contents(server);
        let answer = ask::<M>(&channel, token, requests.clone()).await;
        let code = answer.as_ref().err().map(Status::code);
        if is_allowed(token, need) {
            assert_ne!(code, Some(Code::PermissionDenied), "{} {need:?} by {token}", M::PATH);
        } else {
            assert_eq!(code, Some(Code::PermissionDenied), "{} {need:?} by {token}", M::PATH);
            let problem = answer.err().unwrap();
            assert!(problem.message().contains("the token"), "{problem:?}");
            assert!(!problem.message().contains(token), "{problem:?}");
            assert_eq!(contents(server), before, "{} {need:?} by {token}", M::PATH);
        }
    }
    tried.push(M::PATH);
}

/// All objects: bucket, key and version.
fn contents(server: &Running) -> Vec<(String, Vec<u8>, u64)> {
    let names = block_on(server.store.buckets("", 1000)).unwrap().names;
    let of = |bucket: String| {
        let request = ListRequest { bucket: bucket.clone(), limit: 1000, ..ListRequest::default() };
        let page = block_on(server.store.list(&request)).unwrap();
        page.entries.into_iter().map(move |(key, info)| (bucket.clone(), key, info.version.0))
    };
    names.into_iter().flat_map(of).collect()
}

fn fill(server: &Running) {
    for bucket in ["films", "maps", "default"] {
        put(&server.store, bucket, b"k", [5; 9]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_method_checks_rights() {
    let (server, _) = serve().await;
    fill(&server);
    let mut tried = Vec::new();
    let tried = &mut tried;
    let key = Bytes::from_static(b"k");
    // A long value is received into its final memory, before the rights of the put are checked.
    let (value, long) = (Bytes::from_static(b"stolen"), Bytes::from(vec![1; 100_000]));
    // The empty name is the default bucket's, which no token here is for.
    for bucket in ["films", "maps", "", "default"] {
        let name = bucket.to_owned();
        let (read, write) = (Need::Read(bucket), Need::Write(bucket));
        let get = v1::GetRequest { bucket: name.clone(), key: key.clone(), ..Default::default() };
        attack::<v1::Get>(&server, tried, read, vec![get]).await;
        let head = v1::HeadRequest { bucket: name.clone(), key: key.clone() };
        attack::<v1::Head>(&server, tried, read, vec![head]).await;
        let list = v1::ListRequest { bucket: name.clone(), ..Default::default() };
        attack::<v1::List>(&server, tried, read, vec![list]).await;
        let item = v1::MultiGetItem { key: key.clone(), ..Default::default() };
        for items in [vec![], vec![item.clone()], vec![item.clone(), item]] {
            let request = v1::MultiGetRequest { bucket: name.clone(), items };
            attack::<v1::MultiGet>(&server, tried, read, vec![request]).await;
        }
        let stream = v1::GetStreamRequest { bucket: name.clone(), key: key.clone(), ..Default::default() };
        attack::<v1::GetStream>(&server, tried, read, vec![stream]).await;

        for (return_existing, value) in [(false, &value), (true, &value), (false, &long), (true, &long)] {
            // An answer with the object that exists is a read by way of a write.
            let rules = Some(v1::RejectRules { if_exists: return_existing, ..Default::default() });
            let put = v1::PutRequest {
                bucket: name.clone(),
                key: key.clone(),
                value: value.clone(),
                rules,
                return_existing,
                ..Default::default()
            };
            attack::<v1::Put>(&server, tried, write, vec![put]).await;
        }
        let plain = v1::MultiPutItem { key: key.clone(), value: value.clone(), ..Default::default() };
        let ruled = v1::MultiPutItem { rules: Some(v1::RejectRules::default()), ..plain.clone() };
        let large = v1::MultiPutItem { value: long.clone(), ..plain.clone() };
        for items in [vec![plain.clone()], vec![plain.clone(), plain.clone()], vec![ruled], vec![large]] {
            for atomic in [false, true] {
                let request = v1::MultiPutRequest { bucket: name.clone(), items: items.clone(), atomic };
                attack::<v1::MultiPut>(&server, tried, write, vec![request]).await;
            }
        }
        let header = v1::PutStreamHeader { bucket: name.clone(), key: key.clone(), ..Default::default() };
        let header = v1::PutStreamRequest { part: Some(v1::put_stream_request::Part::Header(header)) };
        let parts = vec![header, chunk(value.clone()), end(value.len() as u64)];
        attack::<v1::PutStream>(&server, tried, write, parts).await;
        // When everything else has been tried, the objects are deleted.
        let item = v1::MultiDeleteItem { key: key.clone(), ..Default::default() };
        let request = v1::MultiDeleteRequest { bucket: name.clone(), items: vec![item] };
        attack::<v1::MultiDelete>(&server, tried, write, vec![request]).await;
        let delete = v1::DeleteRequest { bucket: name.clone(), key: key.clone(), ..Default::default() };
        attack::<v1::Delete>(&server, tried, write, vec![delete]).await;
    }
    fill(&server);
    let (read, write) = (Need::Read("films"), Need::Write("films"));
    for value in [&value, &long] {
        let create = kv::CreateRequest { key: key.clone(), value: value.clone() };
        attack::<kv::Create>(&server, tried, write, vec![create]).await;
        let update = kv::UpdateRequest { key: key.clone(), value: value.clone() };
        attack::<kv::Update>(&server, tried, write, vec![update]).await;
    }
    attack::<kv::Retrieve>(&server, tried, read, vec![kv::RetrieveRequest { key: key.clone() }]).await;
    attack::<kv::Delete>(&server, tried, write, vec![kv::DeleteRequest { key }]).await;
    attack::<v1::Stat>(&server, tried, Need::ReadAll, vec![v1::StatRequest {}]).await;
    attack::<v1::ListBuckets>(&server, tried, Need::ReadAll, vec![v1::ListBucketsRequest::default()]).await;
    attack::<v1::Backup>(&server, tried, Need::ReadAll, vec![v1::BackupRequest::default()]).await;
    attack::<v1::FreeSpace>(&server, tried, Need::ReadAll, vec![v1::FreeSpaceRequest {}]).await;
    attack::<v1::Report>(&server, tried, Need::Administer, vec![v1::ReportRequest {}]).await;
    for pause in [true, false] {
        attack::<v1::Moving>(&server, tried, Need::Administer, vec![v1::MovingRequest { pause }]).await;
    }
    attack::<v1::Grow>(
        &server,
        tried,
        Need::Administer,
        vec![v1::GrowRequest { bytes: Some(1 << 40), force: true }],
    )
    .await;
    // Operations have a status each: they are in the next test. A new method must be tried here.
    tried.push(v1::Operations::PATH);
    for path in v1::OBJECT_STORE_PATHS.iter().chain(kv::KEY_VALUE_SERVICE_PATHS) {
        assert!(tried.contains(path), "{path} is not tried");
    }
    server.stop().await;
}

fn operation(number: u64, action: Action, says_more: bool) -> v1::Operation {
    let modified_ns = says_more.then_some(7);
    v1::Operation {
        number,
        action: action.into(),
        key: "k".into(),
        value: if action == Action::Put { "stolen".into() } else { Bytes::new() },
        modified_ns,
        ..Default::default()
    }
}

/// A stream changes its bucket with each message; cached objects are served from memory on a separate path.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_stream_operation_checks_rights() {
    let (server, _) = serve().await;
    let channel = server.channel().await;
    for token in [READS, FILMS, READS_FILMS, ALL] {
        fill(&server);
        let mut messages = Vec::new();
        let mut needs = Vec::new();
        for bucket in ["films", "maps", "", "films", "maps"] {
            let mut operations = Vec::new();
            for says_more in [false, true] {
                for action in
                    [Action::Get, Action::Get, Action::Head, Action::Put, Action::Delete, Action::Unspecified]
                {
                    needs.push(match action {
                        Action::Put | Action::Delete => Need::Write(bucket),
                        _ => Need::Read(bucket),
                    });
                    operations.push(operation(needs.len() as u64 - 1, action, says_more));
                }
            }
            messages.push(v1::OperationsRequest { bucket: bucket.into(), operations });
        }
        let before = contents(&server);
        let answers = ask::<v1::Operations>(&channel, token, messages).await.unwrap();
        let results: Vec<_> = answers.into_iter().flat_map(|answer| answer.results).collect();
        assert_eq!(results.len(), needs.len());
        for result in results {
            let need = needs[result.number as usize];
            let code = result.status.map_or(0, |status| status.code);
            assert_eq!(
                code == Code::PermissionDenied as i32,
                !is_allowed(token, need),
                "{need:?} by {token}"
            );
            assert!(is_allowed(token, need) || (result.info.is_none() && result.value.is_empty()));
        }
        let of = |all: Vec<(String, Vec<u8>, u64)>, films: bool| {
            all.into_iter().filter(|(bucket, ..)| (bucket == "films") == films).collect::<Vec<_>>()
        };
        let after = contents(&server);
        assert_eq!(of(after.clone(), false) == of(before.clone(), false), token != ALL, "{token}");
        let writes_films = token == ALL || token == FILMS;
        assert_eq!(of(after, true) == of(before, true), !writes_films, "{token}");
    }
    server.stop().await;
}

/// Health and reflection are open to every token; an unknown token gets nothing anywhere.
#[tokio::test]
async fn health_and_reflection_need_no_rights() {
    use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
    let (server, _) = serve().await;
    let channel = server.channel().await;
    for (token, expected) in
        [(READS_FILMS, None), (FILMS, None), ("no-such-token-at-all", Some(Code::Unauthenticated))]
    {
        let request = with_token(HealthCheckRequest { service: String::new() }, token);
        let codec = ProstCodec::<HealthCheckRequest, HealthCheckResponse>::default();
        let path = PathAndQuery::from_static("/grpc.health.v1.Health/Check");
        let answer = grpc_over(&channel).await.unary(request, path, codec).await;
        assert_eq!(answer.err().map(|status| status.code()), expected);
    }
    // The words after a token are no credential, nor a part of one.
    for wrong in ["read-only", "bucket=films", &format!("{READS_FILMS} bucket=films,read-only")] {
        let stat = ask::<v1::Stat>(&channel, wrong, vec![v1::StatRequest {}]).await;
        assert_eq!(stat.unwrap_err().code(), Code::Unauthenticated, "{wrong}");
    }
    server.stop().await;
}

/// A stream that was opened with more rights than its token has now is closed, before a further operation of it is executed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_ends_when_its_token_has_other_rights() {
    let (server, security) = serve().await;
    fill(&server);
    let channel = server.channel().await;
    let (asks, requests) = tokio::sync::mpsc::channel(4);
    let requests =
        stream::unfold(requests, async |mut requests| requests.recv().await.map(|next| (next, requests)));
    let (mut grpc, request) = (grpc_over(&channel).await, with_token(requests, FILMS));
    let put = |number| v1::OperationsRequest {
        bucket: "films".into(),
        operations: vec![operation(number, Action::Put, false)],
    };
    asks.send(put(1)).await.unwrap();
    let codec = ProstCodec::<v1::OperationsRequest, v1::OperationsResponse>::default();
    let path = PathAndQuery::from_static(v1::Operations::PATH);
    let mut answers = grpc.streaming(request, path, codec).await.unwrap().into_inner();
    let first = answers.message().await.unwrap().unwrap();
    assert!(first.results[0].status.is_none() && first.results[0].version > 0);
    // The same rights again change nothing.
    security.replace(credentials());
    asks.send(put(2)).await.unwrap();
    assert!(answers.message().await.unwrap().unwrap().results[0].status.is_none());
    let before = contents(&server);
    security.replace(credentials_of(&format!("{FILMS} bucket=films,read-only\n")));
    // The server may have closed the stream before it takes this.
    let _ = asks.send(put(3)).await;
    let status =
        answers.message().await.expect_err("the stream ends with a status, and answers nothing more");
    assert_eq!(status.code(), Code::Unauthenticated);
    assert!(status.message().contains("other rights"), "{status:?}");
    assert_eq!(contents(&server), before);
    server.stop().await;
}
