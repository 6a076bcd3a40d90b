//! [`Owner`]: the state with its file, for many callers. A caller gets its answer when its change is on the device.
//!
//! Changes are made in memory under one lock, and queued in their order. A writer thread takes the queue, writes it as one batch, flushes
//! once, and wakes all waiting callers. A caller that sees an earlier change before it is on the device is answered after that change, too:
//! the file is written in order.
//!
//! A write error of the file stops it: nothing is changed any more (every later call gets [`Refusal::Poisoned`]).

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex, MutexGuard};
use shoal_base::{BLOCK_BYTES_U64, Clock, Entropy};
use shoal_space::{SPACE_BLOCKS_MAX, group_blocks_for};
use tokio::sync::watch;

use crate::journal::{Journal, OpenError, is_missing, lock};
use crate::record::{Content, Record, encode};
use crate::refusal::Refusal;
use crate::state::{Action, Answer, Change, SpaceState, Status};

/// The interval at which the owner looks for late clients, in milliseconds.
pub const LATE_EVERY_MS: u64 = 500;

/// An owner that did not look at the clock for this time, in milliseconds, was stopped itself: its clients are not to blame.
const STALL_MS: u64 = 4 * LATE_EVERY_MS;

/// How the state is kept.
#[derive(Clone, Debug)]
pub struct OwnerOptions {
    /// For a new file: bytes of address space to hand out; whole blocks of 4 KiB.
    pub size: Option<u64>,
    /// True if every answer waits for the device. If false, a power failure may lose changes; a killed process never does.
    pub sync: bool,
}

/// The state and its file.
#[derive(Clone)]
pub struct Owner {
    shared: Arc<Shared>,
    /// The last owner stops the thread.
    writer: Arc<Writer>,
}

struct Shared {
    /// Before the journal's lock.
    state: Mutex<State>,
    journal: Mutex<Journal>,
    /// Signals the thread that the queue has changes to write.
    filled: Condvar,
    written: watch::Sender<Written>,
    seed: u64,
    sync: bool,
    clock: Arc<dyn Clock>,
    /// Keeps other processes from the file.
    _lock: File,
}

struct State {
    space: SpaceState,
    queue: Vec<u8>,
    /// The last record that was queued.
    last: u64,
    /// The last record that is known here to be on the device.
    synced: u64,
    /// The time when the clock was last read.
    looked_ms: u64,
    is_stopping: bool,
}

/// The last record in the file, and the error that stopped the writer.
#[derive(Clone, Debug)]
struct Written {
    number: u64,
    failed: Option<String>,
}

struct Writer {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.state.lock().is_stopping = true;
        self.shared.filled.notify_all();
        if let Some(thread) = self.thread.lock().take() {
            // It stops by itself; the callers that waited for its records reported a panic of it.
            drop(thread.join());
        }
    }
}

