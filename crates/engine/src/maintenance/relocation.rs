//! Pausing, resuming and stepping relocation (`checkpoint/relocate`).

use shoal_base::sync::atomic::Ordering;
use shoal_common::error::Result;

use crate::gc::relocate::Progress;
use crate::log::driver::run_to_end;
use crate::store::Store;
use crate::store::worker::Duty;

impl Store {
    /// Stops relocation and the tidying of packed runs in the background until it is resumed; a step in progress ends
    /// first. A write that lacks space still makes some.
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

    /// Does one bounded step of due work: emptying groups, tidying packed runs, discarding; without a rate limit, and
    /// not while paused. Returns false if nothing is due. For a store without threads of its own, whose owner has time.
    ///
    /// # Errors
    /// As the device. A failed write poisons the store.
    pub async fn move_step(&self) -> Result<bool> {
        self.0.check_writable()?;
        let progress = run_to_end(self.0.relocator.step())?;
        Ok(progress == Progress::Worked)
    }
}
