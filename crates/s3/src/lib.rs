//! The S3 protocol without sockets and without a store: everything between the bytes of a request and the operation that it
//! asks for, and between the operation's result and the bytes of its answer.

pub mod access;
mod action;
pub mod answer;
pub mod body;
pub mod object;
pub mod request;
pub mod sign;
pub mod text;
pub mod time;

#[cfg(test)]
mod testing;

pub use action::AccessAction;
pub use request::error::{ErrorCode, S3Error, S3Result};
