//! Imports and exports: objects move between a store and folders, tars and Redis.
//!
//! The crate takes options and reports results; it has no command line, no terminal and no exit codes. `shoal import` and
//! `shoal export` are its users, and so is every command that works on a server and on a data file alike.
//!
//! # Reading order
//!
//! 1. [`objects`]: the objects of a store, on a server or embedded, with one interface.
//! 2. [`attributes`]: the attributes that a file and its object share.
//! 3. [`report`]: the counts, the failures and the stop of a transfer; [`filter`]: the keys that take part.
//! 4. [`work`]: one thread plans, several work.
//! 5. [`import`] and [`export`]: the two directions, each with its rules.
//! 6. [`tree`], [`tarball`], [`redis`]: folders, tars, servers of the Redis protocol.
//! 7. [`copying`] (hard links become copies) and [`text`] (keys, numbers and errors for people).
//!
//! # An import
//!
//! The caller makes an [`Import`](import::Import) and calls the method of its source on a thread that may block.
//!
//! - **A folder** ([`Import::folder`](import::Import::folder)). The planner walks the folder in the order of the keys, beside a
//!   listing of the store, so that one page of the listing replaces up to 1,000 requests. Files that the store has already, by
//!   size, type, mode, time and extras, are `unchanged`. The others go in batches to the workers. A worker reads the files of
//!   its batch and puts them with one call; it reads and puts a large file in pieces. A file that changes during the read
//!   fails, and is not stored.
//! - **A tar** ([`Import::tar`](import::Import::tar)) and **Redis** ([`Import::redis`](import::Import::redis)). The thread that
//!   reads the source fills the batches itself, because the source is read once and in order. Puts of one key keep their order,
//!   so the last entry of a name wins.
//!
//! # An export
//!
//! The caller makes an [`Export`](export::Export), which lists its objects page by page in the order of the keys.
//!
//! - **A folder** ([`FolderExport`](tree::unload::FolderExport)). The planner judges each key, opens the folders on its path
//!   relative to their parents, and skips files that are there already. Workers get the objects of a batch with one call and
//!   write each under a temporary name, with mode, time and extras, before the rename. Dropping the last reference to a folder
//!   restores its mode and time.
//! - **A tar** ([`TarExport`](tarball::unload::TarExport)). Batches are read ahead and written in the order of the keys.
//!
//! # The report
//!
//! [`Counts`](report::Counts) has the fate of each item. A failure is an event at once and part of the
//! [`TransferOutcome`](report::TransferOutcome); the transfer continues. It stops early if all further requests would fail the
//! same way, if the disk is full, or if the destination cannot represent an object and the transfer is not lossy.
//!
//! # Interruption and continuation
//!
//! [`TransferReport::stop`](report::TransferReport::stop) stops a transfer in order, from any thread: the planner returns,
//! workers finish their requests in flight, partial large values are dropped. A killed process leaves the same state, and
//! temporary files.
//!
//! There is no journal. Every stored object and every written file is complete, so the same transfer, run again, continues:
//! between a store and a folder it skips unchanged files. A tar and Redis are read from the start again, and each object is put
//! again with the same result. A partial tar of an export is useless; the caller renames it
//! once it is complete.

pub mod attributes;
pub mod copying;
pub mod export;
pub mod filter;
pub mod import;
pub mod objects;
pub mod redis;
pub mod report;
pub mod support_report;
pub mod tarball;
pub mod text;
pub mod tree;
pub mod work;
