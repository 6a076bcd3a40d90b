//! Packed runs: small values that rode in the log are stored back to back, byte by byte, in runs of up to 1
//! MiB (`docs/format/packed.md`, `docs/adr/2026-11-21-packed-runs.md`).
//!
//! A run belongs to one tablet. The tablet's own tree holds the run's liveness, under reserved keys after all objects.
//! The publish that kills or moves values also changes the liveness, so it is exact after every crash. A run without
//! live values is freed like all space that an apply frees (R9, R10); a run with too few live bytes is rewritten by an
//! apply (R13).
//!
//! Reading order: [`format`](mod@format) (the bytes), [`pack`] (from values to runs); then in the engine `gc/liveness.rs` (the live values),
//! `gc/rewrite.rs` (the choice of runs to rewrite), `recovery/recount.rs` (check and repair).

mod format;
mod pack;

pub use format::{
    Footer, FooterItem, RUN_BLOCKS_MAX, RUN_KEY_BYTES, RunEntry, RunOwner, TAIL_BYTES, Totals,
    block_of_run_key, put_footer, put_item, read_footers, run_key, run_keys_end,
};
pub use pack::{PackedRun, Packer, Pending, packs, run_blocks_max};
