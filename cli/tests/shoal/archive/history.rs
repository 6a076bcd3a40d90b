//! The histories of keys, each written by one client at a time, and the check of a restored store against them.
//!
//! A restored store is the log up to one place. So all its keys agree on a place: if a write is in the store, each write that was
//! acknowledged before that one was sent is in it too, of any key and over any protocol. A [`Cut`] is the least number of writes of each key
//! that fits; if there is none, the check fails.

use std::collections::BTreeMap;
use std::time::Instant;

use bytes::Bytes;
use shoal_client::Lsn;
use shoal_testkit::Value;

/// A key after a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyState {
    Absent,
    Value(Value),
    Count(u64),
}

impl KeyState {
    fn is_of(self, found: Option<&Bytes>) -> bool {
        match (self, found) {
            (Self::Absent, None) => true,
            (Self::Value(value), Some(bytes)) => value.check(bytes).is_ok(),
            (Self::Count(count), Some(bytes)) => bytes[..] == *count.to_string().as_bytes(),
            _ => false,
        }
    }
}

/// A write of a history.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyWrite {
    pub(super) state: KeyState,
    pub(super) sent: Instant,
    /// None if its answer never came: it may have taken effect or not.
    pub(super) acknowledged: Option<Instant>,
    /// The version, if the protocol returned it.
    pub(super) version: Option<Lsn>,
}

/// The writes of a key, in their order.
pub(super) type KeyWrites = Vec<KeyWrite>;

/// The writes of all keys.
pub(super) type Histories = BTreeMap<Vec<u8>, KeyWrites>;

/// A key of a restored store.
struct CutKey<'a> {
    name: &'a [u8],
    writes: &'a [KeyWrite],
    /// The numbers of first writes whose result is the restored state: more than one if the key was deleted several times.
    fitting: Vec<usize>,
    /// The number of its writes that are in the store, at least.
    kept: usize,
}

impl CutKey<'_> {
    /// The first write that was acknowledged and is not in the store.
    fn missing(&self) -> Option<Instant> {
        self.writes.get(self.kept)?.acknowledged
    }

    fn name(&self) -> String {
        self.name.escape_ascii().to_string()
    }
}

/// The writes of each key that a restored store has.
pub(super) struct Cut<'a> {
    keys: Vec<CutKey<'a>>,
    /// Everything that was acknowledged before this is in the store.
    from: Option<Instant>,
}

impl<'a> Cut<'a> {
    /// The cut of a restored store, in which each key is as `found`, as of `version` of the first store.
    ///
    /// # Errors
    /// There is none: the store is no prefix of the writes.
    pub(super) fn new(
        histories: &'a Histories,
        found: &BTreeMap<Vec<u8>, Bytes>,
        version: Lsn,
    ) -> Result<Self, String> {
        let mut keys = Vec::new();
        for (name, writes) in histories {
            let found = found.get(name);
            let is_result = |&kept: &usize| match kept.checked_sub(1) {
                None => found.is_none(),
                Some(last) => writes[last].state.is_of(found),
            };
            let has_version = |kept: &usize| {
                let is_in = |(at, write): (usize, &KeyWrite)| {
                    write.version.is_none_or(|its| (its <= version) == (at < *kept))
                };
                writes.iter().enumerate().all(is_in)
            };
            let results: Vec<usize> = (0..=writes.len()).filter(is_result).collect();
            let fitting: Vec<usize> = results.iter().copied().filter(has_version).collect();
            let Some(&kept) = fitting.first() else {
                let has = found.map_or("nothing".to_owned(), |bytes| format!("{} bytes", bytes.len()));
                return Err(format!(
                    "{}: the store of version {version} has {has}, the result of the first {results:?} writes of {}, the last one with {:?}",
                    name.escape_ascii(),
                    writes.len(),
                    writes.last()
                ));
            };
            keys.push(CutKey { name, writes, fitting, kept });
        }
        let mut cut = Self { keys, from: None };
        cut.settle("the store is no prefix of the writes")?;
        Ok(cut)
    }

    /// Checks that everything acknowledged before `moment` is in the store, for this reason.
    ///
    /// # Errors
    /// A write is missing.
    pub(super) fn has_all_before(&mut self, moment: Instant, why: &str) -> Result<(), String> {
        self.from = self.from.max(Some(moment));
        self.settle(why)
    }

    /// Keeps more writes until those that are kept were all sent before each missing one was acknowledged.
    fn settle(&mut self, why: &str) -> Result<(), String> {
        loop {
            let last_sent = |key: &CutKey<'_>| Some(key.writes[key.kept.checked_sub(1)?].sent);
            let from = self.keys.iter().filter_map(last_sent).max().max(self.from);
            let Some(from) = from else { return Ok(()) };
            self.from = Some(from);
            let mut has_changed = false;
            for key in &mut self.keys {
                while let Some(acknowledged) = key.missing().filter(|acknowledged| *acknowledged < from) {
                    let Some(&kept) = key.fitting.iter().find(|&&kept| kept > key.kept) else {
                        let (name, ago) = (key.name(), from - acknowledged);
                        let (write, all) = (key.kept + 1, key.writes.len());
                        return Err(format!(
                            "{why}: write {write} of {all} of {name} is missing, acknowledged {ago:?} before: {:?}",
                            key.writes[key.kept].state
                        ));
                    };
                    (key.kept, has_changed) = (kept, true);
                }
            }
            if !has_changed {
                return Ok(());
            }
        }
    }

    /// When the acknowledged writes that are missing were acknowledged.
    pub(super) fn missing(&self) -> Vec<Instant> {
        let missing = self.keys.iter().flat_map(|key| &key.writes[key.kept..]);
        missing.filter_map(|write| write.acknowledged).collect()
    }
}

