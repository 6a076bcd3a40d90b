//! Workloads, load generators and reports: the home of what `shoal bench` measures.
//!
//! Reading order: [`histogram`] (latencies), [`payload`] (objects whose bytes follow from their number), [`machine`] (what a
//! figure depends on), [`report`] (table or JSON lines), [`plot`] (charts), then the benchmarks: [`store`], [`space`],
//! [`pool`], [`amplification`], [`thresholds`], [`cluster`], [`grpc`] and [`lessons`]; and [`apples`], the probability model behind pooled allocators.
//!
//! Figures mean something from the `release` profile only. Nothing here decides whether a figure is good.

pub mod amplification;
pub mod apples;
pub mod cluster;
mod data_file;
mod enough;
pub mod grpc;
pub mod histogram;
pub mod lessons;
pub mod machine;
pub mod payload;
pub mod plot;
pub mod pool;
pub mod report;
mod settle;
pub mod space;
pub mod store;
pub mod thresholds;
