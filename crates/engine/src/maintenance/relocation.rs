//! Pausing, resuming and stepping relocation (`gc/relocate`).

use shoal_base::sync::atomic::Ordering;
use shoal_common::error::Result;
use shoal_log::run_to_end;
use shoal_tablets::gc::relocate::Progress;

use crate::store::Store;
use crate::store::threads::Duty;

impl Store {
    /// Stops relocation and the tidying of packed runs in the background until it is resumed; a step in progress finishes first. A write
    /// that lacks space still makes some.
    pub fn pause_relocation(&self) {
        self.0.checkpointer.move_limits.paused.store(true, Ordering::Release);
        self.0.space.open_closed();
    }

    /// Resumes relocation.
    pub fn resume_relocation(&self) {
        self.0.checkpointer.move_limits.paused.store(false, Ordering::Release);
        if let Some(worker) = &self.0.maintenance.worker {
            worker.wake(Duty::Move);
        }
    }

    /// Does one bounded step of due work: emptying groups, tidying packed runs, discarding; without a rate limit, and not while paused.
    /// Returns false if nothing is due. For a store without threads, at a time of the owner's choice.
    ///
    /// # Errors
    /// As the device. A failed write poisons the store.
    pub async fn move_step(&self) -> Result<bool> {
        self.0.check_writable()?;
        let progress = run_to_end(self.0.relocator.step())?;
        Ok(progress == Progress::Worked)
    }
}
