//! Linearizability of the operations on one key: is there an order, in which each operation takes effect at one moment between its call and
//! its answer, that explains all answers? (Wing and Gong's search, with a memo of tried states.)
//!
//! An operation whose outcome is unknown stays *pending*: it may take effect at any moment after its call, or never. Keys are checked one
//! by one: a history is linearizable if that of each key is. At most eight clients a key, or the search may take long; it returns
//! [`Verdict::GaveUp`] after a bounded number of steps.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// The moments of calls and answers, and the numbers of writes, which the clients of one history share.
#[derive(Debug, Default)]
pub struct World {
    clock: AtomicU64,
    writes: AtomicU64,
}

impl World {
    /// This moment; later ones are greater.
    pub fn now(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    /// The number of the next write, from 1 on.
    pub fn next_write(&self) -> u64 {
        1 + self.writes.fetch_add(1, Ordering::Relaxed)
    }
}

/// The effect of an operation, as its client knows it. Values are numbers that no two writes share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyAction {
    /// Reads a value; `None` if there was no object.
    Read(Option<u64>),
    /// Writes a value.
    Write(u64),
    /// Deletes, with or without an object.
    Delete,
    /// Writes a value if there was none; true if it did.
    Create(u64, bool),
    /// Writes the second value if the first one was there; true if it did.
    Swap(u64, u64, bool),
}

/// An operation on a state.
pub trait Act: Clone + fmt::Debug {
    /// The state that the operations change.
    type State: Clone + Eq + std::hash::Hash;

    /// The state after the operation, if its answer fits `state`. The answer of a pending operation fits every state.
    fn apply(&self, pending: bool, state: &Self::State) -> Option<Self::State>;

    /// Returns true if the order in which the two take effect makes a difference.
    fn touches(&self, _other: &Self) -> bool {
        true
    }
}

/// An operation of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryEntry<A = KeyAction> {
    /// The client: for the picture of a history only.
    pub client: u64,
    /// The time of its call, on one clock for all clients.
    pub called: u64,
    /// The time of its answer; `None` if it never came, or left the outcome open. The outcome in a pending operation's action does not
    /// count.
    pub answered: Option<u64>,
    /// Its effect.
    pub action: A,
}

/// The result of the check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// An order was found.
    Linearizable,
    /// There is none. The first unexplained operation is at this place of the history in the order of calls, at the latest.
    Violated {
        /// The length of the longest explained prefix, in operations.
        explained: usize,
    },
    /// The search took too many steps.
    GaveUp,
}

/// Steps that a search may take for each operation of a history, on average.
const STEPS_PER_ENTRY: usize = 20_000;

/// The value of the key; none: no object.
type State = Option<u64>;

impl Act for KeyAction {
    type State = State;

    fn apply(&self, pending: bool, &state: &State) -> Option<State> {
        match *self {
            Self::Read(seen) => (pending || seen == state).then_some(state),
            Self::Write(value) => Some(Some(value)),
            Self::Delete => Some(None),
            Self::Create(value, done) => {
                let does = state.is_none();
                (pending || done == does).then_some(if does { Some(value) } else { state })
            }
            Self::Swap(from, to, done) => {
                let does = state == Some(from);
                (pending || done == does).then_some(if does { Some(to) } else { state })
            }
        }
    }
}

/// The operations that were placed, the state after them, and the last operation if it is pending.
type Tried<S> = (Box<[u64]>, S, Option<usize>);

/// The state of the search: calls and answers in the order of time, as a list from which operations are taken out while they are explained.
struct Search<'a, A> {
    entries: &'a [HistoryEntry<A>],
    /// Calls and answers: the operation, and true for the answer.
    events: Vec<(usize, bool)>,
    /// By operation: the places of its call and its answer.
    places: Vec<(usize, Option<usize>)>,
    next: Vec<usize>,
    before: Vec<usize>,
    end: usize,
}

impl<'a, A: Act> Search<'a, A> {
    fn new(entries: &'a [HistoryEntry<A>]) -> Self {
        let mut events: Vec<(u64, bool, usize)> = Vec::with_capacity(entries.len() * 2);
        for (number, entry) in entries.iter().enumerate() {
            events.push((entry.called, false, number));
            if let Some(answered) = entry.answered {
                events.push((answered, true, number));
            }
        }
        // Calls come before answers of the same moment: operations that may have overlapped count as overlapping.
        events.sort_unstable();
        let mut places = vec![(0, None); entries.len()];
        for (place, &(_, is_answer, number)) in events.iter().enumerate() {
            if is_answer { places[number].1 = Some(place) } else { places[number].0 = place }
        }
        let end = events.len();
        // A ring through `end`.
        let next = (1..=end).chain([0]).collect();
        let before = std::iter::once(end).chain(0..end).collect();
        let events = events.into_iter().map(|(_, is_answer, number)| (number, is_answer)).collect();
        Self { entries, events, places, next, before, end }
    }

