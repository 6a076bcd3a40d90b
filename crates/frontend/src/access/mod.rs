//! One model of permissions for all frontends: who asks, for which action, on which bucket and key.
//!
//! A caller shows a credential, and becomes a [`Principal`]: an identity with grants. A [`Grant`] allows [`Actions`] on buckets and
//! prefixes of keys. [`may`] decides; an action that no grant allows is denied.
//!
//! `grant` reads `ACTIONS PATTERN`, `rights` translates the older words of a file of tokens, `key_file` is the text of a file of keys,
//! and `keys` has the keys in force.

mod grant;
mod key_file;
mod keys;
mod rights;

use std::fmt;
use std::sync::Arc;

pub use self::grant::{BadGrant, Grant, GrantSet};
pub use self::key_file::{
    BadKeys, KEY_FILE_BYTES_MAX, KeyEntry, KeyFile, ROTATION_OVERLAP, date_of, seconds_of,
};
pub use self::keys::{Keys, Known, NoKey};
pub use self::rights::{BUCKETS_OF_TOKEN_MAX, grants_of_rights};

/// The name of all buckets together, and of the store itself. No bucket is named like this; only a grant for all buckets covers it.
pub const WHOLE_STORE: &str = "";

/// The key, or prefix, of a request about all keys of a bucket. Only a grant without a prefix covers it.
pub const ALL_KEYS: &[u8] = b"";

/// Something that a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Action {
    /// Reads objects and their attributes.
    Read,
    /// Lists keys under a prefix; lists and counts everything if the prefix is empty.
    List,
    /// Creates, overwrites and changes objects.
    Write,
    /// Deletes objects.
    Delete,
    /// Creates, configures and empties buckets.
    Bucket,
    /// Operates the server and the store.
    Admin,
}

impl Action {
    /// All actions.
    pub const ALL: [Self; 6] = [Self::Read, Self::List, Self::Write, Self::Delete, Self::Bucket, Self::Admin];

    /// Its name in a grant.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::List => "list",
            Self::Write => "write",
            Self::Delete => "delete",
            Self::Bucket => "bucket",
            Self::Admin => "admin",
        }
    }
}

/// A set of actions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Actions(u8);

impl Actions {
    /// No action: everybody who is let in may do it.
    pub const NONE: Self = Self(0);

    /// The set of these actions.
    #[must_use]
    pub const fn of(actions: &[Action]) -> Self {
        let (mut bits, mut at) = (0, 0);
        while at < actions.len() {
            bits |= 1 << actions[at] as u8;
            at += 1;
        }
        Self(bits)
    }

    /// Returns true if `action` is in the set.
    #[must_use]
    pub const fn has(self, action: Action) -> bool {
        self.0 & (1 << action as u8) != 0
    }

    /// The actions of both sets.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The actions, in the order of [`Action::ALL`].
    pub fn each(self) -> impl Iterator<Item = Action> {
        Action::ALL.into_iter().filter(move |action| self.has(*action))
    }
}

/// The credential by which a caller is known.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PrincipalId {
    /// A caller that is let in without credentials.
    Local,
    /// The holder of the token of this number, from 1.
    Token(usize),
    /// The holder of the certificate with this name.
    Certificate(Arc<str>),
    /// A Redis client with the password.
    Password,
    /// The holder of the key with this id.
    Key(Arc<str>),
    /// The server itself, by the lifecycle rules of a bucket.
    Lifecycle,
}

impl fmt::Display for PrincipalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.write_str("a caller without credentials"),
            Self::Token(number) => write!(f, "the token with number {number}"),
            Self::Certificate(name) => write!(f, "the certificate of {name}"),
            Self::Password => f.write_str("the user default"),
            Self::Key(id) => write!(f, "the key {id}"),
            Self::Lifecycle => f.write_str("the lifecycle rules of a bucket"),
        }
    }
}

/// A caller that is let in, with its grants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    identity: PrincipalId,
    /// None: everything is allowed.
    grants: Option<Arc<[Grant]>>,
}

impl Principal {
    /// A caller that may do everything.
    #[must_use]
    pub const fn unrestricted(identity: PrincipalId) -> Self {
        Self { identity, grants: None }
    }

