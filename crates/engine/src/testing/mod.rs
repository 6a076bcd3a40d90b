//! For tests only: fixtures, hostile input, and tests that need a whole store.

#[cfg(test)]
mod error_path_tests;
#[cfg(test)]
mod fence_tests;
#[cfg(test)]
pub(crate) mod fixtures;
#[cfg(any(test, fuzzing))]
pub mod hostile;
#[cfg(test)]
mod refusal_tests;
#[cfg(test)]
mod space_image_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod warm_tests;
