//! The pool alone: pins, latches, loads that are shared, evictions, write-back, with fewer frames than pages.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use shoal_base::BLOCK_BYTES;
use shoal_base::checksum::crc32c;
use shoal_base::task::block_on;
use shoal_device::{BlockDevice, Device, DeviceCounters, Submission};
use shoal_device_sim::{Image, SimDevice};
use shoal_pool::{Hint, Pool, PoolOptions, Unit};
use shoal_testkit::device::quiet;
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::{Condvar, Mutex};

use super::{Share, explore};

const PAGES: u64 = 4;

/// A device that does submitted requests on a separate thread, in any order.
struct Apart {
    sim: Arc<SimDevice>,
    waiting: Mutex<(VecDeque<Submission>, bool)>,
    changed: Condvar,
}

impl Apart {
    fn new(sim: Arc<SimDevice>) -> Arc<Self> {
        Arc::new(Self { sim, waiting: Mutex::default(), changed: Condvar::new() })
    }

    /// The device's thread: until it is closed and nothing waits any more.
    fn serve(&self) {
        loop {
            let mut waiting = self.waiting.lock().unwrap();
            while waiting.0.is_empty() {
                if waiting.1 {
                    return;
                }
                waiting = self.changed.wait(waiting).unwrap();
            }
            let turn = thread_rng().gen_range(0..waiting.0.len());
            let submission = waiting.0.remove(turn).unwrap();
            drop(waiting);
            self.sim.submit(vec![submission]);
        }
    }

    fn close(&self) {
        self.waiting.lock().unwrap().1 = true;
        self.changed.notify_all();
    }
}

impl BlockDevice for Apart {
    fn submit(&self, submissions: Vec<Submission>) {
        self.waiting.lock().unwrap().0.extend(submissions);
        self.changed.notify_all();
    }

    fn execute(&self, submissions: Vec<Submission>) {
        self.sim.execute(submissions);
    }

    fn blocks(&self) -> u64 {
        self.sim.blocks()
    }

    fn grow(&self, blocks: u64) -> io::Result<()> {
        self.sim.grow(blocks)
    }

    fn describe(&self) -> String {
        "requests done by a thread of the schedule".into()
    }

    fn can_grow(&self) -> bool {
        false
    }

    fn counters(&self) -> DeviceCounters {
        self.sim.counters()
    }
}

/// The page filled with its number, after its checksum.
fn page(block: u64) -> [u8; BLOCK_BYTES] {
    let mut page = [block as u8 + 1; BLOCK_BYTES];
    let crc = crc32c(&page[4..]);
    page[..4].copy_from_slice(&crc.to_le_bytes());
    page
}

fn image() -> Image {
    let mut image = Image::new(PAGES);
    (0..PAGES).for_each(|block| image.write(block, &page(block)));
    image
}

fn unit(block: u64) -> Unit {
    Unit::page(block, crc32c(&page(block)[4..]))
}

fn small(frames: usize, side_buffers: usize) -> PoolOptions {
    PoolOptions { side_buffers, history: 8, ..PoolOptions::new(frames) }
}

/// Each thread counts pages up that change in place; there are fewer frames than pages, so they leave and come back.
fn count_up(name: &str, side_buffers: usize) {
    explore(name, Share::All, move || {
        let sim = quiet(Image::new(PAGES));
        let pool = Pool::new(Device::new(sim.clone()), small(3, side_buffers)).unwrap();
        let threads = (0..3).map(|first| {
            let pool = pool.clone();
            shuttle::thread::spawn(move || {
                for turn in 0..4 {
                    let block = (first + turn) % PAGES;
                    let mut page = block_on(pool.write(block, Hint::Lookup)).unwrap();
                    page[0] += 1;
                    let count = page[0];
                    page[BLOCK_BYTES - 1] = count;
                    drop(page);
                    if turn == 1 {
                        block_on(pool.flush_page(block)).unwrap();
                    }
                    let read = block_on(pool.read((block + 1) % PAGES, Hint::Scan)).unwrap();
                    assert_eq!(read.page()[0], read.page()[BLOCK_BYTES - 1], "half of a change");
                }
            })
        });
        let threads: Vec<_> = threads.collect();
        super::join(threads);
        block_on(pool.flush_all()).unwrap();
        for block in 0..PAGES {
            assert_eq!(sim.image().block(block)[0], 3, "page {block}");
        }
    });
}

#[test]
fn no_change_of_a_page_is_lost() {
    count_up("pages in place", 0);
}

#[test]
fn no_change_of_a_page_is_lost_with_side_buffers() {
    count_up("pages in place, side buffers", 2);
}

/// Three threads ask for the same pages in other orders; the device answers when it likes. A thread that waits for a load or for
/// a frame is woken, and gets the right page.
#[test]
fn fetch_returns_the_requested_page() {
    explore("shared loads", Share::All, move || {
        let apart = Apart::new(quiet(image()));
        let device = apart.clone();
        let serving = shuttle::thread::spawn(move || device.serve());
        let pool = Pool::new(Device::new(apart.clone()), small(2, 0)).unwrap();
        let threads = (0..3_u64).map(|first| {
            let pool = pool.clone();
            shuttle::thread::spawn(move || {
                for turn in 0..3 {
                    let block = (first * 2 + turn) % PAGES;
                    let fetch = pool.fetch(unit(block), Hint::Lookup);
                    // One may block, the others may not: their requests are submitted.
                    let found = if first == 0 { block_on(fetch) } else { shuttle::future::block_on(fetch) };
                    let found = found.unwrap();
                    shuttle::thread::yield_now();
                    assert!(*found.page() == page(block), "page {block}");
                }
            })
        });
        let threads: Vec<_> = threads.collect();
        super::join(threads);
        drop(pool);
        apart.close();
        serving.join().unwrap();
    });
}
