//! The load generator: one thread drives all connections.
//!
//! An operation that is due takes the connection that has been free the longest; if none is free, it waits for one, and its
//! latency counts from its intended time all the same ([`super::record`]). The number of operations in flight is limited, so
//! memory is, too; the queue before the connections is the schedule itself.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::num::NonZero;
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::set_current_timer_slack;
use rustix::time::{ClockId, clock_gettime};

use super::connection::Connection;
use super::record::{Figures, Recorder, Second};
use super::schedule::Schedule;
use super::work::Work;

/// A sleep that ends this long before the next intended time is followed by polling without sleep: a core takes some tens of
/// microseconds to wake up.
const SPIN: Duration = Duration::from_micros(60);
/// Longest time without any answer while operations are in flight. Then the run is abandoned.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(60);

/// The connections of a load.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clients {
    pub(super) address: SocketAddr,
    pub(super) connections: usize,
    /// Commands in flight over each.
    pub(super) in_flight: usize,
    /// Bytes of a value.
    pub(super) value_bytes: u64,
    /// See [`ANSWER_MAX`].
    pub(super) answer_max: Duration,
}

/// The times at which operations are sent.
pub(super) enum Pace {
    /// At the times of a schedule, whatever the server does; those of the first part, the warm-up, are not recorded.
    Open(Schedule, Duration),
    /// As soon as a connection is free, for this long.
    Closed(Duration),
    /// As soon as a connection is free, this number of times.
    Count(u64),
}

impl Pace {
    /// The intended time of the next operation at `now`; none after the last one.
    fn next(&self, now: Duration) -> Option<Duration> {
        match self {
            Self::Open(schedule, _) => schedule.next(),
            Self::Closed(time) => (now < *time).then_some(now),
            Self::Count(left) => (*left > 0).then_some(now),
        }
    }

    fn advance(&mut self) {
        match self {
            Self::Open(schedule, _) => schedule.advance(),
            Self::Closed(_) => {}
            Self::Count(left) => *left -= 1,
        }
    }

    fn warm_up(&self) -> Duration {
        match self {
            Self::Open(_, warm_up) => *warm_up,
            Self::Closed(_) | Self::Count(_) => Duration::ZERO,
        }
    }
}

/// Runs a load on this thread, and calls `complete` for each complete second.
///
/// # Errors
/// A connection failed, or an answer is wrong.
pub(super) fn run(
    clients: &Clients,
    pace: Pace,
    work: Work<'_>,
    complete: &mut dyn FnMut(Second),
) -> Result<Figures> {
    // If the kernel refuses, sleeps are some tens of microseconds longer, which shows as lateness.
    let _ = set_current_timer_slack(NonZero::new(1));
    let new = |_| Connection::new(clients.address, clients.in_flight, clients.value_bytes);
    let connections = (0..clients.connections).map(new).collect::<Result<Vec<_>>>()?;
    let free = (0..connections.len()).collect();
    let (used, start) = (core_time(), Instant::now());
    let recorder = Recorder::new(pace.warm_up(), complete);
    let (answer_max, last_seen) = (clients.answer_max, Duration::ZERO);
    let mut run = Run { connections, free, pace, work, recorder, start, answer_max, last_seen };
    run.until_the_end()?;
    let share = (core_time() - used).as_secs_f64() / start.elapsed().as_secs_f64().max(1e-9);
    Ok(run.recorder.finish(share))
}

/// Processor time of this thread.
fn core_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or_default(), time.tv_nsec.try_into().unwrap_or_default())
}

struct Run<'a> {
    connections: Vec<Connection>,
    /// Connections that can take a command, the one that has been free the longest first.
    free: VecDeque<usize>,
    pace: Pace,
    work: Work<'a>,
    recorder: Recorder<'a>,
    start: Instant,
    answer_max: Duration,
    /// The last time at which an answer was received or nothing was in flight.
    last_seen: Duration,
}

