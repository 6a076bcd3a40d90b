//! The simulated device: an image that requests change, with time, faults and a record.
//!
//! Without latency every request, submitted or executed, is run by the thread that starts it: the batch starts as a whole, then its
//! requests end in order. So a test on one thread has one history. With latency submitted requests complete on a thread of the device.
//! Writes of a plugged thread start as late as writes to a file do ([`shoal_base::plug`]).

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use shoal_base::BLOCK_BYTES;
use shoal_base::plug::{HELD_MAX, Hold, may_hold};
use shoal_base::sync::Mutex;

use super::fault::{Fault, FaultEffect, FaultOp, Faults};
use super::history::{DeviceHistory, WriteKind};
use super::image::{Block, Image};
use super::line::{Lanes, Line};
use super::room::Room;
use shoal_device::{BlockDevice, Counters, DeviceCounters, DeviceError, Op, Submission, is_no_room};

/// The bytes of a discarded block of a raw device: not zeros, so that no code comes to rely on them.
const RUBBISH: u8 = 0xD5;

/// The duration of requests. All zero: no time at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// A read, in nanoseconds.
    pub read_ns: u64,
    /// A write, in nanoseconds. A discard takes as long.
    pub write_ns: u64,
    /// A flush, in nanoseconds. A durable write takes this and the time of a write.
    pub flush_ns: u64,
    /// One request in this number is slow; 0: none.
    pub slow_every: u64,
    /// The factor by which a slow one takes longer.
    pub slow_times: u32,
}

impl Latency {
    fn of(&self, op: Op, number: u64) -> Duration {
        let ns = match op {
            Op::Read => self.read_ns,
            Op::Write | Op::Discard { .. } => self.write_ns,
            Op::WriteDurable => self.write_ns + self.flush_ns,
            Op::Flush => self.flush_ns,
        };
        let is_slow = self.slow_every > 0 && number.is_multiple_of(self.slow_every);
        Duration::from_nanos(ns) * if is_slow { self.slow_times } else { 1 }
    }
}

/// The behaviour of a simulated device.
#[derive(Clone, Copy, Debug)]
pub struct SimOptions {
    /// The duration of requests.
    pub latency: Latency,
    /// Requests that the device serves at once, if they take time.
    pub parallel: usize,
    /// True if it can grow, as a file can.
    pub growable: bool,
    /// True if new blocks of a growth read as zeros until they are written.
    pub allocates: bool,
    /// True if it records its history, which holds every block ever written.
    pub record: bool,
    /// Free blocks in its file system; `None`: unlimited. A block takes its room at its first write; if the device `allocates`, already
    /// when it grows or is asked to hold the room.
    pub room: Option<u64>,
}

impl Default for SimOptions {
    fn default() -> Self {
        Self {
            latency: Latency::default(),
            parallel: 32,
            growable: false,
            allocates: false,
            record: true,
            room: None,
        }
    }
}

struct State {
    image: Image,
    history: DeviceHistory,
    faults: Faults,
    lanes: Lanes,
    /// Requests that were submitted.
    submitted: u64,
    room: Option<Room>,
}

/// A started request.
struct Running {
    submission: Submission,
    /// The first block of a write, and its bytes.
    landing: Option<(u64, Vec<Arc<Block>>)>,
    /// Its number in the history.
    number: Option<usize>,
    result: Result<(), DeviceError>,
}

struct Core {
    options: SimOptions,
    state: Mutex<State>,
    /// Writes that a plugged thread submitted, and that did not start.
    held: Mutex<Vec<Submission>>,
    line: Line<Running>,
    counters: Counters,
}

/// See the module.
pub struct SimDevice {
    core: Arc<Core>,
    /// Completes submitted requests that take time.
    watcher: Mutex<Option<JoinHandle<()>>>,
}

fn range_of(submission: &Submission) -> Range<u64> {
    submission.block()..submission.block().saturating_add(submission.blocks())
}

