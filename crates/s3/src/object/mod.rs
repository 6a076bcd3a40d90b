//! Objects as S3 sees them: ETags, conditions, ranges, tags, parts, and the extended metadata that stores them.

pub mod conditions;
pub mod etag;
pub mod given;
pub mod metadata;
pub mod post;
pub mod range;
pub mod tags;
pub mod upload;
