//! The keys of the file of keys: an administrator lists, makes, revokes and rotates them.
//!
//! The program that serves the console reads and writes the file ([`KeyBook`]); this crate opens none.

use std::sync::Arc;

use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::json;
use shoal_frontend::access::{
    Action, Actions, Grant, KeyEntry, KeyFile, Principal, PrincipalId, ROTATION_OVERLAP, seconds_of,
};

use crate::answer::{ApiError, ApiResult, empty, json};
use crate::call::{Answering, ApiCall, Route};
use crate::state::ConsoleState;

/// Bytes of a request about keys: the longest grants of a key.
const DOCUMENT_BYTES_MAX: usize = 128 << 10;

/// The reason why the file of keys was not changed.
#[derive(Debug)]
pub enum KeyBookError {
    /// The change is wrong, or the file is.
    Refused(String),
    /// The file cannot be read or written.
    Failed(String),
}

/// A change of the content of the file. An error changes nothing.
pub type KeyChange<'a> = &'a mut (dyn FnMut(&mut KeyFile) -> Result<(), KeyBookError> + Send);

/// The file of keys of the server. Its calls wait for the disk.
pub trait KeyBook: Send + Sync {
    /// The path of the file, for people.
    fn path(&self) -> String;

    /// The content.
    ///
    /// # Errors
    /// [`KeyBookError`].
    fn read(&self) -> Result<KeyFile, KeyBookError>;

    /// Changes the file as `shoal key` does, and puts the keys in force.
    ///
    /// # Errors
    /// [`KeyBookError`].
    fn change(&self, change: KeyChange<'_>) -> Result<(), KeyBookError>;
}

impl From<KeyBookError> for ApiError {
    fn from(error: KeyBookError) -> Self {
        match error {
            KeyBookError::Refused(problem) => Self::bad(problem),
            KeyBookError::Failed(problem) => Self::new(StatusCode::INTERNAL_SERVER_ERROR, problem),
        }
    }
}

/// The routes of keys.
pub(crate) const ROUTES: &[Route] = &[
    Route { method: Method::GET, path: "keys", name: "ListKeys", answer: list },
    Route { method: Method::POST, path: "keys", name: "CreateKey", answer: create },
    Route { method: Method::DELETE, path: "keys/*", name: "RevokeKey", answer: revoke },
    Route { method: Method::POST, path: "keys/*/rotate", name: "RotateKey", answer: rotate },
    Route { method: Method::POST, path: "grants/explain", name: "ExplainGrants", answer: explain },
];

fn check_admin(principal: &Principal) -> ApiResult<()> {
    Ok(principal.check_whole_store(Actions::of(&[Action::Admin]))?)
}

/// Runs work on the file, on a thread that may wait.
async fn on_file<T: Send + 'static>(
    book: &Arc<dyn KeyBook>,
    work: impl FnOnce(&dyn KeyBook) -> Result<T, KeyBookError> + Send + 'static,
) -> ApiResult<T> {
    let book = Arc::clone(book);
    let done = tokio::task::spawn_blocking(move || work(&*book)).await;
    let failed = |_| {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "a thread of the server has failed; see its log")
    };
    Ok(done.map_err(failed)??)
}

/// The file of keys.
fn book_of(state: &ConsoleState) -> ApiResult<&Arc<dyn KeyBook>> {
    state.keys.as_ref().ok_or_else(|| {
        let problem =
            "this server has no file of keys; start it with --key-file FILE, which `shoal key create` makes";
        ApiError::new(StatusCode::CONFLICT, problem)
    })
}

/// The content of the file of keys; `None` without one.
pub(crate) async fn entries(state: &ConsoleState) -> ApiResult<Option<Vec<KeyEntry>>> {
    let Some(book) = &state.keys else { return Ok(None) };
    Ok(Some(on_file(book, |book| book.read()).await?.entries))
}

fn list<'a>(state: &'a ConsoleState, call: ApiCall<'a>) -> Answering<'a> {
    Box::pin(async move {
        check_admin(call.principal())?;
        let entries = entries(state).await?;
        let own = match call.principal().identity() {
            PrincipalId::Key(id) => Some(&**id),
            _ => None,
        };
        let millis =
            |date: &Option<_>| date.as_ref().and_then(seconds_of).map(|second| second.saturating_mul(1_000));
        let shown = |entry: &KeyEntry| {
            json!({
                "id": entry.id,
                "name": entry.name,
                "grants": entry.allow,
                "expires_ms": millis(&entry.expires),
                "certificate": entry.certificate,
                "rotated_until_ms": millis(&entry.old_until),
                "is_this_session": own == Some(&*entry.id),
            })
        };
        let keys: Vec<_> = entries.iter().flatten().map(shown).collect();
        let path = state.keys.as_ref().map(|book| book.path());
        json(StatusCode::OK, &json!({ "file": path, "keys": keys }), &call.permit)
    })
}

/// The document of a new key.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewKey {
    name: Option<String>,
    grants: Vec<String>,
    expires_ms: Option<u64>,
}

