//! The client over the Redis protocol beside servers that are made of a few lines: keys that move, servers that go, answers
//! that are lost.

#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use shoal_base::slot::hash_slot;
use shoal_client::{Error, Objects, RejectRules, RespClient, RespOptions};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// What the servers of a cluster share.
#[derive(Default)]
struct Cluster {
    /// Servers, each with its first slot.
    servers: Vec<(u16, SocketAddr)>,
    values: HashMap<Vec<u8>, Vec<u8>>,
    /// Commands that came, with the server of each.
    seen: Vec<(SocketAddr, Vec<Vec<u8>>)>,
    /// Connections that end instead of giving the next answer.
    lost: usize,
    /// Whether nobody says any more who has which slots, and only after a while.
    no_map: bool,
    /// Commands that are never answered; their connections stay.
    silent: usize,
}

impl Cluster {
    fn owner(&self, slot: u16) -> SocketAddr {
        self.servers.iter().rev().find(|(first, _)| *first <= slot).unwrap().1
    }

    fn slots(&self) -> String {
        let mut text = format!("*{}\r\n", self.servers.len());
        for (index, (first, address)) in self.servers.iter().enumerate() {
            let last = self.servers.get(index + 1).map_or(16_383, |(next, _)| next - 1);
            let host = address.ip().to_string();
            text += &format!(
                "*3\r\n:{first}\r\n:{last}\r\n*2\r\n${}\r\n{host}\r\n:{}\r\n",
                host.len(),
                address.port()
            );
        }
        text
    }

