//! Stores: [`file`](mod@file) creates and opens the data file, [`growing`] is its maximum size, [`buckets`] has hints about buckets,
//! [`copying`] copies and moves objects, [`whole_bucket`] guards commands that change every object of a bucket.

pub(crate) mod buckets;
pub(crate) mod copying;
pub(crate) mod file;
pub(crate) mod growing;
pub(crate) mod whole_bucket;