impl Run<'_> {
    fn until_the_end(&mut self) -> Result<()> {
        loop {
            let now = self.start.elapsed();
            self.send_due(now)?;
            let (next, oldest) = (self.pace.next(now), self.oldest());
            self.recorder.complete_before(oldest.unwrap_or(now).min(next.unwrap_or(now)));
            if oldest.is_none() {
                if next.is_none() {
                    return Ok(());
                }
                self.last_seen = now;
            } else if now > self.last_seen + self.answer_max {
                self.abandon(now);
                return Ok(());
            }
            // Without a free connection only an answer can change anything.
            let wake = if self.free.is_empty() { None } else { next };
            self.receive(wake)?;
        }
    }

    /// The first intended time of a command without an answer.
    fn oldest(&self) -> Option<Duration> {
        let front = |connection: &Connection| Some(connection.in_flight().front()?.intended);
        self.connections.iter().filter_map(front).min()
    }

    /// Sends everything that is due at `now`, as far as connections are free.
    fn send_due(&mut self, now: Duration) -> Result<()> {
        let mut pushed = Vec::new();
        while let Some(intended) = self.pace.next(now).filter(|&intended| intended <= now) {
            let Some(index) = self.free.pop_front() else { break };
            let (connection, work) = (&mut self.connections[index], &mut self.work);
            let free_since = connection.free_since();
            connection.push(intended, |out| work.next(out));
            self.pace.advance();
            if connection.is_free() {
                // Further commands of this pass to the same connection are sent together with this one.
                self.free.push_back(index);
                pushed.push((index, intended, free_since));
            } else {
                connection.send()?;
                self.recorder.sent(intended, free_since, self.start.elapsed());
            }
        }
        for (index, intended, free_since) in pushed {
            self.connections[index].send()?;
            self.recorder.sent(intended, free_since, self.start.elapsed());
        }
        Ok(())
    }

    /// Waits until `wake` or for answers, and takes these.
    fn receive(&mut self, wake: Option<Duration>) -> Result<()> {
        let longest = wake
            .map_or(self.answer_max, |wake| wake.saturating_sub(self.start.elapsed()).saturating_sub(SPIN));
        let timeout = Timespec {
            tv_sec: longest.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: longest.subsec_nanos().into(),
        };
        let wanted = |connection: &Connection| {
            if connection.is_sending() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN }
        };
        let entry = |connection| PollFd::new(Connection::stream(connection), wanted(connection));
        let mut entries: Vec<PollFd<'_>> = self.connections.iter().map(entry).collect();
        match poll(&mut entries, Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(()),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let ready: Vec<PollFlags> = entries.iter().map(PollFd::revents).collect();
        for (index, ready) in ready.into_iter().enumerate().filter(|(_, ready)| !ready.is_empty()) {
            if ready.contains(PollFlags::OUT) {
                self.connections[index].send()?;
            }
            if ready.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
                self.receive_from(index)?;
            }
        }
        Ok(())
    }

    fn receive_from(&mut self, index: usize) -> Result<()> {
        let oldest = self.oldest().unwrap_or_default();
        let now = self.start.elapsed();
        self.last_seen = now;
        let (connection, recorder) = (&mut self.connections[index], &mut self.recorder);
        let was_free = connection.is_free();
        connection.receive(now, |command| recorder.answered(command.kind, command.intended, oldest, now))?;
        if !was_free && connection.is_free() {
            self.free.push_back(index);
        }
        Ok(())
    }

    /// Records everything without an answer: sent, or only due.
    fn abandon(&mut self, now: Duration) {
        for command in self.connections.iter().flat_map(Connection::in_flight) {
            self.recorder.unanswered(command.kind, command.intended, now);
        }
        let Pace::Open(schedule, _) = &mut self.pace else { return };
        while let Some(intended) = schedule.next().filter(|&intended| intended <= now) {
            let kind = self.work.next(&mut Vec::new());
            self.recorder.unanswered(kind, intended, now);
            schedule.advance();
        }
    }
}
