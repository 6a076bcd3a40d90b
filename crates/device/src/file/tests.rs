//! Opening, locking, falling back, growing, discarding; requests of many threads and in unusual orders.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};

use shoal_base::BLOCK_BYTES;
use shoal_base::task::block_on;
use tempfile::TempDir;
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber, span};

use super::*;
use crate::{DeviceError, IoFuture};

const MODES: [IoMode; 2] = [IoMode::Uring, IoMode::Threads];

fn options(io: IoMode) -> FileOptions {
    FileOptions { create: true, io, ..FileOptions::default() }
}

/// An open file of `blocks` blocks in a temporary folder.
fn fresh(io: IoMode, blocks: u64) -> (TempDir, PathBuf, Device) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    let device = open(&path, &options(io)).unwrap();
    device.inner().grow(blocks).unwrap();
    (folder, path, device)
}

fn tagged(tag: u8) -> IoBuf {
    IoBuf::copied_from(&[tag; BLOCK_BYTES])
}

fn get(device: &Device, block: u64) -> Result<u8, DeviceError> {
    block_on(device.read(block, IoBuf::new(1))).ok().map(|buf| buf[0])
}

/// Counts the lines of the log, with the fields of the last one.
#[derive(Clone, Default)]
struct Lines(Arc<parking_lot::Mutex<Vec<String>>>);

impl Visit for Lines {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.0.lock().push(format!("{value:?}"));
        }
    }
}

impl Subscriber for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

fn refused(_: &File) -> io::Result<(ring::SubmissionQueue, ring::CompletionQueue)> {
    Err(io::Error::from_raw_os_error(libc::EPERM))
}

#[test]
fn falls_back_to_threads_with_one_line_in_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    let lines = Lines::default();
    let device = tracing::subscriber::with_default(lines.clone(), || {
        open_with(&path, &FileOptions { direct: false, ..options(IoMode::Auto) }, refused).unwrap()
    });
    assert_eq!(*lines.0.lock(), ["io_uring is not available here; a pool of threads does the I/O"]);
    assert!(device.inner().describe().contains("8 threads"), "{device:?}");
    device.inner().grow(4).unwrap();
    block_on(device.write(3, tagged(5)).in_background()).ok().unwrap();
    assert_eq!(get(&device, 3).unwrap(), 5);
}

#[test]
fn explicit_io_uring_does_not_fall_back() {
    let folder = tempfile::tempdir().unwrap();
    let error = open_with(&folder.path().join("data"), &options(IoMode::Uring), refused).unwrap_err();
    assert!(matches!(error, OpenError::UringRefused { .. }), "{error}");
}

#[test]
fn a_second_opener_is_refused_until_the_first_is_gone() {
    for io in MODES {
        let (_folder, path, device) = fresh(io, 4);
        let error = open(&path, &options(io)).unwrap_err();
        assert_eq!(error.to_string(), format!("{} is in use by another process", path.display()));
        // A thread that executed a batch keeps nothing open, either.
        let mut batch = device.batch();
        let writes: Vec<_> = (0..4).map(|block| batch.add(device.write(block, tagged(1)))).collect();
        block_on(async { batch.start() });
        for write in writes {
            block_on(write).ok().unwrap();
        }
        drop(device);
        // The lock went with it.
        let device = open(&path, &options(io)).unwrap();
        assert_eq!((device.blocks(), get(&device, 3).unwrap()), (4, 1));
    }
}

#[test]
fn lock_about_to_be_released_is_waited_for() {
    let (_folder, path, device) = fresh(IoMode::Auto, 1);
    let other = thread::spawn(move || {
        thread::sleep(LOCK_PAUSE);
        drop(device);
    });
    open(&path, &options(IoMode::Auto)).unwrap();
    other.join().unwrap();
}

