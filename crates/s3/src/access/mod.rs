//! Access that a bucket's configuration decides: canned ACLs, CORS, and the policy subset.

pub mod acl;
pub mod cors;
pub mod documents;
pub mod policy;
pub mod policy_action;
