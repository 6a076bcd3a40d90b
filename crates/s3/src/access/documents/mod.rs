//! The XML documents about access, which are written again for their GET.

pub mod acl;
pub mod cors;
