//! Strange keys (T22 of `docs/reliability.md`): ten thousand of them go through both frontends byte for byte, are listed in order, and
//! go away again. No key is a path, a pattern or text here.

use std::collections::BTreeMap;

use bytes::Bytes;
use shoal_base::{Entropy, SeededEntropy};
use shoal_client::ListRequest;

use crate::both::Objects;
use crate::harness::{Frontends, command};
use crate::machine::runtime;

const BUCKET: &str = "strange";
const KEYS: usize = 10_000;
/// Keys of one batch.
const BATCH: usize = 500;

/// Names that programs have stumbled over, whole or as a part of a longer key.
const PIECES: [&[u8]; 24] = [
    b"..",
    b"../..",
    b"%2e%2e%2f",
    b"\0",
    b"//",
    b"/",
    b"\\",
    b"\r\n",
    b"*",
    b"?",
    b"[a-z]",
    b"{tag}",
    b"{}",
    b"\xff\xfe",
    b"\xc0\xaf",
    b"\xed\xa0\x80",
    b"'; DROP TABLE",
    b"$(id)",
    b"~",
    b"con",
    b".",
    b" ",
    b"\t",
    b"\x1b[2J",
];

fn keys() -> Vec<Vec<u8>> {
    let dice = SeededEntropy::new(22);
    let mut keys: BTreeMap<Vec<u8>, ()> = PIECES.iter().map(|piece| (piece.to_vec(), ())).collect();
    keys.insert(vec![0xFF; 1_024], ());
    keys.insert(vec![0; 1_024], ());
    while keys.len() < KEYS {
        let mut key = Vec::new();
        for _ in 0..1 + dice.below(6) {
            match dice.below(3) {
                0 => key.extend_from_slice(PIECES[dice.below(PIECES.len() as u64) as usize]),
                1 => key.extend_from_slice(&dice.next_u64().to_le_bytes()[..1 + dice.below(7) as usize]),
                _ => key.extend(std::iter::repeat_n(dice.next_u64() as u8, dice.below(200) as usize)),
            }
        }
        if (1..=1_024).contains(&key.len()) {
            keys.insert(key, ());
        }
    }
    keys.into_keys().collect()
}

/// The value of a key is the key, backwards.
fn value(key: &[u8]) -> Bytes {
    key.iter().rev().copied().collect::<Vec<u8>>().into()
}

async fn put_all(objects: &Objects, keys: &[Vec<u8>]) {
    for batch in keys.chunks(BATCH) {
        objects.put_many(batch.iter().map(|key| (key.clone(), value(key))).collect()).await;
    }
}

async fn read_all(objects: &Objects, keys: &[Vec<u8>]) {
    for batch in keys.chunks(BATCH) {
        for (found, key) in objects.get_many(batch).await.into_iter().zip(batch) {
            assert_eq!(found, Some(value(key)), "{}", key.escape_ascii());
        }
    }
}

#[test]
fn binary_keys_pass_through_both_frontends() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = command(&["serve", "--size", "256M", "--cache", "16M", "--log", "error"]);
    command.args(["--listen", "127.0.0.1:0", "--resp", "127.0.0.1:0", "--resp-bucket", BUCKET]);
    command.arg("--data").arg(folder.path().join("data"));
    let Frontends { child: _server, grpc, resp } = Frontends::start(command);
    let keys = keys();
    let runtime = runtime();
    let passes = async {
        let bucket = Objects::grpc(&grpc, BUCKET).await;
        let Objects::Grpc(client, _) = &bucket else { panic!("it is over gRPC") };
        let redis = Objects::redis(&resp).await;
        // Half through each frontend, and all read through the other one.
        let (first, second) = keys.split_at(KEYS / 2);
        put_all(&bucket, first).await;
        put_all(&redis, second).await;
        read_all(&redis, &keys).await;
        read_all(&bucket, &keys).await;
        let mut listed = Vec::new();
        let mut request = ListRequest { bucket: BUCKET.into(), limit: 700, ..ListRequest::default() };
        loop {
            let page = client.list(&request).await.unwrap();
            listed.extend(page.entries.into_iter().map(|entry| entry.key.to_vec()));
            match page.next {
                Some(next) => request.start_after = next,
                None => break,
            }
        }
        assert!(listed == keys, "{} keys were listed, not {}", listed.len(), keys.len());
        for key in keys.iter().step_by(10) {
            redis.delete(key).await.unwrap();
            assert_eq!(bucket.get(key).await.unwrap(), None, "{}", key.escape_ascii());
        }
    };
    // The timer wants a runtime around it when it is made.
    let result =
        runtime.block_on(async { tokio::time::timeout(std::time::Duration::from_secs(120), passes).await });
    result.expect("the keys take too long");
}
