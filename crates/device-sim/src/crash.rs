//! The contents that a crash may leave: walks through a history and keeps the possible versions of every block.
//!
//! The model of the device: a write that ended before the start of a flush is durable when that flush has ended; a durable write is durable
//! when it has ended. Of every other started write, each sector of 512 bytes may be there or not, independently of the other sectors and
//! writes. A version is gone for good when it had ended before the start of a durable write of the same block; of writes that overlapped in
//! time, either may win. A new length of the file is durable with the next flush, or with a durable write that needs it.
//!
//! Points in time. A crash state that is legal stays legal until something becomes durable, so it is enough to look at each start of a
//! write (at states in which that write shows), after marks (the same states, but the test expects more), and at both ends of the history.
//! So no state is shown twice for the same expectation, and none is left out.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use super::choice::{Choices, Fresh, Version};
use super::history::{DeviceEvent, DeviceHistory, WriteKind};
use super::image::Image;

/// The moment of a crash, as the test's oracle sees it.
#[derive(Clone, Copy, Debug)]
pub struct CrashPoint<'a> {
    /// Events that happened before the crash.
    pub index: usize,
    /// Marks that were set before the crash, in order.
    pub marks: &'a [u64],
    /// The name of this state of this history.
    pub id: StateId,
}

/// Names one crash state of a history: print it, parse it, and [`DeviceHistory::crash_state`] shows the same state again,
/// provided the history is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateId {
    point: usize,
    state: usize,
    limit: usize,
    seed: u64,
}

/// A text that is not a [`StateId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a crash state is named by four numbers, as in 17:5:256:2a")]
pub struct StateIdError;

impl fmt::Display for StateId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}:{:x}", self.point, self.state, self.limit, self.seed)
    }
}

impl FromStr for StateId {
    type Err = StateIdError;

    fn from_str(text: &str) -> Result<Self, StateIdError> {
        let parts: Vec<&str> = text.split(':').collect();
        let [point, state, limit, seed] = parts[..] else { return Err(StateIdError) };
        let number = |text: &str| text.parse().map_err(|_| StateIdError);
        let seed = u64::from_str_radix(seed, 16).map_err(|_| StateIdError)?;
        Ok(Self { point: number(point)?, state: number(state)?, limit: number(limit)?, seed })
    }
}

/// The start and the end of a write, as indexes of events.
#[derive(Clone, Copy)]
struct Span {
    began: usize,
    ended: Option<usize>,
}

/// The state of the device after some events.
struct Walk<'a> {
    history: &'a DeviceHistory,
    now: usize,
    /// The contents that are certain if no other version counts.
    floor: Image,
    /// The write of a block of the floor, unless the block comes from the base.
    floor_writes: BTreeMap<u64, usize>,
    /// Per block, its other possible versions, in the order in which they started.
    open: BTreeMap<u64, Vec<Version>>,
    /// By write.
    spans: Vec<Span>,
    /// Writes that ended and that the next flush makes durable; if a flush failed meanwhile, only a flush that had started before the
    /// failed one does.
    unflushed: Vec<(usize, usize)>,
    /// By flush: its start.
    flushes: Vec<usize>,
    /// The durable length, and longer ones with the time of their growth.
    length: u64,
    longer: Vec<(usize, u64)>,
    marks: usize,
}

impl<'a> Walk<'a> {
    fn new(history: &'a DeviceHistory) -> Self {
        Self {
            history,
            now: 0,
            floor: history.base().clone(),
            floor_writes: BTreeMap::new(),
            open: BTreeMap::new(),
            spans: Vec::new(),
            unflushed: Vec::new(),
            flushes: Vec::new(),
            length: history.base().blocks(),
            longer: Vec::new(),
            marks: 0,
        }
    }

    fn step(&mut self, event: DeviceEvent) {
        match event {
            DeviceEvent::WriteBegan(write) => self.write_began(write),
            DeviceEvent::WriteEnded(write) => self.write_ended(write),
            DeviceEvent::WriteFailed(write) => self.spans[write].ended = Some(self.now),
            DeviceEvent::FlushBegan(_) => self.flushes.push(self.now),
            DeviceEvent::FlushEnded(flush) => self.flush_ended(flush),
            DeviceEvent::FlushFailed(flush) => self.flush_failed(flush),
            DeviceEvent::Grew(blocks) => {
                self.longer.push((self.now, blocks));
                self.floor.resize(blocks);
            }
            DeviceEvent::Mark(_) => self.marks += 1,
        }
        self.now += 1;
    }

    fn write_began(&mut self, write: usize) {
        assert_eq!(write, self.spans.len(), "writes are numbered in the order of their starts");
        self.spans.push(Span { began: self.now, ended: None });
        let recorded = &self.history.writes()[write];
        for (block, data) in (recorded.block..).zip(&recorded.data) {
            self.open.entry(block).or_default().push(Version { write, data: data.clone() });
        }
    }

    fn write_ended(&mut self, write: usize) {
        self.spans[write].ended = Some(self.now);
        match self.history.writes()[write].kind {
            WriteKind::Plain => self.unflushed.push((write, usize::MAX)),
            WriteKind::Durable => self.becomes_durable(write),
            WriteKind::Discard => {}
        }
    }

    fn flush_ended(&mut self, flush: usize) {
        let began = self.flushes[flush];
        for (write, before) in std::mem::take(&mut self.unflushed) {
            if began < before && ended_before(self.spans[write], began) {
                self.becomes_durable(write);
            } else {
                self.unflushed.push((write, before));
            }
        }
        let lengths = self.longer.iter().filter(|(grew, _)| *grew < began);
        self.lasts(lengths.map(|&(_, blocks)| blocks).max().unwrap_or(0));
    }

