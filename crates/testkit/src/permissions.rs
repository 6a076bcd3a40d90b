//! The oracle of permissions: callers with grants, and an answer to every request, without the product's types.

/// A caller.
#[derive(Clone, Copy, Debug)]
pub struct Holder {
    /// Its name in failures.
    pub name: &'static str,
    /// The credential that it shows.
    pub shows: Shows,
    /// Its grants: actions, a pattern of buckets, and a prefix of keys.
    pub grants: &'static [(&'static str, &'static str, &'static str)],
}

/// A credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shows {
    /// None.
    Nothing,
    /// A key in force.
    Key,
    /// The secret from before the rotation of a key.
    OldSecret,
    /// A key whose time is over, or an unknown one, or a wrong secret.
    BadKey,
    /// A token with these rights.
    Token(&'static str),
    /// A certificate that a key names.
    Certificate(&'static str),
    /// A certificate that no key names.
    UnnamedCertificate(&'static str),
    /// The password of the Redis protocol.
    Password,
}

const fn holder(
    name: &'static str,
    shows: Shows,
    grants: &'static [(&'static str, &'static str, &'static str)],
) -> Holder {
    Holder { name, shows, grants }
}

/// All callers. A key has its grants from here, so that both sides have the same.
pub const HOLDERS: &[Holder] = &[
    holder("nobody", Shows::Nothing, &[]),
    holder("no-grants", Shows::Key, &[]),
    holder("reads", Shows::Key, &[("read", "films", "")]),
    holder("lists", Shows::Key, &[("list", "films", "")]),
    holder("writes", Shows::Key, &[("write", "films", "")]),
    holder("deletes", Shows::Key, &[("delete", "films", "")]),
    holder("empties", Shows::Key, &[("bucket", "films", "")]),
    holder("operates", Shows::Key, &[("admin", "*", "")]),
    holder("prefix", Shows::Key, &[("all", "films", "in/")]),
    holder("split", Shows::Key, &[("read,list", "films", "in/"), ("write,delete", "films", "out/")]),
    holder("pattern", Shows::Key, &[("all", "fil*", "")]),
    holder("elsewhere", Shows::Key, &[("all", "film", ""), ("all", "films2", "")]),
    holder("reads-everything", Shows::Key, &[("read,list", "*", "")]),
    holder("everything", Shows::Key, &[("all", "*", "")]),
    holder("rotated", Shows::OldSecret, &[("read", "films", "")]),
    holder("expired", Shows::BadKey, &[("all", "*", "")]),
    holder("ended-overlap", Shows::BadKey, &[("all", "*", "")]),
    holder("wrong-secret", Shows::BadKey, &[("all", "*", "")]),
    holder("token", Shows::Token(""), &[("all", "*", "")]),
    holder("token-reads", Shows::Token("read-only"), &[("read,list", "*", "")]),
    holder("token-films", Shows::Token("bucket=films"), &[("read,list,write,delete", "films", "")]),
    holder("token-reads-films", Shows::Token("bucket=films,read-only"), &[("read,list", "films", "")]),
    holder("certificate", Shows::UnnamedCertificate("free.example"), &[("all", "*", "")]),
    holder("certificate-of-key", Shows::Certificate("named.example"), &[("read", "films", "")]),
    holder("password", Shows::Password, &[("all", "*", "")]),
];

impl Holder {
    /// Returns true if it may do all of `needs`: each an action, a bucket (empty: the whole store), and a key or prefix.
    #[must_use]
    pub fn may(&self, needs: &[(&str, &str, &str)]) -> bool {
        let one = |&(action, bucket, key): &(&str, &str, &str)| {
            self.grants.iter().any(|&(actions, pattern, prefix)| {
                let is_named = actions == "all" || actions.split(',').any(|named| named == action);
                let is_bucket = match pattern.strip_suffix('*') {
                    Some(start) => bucket.starts_with(start),
                    None => bucket == pattern,
                };
                is_named && is_bucket && key.starts_with(prefix)
            })
        };
        needs.iter().all(one)
    }

    /// The same for a request about the whole store, for which `admin` is enough.
    #[must_use]
    pub fn may_whole_store(&self, actions: &[&str]) -> bool {
        let needs: Vec<_> = actions.iter().map(|&action| (action, "", "")).collect();
        self.may(&needs) || self.may(&[("admin", "", "")])
    }

    /// Its id as a key.
    #[must_use]
    pub fn id(&self) -> String {
        format!("SHK_{}_key_of_a_test", self.name.replace('-', "_"))
    }

    /// Its secret as a key, or its token.
    #[must_use]
    pub fn secret(&self) -> String {
        format!("the-secret-of-{}", self.name)
    }
}

/// The text of a file with the keys of [`HOLDERS`] at the second `now`, in the form of dates `before` and `after` that second.
#[must_use]
pub fn key_file(before: &str, after: &str) -> String {
    let mut text = String::new();
    for holder in HOLDERS {
        let (id, secret) = (holder.id(), holder.secret());
        let proof = match (holder.name, holder.shows) {
            ("expired", _) => format!("secret = '{secret}'\nexpires = {before}"),
            ("ended-overlap", _) => {
                format!("secret = 'another-secret-here'\nold_secret = '{secret}'\nold_until = {before}")
            }
            ("wrong-secret", _) => "secret = 'another-secret-here'".to_owned(),
            (_, Shows::Key) => format!("secret = '{secret}'\nexpires = {after}"),
            (_, Shows::OldSecret) => {
                format!("secret = 'another-secret-here'\nold_secret = '{secret}'\nold_until = {after}")
            }
            (_, Shows::Certificate(name)) => format!("certificate = '{name}'"),
            _ => continue,
        };
        let grant = |(actions, pattern, prefix): &(&str, &str, &str)| match prefix.is_empty() {
            true => format!("'{actions} {pattern}'"),
            false => format!("'{actions} {pattern}/{prefix}*'"),
        };
        let allow: Vec<String> = holder.grants.iter().map(grant).collect();
        text += &format!("[[key]]\nid = '{id}'\n{proof}\nallow = [{}]\n\n", allow.join(", "));
    }
    text
}

/// The text of a file with the tokens of [`HOLDERS`].
#[must_use]
pub fn token_file() -> String {
    let line = |holder: &Holder| match holder.shows {
        Shows::Token(rights) => Some(format!("{} {rights}\n", holder.secret())),
        _ => None,
    };
    HOLDERS.iter().filter_map(line).collect()
}