impl State {
    fn begin(&mut self, submission: Submission, is_file: bool, record: bool) -> Running {
        let mut running = Running { landing: None, number: None, result: Ok(()), submission };
        let (op, range) = (running.submission.op(), range_of(&running.submission));
        running.result = running.submission.check_range(self.image.blocks());
        if running.result.is_err() {
            return running;
        }
        let effect = self.faults.strike(op, &range);
        match effect {
            Some(FaultEffect::Fail(code) | FaultEffect::FailAfter(code, _)) => {
                running.result = Err(error(&running.submission, code));
            }
            Some(FaultEffect::FailSync(code)) => running.result = Err(sync_error(&running.submission, code)),
            _ => {}
        }
        match op {
            Op::Write | Op::WriteDurable if !self.takes_room(&range) => {
                running.result = Err(error(&running.submission, libc::ENOSPC));
            }
            Op::Write | Op::WriteDurable => self.begin_write(&mut running, effect, record),
            Op::Discard { blocks } => {
                if running.result.is_err() {
                    return running;
                }
                self.room.iter_mut().for_each(|room| room.give(&range));
                // A hole of a file reads as zeros at once. After a crash it may have its old contents, until a flush settles it.
                let (byte, kind) =
                    if is_file { (0, WriteKind::Plain) } else { (RUBBISH, WriteKind::Discard) };
                let discarded = Arc::new([byte; BLOCK_BYTES]);
                running.landing = Some((range.start, (0..blocks).map(|_| discarded.clone()).collect()));
                self.record_write(&mut running, kind, record);
            }
            Op::Flush if record => running.number = Some(self.history.begin_flush()),
            Op::Flush | Op::Read => {}
        }
        running
    }

    /// Takes the room of `blocks`; false if there is too little.
    fn takes_room(&mut self, blocks: &Range<u64>) -> bool {
        self.room.as_mut().is_none_or(|room| room.take(blocks))
    }

    fn begin_write(&mut self, running: &mut Running, effect: Option<FaultEffect>, record: bool) {
        let mut data = Vec::with_capacity(running.submission.segments().len());
        running.submission.view_blocks(|_, bytes| {
            let mut block = [0; BLOCK_BYTES];
            block.copy_from_slice(bytes);
            data.push(Arc::new(block));
        });
        let block = match effect {
            Some(FaultEffect::Lose) => return,
            Some(FaultEffect::Misdirect(block)) => block,
            Some(FaultEffect::Fail(_) | FaultEffect::FailAfter(..) | FaultEffect::FailSync(_)) | None => {
                running.submission.block()
            }
        };
        let room = self.image.blocks().saturating_sub(block);
        data.truncate(usize::try_from(room).unwrap_or(usize::MAX));
        match effect {
            Some(FaultEffect::Fail(code)) if is_no_room(code) => return,
            Some(FaultEffect::FailAfter(_, blocks)) => {
                data.truncate(usize::try_from(blocks).unwrap_or(usize::MAX));
                return self.write_part(block, data, record);
            }
            _ => running.landing = Some((block, data)),
        }
        let durable = running.submission.op() == Op::WriteDurable;
        self.record_write(running, if durable { WriteKind::Durable } else { WriteKind::Plain }, record);
    }

    /// Writes the first blocks of a write that fails.
    fn write_part(&mut self, block: u64, data: Vec<Arc<Block>>, record: bool) {
        if record {
            let number = self.history.begin_write(WriteKind::Plain, block, data.clone());
            self.history.end_write(number, true);
        }
        for (block, bytes) in (block..).zip(data) {
            self.image.put(block, bytes);
        }
    }

    fn record_write(&mut self, running: &mut Running, kind: WriteKind, record: bool) {
        if let Some((block, data)) = &running.landing
            && record
        {
            running.number = Some(self.history.begin_write(kind, *block, data.clone()));
        }
    }

    fn end(&mut self, running: &mut Running) {
        let succeeded = running.result.is_ok();
        if let Some(number) = running.number {
            match running.submission.op() {
                Op::Flush => self.history.end_flush(number, succeeded),
                _ => self.history.end_write(number, succeeded),
            }
        }
        if !succeeded {
            return;
        }
        if let Some((block, data)) = running.landing.take() {
            for (block, bytes) in (block..).zip(data) {
                self.image.put(block, bytes);
            }
        }
        if running.submission.op() == Op::Read {
            running.submission.fill_blocks(|block, memory| memory.copy_from_slice(self.image.block(block)));
        }
    }
}

fn error(submission: &Submission, code: i32) -> DeviceError {
    DeviceError::Io {
        op: submission.op().name(),
        block: submission.block(),
        blocks: submission.blocks(),
        code: Some(code),
        message: io::Error::from_raw_os_error(code).to_string(),
    }
}

