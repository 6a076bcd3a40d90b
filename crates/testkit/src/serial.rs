//! Strict serializability of transactions: is there an order of all of them, in which each takes effect at one moment between its call and
//! its answer, that explains everything that was read? The search is that of [`crate::linear`], over the states of all keys together.
//!
//! A transaction that was answered took effect; one whose outcome is unknown may take effect as a whole at any moment after its call, or
//! never, but only if its guards hold, the values that its client read of watched keys. A transaction that was refused because a watched
//! key changed did nothing and proves nothing: it is not noted. No two writes store the same value, so the search for a handful of clients
//! is fast.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use crate::linear::{Act, HistoryEntry, Picture, Verdict, check};

/// The reads and writes of a transaction: keys by their numbers, values as numbers that no two writes share; `None`: there was no object,
/// or the object was deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// Reads of keys that the client watched before.
    pub guards: Vec<(u8, Option<u64>)>,
    /// Reads before its own writes.
    pub reads: Vec<(u8, Option<u64>)>,
    /// Writes; the last one of a key counts.
    pub writes: Vec<(u8, Option<u64>)>,
}

impl Act for Transaction {
    type State = BTreeMap<u8, u64>;

    fn apply(&self, pending: bool, state: &Self::State) -> Option<Self::State> {
        let holds = |(key, value): &(u8, Option<u64>)| state.get(key).copied() == *value;
        // A pending transaction has no answer, so its reads are open.
        if !self.guards.iter().all(holds) || !(pending || self.reads.iter().all(holds)) {
            return None;
        }
        let mut after = state.clone();
        for &(key, value) in &self.writes {
            match value {
                Some(value) => after.insert(key, value),
                None => after.remove(&key),
            };
        }
        Some(after)
    }

    fn touches(&self, other: &Self) -> bool {
        let wrote =
            |transaction: &Self, key: u8| transaction.writes.iter().any(|(written, _)| *written == key);
        let mut theirs = other.guards.iter().chain(&other.reads).chain(&other.writes);
        let mut ours = self.guards.iter().chain(&self.reads);
        theirs.any(|(key, _)| wrote(self, *key)) || ours.any(|(key, _)| wrote(other, *key))
    }
}

/// A history of transactions between two moments at which everything is known: a pending one takes effect before its end or never.
#[derive(Clone, Debug, Default)]
pub struct TransactionHistory {
    /// By key: the values before the first transaction.
    initial: BTreeMap<u8, u64>,
    entries: Vec<HistoryEntry<Transaction>>,
}

impl TransactionHistory {
    /// A history that starts with these values; `None`: there was no object.
    #[must_use]
    pub fn after(values: &[(u8, Option<u64>)]) -> Self {
        let initial = values.iter().filter_map(|&(key, value)| Some((key, value?)));
        Self { initial: initial.collect(), entries: Vec::new() }
    }

    /// Notes a transaction.
    pub fn push(&mut self, entry: HistoryEntry<Transaction>) {
        self.entries.push(entry);
    }

    /// Adds these, of another client.
    pub fn extend(&mut self, entries: Vec<HistoryEntry<Transaction>>) {
        self.entries.extend(entries);
    }

    /// The number of transactions, and of pending ones among them.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        (self.entries.len(), self.entries.iter().filter(|entry| entry.answered.is_none()).count())
    }

    /// Without the pending ones that cannot have been noticed: none of their written values was ever read. With `deletes`, one that deletes
    /// may have been noticed, too: each of these doubles the search.
    fn told(&self, deletes: bool) -> Vec<HistoryEntry<Transaction>> {
        let read: HashSet<u64> = self
            .entries
            .iter()
            .flat_map(|entry| entry.action.guards.iter().chain(&entry.action.reads))
            .filter_map(|(_, value)| *value)
            .collect();
        let noticed = |(_, value): &(u8, Option<u64>)| value.map_or(deletes, |value| read.contains(&value));
        let told = |entry: &&HistoryEntry<Transaction>| {
            entry.answered.is_some() || entry.action.writes.iter().any(noticed)
        };
        self.entries.iter().filter(told).cloned().collect()
    }

    /// Checks it.
    ///
    /// # Errors
    /// The history, if no order explains it, or if the search took too many steps.
    pub fn check(&self) -> Result<(), String> {
        // A pending one may never have taken effect: if the ones with a value that was read explain everything, the others are not tried.
        let mut verdict = check(&self.told(false), self.initial.clone());
        if verdict != Verdict::Linearizable {
            verdict = check(&self.told(true), self.initial.clone());
        }
        match verdict {
            Verdict::Linearizable => Ok(()),
            verdict => Err(format!("{verdict:?}\n{self}")),
        }
    }
}

