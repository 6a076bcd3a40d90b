//! The keys in force: a caller shows an id and a secret.

use std::collections::HashMap;
use std::sync::Arc;

use super::{GrantSet, Principal, PrincipalId};
use crate::credentials::is_same;

/// Compared with the secret of an unknown id, so that its refusal takes as long.
const NO_SECRET: &[u8] = &[0; 40];

/// The reason why a key is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoKey {
    /// There is no such id, or it has another secret.
    #[error("the key is unknown")]
    Unknown,
    /// The key is right, and its time is over.
    #[error("the key has expired")]
    Expired,
    /// There are keys, and none of them names the certificate.
    #[error("no key names the certificate")]
    Unnamed,
}

/// A caller that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// The caller.
    pub principal: Principal,
    /// The second of the Unix epoch from which its credential is not accepted any more.
    pub until_s: Option<u64>,
}

impl Known {
    /// The same, unless its time is over.
    pub(super) fn at(self, now_s: impl FnOnce() -> u64) -> Result<Self, NoKey> {
        match self.until_s {
            Some(until_s) if now_s() >= until_s => Err(NoKey::Expired),
            _ => Ok(self),
        }
    }
}

impl From<Principal> for Known {
    fn from(principal: Principal) -> Self {
        Self { principal, until_s: None }
    }
}

/// A key in force.
#[derive(Clone)]
pub(super) struct Key {
    pub(super) id: Arc<str>,
    /// None: only its certificate shows it.
    pub(super) secret: Option<Box<[u8]>>,
    pub(super) expires_s: Option<u64>,
    /// The secret before the last rotation, and the second up to which it is accepted.
    pub(super) old: Option<(Box<[u8]>, u64)>,
    pub(super) certificate: Option<Box<str>>,
    pub(super) grants: GrantSet,
}

impl Key {
    /// The holder of the key, whose credential is accepted up to `until_s`, if there is a limit.
    fn known(&self, until_s: Option<u64>) -> Known {
        let principal = Principal::new(PrincipalId::Key(Arc::clone(&self.id)), &self.grants);
        let until_s = until_s.into_iter().chain(self.expires_s).min();
        Known { principal, until_s }
    }
}

/// All keys in force, by id.
#[derive(Clone, Default)]
pub struct Keys {
    by_id: HashMap<Arc<str>, Key>,
    by_certificate: HashMap<Box<str>, Arc<str>>,
}

impl Keys {
    pub(super) fn new(keys: impl IntoIterator<Item = Key>) -> Self {
        let mut all = Self::default();
        for key in keys {
            if let Some(certificate) = &key.certificate {
                all.by_certificate.insert(certificate.clone(), Arc::clone(&key.id));
            }
            all.by_id.insert(Arc::clone(&key.id), key);
        }
        all
    }

    /// The number of keys.
    #[must_use]
    pub fn count(&self) -> usize {
        self.by_id.len()
    }

    /// Returns true if there is a key with this id.
    #[must_use]
    pub fn has_id(&self, id: &str) -> bool {
        self.by_id.contains_key(id)
    }

    /// The buckets that the grants of the keys name.
    pub fn buckets(&self) -> impl Iterator<Item = &str> {
        self.by_id.values().flat_map(|key| key.grants.buckets())
    }

    /// The holder of the key `id` with `secret`. The time of the comparison does not depend on the position of a difference. `now_s`
    /// is called if the key has an end.
    ///
    /// # Errors
    /// [`NoKey`].
    pub fn find(&self, id: &[u8], secret: &[u8], now_s: impl FnOnce() -> u64) -> Result<Known, NoKey> {
        let key = str::from_utf8(id).ok().and_then(|id| self.by_id.get(id));
        let current = key.and_then(|key| key.secret.as_deref());
        let is_current = is_same(current.unwrap_or(NO_SECRET), secret) && current.is_some();
        let old = key.and_then(|key| key.old.as_ref());
        let until_s = old.filter(|(old, _)| is_same(old, secret)).map(|(_, until_s)| *until_s);
        match key {
            Some(key) if is_current => key.known(None).at(now_s),
            Some(key) if until_s.is_some() => key.known(until_s).at(now_s),
            _ => Err(NoKey::Unknown),
        }
    }

    /// The secret of the key `id`, and the one before it while a rotation lasts, for a protocol whose callers sign with them. An
    /// unknown id, and a key whose time is over, have none.
    #[must_use]
    pub fn secrets(&self, id: &str, now_s: u64) -> [Option<Arc<str>>; 2] {
        let Some(key) = self.by_id.get(id).filter(|key| key.expires_s.is_none_or(|end_s| now_s < end_s))
        else {
            return [None, None];
        };
        let text = |secret: &[u8]| str::from_utf8(secret).ok().map(Arc::from);
        let old = key.old.as_ref().filter(|(_, until_s)| now_s < *until_s);
        [key.secret.as_deref().and_then(text), old.and_then(|(secret, _)| text(secret))]
    }

    /// The holder of the key `id`, which has signed with one of its secrets.
    ///
    /// # Errors
    /// [`NoKey`].
    pub fn find_signer(&self, id: &str, now_s: u64) -> Result<Known, NoKey> {
        self.by_id.get(id).ok_or(NoKey::Unknown)?.known(None).at(|| now_s)
    }

    /// The holder of `ID.SECRET`, as gRPC callers show it.
    ///
    /// # Errors
    /// [`NoKey`].
    pub fn find_joined(&self, shown: &[u8], now_s: impl FnOnce() -> u64) -> Result<Known, NoKey> {
        let dot = shown.iter().position(|&byte| byte == b'.').unwrap_or(shown.len());
        let (id, rest) = shown.split_at(dot);
        self.find(id, rest.get(1..).unwrap_or_default(), now_s)
    }

    /// The holder of a certificate with this name; `None` if no key names it.
    pub fn find_certificate(&self, name: &str, now_s: impl FnOnce() -> u64) -> Option<Result<Known, NoKey>> {
        let key = self.by_id.get(self.by_certificate.get(name)?)?;
        Some(key.known(None).at(now_s))
    }
}
