//! The whole store against oracles and models, through its public interface. All of it is one program, because each further program would
//! be linked again, in three profiles (`cargo test`, the laboratory's, and with injected bugs).
//!
//! [`common`] has the shared helpers. The work of a store: [`model`], [`listing`], [`updating`], [`clocks`], [`expired`],
//! [`attributes`], [`buckets`], [`write_batches`], [`transactions`], [`packed`], [`relocation`], [`gathering`], [`layers`], [`unsettled`], [`full`], [`identity`], [`uploads`], [`uploads_crash`]; its threads: [`concurrency`],
//! [`histories`], [`panics`]. The store after a clean stop: [`closing`]; after a crash: [`crash`], [`explore`]; on failing devices:
//! [`faults`]; with wrong bytes: [`damage`], [`flips`], [`past_damage`], [`damage_work`], [`hostile`], [`scrub`], [`repair`]; from other
//! programs: [`golden`], [`upgrade`], [`format_refusal`]; on a device that cannot be written: [`read_only`]; on one that two
//! servers have: [`shared_device`]. Under writes: [`snapshots`]. Read by an archive: [`archived`].

// Clippy's exception for tests does not apply to the helpers of an integration test.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod archived;
mod attributes;
mod buckets;
mod changes;
mod clocks;
mod closing;
mod common;
mod concurrency;
mod crash;
mod damage;
mod damage_work;
mod expired;
mod explore;
mod faults;
mod flips;
mod format_refusal;
mod full;
mod gathering;
mod golden;
mod growing;
mod growing_open;
mod histories;
mod hostile;
mod identity;
mod layers;
mod listing;
mod losses;
mod map_room;
mod model;
mod no_room;
mod packed;
mod panics;
mod past_damage;
mod read_only;
mod relocation;
mod repair;
mod repair_work;
mod scrub;
mod shared_device;
mod snapshots;
mod transactions;
mod unsettled;
mod updating;
mod upgrade;
mod uploads;
mod uploads_crash;
mod write_batches;
