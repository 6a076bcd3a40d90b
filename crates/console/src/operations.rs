//! Work that a page starts: a scrub, a backup, a pause of relocation.

use std::time::UNIX_EPOCH;

use futures_util::stream as streams;
use http::{Method, StatusCode};
use serde::Deserialize;
use shoal_engine::ScrubStart;
use shoal_frontend::access::{ALL_KEYS, Action, Actions, Principal, WHOLE_STORE};
use shoal_server::BackupRefused;

use crate::answer::{ApiError, ApiResult, CutError, empty, stream};
use crate::call::{Answering, ApiCall, Route};
use crate::figures::{may_operate, set_file_name};
use crate::state::ConsoleState;

/// Bytes of the document of a pause.
const DOCUMENT_BYTES_MAX: usize = 1 << 10;

pub(crate) const ROUTES: &[Route] = &[
    Route { method: Method::POST, path: "scrub", name: "StartScrub", answer: scrub },
    Route { method: Method::GET, path: "backup", name: "Backup", answer: backup },
    Route { method: Method::POST, path: "relocation", name: "PauseRelocation", answer: relocation },
];

fn scrub<'a>(state: &'a ConsoleState, call: ApiCall<'a>) -> Answering<'a> {
    Box::pin(async move {
        may_operate(call.principal())?;
        match state.store.start_scrub() {
            ScrubStart::Started => {
                tracing::info!("{} started a scrub in the console", call.principal().identity());
                Ok(empty(StatusCode::ACCEPTED))
            }
            ScrubStart::Runs => {
                Err(ApiError::new(StatusCode::CONFLICT, "a scrub is under way already; wait for its end"))
            }
            ScrubStart::Off => Err(ApiError::new(
                StatusCode::CONFLICT,
                "this server scrubs nothing in the background: it was started with --scrub-every off",
            )),
        }
    })
}

/// Checks that the party may read every object and list every key, or is an administrator, as for the call of gRPC.
fn may_back_up(principal: &Principal) -> ApiResult<()> {
    let check = |actions: &[Action]| principal.check(Actions::of(actions), WHOLE_STORE, ALL_KEYS);
    check(&[Action::Read, Action::List]).or_else(|denied| check(&[Action::Admin]).map_err(|_| denied))?;
    Ok(())
}

/// The name of a backup that starts now.
fn backup_name(now_ns: u64) -> String {
    let time = humantime::format_rfc3339_seconds(UNIX_EPOCH + std::time::Duration::from_nanos(now_ns));
    let time: String = time.to_string().chars().filter(char::is_ascii_alphanumeric).collect();
    format!("shoal-backup-{time}.shoal")
}

fn backup<'a>(state: &'a ConsoleState, call: ApiCall<'a>) -> Answering<'a> {
    Box::pin(async move {
        may_back_up(call.principal())?;
        let sending = state.backups.start(&state.store, None).await.map_err(|refused| match refused {
            BackupRefused::Busy => ApiError::new(StatusCode::SERVICE_UNAVAILABLE, refused.to_string()),
            BackupRefused::Store(error) => error.into(),
        })?;
        let over = call.admitted.over(state);
        let chunks = streams::try_unfold((sending, over), |(mut sending, mut over)| async move {
            let chunk = tokio::select! {
                () = &mut over => return Err::<_, CutError>("the session is over, or the server stops".into()),
                chunk = sending.next() => chunk?,
            };
            Ok(chunk.map(|chunk| (chunk.into(), (sending, over))))
        });
        let mut answer = stream("application/octet-stream", Box::pin(chunks), call.permit);
        set_file_name(&mut answer, &backup_name(state.environment.clock.wall_ns()));
        Ok(answer)
    })
}

/// The document of a pause.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Pause {
    paused: bool,
}

fn relocation<'a>(state: &'a ConsoleState, call: ApiCall<'a>) -> Answering<'a> {
    Box::pin(async move {
        may_operate(call.principal())?;
        let identity = call.principal().identity().clone();
        let Pause { paused } = call.document(state, DOCUMENT_BYTES_MAX).await?;
        if paused {
            state.store.pause_relocation();
        } else {
            state.store.resume_relocation();
        }
        let done = if paused { "paused" } else { "resumed" };
        tracing::info!("{identity} {done} relocation in the console");
        Ok(empty(StatusCode::NO_CONTENT))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backups_are_named_after_their_start() {
        assert_eq!(backup_name(0), "shoal-backup-19700101T000000Z.shoal");
    }
}
