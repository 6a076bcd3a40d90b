//! How many connections there are, and who makes room: a connection whose other side has not shown that it may come in has little
//! time for that, and goes first where a new one finds no room. So whoever has credentials gets in, however many others there are.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use futures_util::future::poll_fn;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::flow::deadline_after;

/// A connection whose time is over is told so in the words of its protocol; so much later it is cut.
const FAREWELL_MAX: Duration = Duration::from_secs(1);

/// All connections.
pub(crate) struct Admission {
    connections_max: usize,
    unauthenticated_max: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Connections, without those that were told to go.
    connections: usize,
    next: u64,
    /// Those that have shown nothing yet, by their number: the oldest first. After other credentials came into force all of them.
    unauthenticated: BTreeMap<u64, Arc<Entry>>,
    authenticated: BTreeMap<u64, Arc<Entry>>,
}

#[derive(Debug, Default)]
struct Entry {
    /// Changed under the lock of the state, as the next one.
    is_authenticated: AtomicBool,
    /// It was authenticated once: it may stay as long as nobody needs its place.
    may_stay: AtomicBool,
    is_evicted: AtomicBool,
    evicted: Notify,
}

/// What came of a new connection.
pub(crate) struct Entered {
    /// None where there is no room: all others have shown credentials.
    pub(crate) place: Option<Arc<Place>>,
    /// Whether another one makes room for it.
    pub(crate) evicts: bool,
}

/// Why a connection has to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaves {
    /// Another one came.
    Evicted,
    /// It showed nothing in time.
    Overdue,
}

