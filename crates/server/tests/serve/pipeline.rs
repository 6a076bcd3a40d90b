//! The pipeline of operations, and the effect of a broken connection on both streams of the client.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::{join_all, poll_immediate};
use shoal_client::{Answer, ByteRange, Client, ConnectOptions, Error, Pipeline, PutOptions, RejectRules};
use shoal_storekit::eventually;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

use crate::support::{Running, figure, key, value};

fn if_exists() -> PutOptions {
    let rules = RejectRules { if_exists: true, ..RejectRules::default() };
    PutOptions { rules, ..PutOptions::default() }
}

/// Takes all answers that are under way.
async fn drain<T: Ord>(pipeline: &mut Pipeline<T>) -> BTreeMap<T, Result<Answer, Error>> {
    let mut answers = BTreeMap::new();
    while let Some((note, answer)) = pipeline.next().await {
        assert!(answers.insert(note, answer).is_none(), "it was answered twice");
    }
    assert_eq!(pipeline.under_way(), 0);
    answers
}

#[tokio::test]
async fn answers_match_their_operations() {
    let server = Running::start().await;
    let client = server.client().await;
    let mut pipeline = client.pipeline("b");
    assert_eq!(pipeline.next().await, None, "nothing is under way");
    let (mut begun, mut versions) = (0, BTreeMap::new());
    // Puts of many lengths, and gets of answered ones among them: they overtake each other.
    while versions.len() < 3000 || pipeline.under_way() > 0 {
        while begun < 3000 && pipeline.has_room() {
            let put = pipeline.put(&key(begun), &value(begun % 300, 1), &PutOptions::default(), begun);
            assert_eq!(put, Ok(()));
            begun += 1;
        }
        let (number, answer) = pipeline.next().await.unwrap();
        match answer.unwrap() {
            Answer::Put(put) => {
                assert!(versions.insert(number, put.version).is_none(), "it was answered twice");
                assert_eq!(pipeline.get(&key(number), ByteRange::ALL, number), Ok(()));
            }
            Answer::Got(object) => {
                let object = object.unwrap();
                assert_eq!((object.info.version, object.value), (versions[&number], value(number % 300, 1)));
            }
            other => panic!("{other:?}"),
        }
    }

    client.put("b", b"long", value(65_537, 2), PutOptions::default()).await.unwrap();
    let this = RejectRules { if_version_not: Some(versions[&1]), ..RejectRules::default() };
    let part = ByteRange { first: 5, bytes: Some(7) };
    let all = [
        pipeline.put(b"key-0", b"v", &if_exists(), 0),
        pipeline.delete(b"key-1", this, 1),
        pipeline.get(b"key-299", part, 2),
        pipeline.get(b"long", ByteRange::ALL, 3),
        pipeline.get(b"", ByteRange::ALL, 4),
        pipeline.get(b"none", ByteRange::ALL, 5),
        // These would break the stream for all others.
        pipeline.put(b"k", &value(65_537, 1), &PutOptions::default(), 6),
        pipeline.get(&[7; 300 << 10], ByteRange::ALL, 7),
        pipeline.put(b"most", &value(65_536, 1), &PutOptions::default(), 8),
    ];
    assert_eq!((all, pipeline.under_way()), ([Ok(()); 9], 9));
    let answers = drain(&mut pipeline).await;
    assert!(matches!(&answers[&0], Err(Error::ConditionFailed { current: Some(_), .. })), "{answers:?}");
    assert!(matches!(&answers[&1], Ok(Answer::Deleted(done)) if done.deleted == Some(versions[&1])));
    assert!(
        matches!(&answers[&2], Ok(Answer::Got(Some(object))) if object.value == value(299, 1).slice(5..12))
    );
    assert!(matches!(&answers[&3], Ok(Answer::TooLong(info)) if info.bytes == 65_537));
    assert_eq!(answers[&5], Ok(Answer::Got(None)));
    for refused in [4, 6, 7] {
        assert!(matches!(&answers[&refused], Err(Error::Invalid(_))), "{refused}");
    }
    assert!(matches!(&answers[&8], Ok(Answer::Put(_))));
    drop(pipeline);
    eventually("the stream has ended", || async { figure(&client, "server.bytes_in_flight").await < 4096 })
        .await;
    server.stop().await;
}

