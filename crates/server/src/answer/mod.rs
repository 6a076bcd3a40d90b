//! Answers: their bodies, in pieces and in turn, and the assembly of messages.

pub(crate) mod assembly;
pub(crate) mod body;
pub(crate) mod gzip;
pub(crate) mod web;
