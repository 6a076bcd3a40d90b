//! The permissions that operations ask for. One model for all frontends will replace this enum.

/// A permission on a bucket and a prefix of its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessAction {
    /// Get, head, attributes and tags of objects.
    Read,
    /// Lists objects, uploads and parts; heads a bucket.
    List,
    /// Put, copy to, multipart uploads, tags.
    Write,
    /// Deletes objects.
    Delete,
    /// Creates, deletes and configures buckets.
    Bucket,
    /// Figures of the store, and its maintenance.
    Admin,
}
