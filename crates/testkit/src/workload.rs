//! Sequences of operations over a few keys, the same for the same seed.

use shoal_base::{Entropy, SeededEntropy};

use crate::model::{Condition, Effect, Model};
use crate::value::Value;

/// The operations to generate. Shares are in percent.
#[derive(Clone, Debug)]
pub struct WorkloadOptions {
    /// The number of keys. Few keys make overwrites and races common.
    pub keys: u64,
    /// The sizes of values, each as likely as the others.
    pub sizes: Vec<usize>,
    /// Deletes among the writes.
    pub delete_percent: u64,
    /// Writes with a condition; half of the version conditions name the right version.
    pub condition_percent: u64,
}

/// The next operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The key.
    pub key: Vec<u8>,
    /// The write itself.
    pub effect: Effect,
    /// Its condition.
    pub condition: Condition,
}

/// A reproducible sequence of operations.
pub struct Workload {
    entropy: SeededEntropy,
    options: WorkloadOptions,
    writes: u64,
}

impl Workload {
    /// The sequence of `seed`.
    ///
    /// # Panics
    /// If there are no keys or no sizes.
    #[must_use]
    pub fn new(seed: u64, options: WorkloadOptions) -> Self {
        assert!(options.keys > 0 && !options.sizes.is_empty(), "a workload needs keys and sizes");
        Self { entropy: SeededEntropy::new(seed), options, writes: 0 }
    }

    /// The name of the key with this number. Names differ in length and share prefixes, as real ones do.
    #[must_use]
    pub fn key(number: u64) -> Vec<u8> {
        let folder = "deep/".repeat((number % 4) as usize);
        format!("{folder}key-{number}").into_bytes()
    }

    /// The next operation. `model` knows the versions that conditions name.
    pub fn next(&mut self, model: &Model) -> Operation {
        let number = self.entropy.below(self.options.keys);
        let key = Self::key(number);
        self.writes += 1;
        let delete = self.percent(self.options.delete_percent);
        let size = self.entropy.below(self.options.sizes.len() as u64) as usize;
        let effect = if delete {
            Effect::Delete
        } else {
            Effect::Put(Value { key: number, seed: self.writes, bytes: self.options.sizes[size] })
        };
        let conditional = self.percent(self.options.condition_percent);
        let condition =
            if conditional { self.condition(model.current(&key).ok().flatten()) } else { Condition::None };
        Operation { key, effect, condition }
    }

    fn condition(&mut self, current: Option<u64>) -> Condition {
        let version = current.unwrap_or(0);
        let other = version.wrapping_add(1 + self.entropy.below(3));
        let named = if self.entropy.below(2) == 0 { version } else { other };
        match self.entropy.below(4) {
            0 => Condition::IfExists,
            1 => Condition::IfMissing,
            2 => Condition::IfVersionNot(named),
            _ => Condition::IfVersionAtMost(named.saturating_sub(1)),
        }
    }

    fn percent(&self, share: u64) -> bool {
        self.entropy.next_u64() % 100 < share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> WorkloadOptions {
        WorkloadOptions { keys: 5, sizes: vec![0, 100, 5000], delete_percent: 20, condition_percent: 30 }
    }

    /// Runs the workload against a correct store, kept in a vector; returns the operations.
    fn run(seed: u64, steps: u64) -> (Model, Vec<(Operation, bool)>) {
        let (mut model, mut workload, mut done) = (Model::new(), Workload::new(seed, options()), Vec::new());
        for version in 1..=steps {
            let operation = workload.next(&model);
            let current = model.current(&operation.key).unwrap();
            let id = model.begin(&operation.key, operation.effect, operation.condition);
            let rejected = operation.condition.rejects(current);
            if rejected { model.rejected(id, current) } else { model.acknowledge(id, version) }.unwrap();
            done.push((operation, rejected));
        }
        (model, done)
    }

    #[test]
    fn a_seed_gives_one_sequence_with_everything_in_it() {
        let (model, done) = run(1, 500);
        assert_eq!(done, run(1, 500).1);
        assert_ne!(done, run(2, 500).1);
        assert_eq!(model.keys().count(), 5);
        let count = |of: fn(&(Operation, bool)) -> bool| done.iter().filter(|step| of(step)).count();
        assert!((50..150).contains(&count(|(operation, _)| operation.effect == Effect::Delete)));
        let conditional = |operation: &Operation| operation.condition != Condition::None;
        let rejected = done.iter().filter(|(_, rejected)| *rejected).count();
        let passed = done.iter().filter(|(operation, rejected)| conditional(operation) && !rejected).count();
        assert!(rejected > 30 && passed > 30, "{rejected} rejected and {passed} passed conditions");
    }
}
