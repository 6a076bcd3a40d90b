//! Bodies: the framing of chunks, one pass of hashes over the bytes, forms, and the parser of XML.

pub mod check;
pub mod checksum;
pub mod chunked;
pub mod claims;
pub mod form;
pub(crate) mod reader;
pub mod xml;