/// The error of a durable write that failed in its flush, as `transfer.rs` makes it.
fn sync_error(submission: &Submission, code: i32) -> DeviceError {
    DeviceError::Io {
        op: submission.op().name(),
        block: submission.block(),
        blocks: submission.blocks(),
        code: None,
        message: format!("making it durable: {}", io::Error::from_raw_os_error(code)),
    }
}

impl Core {
    /// Starts requests, and returns each with the moment of its end, or with `None` if it takes no time.
    fn begin(&self, submissions: Vec<Submission>) -> Vec<(Option<Instant>, Running)> {
        let mut state = self.state.lock();
        let now = self.takes_time().then(Instant::now);
        let begin = |submission: Submission| {
            state.submitted += 1;
            let cost = self.options.latency.of(submission.op(), state.submitted);
            let due = now.filter(|_| !cost.is_zero()).map(|now| state.lanes.ends(now, cost));
            (due, state.begin(submission, self.options.growable, self.options.record))
        };
        submissions.into_iter().map(begin).collect()
    }

    /// Begins submitted requests; the watcher, which runs if any takes time, completes those.
    fn start(&self, submissions: Vec<Submission>) {
        for (due, running) in self.begin(submissions) {
            match due {
                None => self.end(running),
                Some(due) => self.line.push(due, running),
            }
        }
    }

    fn takes_time(&self) -> bool {
        self.options.latency != Latency::default()
    }

    fn end(&self, mut running: Running) {
        self.state.lock().end(&mut running);
        let Running { submission, result, .. } = running;
        self.counters.count(submission.op(), submission.blocks(), result.is_ok());
        submission.complete(result);
    }
}

impl Hold for Core {
    fn start_held(&self) {
        let held = std::mem::take(&mut *self.held.lock());
        self.start(held);
    }
}

impl SimDevice {
    /// A device of `blocks` zeroed blocks, without latency, recording.
    #[must_use]
    pub fn new(blocks: u64) -> Arc<Self> {
        Self::from_image(Image::new(blocks))
    }

    /// A device that holds `image` (for instance a crash state), without latency, recording anew.
    #[must_use]
    pub fn from_image(image: Image) -> Arc<Self> {
        Self::with_options(image, SimOptions::default())
    }

    /// A device that holds `image` and behaves by `options`.
    #[must_use]
    pub fn with_options(image: Image, options: SimOptions) -> Arc<Self> {
        let state = State {
            room: options.room.map(|free| Room::new(free, image.written())),
            history: DeviceHistory::new(image.clone()),
            image,
            faults: Faults::default(),
            lanes: Lanes::new(options.parallel),
            submitted: 0,
        };
        let core = Core {
            options,
            state: Mutex::new(state),
            held: Mutex::default(),
            line: Line::new(),
            counters: Counters::default(),
        };
        Arc::new(Self { core: Arc::new(core), watcher: Mutex::new(None) })
    }

    /// The contents now, as reads see them.
    #[must_use]
    pub fn image(&self) -> Image {
        let mut state = self.core.state.lock();
        state.image.settle();
        state.image.clone()
    }

    /// Blocks that have room in the file system; of `blocks` only, if present. `None` if room is unlimited.
    #[must_use]
    pub fn held_blocks(&self, blocks: Option<Range<u64>>) -> Option<u64> {
        let state = self.core.state.lock();
        let room = state.room.as_ref()?;
        Some(blocks.map_or_else(|| room.blocks(), |blocks| room.blocks_in(&blocks)))
    }

    /// From here on `blocks` blocks are free in the file system, if room is limited.
    pub fn set_room(&self, blocks: u64) {
        self.core.state.lock().room.iter_mut().for_each(|room| room.free = blocks);
    }

    /// The events so far.
    ///
    /// # Panics
    /// If the device does not record.
    #[must_use]
    pub fn history(&self) -> DeviceHistory {
        assert!(self.core.options.record, "this device does not record its history");
        self.core.state.lock().history.clone()
    }

    /// Notes `mark` in the history: an acknowledgement, for instance.
    pub fn mark(&self, mark: u64) {
        if self.core.options.record {
            self.core.state.lock().history.mark(mark);
        }
    }

    /// Plans a fault; several may be planned.
    pub fn inject(&self, fault: Fault) {
        self.core.state.lock().faults.add(fault);
    }

    /// Forgets the faults that are still planned.
    pub fn clear_faults(&self) {
        self.core.state.lock().faults.clear();
    }

