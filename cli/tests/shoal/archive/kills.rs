//! Incident 1, with the server killed under the load of all protocols, its data file deleted, and the store restored from the bucket: every
//! write that WAIT confirmed is there, the store is the log up to one place, and the missing part is at most the lag that the metrics
//! showed.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::process::Signal;
use shoal_base::{Entropy, SeededEntropy};
use shoal_client::Lsn;
use shoal_testkit::lab;
use tokio::runtime::Runtime;

use super::history::{Cut, Histories, acknowledged_before};
use super::writers::{PROTOCOLS, REDIS_GET_MAX, Writer, histories_of};
use super::{Archived, Drill};
use crate::both::Objects;
use crate::harness::{assert_clean, run, signal, text_of};
use crate::linear::{BUCKET, serve};
use crate::machine::runtime;

const WRITERS: u64 = 6;
/// Acknowledged writes of each protocol in a round, and archived ones of all of them: with fewer, a round shows nothing.
const WRITES_MIN: usize = 30;
const ARCHIVED_MIN: usize = 100;
/// The server's interval: it collects writes for this time before it archives them.
const INTERVAL: Duration = Duration::from_secs(1);
/// The pause between two looks at the lag.
const LOOK: Duration = Duration::from_millis(30);

/// Two rounds; the laboratory's ARCHIVE_KILLS asks for more, its SEED for others.
#[test]
fn archive_survives_the_machine() {
    let rounds = lab::number("ARCHIVE_KILLS", 2);
    let dice = SeededEntropy::new(lab::number("SEED", 1));
    let runtime = runtime();
    let missing: usize = (0..rounds).map(|number| round(&runtime, number, &dice)).sum();
    assert!(missing > 0 || rounds == 0, "no kill came before the archive: the lag was not tested");
}

/// The lag that the metrics showed. A write that was durable and not archived when the lag was read was acknowledged at most the lag
/// before; later writes were acknowledged later. The archive only grows, so each write that is missing at the end was acknowledged after
/// [`Self::covered`]: a bound without a margin for the load.
///
/// The lag is a difference of wall clocks, the moments here are those of the monotonic clock. An adjustment of the wall clock may separate
/// them by 500 us a second: a thousandth of the lag is added.
#[derive(Clone, Copy)]
struct Lag {
    /// The latest of the moments that the lag reached back to.
    covered: Instant,
    last: Duration,
    most: Duration,
}

impl Lag {
    /// Looks at the lag until the server is gone.
    fn watch(server: &Archived, start: Instant) -> Self {
        let mut lag = Self { covered: start, last: Duration::ZERO, most: Duration::ZERO };
        loop {
            let asked = Instant::now();
            let Ok(seconds) = server.try_metric("shoal_archive_lag_seconds") else { return lag };
            // The answer was cut.
            let Ok(shown) = Duration::try_from_secs_f64(seconds) else { return lag };
            let reach = shown + shown / 1_000;
            lag.covered = lag.covered.max(asked.checked_sub(reach).unwrap_or(start));
            (lag.last, lag.most) = (shown, lag.most.max(shown));
            thread::sleep(LOOK);
        }
    }
}

/// The writes up to a kill, and the lag before it.
struct Killed {
    histories: Histories,
    /// Acknowledged writes of each protocol.
    acknowledged: [usize; 3],
    /// The moment at which the last confirmed WAIT was sent.
    confirmed: Instant,
    at: Instant,
    lag: Lag,
}

/// Kills a server under load: as soon as WAIT confirms, or at any moment of a later interval.
fn kill(runtime: &Runtime, drill: &Drill, at_once: bool, dice: &SeededEntropy) -> Killed {
    let data = drill.path("data");
    let start = Instant::now();
    let server = Archived::with_all_frontends(&data, &drill.url());
    let writers: Vec<_> = (0..WRITERS)
        .map(|id| {
            let s3 = server.s3.as_deref().unwrap();
            let frontends = runtime.block_on(frontends(&server.grpc, &server.resp, s3, &data));
            runtime.spawn(Writer::new(id, frontends, dice.next_u64()).work())
        })
        .collect();
    let (confirmed, at, lag) = thread::scope(|scope| {
        let lag = scope.spawn(|| Lag::watch(&server, start));
        // The base is uploaded meanwhile.
        server.has_base();
        let mut redis = server.client();
        let mut confirmed = start;
        for _ in 0..2 + dice.below(2) {
            thread::sleep(Duration::from_millis(200 + dice.below(700)));
            confirmed = Instant::now();
            assert!(redis.is_archived(20_000), "the archive is away");
        }
        if !at_once {
            // A whole interval passes, and a part of another one.
            thread::sleep(INTERVAL + Duration::from_millis(100 + dice.below(INTERVAL.as_millis() as u64)));
        }
        signal(&server.child, Signal::KILL);
        (confirmed, Instant::now(), lag.join().unwrap())
    });
    server.kill();
    let notes: Vec<_> = writers.into_iter().map(|writer| runtime.block_on(writer).unwrap()).collect();
    let mut acknowledged = [0; 3];
    for (all, number) in notes.iter().flat_map(|notes| (0..3).zip(notes.acknowledged)) {
        acknowledged[all] += number;
    }
    fs::remove_file(&data).unwrap();
    Killed { histories: histories_of(notes), acknowledged, confirmed, at, lag }
}

