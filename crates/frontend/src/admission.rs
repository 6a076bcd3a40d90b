//! The number of connections, and the choice of the one that makes room: if a new connection finds no room, one whose peer has
//! not authenticated is closed first. So a caller with credentials gets in, regardless of the number of others.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A connection, as others reach it.
pub trait Connection {
    /// The connection must close: wakes its task, which looks at [`Admitted::is_evicted`]. Called under the lock of all
    /// connections.
    fn wake(&self);
}

impl<T: Connection> Connection for Arc<T> {
    fn wake(&self) {
        T::wake(self);
    }
}

/// All connections of a frontend.
pub struct Admission<C> {
    connections_max: usize,
    state: Mutex<State<C>>,
    evicted: AtomicU64,
    overdue: AtomicU64,
    refused: AtomicU64,
}

/// By their numbers: the oldest first. An evicted connection is in neither.
struct State<C> {
    next: u64,
    /// Connections that have not authenticated; after a change of the credentials, all of them.
    unauthenticated: BTreeMap<u64, Arc<Entry<C>>>,
    authenticated: BTreeMap<u64, Arc<Entry<C>>>,
}

/// A connection of all.
struct Entry<C> {
    /// The flags change under the lock of the state.
    is_authenticated: AtomicBool,
    /// It authenticated once: it may stay while no other needs its place.
    may_stay: AtomicBool,
    is_evicted: AtomicBool,
    connection: C,
}

