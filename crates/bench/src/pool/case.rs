//! The cases and the variants, by the names of `--case` and `--variant`.

use std::time::Duration;

use shoal_pool::PolicyKind;

use super::bed::Version;
use super::shoal::Settings;
use super::sim::Latency;

const MILLISECOND: Duration = Duration::from_millis(1);

/// One case.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) version: Version,
    /// One run for each; the figures are the last one's, the score is made of both.
    pub(crate) latencies: &'static [Latency],
    /// Frames, where it is not for the options to say.
    pub(crate) frames: Option<usize>,
    /// Frames that scans may have, where the default does not fit the score's weights.
    pub(crate) scan_frames: Option<usize>,
    /// No threads: accesses one after the other, this many pages scanned for each get, hits counted.
    pub(crate) mix: Option<u64>,
}

const SEQUENTIAL: &[Latency] = &[Latency::SequentialAware(MILLISECOND)];

const fn since_2024(name: &'static str, latencies: &'static [Latency], frames: Option<usize>) -> Case {
    Case { name, version: Version::Since2024, latencies, frames, scan_frames: None, mix: None }
}

pub(crate) const CASES: &[Case] = &[
    since_2024("2024-lat0", &[Latency::None], None),
    since_2024("2024-lat1", SEQUENTIAL, None),
    Case {
        name: "spring2023",
        version: Version::Spring2023,
        latencies: &[Latency::None, Latency::Flat(MILLISECOND)],
        frames: None,
        scan_frames: None,
        mix: None,
    },
    // Measured elsewhere: one thread, then two, no load generator.
    since_2024("resident", &[], None),
    since_2024("frames-24", SEQUENTIAL, Some(24)),
    since_2024("frames-128", SEQUENTIAL, Some(128)),
    since_2024("frames-640", SEQUENTIAL, Some(640)),
    Case { mix: Some(1), ..since_2024("mix-1to1", &[], None) },
    Case { mix: Some(4), ..since_2024("mix-4to1", &[], None) },
];

/// One pool, or one way to use ours.
pub(crate) struct Variant {
    pub(crate) name: &'static str,
    pub(crate) settings: Settings,
}

const fn variant(name: &'static str, settings: Settings) -> Variant {
    Variant { name, settings }
}

const DEFAULT: Settings = Settings {
    hands_off: false,
    reads_ahead: true,
    marks_scans: true,
    inline: true,
    scan_frames: None,
    policy: PolicyKind::LruK,
    lru_k: None,
};

pub(crate) const VARIANTS: &[Variant] = &[
    variant("naive", DEFAULT),
    variant("naive-scheduler", DEFAULT),
    variant("proxy", DEFAULT),
    // Not a pool: the optimum of the hit rates.
    variant("belady", DEFAULT),
    variant("default", DEFAULT),
    // As in the seed: 16 accesses, no history, scans first.
    variant("lru-k", Settings { lru_k: Some((16, 0)), ..DEFAULT }),
    variant("lru-16-history", Settings { lru_k: Some((16, 6400)), ..DEFAULT }),
    variant("lru-4-history", Settings { lru_k: Some((4, 6400)), ..DEFAULT }),
    variant("s3-fifo", Settings { policy: PolicyKind::S3Fifo, ..DEFAULT }),
    variant("sieve", Settings { policy: PolicyKind::Sieve, ..DEFAULT }),
    variant("no-read-ahead", Settings { reads_ahead: false, ..DEFAULT }),
    variant("no-scan-marking", Settings { reads_ahead: false, marks_scans: false, ..DEFAULT }),
    variant("no-inline-io", Settings { hands_off: true, inline: false, ..DEFAULT }),
];
