//! One file for each command: its arguments and its work.

pub(crate) mod archive;
pub(crate) mod backup;
pub(crate) mod bench;
pub(crate) mod bucket;
pub(crate) mod check;
pub(crate) mod config;
pub(crate) mod cp;
pub(crate) mod du;
pub(crate) mod export;
pub(crate) mod format;
pub(crate) mod get;
pub(crate) mod grow;
pub(crate) mod import;
pub(crate) mod key;
pub(crate) mod ls;
pub(crate) mod man;
pub(crate) mod mv;
pub(crate) mod put;
pub(crate) mod relocation;
pub(crate) mod report;
pub(crate) mod restore;
pub(crate) mod rm;
pub(crate) mod serve;
pub(crate) mod space;
pub(crate) mod stat;
pub(crate) mod top;
