//! Two servers, crashes, a spool and a bucket with every kind of fault, by a seed. After each round the archive is replayed.
//!
//! `LAB_ARCHIVE_ROUNDS=N` runs N rounds, `LAB_CASE=SEED` one of them again.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use shoal_base::{Lsn, SeededEntropy};
use shoal_testkit::bytes::random;
use shoal_testkit::lab;
use tokio::time::sleep;

use super::replay::{check, replay};
use super::*;
use crate::bucket::fault::{FAULTS, Fault, FaultStore, Latency};

/// Faults that break a promise on which the archive rests (X5), or of a request that the writer never makes.
const NOT_HERE: [Fault; 2] = [Fault::DeletedKey, Fault::StaleList];
const ROUNDS: u64 = 120;

/// Values are parts of these bytes: to draw each one would take a third of the time.
static BYTES: LazyLock<Bytes> = LazyLock::new(|| random(4 << 20, 1).into());

/// Counts of the events of all rounds: each must have happened.
type Events = BTreeMap<&'static str, u64>;

/// One data file, and the process that serves it.
struct Side {
    disk: Arc<Mutex<Disk>>,
    folder: tempfile::TempDir,
    options: ArchiverOptions,
    server: Option<Server>,
    /// The newest record that was archived, by the word of a process.
    archived: u64,
}

struct Round {
    dice: SeededEntropy,
    store: FaultStore,
    seeds: u64,
    events: Events,
}

impl Side {
    fn new(disk: Disk, dice: &SeededEntropy) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = ArchiverOptions {
            memory_bytes: [1 << 20, 4 << 20, 64 << 20][dice.below(3) as usize],
            spool_bytes_max: [64 << 10, 1 << 20, 1 << 30, 1 << 30][dice.below(4) as usize],
            linger: Duration::from_millis([100, 1_000, 5_000][dice.below(3) as usize]),
            ..options(&folder)
        };
        Self { disk: Arc::new(Mutex::new(disk)), folder, options, server: None, archived: 0 }
    }

    /// Notes the word of the process about the archive.
    fn look(&mut self, events: &mut Events) {
        let Some(server) = &self.server else { return };
        server.check_tasks();
        let status = server.archiver.status();
        // Before its opening a log after a gap promises nothing: the base that has the records is marked by that slot.
        if let Some(position) = server.archiver.position().filter(|position| position.seq > 0)
            && self.disk.lock().logs.contains(&position.log)
        {
            self.archived = self.archived.max(position.archived.0);
        }
        let name = match status.state {
            ArchiverState::Connecting { .. } => "connecting",
            ArchiverState::Shipping => "shipping",
            ArchiverState::Waiting { .. } => "waiting",
            ArchiverState::NeedsBase { .. } => "needs a base",
            ArchiverState::Fenced { .. } => "fenced",
            ArchiverState::Refused { why } if why.contains("is an old copy") => "refused",
            ArchiverState::Refused { why } => panic!("{why}"),
            ArchiverState::Stopped => "stopped",
        };
        *events.entry(name).or_default() += 1;
        let counts = [("gap", status.gaps), ("spooled", u64::from(status.spool_bytes > 0))];
        for (name, count) in counts {
            *events.entry(name).or_default() += count;
        }
    }

    fn crash(&mut self, events: &mut Events) {
        self.look(events);
        if let Some(server) = self.server.take() {
            drop(server.archiver);
            server.store.close();
        }
    }

    /// Cuts the end of the spool off, or changes a byte of it, as a crash of the machine may.
    fn tear_spool(&self, dice: &SeededEntropy) {
        let path = self.folder.path().join("spool");
        let Ok(mut bytes) = std::fs::read(&path) else { return };
        let at = dice.below(bytes.len() as u64) as usize;
        match dice.below(2) {
            0 => bytes.truncate(at),
            _ => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 16),
        }
        std::fs::write(path, bytes).unwrap();
    }
}

