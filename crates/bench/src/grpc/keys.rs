//! The client's knowledge of its keys, so that no wrong answer passes: the values that a read may return.
//!
//! Values are slices of one region of random bytes, so a value is identified by its place there, and every returned byte is
//! compared. A key remembers the values that were sent for it. A write without a concurrent one is the *floor*: a read that
//! starts later must not return an older value. If writes overlap, the floor stays, because their order is unknown here.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use anyhow::{Result, bail};
use bytes::Bytes;
use shoal_base::{Entropy, SeededEntropy};

/// Bytes of the region that contains all values.
const REGION_BYTES: usize = 16 << 20;

/// The longest value, in bytes: one in 10^27 would be longer.
const VALUE_BYTES_MAX: f64 = (4 << 20) as f64;

/// Keys shorter than this are sometimes drawn more than once; less is known about their values.
const DISTINCT_BYTES: usize = 8;

/// The sizes of the series: 1 + round(Exp(mean)).
const KEY_BYTES_MEAN: f64 = 64.0;
const VALUE_BYTES_MEAN: f64 = 65_536.0;

/// A value, by its place in the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    first: usize,
    bytes: usize,
}

/// The source of random choices, keys and values.
pub struct KeySource {
    random: SeededEntropy,
    region: Bytes,
    /// Keys that may be drawn again.
    short: RefCell<HashMap<Bytes, Rc<Key>>>,
}

impl KeySource {
    pub(super) fn new(seed: u64) -> Self {
        let random = SeededEntropy::new(seed);
        let region = (0..REGION_BYTES / 8).flat_map(|_| random.next_u64().to_le_bytes()).collect::<Vec<_>>();
        Self { random, region: region.into(), short: RefCell::default() }
    }

    /// A random number below `bound`.
    #[must_use]
    pub fn below(&self, bound: usize) -> usize {
        self.random.below(bound as u64) as usize
    }

    /// A key of the sizes of the series.
    pub(super) fn seed_key(&self) -> Rc<Key> {
        self.key(self.exponential(KEY_BYTES_MEAN).min(1024))
    }

    /// A key of `bytes` random bytes.
    #[must_use]
    pub fn key(&self, bytes: usize) -> Rc<Key> {
        let name = (0..bytes.div_ceil(8)).flat_map(|_| self.random.next_u64().to_le_bytes());
        let name: Bytes = name.take(bytes).collect::<Vec<_>>().into();
        if bytes >= DISTINCT_BYTES {
            return Rc::new(Key::new(name, false));
        }
        let mut short = self.short.borrow_mut();
        Rc::clone(short.entry(name.clone()).or_insert_with(|| Rc::new(Key::new(name, true))))
    }

    /// A value of the sizes of the series.
    pub(super) fn seed_value(&self) -> Slice {
        self.value(self.exponential(VALUE_BYTES_MEAN))
    }

    /// A value of `bytes` bytes.
    #[must_use]
    pub fn value(&self, bytes: usize) -> Slice {
        Slice { first: self.below(self.region.len() - bytes), bytes }
    }

    /// The bytes of a value. Nothing is copied.
    #[must_use]
    pub fn bytes(&self, value: Slice) -> Bytes {
        self.region.slice(value.first..value.first + value.bytes)
    }

