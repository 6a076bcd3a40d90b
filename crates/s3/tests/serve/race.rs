//! A race over all frontends: exactly one of 1,000 creators of an object wins.

use std::sync::Arc;

use shoal_client::{Client, ConnectOptions, Error};
use shoal_engine::{Environment, PutOptions, RejectRules};
use shoal_redis::{RedisOptions, RedisServer};
use shoal_server::{Server, ServerOptions};
use shoal_storekit::in_time;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::support::Running;

const RACERS: usize = 1_000;

#[tokio::test(flavor = "multi_thread")]
async fn one_of_a_thousand_creators_over_all_frontends_wins() {
    let running = Running::start().await;
    let _bucket = running.with_bucket().await;
    let any_port = "127.0.0.1:0".parse().unwrap();
    let grpc = Server::bind(ServerOptions { listen: any_port, ..ServerOptions::default() }).await.unwrap();
    let client = ConnectOptions::new(grpc.address().to_string());
    tokio::spawn(grpc.run(running.store.clone(), std::future::pending()));
    let client = Client::connect(client).await.unwrap();
    let options = RedisOptions {
        listen: any_port,
        bucket: "bkt".to_owned(),
        threads: Some(2),
        ..RedisOptions::default()
    };
    let redis = RedisServer::bind(options).unwrap();
    let redis_address = redis.address();
    let _redis = redis.start(running.store.clone(), Environment::default()).unwrap();

    let (ready, mut racers) = (Arc::new(Barrier::new(RACERS)), JoinSet::new());
    for number in 0..RACERS {
        let (ready, value) = (Arc::clone(&ready), number.to_string());
        match number % 3 {
            0 => {
                let mut client = running.client().await;
                racers.spawn(async move {
                    ready.wait().await;
                    let put =
                        client.send("PUT", "/bkt/race", &[("if-none-match", "*")], value.as_bytes()).await;
                    assert!([200, 412].contains(&put.status), "{put:?}");
                    (put.status == 200, value)
                });
            }
            1 => {
                let client = client.clone();
                racers.spawn(async move {
                    ready.wait().await;
                    let rules = RejectRules { if_exists: true, ..RejectRules::default() };
                    let options = PutOptions { rules, ..PutOptions::default() };
                    let put = client.put("bkt", b"race", value.clone().into(), options).await;
                    assert!(matches!(put, Ok(_) | Err(Error::ConditionFailed { .. })), "{put:?}");
                    (put.is_ok(), value)
                });
            }
            _ => {
                let mut stream = BufReader::new(TcpStream::connect(redis_address).await.unwrap());
                racers.spawn(async move {
                    ready.wait().await;
                    stream.write_all(format!("SET race {value} NX\r\n").as_bytes()).await.unwrap();
                    let mut reply = String::new();
                    stream.read_line(&mut reply).await.unwrap();
                    assert!(["+OK\r\n", "$-1\r\n"].contains(&reply.as_str()), "{reply}");
                    (reply.starts_with('+'), value)
                });
            }
        }
    }
    let results = in_time("the race", racers.join_all()).await;
    let winners: Vec<String> =
        results.into_iter().filter(|(wins, _)| *wins).map(|(_, value)| value).collect();
    assert_eq!(winners.len(), 1, "{winners:?}");
    assert_eq!(running.client().await.get("/bkt/race").await.text(), winners[0]);
}