#[test]
fn open_error_names_the_path() {
    let folder = tempfile::tempdir().unwrap();
    let none = FileOptions { create: false, ..FileOptions::default() };
    let missing = open(&folder.path().join("none"), &none).unwrap_err();
    assert!(matches!(missing, OpenError::Missing { .. }), "{missing}");
    let folder_error = open(folder.path(), &FileOptions::default()).unwrap_err();
    assert!(matches!(folder_error, OpenError::WrongKind { .. }), "{folder_error}");
    let tty = open(Path::new("/dev/null"), &FileOptions::default()).unwrap_err();
    assert!(matches!(tty, OpenError::WrongKind { .. }), "{tty}");
    let no_folder = open(&folder.path().join("a/b"), &options(IoMode::Auto)).unwrap_err();
    assert!(no_folder.to_string().starts_with("cannot create "), "{no_folder}");
    std::fs::write(folder.path().join("file"), b"").unwrap();
    let behind = open(&folder.path().join("file/data"), &options(IoMode::Auto)).unwrap_err();
    assert!(behind.to_string().starts_with("cannot look at "), "{behind}");
    // No process may write to a running program.
    let running = open(&std::env::current_exe().unwrap(), &FileOptions::default()).unwrap_err();
    assert!(running.to_string().starts_with("cannot open "), "{running}");
    let path = Path::new("/dev/none");
    let mounted = not_opened(io::Error::from_raw_os_error(libc::EBUSY), path);
    assert!(matches!(mounted, OpenError::InUse { .. }), "{mounted}");
}

#[test]
fn uses_whole_blocks_only_and_keeps_the_rest_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    std::fs::write(&path, vec![9; 2 * BLOCK_BYTES + 100]).unwrap();
    let device = open(&path, &FileOptions::default()).unwrap();
    assert_eq!(device.blocks(), 2);
    assert!(matches!(get(&device, 2), Err(DeviceError::OutOfRange { .. })));
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 2 * BLOCK_BYTES_U64 + 100);
    device.inner().grow(4).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 4 * BLOCK_BYTES_U64);
    assert_eq!((get(&device, 2).unwrap(), get(&device, 3).unwrap()), (9, 0));
    device.inner().grow(1).unwrap();
    assert_eq!(device.blocks(), 4, "a device never shrinks");
}

#[test]
fn growing_beyond_the_disk_fails_and_changes_nothing() {
    let (_folder, _path, device) = fresh(IoMode::Auto, 1);
    assert!(device.inner().grow(1 << 40).is_err());
    assert!(device.inner().grow(u64::MAX).is_err());
    assert_eq!(device.blocks(), 1);
}

#[test]
fn works_where_direct_io_is_refused() {
    // The memory file system took no direct I/O before Linux 6.6; the device works either way.
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else { return };
    let device = open(&folder.path().join("data"), &options(IoMode::Auto)).unwrap();
    device.inner().grow(4).unwrap();
    block_on(device.write_durable(1, tagged(3))).ok().unwrap();
    assert_eq!(get(&device, 1).unwrap(), 3);
}

#[test]
fn a_durable_write_works_without_the_flag() {
    let folder = tempfile::tempdir().unwrap();
    let storage = Arc::new(open_storage(&folder.path().join("data"), &options(IoMode::Uring)).unwrap());
    storage.lengthen(8, true).unwrap();
    storage.dsync().store(false, Ordering::Relaxed);
    let device =
        FileDevice::driven(storage.clone(), Driver::Uring(Uring::start(storage, ring::shared).unwrap()));
    block_on(device.write_durable(1, tagged(1))).ok().unwrap();
    block_on(device.write_durable(2, tagged(2)).in_background()).ok().unwrap();
    let mut batch = device.batch();
    let writes: Vec<_> =
        (3..6).map(|block| batch.add(device.write_durable(block, tagged(block as u8)))).collect();
    block_on(async { batch.start() });
    for write in writes {
        block_on(write).ok().unwrap();
    }
    let found: Vec<u8> = (1..6).map(|block| get(&device, block).unwrap()).collect();
    assert_eq!(found, [1, 2, 3, 4, 5]);
    assert_eq!(device.counters().flushes, 5);
}

#[test]
fn a_discard_is_done_or_ignored_by_all_ways() {
    for io in MODES {
        let (_folder, path, device) = fresh(io, 64);
        for block in 0..64 {
            block_on(device.write(block, tagged(1))).ok().unwrap();
        }
        block_on(device.flush()).ok().unwrap();
        block_on(device.discard(8, 16)).ok().unwrap();
        block_on(device.discard(24, 16).in_background()).ok().unwrap();
        let mut batch = device.batch();
        let both = (batch.add(device.discard(40, 1)), batch.add(device.write(63, tagged(2))));
        block_on(async { batch.start() });
        block_on(both.0).ok().unwrap();
        block_on(both.1).ok().unwrap();
        assert!(block_on(device.discard(60, 5)).result.is_err(), "behind the end");
        assert_eq!(
            (get(&device, 7).unwrap(), get(&device, 41).unwrap(), get(&device, 63).unwrap()),
            (1, 1, 2)
        );
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 64 * BLOCK_BYTES_U64);
    }
}

