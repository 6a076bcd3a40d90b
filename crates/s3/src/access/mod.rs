//! Access: which caller may do which operation ([`decide`]), by the grants of keys and by the settings of a bucket: canned ACLs, CORS, and the policy subset.

pub mod acl;
pub mod cors;
pub(crate) mod decide;
pub mod documents;
pub mod policy;
pub mod policy_action;
