//! `io.grpc.KeyValueService`, as a client of its schema sees it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use shoal_api::Described;
use shoal_api::key_value::{self as kv, CreateRequest, DeleteRequest, RetrieveRequest, UpdateRequest};
use shoal_client::{ByteRange, PutOptions};
use shoal_device::Device;
use shoal_device_sim::SimDevice;
use shoal_engine::{Environment, OpenOptions, Store};
use shoal_server::{ServeError, Server, ServerLimits, ServerOptions};
use shoal_storekit::names;
use tokio::task::JoinSet;
use tonic::Code;
use tonic::transport::Channel;

use crate::support::{Running, call, kit, value};

const MIB: usize = 1 << 20;

async fn create(channel: &Channel, key: &Bytes, value: Bytes) -> Result<(), Code> {
    let request = CreateRequest { key: key.clone(), value };
    call::<kv::Create>(channel, request).await.map(drop).map_err(|status| status.code())
}

async fn retrieve(channel: &Channel, key: &Bytes) -> Result<Bytes, Code> {
    let answer = call::<kv::Retrieve>(channel, RetrieveRequest { key: key.clone() }).await;
    answer.map(|answer| answer.value).map_err(|status| status.code())
}

async fn update(channel: &Channel, key: &Bytes, value: Bytes) -> Result<(), Code> {
    let request = UpdateRequest { key: key.clone(), value };
    call::<kv::Update>(channel, request).await.map(drop).map_err(|status| status.code())
}

async fn delete(channel: &Channel, key: &Bytes) -> Result<(), Code> {
    let request = DeleteRequest { key: key.clone() };
    call::<kv::Delete>(channel, request).await.map(drop).map_err(|status| status.code())
}

#[tokio::test]
async fn four_verbs_and_their_codes() {
    let server = Running::start().await;
    let channel = server.channel().await;
    let key = Bytes::from_static(b"\x00\xff any \n bytes");
    assert_eq!(retrieve(&channel, &key).await, Err(Code::NotFound));
    assert_eq!(update(&channel, &key, "0".into()).await, Err(Code::NotFound));
    assert_eq!(delete(&channel, &key).await, Ok(()));
    assert_eq!(create(&channel, &key, "1".into()).await, Ok(()));
    assert_eq!(create(&channel, &key, "2".into()).await, Err(Code::AlreadyExists));
    assert_eq!(retrieve(&channel, &key).await.unwrap(), "1");
    assert_eq!(update(&channel, &key, "3".into()).await, Ok(()));
    assert_eq!(retrieve(&channel, &key).await.unwrap(), "3");
    // The same objects as those of the other service, with its details in a status.
    let client = server.client().await;
    let object = client.get("default", &key, ByteRange::ALL).await.unwrap().unwrap();
    assert_eq!(object.value, "3");
    let request = CreateRequest { key: key.clone(), value: "4".into() };
    let status = call::<kv::Create>(&channel, request).await.unwrap_err();
    let failure = Described::from_status(&status).failure;
    assert_eq!(failure.current_version, Some(object.info.version.0));
    client.put("", b"other", "5".into(), PutOptions::default()).await.unwrap();
    assert_eq!(retrieve(&channel, &"other".into()).await.unwrap(), "5");
    assert_eq!(delete(&channel, &key).await, Ok(()));
    assert_eq!(retrieve(&channel, &key).await, Err(Code::NotFound));
    server.stop().await;
}

#[tokio::test]
async fn keys_and_values_are_bounded() {
    let server = Running::start().await;
    let channel = server.channel().await;
    for key in [Bytes::new(), vec![7; 1025].into()] {
        assert_eq!(create(&channel, &key, "v".into()).await, Err(Code::InvalidArgument));
        assert_eq!(retrieve(&channel, &key).await, Err(Code::InvalidArgument));
        assert_eq!(update(&channel, &key, "v".into()).await, Err(Code::InvalidArgument));
        assert_eq!(delete(&channel, &key).await, Err(Code::InvalidArgument));
    }
    // The sizes of the gRPC series' own client (docs/sources.md), its rare ones too, and the limits.
    let sizes = [0, 1, 100, 511, 512, 513, 4096, 65_536, 65_537, 453 << 10, 905 << 10, 3 * MIB, 4 * MIB];
    for (bytes, n) in sizes.into_iter().zip(0..) {
        let key = Bytes::from(vec![n; 1024]);
        assert_eq!(create(&channel, &key, value(bytes, n)).await, Ok(()), "{bytes}");
        assert!(retrieve(&channel, &key).await.unwrap() == value(bytes, n), "{bytes}");
        assert_eq!(update(&channel, &key, value(bytes, n + 100)).await, Ok(()), "{bytes}");
        assert!(retrieve(&channel, &key).await.unwrap() == value(bytes, n + 100), "{bytes}");
    }
    assert_eq!(create(&channel, &"k".into(), value(4 * MIB + 1, 1)).await, Err(Code::InvalidArgument));
    assert_eq!(create(&channel, &"k".into(), value(5 * MIB, 1)).await, Err(Code::ResourceExhausted));
    assert_eq!(create(&channel, &"k".into(), value(5, 1)).await, Ok(()), "the connection serves still");
    server.stop().await;
}