#[test]
fn many_threads_submit_and_execute_at_once() {
    const THREADS: u64 = 8;
    const ROUNDS: u64 = 40;
    for io in MODES {
        let (_folder, _path, device) = fresh(io, THREADS * ROUNDS);
        let barrier = Barrier::new(THREADS as usize);
        thread::scope(|scope| {
            for number in 0..THREADS {
                let (device, barrier) = (&device, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    let mine = |round: u64| round * THREADS + number;
                    let tag = |round: u64| (mine(round) % 251) as u8 + 1;
                    let mut writes: Vec<IoFuture<IoBuf>> = Vec::new();
                    for round in 0..ROUNDS {
                        let write = device.write(mine(round), tagged(tag(round)));
                        if round % 5 == 0 {
                            block_on(write).ok().unwrap();
                        } else {
                            writes.push(write.in_background());
                        }
                    }
                    for write in writes {
                        block_on(write).ok().unwrap();
                    }
                    let mut batch = device.batch();
                    let read = |round| device.read(mine(round), IoBuf::new(1));
                    let reads: Vec<_> = (0..ROUNDS).map(|round| batch.add(read(round))).collect();
                    block_on(async { batch.start() });
                    for (round, read) in reads.into_iter().enumerate() {
                        assert_eq!(block_on(read).ok().unwrap()[0], tag(round as u64));
                    }
                });
            }
        });
        let counters = device.counters();
        assert_eq!(
            (counters.reads, counters.writes, counters.errors),
            (THREADS * ROUNDS, THREADS * ROUNDS, 0)
        );
    }
}

#[test]
fn more_requests_than_the_ring_holds_all_complete() {
    const COUNT: u64 = 2000;
    for io in MODES {
        let (_folder, _path, device) = fresh(io, COUNT);
        let mut batch = device.batch();
        let writes: Vec<_> =
            (0..COUNT).map(|block| batch.add(device.write(block, tagged((block % 251) as u8)))).collect();
        batch.start_in_background();
        for write in writes {
            block_on(write).ok().unwrap();
        }
        assert_eq!(get(&device, COUNT - 1).unwrap(), ((COUNT - 1) % 251) as u8);
    }
}

#[test]
fn a_list_longer_than_the_systems_limit_is_transferred() {
    for io in MODES {
        let (_folder, _path, device) = fresh(io, 1600);
        let memory = || (0..1500).map(|tag| tagged((tag % 251) as u8)).collect::<Vec<IoBuf>>();
        block_on(device.write(10, memory())).ok().unwrap();
        block_on(device.write(20, memory()).in_background()).ok().unwrap();
        let empty = (0..1500).map(|_| IoBuf::new(1)).collect::<Vec<IoBuf>>();
        let found = block_on(device.read(20, empty).in_background()).ok().unwrap();
        assert!(found.iter().enumerate().all(|(place, buf)| buf[..] == tagged((place % 251) as u8)[..]));
    }
}

#[test]
fn dropped_futures_leave_their_requests_alone() {
    for io in MODES {
        let (_folder, _path, device) = fresh(io, 256);
        for round in 1..=4 {
            let mut batch = device.batch();
            for block in 0..256 {
                drop(batch.add(device.write(block, tagged(round))));
            }
            for block in 0..256 {
                drop(batch.add(device.read(block, IoBuf::new(1))));
            }
            batch.start_in_background();
        }
        drop(device.write(0, tagged(99)));
        drop(device);
    }
}

#[test]
fn dropping_the_device_waits_for_requests() {
    for io in MODES {
        let (_folder, path, device) = fresh(io, 512);
        let mut batch = device.batch();
        let writes: Vec<_> = (0..512).map(|block| batch.add(device.write(block, tagged(7)))).collect();
        batch.start_in_background();
        drop(device);
        assert!(writes.iter().all(IoFuture::is_done));
        drop(open(&path, &options(io)).unwrap());
    }
}