/// Without room an operation is returned, in any state of the server; with the first answer there is room again.
#[tokio::test]
async fn pipeline_room_is_bounded() {
    let server = Running::start().await;
    let mut pipeline = server.client().await.pipeline("b");
    for bytes in [0, 65_536] {
        let (bytes, mut begun) = (value(bytes, 1), 0_usize);
        while pipeline.has_room() {
            assert_eq!(pipeline.put(&key(begun), &bytes, &PutOptions::default(), begun), Ok(()));
            begun += 1;
        }
        assert!(begun * bytes.len() <= (4 << 20) + 65_536 && begun <= 1024, "{begun}");
        assert_eq!(pipeline.get(b"k", ByteRange::ALL, 9999), Err(9999));
        let (first, _) = pipeline.next().await.unwrap();
        assert_eq!(pipeline.get(b"k", ByteRange::ALL, 9999), Ok(()));
        let answers = drain(&mut pipeline).await;
        assert!(
            answers.values().all(Result::is_ok) && answers.len() == begun && !answers.contains_key(&first)
        );
    }
    // A refusal takes room, too, until it is taken.
    while pipeline.has_room() {
        assert_eq!(pipeline.put(b"k", &[0; 65_537], &PutOptions::default(), pipeline.under_way()), Ok(()));
    }
    assert!(drain(&mut pipeline).await.into_values().all(|answer| answer.is_err()));
    server.stop().await;
}

/// A proxy before the server that a test can break.
struct Proxy {
    address: SocketAddr,
    /// No more bytes of the server arrive.
    is_mute: Arc<AtomicBool>,
    task: AbortHandle,
}

impl Proxy {
    async fn to(server: SocketAddr) -> Self {
        Self::from("127.0.0.1:0".parse().unwrap(), server).await
    }

    async fn from(address: SocketAddr, server: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let is_mute = Arc::new(AtomicBool::new(false));
        let muted = Arc::clone(&is_mute);
        let task = tokio::spawn(async move {
            // They stop with this task.
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let muted = Arc::clone(&muted);
                connections.spawn(async move {
                    let server = TcpStream::connect(server).await.unwrap();
                    let (mut from_client, mut to_client) = client.into_split();
                    let (mut from_server, mut to_server) = server.into_split();
                    let there = tokio::io::copy(&mut from_client, &mut to_server);
                    let back = async {
                        let mut bytes = vec![0; 64 << 10];
                        loop {
                            let count = from_server.read(&mut bytes).await.unwrap_or(0);
                            if count == 0 {
                                return;
                            }
                            if !muted.load(Ordering::Relaxed)
                                && to_client.write_all(&bytes[..count]).await.is_err()
                            {
                                return;
                            }
                        }
                    };
                    tokio::select! { _ = there => {}, () = back => {} }
                });
            }
        });
        Self { address, is_mute, task: task.abort_handle() }
    }

    fn mute(&self) {
        self.is_mute.store(true, Ordering::Relaxed);
    }

    /// Closes all connections; the address is free then.
    fn cut(self) -> SocketAddr {
        self.task.abort();
        self.address
    }

    async fn client(&self, answer_timeout: Duration) -> Client {
        let options = ConnectOptions {
            attempts: 1,
            connections: 1,
            answer_timeout,
            ..ConnectOptions::new(self.address.to_string())
        };
        Client::connect(options).await.unwrap()
    }
}

const LONG: Duration = Duration::from_secs(60);

/// A broken connection fails the operations that were sent over it, once each; a later operation opens it again.
#[tokio::test]
async fn broken_stream_fails_sent_operations_and_reconnects() {
    let server = Running::start().await;
    let way = Proxy::to(server.address).await;
    let client = way.client(LONG).await;
    let mut pipeline = client.pipeline("b");
    let operations = client.operations("b");
    assert_eq!(pipeline.put(b"a", b"1", &PutOptions::default(), 0), Ok(()));
    assert!(matches!(pipeline.next().await, Some((0, Ok(Answer::Put(_))))));
    operations.put("b".into(), "1".into(), PutOptions::default()).await.unwrap();

    way.mute();
    assert_eq!(pipeline.put(b"c", b"1", &PutOptions::default(), 1), Ok(()));
    assert_eq!(pipeline.get(b"a", ByteRange::ALL, 2), Ok(()));
    let put = operations.put("d".into(), "1".into(), PutOptions::default());
    let get = operations.get("b".into(), ByteRange::ALL);
    let (mut put, mut get) = (std::pin::pin!(put), std::pin::pin!(get));
    assert!(poll_immediate(put.as_mut()).await.is_none() && poll_immediate(get.as_mut()).await.is_none());
    assert!(poll_immediate(pipeline.next()).await.is_none());
    let is_there = async |key: &[u8]| {
        let name = shoal_engine::ObjectKey::new("b", key).unwrap();
        server.store.head(&name).await.unwrap().is_some()
    };
    eventually("both puts are done, though nobody says so", || async {
        is_there(b"c").await && is_there(b"d").await
    })
    .await;
    let address = way.cut();
    let answers = drain(&mut pipeline).await;
    assert!(matches!(&answers[&1], Err(Error::Unknown(_))), "{answers:?}");
    assert!(matches!(&answers[&2], Err(Error::Unavailable { .. })), "{answers:?}");
    assert!(matches!(put.await, Err(Error::Unknown(_))));
    assert!(matches!(get.await, Err(Error::Unavailable { .. })));

    // The server is not there: operations that were not sent were not executed.
    assert_eq!(pipeline.put(b"e", b"1", &PutOptions::default(), 3), Ok(()));
    assert!(matches!(pipeline.next().await, Some((3, Err(Error::Unavailable { .. })))));
    let error = operations.put("e".into(), "1".into(), PutOptions::default()).await;
    assert!(matches!(error, Err(Error::Unavailable { .. })), "{error:?}");
    assert!(!is_there(b"e").await);

    let _again = Proxy::from(address, server.address).await;
    assert_eq!(pipeline.get(b"c", ByteRange::ALL, 4), Ok(()));
    assert!(matches!(pipeline.next().await, Some((4, Ok(Answer::Got(Some(_)))))));
    assert!(operations.get("d".into(), ByteRange::ALL).await.unwrap().is_some());
    server.stop().await;
}

