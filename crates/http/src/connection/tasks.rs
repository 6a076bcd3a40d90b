//! Runs the requests of one connection on the connection's task.
//!
//! hyper asks for a task for each request. A task of the runtime would cost its start, a wake-up and, on several cores, a move to another
//! one; and the writes of requests that arrived at once would reach the committer one by one. Here the task that reads the connection runs
//! its requests as well, hands the writes of a turn to the store at once ([`HttpProtocol::turn`]), and corks the socket for long answers. So a connection is the
//! work of one core at a time; clients that need more of the server open several.

use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use rustix::net::sockopt::set_tcp_cork;

use crate::capacity::{Capacity, OpenConnection};
use crate::flow::ConnectionFlow;
use crate::serve::{HttpProtocol, Waiters};

/// The most requests that finish before their answers leave. A client with many requests in flight and its server fall into step if all
/// answers leave together: one works while the other waits.
const ANSWERS_A_ROUND: usize = 16;

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The cork of a connection's socket: while it is in, writes leave in full segments only. Without a socket it does nothing.
///
/// A long answer is several frames, and HTTP/2 writes each of them separately. Without a cork each write is a segment: the system takes
/// each segment through its layers, and the peer's, and wakes the peer for it.
#[derive(Debug, Default)]
pub(super) struct Cork {
    /// The same socket as the connection's.
    socket: Option<OwnedFd>,
    is_in: bool,
}

impl Cork {
    /// A cork for `socket`, which is out.
    pub(super) fn of(socket: &impl AsFd) -> Self {
        // Works without a cork if no descriptors are left.
        Self { socket: socket.as_fd().try_clone_to_owned().ok(), is_in: false }
    }

    fn put_in(&mut self) {
        self.set(true);
    }

    /// The rest leaves now.
    fn take_out(&mut self) {
        self.set(false);
    }

    fn set(&mut self, is_in: bool) {
        if self.is_in == is_in {
            return;
        }
        self.is_in = is_in;
        if let Some(socket) = &self.socket {
            // The system takes a cork out by itself after a fifth of a second.
            let _ = set_tcp_cork(socket, is_in);
        }
    }
}

/// Takes tasks from hyper. Clones share the tasks.
#[derive(Clone, Default)]
pub(super) struct Spawner(Arc<Mutex<Vec<Task>>>);

impl Spawner {
    fn take(&self) -> Vec<Task> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Spawner {
    fn execute(&self, task: F) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Box::pin(task));
    }
}

/// A connection with its requests. At its end the remaining requests are dropped, because they cannot be answered any
/// more.
pub(super) struct WithTasks<C> {
    connection: C,
    protocol: Arc<dyn HttpProtocol>,
    open: OpenConnection,
    flow: Arc<ConnectionFlow>,
    cork: Cork,
    spawner: Spawner,
    running: FuturesUnordered<Task>,
}

impl<C: Future + Unpin> WithTasks<C> {
    /// `connection`, whose executor is `spawner`, with requests of `protocol`; `flow` and `cork` belong to the connection.
    pub(super) fn new(
        connection: C,
        spawner: Spawner,
        protocol: Arc<dyn HttpProtocol>,
        capacity: &Capacity,
        flow: Arc<ConnectionFlow>,
        cork: Cork,
    ) -> Self {
        let open = capacity.open();
        Self { connection, protocol, open, flow, cork, spawner, running: FuturesUnordered::new() }
    }

    /// The connection itself.
    pub(super) fn connection(&mut self) -> &mut C {
        &mut self.connection
    }

    fn turn(&mut self, context: &mut Context<'_>) -> Poll<C::Output> {
        loop {
            if let Poll::Ready(ended) = Pin::new(&mut self.connection).poll(context) {
                return Poll::Ready(ended);
            }
            let begun = self.spawner.take();
            let has_begun = !begun.is_empty();
            self.running.extend(begun);
            self.flow.sending().begin_round();
            let Self { protocol, open, running, flow, .. } = self;
            let mut run = || {
                let mut answers = 0;
                while let Poll::Ready(Some(())) = running.poll_next_unpin(context) {
                    answers += 1;
                    if answers == ANSWERS_A_ROUND || flow.sending().is_over() {
                        break;
                    }
                }
                answers
            };
            let mut answers = 0;
            protocol.turn(&mut || {
                answers = run();
                // An answer that is ready must not wait for a flush.
                if answers == 0 && open.is_alone() { Waiters::One } else { Waiters::Several }
            });
            if answers == 0 {
                // The answers of the writes that it committed.
                protocol.gather(&mut || answers = run());
            }
            if self.flow.sending().take_is_long() {
                self.cork.put_in();
            }
            // The answers of this round leave with the next poll of the connection, in one write, before other requests are run: so the
            // other side has work meanwhile.
            if answers == 0 && !has_begun {
                return Poll::Pending;
            }
        }
    }
}

