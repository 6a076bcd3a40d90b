//! The cases of the study, by name, and the allocators that each is run with.

use std::time::Duration;

use anyhow::Result;

use super::allocator::Allocator;
use super::figures::Figures;
use super::hybrid::Hybrid;
use super::load::Sizes;
use super::network::network;
use super::reference::{Bitmap, Grouped, Pooled, Record, Tree};
use super::run::{GIB, Run, TIB};
use super::shift::Treatment;
use super::{ceph, churn, own, parallel, rebuild, seed, service, shift};

/// The allocators, and how clients and servers share one.
pub(crate) const ALLOCATORS: [&str; 6] = ["bitmap", "grouped", "pooled", "pooled-bitmap", "tree", "hybrid"];
const SHIFTED: [&str; 8] = [
    "bitmap",
    "grouped",
    "pooled",
    "pooled-compacted",
    "pooled-bitmap",
    "pooled-bitmap-compacted",
    "tree",
    "hybrid",
];
const SHARING: [&str; 5] =
    ["uncached", "cached", "uncached-unsynced", "uncached-in-process", "cached-in-process"];
/// The variants of cases for the store's own allocator only, and of cases that vary its goals.
const OURS: [&str; 1] = ["hybrid"];
const OWNERS: [&str; 2] = ["shared", "own"];
const RUNS: [&str; 4] = ["runs-1", "runs-2", "runs-4", "runs-8"];

/// The kind of a case.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Seed { freed_percent: usize, runs_max: usize },
    Churn { percent: u64, sizes: Sizes },
    Drift,
    Shift { runs_max: usize, moves: bool },
    CephP300,
    CephAgeing,
    ClientServer,
    Threads(u64),
    Network,
    Rebuild,
    ComeAndGo,
}

/// One case.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    kind: Kind,
    blocks: u64,
}

/// All cases, in the order of the table.
pub(crate) const CASES: [Case; 21] = [
    Case { name: "seed-2t-50", kind: Kind::Seed { freed_percent: 50, runs_max: 1 }, blocks: 2 * TIB },
    Case { name: "seed-16t-50", kind: Kind::Seed { freed_percent: 50, runs_max: 1 }, blocks: 16 * TIB },
    Case { name: "seed-16t-80", kind: Kind::Seed { freed_percent: 80, runs_max: 1 }, blocks: 16 * TIB },
    Case {
        name: "seed-16t-50-scattered",
        kind: Kind::Seed { freed_percent: 50, runs_max: usize::MAX },
        blocks: 16 * TIB,
    },
    Case {
        name: "logn-1t",
        kind: Kind::Churn { percent: 90, sizes: Sizes::LogNormal(16_384.0) },
        blocks: TIB,
    },
    Case { name: "churn-16t-90", kind: Kind::Churn { percent: 90, sizes: Sizes::SEED }, blocks: 16 * TIB },
    Case { name: "churn-16t-95", kind: Kind::Churn { percent: 95, sizes: Sizes::SEED }, blocks: 16 * TIB },
    Case { name: "churn-16t-98", kind: Kind::Churn { percent: 98, sizes: Sizes::SEED }, blocks: 16 * TIB },
    Case { name: "drift-64g-90", kind: Kind::Drift, blocks: 64 * GIB },
    Case { name: "shift-16t", kind: Kind::Shift { runs_max: 1, moves: false }, blocks: 16 * TIB },
    Case { name: "shift-16t-k4", kind: Kind::Shift { runs_max: 4, moves: false }, blocks: 16 * TIB },
    Case { name: "shift-16t-k8", kind: Kind::Shift { runs_max: 8, moves: false }, blocks: 16 * TIB },
    Case { name: "shift-4t-moving", kind: Kind::Shift { runs_max: 1, moves: true }, blocks: 4 * TIB },
    Case { name: "shift-4t-own", kind: Kind::ComeAndGo, blocks: 4 * TIB },
    Case { name: "ceph-p90", kind: Kind::CephP300, blocks: 128 * GIB },
    Case { name: "ceph-ageing", kind: Kind::CephAgeing, blocks: 512 * GIB },
    Case { name: "client-server", kind: Kind::ClientServer, blocks: 2 * TIB },
    Case { name: "threads-2", kind: Kind::Threads(2), blocks: 16 * TIB },
    Case { name: "threads-8", kind: Kind::Threads(8), blocks: 16 * TIB },
    Case { name: "network-10ms", kind: Kind::Network, blocks: 0 },
    Case { name: "rebuild-16t", kind: Kind::Rebuild, blocks: 16 * TIB },
];

