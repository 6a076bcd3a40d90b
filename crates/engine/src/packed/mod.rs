//! Packed runs: small values that rode in the log lie side by side, byte by byte, in runs of up to 1 MiB
//! (`docs/format/packed.md`, `docs/adr/2026-11-21-packed-runs.md`).
//!
//! A run belongs to one tablet. How much of it is alive stands in the tablet's own tree, under reserved keys behind all
//! objects, and is changed by the same publish that kills or moves the values: so it is exact after every crash. A run in which
//! nothing is alive is freed like anything else that an apply frees (R9, R10); one in which too little is alive is
//! rewritten by an apply (R13).
//!
//! Reading order: [`format`](mod@format) (the bytes), [`pack`] (from values to runs), [`account`] (what is alive), [`clean`]
//! (which runs are rewritten, and what of them), [`count`] (check and repair).

mod account;
mod clean;
mod count;
mod format;
mod pack;

pub(crate) use account::{Account, AccountOps};
pub(crate) use clean::{LiveValue, MoveStep, Moves, Pressure, TidyState, Victim};
pub(crate) use count::Count;
#[cfg(any(test, fuzzing))]
pub(crate) use format::RunEntry;
pub(crate) use format::{Footer, Owner, RESERVED, Totals, is_reserved, read_footer};
#[cfg(test)]
pub(crate) use format::{put_footer, put_item, run_key};
pub(crate) use pack::{Packer, Pending, packs, run_blocks_max};