#[tokio::test]
async fn objects_go_to_configured_bucket() {
    let options = |bucket: &str| ServerOptions { kv_bucket: bucket.into(), ..ServerOptions::default() };
    let server = Running::told(options("seed")).await;
    assert_eq!(create(&server.channel().await, &"k".into(), "v".into()).await, Ok(()));
    assert_eq!((names(&server.store, "seed").len(), names(&server.store, "default").len()), (1, 0));
    server.stop().await;
    let refused =
        Server::bind(ServerOptions { listen: "127.0.0.1:0".parse().unwrap(), ..options("Not A Bucket") });
    assert!(matches!(refused.await, Err(ServeError::Bucket(_))));
}

#[derive(Clone, Debug)]
enum Step {
    Create(u8, Vec<u8>),
    Retrieve(u8),
    Update(u8, Vec<u8>),
    Delete(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = || {
        prop_oneof![prop::collection::vec(any::<u8>(), 0..700), (0..90_000_usize).prop_map(|n| vec![9; n])]
    };
    prop_oneof![
        (0..5_u8, bytes()).prop_map(|(key, value)| Step::Create(key, value)),
        (0..5_u8).prop_map(Step::Retrieve),
        (0..5_u8, bytes()).prop_map(|(key, value)| Step::Update(key, value)),
        (0..5_u8).prop_map(Step::Delete),
    ]
}

/// The answers to calls of one caller, one after the other, are those of a map; keys are random bytes of all lengths.
#[tokio::test]
async fn service_behaves_as_a_map() {
    let server = Running::start().await;
    let channel = server.channel().await;
    let mut runner = TestRunner::deterministic();
    let keys = prop::collection::hash_set(prop::collection::vec(any::<u8>(), 1..=1024), 5);
    let keys: Vec<Bytes> =
        keys.new_tree(&mut runner).unwrap().current().into_iter().map(Bytes::from).collect();
    let mut model: BTreeMap<u8, Vec<u8>> = BTreeMap::new();
    let steps = prop::collection::vec(step(), 400).new_tree(&mut runner).unwrap().current();
    for step in steps {
        match step {
            Step::Create(key, value) => {
                let expected = if model.contains_key(&key) { Err(Code::AlreadyExists) } else { Ok(()) };
                assert_eq!(create(&channel, &keys[key as usize], value.clone().into()).await, expected);
                model.entry(key).or_insert(value);
            }
            Step::Retrieve(key) => {
                let expected = model.get(&key).map(|value| &value[..]).ok_or(Code::NotFound);
                let found = retrieve(&channel, &keys[key as usize]).await;
                assert!(found.as_ref().map(|value| &value[..]) == expected.as_ref().copied(), "{key}");
            }
            Step::Update(key, value) => {
                let expected = if model.contains_key(&key) { Ok(()) } else { Err(Code::NotFound) };
                assert_eq!(update(&channel, &keys[key as usize], value.clone().into()).await, expected);
                model.entry(key).and_modify(|held| *held = value);
            }
            Step::Delete(key) => {
                assert_eq!(delete(&channel, &keys[key as usize]).await, Ok(()));
                model.remove(&key);
            }
        }
    }
    server.stop().await;
}

/// Many create the same key at the same time: one wins, and its value is stored.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_create_wins() {
    let server = Running::start().await;
    let channels = [server.channel().await, server.channel().await];
    for round in 0..40_u32 {
        let key = Bytes::from(round.to_be_bytes().to_vec());
        let mut racers = JoinSet::new();
        for racer in 0..16_u8 {
            let (channel, key) = (channels[racer as usize % 2].clone(), key.clone());
            racers.spawn(async move {
                let size = if round % 2 == 0 { 10 } else { 70_000 };
                (racer, create(&channel, &key, value(size, racer)).await)
            });
        }
        let results = racers.join_all().await;
        let won: Vec<u8> =
            results.iter().filter(|(_, result)| result.is_ok()).map(|(racer, _)| *racer).collect();
        assert_eq!(won.len(), 1, "{results:?}");
        assert!(results.iter().all(|(_, result)| matches!(result, Ok(()) | Err(Code::AlreadyExists))));
        let size = if round % 2 == 0 { 10 } else { 70_000 };
        assert!(retrieve(&channels[0], &key).await.unwrap() == value(size, won[0]));
    }
    server.stop().await;
}

