//! Objects as S3 sees them: ETags, conditions, ranges, tags, parts, and the extended metadata that stores them; and the operations
//! on objects.

pub(crate) mod change;
pub mod conditions;
pub(crate) mod copy;
pub(crate) mod delete;
pub mod documents;
pub mod etag;
pub(crate) mod get;
pub mod given;
pub mod metadata;
pub mod post;
pub(crate) mod put;
pub mod range;
pub mod tags;
pub(crate) mod write;
