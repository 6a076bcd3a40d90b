//! The XML documents of a bucket's configuration, each with its limits. They are written again for their GET.

pub mod create_bucket;
pub mod lifecycle;
pub mod public_access;
pub mod website;
