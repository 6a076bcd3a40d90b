//! Features that the superblocks name before the first record that needs them.
//!
//! A program that does not know a feature refuses the store by the flag in the newest superblock. If that superblock is
//! damaged, the program takes the newest of the others: all copies in both slots name a feature before a record that needs it is queued.
//! After an interrupted publish one copy of a slot may be older than the other one, so each opening names a feature again before it queues
//! such a record: two publishes, which write all copies.

use shoal_base::sync::atomic::{AtomicBool, Ordering};
use shoal_common::error::Result;
use shoal_common::event::Token;
use shoal_common::injected_bug::{Bug, injected};
use shoal_image::features::ATTRIBUTES;
use shoal_image::superblock::Superblock;
use shoal_log::run_to_end;

use crate::checkpoint::checkpointer::Checkpointer;
use crate::checkpoint::publish::Publication;

/// The feature of attributes.
pub struct NamedFeatures {
    /// The opening found it.
    was_found: bool,
    /// All copies of the superblock name it.
    is_named: AtomicBool,
    /// The turn of the one writer that publishes.
    turn: Token<()>,
}

impl NamedFeatures {
    /// The state after an opening that found this superblock.
    pub fn of(superblock: &Superblock) -> Self {
        let was_found = superblock.features.incompatible & ATTRIBUTES != 0;
        Self { was_found, is_named: AtomicBool::new(false), turn: Token::default() }
    }
}

impl Checkpointer {
    /// Returns true if there may be records or entries with attributes.
    pub fn has_attributes(&self) -> bool {
        self.features.was_found || self.features.is_named.load(Ordering::Acquire)
    }

    /// Names the attributes in all copies of the superblock, unless this was done since the opening. Records with attributes may be queued
    /// after it.
    ///
    /// # Errors
    /// As [`publish`](Self::publish): no such record may be queued.
    pub fn name_attributes(&self) -> Result<()> {
        if self.features.is_named.load(Ordering::Acquire) || injected(Bug::AttributesNotNamed) {
            return Ok(());
        }
        run_to_end(async {
            let _turn = self.features.turn.take().await;
            if self.features.is_named.load(Ordering::Acquire) {
                return Ok(());
            }
            for _slot in 0..2 {
                self.publish(Publication { features: ATTRIBUTES, ..Publication::default() }).await?;
            }
            self.features.is_named.store(true, Ordering::Release);
            Ok(())
        })
    }
}