impl Admission {
    pub(crate) fn new(connections_max: usize, unauthenticated_max: Duration) -> Arc<Self> {
        Arc::new(Self { connections_max, unauthenticated_max, state: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a new connection, where there is room or somebody can make some.
    pub(crate) fn enter(self: &Arc<Self>) -> Entered {
        let mut state = self.lock();
        let evicts = state.connections >= self.connections_max && state.evict();
        if state.connections >= self.connections_max {
            return Entered { place: None, evicts };
        }
        let (number, entry) = (state.next, Arc::<Entry>::default());
        state.next += 1;
        state.connections += 1;
        state.unauthenticated.insert(number, Arc::clone(&entry));
        let deadline = deadline_after(self.unauthenticated_max);
        Entered { place: Some(Arc::new(Place { all: Arc::clone(self), number, entry, deadline })), evicts }
    }

    /// Other credentials are in force: whoever showed some before has not shown these.
    pub(crate) fn doubt_all(&self) {
        let mut state = self.lock();
        let all = std::mem::take(&mut state.authenticated);
        all.values().for_each(|entry| entry.is_authenticated.store(false, Ordering::Relaxed));
        state.unauthenticated.extend(all);
    }

    /// Tells up to `count` of those that have shown nothing to go, the oldest first; says how many.
    pub(crate) fn evict(&self, count: usize) -> usize {
        let mut state = self.lock();
        (0..count).take_while(|_| state.evict()).count()
    }
}

impl State {
    fn evict(&mut self) -> bool {
        let Some((_, entry)) = self.unauthenticated.pop_first() else { return false };
        self.connections -= 1;
        entry.is_evicted.store(true, Ordering::Relaxed);
        entry.evicted.notify_one();
        true
    }
}

/// A connection among all of them, as long as this lives.
pub(crate) struct Place {
    all: Arc<Admission>,
    number: u64,
    entry: Arc<Entry>,
    deadline: Instant,
}

impl Place {
    /// Its other side has shown that it may come in.
    pub(crate) fn set_authenticated(&self) {
        // Relaxed: only how long it may stay follows from this.
        if self.entry.is_authenticated.load(Ordering::Relaxed) {
            return;
        }
        let mut state = self.all.lock();
        if let Some(entry) = state.unauthenticated.remove(&self.number) {
            entry.is_authenticated.store(true, Ordering::Relaxed);
            entry.may_stay.store(true, Ordering::Relaxed);
            state.authenticated.insert(self.number, entry);
        }
    }

    fn may_stay(&self) -> bool {
        self.entry.may_stay.load(Ordering::Relaxed)
    }

    /// Ends when it should say farewell, as its other side has shown nothing in time.
    pub(crate) async fn overdue(&self) {
        sleep_until(self.deadline).await;
        if self.may_stay() {
            std::future::pending().await
        }
    }

    /// Runs `connection` to its end, or until it has to go.
    ///
    /// # Errors
    /// Why it was cut, or ended because of that.
    pub(crate) async fn hold<T>(&self, connection: impl Future<Output = T>) -> Result<T, Leaves> {
        let mut connection = std::pin::pin!(connection);
        let mut leaves = std::pin::pin!(async {
            let overdue = async {
                sleep_until(self.deadline + FAREWELL_MAX).await;
                if self.may_stay() {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                () = self.entry.evicted.notified() => Leaves::Evicted,
                () = overdue => Leaves::Overdue,
            }
        });
        let mut is_awaited = false;
        poll_fn(|context| {
            if let Poll::Ready(ended) = connection.as_mut().poll(context) {
                let is_overdue = !self.may_stay() && deadline_after(Duration::ZERO) >= self.deadline;
                return Poll::Ready(if is_overdue { Err(Leaves::Overdue) } else { Ok(ended) });
            }
            // Whoever evicts wakes this task, once it has been here.
            let stays = self.may_stay() && !self.entry.is_evicted.load(Ordering::Relaxed);
            if is_awaited && stays {
                return Poll::Pending;
            }
            is_awaited = true;
            leaves.as_mut().poll(context).map(Err)
        })
        .await
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.all.lock();
        if !self.entry.is_evicted.load(Ordering::Relaxed) {
            state.connections -= 1;
            state.unauthenticated.remove(&self.number);
            state.authenticated.remove(&self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use futures_util::FutureExt;

    use super::*;

    fn entered(all: &Arc<Admission>) -> Arc<Place> {
        all.enter().place.unwrap()
    }

    #[tokio::test]
    async fn the_oldest_without_credentials_makes_room() {
        let all = Admission::new(3, Duration::from_secs(3600));
        let [first, second, third] = [entered(&all), entered(&all), entered(&all)];
        first.set_authenticated();
        let fourth = all.enter();
        assert!(fourth.evicts && fourth.place.is_some());
        assert_eq!(second.hold(pending::<()>()).await, Err(Leaves::Evicted));
        // It is gone for the others already, and leaves once.
        drop(second);
        assert_eq!(all.lock().connections, 3);
        assert!(all.enter().evicts, "the third one");
        assert_eq!(third.hold(pending::<()>()).await, Err(Leaves::Evicted));
        assert_eq!(first.hold(std::future::ready(5)).await, Ok(5));
        // The fourth one: what came after it has left already.
        let fourth = fourth.place.unwrap();
        fourth.set_authenticated();
        let fifth = entered(&all);
        fifth.set_authenticated();
        assert!(fifth.may_stay());
        let refused = all.enter();
        assert!(refused.place.is_none() && !refused.evicts, "all have shown something");
        assert_eq!(all.evict(64), 0);
        // Other credentials: the first one shows these, the fourth one does not.
        all.doubt_all();
        first.set_authenticated();
        assert!(all.enter().evicts);
        assert_eq!(fourth.hold(pending::<()>()).await, Err(Leaves::Evicted));
        assert_eq!(all.evict(64), 1, "the fifth one; the new one has left already");
        drop((first, fourth));
        assert!(!all.enter().evicts);
        drop(fifth);
        let state = all.lock();
        assert_eq!((state.connections, state.unauthenticated.len(), state.authenticated.len()), (0, 0, 0));
    }

    #[tokio::test]
    async fn who_shows_nothing_has_little_time() {
        let all = Admission::new(3, Duration::from_millis(10));
        let (silent, known) = (entered(&all), entered(&all));
        let mut held = Box::pin(known.hold(pending::<()>()));
        assert!((&mut held).now_or_never().is_none());
        known.set_authenticated();
        silent.overdue().await;
        assert_eq!(silent.hold(pending::<()>()).await, Err(Leaves::Overdue));
        assert_eq!(
            silent.hold(std::future::ready(5)).await,
            Err(Leaves::Overdue),
            "it ended because of that"
        );
        assert!((&mut held).now_or_never().is_none(), "it may be idle for as long as it likes");
        assert!(known.overdue().now_or_never().is_none());
    }
}