impl Round {
    fn new(seed: u64) -> Self {
        let latency = if seed.is_multiple_of(2) { Latency::S3 } else { Latency::NEAR };
        let store = FaultStore::new(seed, [20, 100, 200][(seed % 3) as usize], latency);
        store.turn_off(&FAULTS);
        Self { dice: SeededEntropy::new(seed), store, seeds: seed << 20, events: Events::new() }
    }

    fn count(&mut self, event: &'static str) {
        *self.events.entry(event).or_default() += 1;
    }

    async fn start(&mut self, side: &mut Side) {
        self.seeds += 2;
        let requests = Box::new(self.store.clone());
        let options = BucketOptions { puts_per_second: 1_000, ..BucketOptions::default() };
        let bucket = ArchiveBucket::over(requests, options, Arc::new(SeededEntropy::new(self.seeds)));
        let server = Server::start(&side.disk, Arc::new(bucket), &side.options, self.seeds + 1).await;
        side.server = Some(server);
    }

    /// Writes some batches of the log, unless the log is full: then writers wait.
    fn write(&mut self, side: &Side) {
        let Some(server) = &side.server else { return };
        for _ in 0..=self.dice.below(12) {
            if server.store.is_full() {
                return;
            }
            let records = 1 + self.dice.below(4);
            let mut batch = Vec::new();
            for at in 0..records {
                let continues = at + 1 < records && self.dice.below(2) == 0;
                let key = format!("b\0{}", self.dice.below(50)).into_bytes();
                let bytes = [0, 20, 100, 3_000, 70_000][self.dice.below(5) as usize];
                let first = self.dice.below((BYTES.len() - bytes) as u64) as usize;
                let value = (self.dice.below(5) > 0).then(|| BYTES.slice(first..first + bytes));
                batch.push((key, value, continues));
            }
            server.store.write(batch);
        }
    }

    async fn step(&mut self, side: &mut Side) {
        match self.dice.below(20) {
            0..10 => self.write(side),
            10..14 => {
                let most = [100, 1_000, 20_000][self.dice.below(3) as usize];
                sleep(Duration::from_millis(self.dice.below(most))).await;
            }
            14 => {
                side.crash(&mut self.events);
                self.count("crash");
                if self.dice.below(6) == 0 {
                    self.count("torn spool");
                    // The process before has the file for another moment.
                    sleep(Duration::from_millis(10)).await;
                    side.tear_spool(&self.dice);
                }
                if self.dice.below(2) == 0 {
                    sleep(Duration::from_secs(self.dice.below(90))).await;
                }
                self.start(side).await;
            }
            15 => {
                let Some(server) = &side.server else { return };
                server.archiver.stop(Duration::from_secs(self.dice.below(30))).await;
                self.count("stop");
                side.crash(&mut self.events);
                self.start(side).await;
            }
            16 if self.dice.below(3) == 0 => {
                self.store.expire(Duration::from_secs(30 + self.dice.below(600)));
                self.count("outage");
            }
            17 => {
                let Some(server) = &side.server else { return };
                let last = Lsn(server.store_last());
                let wait = server.archiver.wait_archived(last);
                if tokio::time::timeout(Duration::from_secs(60), wait).await.is_ok() {
                    side.archived = side.archived.max(last.0);
                    self.count("waited");
                }
            }
            _ => {}
        }
        side.look(&mut self.events);
    }
}

/// Checks the archive with the word of one side.
fn verify(round: &Round, sides: &[Side], seed: u64) -> usize {
    let (_, logs) = replay(&round.store.contents(), &VOLUME);
    let counts = sides.iter().map(|side| {
        let disk = side.disk.lock();
        assert!(disk.floor <= *disk.history.keys().next_back().unwrap_or(&0), "seed {seed}");
        check(&logs, |log| disk.logs.contains(&log), &disk.history, Lsn(side.archived))
    });
    counts.sum()
}

