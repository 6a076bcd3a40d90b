//! Workloads, load generators and reports: the home of what `shoal bench` measures.
//!
//! Reading order: [`histogram`] (latencies), [`payload`] (objects whose bytes follow from their number), [`machine`] (what a
//! figure depends on), [`report`] (table or JSON lines), then the benchmarks: [`store`], [`pool`].
//!
//! Figures mean something from the `release` profile only. Nothing here decides whether a figure is good.

pub mod histogram;
pub mod machine;
pub mod payload;
pub mod pool;
pub mod report;
pub mod store;
