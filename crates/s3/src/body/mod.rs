//! Bodies: the framing of chunks, one pass of hashes over the bytes, forms, and XML documents with limits.

pub mod check;
pub mod checksum;
pub mod chunked;
pub mod claims;
pub mod documents;
pub mod form;
pub(crate) mod reader;
pub mod xml;