/// A waker that drops the last device on the thread that completes the request.
struct DropsDevice(parking_lot::Mutex<Option<Device>>, AtomicUsize);

impl Wake for DropsDevice {
    fn wake(self: Arc<Self>) {
        drop(self.0.lock().take());
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn the_last_device_may_be_dropped_by_a_completion() {
    for io in MODES {
        for _ in 0..20 {
            let (_folder, path, device) = fresh(io, 64);
            // Completed only after the waker is in place: the first request waits for many others.
            let mut batch = device.batch();
            let mut writes: Vec<_> = (0..64).map(|block| batch.add(device.write(block, tagged(1)))).collect();
            let drops = Arc::new(DropsDevice(parking_lot::Mutex::new(Some(device)), AtomicUsize::new(0)));
            let waker = Waker::from(drops.clone());
            let mut first = writes.swap_remove(32);
            let pending = std::pin::Pin::new(&mut first).poll(&mut Context::from_waker(&waker)).is_pending();
            assert!(pending, "nothing is started yet");
            batch.start_in_background();
            for write in writes {
                block_on(write).ok().unwrap();
            }
            block_on(async {
                while drops.1.load(Ordering::SeqCst) == 0 {
                    thread::yield_now();
                }
            });
            open(&path, &options(io)).unwrap();
        }
    }
}

#[test]
fn a_request_outlives_the_thread_that_submitted_it() {
    let (_folder, _path, device) = fresh(IoMode::Uring, 64);
    for _ in 0..50 {
        let device = device.clone();
        let submitted = thread::spawn(move || {
            let mut batch = device.batch();
            let writes: Vec<_> = (0..16).map(|block| batch.add(device.write(block, tagged(1)))).collect();
            let flushes: Vec<_> = (0..20).map(|_| batch.add(device.flush())).collect();
            batch.start_in_background();
            (writes, flushes)
        });
        let (writes, flushes) = submitted.join().unwrap();
        for write in writes {
            block_on(write).ok().unwrap();
        }
        for flush in flushes {
            block_on(flush).ok().unwrap();
        }
    }
}

#[test]
fn too_many_waiting_requests_are_refused_not_kept() {
    let (_folder, _path, device) = fresh(IoMode::Threads, 1);
    let mut batch = device.batch();
    let flushes: Vec<_> = (0..crate::WAITING_MAX + 2000).map(|_| batch.add(device.discard(0, 0))).collect();
    batch.start_in_background();
    let refused = flushes.into_iter().filter_map(|flush| block_on(flush).result.err()).count();
    assert!(refused > 0 && refused <= 2000, "{refused} refused");
}

/// Files in memory: a flush of them costs nothing, and needs no memory of the caller's.
#[test]
fn requests_beyond_the_ring_and_its_queue_are_refused() {
    const REFUSED: usize = 7;
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else { return };
    let device = open(&folder.path().join("data"), &options(IoMode::Uring)).unwrap();
    device.inner().grow(1).unwrap();
    let mut batch = device.batch();
    // None completes while they are queued.
    let flushes: Vec<_> = (0..crate::uring::IN_FLIGHT_MAX + crate::WAITING_MAX + REFUSED)
        .map(|_| batch.add(device.flush()))
        .collect();
    batch.start_in_background();
    let errors: Vec<String> =
        flushes.into_iter().filter_map(|flush| Some(block_on(flush).result.err()?.to_string())).collect();
    assert_eq!(errors.len(), REFUSED);
    assert!(errors.iter().all(|error| error.contains("too many requests are waiting")), "{errors:?}");
    assert_eq!(get(&device, 0).unwrap(), 0, "the device works on");
}

/// The file was cut while it was open: an error for the blocks that are gone, by any way of reading them.
#[test]
fn file_truncated_while_open_is_an_error() {
    for io in MODES {
        let (_folder, path, device) = fresh(io, 4);
        block_on(device.write_durable(0, tagged(7))).ok().unwrap();
        OpenOptions::new().write(true).open(&path).unwrap().set_len(BLOCK_BYTES_U64).unwrap();
        let mut batch = device.batch();
        let reads = [0, 3].map(|block| batch.add(device.read(block, IoBuf::new(1))));
        block_on(async { batch.start() });
        let [there, gone] = reads.map(|read| block_on(read).ok());
        assert_eq!(there.unwrap()[0], 7);
        for error in [gone.map(|_| ()).unwrap_err(), get(&device, 3).unwrap_err()] {
            assert!(error.to_string().contains("shorter than when it was opened"), "{io:?}: {error}");
        }
    }
}

/// Everything but a read is refused before the system sees it, by any way of running it.
#[test]
fn a_read_only_opening_changes_nothing_and_shares_the_lock() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    std::fs::write(&path, vec![9; 4 * BLOCK_BYTES]).unwrap();
    for io in MODES {
        let reading = FileOptions { read_only: true, create: true, io, ..FileOptions::default() };
        let missing = open(&folder.path().join("none"), &reading).unwrap_err();
        assert!(matches!(missing, OpenError::Missing { .. }), "nothing is created: {missing}");
        let device = open(&path, &reading).unwrap();
        let other = open(&path, &reading).unwrap();
        assert_eq!((get(&device, 1).unwrap(), get(&other, 3).unwrap()), (9, 9));
        let writer = open(&path, &FileOptions { io, ..FileOptions::default() }).unwrap_err();
        assert!(matches!(writer, OpenError::InUse { .. }), "{writer}");
        assert!(!device.inner().can_grow() && device.inner().grow(5).is_err());
        assert!(device.write_now(1, tagged(1)).result.is_err());
        assert!(block_on(device.write(1, tagged(1))).result.is_err());
        assert!(block_on(device.write(1, tagged(1)).in_background()).result.is_err());
        assert!(block_on(device.write_durable(1, tagged(1))).result.is_err());
        assert!(block_on(device.discard(1, 1)).result.is_err());
        assert!(block_on(device.flush().in_background()).result.is_err());
        let mut batch = device.batch();
        let writes: Vec<_> = (0..4).map(|block| batch.add(device.write(block, tagged(1)))).collect();
        block_on(async { batch.start() });
        for write in writes {
            assert!(block_on(write).result.is_err());
        }
        let described = format!("{device:?}");
        assert!(described.contains("read-only"), "{described}");
        drop((device, other));
        let device = open(&path, &FileOptions { io, ..FileOptions::default() }).unwrap();
        let reader = open(&path, &reading).unwrap_err();
        assert!(matches!(reader, OpenError::InUse { .. }), "a writer is alone: {reader}");
        drop(device);
    }
    assert!(std::fs::read(&path).unwrap() == vec![9; 4 * BLOCK_BYTES]);
}

/// The properties of a raw device, on a file that is taken for one.
#[test]
fn a_raw_device_neither_grows_nor_has_to_discard() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    std::fs::write(&path, vec![9; 4 * BLOCK_BYTES]).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let sectors = sector_bytes(&file, &path).unwrap_err().to_string();
    assert!(sectors.starts_with("cannot ask for the sector size of "), "{sectors}");
    let storage = Storage::new(file, path.clone(), Kind::Raw, false, false, 4 * BLOCK_BYTES_U64);
    storage.lengthen(4, true).unwrap();
    let error = storage.lengthen(5, true).unwrap_err().to_string();
    assert_eq!(error, "a block device of 4 blocks cannot grow to 5");
    let storage = Arc::new(storage);
    let device = FileDevice::driven(storage.clone(), Driver::Threads(Pool::start(storage, 1).unwrap()));
    block_on(device.discard(1, 2)).ok().unwrap();
    assert_eq!(get(&device, 1).unwrap(), 9, "it does not know discards: nothing happened");
    assert!(!device.inner().can_grow() && device.blocks() == 4);
}