    fn exponential(&self, mean: f64) -> usize {
        // Of (0, 1]: its logarithm is finite.
        let uniform = ((self.random.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        (1.0 + (-uniform.ln() * mean).round()).min(VALUE_BYTES_MAX) as usize
    }
}

/// A key, and the values that were sent for it.
pub struct Key {
    /// Its bytes.
    pub name: Bytes,
    /// It may have been drawn several times.
    is_shared: bool,
    sent: RefCell<Vec<Slice>>,
    floor: Cell<usize>,
    writes_under_way: Cell<usize>,
    is_deleted: Cell<bool>,
}

/// A write in progress.
pub(super) struct Writing {
    place: usize,
    was_alone: bool,
}

impl Key {
    fn new(name: Bytes, is_shared: bool) -> Self {
        Self {
            name,
            is_shared,
            sent: RefCell::default(),
            floor: Cell::new(0),
            writes_under_way: Cell::new(0),
            is_deleted: Cell::new(false),
        }
    }

    pub(super) fn begin_write(&self, value: Slice) -> Writing {
        let mut sent = self.sent.borrow_mut();
        sent.push(value);
        self.writes_under_way.set(self.writes_under_way.get() + 1);
        Writing { place: sent.len() - 1, was_alone: self.writes_under_way.get() == 1 }
    }

    /// The write has completed; `done` is true if it succeeded.
    pub(super) fn end_write(&self, writing: &Writing, done: bool) {
        self.writes_under_way.set(self.writes_under_way.get() - 1);
        let is_last = self.sent.borrow().len() == writing.place + 1;
        if done && writing.was_alone && is_last && !self.is_shared {
            self.floor.set(writing.place);
        }
    }

    /// From now on it may be gone.
    pub(super) fn begin_delete(&self) {
        self.is_deleted.set(true);
    }

    /// The oldest state that a read that starts now may return.
    pub(super) fn begin_read(&self) -> usize {
        self.floor.get()
    }

    /// Checks the result of a read that started at `floor`.
    ///
    /// # Errors
    /// It is none of the possible values.
    pub(super) fn check(&self, source: &KeySource, floor: usize, got: &[u8]) -> Result<()> {
        let sent = self.sent.borrow();
        let may_be = sent.iter().skip(floor);
        if may_be.rev().any(|&value| value.bytes == got.len() && source.bytes(value) == got) {
            return Ok(());
        }
        let is_old = sent.iter().take(floor).any(|&value| source.bytes(value) == got);
        let what = if is_old { "an old value" } else { "bytes that were never sent for it" };
        bail!("a key of {} bytes came back with {what} ({} bytes)", self.name.len(), got.len())
    }

    /// Checks that the key may be missing.
    ///
    /// # Errors
    /// It was never deleted.
    pub(super) fn check_missing(&self) -> Result<()> {
        if !self.is_deleted.get() && !self.is_shared {
            bail!("a key of {} bytes is lost: it was created, and nobody deleted it", self.name.len());
        }
        Ok(())
    }

    /// Checks that another call may have created it.
    ///
    /// # Errors
    /// No other call did.
    pub(super) fn check_exists(&self) -> Result<()> {
        if !self.is_shared {
            bail!("a key of {} bytes existed before it was created", self.name.len());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_depend_on_seed() {
        let source = KeySource::new(1);
        let mean = |draw: &dyn Fn() -> usize| (0..20_000).map(|_| draw() as f64).sum::<f64>() / 20_000.0;
        let keys = mean(&|| source.seed_key().name.len());
        let values = mean(&|| source.seed_value().bytes);
        assert!((63.0..67.0).contains(&keys), "{keys}");
        assert!((64_000.0..67_100.0).contains(&values), "{values}");
    }

    #[test]
    fn wrong_stale_and_lost_values_are_detected() {
        let source = KeySource::new(2);
        let key = source.key(20);
        let [first, second, third] = [(); 3].map(|()| source.value(100));
        let write = |value| key.end_write(&key.begin_write(value), true);
        write(first);
        let early = key.begin_read();
        write(second);
        let late = key.begin_read();
        let check = |floor, value| key.check(&source, floor, &source.bytes(value));
        check(early, first).unwrap();
        check(early, second).unwrap();
        assert!(check(late, first).unwrap_err().to_string().contains("old"));
        assert!(check(late, third).unwrap_err().to_string().contains("never"));
        let mut torn = source.bytes(second).to_vec();
        torn[99] ^= 1;
        assert!(key.check(&source, late, &torn).is_err());
        // Of two writes at the same time, either may be the last, and the value before both may be seen until one has
        // completed.
        let [one, other] = [second, third].map(|value| key.begin_write(value));
        key.end_write(&one, true);
        key.end_write(&other, true);
        check(key.begin_read(), second).unwrap();
        check(key.begin_read(), third).unwrap();
        assert!(key.check_missing().is_err() && key.check_exists().is_err());
        key.begin_delete();
        key.check_missing().unwrap();
    }

    #[test]
    fn short_keys_are_shared() {
        let source = KeySource::new(3);
        let keys: Vec<_> = (0..2000).map(|_| source.key(1)).collect();
        assert!(keys.iter().any(|key| !Rc::ptr_eq(key, &keys[0]) && key.name != keys[0].name));
        for key in &keys {
            assert_eq!(Rc::ptr_eq(key, &keys[0]), key.name == keys[0].name);
            key.check_missing().unwrap();
            key.check_exists().unwrap();
        }
    }
}
