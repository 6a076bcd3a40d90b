//! S3.

mod action;
pub mod answer;
pub mod request;
pub mod text;
pub mod time;

#[cfg(test)]
mod testing;

pub use action::AccessAction;
