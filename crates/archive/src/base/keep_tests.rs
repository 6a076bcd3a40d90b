//! Bases against a folder, with the store and the writer of the log in memory.

use bytes::Bytes;
use shoal_base::{ManualClock, SeededEntropy};
use tokio::sync::Notify;

use super::*;
use crate::bucket::{BucketAddress, BucketOptions};
use crate::format::BaseEnd;
use crate::source::{BaseStream, SourceBatch, SourceFacts, SourceRecord};
use crate::testing::record;

const ME: [u8; 16] = [1; 16];
const DAY_NS: u64 = 24 * 3600 * 1_000_000_000;

/// A store whose bases have this number of pieces of 1 MiB.
#[derive(Default)]
struct Pieces {
    version: AtomicU64,
    pieces: AtomicU64,
    /// Bases fail while it is set.
    fails: std::sync::atomic::AtomicBool,
    clock: Arc<ManualClock>,
}

struct PieceStream {
    version: Lsn,
    taken_ns: u64,
    pieces: u64,
    at: u64,
}

impl BaseStream for PieceStream {
    fn version(&self) -> Lsn {
        self.version
    }
    fn taken_ns(&self) -> u64 {
        self.taken_ns
    }
    fn objects(&self) -> u64 {
        self.at
    }
    fn bytes_expected(&self) -> u64 {
        self.pieces << 20
    }
    fn next<'a>(&'a mut self, out: &'a mut Vec<u8>) -> Boxed<'a, Result<bool, SourceError>> {
        Box::pin(async move {
            if self.at == self.pieces {
                return Ok(false);
            }
            self.at += 1;
            out.extend((0..1 << 20_u64).map(|byte| (byte * self.at % 251) as u8));
            Ok(true)
        })
    }
}

impl ArchivedStore for Pieces {
    fn facts(&self) -> SourceFacts {
        unreachable!("bases need no facts")
    }
    fn remember_log(&self, _log: u64) -> Boxed<'_, Result<(), SourceError>> {
        unreachable!("bases open no log")
    }
    fn durable(&self) -> Lsn {
        Lsn(self.version.load(Ordering::Relaxed))
    }
    fn next_batch(&self, _after: Lsn) -> Boxed<'_, Result<Option<SourceBatch>, SourceError>> {
        unreachable!("bases read no log")
    }
    fn stored<'a>(&'a self, _: &'a SourceRecord, _: u64, _: usize) -> Boxed<'a, Result<Bytes, SourceError>> {
        unreachable!("bases read no value of the log")
    }
    fn wait_for(&self, _after: Lsn) -> Boxed<'_, ()> {
        unreachable!("bases wait for the writer")
    }
    fn release(&self, _lsn: Lsn) {}
    fn log_fill_permille(&self) -> u32 {
        0
    }
    fn start_base(&self, _base: u64) -> Boxed<'_, Result<Box<dyn BaseStream>, SourceError>> {
        Box::pin(async {
            if self.fails.load(Ordering::Relaxed) {
                return Err(SourceError::Lost("the snapshot was dropped".into()));
            }
            let stream = PieceStream {
                version: self.durable(),
                taken_ns: self.clock.wall_ns(),
                pieces: self.pieces.load(Ordering::Relaxed),
                at: 0,
            };
            Ok(Box::new(stream) as Box<dyn BaseStream>)
        })
    }
}

/// A writer that the test moves.
#[derive(Default)]
struct Moved {
    place: Mutex<Option<WriterPlace>>,
    gap: Mutex<Option<Lsn>>,
    bytes: AtomicU64,
    moved: Notify,
}

impl BaseWriter for Moved {
    fn incarnation(&self) -> [u8; 16] {
        ME
    }
    fn place(&self) -> Option<WriterPlace> {
        *self.place.lock()
    }
    fn gap(&self) -> Option<Lsn> {
        *self.gap.lock()
    }
    fn segment_bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
    fn note_record(&self, record: &ArchiveRecord) {
        let mut gap = self.gap.lock();
        *gap = gap.filter(|gap| record.bases.iter().all(|base| base.version < *gap));
    }
    fn changed(&self) -> Boxed<'_, ()> {
        Box::pin(self.moved.notified())
    }
}

/// A keeper that runs on a folder, with everything that a test changes.
struct Kept {
    _folder: tempfile::TempDir,
    store: Arc<Pieces>,
    writer: Arc<Moved>,
    bucket: Arc<ArchiveBucket>,
    record: RecordKeeper,
    status: Arc<BaseStatus>,
    clock: Arc<ManualClock>,
    task: tokio::task::JoinHandle<()>,
}

