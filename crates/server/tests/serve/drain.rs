//! The end of a server, and a new one in its place.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use shoal_client::{ByteRange, Client, ConnectOptions, Error, PutOptions};
use shoal_server::ServerLimits;
use shoal_storekit::{eventually, names};
use shoal_testkit::wait::FOR_EVER;

use crate::support::{Running, figure, value};

/// Waits until the server has started one request more than the `before` of a look at its figures and the looks since.
async fn stream_begins(client: &Client, before: u64) {
    let looks = AtomicU64::new(0);
    eventually("a stream", || async {
        let looks = looks.fetch_add(1, Ordering::Relaxed) + 1;
        figure(client, "server.requests").await > before + looks
    })
    .await;
}

#[tokio::test]
async fn a_stream_under_way_is_finished() {
    let server = Running::start().await;
    let (client, store) = (server.client().await, server.store.clone());
    let before = figure(&client, "server.requests").await;
    let mut put = client.put_stream("", b"k", PutOptions::default());
    put.write(value(2 << 20, 1)).await.unwrap();
    stream_begins(&client, before).await;
    let address = server.address;
    let stop = tokio::spawn(server.stop());
    // No new connections from here on.
    eventually("not listening", || async { tokio::net::TcpStream::connect(address).await.is_err() }).await;
    assert!(!stop.is_finished());
    put.write(value(2 << 20, 2)).await.unwrap();
    put.finish().await.unwrap();
    stop.await.unwrap();
    assert_eq!(names(&store, "default").len(), 1);
}

#[tokio::test]
async fn unfinished_stream_is_cut_at_shutdown() {
    let server =
        Running::with(ServerLimits { drain_max: Duration::from_millis(300), ..ServerLimits::default() })
            .await;
    let (client, store) = (server.client().await, server.store.clone());
    let mut put = client.put_stream("", b"k", PutOptions::default());
    put.write(value(2 << 20, 1)).await.unwrap();
    let started = Instant::now();
    server.stop().await;
    let took = started.elapsed();
    assert!(took >= Duration::from_millis(300), "{took:?}");
    assert!(put.finish().await.is_err());
    assert_eq!(names(&store, "default").len(), 0);
}

#[tokio::test]
async fn idle_connections_do_not_delay_shutdown() {
    let server = Running::with(ServerLimits { drain_max: FOR_EVER, ..ServerLimits::default() }).await;
    let client = server.client().await;
    client.stat().await.unwrap();
    let _silent = tokio::net::TcpStream::connect(server.address).await.unwrap();
    server.stop().await;
    // Nothing listens, so the write was certainly not applied.
    let error = client.put("", b"k", "v".into(), PutOptions::default()).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
}

#[tokio::test]
async fn a_client_finds_the_server_again() {
    let server = Running::start().await;
    let (address, store) = (server.address, server.store.clone());
    let options = ConnectOptions { attempts: 8, ..ConnectOptions::new(address.to_string()) };
    let client = Client::connect(options).await.unwrap();
    client.put("", b"k", "v".into(), PutOptions::default()).await.unwrap();
    server.stop().await;
    let again = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(30)).await;
        Running::on(address, ServerLimits::default(), store).await
    });
    // Reads, and writes that could not be sent, are sent again.
    assert_eq!(client.get("", b"k", ByteRange::ALL).await.unwrap().unwrap().value, "v");
    client.put("", b"k", "w".into(), PutOptions::default()).await.unwrap();
    again.await.unwrap().stop().await;
}