impl Case {
    /// The variants that it is run with.
    pub(crate) fn variants(&self) -> &'static [&'static str] {
        match self.kind {
            Kind::ClientServer => &SHARING,
            Kind::Network => &RUNS,
            Kind::ComeAndGo => &OWNERS,
            Kind::Rebuild | Kind::Churn { percent: 90, sizes: Sizes::Uniform(..) } => &OURS,
            Kind::Shift { runs_max: 8, .. } => &OURS,
            Kind::Shift { .. } => &SHIFTED,
            _ => &ALLOCATORS,
        }
    }

    /// Runs it with one variant.
    pub(crate) fn run(&self, variant: &str, run: &mut Run, io_time: Duration) -> Result<Figures> {
        let blocks = run.blocks(self.blocks);
        match self.kind {
            Kind::ClientServer => {
                let is_cached = variant.starts_with("cached");
                return if variant.ends_with("in-process") {
                    Ok(parallel::client_server(blocks, is_cached, run))
                } else {
                    service::service(blocks, is_cached, !variant.ends_with("unsynced"), run)
                };
            }
            Kind::Network => {
                let runs = variant.strip_prefix("runs-").and_then(|count| count.parse().ok()).unwrap_or(1);
                return network(runs, io_time);
            }
            Kind::ComeAndGo => return Ok(own::come_and_go(blocks, variant == "own", run)),
            Kind::Rebuild => return Ok(rebuild::rebuild(blocks, run)),
            _ => {}
        }
        let allocator = make(variant, blocks);
        let mut figures = match self.kind {
            Kind::Seed { freed_percent, runs_max } => seed::seed(&*allocator, freed_percent, runs_max, run),
            Kind::Churn { percent, sizes } => churn::churn(&*allocator, percent, sizes, run),
            Kind::Drift => shift::drift(&*allocator, 90, run),
            Kind::Shift { runs_max, moves } => {
                let way = match (variant.ends_with("compacted"), moves) {
                    (true, _) => Treatment::Compacts,
                    (false, true) => Treatment::Moves,
                    (false, false) => Treatment::Stays,
                };
                shift::shift(&*allocator, runs_max, way, run)
            }
            Kind::CephP300 => ceph::p300(&*allocator, 90, run),
            Kind::CephAgeing => ceph::ageing(&*allocator, run),
            Kind::Threads(threads) => parallel::threads(&*allocator, threads, run),
            Kind::ClientServer | Kind::Network | Kind::Rebuild | Kind::ComeAndGo => Figures::default(),
        };
        if let Kind::Seed { runs_max: 1, .. } = self.kind {
            seed::leases(&*make(variant, blocks), run, &mut figures);
        }
        allocator.shutdown();
        Ok(figures)
    }
}

/// A fresh allocator of that name.
pub(crate) fn make(variant: &str, blocks: u64) -> Box<dyn Allocator> {
    match variant {
        "bitmap" => Box::new(Bitmap::new(0, blocks)),
        "grouped" => Box::new(Grouped::new(0, blocks)),
        "pooled" | "pooled-compacted" => Box::new(Pooled::new(0, blocks, Record::None)),
        "pooled-bitmap" | "pooled-bitmap-compacted" => Box::new(Pooled::new(0, blocks, Record::Bitmap)),
        "tree" => Box::new(Tree::new(0, blocks)),
        _ => Box::new(Hybrid::new(0, blocks)),
    }
}
