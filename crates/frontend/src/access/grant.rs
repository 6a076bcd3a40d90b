//! A grant: actions on a pattern of buckets and a prefix of their keys.

use std::sync::Arc;

use shoal_base::limits::KEY_BYTES_MAX;

use super::{Action, Actions, WHOLE_STORE};

/// The word for all actions.
const ALL_ACTIONS: &str = "all";

/// A text that is no grant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadGrant(String);

/// Actions that are allowed on some buckets and keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    actions: Actions,
    bucket: Box<str>,
    /// True if `bucket` is the start of names; otherwise it is one name.
    is_bucket_prefix: bool,
    /// The start of the keys; empty: all keys.
    prefix: Box<[u8]>,
}

impl Grant {
    /// Actions on all keys of one bucket.
    pub(super) fn of_bucket(actions: Actions, bucket: &str) -> Self {
        Self { actions, bucket: bucket.into(), is_bucket_prefix: false, prefix: Box::default() }
    }

    /// Actions on everything.
    pub(super) fn of_all(actions: Actions) -> Self {
        Self { is_bucket_prefix: true, ..Self::of_bucket(actions, "") }
    }

    /// Parses `ACTION,... BUCKET[*][/PREFIX*]`: actions by their names, or `all`, a bucket or the start of bucket names, and the start
    /// of keys. `*` is everything.
    ///
    /// # Errors
    /// [`BadGrant`] with the part that is wrong.
    pub fn parse(text: &str) -> Result<Self, BadGrant> {
        let wrong = |why: &str| BadGrant(format!("the grant {text:?} {why}"));
        let (words, pattern) = text.trim().split_once(char::is_whitespace).ok_or_else(|| {
            wrong("has no pattern: write ACTION,... BUCKET[*][/PREFIX*], or * for everything")
        })?;
        let actions = actions_of(words).ok_or_else(|| {
            wrong("has an unknown or repeated action: write some of read, list, write, delete, bucket, admin, or all")
        })?;
        let (bucket, prefix) = match pattern.trim_start().split_once('/') {
            None => (pattern.trim_start(), ""),
            Some((bucket, prefix)) => {
                (bucket, prefix.strip_suffix('*').ok_or_else(|| wrong("has a prefix without * at its end"))?)
            }
        };
        let (bucket, is_bucket_prefix) = match bucket.strip_suffix('*') {
            Some(start) => (start, true),
            None => (bucket, false),
        };
        if prefix.contains('*') {
            return Err(wrong("has a * inside of its prefix: it may be at the end only"));
        }
        if prefix.len() > KEY_BYTES_MAX {
            return Err(wrong("has a prefix that is longer than a key"));
        }
        let is_plain =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-._".contains(&byte);
        if !bucket.bytes().all(is_plain) || (bucket.is_empty() && !is_bucket_prefix) {
            return Err(wrong(
                "has a bucket that cannot exist: a-z, 0-9, '-', '.' and '_', and a * at the end",
            ));
        }
        let grant =
            Self { actions, bucket: bucket.into(), is_bucket_prefix, prefix: prefix.as_bytes().into() };
        let names = |action: Action| words.split(',').any(|word| word == action.name());
        if names(Action::Admin) && !grant.is_for_everything() {
            return Err(wrong("has the action admin, which is about the whole store: its pattern is *"));
        }
        if names(Action::Bucket) && !grant.prefix.is_empty() {
            return Err(wrong("has the action bucket, which is about whole buckets, and a prefix of keys"));
        }
        Ok(grant)
    }

    /// The bucket, if it is one.
    pub fn bucket(&self) -> Option<&str> {
        (!self.is_bucket_prefix).then_some(&*self.bucket)
    }

    pub(super) fn allows(&self, action: Action) -> bool {
        self.actions.has(action)
    }

    pub(super) fn covers_bucket(&self, bucket: &str) -> bool {
        match self.is_bucket_prefix {
            true => bucket.starts_with(&*self.bucket),
            false => bucket == &*self.bucket && bucket != WHOLE_STORE,
        }
    }

    pub(super) fn covers_key(&self, key_or_prefix: &[u8]) -> bool {
        key_or_prefix.starts_with(&self.prefix)
    }

    /// Returns true if it allows `action` on everything of which `other` speaks.
    pub(super) fn covers(&self, action: Action, other: &Self) -> bool {
        let covers_buckets = match self.is_bucket_prefix {
            true => other.bucket.starts_with(&*self.bucket),
            false => !other.is_bucket_prefix && self.bucket == other.bucket,
        };
        self.allows(action) && covers_buckets && self.covers_key(&other.prefix)
    }

    /// The actions.
    pub(super) fn actions(&self) -> Actions {
        self.actions
    }