impl Owner {
    /// Opens the file at `path`, or creates it if it is missing and `options` have a size.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(
        path: &Path,
        options: &OwnerOptions,
        clock: Arc<dyn Clock>,
        entropy: &dyn Entropy,
    ) -> Result<Self, OpenError> {
        let lock = lock(path)?;
        let (journal, mut space) = if is_missing(path)? {
            let size = options.size.ok_or_else(|| {
                OpenError::Size(format!("{} does not exist; give a size to create it", path.display()))
            })?;
            let blocks = size / BLOCK_BYTES_U64;
            if blocks == 0 || blocks > SPACE_BLOCKS_MAX {
                return Err(OpenError::Size(format!("a space of {size} bytes: it has 4 KiB to 64 TiB")));
            }
            let space = SpaceState::new(blocks, group_blocks_for(blocks));
            let mut identity = [0; 16];
            identity[..8].copy_from_slice(&entropy.next_u64().to_le_bytes());
            identity[8..].copy_from_slice(&entropy.next_u64().to_le_bytes());
            let made = Journal::create(path, identity, &space, 0, options.sync);
            (made.map_err(|error| OpenError::Io { path: path.to_owned(), error })?, space)
        } else {
            Journal::open(path, options.sync)?
        };
        if let Some(size) = options.size
            && size / BLOCK_BYTES_U64 != space.blocks()
        {
            let has = space.blocks() * BLOCK_BYTES_U64;
            return Err(OpenError::Size(format!("{} is for {has} bytes, not {size}", path.display())));
        }
        let looked_ms = now_ms(&*clock);
        space.grace(looked_ms);
        let last = journal.synced;
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                space,
                queue: Vec::new(),
                last,
                synced: last,
                looked_ms,
                is_stopping: false,
            }),
            filled: Condvar::new(),
            written: watch::Sender::new(Written { number: last, failed: None }),
            seed: journal.seed(),
            sync: options.sync,
            journal: Mutex::new(journal),
            clock,
            _lock: lock,
        });
        let thread = options.sync.then(|| {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || shared.write())
        });
        let writer = Arc::new(Writer { shared: Arc::clone(&shared), thread: Mutex::new(thread) });
        Ok(Self { shared, writer })
    }

    /// Starts a session.
    ///
    /// # Errors
    /// [`Refusal::NoSpace`] with too many sessions, [`Refusal::Invalid`], [`Refusal::Poisoned`].
    pub async fn begin(&self, time_to_live_ms: u32) -> Result<u64, Refusal> {
        let (session, number) = {
            let (mut state, now) = self.look()?;
            let (session, change) = state.space.open(time_to_live_ms, now)?;
            (session, self.shared.queue(&mut state, change)?)
        };
        self.on_device(number).await?;
        Ok(session)
    }

    /// Notes that a session's client is alive.
    ///
    /// # Errors
    /// [`Refusal::Fenced`], [`Refusal::Poisoned`].
    pub fn renew(&self, session: u64) -> Result<(), Refusal> {
        let (mut state, now) = self.look()?;
        state.space.touch(session, now)
    }

    /// Executes the action of a session. Answers a repeated sequence as before.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn act(&self, session: u64, sequence: u64, action: Action) -> Result<Answer, Refusal> {
        let (answer, number) = {
            let (mut state, now) = self.look()?;
            let (answer, change) = state.space.act(session, sequence, action, now)?;
            let number = match change {
                Some(change) => self.shared.queue(&mut state, change)?,
                // A repeated call, perhaps before its change was on the device.
                None => state.last,
            };
            (answer, number)
        };
        self.on_device(number).await?;
        Ok(answer)
    }

    /// Closes a session in order.
    ///
    /// # Errors
    /// [`Refusal::Fenced`], [`Refusal::Poisoned`].
    pub async fn end(&self, session: u64) -> Result<(), Refusal> {
        let number = {
            let mut state = self.shared.lock()?;
            let change = state.space.end(session)?;
            self.shared.queue(&mut state, change)?
        };
        self.on_device(number).await
    }

    /// Fences the sessions that were silent for too long, and takes back the blocks that they leased and did not commit.
    ///
    /// # Errors
    /// [`Refusal::Poisoned`].
    pub fn fence_late(&self) -> Result<Vec<u64>, Refusal> {
        let (mut state, now) = self.look()?;
        let late = state.space.late(now);
        for &session in &late {
            let change = state.space.end(session)?;
            self.shared.queue(&mut state, change)?;
        }
        Ok(late)
    }

    /// The use of the space.
    #[must_use]
    pub fn status(&self) -> Status {
        self.shared.state.lock().space.status()
    }

    /// Blocks of a group.
    #[must_use]
    pub fn group_blocks(&self) -> u32 {
        self.shared.state.lock().space.group_blocks()
    }

    /// The state, and the time. If this process was stopped, every session gets its whole time to live again.
    fn look(&self) -> Result<(MutexGuard<'_, State>, u64), Refusal> {
        let mut state = self.shared.lock()?;
        // Under the lock: waiting for the lock is no silence of a client, either.
        let now = now_ms(&*self.shared.clock);
        if now > state.looked_ms + STALL_MS {
            state.space.grace(now);
        }
        state.looked_ms = now;
        Ok((state, now))
    }

    /// Waits until the record is on the device.
    async fn on_device(&self, number: u64) -> Result<(), Refusal> {
        if !self.shared.sync {
            return Ok(());
        }
        let mut written = self.shared.written.subscribe();
        let there = written.wait_for(|written| written.number >= number || written.failed.is_some()).await;
        let gone = |_| Refusal::Poisoned("it was shut down".into());
        match there.map_err(gone)?.clone() {
            Written { number: done, .. } if done >= number => Ok(()),
            Written { failed, .. } => Err(Refusal::Poisoned(failed.unwrap_or_default())),
        }
    }

    /// Waits for all queued changes, and stops the thread.
    pub fn close(self) {
        drop(self.writer);
    }
}

impl Shared {
    /// The state, if changes may still be made.
    fn lock(&self) -> Result<MutexGuard<'_, State>, Refusal> {
        let state = self.state.lock();
        match &self.written.borrow().failed {
            Some(why) => Err(Refusal::Poisoned(why.clone())),
            None => Ok(state),
        }
    }

    /// Queues a change that was made, and returns its number. Without a thread, writes it at once.
    fn queue(&self, state: &mut State, change: Change) -> Result<u64, Refusal> {
        state.last += 1;
        let record = Record { number: state.last, synced: state.synced, content: Content::Change(change) };
        encode(self.seed, &record, &mut state.queue);
        if self.sync {
            self.filled.notify_one();
            return Ok(state.last);
        }
        let records = std::mem::take(&mut state.queue);
        let mut journal = self.journal.lock();
        let written = journal.append(&records, state.last);
        let written = written.and_then(|()| self.shorten(state, &mut journal));
        written.map_err(|error| self.poison(&error))?;
        Ok(state.last)
    }

    /// Replaces a file that became long.
    fn shorten(&self, state: &mut State, journal: &mut Journal) -> std::io::Result<()> {
        if journal.is_long() {
            // The queued changes are in the state already.
            journal.replace(&state.space, state.last)?;
            state.queue.clear();
            state.last = journal.synced;
        }
        Ok(())
    }

    fn poison(&self, error: &std::io::Error) -> Refusal {
        tracing::error!(%error, "the service's file cannot be written; nothing is changed any more");
        let why = error.to_string();
        self.written.send_modify(|written| written.failed = Some(why.clone()));
        Refusal::Poisoned(why)
    }

    /// The writer thread: writes a batch, flushes, answers, and repeats.
    fn write(&self) {
        loop {
            let (records, last) = {
                let mut state = self.state.lock();
                while state.queue.is_empty() {
                    if state.is_stopping {
                        return;
                    }
                    self.filled.wait(&mut state);
                }
                (std::mem::take(&mut state.queue), state.last)
            };
            let mut done = last;
            let is_long = {
                let mut journal = self.journal.lock();
                match journal.append(&records, last) {
                    Ok(()) => journal.is_long(),
                    Err(error) => {
                        self.poison(&error);
                        return;
                    }
                }
            };
            {
                let mut state = self.state.lock();
                if is_long {
                    if let Err(error) = self.shorten(&mut state, &mut self.journal.lock()) {
                        self.poison(&error);
                        return;
                    }
                    done = state.last;
                }
                state.synced = done;
            }
            self.written.send_modify(|written| written.number = done);
        }
    }
}

fn now_ms(clock: &dyn Clock) -> u64 {
    // From 1 on: 0 means that no deadline was set.
    clock.monotonic_ns() / 1_000_000 + 1
}