    /// A caller that may do what `grants` allow.
    #[must_use]
    pub fn new(identity: PrincipalId, grants: &GrantSet) -> Self {
        Self { identity, grants: grants.restricting().cloned() }
    }

    /// The credential by which it is known.
    #[must_use]
    pub const fn identity(&self) -> &PrincipalId {
        &self.identity
    }

    /// Returns true if everything is allowed.
    #[must_use]
    pub const fn is_unrestricted(&self) -> bool {
        self.grants.is_none()
    }

    /// Returns true if `other` may do the same.
    #[must_use]
    pub fn has_grants_of(&self, other: &Self) -> bool {
        self.grants == other.grants
    }

    /// Returns true if it may do everything that `grant` allows, so that it may give the grant to others.
    #[must_use]
    pub fn may_hand_out(&self, grant: &Grant) -> bool {
        let Some(grants) = &self.grants else { return true };
        grant.actions().each().all(|action| grants.iter().any(|own| own.covers(action, grant)))
    }

    /// Checks `actions` on the whole store, of a request that reads about it, or changes its operation. The action `admin` is
    /// enough.
    ///
    /// # Errors
    /// [`NotAllowed`].
    pub fn check_whole_store(&self, actions: Actions) -> Result<(), NotAllowed> {
        self.check(actions, WHOLE_STORE, ALL_KEYS)
            .or_else(|denied| may(self, Action::Admin, WHOLE_STORE, ALL_KEYS).map_err(|_| denied))
    }

    /// Checks all of `actions`, as [`may`] does for one.
    ///
    /// # Errors
    /// [`NotAllowed`] for the first action that is not allowed.
    #[inline]
    pub fn check(&self, actions: Actions, bucket: &str, key_or_prefix: &[u8]) -> Result<(), NotAllowed> {
        if self.is_unrestricted() {
            return Ok(());
        }
        actions.each().try_for_each(|action| may(self, action, bucket, key_or_prefix))
    }
}

/// A caller has no grant for its request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotAllowed {
    identity: PrincipalId,
    action: Action,
    bucket: Box<str>,
    is_elsewhere: bool,
}

impl NotAllowed {
    /// The action that no grant allows.
    #[must_use]
    pub const fn action(&self) -> Action {
        self.action
    }

    /// Returns true if a grant allows the action for other keys of the bucket.
    #[must_use]
    pub const fn is_elsewhere(&self) -> bool {
        self.is_elsewhere
    }
}

impl fmt::Display for NotAllowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { identity, action, bucket, is_elsewhere } = self;
        write!(f, "{identity} has no grant to {} ", action.name())?;
        match (&**bucket, is_elsewhere) {
            (WHOLE_STORE, _) => f.write_str("the whole store"),
            (_, false) => write!(f, "in the bucket {bucket:?}"),
            (_, true) => write!(f, "there in the bucket {bucket:?}: its grants are for other keys"),
        }
    }
}

impl std::error::Error for NotAllowed {}

