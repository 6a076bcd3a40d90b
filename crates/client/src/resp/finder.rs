//! The object finder: which server has a key. One lookup a request: the session lies in the map's entry itself (seed 002).
//!
//! The map is what a server says of the cluster (CLUSTER SLOTS), and is asked for again when a server says that a key is
//! elsewhere. Readers take no lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use shoal_base::slot::{SLOT_COUNT, hash_slot};
use tokio::sync::Mutex;

use super::session::{Patience, Session};
use super::wire::{Reply, put_command};
use crate::error::Error;
use crate::retry::{Failed, Outcome};

/// Servers of one cluster.
const SERVERS_MAX: usize = 1_000;

/// Which session has which slot.
struct Map {
    /// Index of the session, by slot.
    by_slot: Box<[u16]>,
    sessions: Vec<Arc<Session>>,
}

impl Map {
    /// One server, which is asked for everything.
    fn of_one(session: Arc<Session>) -> Self {
        Self { by_slot: vec![0; usize::from(SLOT_COUNT)].into(), sessions: vec![session] }
    }

    fn session(&self, slot: u16) -> Option<&Arc<Session>> {
        let index = *self.by_slot.get(usize::from(slot))?;
        self.sessions.get(usize::from(index))
    }
}

/// The cached map.
pub(crate) struct Finder {
    map: ArcSwap<Map>,
    /// The server that the user named: asked where no other answers.
    first: Arc<Session>,
    patience: Patience,
    /// How the question for the map that ended last went; locked while it is asked.
    refreshing: Mutex<Result<(), Failed>>,
    /// Questions for the map that ended, failed ones among them. Changes only under the lock.
    refreshes: AtomicU64,
}

impl Finder {
    /// Asks the server at `address` for the map.
    pub(crate) async fn connect(address: Arc<str>, patience: Patience) -> Result<Self, Failed> {
        let first = Arc::new(Session::new(address, patience.clone()));
        let map = ArcSwap::from_pointee(Map::of_one(first.clone()));
        let (refreshing, refreshes) = (Mutex::const_new(Ok(())), AtomicU64::new(0));
        let finder = Self { map, first, patience, refreshing, refreshes };
        finder.refresh().await?;
        Ok(finder)
    }

    /// The session of a key's server.
    pub(crate) fn session(&self, key: &[u8]) -> Arc<Session> {
        self.map.load().session(hash_slot(key)).unwrap_or(&self.first).clone()
    }

    /// The keys' places, grouped by the session of each.
    pub(crate) fn group<'a>(
        &self,
        keys: impl Iterator<Item = (usize, &'a [u8])>,
    ) -> Vec<(Arc<Session>, Vec<usize>)> {
        let map = self.map.load();
        let mut groups: Vec<(Arc<Session>, Vec<usize>)> = Vec::new();
        for (place, key) in keys {
            let session = map.session(hash_slot(key)).unwrap_or(&self.first);
            match groups.iter_mut().find(|(known, _)| Arc::ptr_eq(known, session)) {
                Some((_, places)) => places.push(place),
                None => groups.push((session.clone(), vec![place])),
            }
        }
        groups
    }

    /// A server said that a key is elsewhere, or does not answer: asks for the map again. Who comes while another asks takes what
    /// that one got, a failure too.
    pub(crate) async fn refresh(&self) -> Result<(), Failed> {
        let seen = self.refreshes.load(Ordering::Acquire);
        let mut last = self.refreshing.lock().await;
        if self.refreshes.load(Ordering::Acquire) == seen {
            *last = self.ask_all().await.map(|map| self.map.store(Arc::new(map)));
            self.refreshes.store(seen + 1, Ordering::Release);
        }
        last.clone()
    }

    /// Asks one server after the other, until one has a map.
    async fn ask_all(&self) -> Result<Map, Failed> {
        let now = self.map.load_full();
        let mut result = self.ask(&self.first, &now).await;
        for session in &now.sessions {
            if result.is_ok() {
                break;
            }
            if !Arc::ptr_eq(session, &self.first) {
                result = self.ask(session, &now).await;
            }
        }
        result
    }

    async fn ask(&self, session: &Arc<Session>, now: &Map) -> Result<Map, Failed> {
        let mut command = Vec::new();
        put_command(&mut command, &[b"CLUSTER", b"SLOTS"]);
        match session.call(command, 1).await?.pop() {
            Some(Reply::Array(ranges)) => self.map_of(&ranges, session, now).ok_or_else(|| {
                Failed::refused(Error::Protocol("it says nothing useful about the cluster's slots".into()))
            }),
            Some(Reply::Error(text)) => Err(Failed::refused(Error::Denied(text))),
            _ => Err(session.failed("CLUSTER SLOTS has no answer", Outcome::NotApplied)),
        }
    }

    /// The map that CLUSTER SLOTS describes; sessions that there are already stay, with their connections.
    fn map_of(&self, ranges: &[Reply], asked: &Arc<Session>, now: &Map) -> Option<Map> {
        let mut map = Map { by_slot: vec![u16::MAX; usize::from(SLOT_COUNT)].into(), sessions: Vec::new() };
        for range in ranges {
            let Reply::Array(range) = range else { return None };
            let [Reply::Integer(from), Reply::Integer(to), Reply::Array(node), ..] = &range[..] else {
                return None;
            };
            let [Reply::Bulk(host), Reply::Integer(port), ..] = &node[..] else { return None };
            let host = std::str::from_utf8(host).ok()?;
            // An empty name means: as you reached me.
            let address: Arc<str> = match host {
                "" => asked.address().clone(),
                host if host.contains(':') => format!("[{host}]:{port}").into(),
                host => format!("{host}:{port}").into(),
            };
            let index = self.index_of(&address, &mut map.sessions, now)?;
            let (from, to) = (usize::try_from(*from).ok()?, usize::try_from(*to).ok()?);
            map.by_slot.get_mut(from..=to)?.fill(index);
        }
        (!map.sessions.is_empty()).then_some(map)
    }

    fn index_of(&self, address: &Arc<str>, sessions: &mut Vec<Arc<Session>>, now: &Map) -> Option<u16> {
        let index = sessions.iter().position(|session| session.address() == address).unwrap_or_else(|| {
            let known = now.sessions.iter().chain([&self.first]).find(|session| session.address() == address);
            let fresh = || Arc::new(Session::new(address.clone(), self.patience.clone()));
            sessions.push(known.cloned().unwrap_or_else(fresh));
            sessions.len() - 1
        });
        (index < SERVERS_MAX).then_some(index as u16)
    }
}
