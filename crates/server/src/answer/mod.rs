//! Answers: their bodies, in pieces and in turn, and what messages are put together from.

pub(crate) mod assembly;
pub(crate) mod body;
pub(crate) mod pack;
pub(crate) mod web;
