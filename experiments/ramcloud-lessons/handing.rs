//! Handing things over: messages from the kernel, memory back to it, work to the dispatch thread.

use std::hint::black_box;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use parking_lot::Mutex;

use super::{Pair, compare, median};
use shoal_bench::enough::Enough;

/// Messages or buffers of a batch.
const BATCH: usize = 32;
/// Bytes of a message: a request for a small object.
const MESSAGE_BYTES: usize = 40;

pub(super) fn completions(time: Duration) -> Result<Pair> {
    let (mut sender, receiver) = UnixStream::pair()?;
    let receiver = std::cell::RefCell::new(receiver);
    let messages = [1_u8; BATCH * MESSAGE_BYTES];
    let failed = std::cell::Cell::new(false);
    let sender = std::cell::RefCell::new(&mut sender);
    let round = |at_once: usize| {
        let mut memory = [0_u8; BATCH * MESSAGE_BYTES];
        let sent = sender.borrow_mut().write_all(&messages);
        let mut receiver = receiver.borrow_mut();
        for piece in memory.chunks_mut(at_once * MESSAGE_BYTES) {
            failed.set(failed.get() || sent.is_err() || receiver.read_exact(piece).is_err());
        }
        black_box(&memory);
    };
    let pair = compare(time, BATCH, || round(1), || round(BATCH));
    anyhow::ensure!(!failed.get(), "the socket pair failed");
    Ok(pair)
}

/// Another thread takes buffers from the same list all the time, as the kernel or another core would.
pub(super) fn give_back(time: Duration) -> Result<Pair> {
    let list: Arc<Mutex<Vec<u32>>> = Arc::default();
    let is_over = Arc::new(AtomicBool::new(false));
    let taker = thread::spawn({
        let (list, is_over) = (list.clone(), is_over.clone());
        move || {
            while !is_over.load(Ordering::Relaxed) {
                let taken = list.lock().pop();
                black_box(taken);
                for _ in 0..20 {
                    std::hint::spin_loop();
                }
            }
        }
    });
    let trim = |list: &mut Vec<u32>| {
        if list.len() > 4 * BATCH {
            list.clear();
        }
    };
    let old = || {
        for buffer in 0..BATCH as u32 {
            let mut list = list.lock();
            trim(&mut list);
            list.push(black_box(buffer));
        }
    };
    let mut kept = Vec::with_capacity(BATCH);
    let new = || {
        kept.clear();
        for buffer in 0..BATCH as u32 {
            kept.push(black_box(buffer));
        }
        let mut list = list.lock();
        trim(&mut list);
        list.extend_from_slice(&kept);
    };
    let pair = compare(time, BATCH, old, new);
    is_over.store(true, Ordering::Relaxed);
    // It exits by itself; its result does not matter.
    let _ = taker.join();
    Ok(pair)
}

/// The time of a turn of the dispatch thread, during which it holds its lock in the old form.
const TURN: Duration = Duration::from_micros(2);

/// The time until a worker has handed its work to a busy dispatch thread: it waits for the lock that stops dispatch, or for the queue's,
/// which is held for a moment.
pub(super) fn pass_on(time: Duration) -> Result<Pair> {
    let mut figures = [Vec::new(), Vec::new()];
    for slice in 0..10 {
        let by_queue = slice % 2 == 1;
        if let Some(figures) = figures.get_mut(usize::from(by_queue)) {
            figures.push(pass_once(time / 10, by_queue));
        }
    }
    let [old, new] = figures.map(median);
    Ok(Pair { old, new })
}

/// The mean wait of a hand-over, in nanoseconds.
fn pass_once(time: Duration, by_queue: bool) -> f64 {
    let dispatch: Mutex<Vec<u64>> = Mutex::default();
    let queue: Mutex<Vec<u64>> = Mutex::default();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut taken = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                let mut transport = dispatch.lock();
                let turn = Instant::now();
                if by_queue {
                    std::mem::swap(&mut *queue.lock(), &mut taken);
                    transport.append(&mut taken);
                }
                transport.clear();
                while turn.elapsed() < TURN {
                    std::hint::spin_loop();
                }
                drop(transport);
            }
        });
        let (enough, mut count, mut waited) = (Enough::after(time), 0_u32, Duration::ZERO);
        while !enough.is_reached(u64::from(count)) {
            let before = Instant::now();
            if by_queue {
                queue.lock().push(1)
            } else {
                dispatch.lock().push(1)
            }
            waited += before.elapsed();
            count += 1;
            // The worker's own work.
            let work = Instant::now();
            while work.elapsed() < 2 * TURN {
                std::hint::spin_loop();
            }
        }
        is_over.store(true, Ordering::Relaxed);
        waited.as_nanos() as f64 / f64::from(count)
    })
}
