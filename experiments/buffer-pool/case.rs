//! The cases and the variants, by the names of `--case` and `--variant`.

use std::time::Duration;

use super::bed::Version;
use super::shoal::Settings;
use super::sim::{Handling, Latency};

const MILLISECOND: Duration = Duration::from_millis(1);

/// How large the pools are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    /// From the options.
    Given,
    Frames(usize),
    /// A part of the pages.
    Percent(u64),
}

/// The measurement of a case.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// Threads on the simulator, one run for each latency; the figures are the last one's, the score is made of both.
    Load(&'static [Latency]),
    /// Threads on a real file or device.
    Device,
    /// Hits alone: one thread, then two, no load generator.
    Resident,
    /// No threads: accesses one after the other, this many pages scanned for each get, hits counted.
    Mix(u64),
    /// As `Mix`, with the accesses of a run of the threads.
    Recorded,
}

/// One case.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) version: Version,
    pub(crate) kind: Kind,
    pub(crate) size: Size,
    /// Threads of each kind; none: from the options.
    pub(crate) threads: Option<u64>,
    /// Without the policies and the ablations, unless a variant is named.
    pub(crate) is_narrow: bool,
}

const NO_LATENCY: Kind = Kind::Load(&[Latency::None]);
const SEQUENTIAL: Kind = Kind::Load(&[Latency::SequentialAware(MILLISECOND)]);

const fn since_2024(name: &'static str, kind: Kind, size: Size) -> Case {
    Case { name, version: Version::Since2024, kind, size, threads: None, is_narrow: false }
}

const fn narrow(case: Case) -> Case {
    Case { is_narrow: true, ..case }
}

const fn with_threads(name: &'static str, threads: u64) -> Case {
    Case { threads: Some(threads), ..narrow(since_2024(name, NO_LATENCY, Size::Given)) }
}

pub(crate) const CASES: &[Case] = &[
    since_2024("2024-lat0", NO_LATENCY, Size::Given),
    since_2024("2024-lat1", SEQUENTIAL, Size::Given),
    Case {
        version: Version::Spring2023,
        ..since_2024("spring2023", Kind::Load(&[Latency::None, Latency::Flat(MILLISECOND)]), Size::Given)
    },
    since_2024("resident", Kind::Resident, Size::Percent(100)),
    narrow(since_2024("frames-24", SEQUENTIAL, Size::Frames(24))),
    narrow(since_2024("frames-128", SEQUENTIAL, Size::Frames(128))),
    narrow(since_2024("frames-640", SEQUENTIAL, Size::Frames(640))),
    narrow(since_2024("size-10", NO_LATENCY, Size::Percent(10))),
    narrow(since_2024("size-50", NO_LATENCY, Size::Percent(50))),
    narrow(since_2024("size-100", NO_LATENCY, Size::Percent(100))),
    with_threads("threads-1", 1),
    with_threads("threads-2", 2),
    with_threads("threads-4", 4),
    narrow(since_2024("device", Kind::Device, Size::Given)),
    narrow(since_2024("device-10", Kind::Device, Size::Percent(10))),
    since_2024("mix-1to1", Kind::Mix(1), Size::Given),
    since_2024("mix-4to1", Kind::Mix(4), Size::Given),
    since_2024("recorded", Kind::Recorded, Size::Given),
];

/// One pool, or one way to use ours.
#[derive(Clone, Copy)]
pub(crate) struct Variant {
    pub(crate) name: &'static str,
    pub(crate) settings: Settings,
    /// One of the variants that every case has.
    pub(crate) is_common: bool,
}

const fn common(name: &'static str) -> Variant {
    Variant { name, settings: DEFAULT, is_common: true }
}

const fn variant(name: &'static str, settings: Settings) -> Variant {
    Variant { name, settings, is_common: false }
}

const fn device(handling: Handling) -> Settings {
    Settings { device: handling, ..DEFAULT }
}

const PLAIN: Handling = Handling { hands_off: false, writes_wait: false, tells_writes: false };

const DEFAULT: Settings = Settings {
    device: PLAIN,
    coalesces: true,
    writes_ahead: true,
    reads_ahead: true,
    marks_scans: true,
    inline: true,
    lru_k: None,
    scan_frames: None,
    ready_frames: None,
    side_buffers: 0,
};

pub(crate) const VARIANTS: &[Variant] = &[
    common("naive"),
    common("naive-scheduler"),
    common("proxy"),
    common("default"),
    // Policies. As in the seed: 16 accesses, no history, scans first.
    variant("lru-k", Settings { lru_k: Some((16, 0)), ..DEFAULT }),
    variant("lru-16-history", Settings { lru_k: Some((16, 6400)), ..DEFAULT }),
    variant("lru-4-history", Settings { lru_k: Some((4, 6400)), ..DEFAULT }),
    // One mechanism more: changed pages are written from buffers beside the frames, so scans may read further ahead.
    variant("side-buffers", Settings { side_buffers: 40, scan_frames: Some(40), ..DEFAULT }),
    // Ablations: one mechanism less.
    variant("no-async-writes", device(Handling { writes_wait: true, ..PLAIN })),
    variant("no-coalescing", Settings { coalesces: false, ..DEFAULT }),
    variant("no-queue-reads", device(Handling { tells_writes: true, ..PLAIN })),
    variant("no-write-ahead", Settings { writes_ahead: false, ..DEFAULT }),
    variant("no-read-ahead", Settings { reads_ahead: false, ..DEFAULT }),
    variant("no-scan-marking", Settings { reads_ahead: false, marks_scans: false, ..DEFAULT }),
    variant("no-inline-io", Settings { inline: false, ..device(Handling { hands_off: true, ..PLAIN }) }),
    // Not pools: hit rates of others' policies, and the optimum.
    variant("lru", DEFAULT),
    variant("clock", DEFAULT),
    variant("s3-fifo", DEFAULT),
    variant("sieve", DEFAULT),
    variant("lfu", DEFAULT),
    variant("lfu-aged", DEFAULT),
    variant("belady", DEFAULT),
];

/// Variants that are only simulated.
pub(crate) const SIMULATED: &[&str] = &["lru", "clock", "s3-fifo", "sieve", "lfu", "lfu-aged", "belady"];