    fn answer(&mut self, me: SocketAddr, words: &[Vec<u8>]) -> Option<Vec<u8>> {
        let words: Vec<Vec<u8>> = match words[0].as_slice() {
            b"SHOAL.SESSION" => words[3..].to_vec(),
            b"CLUSTER" => return Some(self.slots().into_bytes()),
            _ => words.to_vec(),
        };
        let slot = hash_slot(&words[1]);
        let owner = self.owner(slot);
        if owner != me {
            return Some(format!("-MOVED {slot} {owner}\r\n").into_bytes());
        }
        let answer = match words[0].as_slice() {
            b"GET" => self.values.get(&words[1]).map_or(b"$-1\r\n".to_vec(), |value| {
                [format!("${}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat()
            }),
            b"SET" => {
                self.values.insert(words[1].clone(), words[2].clone());
                b"+OK\r\n".to_vec()
            }
            _ => b"-ERR unknown command\r\n".to_vec(),
        };
        if self.lost > 0 {
            self.lost -= 1;
            return None;
        }
        Some(answer)
    }
}

async fn read_command(reader: &mut BufReader<TcpStream>) -> Option<Vec<Vec<u8>>> {
    let mut line = String::new();
    if reader.read_line(&mut line).await.ok()? == 0 {
        return None;
    }
    let count: usize = line.trim()[1..].parse().unwrap();
    let mut words = Vec::new();
    for _ in 0..count {
        line.clear();
        reader.read_line(&mut line).await.ok()?;
        let mut word = vec![0; line.trim()[1..].parse::<usize>().unwrap() + 2];
        reader.read_exact(&mut word).await.ok()?;
        word.truncate(word.len() - 2);
        words.push(word);
    }
    Some(words)
}

/// A server of a cluster, until its task is aborted.
async fn serve(cluster: Arc<Mutex<Cluster>>) -> (SocketAddr, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let me = listener.local_addr().unwrap();
    let task = tokio::spawn(async move {
        let mut connections = tokio::task::JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let cluster = cluster.clone();
            connections.spawn(async move {
                let mut reader = BufReader::new(stream);
                while let Some(words) = read_command(&mut reader).await {
                    let (answer, pause) = {
                        let mut cluster = cluster.lock().unwrap();
                        cluster.seen.push((me, words.clone()));
                        if cluster.silent > 0 {
                            cluster.silent -= 1;
                            (None, Duration::MAX)
                        } else if cluster.no_map && words[0] == b"CLUSTER" {
                            (None, Duration::from_millis(50))
                        } else {
                            (cluster.answer(me, &words), Duration::ZERO)
                        }
                    };
                    if !pause.is_zero() {
                        tokio::time::sleep(pause).await;
                    }
                    let Some(answer) = answer else { return };
                    reader.get_mut().write_all(&answer).await.unwrap();
                }
            });
        }
    });
    (me, task)
}

async fn cluster_of(firsts: &[u16]) -> (Arc<Mutex<Cluster>>, Vec<tokio::task::JoinHandle<()>>) {
    let cluster = Arc::new(Mutex::new(Cluster::default()));
    let mut tasks = Vec::new();
    for &first in firsts {
        let (address, task) = serve(cluster.clone()).await;
        cluster.lock().unwrap().servers.push((first, address));
        tasks.push(task);
    }
    (cluster, tasks)
}

async fn client_of(cluster: &Mutex<Cluster>, once: bool) -> RespClient {
    let address = cluster.lock().unwrap().servers[0].1.to_string();
    RespClient::connect(RespOptions { once, ..RespOptions::new(address) }).await.unwrap()
}

fn items() -> Vec<(Bytes, Bytes)> {
    (0..300).map(|number: u32| (format!("key-{number}").into(), format!("value-{number}").into())).collect()
}

fn commands(cluster: &Mutex<Cluster>, name: &[u8]) -> usize {
    cluster.lock().unwrap().seen.iter().filter(|(_, words)| words[0] == name).count()
}

/// Every key goes to its server at once; when slots move, the first answer "elsewhere" is enough to know all.
#[tokio::test]
async fn keys_are_found_also_after_they_moved() {
    let (cluster, _servers) = cluster_of(&[0, 5_000, 9_000]).await;
    let client = client_of(&cluster, false).await;
    let items = items();
    assert!(client.put_many(&items).await.iter().all(Result::is_ok));
    assert_eq!((commands(&cluster, b"SET"), commands(&cluster, b"CLUSTER")), (300, 1), "each command once");
    let keys: Vec<Bytes> = items.iter().map(|(key, _)| key.clone()).collect();
    let check = |found: Vec<Result<Option<Bytes>, Error>>| {
        for (found, (_, value)) in found.iter().zip(&items) {
            assert_eq!(found.as_ref().unwrap().as_ref(), Some(value));
        }
    };
    check(client.get_many(&keys).await);
    cluster.lock().unwrap().servers[1].0 = 8_000;
    let moved = items.iter().find(|(key, _)| (5_000..8_000).contains(&hash_slot(key))).unwrap();
    assert_eq!(client.get(&moved.0).await.unwrap().as_ref(), Some(&moved.1));
    assert_eq!(commands(&cluster, b"CLUSTER"), 2);
    let before = commands(&cluster, b"GET");
    check(client.get_many(&keys).await);
    assert_eq!(commands(&cluster, b"GET") - before, 300, "none went to a wrong server");
    // Without asking one by one: a batch learns it, too.
    cluster.lock().unwrap().servers[2].0 = 12_000;
    check(client.get_many(&keys).await);
    assert_eq!(client.get(b"none").await.unwrap(), None);
}

/// A server is gone, and another one has its slots.
#[tokio::test]
async fn a_server_that_is_gone_is_replaced() {
    let (cluster, servers) = cluster_of(&[0, 8_000]).await;
    let client = client_of(&cluster, false).await;
    let (key, value) = items().into_iter().find(|(key, _)| hash_slot(key) >= 8_000).unwrap();
    client.put(&key, value.clone(), RejectRules::default()).await.unwrap();
    servers[1].abort();
    let _ = std::future::poll_fn(|_| std::task::Poll::Ready(())).await;
    cluster.lock().unwrap().servers.truncate(1);
    assert_eq!(client.get(&key).await.unwrap(), Some(value));
}

/// The answer to a write is lost. Without an identity its outcome is unknown; with one it is sent again, as the same write.
#[tokio::test]
async fn a_lost_answer() {
    let (cluster, _servers) = cluster_of(&[0]).await;
    let client = client_of(&cluster, false).await;
    cluster.lock().unwrap().lost = 1;
    let lost = client.put(b"k", "1".into(), RejectRules::default()).await;
    assert!(matches!(lost, Err(Error::Unknown(_))), "{lost:?}");
    assert_eq!(commands(&cluster, b"SET"), 1);
    let client = client_of(&cluster, true).await;
    cluster.lock().unwrap().lost = 2;
    client.put(b"k", "2".into(), RejectRules::default()).await.unwrap();
    let cluster = cluster.lock().unwrap();
    let sent: Vec<_> = cluster.seen.iter().filter(|(_, words)| words[0] == b"SHOAL.SESSION").collect();
    assert_eq!(sent.len(), 3);
    assert!(sent.iter().all(|(_, words)| words == &sent[0].1), "the same identity");
}

/// A write came to a server that has not its key, and nobody says who has it: it was not applied, and that is known.
#[tokio::test]
async fn a_write_to_a_wrong_server_is_not_of_unknown_outcome() {
    let (cluster, _servers) = cluster_of(&[0, 8_000]).await;
    let options = RespOptions::new(cluster.lock().unwrap().servers[0].1.to_string());
    let client = RespClient::connect(RespOptions { attempts: 2, ..options }).await.unwrap();
    let (key, value) = items().into_iter().find(|(key, _)| (8_000..9_000).contains(&hash_slot(key))).unwrap();
    {
        let mut cluster = cluster.lock().unwrap();
        cluster.servers[1].0 = 9_000;
        cluster.no_map = true;
    }
    let refused = client.put(&key, value.clone(), RejectRules::default()).await;
    assert!(matches!(refused, Err(Error::Busy(_))), "{refused:?}");
    cluster.lock().unwrap().no_map = false;
    client.put(&key, value, RejectRules::default()).await.unwrap();
}

/// A server is silent on a connection: every call on it ends in time, also those that wait for a place in the queue, and the next
/// one has a connection of its own.
#[tokio::test]
async fn a_silent_connection_is_given_up() {
    let (cluster, _servers) = cluster_of(&[0]).await;
    let answer_timeout = Duration::from_secs(1);
    let options = RespOptions::new(cluster.lock().unwrap().servers[0].1.to_string());
    let client = RespClient::connect(RespOptions { answer_timeout, attempts: 1, ..options }).await.unwrap();
    cluster.lock().unwrap().silent = 1;
    let silent = client.put(b"k", "1".into(), RejectRules::default()).await;
    assert!(matches!(silent, Err(Error::Unknown(_))), "{silent:?}");
    client.put(b"k", "2".into(), RejectRules::default()).await.unwrap();
    // More calls than may be in flight and in the queue.
    cluster.lock().unwrap().silent = 1;
    let calls = (0..6_000_u32).map(|number| {
        let client = client.clone();
        tokio::spawn(async move { client.get(&number.to_be_bytes()).await })
    });
    let within = tokio::time::timeout(Duration::from_secs(100), async {
        for call in calls.collect::<Vec<_>>() {
            assert!(matches!(call.await.unwrap(), Ok(None) | Err(Error::Unavailable { .. })));
        }
    });
    within.await.unwrap();
    assert_eq!(client.get(b"k").await.unwrap().unwrap(), "2");
}

/// Many calls learn at the same time that their key is elsewhere, and nobody says where: all servers are asked once, not once
/// for each call.
#[tokio::test]
async fn a_failed_question_for_the_map_is_shared() {
    let (cluster, _servers) = cluster_of(&[0, 8_000]).await;
    let options = RespOptions::new(cluster.lock().unwrap().servers[0].1.to_string());
    let client = RespClient::connect(RespOptions { attempts: 1, ..options }).await.unwrap();
    let (key, _) = items().into_iter().find(|(key, _)| (8_000..9_000).contains(&hash_slot(key))).unwrap();
    {
        let mut cluster = cluster.lock().unwrap();
        cluster.servers[1].0 = 9_000;
        cluster.no_map = true;
    }
    let calls = (0..50).map(|_| {
        let (client, key) = (client.clone(), key.clone());
        tokio::spawn(async move { client.get(&key).await })
    });
    for call in calls.collect::<Vec<_>>() {
        let refused = call.await.unwrap();
        assert!(matches!(refused, Err(Error::Busy(_))), "{refused:?}");
    }
    let asked = commands(&cluster, b"CLUSTER") - 1;
    assert!((2..=4).contains(&asked), "two servers were asked {asked} times");
}

/// A version that no object has rejects the write, as over gRPC; it does not become the 0 of SHOAL.CAS, which means "none".
#[tokio::test]
async fn version_zero_is_no_object_s() {
    let (cluster, _servers) = cluster_of(&[0]).await;
    let client = client_of(&cluster, false).await;
    for if_missing in [false, true] {
        let rules = RejectRules { if_version_not: Some(0), if_missing, ..RejectRules::default() };
        let rejected = client.put(b"k", "1".into(), rules).await;
        assert!(matches!(rejected, Err(Error::ConditionFailed { .. })), "{rejected:?}");
    }
    assert_eq!(commands(&cluster, b"SHOAL.CAS"), 0);
}

/// A thousand calls at the same time share one connection, and each has its own answer.
#[tokio::test]
async fn calls_are_pipelined() {
    let (cluster, _servers) = cluster_of(&[0]).await;
    let client = client_of(&cluster, false).await;
    let calls = (0..1_000_u32).map(|number| {
        let client = client.clone();
        tokio::spawn(async move {
            let key = number.to_be_bytes();
            client.put(&key, format!("{number}").into(), RejectRules::default()).await.unwrap();
            assert_eq!(client.get(&key).await.unwrap().unwrap(), format!("{number}"));
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
    assert_eq!(commands(&cluster, b"SET"), 1_000);
}
