//! For tests only: pages made by hand, trees in memory, and hostile pages.

#[cfg(any(test, feature = "testing"))]
pub mod fixtures;
#[cfg(any(test, fuzzing, feature = "testing"))]
pub(crate) mod hostile;
#[cfg(test)]
pub(crate) mod memory;