impl Kept {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let address: BucketAddress = format!("file://{}", folder.path().display()).parse().unwrap();
        let dice: Arc<SeededEntropy> = Arc::new(SeededEntropy::new(7));
        let options = BucketOptions { puts_per_second: 1_000, ..BucketOptions::default() };
        let bucket = Arc::new(ArchiveBucket::open(&address, options, dice.clone()).unwrap());
        let keeper = RecordKeeper::new(Arc::clone(&bucket), dice);
        assert!(keeper.create(&mut record()).await.unwrap());
        let clock = Arc::new(ManualClock::new(100 * DAY_NS));
        let store = Arc::new(Pieces { clock: Arc::clone(&clock), ..Pieces::default() });
        store.version.store(50, Ordering::Relaxed);
        store.pieces.store(3, Ordering::Relaxed);
        let writer = Arc::new(Moved::default());
        let options = BaseOptions {
            retention: Duration::from_secs(7 * 24 * 3600),
            memory_bytes: 8 << 20,
            bytes_per_second: NonZeroU64::new(1 << 40).unwrap(),
        };
        let of_record = (Arc::clone(&bucket), keeper.clone());
        let bases = BaseKeeper::new(store.clone(), of_record, writer.clone(), options, clock.clone());
        let (status, task) = (bases.status(), tokio::spawn(bases.run()));
        Self { _folder: folder, store, writer, bucket, record: keeper, status, clock, task }
    }

    /// Moves the writer to a slot with all records up to `archived`.
    fn moves(&self, seq: u64, archived: u64, bytes: u64) {
        *self.writer.place.lock() = Some(WriterPlace { log: 7, seq, archived: Lsn(archived) });
        self.writer.bytes.store(bytes, Ordering::Relaxed);
        self.store.version.fetch_max(archived, Ordering::Relaxed);
        self.writer.moved.notify_one();
    }

    async fn bases(&self) -> Vec<RecordBase> {
        self.record.read().await.unwrap().unwrap().0.bases
    }

    /// Waits in virtual time.
    async fn waits(&self, seconds: u64) {
        sleep(Duration::from_secs(seconds)).await;
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_base_is_made_once_a_log_is_open() {
    let kept = Kept::start().await;
    kept.waits(100).await;
    assert_eq!(kept.bases().await, [], "no log, no base");
    kept.moves(4, 40, 1_000);
    kept.waits(1).await;
    let bases = kept.bases().await;
    let [base] = bases[..] else { panic!("{bases:?}") };
    assert_eq!((base.version, base.log, base.seq, base.objects, base.bytes), (Lsn(50), 7, 3, 3, 3 << 20));
    assert_eq!(kept.status.newest(), Some(base));
    let end = kept.bucket.get(&ArchiveName::BaseEnd { base: base.id }.to_string()).await.unwrap().unwrap();
    let end = BaseEnd::decode(&end.bytes, base.id, base.end_crc).unwrap();
    assert_eq!(end.parts.len(), base.parts as usize);
    let mut all = Vec::new();
    for (part, entry) in end.parts.iter().enumerate() {
        let name = ArchiveName::Part { base: base.id, part: part as u32 }.to_string();
        let found = kept.bucket.get(&name).await.unwrap().unwrap();
        entry.check(base.id, part as u32, &found.bytes).unwrap();
        all.extend_from_slice(&found.bytes);
    }
    let byte = |at: u64| ((at % (1 << 20)) * (at / (1 << 20) + 1) % 251) as u8;
    assert!(all.iter().enumerate().all(|(at, &found)| found == byte(at as u64)), "the parts are the stream");
    let record = kept.record.read().await.unwrap().unwrap().0;
    assert_eq!((record.building, record.oldest_lsn), (0, Lsn(50)));
}

#[tokio::test(start_paused = true)]
async fn a_long_log_an_old_base_and_a_gap_get_a_base_and_a_quiet_store_gets_none() {
    let kept = Kept::start().await;
    kept.moves(4, 50, 1_000);
    kept.waits(1).await;
    kept.moves(5, 60, (1 << 30) + 999);
    kept.waits(1).await;
    assert_eq!(kept.bases().await.len(), 1, "one byte is missing");
    kept.moves(6, 70, (1 << 30) + 1_000);
    kept.waits(1).await;
    assert_eq!(kept.bases().await.iter().map(|base| base.version.0).collect::<Vec<_>>(), [50, 70]);
    kept.clock.advance(8 * DAY_NS);
    kept.waits(8 * 24 * 3600).await;
    assert_eq!(kept.bases().await.len(), 2, "nothing changed");
    kept.moves(7, 80, (1 << 30) + 2_000);
    kept.waits(1).await;
    let bases = kept.bases().await;
    let versions: Vec<u64> = bases.iter().map(|base| base.version.0).collect();
    assert_eq!(versions, [70, 80], "the first one is not needed any more");
    assert_eq!(kept.record.read().await.unwrap().unwrap().0.logs[0].first, bases[0].seq);
    *kept.writer.gap.lock() = Some(Lsn(95));
    kept.moves(9, 95, (1 << 30) + 2_001);
    kept.waits(1).await;
    assert_eq!((kept.bases().await.len(), *kept.writer.gap.lock()), (3, None), "the gap is over");
}

/// A change comes a while before the base becomes old: the timer makes the next one, without a further change.
#[tokio::test(start_paused = true)]
async fn a_base_becomes_old_by_itself() {
    let kept = Kept::start().await;
    kept.moves(4, 50, 0);
    kept.waits(1).await;
    kept.moves(5, 60, 100);
    kept.waits(1).await;
    for _ in 0..7 {
        assert_eq!(kept.bases().await.len(), 1);
        kept.clock.advance(DAY_NS);
        kept.waits(24 * 3600).await;
    }
    assert_eq!(kept.bases().await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_base_that_fails_is_repeated_and_its_reason_is_shown() {
    let kept = Kept::start().await;
    kept.store.fails.store(true, Ordering::Relaxed);
    kept.moves(4, 50, 0);
    kept.waits(5).await;
    assert!(kept.status.failure().unwrap().contains("snapshot was dropped"));
    kept.store.fails.store(false, Ordering::Relaxed);
    kept.waits(6).await;
    assert_eq!((kept.bases().await.len(), kept.status.failure()), (1, None));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_no_owner_names_no_base() {
    let kept = Kept::start().await;
    kept.record
        .update(|record| {
            record.owner = Some([9; 16]);
            Ok(())
        })
        .await
        .unwrap();
    kept.moves(4, 50, 0);
    kept.waits(100).await;
    assert_eq!(kept.bases().await, []);
    assert!(kept.status.failure().unwrap().contains("another server"));
}
