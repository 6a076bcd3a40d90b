//! The number of pages of one request of a stream. It is found by trial, because devices differ: some are faster in
//! sequence for a few pages only, others are faster the more one request reads.

use std::time::Instant;

use crate::latency;

/// Pages of a request that are tried.
const RUNS: [u64; 12] = [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32];

/// Requests after which another length is tried anew: the device may have changed.
const TRIED_REQUESTS: u32 = 512;

/// The throughput of requests of each length.
#[derive(Default)]
pub(crate) struct ReadLength {
    /// Pages a second; 0 is unknown.
    rates: [f64; RUNS.len()],
    requests: u32,
    /// The start of the request under way, and its pages.
    began: Option<(Instant, u64)>,
}

impl ReadLength {
    /// Pages of the next request, at most `pages_max`: the shortest length of unknown throughput, or the best
    /// one.
    pub(crate) fn pages(&mut self, pages_max: u64) -> u64 {
        self.requests += 1;
        if self.requests.is_multiple_of(TRIED_REQUESTS) {
            let forgotten = (self.requests / TRIED_REQUESTS) as usize % RUNS.len();
            self.rates[forgotten] = 0.0;
        }
        let allowed = RUNS.iter().zip(&self.rates).filter(|&(&run, _)| run <= pages_max);
        let unknown = allowed.clone().find(|&(_, &rate)| rate == 0.0);
        let best = unknown.or_else(|| allowed.max_by(|one, other| one.1.total_cmp(other.1)));
        best.map_or(1, |(&run, _)| run)
    }

    /// Notes the start of a request for `pages` pages.
    pub(crate) fn began(&mut self, pages: u64) {
        self.began = Some((latency::moment(), pages));
    }

    /// Notes the start of a request whose time does not count.
    pub(crate) fn began_others(&mut self) {
        self.began = None;
    }

    /// Notes the end of the request.
    pub(crate) fn ended(&mut self) {
        let Some((began, pages)) = self.began.take() else { return };
        let Some(index) = RUNS.iter().position(|&run| run == pages) else { return };
        let rate = pages as f64 / began.elapsed().as_secs_f64().max(1e-9);
        let known = &mut self.rates[index];
        *known = if *known == 0.0 { rate } else { *known * 0.875 + rate * 0.125 };
    }
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn the_length_that_gives_most_is_kept() {
        let mut read_length = ReadLength::default();
        let mut asked = Vec::new();
        for _ in 0..40 {
            let pages = read_length.pages(9);
            asked.push(pages);
            // A device that is fast for up to three pages of a sequence.
            let seconds = if pages <= 3 { 0.0002 } else { 0.001 };
            let index = RUNS.iter().position(|&run| run == pages).unwrap();
            read_length.rates[index] = pages as f64 / seconds;
        }
        assert_eq!(asked[..8], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert!(asked[8..].iter().all(|&pages| pages == 3), "{asked:?}");
    }
}