impl<C: Connection> Admission<C> {
    /// No connections; there may be up to `connections_max`.
    #[must_use]
    pub fn new(connections_max: usize) -> Arc<Self> {
        let state = State { next: 1, unauthenticated: BTreeMap::new(), authenticated: BTreeMap::new() };
        Arc::new(Self {
            connections_max,
            state: Mutex::new(state),
            evicted: AtomicU64::new(0),
            overdue: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State<C>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a new connection, made by `make` from its number; if there is no room, evicts the oldest unauthenticated one.
    /// `None` if all others have shown credentials.
    pub fn enter(self: &Arc<Self>, make: impl FnOnce(u64) -> C) -> Option<Admitted<C>> {
        let most = self.connections_max;
        let mut state = self.lock();
        if state.len() >= most && self.evict_one(&mut state) {
            tracing::warn!(
                "there are {most} connections: the oldest one without credentials is closed for a new one"
            );
        }
        if state.len() >= most {
            drop(state);
            self.refused.fetch_add(1, Ordering::Relaxed);
            tracing::warn!("a new connection is closed: there are {most}, all of them with credentials");
            return None;
        }
        let number = state.next;
        state.next += 1;
        let entry = Arc::new(Entry {
            is_authenticated: AtomicBool::new(false),
            may_stay: AtomicBool::new(false),
            is_evicted: AtomicBool::new(false),
            connection: make(number),
        });
        state.unauthenticated.insert(number, Arc::clone(&entry));
        Some(Admitted { admission: Arc::clone(self), number, entry })
    }

    fn evict_one(&self, state: &mut State<C>) -> bool {
        let Some((_, entry)) = state.unauthenticated.pop_first() else { return false };
        // Set before the wake-up: its task checks the flag when it is woken.
        entry.is_evicted.store(true, Ordering::Release);
        entry.connection.wake();
        self.evicted.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Evicts up to `count` unauthenticated connections, the oldest first.
    pub fn evict(&self, count: usize) {
        let mut state = self.lock();
        (0..count).take_while(|_| self.evict_one(&mut state)).for_each(drop);
    }

    /// The credentials were replaced: no connection has shown the new ones.
    pub fn doubt_all(&self) {
        let mut state = self.lock();
        let all = std::mem::take(&mut state.authenticated);
        all.values().for_each(|entry| entry.is_authenticated.store(false, Ordering::Relaxed));
        state.unauthenticated.extend(all);
    }

    /// The number of connections, and of all since the start.
    pub fn counts(&self) -> (usize, u64) {
        let state = self.lock();
        (state.len(), state.next - 1)
    }

    /// Connections that were closed for new ones before they had shown credentials.
    pub fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    /// Counts a connection that is closed because its peer showed no credentials in time.
    pub fn note_overdue(&self) {
        self.overdue.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of those connections.
    pub fn overdue(&self) -> u64 {
        self.overdue.load(Ordering::Relaxed)
    }

    /// Connections that found no room.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Calls `pick` for each connection that is not evicted, in the order of their numbers, and returns the results.
    pub fn list<T>(&self, mut pick: impl FnMut(u64, &C) -> Option<T>) -> Vec<T> {
        let state = self.lock();
        let mut all: Vec<_> = state.unauthenticated.iter().chain(&state.authenticated).collect();
        all.sort_unstable_by_key(|(number, _)| **number);
        all.into_iter().filter_map(|(number, entry)| pick(*number, &entry.connection)).collect()
    }
}

impl<C> State<C> {
    fn len(&self) -> usize {
        self.unauthenticated.len() + self.authenticated.len()
    }
}

/// An admitted connection, until this is dropped.
pub struct Admitted<C: Connection> {
    admission: Arc<Admission<C>>,
    number: u64,
    entry: Arc<Entry<C>>,
}

impl<C: Connection> Admitted<C> {
    /// The peer has authenticated.
    pub fn set_authenticated(&self) {
        // Relaxed: it only decides how long the connection may stay.
        if self.entry.is_authenticated.load(Ordering::Relaxed) {
            return;
        }
        let mut state = self.admission.lock();
        if let Some(entry) = state.unauthenticated.remove(&self.number) {
            entry.is_authenticated.store(true, Ordering::Relaxed);
            entry.may_stay.store(true, Ordering::Relaxed);
            state.authenticated.insert(self.number, entry);
        }
    }

    /// Returns true if it has no time limit for credentials: it has shown some once.
    #[must_use]
    pub fn may_stay(&self) -> bool {
        self.entry.may_stay.load(Ordering::Relaxed)
    }

    /// Returns true if it must close.
    #[must_use]
    pub fn is_evicted(&self) -> bool {
        self.entry.is_evicted.load(Ordering::Acquire)
    }
}

impl<C: Connection> Deref for Admitted<C> {
    type Target = C;

    fn deref(&self) -> &C {
        &self.entry.connection
    }
}

impl<C: Connection> Drop for Admitted<C> {
    fn drop(&mut self) {
        let mut state = self.admission.lock();
        let gone = (state.unauthenticated.remove(&self.number), state.authenticated.remove(&self.number));
        // Their memory is freed without the lock.
        drop(state);
        drop(gone);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Connection for Woken {
        fn wake(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn the_oldest_without_credentials_makes_room() {
        let admission = Admission::new(3);
        let enter = || admission.enter(|_| Woken::default());
        let (first, second, third) = (enter().unwrap(), enter().unwrap(), enter().unwrap());
        first.set_authenticated();
        let fourth = enter().unwrap();
        assert_eq!([&first, &second, &third, &fourth].map(|it| it.is_evicted()), [false, true, false, false]);
        assert_eq!(second.0.load(Ordering::Relaxed), 1, "it is told once");
        assert_eq!((admission.counts(), admission.evicted()), ((3, 4), 1), "it counts no more");
        drop(second);
        assert_eq!(admission.counts().0, 3);
        third.set_authenticated();
        fourth.set_authenticated();
        assert!(enter().is_none(), "all have shown credentials");
        assert_eq!(admission.refused(), 1);
        assert_eq!(admission.list(|number, _| Some(number)), [1, 3, 4]);
        drop(fourth);
        assert!(enter().is_some());
    }

    #[test]
    fn other_credentials_are_shown_anew() {
        let admission = Admission::new(2);
        let (first, second) =
            (admission.enter(|_| Woken::default()).unwrap(), admission.enter(|_| Woken::default()).unwrap());
        first.set_authenticated();
        second.set_authenticated();
        admission.doubt_all();
        assert!(first.may_stay() && second.may_stay());
        second.set_authenticated();
        let third = admission.enter(|_| Woken::default()).unwrap();
        assert!(first.is_evicted() && !second.is_evicted());
        first.set_authenticated();
        assert_eq!(admission.counts().0, 2, "an evicted connection does not come back");
        admission.evict(9);
        assert!(third.is_evicted() && !second.is_evicted());
    }
}
