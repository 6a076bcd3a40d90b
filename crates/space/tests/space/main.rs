//! The space against a map ([`model`]), through a life of publishes ([`publish`]), and with several threads on it ([`threads`]).

mod model;
mod publish;
mod threads;
