//! Sign-in, sign-out, and the session as its page sees it.

use std::sync::Arc;
use std::time::Duration;

use http::header::SET_COOKIE;
use http::{HeaderValue, Method, StatusCode};
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::json;
use shoal_api::{AwakeSleep, within};
use shoal_frontend::access::{ALL_KEYS, Action, Actions, PrincipalId, WHOLE_STORE};
use shoal_http::{HttpAnswer, MemoryPermit, Peer};
use shoal_metrics::note_caller;

use super::admit::Admitted;
use crate::answer::{ApiError, ApiResult, empty, json};
use crate::call::{Answering, ApiCall, Route, document};
use crate::state::ConsoleState;

/// Bytes of a sign-in.
const SIGN_IN_BYTES_MAX: usize = 4 << 10;

/// The time of a sign-in with a wrong credential.
const WRONG_PAUSE: Duration = Duration::from_millis(500);

/// The time for which a sign-in waits for the ones before it.
const TURN_WAIT_MAX: Duration = Duration::from_secs(5);

/// The routes of users that have signed in.
pub(crate) const ROUTES: &[Route] = &[
    Route { method: Method::GET, path: "session", name: "Session", answer: get },
    Route { method: Method::DELETE, path: "session", name: "SignOut", answer: sign_out },
];

fn get<'a>(state: &'a ConsoleState, call: ApiCall<'a>) -> Answering<'a> {
    Box::pin(async move { shown(state, &call.admitted, &call.permit) })
}

fn sign_out<'a>(state: &'a ConsoleState, call: ApiCall<'a>) -> Answering<'a> {
    Box::pin(async move {
        if let Some(session) = &call.admitted.session {
            state.sessions.end(session);
        }
        let mut answer = empty(StatusCode::NO_CONTENT);
        set_cookie(&mut answer, state, "");
        Ok(answer)
    })
}

/// The session as its page sees it.
fn shown(state: &ConsoleState, admitted: &Admitted, permit: &Arc<MemoryPermit>) -> ApiResult<HttpAnswer> {
    let principal = &admitted.principal;
    let identity = match principal.identity() {
        PrincipalId::Local => "this machine".to_owned(),
        identity => identity.to_string(),
    };
    let may = |action| principal.check(Actions::of(&[action]), WHOLE_STORE, ALL_KEYS).is_ok();
    let may: serde_json::Map<_, _> =
        Action::ALL.into_iter().map(|action| (action.name().to_owned(), may(action).into())).collect();
    let document = json!({
        "signed_in": true,
        "identity": identity,
        "csrf": &*admitted.csrf,
        "expires_ms": admitted.until_s.map_or(0, |until_s| until_s.saturating_mul(1_000)),
        "asks": state.security.asks(),
        "may": may,
        "s3": state.s3_url,
    });
    json(StatusCode::OK, &document, permit)
}

/// The answer to a request that has to sign in.
pub(crate) fn signed_out(state: &ConsoleState, permit: &Arc<MemoryPermit>) -> ApiResult<HttpAnswer> {
    json(StatusCode::UNAUTHORIZED, &json!({ "signed_in": false, "asks": state.security.asks() }), permit)
}

/// The document of a sign-in.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SignIn {
    /// Empty for a token.
    id: String,
    /// The secret of the key, or the token.
    secret: String,
}

/// Signs a user in. It gets a new session, with new words, and a session that it had is over.
///
/// # Errors
/// 400, 401, 413, 429.
pub(crate) async fn sign_in(
    state: &ConsoleState,
    peer: &Peer,
    (head, body): (&http::request::Parts, Incoming),
    permit: &Arc<MemoryPermit>,
) -> ApiResult<HttpAnswer> {
    let SignIn { id, secret } = document((head, body), permit, state, SIGN_IN_BYTES_MAX).await?;
    if !state.security.asks() {
        let problem = "this server asks for no credentials: everybody on this machine is let in";
        return Err(ApiError::bad(problem));
    }
    let turn = Arc::clone(&state.sessions.sign_ins).acquire_owned();
    let Some(turn) = within(TURN_WAIT_MAX, turn).await.and_then(Result::ok) else {
        let problem = "too many sign-ins at a time; try again in some seconds";
        return Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, problem));
    };
    let shown_credential = if id.is_empty() { secret } else { format!("{id}.{secret}") };
    let shown_credential = shown_credential.into_bytes().into_boxed_slice();
    let now_s = state.now_s();
    let known = state.security.with(|credentials| credentials.find_bearer(&shown_credential, || now_s));
    if let Err(reason) = known {
        // A client that goes away does not shorten the pause, so it cannot guess faster.
        let pause = tokio::spawn(async move {
            AwakeSleep::new(WRONG_PAUSE).await;
            drop(turn);
        });
        drop(pause.await);
        tracing::info!(peer = %peer.address, "a sign-in was refused: {reason}");
        let problem = "the key or token is unknown or has expired; `shoal key list` lists the keys";
        return Err(ApiError::new(StatusCode::UNAUTHORIZED, problem));
    }
    if let Some(Admitted { session: Some(old), .. }) = state.admit(peer, &head.headers) {
        state.sessions.end(&old);
    }
    let (session, word) = state.sessions.start(shown_credential, state.environment.clock.boot_ns())?;
    let Some(admitted) = state.admit_by(peer, Some(session)) else {
        let problem = "the key was revoked just now";
        return Err(ApiError::new(StatusCode::UNAUTHORIZED, problem));
    };
    note_caller(admitted.principal.identity());
    let mut answer = shown(state, &admitted, permit)?;
    set_cookie(&mut answer, state, &word);
    Ok(answer)
}

fn set_cookie(answer: &mut HttpAnswer, state: &ConsoleState, word: &str) {
    let secure = if state.security.is_encrypted() { "; Secure" } else { "" };
    let name = state.cookie();
    let max_age = if word.is_empty() { "; Max-Age=0" } else { "" };
    let cookie = format!("{name}={word}; HttpOnly; SameSite=Strict; Path=/{max_age}{secure}");
    if let Ok(cookie) = HeaderValue::try_from(cookie) {
        answer.headers_mut().insert(SET_COOKIE, cookie);
    }
}
