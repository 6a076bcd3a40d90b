//! The unprocessed input of a connection: bytes, a command with missing words, a value that is received into the memory that is
//! written to the device, and a command that waits for others. The protocol's parser is `crates/resp/src/request.rs`.

use std::time::Duration;

use bytes::Bytes;
use shoal_buffer::{Buffer, COPY_BYTES_MAX};
use shoal_engine::ReceiveBuffer;
use shoal_frontend::Received;
use shoal_resp::{RequestLimits, RequestParser};

use crate::command::call::{Command, is, memory_of};
use crate::command::write;
use crate::memory::LONG_BYTES;
use crate::options::RedisLimits;
use crate::shared::Shared;
use crate::socket::{BLOCK_BYTES, Gone, Socket, Wanted};

/// An unfinished command of fewer bytes is copied to separate memory: the memory that it was received into may be much larger.
const DETACHED_BYTES_MAX: usize = 16 << 10;
/// A value of at least this size is received into the memory that is written to the device, because it is stored in separate
/// extents.
pub(super) const LONG_VALUE_BYTES_MIN: usize = 16 << 10;
/// Bytes of these buffers that the connections of a thread have at a time; further values are received as others are.
const RECEIVE_BUFFERS_BYTES_MAX: usize = 16 << 20;
/// If less of such a value arrives between two checks, a second apart, it loses its buffer.
const LONG_VALUE_BYTES_A_CHECK_MIN: usize = 64 << 10;
/// An unfinished command below this size is not refused, regardless of the memory of the thread's other connections.
const UNFINISHED_BYTES_FREE: usize = 64 << 10;

/// A long value that is being received.
struct Receiving {
    buffer: ReceiveBuffer,
    /// Bytes missing at the last check; `None` before the first one.
    missed: Option<usize>,
}

/// See the top of the file.
pub(super) struct Input {
    pub received: Buffer,
    pub parser: RequestParser,
    /// Bytes arrived since the rest was moved to separate memory.
    came: bool,
    /// Bytes of this input that are counted among the thread's unfinished commands.
    pub counted: usize,
    /// The value of the current SET, if it is received into the memory that is written to the device.
    receiving: Option<Receiving>,
    /// The last command was such a SET, or could have been one: so the next one may be.
    pub expects_value: bool,
    /// The current value came too slowly and has lost its buffer.
    pub gave_up_buffer: bool,
    /// A command that must wait for others before it starts, and the bytes of its words.
    held: Option<(Vec<Bytes>, &'static Command)>,
    held_bytes: usize,
    /// The client sends nothing more.
    pub ended: bool,
    /// The rate at which the current command arrives.
    pub rate: Received,
    /// Bytes that came since the last check, and consecutive checks that found little progress of a long command.
    pub came_since_check: usize,
    quiet_checks: u32,
}

impl Input {
    pub(super) fn new(limits: &RedisLimits, authenticated: bool) -> Self {
        let limits = RequestLimits {
            word_bytes: limits.bulk_bytes_max,
            command_bytes: limits.command_bytes_max,
            ..RequestLimits::default()
        };
        Self {
            received: Buffer::new(),
            parser: RequestParser::new(limits, authenticated),
            came: false,
            counted: 0,
            receiving: None,
            expects_value: false,
            gave_up_buffer: false,
            held: None,
            held_bytes: 0,
            ended: false,
            rate: Received::default(),
            came_since_check: 0,
            quiet_checks: 0,
        }
    }

    /// The buffer for received bytes.
    pub(super) fn received(&mut self) -> &mut Buffer {
        self.came = true;
        &mut self.received
    }

    /// Receives once. `takes_values`: a long value may be received into the memory that is written to the device. `is_held_up`:
    /// the received bytes will wait for a long time. Returns the number of bytes, and `None` at the end of the stream.
    pub(super) fn receive(
        &mut self,
        socket: &mut Socket,
        shared: &mut Shared,
        takes_values: bool,
        is_held_up: bool,
    ) -> Result<Option<usize>, Gone> {
        if takes_values && !is_held_up && self.receiving.is_none() && !self.gave_up_buffer {
            self.open_buffer(shared);
        }
        if let Some(Receiving { buffer, .. }) = &mut self.receiving
            && buffer.missing() > 0
        {
            return socket.receive_into(buffer, &mut self.received);
        }
        let missing = match (&self.receiving, is_held_up) {
            // Only the two bytes of its end are missing.
            (Some(_), _) => 0,
            // Waiting commands are in separate memory, and not in a block that holds others' commands.
            (None, true) => BLOCK_BYTES + 1,
            (None, false) => self.parser.missing_bytes(&self.received),
        };
        let head_only = !is_held_up && self.expects_value && self.received.is_empty();
        socket.receive(self.received(), Wanted { missing, head_only }, &mut shared.block)
    }

    /// Allocates the buffer of the current long value, and copies the part received before into it.
    fn open_buffer(&mut self, shared: &mut Shared) {
        let Some(([name, key], length)) = self.parser.last_word() else { return };
        // It costs memory before it holds any bytes.
        if length < LONG_VALUE_BYTES_MIN
            || !is(name, "set")
            || shared.receive_buffers + length > RECEIVE_BUFFERS_BYTES_MAX
        {
            return;
        }
        let Some(mut buffer) = write::receive_buffer(&shared.frontend, key, length) else { return };
        shared.receive_buffers += buffer.byte_count();
        let here = self.received.len().min(length);
        let mut left = here;
        for chunk in self.received.chunks() {
            let now = left.min(chunk.len());
            buffer.take(chunk.get(..now).unwrap_or_default());
            left -= now;
        }
        self.received.truncate_front(here);
        self.expects_value = true;
        self.receiving = Some(Receiving { missed: None, buffer });
    }

