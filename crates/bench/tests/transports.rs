//! The one interface of the client over both transports, each before a real server on the same store.

#![allow(clippy::unwrap_used)]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use shoal_client::{Client, ConnectOptions, Error, Objects, RejectRules, RespClient, RespOptions};
use shoal_device::{Device, MemDevice};
use shoal_engine::{Environment, FormatOptions, OpenOptions, Store};
use shoal_redis::RedisOptions;
use shoal_server::{Server, ServerOptions};

const BUCKET: &str = "redis";

async fn store() -> Store {
    let device = Device::new(Arc::new(MemDevice::new(32_768)));
    Store::format(&device, &FormatOptions::for_blocks(32_768), &Environment::default()).await.unwrap();
    let options = OpenOptions { cache_bytes: 32 << 20, ..OpenOptions::default() };
    Store::open(device, options, Environment::default()).await.unwrap()
}

/// What a program does with either of them.
async fn use_it(objects: &impl Objects, name: &str) {
    let key = |number: usize| Bytes::from(format!("{name}-{number}"));
    let none = RejectRules::default();
    assert_eq!(objects.get(&key(0)).await.unwrap(), None);
    objects.put(&key(0), "first".into(), RejectRules { if_exists: true, ..none }).await.unwrap();
    let again = objects.put(&key(0), "second".into(), RejectRules { if_exists: true, ..none }).await;
    assert!(matches!(again, Err(Error::ConditionFailed { .. })), "{name}: {again:?}");
    let (version, value) = objects.get_versioned(&key(0)).await.unwrap().unwrap();
    assert_eq!(value, "first");
    let this = RejectRules { if_version_not: Some(version), ..none };
    objects.put(&key(0), "third".into(), this).await.unwrap();
    let late = objects.put(&key(0), "fourth".into(), this).await;
    assert!(matches!(late, Err(Error::ConditionFailed { .. })), "{name}: {late:?}");
    assert_eq!(objects.get(&key(0)).await.unwrap().unwrap(), "third");
    let items: Vec<(Bytes, Bytes)> =
        (0..300).map(|number| (key(number), vec![number as u8; number].into())).collect();
    assert!(objects.put_many(&items).await.iter().all(Result::is_ok));
    let keys: Vec<Bytes> = (0..301).map(key).collect();
    let found = objects.get_many(&keys).await;
    for ((_, value), found) in items.iter().zip(&found) {
        assert_eq!(found.as_ref().unwrap().as_ref(), Some(value));
    }
    assert_eq!(found[300].as_ref().unwrap(), &None);
    objects.put_together(&items[..50]).await.unwrap();
    objects.delete(&key(1)).await.unwrap();
    objects.delete(&key(1)).await.unwrap();
    assert_eq!(objects.get(&key(1)).await.unwrap(), None);
    let counts = (0..100).map(|number| objects.put(&keys[number], "at once".into(), none));
    for put in futures_util::future::join_all(counts).await {
        put.unwrap();
    }
    assert_eq!(objects.get(&key(99)).await.unwrap().unwrap(), "at once");
}

#[tokio::test(flavor = "multi_thread")]
async fn both_transports_do_the_same() {
    let store = store().await;
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let redis = shoal_redis::Server::bind(RedisOptions { listen, ..RedisOptions::default() }).unwrap();
    let resp = redis.address().to_string();
    let running = redis.start(store.clone(), Environment::default()).unwrap();
    let options = ServerOptions { listen, ..ServerOptions::default() };
    let server = Server::bind(options).await.unwrap();
    let grpc = server.address().to_string();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(server.run(store.clone(), async {
        let _ = stopped.await;
    }));
    for once in [false, true] {
        let client = RespClient::connect(RespOptions { once, ..RespOptions::new(resp.clone()) }).await;
        use_it(&client.unwrap(), &format!("resp-{once}")).await;
        let client = Client::connect(ConnectOptions { once, ..ConnectOptions::new(grpc.clone()) }).await;
        use_it(&client.unwrap().bucket(BUCKET), &format!("grpc-{once}")).await;
    }
    // What one wrote, the other one sees.
    let client = RespClient::connect(RespOptions::new(resp)).await.unwrap();
    assert_eq!(client.get(b"grpc-true-99").await.unwrap().unwrap(), "at once");
    drop(client);
    let _ = stop.send(());
    serving.await.unwrap().unwrap();
    running.stop();
}