async fn run(seed: u64) -> (Round, usize) {
    let mut round = Round::new(seed);
    let ring = [32 << 10, 256 << 10, 4 << 20][round.dice.below(3) as usize];
    let mut sides = vec![Side::new(Disk::new(VOLUME, ring), &round.dice)];
    round.start(&mut sides[0]).await;
    // A probe of the bucket hardly succeeds in the middle of all faults: some rounds have it before them.
    if round.dice.below(4) > 0 {
        sides[0].server.as_ref().unwrap().opened().await;
    }
    round.store.turn_off(&NOT_HERE);
    for at in 0..60 {
        let which = round.dice.below(sides.len() as u64) as usize;
        let mut side = sides.swap_remove(which);
        round.step(&mut side).await;
        sides.push(side);
        if at == 30 && round.dice.below(3) == 0 {
            // Somebody starts a copy of the data file.
            let copy = sides[0].disk.lock().copied();
            let mut other = Side::new(copy, &round.dice);
            round.start(&mut other).await;
            round.count("second server");
            sides.push(other);
        }
    }
    round.store.turn_off(&FAULTS);
    // All late requests have taken effect, and all storms are over.
    sleep(Duration::from_secs(900)).await;
    let (mut owners, mut refused) = (0, 0);
    for side in &mut sides {
        let server = side.server.as_ref().unwrap();
        // A server without a write does not notice that it is fenced.
        server.store.put("b\0last", 10);
        server.catch_up().await;
        if matches!(server.state(), ArchiverState::Fenced { .. } | ArchiverState::Refused { .. }) {
            // Nothing waits for an archive of another server.
            sleep(Duration::from_secs(1)).await;
            assert_eq!(side.disk.lock().floor, server.store_last(), "seed {seed}");
            refused += usize::from(matches!(server.state(), ArchiverState::Refused { .. }));
        } else {
            owners += 1;
        }
        side.look(&mut round.events);
        side.crash(&mut round.events);
    }
    // A copy may have claimed the archive late, and then be too old to use it: a restart of the other server ends that.
    assert!(owners == 1 || (owners == 0 && refused > 0), "seed {seed}: {owners} servers own the archive");
    let records = verify(&round, &sides, seed);
    (round, records)
}

#[test]
fn no_archived_record_is_lost_under_any_fault() {
    let (first, rounds) = match lab::given("CASE") {
        Some(case) => (case, 1),
        None => (1_000_000 * lab::number("SEED", 0), lab::number("ARCHIVE_ROUNDS", ROUNDS)),
    };
    let faults: BTreeMap<Fault, u64> = FAULTS.iter().map(|fault| (*fault, 0)).collect();
    let sums = Mutex::new((faults, Events::new(), 0));
    lab::on_all_cores(rounds, |number| {
        let seed = first + number;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        let ran = catch_unwind(AssertUnwindSafe(|| runtime.unwrap().block_on(run(seed))));
        let (round, count) = ran.unwrap_or_else(|panic| {
            println!("again: LAB_CASE={seed}");
            resume_unwind(panic)
        });
        let mut sums = sums.lock();
        for (fault, count) in round.store.counts() {
            *sums.0.entry(fault).or_default() += count;
        }
        for (event, count) in round.events {
            *sums.1.entry(event).or_default() += count;
        }
        sums.2 += count;
    });
    let (faults, events, records) = sums.into_inner();
    println!("{rounds} rounds, {records} records, {} faults", faults.values().sum::<u64>());
    println!("{faults:?}\n{events:?}");
    if rounds < ROUNDS {
        return;
    }
    let missing: Vec<_> =
        faults.iter().filter(|(fault, count)| **count == 0 && !NOT_HERE.contains(fault)).collect();
    assert!(missing.is_empty(), "never injected: {missing:?}");
    for event in [
        "crash",
        "fenced",
        "gap",
        "needs a base",
        "outage",
        "refused",
        "second server",
        "spooled",
        "stop",
        "torn spool",
        "waiting",
    ] {
        assert!(events.get(event).is_some_and(|count| *count > 0), "never happened: {event}");
    }
}
