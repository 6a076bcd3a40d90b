//! Ids of requests: 16 hex digits in the answer and the log, different for each request of a process.

use std::sync::atomic::{AtomicU64, Ordering};

use shoal_base::Entropy;

/// Makes the ids of requests.
#[derive(Debug)]
pub struct AnswerIds(AtomicU64);

impl AnswerIds {
    /// Ids that start at a random number, so that those of two processes differ.
    #[must_use]
    pub fn new(entropy: &dyn Entropy) -> Self {
        Self(AtomicU64::new(entropy.next_u64()))
    }

    /// The next id. Multiplication by an odd number and xor of a shift are bijections, so no id repeats.
    #[must_use]
    pub fn next(&self) -> String {
        let number = self.0.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        format!("{:016X}", number ^ (number >> 32))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use shoal_base::SeededEntropy;

    use super::*;

    #[test]
    fn ids_have_16_digits_and_differ() {
        let ids = AnswerIds::new(&SeededEntropy::new(1));
        let made: HashSet<String> = (0..1_000).map(|_| ids.next()).collect();
        assert_eq!(made.len(), 1_000);
        assert!(made.iter().all(|id| id.len() == 16 && id.bytes().all(|it| it.is_ascii_hexdigit())));
    }
}
