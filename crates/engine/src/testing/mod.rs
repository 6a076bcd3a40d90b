//! For tests only: fixtures, hostile input, models.

#[cfg(test)]
mod error_path_tests;
#[cfg(test)]
pub(crate) mod fixtures;
#[cfg(any(test, fuzzing))]
pub mod hostile;
#[cfg(test)]
mod models;
#[cfg(test)]
mod refusal_tests;
#[cfg(test)]
mod warm_tests;
