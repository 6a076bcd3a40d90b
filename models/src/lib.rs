//! The archive's protocol as a model that a checker explores completely.
//!
//! Start with `README.md` (rules, runs, bugs), then read in this order. The promises are in [`properties`].
#![warn(unreachable_pub)]

pub mod bucket;
pub mod state;

pub mod action;
mod claimant;
pub mod model;
mod owner;
mod upkeep;

pub mod bugs;
pub mod check;
pub mod properties;
pub mod runs;