    /// It as a sentence for people: `may read and list objects of the bucket photos whose keys start with in/`.
    #[must_use]
    pub fn sentence(&self) -> String {
        if self.is_everything() {
            return "may do everything".to_owned();
        }
        let buckets = match (self.is_bucket_prefix, &*self.bucket) {
            (true, "") => "all buckets".to_owned(),
            (true, start) => format!("all buckets whose names start with {start}"),
            (false, name) => format!("the bucket {name}"),
        };
        let objects = [Action::Read, Action::List, Action::Write, Action::Delete];
        let verbs: Vec<&str> =
            objects.into_iter().filter(|action| self.allows(*action)).map(Action::name).collect();
        let mut parts = Vec::new();
        if !verbs.is_empty() {
            let mut part = format!("{} objects of {buckets}", listed(&verbs));
            if !self.prefix.is_empty() {
                part += &format!(" whose keys start with {}", String::from_utf8_lossy(&self.prefix));
            }
            parts.push(part);
        }
        if self.allows(Action::Bucket) && self.prefix.is_empty() {
            parts.push(format!("create, configure and empty {buckets}"));
        }
        if self.allows(Action::Admin) && self.is_for_everything() {
            parts.push("operate the server".to_owned());
        }
        format!("may {}", parts.join(", and "))
    }

    fn is_for_everything(&self) -> bool {
        self.is_bucket_prefix && self.bucket.is_empty() && self.prefix.is_empty()
    }

    /// Returns true if it allows everything.
    fn is_everything(&self) -> bool {
        self.is_for_everything() && Action::ALL.into_iter().all(|action| self.allows(action))
    }
}

/// Words in a sentence.
fn listed(words: &[&str]) -> String {
    match words.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} and {last}", others.join(", ")),
        _ => words.concat(),
    }
}

/// The actions with these names, separated by commas.
fn actions_of(words: &str) -> Option<Actions> {
    if words == ALL_ACTIONS {
        return Some(Actions::of(&Action::ALL));
    }
    words.split(',').try_fold(Actions::NONE, |actions, word| {
        let action = Action::ALL.into_iter().find(|action| action.name() == word)?;
        (!actions.has(action)).then(|| actions.and(Actions::of(&[action])))
    })
}

/// The grants of a credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantSet {
    /// None: everything.
    restricting: Option<Arc<[Grant]>>,
}

impl GrantSet {
    /// Everything is allowed.
    pub const EVERYTHING: Self = Self { restricting: None };

    /// The set of `grants`.
    #[must_use]
    pub fn new(grants: impl IntoIterator<Item = Grant>) -> Self {
        let grants: Arc<[Grant]> = grants.into_iter().collect();
        let restricting = (!grants.iter().any(Grant::is_everything)).then_some(grants);
        Self { restricting }
    }

    /// The grants, unless they allow everything.
    #[must_use]
    pub fn restricting(&self) -> Option<&Arc<[Grant]>> {
        self.restricting.as_ref()
    }

    /// The buckets that the grants name.
    pub fn buckets(&self) -> impl Iterator<Item = &str> {
        self.restricting.iter().flat_map(|grants| grants.iter()).filter_map(Grant::bucket)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_grant_is_a_sentence() {
        for (grant, sentence) in [
            ("all *", "may do everything"),
            (
                "read,list photos/in/*",
                "may read and list objects of the bucket photos whose keys start with in/",
            ),
            (
                "read,list,write,delete logs-*",
                "may read, list, write and delete objects of all buckets whose names start with logs-",
            ),
            ("list *", "may list objects of all buckets"),
            ("bucket maps", "may create, configure and empty the bucket maps"),
            (
                "delete,bucket maps",
                "may delete objects of the bucket maps, and create, configure and empty the bucket maps",
            ),
            (
                "all maps",
                "may read, list, write and delete objects of the bucket maps, and create, configure and empty the bucket maps",
            ),
            (
                "all maps/a*",
                "may read, list, write and delete objects of the bucket maps whose keys start with a",
            ),
            ("list,admin *", "may list objects of all buckets, and operate the server"),
        ] {
            assert_eq!(Grant::parse(grant).unwrap().sentence(), sentence, "{grant}");
        }
    }

    /// A mistyped grant must not turn into another one.
    #[test]
    fn a_text_that_is_no_grant_is_rejected() {
        for wrong in [
            "",
            "read",
            "*",
            "reads b",
            "READ b",
            "read,read b",
            "read, list b",
            "all,read b",
            ",read b",
            "read b/k",
            "read b/*k*",
            "read B",
            "read a*b",
            "read **",
            "read /k*",
            "read b c",
            "admin b",
            "admin b*",
            "read,admin */k*",
            "bucket b/k*",
        ] {
            assert!(Grant::parse(wrong).is_err(), "{wrong:?}");
        }
        assert!(Grant::parse(&format!("read b/{}*", "k".repeat(KEY_BYTES_MAX))).is_ok());
        assert!(Grant::parse(&format!("read b/{}*", "k".repeat(KEY_BYTES_MAX + 1))).is_err());
    }

    #[test]
    fn a_prefix_may_have_slashes_and_spaces() {
        let grant = Grant::parse("  read\tb/a b/c/* ").unwrap();
        assert!(grant.covers_key(b"a b/c/d") && !grant.covers_key(b"a b/c"));
        assert_eq!((grant.bucket(), Grant::parse("read b*").unwrap().bucket()), (Some("b"), None));
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_rejected(text in ".{0,60}") {
            let _ = Grant::parse(&text);
        }

        #[test]
        fn any_prefix_after_a_bucket_is_kept(prefix in "[^*]{0,20}") {
            let prefix = prefix.trim_end();
            let grant = Grant::parse(&format!("read b/{prefix}*")).unwrap();
            prop_assert!(grant.covers_key(prefix.as_bytes()));
            prop_assert_eq!(&*grant.prefix, prefix.as_bytes());
        }
    }
}