/// The number of writes that were acknowledged before `moment`.
pub(super) fn acknowledged_before(histories: &Histories, moment: Instant) -> usize {
    let all = histories.values().flatten();
    all.filter(|write| write.acknowledged.is_some_and(|acknowledged| acknowledged < moment)).count()
}

/// The history of a number that several clients increment. Each answer is its place in the order; `pending` were sent and have no answer.
pub(super) fn of_increments(answered: &[(u64, Instant, Instant)], pending: &[Instant]) -> KeyWrites {
    let last = answered.iter().map(|(count, ..)| *count).max().unwrap_or(0);
    let pending_from = pending.iter().min().copied();
    let all = 1..=last + pending.len() as u64;
    let write = |count: u64| {
        let state = KeyState::Count(count);
        let (sent, acknowledged) = match answered.iter().find(|(its, ..)| *its == count) {
            Some(&(_, sent, acknowledged)) => (sent, Some(acknowledged)),
            None => {
                let sent = pending_from.unwrap_or_else(|| panic!("nobody added 1 to {}", count - 1));
                (sent, None)
            }
        };
        KeyWrite { state, sent, acknowledged, version: None }
    };
    all.map(write).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const VALUE: usize = 40;

    fn value(seed: u64) -> Value {
        Value { key: 1, seed, bytes: VALUE }
    }

    /// Times in milliseconds after `start`.
    fn write(start: Instant, state: KeyState, sent: u64, acknowledged: Option<u64>) -> KeyWrite {
        let at = |ms| start + Duration::from_millis(ms);
        KeyWrite { state, sent: at(sent), acknowledged: acknowledged.map(at), version: None }
    }

    /// Two keys: `a` is written, deleted and written, `b` is written in between.
    fn histories(start: Instant) -> Histories {
        let put = |seed, sent, acknowledged| write(start, KeyState::Value(value(seed)), sent, acknowledged);
        let delete = |sent, acknowledged| write(start, KeyState::Absent, sent, acknowledged);
        Histories::from([
            (b"a".to_vec(), vec![put(1, 0, Some(1)), delete(10, Some(11)), put(2, 30, None)]),
            (b"b".to_vec(), vec![put(3, 5, Some(6)), put(4, 20, Some(21)), delete(25, Some(26))]),
        ])
    }

    /// The missing writes of a store with these values; everything before `archived` ms must be there.
    fn missing(a: Option<u64>, b: Option<u64>, archived: u64) -> Result<usize, String> {
        let start = Instant::now();
        let histories = histories(start);
        let mut found = BTreeMap::new();
        for (name, seed) in [(b"a", a), (b"b", b)] {
            found.extend(seed.map(|seed| (name.to_vec(), value(seed).to_vec().into())));
        }
        let mut cut = Cut::new(&histories, &found, Lsn(0))?;
        cut.has_all_before(start + Duration::from_millis(archived), "archived")?;
        Ok(cut.missing().len())
    }

    #[test]
    fn prefixes_of_the_archive_pass() {
        assert_eq!(missing(None, None, 0), Ok(5));
        assert_eq!(missing(Some(1), None, 2), Ok(4));
        assert_eq!(missing(Some(1), Some(3), 7), Ok(3));
        assert_eq!(missing(None, Some(3), 12), Ok(2));
        assert_eq!(missing(None, Some(4), 22), Ok(1));
        assert_eq!(missing(None, None, 27), Ok(0));
        assert_eq!(missing(Some(2), None, 27), Ok(0), "the last one has no answer, and may be there");
        // In this order they overlap: b may be there without a.
        assert_eq!(missing(None, Some(3), 0), Ok(2), "as of the delete of a");
    }

    #[test]
    fn holes_in_the_archive_are_found() {
        for (a, b, archived, words) in [
            (Some(1), None, 7, "archived: write 2 of 3 of a"),
            (None, Some(3), 22, "archived: write 2 of 3 of b"),
            (Some(1), Some(4), 0, "no prefix of the writes: write 2 of 3 of a"),
            (Some(2), Some(4), 0, "no prefix of the writes: write 3 of 3 of b"),
            (Some(1), Some(3), 12, "archived: write 2 of 3 of a"),
            (Some(9), None, 0, "a: the store"),
            (Some(3), None, 0, "a: the store"),
        ] {
            let wrong = missing(a, b, archived).unwrap_err();
            assert!(wrong.contains(words), "{a:?} {b:?} {archived}: {wrong}");
        }
    }

    #[test]
    fn versions_are_checked() {
        let start = Instant::now();
        let mut histories = histories(start);
        histories.get_mut(&b"b"[..]).unwrap()[1].version = Some(Lsn(7));
        let found = BTreeMap::from([(b"b".to_vec(), Bytes::from(value(4).to_vec()))]);
        assert!(Cut::new(&histories, &found, Lsn(7)).is_ok());
        assert!(Cut::new(&histories, &found, Lsn(6)).is_err());
    }

    #[test]
    fn increments_are_in_the_order_of_their_answers() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let writes = of_increments(&[(3, at(7), at(8)), (1, at(0), at(1))], &[at(5), at(6)]);
        let shown: Vec<_> =
            writes.iter().map(|write| (write.state, write.sent, write.acknowledged)).collect();
        let count = KeyState::Count;
        let first = [(count(1), at(0), Some(at(1))), (count(2), at(5), None), (count(3), at(7), Some(at(8)))];
        assert_eq!(shown[..3], first);
        assert_eq!(shown[3..], [(count(4), at(5), None), (count(5), at(5), None)]);
    }
}
