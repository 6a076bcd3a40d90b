//! Writes that are applied once, and several puts as one write batch.

use http::uri::PathAndQuery;
use shoal_api::v1::failure::Kind;
use shoal_api::v1::put_stream_request::Part;
use shoal_api::{Method, SEQUENCE_HEADER, SESSION_HEADER, Unary, v1};
use shoal_client::{ByteRange, ConnectOptions, Error, PutItem, PutOptions, RejectRules};
use tonic::transport::Channel;
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

use crate::support::{Running, grpc_over, kind};

/// A request with a session and a number in it.
fn with_request_id<T>(message: T, (session, number): (&'static str, u64)) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert(SESSION_HEADER, session.parse().unwrap());
    request.metadata_mut().insert(SEQUENCE_HEADER, number.into());
    request
}

/// A call with a session and a number in it.
async fn call_as<M: Unary>(
    channel: &Channel,
    request_id: (&'static str, u64),
    request: M::Request,
) -> Result<M::Response, Status> {
    let codec = ProstCodec::<M::Request, M::Response>::default();
    let path = PathAndQuery::from_static(<M as Method>::PATH);
    Ok(grpc_over(channel).await.unary(with_request_id(request, request_id), path, codec).await?.into_inner())
}

fn put(key: &'static str, value: &'static str, if_exists: bool) -> v1::PutRequest {
    let rules = if_exists.then(|| v1::RejectRules { if_exists, ..v1::RejectRules::default() });
    v1::PutRequest {
        bucket: "b".into(),
        key: key.into(),
        value: value.into(),
        rules,
        modified_ns: Some(5),
        ..v1::PutRequest::default()
    }
}

#[tokio::test]
async fn a_repeated_write_gives_its_first_answer() {
    let server = Running::start().await;
    let channel = server.channel().await;
    let first = call_as::<v1::Put>(&channel, ("7", 1), put("k", "1", true)).await.unwrap();
    let again = call_as::<v1::Put>(&channel, ("7", 1), put("k", "1", true)).await.unwrap();
    assert_eq!(first.version, again.version);
    let other = call_as::<v1::Put>(&channel, ("7", 2), put("k", "2", true)).await.unwrap_err();
    assert_eq!(kind(&other), Kind::ConditionFailed);
    let client = server.client().await;
    let info = client.head("b", b"k").await.unwrap().unwrap();
    assert_eq!((info.version.0, info.modified_ns), (first.version, 5));
    let delete = || v1::DeleteRequest { bucket: "b".into(), key: "k".into(), rules: None };
    let deleted = call_as::<v1::Delete>(&channel, ("7", 3), delete()).await.unwrap();
    client.put("b", b"k", "3".into(), PutOptions::default()).await.unwrap();
    assert_eq!(call_as::<v1::Delete>(&channel, ("7", 3), delete()).await.unwrap(), deleted);
    assert!(client.head("b", b"k").await.unwrap().is_some(), "a repetition deletes nothing");
    let wrong = call_as::<v1::Put>(&channel, ("x", 3), put("k", "2", true)).await.unwrap_err();
    assert_eq!(kind(&wrong), Kind::Invalid);
    server.stop().await;
}

fn puts(items: &[(&'static str, bool)]) -> v1::MultiPutRequest {
    let item = |&(key, if_exists): &(&'static str, bool)| v1::MultiPutItem {
        key: key.into(),
        value: "v".into(),
        rules: if_exists.then(|| v1::RejectRules { if_exists, ..v1::RejectRules::default() }),
        ..v1::MultiPutItem::default()
    };
    v1::MultiPutRequest { bucket: "b".into(), items: items.iter().map(item).collect(), atomic: true }
}

/// A write batch that was applied or rejected is answered as before, with all details.
#[tokio::test]
async fn a_repeated_write_batch_gives_its_first_answer() {
    let server = Running::start().await;
    let channel = server.channel().await;
    let two = || puts(&[("x", true), ("y", true)]);
    let first = call_as::<v1::MultiPut>(&channel, ("7", 1), two()).await.unwrap();
    assert_eq!(call_as::<v1::MultiPut>(&channel, ("7", 1), two()).await.unwrap(), first);
    let three = || puts(&[("z", true), ("y", true), ("x", true)]);
    let rejected = call_as::<v1::MultiPut>(&channel, ("7", 2), three()).await.unwrap_err();
    let current = |status: &Status| shoal_api::Described::from_status(status).failure.current_version;
    assert_eq!(
        (kind(&rejected), current(&rejected)),
        (Kind::ConditionFailed, Some(first.results[1].version))
    );
    call_as::<v1::Put>(&channel, ("7", 3), put("z", "1", false)).await.unwrap();
    call_as::<v1::Put>(&channel, ("7", 4), put("y", "1", false)).await.unwrap();
    let again = call_as::<v1::MultiPut>(&channel, ("7", 2), three()).await.unwrap_err();
    assert_eq!((again.message(), again.details()), (rejected.message(), rejected.details()));
    server.stop().await;
}

/// The request id of an earlier write for another one: it is refused, for any two writes.
#[tokio::test]
async fn request_id_belongs_to_one_write() {
    let server = Running::start().await;
    let channel = server.channel().await;
    call_as::<v1::Put>(&channel, ("7", 1), put("k", "1", false)).await.unwrap();
    let many: Vec<(&'static str, bool)> = (0..100).map(|_| ("k", false)).collect();
    let refused = call_as::<v1::MultiPut>(&channel, ("7", 1), puts(&many)).await.unwrap_err();
    assert_eq!(kind(&refused), Kind::Invalid, "{refused:?}");
    let two = [("k", false), ("k", false)];
    call_as::<v1::MultiPut>(&channel, ("7", 2), puts(&two)).await.unwrap();
    for items in [&many[..], &many[..1]] {
        let refused = call_as::<v1::MultiPut>(&channel, ("7", 2), puts(items)).await.unwrap_err();
        assert_eq!(kind(&refused), Kind::Invalid, "{refused:?}");
    }
    let refused = call_as::<v1::Put>(&channel, ("7", 2), put("k", "1", false)).await.unwrap_err();
    assert_eq!(kind(&refused), Kind::Invalid, "{refused:?}");
    server.stop().await;
}

/// A PutStream of these parts, with a session and a number in it.
async fn stream_as(
    channel: &Channel,
    request_id: (&'static str, u64),
    parts: Vec<Part>,
) -> Result<v1::PutResponse, Status> {
    let codec = ProstCodec::<v1::PutStreamRequest, v1::PutResponse>::default();
    let parts = parts.into_iter().map(|part| v1::PutStreamRequest { part: Some(part) });
    let request = with_request_id(futures_util::stream::iter(parts), request_id);
    let path = PathAndQuery::from_static(<v1::PutStream as Method>::PATH);
    Ok(grpc_over(channel).await.client_streaming(request, path, codec).await?.into_inner())
}

/// The request id of a stream was ignored: the stream was sent again, and its object of the first time refused it.
#[tokio::test]
async fn a_repeated_stream_gives_its_first_answer() {
    let server = Running::start().await;
    let channel = server.channel().await;
    for (sequence, chunks) in [(1, 1), (2, 6)] {
        let key = format!("stream-{chunks}");
        let parts = || {
            let rules = Some(v1::RejectRules { if_exists: true, ..v1::RejectRules::default() });
            let header = v1::PutStreamHeader {
                bucket: "b".into(),
                key: key.clone().into(),
                rules,
                ..v1::PutStreamHeader::default()
            };
            let chunk = |_| Part::Chunk(vec![7; 1 << 20].into());
            let end = Part::End(v1::PutStreamEnd { bytes: chunks << 20 });
            let chunks = (0..chunks).map(chunk);
            std::iter::once(Part::Header(header)).chain(chunks).chain([end]).collect()
        };
        let first = stream_as(&channel, ("9", sequence), parts()).await.unwrap();
        assert_eq!(stream_as(&channel, ("9", sequence), parts()).await.unwrap(), first);
        let other = stream_as(&channel, ("9", sequence + 10), parts()).await.unwrap_err();
        assert_eq!(kind(&other), Kind::ConditionFailed);
    }
    server.stop().await;
}

/// A call that cannot honour a request id refuses it: it was ignored.
#[tokio::test]
async fn invalid_request_id_is_rejected() {
    let server = Running::start().await;
    let channel = server.channel().await;
    call_as::<v1::Put>(&channel, ("7", 1), put("k", "1", false)).await.unwrap();
    let item = v1::MultiDeleteItem { key: "k".into(), ..v1::MultiDeleteItem::default() };
    let deletes = v1::MultiDeleteRequest { bucket: "b".into(), items: vec![item] };
    let refused = call_as::<v1::MultiDelete>(&channel, ("7", 2), deletes).await.unwrap_err();
    assert_eq!(kind(&refused), Kind::Invalid, "{refused:?}");
    let apart = v1::MultiPutRequest { atomic: false, ..puts(&[("k", false)]) };
    let refused = call_as::<v1::MultiPut>(&channel, ("7", 2), apart).await.unwrap_err();
    assert_eq!(kind(&refused), Kind::Invalid, "{refused:?}");
    assert!(server.client().await.head("b", b"k").await.unwrap().is_some(), "nothing was done");
    let codec = ProstCodec::<v1::OperationsRequest, v1::OperationsResponse>::default();
    let request = with_request_id(futures_util::stream::pending(), ("7", 3));
    let path = PathAndQuery::from_static(<v1::Operations as Method>::PATH);
    let refused = grpc_over(&channel).await.streaming(request, path, codec).await.err().unwrap();
    assert_eq!(kind(&refused), Kind::Invalid, "{refused:?}");
    server.stop().await;
}

/// In one write batch a key may come twice: the last of its items stays, each has a separate version, and conditions apply to the state
/// before the batch.
#[tokio::test]
async fn last_put_of_repeated_key_wins() {
    let server = Running::start().await;
    let channel = server.channel().await;
    let client = server.client().await;
    for (sequence, last) in [(1, "short"), (2, "long")] {
        let value = |text: &str| if text == "long" { vec![b'l'; 100_000] } else { text.as_bytes().to_vec() };
        let item = |value: Vec<u8>| v1::MultiPutItem {
            key: last.into(),
            value: value.into(),
            rules: Some(v1::RejectRules { if_exists: true, ..v1::RejectRules::default() }),
            ..v1::MultiPutItem::default()
        };
        let beside =
            v1::MultiPutItem { key: "beside".into(), value: "b".into(), ..v1::MultiPutItem::default() };
        let items = vec![item(value("first")), beside, item(value(last))];
        let batch = || v1::MultiPutRequest { bucket: "b".into(), items: items.clone(), atomic: true };
        let done = call_as::<v1::MultiPut>(&channel, ("7", sequence), batch()).await.unwrap();
        let versions: Vec<u64> = done.results.iter().map(|result| result.version).collect();
        assert!(versions.is_sorted_by(|a, b| a < b), "{versions:?}");
        let object = client.get("b", last.as_bytes(), ByteRange::ALL).await.unwrap().unwrap();
        assert_eq!((object.info.version.0, object.value.to_vec()), (versions[2], value(last)));
        let again = call_as::<v1::MultiPut>(&channel, ("8", sequence), batch()).await.unwrap_err();
        assert_eq!(kind(&again), Kind::ConditionFailed, "it exists before the batch");
    }
    server.stop().await;
}

fn item(key: &'static str, value: &'static str, rules: RejectRules) -> PutItem {
    let options = PutOptions { rules, ..PutOptions::default() };
    PutItem { key: key.into(), value: value.into(), options }
}

#[tokio::test]
async fn several_puts_are_one_write_batch() {
    let server = Running::start().await;
    for dedup in [false, true] {
        let options = ConnectOptions { dedup, ..server.options() };
        let client = shoal_client::Client::connect(options).await.unwrap();
        let none = RejectRules::default();
        let put = client.put_batch("b", &[item("x", "1", none), item("y", "2", none)]).await.unwrap();
        for (key, put) in [(b"x", put[0]), (b"y", put[1])] {
            assert_eq!(client.head("b", key).await.unwrap().unwrap().version, put.version);
        }
        let if_exists = RejectRules { if_exists: true, ..none };
        let refused = client.put_batch("b", &[item("z", "1", if_exists), item("y", "3", if_exists)]).await;
        let Err(Error::ConditionFailed { current, .. }) = refused else { panic!("{refused:?}") };
        assert_eq!(current, Some(put[1].version));
        assert_eq!(client.head("b", b"z").await.unwrap(), None, "nothing was done");
        assert!(client.put_batch("b", &[]).await.unwrap().is_empty());
        // The other uses of request ids by a client.
        let version = client.put("b", b"k", "1".into(), PutOptions::default()).await.unwrap().version;
        let rules = RejectRules { if_version_not: Some(version), ..none };
        assert_eq!(client.delete("b", b"k", rules).await.unwrap().deleted, Some(version));
    }
    server.stop().await;
}