    /// Frees the buffer of a value that hardly grew since the last call: a client that sends slowly, or omits the end of the
    /// command, must not keep it from others.
    pub(super) fn check_buffer(&mut self, shared: &mut Shared) {
        let Some(Receiving { buffer, missed }) = &mut self.receiving else { return };
        let missing = buffer.missing();
        let Some(missed) = missed.replace(missing) else { return };
        if missed - missing >= LONG_VALUE_BYTES_A_CHECK_MIN {
            return;
        }
        let behind = std::mem::replace(&mut self.received, Buffer::from(buffer.to_vec()));
        assert!(behind.is_empty() || missing == 0, "bytes after a value are read when the value is complete");
        self.received.append_buffer(behind);
        self.close_buffer(shared);
        // Not again for this value.
        self.gave_up_buffer = true;
    }

    pub(super) fn close_buffer(&mut self, shared: &mut Shared) -> Option<ReceiveBuffer> {
        let buffer = self.receiving.take()?.buffer;
        shared.receive_buffers -= buffer.byte_count();
        Some(buffer)
    }

    /// Returns true if the value received into a buffer is complete, with its line break.
    pub(super) fn has_value(&self) -> bool {
        let is_full = |receiving: &Receiving| receiving.buffer.missing() == 0;
        self.receiving.as_ref().is_some_and(is_full) && self.received.len() >= 2
    }

    /// Keeps a command that must wait for others.
    pub(super) fn hold(&mut self, words: Vec<Bytes>, command: &'static Command) {
        self.held_bytes = memory_of(&words);
        self.held = Some((words, command));
    }

    pub(super) fn is_holding(&self) -> bool {
        self.held.is_some()
    }

    pub(super) fn take_held(&mut self) -> Option<(Vec<Bytes>, &'static Command)> {
        self.held_bytes = 0;
        self.held.take()
    }

    /// Whether less came of the command under way than must, for as long as that may be. `period` went by since this was asked last;
    /// nothing is asked of a client that the server does not listen to.
    pub(super) fn is_too_slow(
        &mut self,
        limits: &RedisLimits,
        is_listened_to: bool,
        period: Duration,
    ) -> bool {
        let is_within = self.parser.is_within() || !self.received.is_empty();
        if !is_within || !is_listened_to {
            self.rate.forget();
            return false;
        }
        self.rate.waited(period, &limits.min_rate).is_err()
    }

    /// Returns true if the current command is long.
    pub(super) fn is_long(&self) -> bool {
        self.bytes() + self.parser.missing_bytes(&self.received) >= LONG_BYTES || self.receiving.is_some()
    }

    /// Returns true if hardly anything came between the last two checks of a long command; `is_awaited`: the server waits for
    /// it.
    pub(super) fn sends_nothing(&mut self, is_awaited: bool) -> bool {
        let is_quiet = is_awaited && std::mem::take(&mut self.came_since_check) < LONG_BYTES;
        self.quiet_checks = if is_quiet { self.quiet_checks + 1 } else { 0 };
        self.quiet_checks > 1
    }

    /// Discards all of it.
    pub(super) fn clear(&mut self, shared: &mut Shared) {
        self.take_held();
        self.parser = RequestParser::new(RequestLimits::default(), true);
        self.received.clear();
        self.close_buffer(shared);
    }

    /// Bytes of unfinished commands, without those of a value in a separate buffer.
    pub(super) fn bytes(&self) -> usize {
        self.received.len() + self.parser.held_bytes() + self.held_bytes
    }

    /// Updates the thread's count of unfinished commands, including `others`; returns true if this command's growth exceeds the
    /// limit.
    pub(super) fn count(&mut self, shared: &mut Shared, others: usize) -> bool {
        let left = self.bytes();
        let filled = self.receiving.as_ref().map_or(0, |receiving| receiving.buffer.filled());
        let now = left + filled + others;
        if now == 0 && self.counted == 0 {
            return false;
        }
        if self.came && left < DETACHED_BYTES_MAX {
            // Even a tiny rest would otherwise keep the memory that many requests were received into.
            self.parser.detach();
            self.received = own(&self.received);
            self.came = false;
        }
        shared.received = shared.received - self.counted + now;
        let grew = now > self.counted;
        self.counted = now;
        let most = shared.frontend.options.limits.received_bytes_max;
        // Long commands wait for room, and one may continue without it: only commands that never wait are refused here.
        let is_overfull = others > UNFINISHED_BYTES_FREE
            && self.receiving.is_none()
            && shared.frontend.memory.is_overfull();
        grew && now > UNFINISHED_BYTES_FREE && (shared.received > most || is_overfull)
    }
}

/// The same bytes in memory that is not shared.
fn own(bytes: &Buffer) -> Buffer {
    if bytes.len() > COPY_BYTES_MAX {
        return Buffer::from(bytes.to_vec());
    }
    let mut own = Buffer::new();
    bytes.chunks().for_each(|chunk| own.append_copy(chunk));
    own
}
