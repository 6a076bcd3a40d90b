//! URLs by which their holders may read an object at the S3 frontend, without a key.

use std::sync::Arc;

use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::json;
use shoal_frontend::access::{Action, Actions, PrincipalId};
use shoal_metrics::note_key;

use crate::answer::{ApiError, ApiResult, json};
use crate::call::{Answering, ApiCall, Route};
use crate::keys::entries;
use crate::state::ConsoleState;

/// Bytes of a request.
const DOCUMENT_BYTES_MAX: usize = 8 << 10;

/// The longest life of a URL, in seconds: 7 days.
const LIFE_S_MAX: u32 = 7 * 86_400;

/// The routes of URLs.
pub(crate) const ROUTES: &[Route] =
    &[Route { method: Method::POST, path: "presign", name: "Presign", answer: presign }];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    bucket: String,
    key: String,
    seconds: u32,
}

fn presign<'a>(state: &'a ConsoleState, call: ApiCall<'a>) -> Answering<'a> {
    Box::pin(async move {
        let (principal, permit) = (call.principal().clone(), Arc::clone(&call.permit));
        let Wanted { bucket, key, seconds } = call.document(state, DOCUMENT_BYTES_MAX).await?;
        note_key(&bucket, key.as_bytes());
        if !(1..=LIFE_S_MAX).contains(&seconds) {
            return Err(ApiError::bad(format!(
                "seconds must be 1 to {LIFE_S_MAX}: a URL is valid for at most 7 days"
            )));
        }
        principal.check(Actions::of(&[Action::Read]), &bucket, key.as_bytes())?;
        let conflict = |problem: &str| ApiError::new(StatusCode::CONFLICT, problem);
        let off =
            "the S3 frontend is off, so nobody answers such a URL; start the server with --s3 HOST:PORT";
        let endpoint = state.s3_url.as_deref().ok_or_else(|| conflict(off))?;
        let signed = |id: &str| state.objects.presign((endpoint, id), (&bucket, key.as_bytes()), seconds);
        let url = match principal.identity() {
            PrincipalId::Key(id) => signed(id),
            PrincipalId::Local => first_signer(state, &bucket, &key).await?.and_then(|id| signed(&id)),
            _ => None,
        };
        let none = "a URL is signed by a key with a secret, and this session has none that may read the object; sign in with a key";
        let url = url.ok_or_else(|| conflict(none))?;
        json(StatusCode::OK, &json!({ "url": url }), &permit)
    })
}

/// The first key of the file of keys that may read the object and has a secret.
async fn first_signer(state: &ConsoleState, bucket: &str, key: &str) -> ApiResult<Option<String>> {
    let may_read = |id: &str| {
        let signer = state.objects.signer(id);
        signer
            .is_some_and(|signer| signer.check(Actions::of(&[Action::Read]), bucket, key.as_bytes()).is_ok())
    };
    let entries = entries(state).await?.unwrap_or_default();
    let found = entries.into_iter().find(|entry| entry.secret.is_some() && may_read(&entry.id));
    Ok(found.map(|entry| entry.id))
}
