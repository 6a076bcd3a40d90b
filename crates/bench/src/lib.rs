//! The measurements of `shoal bench`, and the parts that the experiments share with them.
//!
//! Reading order: [`histogram`] (latencies), [`payload`] (objects whose bytes follow from their number), [`machine`] (the
//! surroundings of a figure), [`disk`] (the kernel's counters), [`cores`] (the cores of clients and servers), [`report`] (table
//! or lines), [`mod@plot`] (charts), [`select()`] (names of cases), [`questions`] (the charts for the choice of a store), then
//! the benchmarks: [`store`], [`grpc`], [`redis`], [`amplification`], [`density`], [`scale`],
//! [`tail`], [`list`] and [`s3`].
//!
//! Only figures from the `release` profile are meaningful. Nothing here decides whether a figure is good.

pub mod amplification;
pub mod cores;
pub mod data_file;
pub mod density;
pub mod disk;
pub mod enough;
pub mod grpc;
pub mod histogram;
pub mod list;
pub mod machine;
pub mod payload;
pub mod plot;
mod probe;
pub mod questions;
pub mod redis;
pub mod report;
pub mod s3;
pub mod scale;
mod select;
pub mod settle;
pub mod store;
pub mod tail;

pub use select::select;