/// Bytes in a file that cannot be opened any more end with the process.
#[test]
fn moved_file_is_detected() {
    let folder = tempfile::tempdir().unwrap();
    let (path, other) = (folder.path().join("data"), folder.path().join("other"));
    let opened = || open(&path, &FileOptions { create: true, ..FileOptions::default() }).unwrap();
    let displaced = |device: &Device| device.inner().displaced();
    let device = opened();
    assert_eq!(displaced(&device), None);
    assert_eq!(device.inner().path().as_deref(), Some(path.as_path()));
    std::fs::rename(&path, &other).unwrap();
    assert!(displaced(&device).unwrap().contains("was renamed"));
    std::fs::write(&path, "x").unwrap();
    assert!(displaced(&device).unwrap().contains("was replaced"));
    std::fs::rename(&other, &path).unwrap();
    assert_eq!(displaced(&device), None, "it is back");
    std::fs::remove_file(&path).unwrap();
    assert!(displaced(&device).unwrap().contains("was deleted"));
}

#[test]
fn blocks_that_a_growth_took_can_be_given_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    let device = open(&path, &FileOptions { create: true, ..FileOptions::default() }).unwrap();
    device.inner().grow(64).unwrap();
    device.inner().shrink(16).unwrap();
    assert_eq!((device.blocks(), std::fs::metadata(&path).unwrap().len()), (16, 16 * BLOCK_BYTES_U64));
    device.inner().shrink(32).unwrap();
    assert_eq!(device.blocks(), 16, "it never grows by that");
    device.inner().grow(20).unwrap();
    assert_eq!(device.blocks(), 20);
}