    /// Faults that struck so far.
    #[must_use]
    pub fn injected(&self) -> u64 {
        self.core.state.lock().faults.injected()
    }

    /// Flips the bits of `mask` in byte `byte` of block `block`, at rest: for the history, a write that is durable at
    /// once.
    pub fn corrupt(&self, block: u64, byte: usize, mask: u8) {
        let mut state = self.core.state.lock();
        state.image.flip(block, byte, mask);
        if self.core.options.record {
            let data = state.image.shared(block).cloned().into_iter().collect();
            let number = state.history.begin_write(WriteKind::Durable, block, data);
            state.history.end_write(number, true);
        }
    }

    fn lengthen(&self, blocks: u64, allocates: bool) -> io::Result<()> {
        let mut state = self.core.state.lock();
        let old = state.image.blocks();
        if blocks <= old {
            return Ok(());
        }
        if !self.core.options.growable {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "this simulated device has a fixed size"));
        }
        if let Some(FaultEffect::Fail(code)) = state.faults.strike_as(FaultOp::Grow, &(old..blocks)) {
            return Err(io::Error::from_raw_os_error(code));
        }
        if allocates && !state.takes_room(&(old..blocks)) {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        state.image.resize(blocks);
        if self.core.options.record {
            state.history.grew(blocks);
        }
        Ok(())
    }

    fn watch(&self) {
        let mut watcher = self.watcher.lock();
        if watcher.is_some() {
            return;
        }
        let core = self.core.clone();
        let watching = move || {
            while let Some(running) = core.line.pop() {
                core.end(running);
            }
        };
        let thread = thread::Builder::new().name("shoal-sim".into()).spawn(watching);
        *watcher = Some(thread.unwrap_or_else(|error| panic!("no thread for a simulated device: {error}")));
    }
}

impl BlockDevice for SimDevice {
    fn submit(&self, submissions: Vec<Submission>) {
        if self.core.takes_time() {
            self.watch();
        }
        let are_writes = submissions.iter().all(|submission| submission.op() == Op::Write);
        let mut held = self.core.held.lock();
        held.extend(submissions);
        if are_writes && held.len() < HELD_MAX && may_hold(&self.core) {
            return;
        }
        let submissions = std::mem::take(&mut *held);
        drop(held);
        self.core.start(submissions);
    }

    fn execute(&self, submissions: Vec<Submission>) {
        let mut running = self.core.begin(submissions);
        running.sort_by_key(|(due, _)| *due);
        for (due, running) in running {
            if let Some(due) = due {
                thread::sleep(due.saturating_duration_since(Instant::now()));
            }
            self.core.end(running);
        }
    }

    fn blocks(&self) -> u64 {
        self.core.state.lock().image.blocks()
    }

    fn grow(&self, blocks: u64) -> io::Result<()> {
        self.lengthen(blocks, self.core.options.allocates)
    }

    fn extend(&self, blocks: u64) -> io::Result<()> {
        self.lengthen(blocks, false)
    }

    fn hold_room(&self, blocks: Range<u64>) -> io::Result<bool> {
        let mut state = self.core.state.lock();
        let blocks = blocks.start..blocks.end.min(state.image.blocks());
        match self.core.options.allocates {
            true if !state.takes_room(&blocks) => Err(io::Error::from_raw_os_error(libc::ENOSPC)),
            allocates => Ok(allocates),
        }
    }

    fn taken(&self) -> u64 {
        let state = self.core.state.lock();
        state.room.as_ref().map_or_else(|| state.image.blocks(), Room::blocks)
    }

    fn describe(&self) -> String {
        format!("{} simulated blocks", self.blocks())
    }

    fn allocates(&self) -> bool {
        self.core.options.allocates
    }

    fn can_grow(&self) -> bool {
        self.core.options.growable
    }

    fn counters(&self) -> DeviceCounters {
        self.core.counters.snapshot()
    }
}

impl Drop for SimDevice {
    /// Waits for the submitted requests.
    fn drop(&mut self) {
        self.core.line.close();
        let Some(watcher) = self.watcher.get_mut().take() else { return };
        // The watcher itself may drop the device (in a waker); it then stops by itself.
        if watcher.thread().id() != thread::current().id() && watcher.join().is_err() {
            tracing::error!("the thread of a simulated device panicked");
        }
    }
}
