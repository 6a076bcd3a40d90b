//! The limits of time and memory that close a connection which neither side closed.

use std::time::Duration;

use super::Connection;
use crate::shared::Shared;
use crate::socket::{Gone, Socket};

/// A client that takes nothing for this time while its backlog is full does not read at all; a client that takes some is waited
/// for.
pub(super) const TAKES_NOTHING_MIN: Duration = Duration::from_secs(1);

/// The reason why a connection closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The other side, or a failure of the network.
    Gone,
    /// Everything was sent.
    Done,
    /// Another connection closed it.
    Killed,
    /// It did not take its answers for too long.
    Silent,
    /// It started a command and sends hardly anything of the rest.
    Slow,
    /// It needs more memory than is left for all connections of the thread.
    TooMuch,
    /// Its client did not complete this mandatory step in time.
    Overdue(&'static str),
    /// Too much waits in it: an error reports this, and the connection closes when its client has taken the answers.
    Refused,
}

impl From<Gone> for End {
    fn from(Gone: Gone) -> Self {
        Self::Gone
    }
}

impl Connection {
    /// Returns true if another connection closed it (CLIENT KILL), or it makes room for a new one.
    pub(crate) fn is_to_end(&self) -> bool {
        self.session.client.is_to_end() || self.session.client.is_evicted()
    }

    /// Checks the limits of time, `period` after the last check.
    ///
    /// # Errors
    /// The connection must close.
    pub(crate) fn check(
        &mut self,
        socket: &Socket,
        shared: &mut Shared,
        period: Duration,
    ) -> Result<(), End> {
        self.input.check_buffer(shared);
        let limits = &shared.frontend.options.limits;
        let is_slow = self.input.is_too_slow(limits, self.is_listened_to, period) && !socket.is_lingering();
        let since = |ns: u64| shared.awake_ns.saturating_sub(ns);
        let fed_ns = self.backlog.fed_ns(shared.awake_ns, period, limits.min_rate.bytes_a_second);
        let silent_ns = socket.stuck_since_ns().map_or(0, since).min(since(fed_ns));
        self.check_stuck(socket, shared)?;
        if u128::from(silent_ns) > limits.min_rate.silence_max.as_nanos() {
            Err(End::Silent)
        } else if is_slow {
            Err(End::Slow)
        } else if u128::from(since(self.began_ns)) > limits.unauthenticated_max.as_nanos() {
            self.is_due().map_or(Ok(()), |due| Err(End::Overdue(due)))
        } else {
            Ok(())
        }
    }

    /// Checks how long its client has taken nothing, if its backlog is full or it was refused.
    ///
    /// # Errors
    /// The connection must close.
    pub(crate) fn check_stuck(&self, socket: &Socket, shared: &Shared) -> Result<(), End> {
        let Some(since_ns) = socket.stuck_since_ns() else { return Ok(()) };
        let stuck_ns = shared.awake_ns.saturating_sub(since_ns);
        if self.backlog.is_given_up(stuck_ns, shared.awake_ns) {
            return Err(End::TooMuch);
        }
        let is_over_full = u128::from(stuck_ns) >= TAKES_NOTHING_MIN.as_nanos()
            && self.waiting_bytes(shared).is_some()
            && self.pending_bytes() >= shared.frontend.options.limits.pending_bytes_max;
        if is_over_full { Err(End::Refused) } else { Ok(()) }
    }
}
