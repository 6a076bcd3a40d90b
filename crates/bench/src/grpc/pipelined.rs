//! Operations one by one over a stream, kept in flight by one task.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use shoal_client::{Answer, ByteRange, Pipeline, PutOptions};

use super::keys::{Key, Writing};
use super::load::Tally;
use super::many::{BUCKET, Many, Pattern, ended};
use super::process::Remote;
use crate::enough::OPERATIONS_MIN;
use crate::machine;

/// Gets, puts, or both in turn.
pub struct Pipelined {
    many: Rc<Many>,
    pattern: Pattern,
    state: RefCell<State>,
}

struct State {
    pipeline: Pipeline<InFlight>,
    turn: usize,
    options: PutOptions,
}

/// An operation in flight.
struct InFlight {
    key: Rc<Key>,
    sent: Instant,
    kind: Kind,
}

enum Kind {
    Get { floor: usize },
    Put(Writing),
}

impl Pipelined {
    pub(super) fn new(many: Rc<Many>, pattern: Pattern) -> Self {
        let pipeline = many.client.pipeline(BUCKET);
        let state = RefCell::new(State { pipeline, turn: 0, options: PutOptions::default() });
        Self { many, pattern, state }
    }

    /// As [`super::load::drive`].
    // One task drives at a time, and nobody else has the state.
    #[allow(clippy::await_holding_refcell_ref)]
    pub(super) async fn drive(&self, server: &Remote, in_flight: usize, time: Duration) -> Result<Tally> {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let mut tally = Tally::default();
        let cpu = (server.cpu_time(), machine::cpu_time());
        let began = Instant::now();
        for _ in 0..in_flight {
            self.begin(state, began)?;
        }
        let mut over = false;
        while let Some((started, answer)) = state.pipeline.next().await {
            let sent = started.sent;
            self.check(started, answer?)?;
            if over {
                continue;
            }
            let now = Instant::now();
            tally.count(&ended(1));
            tally.latencies.record(now.duration_since(sent));
            if now.duration_since(began) < time || tally.latencies.count() < OPERATIONS_MIN {
                self.begin(state, now)?;
                continue;
            }
            over = true;
            tally.took = now.duration_since(began);
            tally.server_cpu = server.cpu_time().saturating_sub(cpu.0);
            tally.client_cpu = machine::cpu_time().saturating_sub(cpu.1);
        }
        Ok(tally)
    }

    fn begin(&self, state: &mut State, now: Instant) -> Result<()> {
        let gets = match self.pattern {
            Pattern::StreamGet => true,
            Pattern::StreamPut => false,
            _ => state.turn.is_multiple_of(2),
        };
        state.turn += 1;
        let key = self.many.any();
        let name = key.name.clone();
        let started = if gets {
            let kind = Kind::Get { floor: key.begin_read() };
            state.pipeline.get(&name, ByteRange::ALL, InFlight { key, sent: now, kind })
        } else {
            let value = self.many.source.value(self.many.value_bytes);
            let kind = Kind::Put(key.begin_write(value));
            let value = self.many.source.bytes(value);
            state.pipeline.put(&name, &value, &state.options, InFlight { key, sent: now, kind })
        };
        if started.is_err() {
            bail!("the stream has no room for this number of operations");
        }
        Ok(())
    }

    fn check(&self, started: InFlight, answer: Answer) -> Result<()> {
        let InFlight { key, kind, .. } = started;
        match (kind, answer) {
            (Kind::Get { floor }, Answer::Got(Some(object))) => {
                key.check(&self.many.source, floor, &object.value)
            }
            (Kind::Put(writing), Answer::Put(_)) => {
                key.end_write(&writing, true);
                Ok(())
            }
            (_, answer) => bail!("an object is lost, or an answer is another one's: {answer:?}"),
        }
    }
}
