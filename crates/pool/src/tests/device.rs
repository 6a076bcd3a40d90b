//! A device in memory for tests and benchmarks: counts, holds requests back, delays and fails them on demand.

#![allow(unsafe_code)]
#![allow(dead_code, reason = "the benchmark includes this file and uses a part of it")]

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use shoal_base::{BLOCK_BYTES, BLOCK_BYTES_U64};
use shoal_device::{BlockDevice, Device, DeviceCounters, Op, Ticket};

#[derive(Default)]
struct State {
    held: bool,
    delay: Duration,
    bad_reads: HashSet<u64>,
    bad_writes: HashSet<u64>,
    counters: DeviceCounters,
}

struct Core {
    bytes: Mutex<Vec<u8>>,
    state: Mutex<State>,
    released: Condvar,
}

/// See the module.
pub(crate) struct TestDevice {
    core: Arc<Core>,
    queue: Mutex<Sender<Ticket>>,
}

impl TestDevice {
    /// A device of `blocks` blocks of zeros; submitted requests run on the device's thread.
    pub(crate) fn new(blocks: u64) -> Arc<Self> {
        let bytes = Mutex::new(vec![0; (blocks * BLOCK_BYTES_U64) as usize]);
        let core = Arc::new(Core { bytes, state: Mutex::default(), released: Condvar::new() });
        let (queue, tickets): (_, Receiver<Ticket>) = channel();
        let worker = core.clone();
        thread::spawn(move || tickets.into_iter().for_each(|ticket| worker.run(ticket)));
        Arc::new(Self { core, queue: Mutex::new(queue) })
    }

    pub(crate) fn device(self: &Arc<Self>) -> Device {
        Device::new(self.clone())
    }

    /// Holds every request from now on, until `release`.
    pub(crate) fn hold(&self) {
        self.core.state.lock().held = true;
    }

    pub(crate) fn release(&self) {
        self.core.state.lock().held = false;
        self.core.released.notify_all();
    }

    /// How long each request takes.
    pub(crate) fn delay(&self, delay: Duration) {
        self.core.state.lock().delay = delay;
    }

    /// Makes reads that touch `block` fail, or succeed again.
    pub(crate) fn fail_reads(&self, block: u64, fail: bool) {
        let bad = &mut self.core.state.lock().bad_reads;
        if fail {
            bad.insert(block)
        } else {
            bad.remove(&block)
        };
    }

    /// Makes writes that touch `block` fail, or succeed again.
    pub(crate) fn fail_writes(&self, block: u64, fail: bool) {
        let bad = &mut self.core.state.lock().bad_writes;
        if fail {
            bad.insert(block)
        } else {
            bad.remove(&block)
        };
    }

    /// Puts bytes at the start of a block, past the pool.
    pub(crate) fn put(&self, block: u64, bytes: &[u8]) {
        let start = block as usize * BLOCK_BYTES;
        self.core.bytes.lock()[start..start + bytes.len()].copy_from_slice(bytes);
    }

    pub(crate) fn peek(&self, block: u64, offset: usize, bytes: usize) -> Vec<u8> {
        let start = block as usize * BLOCK_BYTES + offset;
        self.core.bytes.lock()[start..start + bytes].to_vec()
    }

    pub(crate) fn counts(&self) -> DeviceCounters {
        self.core.state.lock().counters
    }
}

impl Core {
    fn run(&self, ticket: Ticket) {
        let (delay, bad) = {
            let mut state = self.state.lock();
            self.released.wait_while(&mut state, |state| state.held);
            let blocks = ticket.block()..ticket.block() + ticket.blocks();
            let bad = match ticket.op() {
                Op::Read => &state.bad_reads,
                _ => &state.bad_writes,
            };
            (state.delay, bad.iter().any(|block| blocks.contains(block)))
        };
        if delay > Duration::ZERO {
            thread::sleep(delay);
        }
        let device_blocks = self.bytes.lock().len() as u64 / BLOCK_BYTES_U64;
        if let Err(error) = ticket.check_range(device_blocks) {
            return ticket.complete(Err(error));
        }
        if bad {
            self.state.lock().counters.errors += 1;
            return ticket.fail(&io::Error::from_raw_os_error(5));
        }
        self.copy(&ticket);
        ticket.complete(Ok(()));
    }

    fn copy(&self, ticket: &Ticket) {
        let mut bytes = self.bytes.lock();
        let mut at = ticket.block() as usize * BLOCK_BYTES;
        for segment in ticket.segments() {
            let disk = &mut bytes[at..at + segment.bytes];
            match ticket.op() {
                // SAFETY: the ticket's memory is valid and exclusively this device's until it is completed.
                Op::Read => unsafe { segment.start.copy_from_nonoverlapping(disk.as_ptr(), segment.bytes) },
                // SAFETY: the ticket's memory is valid and not written to until it is completed.
                Op::Write => unsafe {
                    disk.as_mut_ptr().copy_from_nonoverlapping(segment.start, segment.bytes)
                },
                other => panic!("the pool asked for {other:?}"),
            }
            at += segment.bytes;
        }
        drop(bytes);
        let counters = &mut self.state.lock().counters;
        let (requests, blocks) = match ticket.op() {
            Op::Read => (&mut counters.reads, &mut counters.blocks_read),
            _ => (&mut counters.writes, &mut counters.blocks_written),
        };
        *requests += 1;
        *blocks += ticket.blocks();
    }
}

impl BlockDevice for TestDevice {
    fn submit(&self, tickets: Vec<Ticket>) {
        let queue = self.queue.lock();
        tickets.into_iter().for_each(|ticket| assert!(queue.send(ticket).is_ok()));
    }

    fn execute(&self, tickets: Vec<Ticket>) {
        tickets.into_iter().for_each(|ticket| self.core.run(ticket));
    }

    fn blocks(&self) -> u64 {
        self.core.bytes.lock().len() as u64 / BLOCK_BYTES_U64
    }

    fn grow(&self, _blocks: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn describe(&self) -> String {
        "test memory".into()
    }

    fn can_grow(&self) -> bool {
        false
    }

    fn counters(&self) -> DeviceCounters {
        self.counts()
    }
}