impl fmt::Display for TransactionHistory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  before: {:?}", self.initial)?;
        fmt::Display::fmt(&Picture(&self.entries), f)
    }
}

#[cfg(test)]
mod tests {
    use shoal_base::SeededEntropy;

    use super::*;

    type Values<'a> = &'a [(u8, Option<u64>)];

    fn entry(
        called: u64,
        answered: Option<u64>,
        guards: Values<'_>,
        reads: Values<'_>,
        writes: Values<'_>,
    ) -> HistoryEntry<Transaction> {
        let [guards, reads, writes] = [guards, reads, writes].map(<[_]>::to_vec);
        HistoryEntry { client: called, called, answered, action: Transaction { guards, reads, writes } }
    }

    fn holds(entries: &[HistoryEntry<Transaction>]) -> bool {
        let verdict = check(entries, BTreeMap::new());
        assert_ne!(verdict, Verdict::GaveUp);
        verdict == Verdict::Linearizable
    }

    #[test]
    fn small_histories() {
        let write = entry(0, Some(10), &[], &[], &[(0, Some(1)), (1, Some(2))]);
        let read = |at, a, b| entry(at, Some(at + 1), &[], &[(0, a), (1, b)], &[]);
        assert!(holds(&[write.clone(), read(3, None, None), read(11, Some(1), Some(2))]));
        assert!(!holds(&[write.clone(), read(3, Some(1), None)]), "half of it");
        assert!(!holds(&[write.clone(), read(11, None, None)]), "it was there before");
        // Each key for itself is fine, both together are not: write skew.
        let start = entry(0, Some(1), &[], &[], &[(0, Some(1)), (1, Some(1))]);
        let skew = |key, value| entry(2, Some(9), &[], &[(0, Some(1)), (1, Some(1))], &[(key, value)]);
        assert!(holds(&[start.clone(), skew(0, None)]));
        assert!(!holds(&[start.clone(), skew(0, None), skew(1, None)]));
        // Two readers see two writers in opposite orders.
        let (first, second) =
            (entry(0, Some(9), &[], &[], &[(0, Some(1))]), entry(0, Some(9), &[], &[], &[(1, Some(2))]));
        assert!(holds(&[first.clone(), second.clone(), read(2, Some(1), None)]));
        assert!(!holds(&[first, second, read(2, Some(1), None), read(2, None, Some(2))]));
    }

    #[test]
    fn a_pending_one_is_there_as_a_whole_or_never() {
        let pending = entry(0, None, &[], &[(0, Some(77))], &[(0, Some(1)), (1, Some(2))]);
        let read = |at, a, b| entry(at, Some(at + 1), &[], &[(0, a), (1, b)], &[]);
        assert!(holds(&[pending.clone(), read(5, None, None), read(8, Some(1), Some(2))]));
        assert!(holds(&[pending.clone(), read(5, None, None), read(8, None, None)]));
        assert!(!holds(&[pending.clone(), read(5, None, Some(2))]));
        assert!(!holds(&[pending, read(5, Some(1), Some(2)), read(8, None, None)]));
    }