/// Creates, updates and deletes of one key by many. Every value identifies its write, so a read shows if a write that was acknowledged
/// before the start of the read, and was not followed by another one, is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_acknowledged_update_is_lost() {
    let server = Running::start().await;
    let channel = server.channel().await;
    let key: Bytes = "k".into();
    // Each writer has a key for which only it writes, and all share one.
    let (updates, missing) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let alive = Arc::new(AtomicU64::new(0));
    let mut writers = JoinSet::new();
    for writer in 0..8_u8 {
        let (channel, shared, alive) = (server.channel().await, key.clone(), Arc::clone(&alive));
        let (updates, missing) = (Arc::clone(&updates), Arc::clone(&missing));
        writers.spawn(async move {
            let own = Bytes::from(vec![writer; 30]);
            create(&channel, &own, "0".into()).await.unwrap();
            for i in 1..60_u32 {
                let text = Bytes::from(i.to_string());
                update(&channel, &own, text.clone()).await.unwrap();
                assert_eq!(retrieve(&channel, &own).await.unwrap(), text, "the last acknowledged write");
                // Creates that won, less deletes that can have removed one, never pass one object.
                match i % 3 {
                    0 => {
                        if create(&channel, &shared, vec![writer; 10].into()).await.is_ok() {
                            alive.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                    1 => match update(&channel, &shared, vec![writer; 20].into()).await {
                        Ok(()) => {
                            updates.fetch_add(1, Ordering::SeqCst);
                        }
                        Err(Code::NotFound) => {
                            missing.fetch_add(1, Ordering::SeqCst);
                        }
                        Err(code) => panic!("{code:?}"),
                    },
                    _ => delete(&channel, &shared).await.unwrap(),
                }
            }
        });
    }
    while let Some(writer) = writers.join_next().await {
        writer.unwrap();
    }
    let (updates, missing) = (updates.load(Ordering::SeqCst), missing.load(Ordering::SeqCst));
    assert!(alive.load(Ordering::SeqCst) > 1 && updates > 0 && missing > 0, "{alive:?} {updates} {missing}");
    // An acknowledged update is never followed by "not found" if nobody deletes.
    delete(&channel, &key).await.unwrap();
    create(&channel, &key, "x".into()).await.unwrap();
    let mut racers = JoinSet::new();
    for racer in 0..32_u8 {
        let (channel, key) = (channel.clone(), key.clone());
        racers.spawn(async move { update(&channel, &key, vec![racer; 5].into()).await });
    }
    assert!(racers.join_all().await.iter().all(Result::is_ok));
    let last = retrieve(&channel, &key).await.unwrap();
    assert!(last.len() == 5 && last.iter().all(|&byte| byte == last[0]), "one of the values, whole");
    server.stop().await;
}

/// Acknowledged writes are there when the store is reopened without having been closed.
#[tokio::test]
async fn acknowledged_writes_are_durable() {
    let device = Device::new(SimDevice::new(kit().format.blocks_max));
    let store = kit().create(&device.clone());
    let server = Running::over(store, ServerLimits::default()).await;
    let channel = server.channel().await;
    create(&channel, &"a".into(), value(70_000, 1)).await.unwrap();
    create(&channel, &"b".into(), "1".into()).await.unwrap();
    update(&channel, &"b".into(), "2".into()).await.unwrap();
    create(&channel, &"c".into(), "3".into()).await.unwrap();
    delete(&channel, &"c".into()).await.unwrap();
    server.stop().await;
    let store = Store::open(device, OpenOptions::default(), Environment::default()).await.unwrap();
    let server = Running::over(store, ServerLimits::default()).await;
    let channel = server.channel().await;
    assert!(retrieve(&channel, &"a".into()).await.unwrap() == value(70_000, 1));
    assert_eq!(retrieve(&channel, &"b".into()).await.unwrap(), "2");
    assert_eq!(retrieve(&channel, &"c".into()).await, Err(Code::NotFound));
    server.stop().await;
}
