//! Objects, by the operations of S3: single ones, presigned URLs, and all below a prefix as an archive.

pub(crate) mod archive;
mod cut;
pub(crate) mod pass;
pub(crate) mod presign;