    fn first(&self) -> usize {
        self.next[self.end]
    }

    fn unlink(&mut self, place: usize) {
        let (before, next) = (self.before[place], self.next[place]);
        self.next[before] = next;
        self.before[next] = before;
    }

    /// In the opposite order of `unlink`.
    fn link(&mut self, place: usize) {
        let (before, next) = (self.before[place], self.next[place]);
        self.next[before] = place;
        self.before[next] = place;
    }

    fn take_out(&mut self, number: usize) {
        let (call, answer) = self.places[number];
        self.unlink(call);
        if let Some(answer) = answer {
            self.unlink(answer);
        }
    }

    fn put_back(&mut self, number: usize) {
        let (call, answer) = self.places[number];
        if let Some(answer) = answer {
            self.link(answer);
        }
        self.link(call);
    }

    /// Returns true if an operation may follow `last` directly. A pending one could as well take effect later, just before an operation
    /// that it affects: of all orders that differ only in that, one is tried.
    fn may_follow(&self, last: Option<usize>, number: usize) -> bool {
        let Some(last) = last.filter(|&last| self.entries[last].answered.is_none()) else { return true };
        let (last_action, entry) = (&self.entries[last].action, &self.entries[number]);
        last_action.touches(&entry.action) || entry.answered.is_none() && number > last
    }

    fn run(mut self, initial: A::State) -> Verdict {
        let mut left = self.entries.iter().filter(|entry| entry.answered.is_some()).count();
        let all = left;
        let steps_max = self.entries.len().saturating_mul(STEPS_PER_ENTRY).max(STEPS_PER_ENTRY);
        let mut done = vec![0_u64; self.entries.len().div_ceil(64)];
        // The next operation depends on the last one if that is pending.
        let mut tried: HashSet<Tried<A::State>> = HashSet::new();
        let mut path: Vec<(usize, A::State)> = Vec::new();
        let (mut state, mut at, mut explained) = (initial, self.first(), 0);
        // Pending ones are tried after the others: most of them never took effect, or it makes no difference.
        let mut tries_pending = false;
        for _ in 0..steps_max {
            if left == 0 {
                return Verdict::Linearizable;
            }
            explained = explained.max(all - left);
            // After the last event: no pending call is left to try, so go back.
            let event = (at != self.end).then(|| self.events[at]);
            if let Some((number, false)) = event {
                let entry = &self.entries[number];
                let pending = entry.answered.is_none();
                let may =
                    pending == tries_pending && self.may_follow(path.last().map(|&(last, _)| last), number);
                let after = if may { entry.action.apply(pending, &state) } else { None };
                // A pending one that changes nothing here need not have taken effect.
                if let Some(after) = after.filter(|after| !pending || *after != state) {
                    done[number / 64] |= 1 << (number % 64);
                    let last = pending.then_some(number);
                    if tried.insert((done.clone().into_boxed_slice(), after.clone(), last)) {
                        path.push((number, std::mem::replace(&mut state, after)));
                        self.take_out(number);
                        left -= usize::from(!pending);
                        (at, tries_pending) = (self.first(), false);
                        continue;
                    }
                    done[number / 64] &= !(1 << (number % 64));
                }
                at = self.next[at];
                continue;
            }
            if !tries_pending {
                (at, tries_pending) = (self.first(), true);
                continue;
            }
            // An answer whose operation is not explained: an earlier one was explained wrongly.
            let Some((number, earlier)) = path.pop() else { return Verdict::Violated { explained } };
            state = earlier;
            done[number / 64] &= !(1 << (number % 64));
            self.put_back(number);
            tries_pending = self.entries[number].answered.is_none();
            left += usize::from(!tries_pending);
            at = self.next[self.places[number].0];
        }
        Verdict::GaveUp
    }
}

/// Checks operations, in any order; their subject (for [`KeyAction`] one key) was `initial` before.
#[must_use]
pub fn check<A: Act>(entries: &[HistoryEntry<A>], initial: A::State) -> Verdict {
    Search::new(entries).run(initial)
}

/// A history of several keys, all of them empty before.
#[derive(Clone, Debug, Default)]
pub struct KeyHistories {
    keys: BTreeMap<Vec<u8>, Vec<HistoryEntry>>,
}

impl KeyHistories {
    /// Notes an operation.
    pub fn push(&mut self, key: &[u8], entry: HistoryEntry) {
        self.keys.entry(key.to_vec()).or_default().push(entry);
    }