/// The client abandons a silent server; a stream without a request may be silent.
#[tokio::test]
async fn silent_server_times_out() {
    let server = Running::start().await;
    let way = Proxy::to(server.address).await;
    let client = way.client(Duration::from_millis(300)).await;
    let mut pipeline = client.pipeline("b");
    assert_eq!(pipeline.put(b"k", b"1", &PutOptions::default(), 0), Ok(()));
    // On a machine that is busy enough this may be abandoned, too; the put is answered in any case.
    let (note, first) = pipeline.next().await.unwrap();
    assert!(note == 0 && matches!(first, Ok(Answer::Put(_)) | Err(Error::Unknown(_))), "{first:?}");
    way.mute();
    assert_eq!(pipeline.put(b"k", b"2", &PutOptions::default(), 1), Ok(()));
    assert_eq!(pipeline.get(b"k", ByteRange::ALL, 2), Ok(()));
    let answers = drain(&mut pipeline).await;
    assert!(matches!(&answers[&1], Err(Error::Unknown(_) | Error::Unavailable { .. })), "{answers:?}");
    assert!(matches!(&answers[&2], Err(Error::Unavailable { .. })), "{answers:?}");
    way.cut();
    server.stop().await;
}

/// A caller that abandons an operation returns its room, sent or not, and harms nobody else.
#[tokio::test]
async fn dropped_operations_leave_no_state() {
    let server = Running::start().await;
    let client = server.client().await;
    let operations = client.operations("b");
    for round in 0..5 {
        let mut given_up = Vec::new();
        for number in 0..1000 {
            let put = operations.put(key(number), "v".into(), PutOptions::default());
            let mut put = Box::pin(put);
            assert!(poll_immediate(put.as_mut()).await.is_none());
            given_up.push(put);
        }
        let mut kept = given_up.split_off(500);
        drop(given_up);
        assert!(kept.pop().unwrap().await.is_ok());
        // Some of these have answers that nobody took.
        drop(kept);
        let found = join_all((0..1000).map(|number| operations.get(key(number), ByteRange::ALL))).await;
        assert!(found.into_iter().all(|found| found.is_ok()), "{round}");
    }
    // An abandoned write is applied as a whole or not at all.
    for number in 0..1000 {
        let found = operations.get(key(number), ByteRange::ALL).await.unwrap();
        assert!(found.is_none_or(|object| object.value == "v"));
    }
    server.stop().await;
}

/// The runtime of a stream stops: callers that wait elsewhere get an error.
#[test]
fn runtime_shutdown_ends_waiting_calls() {
    let runtime =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (here, there) = (runtime(), runtime());
    let (server, way, operations) = there.block_on(async {
        let server = Running::start().await;
        let way = Proxy::to(server.address).await;
        let operations = way.client(LONG).await.operations("b");
        operations.put("k".into(), "1".into(), PutOptions::default()).await.unwrap();
        way.mute();
        (server, way, operations)
    });
    let waiting = here.spawn(async move {
        let first = operations.put("k".into(), "2".into(), PutOptions::default()).await;
        (first, operations.put("k".into(), "3".into(), PutOptions::default()).await)
    });
    drop(there);
    let (first, second) = here.block_on(waiting).unwrap();
    assert!(first.is_err() && second.is_err(), "{first:?} {second:?}");
    drop((server, way));
}
