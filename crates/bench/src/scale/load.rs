//! A load: keys in an order, and values, derived from a number. Every compared store gets the same.

use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;

use bytes::Bytes;
use shoal_base::{Entropy, SeededEntropy};

use super::zipf::Zipf;
use crate::payload::{ObjectSet, RandomBytes, Sizes, mix};

/// The seed of keys and bytes.
pub const SEED: u64 = 20_261_125;

/// The bytes of all values, for all loads of this process.
static POOL: LazyLock<RandomBytes> = LazyLock::new(|| RandomBytes::new(SEED));

/// As in the well-known benchmark YCSB.
const ZIPF_EXPONENT: f64 = 0.99;

/// One of this number of puts of content-addressed objects is a duplicate.
const DUPLICATE_EVERY: u64 = 5;

/// Keys of a content-addressed store are 64 hexadecimal digits: four numbers.
const CONTENT_WORDS: u64 = 4;

/// The order of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// `object-` and 16 hexadecimal digits of a hash; every put is a new object.
    Random,
    /// `object-` and 16 decimal digits that grow by one; every put is a new object.
    Sequential,
    /// The keys of [`Order::Random`], drawn by Zipf's law with the exponent 0.99: a few are put again and again.
    Zipf,
    /// 64 hexadecimal digits, put only if there is no such object; a fifth of the puts are duplicates.
    Content,
}

/// All orders.
pub const ORDERS: [Order; 4] = [Order::Random, Order::Sequential, Order::Zipf, Order::Content];

impl Order {
    /// Bytes of a key.
    #[must_use]
    pub fn key_bytes(self) -> u64 {
        if self == Self::Content { CONTENT_WORDS * 16 } else { 23 }
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Random => "random",
            Self::Sequential => "sequential",
            Self::Zipf => "zipf",
            Self::Content => "content",
        })
    }
}

impl FromStr for Order {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = ORDERS.into_iter().find(|order| order.to_string() == text);
        found.ok_or_else(|| {
            format!("there is no order {text:?}; there are random, sequential, zipf and content")
        })
    }
}

/// One put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Put {
    /// Its key.
    pub key: Vec<u8>,
    /// Its value.
    pub value: Bytes,
}

/// Puts that become durable together.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// The puts, in order.
    pub puts: Vec<Put>,
    /// True if an existing object is not replaced.
    pub if_absent: bool,
}

/// The puts of a run, one batch after the other, and the objects stored by them.
pub struct Load {
    order: Order,
    values: ObjectSet,
    random: SeededEntropy,
    zipf: Zipf,
    /// For [`Order::Zipf`]: a bit for each object that was put.
    put_before: Vec<u64>,
    /// Puts so far, and the different objects of them.
    puts: u64,
    objects: u64,
    /// The number of the first object.
    first: u64,
}

impl Load {
    /// A load whose objects are numbered from `first` on: loads with disjoint numbers have different objects, except for
    /// [`Order::Zipf`]. `puts` is their total number.
    #[must_use]
    pub fn new(order: Order, value_bytes: u32, puts: u64, first: u64) -> Self {
        Self::of_sizes(order, Sizes::Fixed(value_bytes), puts, first)
    }

    /// The same with values of these sizes.
    #[must_use]
    pub fn of_sizes(order: Order, sizes: Sizes, puts: u64, first: u64) -> Self {
        let is_zipf = order == Order::Zipf;
        Self {
            order,
            values: POOL.set("scale", sizes),
            random: SeededEntropy::new(mix(SEED, first)),
            zipf: Zipf::new(puts, ZIPF_EXPONENT),
            put_before: vec![0; if is_zipf { puts.div_ceil(64) as usize } else { 0 }],
            puts: 0,
            objects: 0,
            first,
        }
    }

    /// The next `count` puts.
    pub fn batch(&mut self, count: u64) -> Batch {
        let puts = (0..count).map(|_| {
            let number = self.next_number();
            Put { key: self.key(number), value: self.value(number) }
        });
        Batch { puts: puts.collect(), if_absent: self.order == Order::Content }
    }

    fn next_number(&mut self) -> u64 {
        self.puts += 1;
        match self.order {
            Order::Zipf => {
                let rank = self.zipf.draw(|| self.random.next_u64());
                if let Some(word) = self.put_before.get_mut((rank / 64) as usize) {
                    self.objects += u64::from(*word & (1 << (rank % 64)) == 0);
                    *word |= 1 << (rank % 64);
                }
                rank
            }
            Order::Content if self.puts.is_multiple_of(DUPLICATE_EVERY) => {
                self.first + self.random.below(self.objects)
            }
            Order::Random | Order::Sequential | Order::Content => {
                self.objects += 1;
                self.first + self.objects - 1
            }
        }
    }