/// Checks that a party may hand out `grants`: a key with admin alone must not make itself one that reads everything.
fn check_hand_out(principal: &Principal, grants: &[String]) -> Result<(), KeyBookError> {
    for text in grants {
        let grant = Grant::parse(text).map_err(|error| KeyBookError::Refused(error.to_string()))?;
        if !principal.may_hand_out(&grant) {
            let problem = format!(
                "{} does not have the grant {text:?} itself, so it cannot give it to a key",
                principal.identity()
            );
            return Err(KeyBookError::Refused(problem));
        }
    }
    Ok(())
}

fn create<'a>(state: &'a ConsoleState, call: ApiCall<'a>) -> Answering<'a> {
    Box::pin(async move {
        check_admin(call.principal())?;
        let (book, principal, permit) = (book_of(state)?, call.principal().clone(), Arc::clone(&call.permit));
        let NewKey { name, grants, expires_ms } = call.document(state, DOCUMENT_BYTES_MAX).await?;
        let now_s = state.now_s();
        let expires_s = expires_ms.map(|millis| millis / 1_000);
        if expires_s.is_some_and(|expires_s| expires_s <= now_s) {
            return Err(ApiError::bad(
                "expires_ms is in the past; give a later time, or null for a key without an end",
            ));
        }
        if grants.is_empty() {
            return Err(ApiError::bad(
                "a key without grants may do nothing; give at least one, as \"read,list photos\"",
            ));
        }
        check_hand_out(&principal, &grants)?;
        let name = name.filter(|name| !name.is_empty());
        let made = change(book, move |file| {
            let made = file.create(name.clone(), grants.clone(), now_s, expires_s);
            made.cloned().map_err(|error| KeyBookError::Refused(error.to_string()))
        });
        secret_of(StatusCode::CREATED, &made.await?, &permit)
    })
}

/// Changes the file. Returns the key that was changed.
async fn change(
    book: &Arc<dyn KeyBook>,
    mut change: impl FnMut(&mut KeyFile) -> Result<KeyEntry, KeyBookError> + Send + 'static,
) -> ApiResult<KeyEntry> {
    let changed = on_file(book, move |book| {
        let mut changed = None;
        book.change(&mut |file| {
            changed = Some(change(file)?);
            Ok(())
        })?;
        Ok(changed)
    });
    let failed = || ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "the file of keys was not changed");
    changed.await?.ok_or_else(failed)
}

/// The id and the secret of a key: they are shown once.
fn secret_of(
    status: StatusCode,
    entry: &KeyEntry,
    permit: &Arc<shoal_http::MemoryPermit>,
) -> ApiResult<shoal_http::HttpAnswer> {
    json(status, &json!({ "id": entry.id, "secret": entry.secret }), permit)
}

/// The key `id`.
fn known(entries: Option<Vec<KeyEntry>>, id: &str) -> ApiResult<KeyEntry> {
    let found = entries.into_iter().flatten().find(|entry| entry.id == id);
    found.ok_or_else(|| {
        ApiError::new(StatusCode::NOT_FOUND, format!("there is no key {id:?}; load the list again"))
    })
}

fn revoke<'a>(state: &'a ConsoleState, call: ApiCall<'a>) -> Answering<'a> {
    Box::pin(async move {
        check_admin(call.principal())?;
        let (book, id) = (book_of(state)?, call.part);
        known(entries(state).await?, &id)?;
        let removed = change(book, move |file| {
            file.remove(&id).map_err(|error| KeyBookError::Refused(error.to_string()))
        });
        removed.await?;
        Ok(empty(StatusCode::NO_CONTENT))
    })
}

fn rotate<'a>(state: &'a ConsoleState, call: ApiCall<'a>) -> Answering<'a> {
    Box::pin(async move {
        check_admin(call.principal())?;
        let (book, principal) = (book_of(state)?, call.principal().clone());
        let (id, permit, now_s) = (call.part, call.permit, state.now_s());
        known(entries(state).await?, &id)?;
        let rotated = change(book, move |file| {
            // The caller gets the secret, and so the grants.
            let allow = file.entries.iter().find(|entry| entry.id == id).map(|entry| entry.allow.as_slice());
            check_hand_out(&principal, allow.unwrap_or_default())?;
            let rotated = file.rotate(&id, now_s, ROTATION_OVERLAP);
            rotated.cloned().map_err(|error| KeyBookError::Refused(error.to_string()))
        });
        secret_of(StatusCode::OK, &rotated.await?, &permit)
    })
}

/// The document of grants to be explained.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GivenGrants {
    grants: Vec<String>,
}

fn explain<'a>(state: &'a ConsoleState, call: ApiCall<'a>) -> Answering<'a> {
    Box::pin(async move {
        let permit = Arc::clone(&call.permit);
        let GivenGrants { grants } = call.document(state, DOCUMENT_BYTES_MAX).await?;
        let sentences: Result<Vec<_>, _> =
            grants.iter().map(|grant| Grant::parse(grant).map(|grant| grant.sentence())).collect();
        let sentences = sentences.map_err(|error| ApiError::bad(error.to_string()))?;
        json(StatusCode::OK, &json!({ "sentences": sentences }), &permit)
    })
}