#[test]
fn blocks_are_whole_sectors() {
    let path = Path::new("/dev/none");
    for fits in [512, 1_024, 4_096] {
        check_sectors(fits, path).unwrap();
    }
    for not in [0, 520, 8_192] {
        let error = check_sectors(not, path).unwrap_err();
        assert!(matches!(error, OpenError::Sectors { sector_bytes, .. } if sector_bytes == not), "{error}");
    }
}

/// The length counts like the name: a file that was cut is not the one that was opened, even if it is extended again.
#[test]
fn shortened_file_is_detected() {
    for io in MODES {
        let (_folder, path, device) = fresh(io, 8);
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        let shortened = |needed| device.inner().shortened(needed);
        assert_eq!(shortened(8), None);
        file.set_len(4 * BLOCK_BYTES_U64).unwrap();
        assert_eq!(shortened(4), None, "the store uses no more");
        let what = shortened(5).unwrap();
        assert!(what.contains("was cut") && what.contains("16384 bytes") && what.contains("20480"), "{what}");
        // A growth would hide it.
        let error = device.inner().grow(16).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{error}");
        file.set_len(8 * BLOCK_BYTES_U64).unwrap();
        assert!(shortened(5).is_some(), "{io:?}: it is known");
    }
    // A read that meets the end is enough.
    for io in MODES {
        let (_folder, path, device) = fresh(io, 8);
        OpenOptions::new().write(true).open(&path).unwrap().set_len(4 * BLOCK_BYTES_U64).unwrap();
        assert!(get(&device, 6).is_err());
        assert!(device.inner().shortened(1).is_some(), "{io:?}");
    }
}

#[test]
fn a_new_name_never_replaces_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    std::fs::write(&from, "new").unwrap();
    std::fs::write(&to, "old").unwrap();
    assert_eq!(sys::rename_new(&from, &to).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    assert!(give_name(&from, &to).is_err());
    assert_eq!(std::fs::read(&to).unwrap(), b"old");
    std::fs::remove_file(&to).unwrap();
    sys::rename_new(&from, &to).unwrap();
    assert_eq!(std::fs::read(&to).unwrap(), b"new");
}

/// A sparse copy of a data file: its holes are filled before a write finds the file system full.
#[test]
fn holes_get_their_room() {
    use std::os::unix::fs::MetadataExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    File::create(&path).unwrap().set_len(64 * BLOCK_BYTES_U64).unwrap();
    let device = open(&path, &FileOptions::default()).unwrap();
    let taken = || std::fs::metadata(&path).unwrap().blocks() * 512;
    assert_eq!(taken(), 0);
    assert!(device.inner().hold_room(16..1_000).unwrap());
    assert_eq!(
        (taken(), device.blocks()),
        (48 * BLOCK_BYTES_U64, 64),
        "the end of the file is the end of it"
    );
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 64 * BLOCK_BYTES_U64);
}

/// On btrfs an overwrite took new room, so a store on a full disk could write neither its log nor a superblock.
#[test]
fn a_new_file_is_overwritten_in_place() {
    let folder = tempfile::tempdir().unwrap();
    let other = File::create(folder.path().join("other")).unwrap();
    if !sys::is_copied_on_write(&other).unwrap() {
        println!("skipped: the folder for temporary files (TMPDIR) is not on btrfs");
        return;
    }
    let device = open(&folder.path().join("data"), &options(IoMode::Auto)).unwrap();
    assert!(!device.inner().is_copied_on_write());
}
