//! The Redis protocol, versions 2 and 3, without any I/O: requests parsed from a [`shoal_buffer::Buffer`], replies written into
//! one.
//!
//! [`RequestParser`] takes complete commands from the front of the received bytes: `request` has the protocol's state, `inline`
//! the commands that people type, `number` the protocol's integers. [`Reply`] writes answers. Errors have Redis's texts. This
//! crate does not know the meaning of the commands.

#[cfg(any(test, fuzzing))]
pub mod hostile;
mod inline;
mod number;
mod reply;
mod request;

pub use number::parse_integer;
pub use reply::{Protocol, Reply};
pub use request::{Glance, ProtocolError, Request, RequestLimits, RequestParser};
