//! Features that the superblocks name before the first record that needs them.
//!
//! A program that does not know a feature refuses the store by the flag in the newest superblock. If that superblock is
//! damaged, the program takes the newest of the others: all copies in both slots name a feature before a record that needs it is queued.
//! After an interrupted publish one copy of a slot may be older than the other one, so each opening names a feature again before it queues
//! such a record: two publishes, which write all copies.

use shoal_base::sync::atomic::{AtomicU32, Ordering};
use shoal_common::error::Result;
use shoal_common::event::Token;
use shoal_common::injected_bug::{Bug, injected};
use shoal_image::features::{ATTRIBUTES, UPLOADS};
use shoal_image::superblock::Superblock;
use shoal_log::run_to_end;

use crate::checkpoint::checkpointer::Checkpointer;
use crate::checkpoint::publish::Publication;

/// The features of attributes and uploads, as flags.
pub struct NamedFeatures {
    /// The opening found them.
    found: u32,
    /// All copies of the superblock name them.
    named: AtomicU32,
    /// The turn of the one writer that publishes.
    turn: Token<()>,
}

impl NamedFeatures {
    /// The state after an opening that found this superblock.
    pub fn of(superblock: &Superblock) -> Self {
        Self { found: superblock.features.incompatible, named: AtomicU32::new(0), turn: Token::default() }
    }
}

impl Checkpointer {
    /// Returns true if there may be records or entries with attributes.
    pub fn has_attributes(&self) -> bool {
        self.has_feature(ATTRIBUTES)
    }

    /// Returns true if there may be uploads, or objects that they made.
    pub fn has_uploads(&self) -> bool {
        self.has_feature(UPLOADS)
    }

    fn has_feature(&self, feature: u32) -> bool {
        (self.features.found | self.features.named.load(Ordering::Acquire)) & feature != 0
    }

    /// Names the attributes in all copies of the superblock, unless this was done since the opening. Records with attributes may be queued
    /// after it.
    ///
    /// # Errors
    /// As [`publish`](Self::publish): no such record may be queued.
    pub fn name_attributes(&self) -> Result<()> {
        if injected(Bug::AttributesNotNamed) {
            return Ok(());
        }
        self.name_feature(ATTRIBUTES)
    }

    /// The same for uploads, their parts and the objects that they make.
    ///
    /// # Errors
    /// As [`name_attributes`](Self::name_attributes).
    pub fn name_uploads(&self) -> Result<()> {
        self.name_feature(UPLOADS)
    }

    fn name_feature(&self, feature: u32) -> Result<()> {
        let is_named = || self.features.named.load(Ordering::Acquire) & feature != 0;
        if is_named() {
            return Ok(());
        }
        run_to_end(async {
            let _turn = self.features.turn.take().await;
            if is_named() {
                return Ok(());
            }
            for _slot in 0..2 {
                self.publish(Publication { features: feature, ..Publication::default() }).await?;
            }
            self.features.named.fetch_or(feature, Ordering::Release);
            Ok(())
        })
    }
}
