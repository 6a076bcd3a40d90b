//! S3 in a small container: parts of many uploads at the same time, and long lists meanwhile.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use shoal_client::{Error, RejectRules};
use tokio::task::JoinSet;

use crate::containers::{Answer, Connection, server};
use crate::harness::{Frontends, assert_clean};
use crate::machine::{disk_folder, runtime};
use crate::memory::{Group, LOOK_EVERY};
use crate::process::{mib, own_memory};
use crate::s3_client::S3Client;

const BYTES: u64 = 256 << 20;
/// Uploads at the same time, each of one part.
const UPLOADS: usize = 64;
const PART_BYTES: usize = 8 << 20;
const KEYS: usize = 100_000;
/// Keys of one command that sets them.
const SET_TOGETHER: usize = 1_000;
const BUCKET: &str = "objects";

/// Sets short values of the keys that are listed.
fn set_keys(server: &Frontends) {
    let mut connection = Connection::new(server.resp_address());
    for first in (0..KEYS).step_by(SET_TOGETHER) {
        let names: Vec<String> =
            (first..first + SET_TOGETHER).map(|number| format!("key-{number:06}")).collect();
        let pairs = names.iter().flat_map(|name| [name.as_bytes(), b"value"]);
        let words: Vec<&[u8]> = [&b"mset"[..]].into_iter().chain(pairs).collect();
        let answer = connection.ask(&words);
        assert!(!matches!(answer, None | Some(Answer::Error(_))), "{answer:?}");
    }
}

/// Uploads a part, and makes an object of it. Returns the number of refusals before that, after each of which it is sent again over another
/// connection.
async fn upload(client: S3Client, id: usize, part: Arc<Vec<u8>>) -> u64 {
    for refused in 0.. {
        let client = client.another().await;
        match client.upload(name(id).as_bytes(), &[&part], &RejectRules::default()).await {
            Ok(()) => return refused,
            Err(Error::Busy(_) | Error::Unavailable { .. } | Error::Unknown(_)) => {}
            Err(error) => panic!("{error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    unreachable!("a loop without an end")
}

fn name(id: usize) -> String {
    format!("up-{id}")
}

/// Ends with the value; also after a panic.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn uploads_and_long_lists_survive_in_a_small_container() {
    let folder = disk_folder();
    let data = folder.path().join("data");
    let group = Group::of(&format!("shoal-test-{}-s3", std::process::id()), BYTES);
    let mut command = server(&data, BYTES, group.as_ref());
    command.args(["--s3", "127.0.0.1:0", "--resp-bucket", BUCKET]);
    let mut server = Frontends::start(command);
    let address = server.child.says("S3    http://");
    set_keys(&server);
    let part: Arc<Vec<u8>> = Arc::new((0..PART_BYTES).map(|at| (at / 4_096 + at % 251) as u8).collect());
    let (is_over, peak, pid) = (AtomicBool::new(false), AtomicU64::new(0), server.pid());
    let refused = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                peak.fetch_max(own_memory(pid), Ordering::Relaxed);
                std::thread::sleep(LOOK_EVERY);
            }
        });
        let _end = End(&is_over);
        runtime().block_on(async {
            let client = S3Client::connect(&address, &data, BUCKET).await;
            let mut uploads = JoinSet::new();
            for id in 0..UPLOADS {
                uploads.spawn(upload(client.clone(), id, part.clone()));
            }
            for _ in 0..2 {
                assert_eq!(client.count("key-").await.unwrap(), KEYS);
            }
            let refused: u64 = uploads.join_all().await.into_iter().sum();
            for id in 0..UPLOADS {
                let (_, found) = client.get(name(id).as_bytes()).await.unwrap().unwrap();
                assert!(found == part[..], "{id}: {} bytes", found.len());
            }
            refused
        })
    });
    assert_eq!(server.child.try_wait().unwrap(), None, "the server was killed: more than {BYTES} bytes");
    let peak = peak.into_inner();
    println!(
        "{} MiB ({}): {UPLOADS} parts of {} MiB, {refused} refused, and two lists of {KEYS} keys; at most {:.1} MiB",
        BYTES >> 20,
        if group.is_some() { "control group" } else { "measured" },
        PART_BYTES >> 20,
        mib(peak),
    );
    assert!(peak > 0 && peak <= BYTES, "{peak} bytes at the peak");
    server.stop();
    assert_clean(&data);
    fs::remove_file(&data).unwrap();
}