async fn frontends(grpc: &str, resp: &str, s3: &str, data: &Path) -> [Objects; 3] {
    let grpc = Objects::grpc(grpc, BUCKET).await;
    [grpc, Objects::redis(resp).await, Objects::s3(s3, data, BUCKET).await]
}

/// One kill and one restore. Returns the number of acknowledged writes that are missing.
fn round(runtime: &Runtime, number: u64, dice: &SeededEntropy) -> usize {
    let drill = Drill::new();
    let killed = kill(runtime, &drill, number % 2 == 1, dice);
    let Killed { histories, acknowledged, confirmed, at, lag } = killed;
    let archived = acknowledged_before(&histories, confirmed);
    let is_tested = acknowledged.iter().all(|&writes| writes >= WRITES_MIN) && archived >= ARCHIVED_MIN;
    assert!(is_tested, "{acknowledged:?} writes of {PROTOCOLS:?}, {archived} of them archived");

    let new = drill.path("new");
    let (words, url) = (["restore", "--json", "--size", "256M", "--data", text_of(&new)], drill.url());
    let done = run(&[&words[..], &["--archive", &url]].concat());
    assert_eq!(done.code, 0, "{}", done.stderr);
    let restored = done.json();
    let found = runtime.block_on(read_back(&new, histories.keys().cloned().collect()));
    assert_clean(&new);

    let version = Lsn(restored["version"].as_u64().unwrap());
    assert!(lag.most > Duration::ZERO, "the metrics showed no lag");
    let missing = missing(&histories, &found, version, confirmed, lag);
    let missing =
        missing.unwrap_or_else(|wrong| panic!("round {number}, its timing does not repeat: {wrong}"));
    let oldest = missing.iter().min().map_or(Duration::ZERO, |oldest| at.saturating_duration_since(*oldest));
    let bytes = restored["base_bytes"].as_u64().unwrap() + restored["log_bytes"].as_u64().unwrap();
    let (writes, seconds) = (restored["log_writes"].as_u64().unwrap(), restored["seconds"].as_f64().unwrap());
    println!(
        "round {number}: writes {acknowledged:?}, {archived} confirmed, {} missing, the oldest {:.3} s old at the kill; \
         lag {:.3} s, at most {:.3} s; {:.1} MB and {writes} writes of log restored in {seconds:.2} s: {:.1} MB/s",
        missing.len(),
        oldest.as_secs_f64(),
        lag.last.as_secs_f64(),
        lag.most.as_secs_f64(),
        bytes as f64 / 1e6,
        bytes as f64 / 1e6 / seconds,
    );
    let verified = drill.archive(&["verify", "--full"]);
    assert_eq!(verified.code, 0, "{}{}", verified.text(), verified.stderr);
    missing.len()
}

/// The moments at which missing writes were acknowledged, of a restored store that keeps all promises.
fn missing(
    histories: &Histories,
    found: &BTreeMap<Vec<u8>, Bytes>,
    version: Lsn,
    confirmed: Instant,
    lag: Lag,
) -> Result<Vec<Instant>, String> {
    let mut cut = Cut::new(histories, found, version)?;
    cut.has_all_before(confirmed, "WAIT confirmed it")?;
    cut.has_all_before(lag.covered, "it is older than the lag that the metrics showed")?;
    Ok(cut.missing())
}

/// The objects of a restored store, of which all protocols show the same, and no others than `keys`.
async fn read_back(data: &Path, keys: Vec<Vec<u8>>) -> BTreeMap<Vec<u8>, Bytes> {
    let (server, s3) = serve(data);
    let frontends = frontends(&server.grpc, &server.resp, &s3, data).await;
    let mut found = BTreeMap::new();
    let [grpc, resp, s3] = &frontends;
    for key in keys {
        let (of_grpc, of_s3) = tokio::try_join!(grpc.get(&key), s3.get(&key)).unwrap();
        assert!(of_grpc == of_s3, "gRPC and S3 do not agree on {}", key.escape_ascii());
        let Some(value) = of_grpc else { continue };
        if value.len() <= REDIS_GET_MAX {
            let of_resp = resp.get(&key).await.unwrap();
            assert!(of_resp.as_ref() == Some(&value), "gRPC and RESP do not agree on {}", key.escape_ascii());
        }
        found.insert(key, value);
    }
    let Objects::S3(client) = s3 else { unreachable!("it is a client of S3") };
    assert_eq!(client.count("").await.unwrap(), found.len(), "objects that nobody wrote");
    server.stop();
    found
}
