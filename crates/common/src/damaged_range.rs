//! The wording for a range of keys whose contents are unknown.

use shoal_base::list::DamagedRange;

use crate::error::Error;
use crate::key::name;

/// The range as text. Its keys are encoded.
#[must_use]
pub fn words(range: &DamagedRange) -> String {
    let to = range.to.as_deref().map_or("the end".into(), name);
    let from = if range.from.is_empty() { "the first one".into() } else { name(&range.from) };
    format!("the keys of tablet {} from {from} up to {to}", range.tablet)
}

/// The error for a read of a key in the range.
#[must_use]
pub fn error(range: &DamagedRange) -> Error {
    let what = format!(
        "it is not known whether the object exists, as {} cannot be read ({}); put or delete it without a condition, or repair \
         the store (`shoal check --repair`); the page is",
        words(range),
        range.why
    );
    Error::Corrupt { what, block: range.block }
}
