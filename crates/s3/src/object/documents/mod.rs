//! The XML documents of requests about objects, each with its limits.

pub mod complete;
pub mod delete;
pub mod tagging;