    /// No later flush makes the writes of this one durable. A flush that was under way before it still may.
    fn flush_failed(&mut self, flush: usize) {
        let began = self.flushes[flush];
        self.unflushed.iter_mut().for_each(|(_, before)| *before = began.min(*before));
    }

    fn becomes_durable(&mut self, write: usize) {
        let began = self.spans[write].began;
        let recorded = &self.history.writes()[write];
        for (block, data) in (recorded.block..).zip(&recorded.data) {
            let Some(versions) = self.open.get_mut(&block) else { continue };
            let Some(place) = versions.iter().position(|version| version.write == write) else {
                continue; // A later durable write replaced it already.
            };
            versions.remove(place);
            versions.retain(|version| !ended_before(self.spans[version.write], began));
            // A durable write that overlapped with this one may as well have come last.
            if let Some(older) = self.floor_writes.insert(block, write)
                && !ended_before(self.spans[older], began)
                && let Some(data) = self.floor.shared(block)
            {
                versions.insert(0, Version { write: older, data: data.clone() });
            }
            if versions.is_empty() {
                self.open.remove(&block);
            }
            self.floor.put(block, data.clone());
        }
        let end = recorded.block + recorded.data.len() as u64;
        self.lasts(end);
    }

    /// The file is at least `blocks` long from now on.
    fn lasts(&mut self, blocks: u64) {
        self.length = self.length.max(blocks);
        self.longer.retain(|&(_, longer)| longer > self.length);
    }

    fn choices(&mut self, fresh: Fresh) -> Choices {
        self.floor.settle();
        let lengths = std::iter::once(self.length).chain(self.longer.iter().map(|&(_, blocks)| blocks));
        Choices::new(&self.floor, &self.open, lengths.collect(), fresh)
    }
}

fn ended_before(span: Span, time: usize) -> bool {
    span.ended.is_some_and(|ended| ended < time)
}

impl DeviceHistory {
    /// Calls `each` with crash states of this history, point by point.
    ///
    /// At every point in time (see the module) with at most `limit` legal states, `each` sees all of them, plus a few that are torn within
    /// a sector. Otherwise it sees up to `limit` different ones: none of the writes that are not durable landed, all did, only one write,
    /// all but one, all up to one, and a sample drawn from `seed`, torn ones included.
    pub fn for_each_crash_state(&self, limit: usize, seed: u64, mut each: impl FnMut(CrashPoint<'_>, Image)) {
        self.for_each_point(None, |point, marks, choices| {
            let mut state = 0;
            choices.for_each(limit, seed_at(seed, point), |image| {
                let id = StateId { point, state, limit, seed };
                each(CrashPoint { index: point, marks, id }, image());
                state += 1;
            });
        });
    }

    /// The state that `id` names, or `None` if this history has no such state.
    #[must_use]
    pub fn crash_state(&self, id: StateId) -> Option<(CrashPoint<'_>, Image)> {
        let mut found = None;
        self.for_each_point(Some(id.point), |point, marks, choices| {
            let mut state = 0;
            choices.for_each(id.limit, seed_at(id.seed, point), |image| {
                if state == id.state {
                    found = Some((marks.len(), image()));
                }
                state += 1;
            });
        });
        let (marks, image) = found?;
        Some((CrashPoint { index: id.point, marks: &self.marks()[..marks], id }, image))
    }

    /// Calls `each` with every point in time that has states to look at, or with the point `only`.
    fn for_each_point(&self, only: Option<usize>, mut each: impl FnMut(usize, &[u64], Choices)) {
        let mut walk = Walk::new(self);
        let mut look = |walk: &mut Walk<'_>, fresh| {
            if only.is_some_and(|point| point != walk.now) {
                return;
            }
            let choices = walk.choices(fresh);
            each(walk.now, &self.marks()[..walk.marks], choices);
        };
        if !self.events().is_empty() {
            look(&mut walk, Fresh::Any);
        }
        let mut marked = false;
        for (index, &event) in self.events().iter().enumerate() {
            if marked && self.narrows_or_widens(event) {
                look(&mut walk, Fresh::Any);
                marked = false;
            }
            walk.step(event);
            let is_last = index + 1 == self.events().len();
            match event {
                DeviceEvent::Mark(_) => marked = true,
                DeviceEvent::WriteBegan(write) if !is_last => look(&mut walk, Fresh::Write(write)),
                DeviceEvent::Grew(_) if !is_last => look(&mut walk, Fresh::Any),
                _ => {}
            }
        }
        look(&mut walk, Fresh::Any);
    }

    /// Returns true if other states are legal after `event` than before.
    fn narrows_or_widens(&self, event: DeviceEvent) -> bool {
        match event {
            DeviceEvent::WriteBegan(_) | DeviceEvent::FlushEnded(_) | DeviceEvent::Grew(_) => true,
            DeviceEvent::WriteEnded(write) => self.writes()[write].kind == WriteKind::Durable,
            DeviceEvent::WriteFailed(_)
            | DeviceEvent::FlushBegan(_)
            | DeviceEvent::FlushFailed(_)
            | DeviceEvent::Mark(_) => false,
        }
    }
}

/// Each point has a different sample.
const fn seed_at(seed: u64, point: usize) -> u64 {
    seed.wrapping_add((point as u64).wrapping_mul(0xD6E8_FEB8_6659_FD93))
}