impl<C> Drop for WithTasks<C> {
    /// The tasks that the connection spawned in its last poll were not taken yet. Each task holds the spawner, so only this frees them.
    fn drop(&mut self) {
        drop(self.spawner.take());
    }
}

impl<C: Future + Unpin> Future for WithTasks<C> {
    type Output = C::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<C::Output> {
        self.flow.begin_turn();
        let ended = self.turn(context);
        self.cork.take_out();
        ended
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Waker;

    use futures_util::future::poll_fn;
    use hyper::rt::Executor;
    use rustix::net::sockopt::tcp_cork;
    use shoal_storekit::StoreKit;

    use super::*;
    use crate::flow::Flow;
    use crate::limits::ServerLimits;
    use crate::testing::Echo;

    /// A connection that spawns two tasks in its first poll, and completes when both have: the turn that spawns them also runs them, and
    /// polls the connection again.
    #[test]
    fn turn_runs_spawned_tasks_and_polls_again() {
        let (spawner, ended) = (Spawner::default(), Arc::new(AtomicUsize::new(0)));
        let (mut looks, begin, seen) = (0, spawner.clone(), Arc::clone(&ended));
        let connection = poll_fn(move |_| {
            looks += 1;
            for _ in 0..if looks == 1 { 2 } else { 0 } {
                let ended = Arc::clone(&seen);
                begin.execute(async move {
                    ended.fetch_add(1, Ordering::Relaxed);
                });
            }
            if seen.load(Ordering::Relaxed) == 2 { Poll::Ready(looks) } else { Poll::Pending }
        });
        let mut all = WithTasks::new(
            connection,
            spawner,
            Arc::new(Echo::default()),
            &Capacity::new(&ServerLimits::default()),
            Flow::new(0, 0).connection(),
            Cork::default(),
        );
        let mut context = Context::from_waker(Waker::noop());
        assert_eq!(Pin::new(&mut all).poll(&mut context), Poll::Ready(2));
        assert_eq!(ended.load(Ordering::Relaxed), 2);
    }

    /// All requests of the only connection write: they share commits, and are answered in several rounds.
    #[test]
    fn turn_of_writes_shares_commits() {
        let (spawner, ended) = (Spawner::default(), Arc::new(AtomicUsize::new(0)));
        let store = StoreKit::new(128 << 10).with_cache(64 << 20).in_memory();
        let (mut looks, begin, seen) = (0, spawner.clone(), Arc::clone(&ended));
        let writes = store.clone();
        let connection = poll_fn(move |_| {
            looks += 1;
            for number in 0..if looks == 1 { 20 } else { 0 } {
                let (ended, store) = (Arc::clone(&seen), writes.clone());
                begin.execute(async move {
                    let key = shoal_engine::ObjectKey::new("b", format!("{number}").as_bytes()).unwrap();
                    let value = shoal_buffer::Buffer::from(b"value".to_vec());
                    store.put(&key, value, shoal_engine::PutOptions::default()).await.unwrap();
                    ended.fetch_add(1, Ordering::Relaxed);
                });
            }
            if seen.load(Ordering::Relaxed) == 20 { Poll::Ready(looks) } else { Poll::Pending }
        });
        let mut all = WithTasks::new(
            connection,
            spawner,
            Arc::new(Echo { store: Some(store.clone()), ..Echo::default() }),
            &Capacity::new(&ServerLimits::default()),
            Flow::new(0, 0).connection(),
            Cork::default(),
        );
        let before = store.stat().batches;
        let rounds = 20_usize.div_ceil(ANSWERS_A_ROUND);
        let mut context = Context::from_waker(Waker::noop());
        let looks = loop {
            match Pin::new(&mut all).poll(&mut context) {
                Poll::Ready(looks) => break looks,
                Poll::Pending => std::thread::yield_now(),
            }
        };
        let batches = store.stat().batches - before;
        assert!(looks > rounds, "{looks} rounds");
        // One batch, unless this thread loses its core and the store's thread commits a part of them.
        assert!(batches < 20, "{batches} batches: each write was committed alone");
    }

    #[test]
    fn cork_sets_socket_option() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut cork = Cork::of(&stream);
        for is_in in [true, true, false, false, true] {
            cork.set(is_in);
            assert_eq!(tcp_cork(&stream).unwrap(), is_in);
        }
        Cork::default().put_in();
    }
}
