//! Threads that serve connections, each with a runtime of its own: what a connection does stays on one core, and no task is
//! handed from one thread to another.

use std::io;
use std::thread::JoinHandle;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// The threads. They end when this is dropped, with what runs on them.
pub(crate) struct Workers {
    threads: Vec<Worker>,
    next: usize,
}

struct Worker {
    handle: Handle,
    /// Dropped to end it.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Workers {
    /// Starts `count` threads.
    pub(crate) fn start(count: usize) -> io::Result<Self> {
        let threads = (0..count).map(Worker::start).collect::<io::Result<_>>()?;
        Ok(Self { threads, next: 0 })
    }

    /// The thread for the next connection, in turn; none where there are none.
    pub(crate) fn next(&mut self) -> Option<&Handle> {
        self.next = (self.next + 1).checked_rem(self.threads.len())?;
        self.threads.get(self.next).map(|worker| &worker.handle)
    }
}

impl Worker {
    fn start(number: usize) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new().name(format!("grpc-{number}")).spawn(move || {
            // An error means that there is nobody left who would serve.
            let _ = runtime.block_on(stopped);
        })?;
        Ok(Self { handle, stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for worker in &mut self.threads {
            drop(worker.stop.take());
        }
        for worker in &mut self.threads {
            if worker.thread.take().is_some_and(|thread| thread.join().is_err()) {
                tracing::error!("a thread of the gRPC face panicked");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_goes_to_the_threads_in_turn_and_ends_with_them() {
        let mut workers = Workers::start(2).unwrap();
        let (names, seen) = std::sync::mpsc::channel();
        for _ in 0..4 {
            let names = names.clone();
            workers.next().unwrap().spawn(async move {
                names.send(std::thread::current().name().map(str::to_owned)).unwrap();
                // It is given up where its thread ends.
                std::future::pending::<()>().await;
            });
        }
        let mut seen: Vec<String> = (0..4).map(|_| seen.recv().unwrap().unwrap()).collect();
        seen.sort();
        assert_eq!(seen, ["grpc-0", "grpc-0", "grpc-1", "grpc-1"]);
        drop(workers);
        assert!(Workers::start(0).unwrap().next().is_none());
    }
}
