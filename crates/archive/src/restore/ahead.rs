//! Work that is done ahead, on the runtime's threads, and taken in order.

use std::collections::VecDeque;
use std::future::Future;

use tokio::task::{JoinError, JoinHandle};

/// Results in order. The tasks are stopped when it is dropped.
pub(super) struct Ahead<T> {
    tasks: VecDeque<JoinHandle<T>>,
}

impl<T: Send + 'static> Ahead<T> {
    pub(super) fn new() -> Self {
        Self { tasks: VecDeque::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Starts `work` after all others.
    pub(super) fn push(&mut self, work: impl Future<Output = T> + Send + 'static) {
        self.tasks.push_back(tokio::spawn(work));
    }

    /// The result of the oldest one; `None` if there is none.
    pub(super) async fn next(&mut self) -> Option<T> {
        let task = self.tasks.pop_front()?;
        match task.await.map_err(JoinError::into_panic) {
            Ok(result) => Some(result),
            // Nobody aborts a task while it can be awaited.
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

impl<T> Drop for Ahead<T> {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}
