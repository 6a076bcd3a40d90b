//! The counts of the frontend: every command once, by operation and result.

use std::collections::BTreeMap;
use std::sync::Arc;

use shoal_metrics::{Metrics, Operation, RefusalCause, RequestResult};
use shoal_redis::RedisOptions;

use crate::support::{Client, Seen, serve};

fn counts(metrics: &Metrics) -> BTreeMap<(&'static str, &'static str), u64> {
    let requests = metrics.redis().requests();
    requests.iter().map(|it| ((it.operation.word(), it.result.word()), it.durations.count())).collect()
}

#[test]
fn each_command_is_counted_once() {
    let metrics = Arc::new(Metrics::default());
    let served = serve(RedisOptions { metrics: Arc::clone(&metrics), ..RedisOptions::default() });
    let mut client = Client::new(&served);
    // Pipelines of short commands take the short path, others become tasks.
    let pipeline = "set k v\r\n".repeat(10) + &"get k\r\nget none\r\n".repeat(5);
    client.send(pipeline.as_bytes());
    (0..20).for_each(|_| drop(client.next()));
    for (command, times) in [
        ("incr n", 3),
        ("get n", 2),
        ("del k none", 1),
        ("del none", 1),
        ("mset a 1 b 2", 1),
        ("mget a b", 1),
        ("exists a", 1),
        ("setnx a 5", 1),
        ("dbsize", 1),
        ("nonsense", 1),
        ("incr", 1),
    ] {
        (0..times).for_each(|_| drop(client.run(command)));
    }
    for command in ["multi", "set a 1", "get a", "exec"] {
        client.run(command);
    }
    // Not answered, but counted.
    client.send(b"client reply off\r\nset m 1\r\nset m 2\r\nclient reply on\r\n");
    assert_eq!(client.next(), Some(Seen::ok()));
    let mut info = |section: &str| match client.run(&format!("info {section}")) {
        Seen::Bulk(text) => String::from_utf8(text).unwrap(),
        other => panic!("{other:?} is no text"),
    };
    let told = info("latencystats");
    assert!(told.contains("latency_percentiles_usec_put:p50="), "{told}");
    let stats = info("stats");
    assert!(stats.contains("keyspace_hits:7\r") && stats.contains("keyspace_misses:5\r"), "{stats}");
    let store = info("shoal");
    assert!(store.contains("shoal_read_only:0") && store.contains("shoal_cap_bytes:"), "{store}");
    assert!(store.contains("shoal_bytes_disk:") && store.contains("shoal_bytes_log:"), "{store}");
    // It is counted after its answer was sent.
    client.run("ping");
    let counts = counts(&metrics);
    let of = |operation: Operation, result: RequestResult| {
        counts.get(&(operation.word(), result.word())).copied().unwrap_or(0)
    };
    assert_eq!(of(Operation::Put, RequestResult::Ok), 10 + 1 + 2, "{counts:?}");
    assert_eq!(of(Operation::Get, RequestResult::Ok), 5 + 2, "{counts:?}");
    assert_eq!(of(Operation::Get, RequestResult::NotFound), 5, "{counts:?}");
    assert_eq!(of(Operation::Update, RequestResult::Ok), 3, "{counts:?}");
    assert_eq!(of(Operation::Delete, RequestResult::NotFound), 1, "{counts:?}");
    let others = [Operation::MultiDelete, Operation::MultiPut, Operation::MultiGet, Operation::Head];
    assert_eq!(others.map(|it| of(it, RequestResult::Ok)), [1; 4], "{counts:?}");
    assert_eq!(
        [Operation::List, Operation::Transaction].map(|it| of(it, RequestResult::Ok)),
        [1; 2],
        "{counts:?}"
    );
    let refused = [Operation::Other, Operation::Update].map(|it| of(it, RequestResult::Invalid));
    assert_eq!(refused, [1, 1], "no command, and one without its key: {counts:?}");
    let (received, sent) = metrics.redis().bytes();
    assert!(received > pipeline.len() as u64 && sent > 100, "{received} {sent}");
    let connections = metrics.redis().connections().unwrap();
    assert_eq!((connections.open, connections.opened), (1, 1));
    drop(served);
    assert_eq!(metrics.redis().connections().unwrap().open, 0, "the metrics do not keep the frontend");
}

#[test]
fn wrong_passwords_are_counted() {
    let metrics = Arc::new(Metrics::default());
    let options = RedisOptions {
        metrics: Arc::clone(&metrics),
        password: Some(b"right".to_vec()),
        ..RedisOptions::default()
    };
    let served = serve(options);
    let mut client = Client::new(&served);
    for command in ["get k", "auth wrong", "auth right", "get k"] {
        client.run(command);
    }
    client.run("ping");
    let refusals = metrics.redis().refusals();
    assert!(refusals.contains(&(RefusalCause::Credentials, 1)), "{refusals:?}");
    let counts = counts(&metrics);
    assert_eq!(counts.get(&("get", "denied")), Some(&1), "{counts:?}");
    assert_eq!(counts.get(&("other", "denied")), Some(&1), "{counts:?}");
    assert_eq!(counts.get(&("get", "not_found")), Some(&1), "{counts:?}");
}