    /// Adds the notes of another client.
    pub fn merge(&mut self, other: Self) {
        for (key, entries) in other.keys {
            self.keys.entry(key).or_default().extend(entries);
        }
    }

    /// The number of operations, and of pending ones among them.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        let entries = || self.keys.values().flatten();
        (entries().count(), entries().filter(|entry| entry.answered.is_none()).count())
    }

    /// Checks each key.
    ///
    /// # Errors
    /// The first key that is not linearizable, or that exceeded the search's steps, with its history.
    pub fn check(&self) -> Result<(), String> {
        for (key, entries) in &self.keys {
            let verdict = check(entries, None);
            if verdict != Verdict::Linearizable {
                return Err(format!("{}: {verdict:?}\n{}", key.escape_ascii(), Picture(entries)));
            }
        }
        Ok(())
    }
}

/// A history as text: an operation a line, in the order of calls.
pub(crate) struct Picture<'a, A = KeyAction>(pub &'a [HistoryEntry<A>]);

impl<A: fmt::Debug> fmt::Display for Picture<'_, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut entries: Vec<&HistoryEntry<A>> = self.0.iter().collect();
        entries.sort_by_key(|entry| entry.called);
        for entry in entries {
            let HistoryEntry { client, called, answered, action } = entry;
            match answered {
                Some(answered) => writeln!(f, "  client {client}: {called:>9} to {answered:>9}  {action:?}")?,
                None => writeln!(f, "  client {client}: {called:>9} to   unknown  {action:?}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use shoal_base::{Entropy, SeededEntropy};

    use super::*;

    fn entry(client: u64, called: u64, answered: Option<u64>, action: KeyAction) -> HistoryEntry {
        HistoryEntry { client, called, answered, action }
    }

    fn holds(entries: &[HistoryEntry]) -> bool {
        let verdict = check(entries, None);
        assert_ne!(verdict, Verdict::GaveUp);
        verdict == Verdict::Linearizable
    }

    #[test]
    fn small_histories() {
        let write = entry(0, 0, Some(10), KeyAction::Write(1));
        assert!(holds(&[]) && holds(&[write]));
        // While the write runs both states are fine; afterwards only the new one.
        for (seen, during, after) in [(None, true, false), (Some(1), true, true), (Some(2), false, false)] {
            let read = |called, answered| entry(1, called, Some(answered), KeyAction::Read(seen));
            assert_eq!(holds(&[write, read(3, 6)]), during);
            assert_eq!(holds(&[write, read(11, 12)]), after);
        }
        // Two readers in a row do not see the new and then the old state.
        let new = entry(1, 2, Some(3), KeyAction::Read(Some(1)));
        assert!(!holds(&[write, new, entry(2, 4, Some(5), KeyAction::Read(None))]));
        // Of two creators one wins.
        let create = |client, done| entry(client, 0, Some(5), KeyAction::Create(client, done));
        assert!(holds(&[create(1, true), create(2, false)]));
        assert!(!holds(&[create(1, true), create(2, true)]) && !holds(&[create(1, false), create(2, false)]));
        let swap = |from, done| entry(1, 11, Some(12), KeyAction::Swap(from, 7, done));
        assert!(holds(&[write, swap(1, true)]) && holds(&[write, swap(2, false)]));
        assert!(!holds(&[write, swap(2, true)]) && !holds(&[write, swap(1, false)]));
        let delete = entry(0, 20, Some(21), KeyAction::Delete);
        assert!(holds(&[write, delete, entry(0, 22, Some(23), KeyAction::Read(None))]));
        assert!(!holds(&[write, delete, entry(0, 22, Some(23), KeyAction::Read(Some(1)))]));
    }

    #[test]
    fn a_pending_write_may_land_late_or_never() {
        let pending = entry(0, 0, None, KeyAction::Write(1));
        let read = |at, seen| entry(1, at, Some(at + 1), KeyAction::Read(seen));
        assert!(holds(&[pending, read(5, None), read(7, None)]));
        assert!(holds(&[pending, read(5, None), read(7, Some(1))]));
        assert!(!holds(&[pending, read(5, Some(1)), read(7, None)]), "it does not go away again");
        // A pending create has no answer, even if one is noted.
        let create = entry(0, 0, None, KeyAction::Create(1, false));
        assert!(holds(&[create, read(5, Some(1))]));
        assert!(!holds(&[entry(0, 6, None, KeyAction::Write(1)), read(4, Some(1))]), "not before its call");
    }

    /// A correct register, used by clients that overlap; returns its history.
    fn simulate(seed: u64, clients: u64, operations: usize, pending_percent: u64) -> Vec<HistoryEntry> {
        let dice = SeededEntropy::new(seed);
        let (mut state, mut now, mut value) = (None, 0, 0);
        // By client: the call, the action, and true if it took effect.
        let mut running: Vec<Option<(u64, KeyAction, bool)>> = vec![None; clients as usize];
        let mut entries = Vec::new();
        while entries.len() < operations {
            now += 1;
            let client = dice.below(clients) as usize;
            match &mut running[client] {
                None => {
                    value += 1;
                    let action = match dice.below(6) {
                        0 | 1 => KeyAction::Read(None),
                        2 => KeyAction::Write(value),
                        3 => KeyAction::Create(value, false),
                        4 => KeyAction::Swap(state.unwrap_or(1), value, false),
                        _ => KeyAction::Delete,
                    };
                    running[client] = Some((now, action, false));
                }
                Some((_, action, took)) if !*took => {
                    *took = true;
                    let before = state;
                    state = match *action {
                        KeyAction::Read(_) => state,
                        KeyAction::Write(value) => Some(value),
                        KeyAction::Delete => None,
                        KeyAction::Create(value, _) => state.or(Some(value)),
                        KeyAction::Swap(from, to, _) if state == Some(from) => Some(to),
                        KeyAction::Swap(..) => state,
                    };
                    *action = match *action {
                        KeyAction::Read(_) => KeyAction::Read(before),
                        KeyAction::Create(value, _) => KeyAction::Create(value, before.is_none()),
                        KeyAction::Swap(from, to, _) => KeyAction::Swap(from, to, before == Some(from)),
                        other => other,
                    };
                }
                Some((called, action, _)) => {
                    let answered = (dice.next_u64() % 100 >= pending_percent).then_some(now);
                    entries.push(entry(client as u64, *called, answered, *action));
                    running[client] = None;
                }
            }
        }
        // An operation that still runs at the end of the history is pending.
        let rest = running.iter().enumerate().filter_map(|(client, running)| {
            let (called, action, _) = (*running)?;
            Some(entry(client as u64, called, None, action))
        });
        entries.extend(rest);
        entries
    }

    #[test]
    fn right_histories_pass() {
        for seed in 0..60 {
            let entries = simulate(seed, 8, 300, if seed % 2 == 0 { 0 } else { 5 });
            assert!(holds(&entries), "seed {seed}: {}", Picture(&entries));
        }
    }

    /// Injected violations: a stale read, a lost write, a read from the future.
    #[test]
    fn injected_violations_are_found() {
        for seed in 0..200 {
            let mut entries = simulate(seed, 6, 200, 2);
            let dice = SeededEntropy::new(seed ^ 0xBAD);
            let reads: Vec<usize> = (0..entries.len())
                .filter(|&number| {
                    let HistoryEntry { action, answered, .. } = entries[number];
                    answered.is_some() && matches!(action, KeyAction::Read(Some(_)))
                })
                .collect();
            let number = reads[dice.below(reads.len() as u64) as usize];
            let (called, answered) = (entries[number].called, entries[number].answered.unwrap());
            let injected = match seed % 3 {
                // A value that only a later call writes.
                0 => entries.iter().find_map(|other| match other.action {
                    KeyAction::Write(value) if other.called > answered => Some(Some(value)),
                    _ => None,
                }),
                // A value that was never written.
                1 => Some(Some(u64::MAX)),
                // A value that a completed write replaced before the read was called; each value is written once.
                _ => {
                    let writes: Vec<&HistoryEntry> = entries
                        .iter()
                        .filter(|other| matches!(other.action, KeyAction::Write(_)))
                        .filter(|other| other.answered.is_some_and(|answered| answered < called))
                        .collect();
                    writes.iter().find_map(|old| {
                        let replaced = writes.iter().any(|new| new.called > old.answered.unwrap_or(u64::MAX));
                        match old.action {
                            KeyAction::Write(value) if replaced => Some(Some(value)),
                            _ => None,
                        }
                    })
                }
            };
            let Some(seen) = injected else { continue };
            entries[number].action = KeyAction::Read(seen);
            assert!(!holds(&entries), "seed {seed}");
        }
    }

    #[test]
    fn a_history_names_the_key_that_is_wrong() {
        let mut history = KeyHistories::default();
        history.push(b"good", entry(0, 0, Some(1), KeyAction::Write(1)));
        let mut other = KeyHistories::default();
        other.push(b"bad", entry(1, 0, None, KeyAction::Write(5)));
        other.push(b"bad", entry(1, 2, Some(3), KeyAction::Read(Some(9))));
        history.merge(other);
        assert_eq!(history.counts(), (3, 1));
        let wrong = history.check().unwrap_err();
        assert!(wrong.starts_with("bad: Violated") && wrong.contains("unknown"), "{wrong}");
    }
}
