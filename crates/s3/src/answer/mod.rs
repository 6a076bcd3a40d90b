//! Answers: XML documents and headers.

pub mod xml;
