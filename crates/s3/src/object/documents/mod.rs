//! The XML documents of requests about objects, each with its limits.

pub mod delete;
pub mod tagging;
