//! The grants that a command needs, and the key that a client showed.
//!
//! The table of commands names the needs of each: without them, a line of it does not compile. A client without a key has all grants,
//! so a command costs it one comparison.

use bytes::Bytes;
use shoal_frontend::Security;
use shoal_frontend::access::{ALL_KEYS, Action, Actions, Known, NoKey, NotAllowed, Principal, WHOLE_STORE};

use super::call::{Command, is};
use crate::answer::Answer;
use crate::frontend::Frontend;

/// The grants that a command needs.
#[derive(Clone, Copy)]
pub(crate) enum Needs {
    /// None: it is about the connection, or the protocol.
    Nothing,
    /// Actions on the first of its keys, and on the others.
    Keys { first: Actions, others: Actions },
    /// Actions on its key, and reading as well if this option follows the value.
    KeyAndOption { actions: Actions, reads_with: &'static str },
    /// Actions on all keys of the bucket.
    Bucket(Actions),
    /// The operation of the server.
    Admin,
    /// Those of the subcommand. An unknown one needs none: it is refused.
    Part,
    /// Those of the command in the words from this one on.
    Inner(usize),
}

impl Needs {
    pub(crate) const READ: Self = Self::each(&[Action::Read]);
    pub(crate) const WRITE: Self = Self::each(&[Action::Write]);
    pub(crate) const DELETE: Self = Self::each(&[Action::Delete]);
    /// The answer shows the value, or its new state.
    pub(crate) const CHANGE: Self = Self::each(&[Action::Read, Action::Write]);
    /// The object may end.
    pub(crate) const EXPIRE: Self = Self::each(&[Action::Write, Action::Delete]);
    pub(crate) const LIST: Self = Self::Bucket(Actions::of(&[Action::List]));
    pub(crate) const EMPTY: Self = Self::Bucket(Actions::of(&[Action::Delete, Action::Bucket]));

    /// Actions on each key.
    pub(crate) const fn each(actions: &[Action]) -> Self {
        let actions = Actions::of(actions);
        Self::Keys { first: actions, others: actions }
    }

    /// Actions on the first key, and on the others.
    pub(crate) const fn two(first: &[Action], others: &[Action]) -> Self {
        Self::Keys { first: Actions::of(first), others: Actions::of(others) }
    }
}

/// Checks that `principal` may run `command` with these words on the keys of `bucket`; `commands` are all commands.
///
/// # Errors
/// [`NotAllowed`].
pub(super) fn check(
    principal: &Principal,
    bucket: &str,
    (command, words): (&Command, &[Bytes]),
    commands: &'static [Command],
) -> Result<(), NotAllowed> {
    let needs = match command.needs {
        Needs::Part => {
            let part = words.get(1).and_then(|word| command.parts.iter().find(|part| is(word, part.name)));
            part.map_or(Needs::Nothing, |part| part.needs)
        }
        needs => needs,
    };
    let each = |first, others| {
        let mut actions = std::iter::once(first).chain(std::iter::repeat(others));
        let mut keys = command.keys.of(words);
        keys.try_for_each(|key| principal.check(actions.next().unwrap_or(others), bucket, key))
    };
    match needs {
        Needs::Nothing | Needs::Part => Ok(()),
        Needs::Keys { first, others } => each(first, others),
        Needs::KeyAndOption { actions, reads_with } => {
            let reads = words.iter().skip(3).any(|word| is(word, reads_with));
            let actions = if reads { actions.and(Actions::of(&[Action::Read])) } else { actions };
            each(actions, actions)
        }
        Needs::Bucket(actions) => principal.check(actions, bucket, ALL_KEYS),
        Needs::Admin => principal.check(Actions::of(&[Action::Admin]), WHOLE_STORE, ALL_KEYS),
        Needs::Inner(at) => {
            let inner = words.get(at..).unwrap_or(&[]);
            let command = inner.first().and_then(|name| Command::find(commands, name));
            match command.filter(|command| !matches!(command.needs, Needs::Inner(_))) {
                Some(command) => check(principal, bucket, (command, inner), commands),
                // It is refused when it runs.
                None => Ok(()),
            }
        }
    }
}

/// The answer of Redis to a command that is denied.
pub(super) fn refusal(denied: &NotAllowed, user: &str, (command, words): (&Command, &[Bytes])) -> Answer {
    if denied.is_elsewhere() {
        return Answer::error("NOPERM No permissions to access a key");
    }
    let part = words.get(1).and_then(|word| command.parts.iter().find(|part| is(word, part.name)));
    let name = command.full_name(part);
    Answer::Error(format!("NOPERM User {user} has no permissions to run the '{name}' command").into())
}

/// The key that a client showed. It is checked again when other credentials are in force, and at its end.
pub(crate) struct ShownKey {
    id: Box<[u8]>,
    secret: Box<[u8]>,
    known: Known,
    /// The replacements of credentials when it was checked.
    checked_at: u64,
}

impl ShownKey {
    /// The key, if it is accepted.
    pub(crate) fn new(frontend: &Frontend, id: &[u8], secret: &[u8]) -> Result<Self, NoKey> {
        let (known, checked_at) = find(frontend, id, secret)?;
        Ok(Self { id: id.into(), secret: secret.into(), known, checked_at })
    }

    /// Its id.
    pub(crate) fn user(&self) -> String {
        String::from_utf8_lossy(&self.id).into_owned()
    }

    pub(crate) fn principal(&self) -> &Principal {
        &self.known.principal
    }

    /// Returns true if the credentials in force are those that it was checked with, and its time is not over.
    pub(crate) fn is_current(&self, frontend: &Frontend) -> bool {
        let is_over = |until_s| now_s(frontend) >= until_s;
        self.checked_at == frontend.options.security.replacements()
            && !self.known.until_s.is_some_and(is_over)
    }

    /// Checks it with the credentials in force; returns true if it has other grants now.
    ///
    /// # Errors
    /// It is not accepted any more.
    pub(crate) fn renew(&mut self, frontend: &Frontend) -> Result<bool, NoKey> {
        let (known, checked_at) = find(frontend, &self.id, &self.secret)?;
        let differs = !known.principal.has_grants_of(&self.known.principal);
        (self.known, self.checked_at) = (known, checked_at);
        Ok(differs)
    }
}

fn find(frontend: &Frontend, id: &[u8], secret: &[u8]) -> Result<(Known, u64), NoKey> {
    let security: &Security = &frontend.options.security;
    // Before the look: a replacement meanwhile leads to another check.
    let checked_at = security.replacements();
    let known = security.with(|credentials| {
        let keys = credentials.keys().ok_or(NoKey::Unknown)?;
        keys.find(id, secret, || now_s(frontend))
    })?;
    Ok((known, checked_at))
}

fn now_s(frontend: &Frontend) -> u64 {
    frontend.clock.wall_ns() / 1_000_000_000
}
