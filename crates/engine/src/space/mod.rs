//! Space: free and reserved blocks, and freed ones that wait for readers; groups that are being emptied, serve one
//! bucket, or were returned to the device; and the growth of the file ahead of need.

pub(crate) mod closed;
pub(crate) mod discarded;
pub(crate) mod growth;
pub(crate) mod manager;
pub(crate) mod own_space;
