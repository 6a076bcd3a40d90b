//! Answers: XML documents and headers.

pub mod list;
pub mod object;
pub mod result;
pub mod xml;
