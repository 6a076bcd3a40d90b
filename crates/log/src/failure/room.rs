//! The state of room in the data file for the log and for applies.
//!
//! A write within the length of a file can find no room: on a copy-on-write file system, in a hole, beyond a limit of file
//! sizes. Such a write changed nothing, so the store is not poisoned (R20): writes are refused until one gets room again.

use shoal_base::sync::Mutex;
use shoal_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use shoal_common::error::{Error, Result};
use shoal_device::DeviceError;

/// The parts of a store that have no room at present. Relaxed loads suffice: the flags decide which error a write gets, and nothing is ordered by them.
#[derive(Default)]
pub struct Room {
    /// The log's newest batch found no room. Only a seal may be written next (`commit.rs`).
    log: AtomicBool,
    /// The opening's superblock found no room, so no batch of its epoch may be written (R1). Implies `log`.
    opening: AtomicBool,
    /// The newest apply or publish found no room.
    applies: AtomicBool,
    /// Blocks of the value that found no room last; 0 once a value found some.
    values: AtomicU64,
    /// Writes that were refused while the log had room: their value found none, or they need an apply that finds none.
    refusals: AtomicU64,
    why: Mutex<String>,
}

impl Room {
    /// Checks that the log has room, as far as is known.
    ///
    /// # Errors
    /// [`Error::NoRoom`].
    #[inline]
    pub fn check(&self) -> Result<()> {
        if self.log_is_full() { Err(self.error()) } else { Ok(()) }
    }

    /// As [`check`](Self::check), for a write that waits for an apply.
    pub fn check_applies(&self) -> Result<()> {
        if self.reason().is_some() {
            self.refusals.fetch_add(1, Ordering::Relaxed);
            return Err(self.error());
        }
        Ok(())
    }

    /// The reason if the log or an apply has no room.
    pub fn reason(&self) -> Option<String> {
        let is_full = self.log_is_full() || self.applies.load(Ordering::Relaxed);
        is_full.then(|| self.why.lock().clone())
    }

    /// The reason if the log has no room, so that no write is accepted.
    pub fn reason_of_log(&self) -> Option<String> {
        self.log_is_full().then(|| self.why.lock().clone())
    }

    /// The reason if any part has no room: the log, an apply, or the value that was written last.
    pub fn reason_of_any(&self) -> Option<String> {
        let of_values = || self.lacking_blocks().map(|_| self.why.lock().clone());
        self.reason().or_else(of_values)
    }

    /// The blocks of the value that found no room last, unless a value found some since.
    pub fn lacking_blocks(&self) -> Option<u64> {
        Some(self.values.load(Ordering::Relaxed)).filter(|blocks| *blocks > 0)
    }

    /// Writes that were refused while the log had room, since the opening.
    pub fn refusals(&self) -> u64 {
        self.refusals.load(Ordering::Relaxed)
    }

    /// The error for a write that is refused, with the latest reason.
    pub fn error(&self) -> Error {
        Error::NoRoom(self.why.lock().clone())
    }

    #[inline]
    pub(crate) fn log_is_full(&self) -> bool {
        self.log.load(Ordering::Relaxed)
    }

    /// Returns true while the superblock of the opening is not written.
    pub fn awaits_opening(&self) -> bool {
        self.opening.load(Ordering::Acquire)
    }

    /// The error of a failed write of a value. A lack of room is noted: only the writes that get this error are refused.
    pub fn value_failed(&self, error: DeviceError) -> Error {
        let blocks = if let DeviceError::Io { blocks, .. } = &error { *blocks } else { 1 };
        let error = Error::from(error);
        if let Error::NoRoom(why) = &error {
            self.note(why);
            self.values.store(blocks.max(1), Ordering::Relaxed);
            self.refusals.fetch_add(1, Ordering::Relaxed);
        }
        error
    }

    /// Notes that values are written.
    #[inline]
    pub fn value_written(&self) {
        if self.values.load(Ordering::Relaxed) > 0 {
            self.values.store(0, Ordering::Relaxed);
        }
    }

    /// Sets the reason of a refusal.
    pub(crate) fn note(&self, why: &str) {
        why.clone_into(&mut self.why.lock());
    }

    /// Notes that a batch of the log found no room.
    pub(crate) fn no_log(&self, why: &str) {
        self.set(&self.log, why);
    }

    /// Notes that an apply or a superblock found no room.
    pub(crate) fn no_apply(&self, why: &str) {
        self.set(&self.applies, why);
    }

    /// Notes that the superblock of this opening found no room.
    pub(crate) fn no_opening(&self, why: &str) {
        self.opening.store(true, Ordering::Release);
        self.set(&self.log, why);
    }

    /// Notes that a batch of the log is durable.
    pub(crate) fn log_written(&self) {
        self.clear(&self.log);
    }

    /// Notes that a superblock is durable.
    pub(crate) fn superblock_written(&self) {
        self.opening.store(false, Ordering::Release);
        self.clear(&self.applies);
    }

    fn set(&self, flag: &AtomicBool, why: &str) {
        let is_new = self.reason().is_none();
        why.clone_into(&mut self.why.lock());
        flag.store(true, Ordering::Relaxed);
        if is_new {
            tracing::warn!("writes are refused: {}", self.error());
        }
    }

    fn clear(&self, flag: &AtomicBool) {
        if flag.load(Ordering::Relaxed) && flag.swap(false, Ordering::Relaxed) && self.reason().is_none() {
            tracing::info!("the data file has room again: writes are taken");
        }
    }
}