    /// The delete of a pending transaction may explain a read.
    #[test]
    fn a_delete_of_a_pending_one_counts() {
        let put = entry(0, Some(1), &[], &[], &[(0, Some(1))]);
        let pending = entry(2, None, &[], &[], &[(0, None), (1, Some(2))]);
        let read = entry(5, Some(6), &[], &[(0, None)], &[]);
        let history = |initial: Values<'_>, entries: &[HistoryEntry<Transaction>]| {
            let mut history = TransactionHistory::after(initial);
            history.extend(entries.to_vec());
            history
        };
        assert_eq!(history(&[], &[put.clone(), pending, read.clone()]).check(), Ok(()));
        assert!(history(&[], &[put, read.clone()]).check().is_err());
        assert!(history(&[(0, Some(1))], std::slice::from_ref(&read)).check().is_err());
        assert_eq!(history(&[(0, None), (1, Some(2))], &[read]).check(), Ok(()));
    }

    #[test]
    fn guards_hold_where_a_transaction_takes_effect() {
        let start = entry(0, Some(1), &[], &[], &[(0, Some(1))]);
        let other = entry(4, Some(5), &[], &[], &[(0, Some(3))]);
        let guarded = |answered| entry(6, answered, &[(0, Some(1))], &[], &[(0, Some(4))]);
        let read = |value| entry(20, Some(21), &[], &[(0, value)], &[]);
        assert!(holds(&[start.clone(), guarded(Some(9)), read(Some(4))]));
        assert!(!holds(&[start.clone(), other.clone(), guarded(Some(9))]));
        // Of one whose outcome is unknown: it did nothing then.
        assert!(holds(&[start.clone(), other.clone(), guarded(None), read(Some(3))]));
        assert!(!holds(&[start, other, guarded(None), read(Some(4))]));
    }

    /// A correct store, used by clients that overlap. `skewed`: one transaction in eight reads one key later than the others.
    fn simulate(seed: u64, clients: u64, count: usize, skewed: bool) -> Vec<HistoryEntry<Transaction>> {
        let dice = SeededEntropy::new(seed);
        let (mut state, mut now, mut value) = (BTreeMap::<u8, u64>::new(), 0, 0);
        let mut running: Vec<Option<(u64, Transaction, u8)>> = vec![None; clients as usize];
        let mut entries = Vec::new();
        while entries.len() < count {
            now += 1;
            let client = dice.below(clients) as usize;
            match &mut running[client] {
                None => running[client] = Some((now, Transaction::default(), 0)),
                Some((_, transaction, stage @ 0)) => {
                    *stage = if skewed && dice.below(8) == 0 { 1 } else { 2 };
                    let keys = 3 + u8::from(*stage == 2);
                    transaction.reads = (0..keys).map(|key| (key, state.get(&key).copied())).collect();
                    if *stage == 2 && dice.below(2) == 0 {
                        for _ in 0..2 {
                            value += 1;
                            let (key, new) = (dice.below(4) as u8, (dice.below(4) > 0).then_some(value));
                            transaction.writes.push((key, new));
                            match new {
                                Some(new) => state.insert(key, new),
                                None => state.remove(&key),
                            };
                        }
                    }
                }
                Some((_, transaction, stage @ 1)) => {
                    transaction.reads.push((3, state.get(&3).copied()));
                    *stage = 2;
                }
                Some((called, transaction, _)) => {
                    let answered = (dice.below(20) > 0).then_some(now);
                    let action = transaction.clone();
                    entries.push(HistoryEntry { client: client as u64, called: *called, answered, action });
                    running[client] = None;
                }
            }
        }
        // A client that still runs may have done it.
        let rest = running.into_iter().enumerate().filter_map(|(client, running)| {
            let (called, action, _) = running?;
            Some(HistoryEntry { client: client as u64, called, answered: None, action })
        });
        entries.extend(rest);
        entries
    }

    #[test]
    fn right_histories_pass_and_reads_of_two_moments_are_found() {
        let mut found = 0;
        for seed in 0..40 {
            let right = simulate(seed, 6, 200, false);
            assert!(holds(&right), "seed {seed}: {}", Picture(&right));
            found += usize::from(!holds(&simulate(seed, 6, 200, true)));
        }
        assert!(found > 30, "only {found} of 40 histories with reads of two moments were found");
    }
}