/// Decides whether `principal` may do `action` on a key of `bucket`, or on all keys with a prefix. The whole store is
/// [`WHOLE_STORE`], a whole bucket has the prefix [`ALL_KEYS`].
///
/// # Errors
/// [`NotAllowed`] unless a grant covers the action, the bucket, and the key or prefix.
pub fn may(
    principal: &Principal,
    action: Action,
    bucket: &str,
    key_or_prefix: &[u8],
) -> Result<(), NotAllowed> {
    let Some(grants) = &principal.grants else { return Ok(()) };
    let mut is_elsewhere = false;
    for grant in grants.iter().filter(|grant| grant.allows(action) && grant.covers_bucket(bucket)) {
        if grant.covers_key(key_or_prefix) {
            return Ok(());
        }
        is_elsewhere = true;
    }
    let identity = principal.identity.clone();
    Err(NotAllowed { identity, action, bucket: bucket.into(), is_elsewhere })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn principal(grants: &[&str]) -> Principal {
        let grants = grants.iter().map(|grant| Grant::parse(grant).unwrap());
        Principal::new(PrincipalId::Key("ID".into()), &GrantSet::new(grants))
    }

    #[test]
    fn an_action_without_a_grant_is_denied() {
        let nobody = principal(&[]);
        for action in Action::ALL {
            assert!(
                may(&nobody, action, "b", b"k").is_err() && may(&nobody, action, WHOLE_STORE, b"").is_err()
            );
            assert!(may(&Principal::unrestricted(PrincipalId::Local), action, WHOLE_STORE, b"").is_ok());
        }
        assert!(nobody.check(Actions::NONE, "b", b"k").is_ok());
    }

    #[test]
    fn a_grant_covers_its_actions_buckets_and_prefix() {
        let clerk =
            principal(&["read,list photos/in/*", "write photos/in/new-*", "delete logs-*", "read maps"]);
        let allowed = |action, bucket, key: &str| may(&clerk, action, bucket, key.as_bytes()).is_ok();
        assert!(allowed(Action::Read, "photos", "in/a") && allowed(Action::List, "photos", "in/"));
        assert!(allowed(Action::Write, "photos", "in/new-1") && !allowed(Action::Write, "photos", "in/old"));
        assert!(!allowed(Action::List, "photos", "") && !allowed(Action::List, "photos", "in"));
        assert!(!allowed(Action::Read, "photos2", "in/a") && !allowed(Action::Delete, "photos", "in/a"));
        assert!(allowed(Action::Delete, "logs-1", "x") && allowed(Action::Delete, "logs-", ""));
        assert!(!allowed(Action::Delete, "logs", "x") && !allowed(Action::Delete, WHOLE_STORE, ""));
        assert!(allowed(Action::Read, "maps", "") && !allowed(Action::Read, WHOLE_STORE, ""));
        assert!(!allowed(Action::Admin, WHOLE_STORE, "") && !clerk.is_unrestricted());
        let both = Actions::of(&[Action::Read, Action::Write]);
        assert!(clerk.check(both, "photos", b"in/new-1").is_ok());
        assert_eq!(clerk.check(both, "photos", b"in/old").unwrap_err().action(), Action::Write);
    }

    #[test]
    fn all_actions_on_everything_is_no_restriction() {
        for everything in ["all *", "all */*", "read,list,write,delete,bucket,admin *"] {
            assert!(principal(&["read b", everything]).is_unrestricted(), "{everything}");
        }
        assert!(!principal(&["read,list,write,delete,bucket *"]).is_unrestricted());
    }

    /// The maker of keys must not become more than it is by them.
    #[test]
    fn only_own_grants_are_handed_out() {
        let clerk =
            principal(&["admin *", "read,list photos/in/*", "write logs-*", "delete maps", "read maps"]);
        for (grant, expected) in [
            ("read photos/in/*", true),
            ("read,list photos/in/new/*", true),
            ("read photos", false),
            ("read photos/*", false),
            ("read photos*/in/*", false),
            ("read,write photos/in/*", false),
            ("write logs-1", true),
            ("write logs-a*/x*", true),
            ("write logs*", false),
            ("read,delete maps", true),
            ("delete maps*", false),
            ("admin *", true),
            ("all *", false),
            ("read *", false),
        ] {
            assert_eq!(clerk.may_hand_out(&Grant::parse(grant).unwrap()), expected, "{grant}");
        }
        assert!(principal(&["all *"]).may_hand_out(&Grant::parse("all *").unwrap()));
        assert!(!principal(&[]).may_hand_out(&Grant::parse("read a").unwrap()));
    }

    #[test]
    fn a_denial_names_the_action_and_no_secret() {
        let clerk = principal(&["read photos/in/*"]);
        let words = |action, bucket, key: &[u8]| may(&clerk, action, bucket, key).unwrap_err().to_string();
        assert_eq!(words(Action::Write, "b", b"k"), "the key ID has no grant to write in the bucket \"b\"");
        assert!(words(Action::Read, "photos", b"k").contains("other keys"));
        assert!(words(Action::Admin, WHOLE_STORE, b"").ends_with("admin the whole store"));
    }
}
