//! The XML documents of requests, each with its limits. Those of a bucket's configuration are written again for its GET.

pub mod acl;
pub mod complete;
pub mod cors;
pub mod create_bucket;
pub mod delete;
pub mod lifecycle;
pub mod public_access;
pub mod tagging;
pub mod website;