    /// Puts so far.
    #[must_use]
    pub fn puts(&self) -> u64 {
        self.puts
    }

    /// Different objects that were put so far.
    #[must_use]
    pub fn objects(&self) -> u64 {
        self.objects
    }

    /// A random object that was put; 0 if there is none.
    pub fn stored(&self, random: &SeededEntropy) -> u64 {
        if self.order != Order::Zipf {
            return self.first + random.below(self.objects);
        }
        let bits = self.put_before.len() as u64 * 64;
        let is_put = |number: u64| {
            self.put_before.get((number / 64) as usize).is_some_and(|word| word >> (number % 64) & 1 == 1)
        };
        // At least some percent are put, so the search is short.
        (self.objects > 0)
            .then(|| std::iter::repeat_with(|| random.below(bits)).find(|&number| is_put(number)))
            .flatten()
            .unwrap_or_default()
    }

    /// Key of object `number`.
    #[must_use]
    pub fn key(&self, number: u64) -> Vec<u8> {
        match self.order {
            Order::Sequential => format!("object-{number:016}").into_bytes(),
            // The same number always has the same digits, and two numbers never do.
            Order::Random | Order::Zipf => format!("object-{:016x}", mix(SEED, number)).into_bytes(),
            Order::Content => {
                let words = (0..CONTENT_WORDS).map(|word| format!("{:016x}", mix(SEED ^ word, number)));
                words.collect::<String>().into_bytes()
            }
        }
    }

    /// A key that no object has, among those of the objects.
    #[must_use]
    pub fn absent_key(&self, random: &SeededEntropy) -> Vec<u8> {
        let mut key = self.key(self.stored(random));
        // If digits decide about the place, other digits; if keys are dense, a longer key between two of them.
        if self.order == Order::Sequential {
            key.push(b'-');
        } else {
            key = self.key(u64::MAX - random.below(1 << 40));
        }
        key
    }

    /// Value of object `number`.
    #[must_use]
    pub fn value(&self, number: u64) -> Bytes {
        self.values.value(number)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::*;

    fn keys(order: Order, puts: u64) -> (Load, Vec<Vec<u8>>) {
        let mut load = Load::new(order, 100, puts, 0);
        let keys = (0..puts / 50).flat_map(|_| load.batch(50).puts).map(|put| put.key).collect();
        (load, keys)
    }

    #[test]
    fn key_orders_match_their_names() {
        for order in ORDERS {
            let (load, keys) = keys(order, 5000);
            let different: HashSet<&Vec<u8>> = keys.iter().collect();
            assert_eq!(load.objects(), different.len() as u64, "{order}");
            assert_eq!(load.puts(), 5000);
            assert!(keys.iter().all(|key| key.len() as u64 == order.key_bytes()), "{order}");
            assert_eq!(keys.is_sorted(), order == Order::Sequential, "{order}");
            match order {
                Order::Random | Order::Sequential => assert_eq!(different.len(), 5000),
                Order::Content => assert_eq!(different.len(), 4000),
                Order::Zipf => {
                    let mut counts = HashMap::new();
                    keys.iter().for_each(|key| *counts.entry(key).or_insert(0) += 1);
                    let hottest = counts.values().max().unwrap();
                    assert!((300..1000).contains(hottest), "{hottest}");
                }
            }
            let random = SeededEntropy::new(3);
            for _ in 0..200 {
                assert!(different.contains(&load.key(load.stored(&random))), "{order}");
                assert!(!different.contains(&load.absent_key(&random)), "{order}");
            }
        }
    }

    #[test]
    fn load_is_reproducible_and_offset_load_is_disjoint() {
        for order in [Order::Random, Order::Sequential, Order::Content] {
            let batch = |first| Load::new(order, 10, 100, first).batch(100).puts;
            assert_eq!(batch(0), batch(0));
            let other: HashSet<Vec<u8>> = batch(100).into_iter().map(|put| put.key).collect();
            assert!(batch(0).iter().all(|put| !other.contains(&put.key) && put.value.len() == 10), "{order}");
        }
    }

    #[test]
    fn names_are_read_back_and_others_refused() {
        for order in ORDERS {
            assert_eq!(order.to_string().parse(), Ok(order));
        }
        assert!("sorted".parse::<Order>().unwrap_err().contains("sequential"));
        assert_eq!(Load::new(Order::Zipf, 1, 0, 0).stored(&SeededEntropy::new(1)), 0);
    }
}
