//! The life of an archiver: claim a log, open it, ship, and again after a gap.

use std::sync::Arc;
use std::time::Duration;

use shoal_base::Lsn;
use tokio::sync::Mutex;

use super::chain::LogChain;
use super::claim::{Claimant, ClaimedLog, new_owner};
use super::progress::Shared;
use super::ship::{LogEnded, Shipping};
use super::spool::SpoolAppender;
use super::status::{ArchiverState, BaseNeed};
use crate::format::{FormatError, Opening};
use crate::source::SourceError;

/// The pause after the log could not be noted.
const AGAIN: Duration = Duration::from_secs(5);

/// Runs until archiving is over.
pub(super) async fn run(shared: Arc<Shared>, appender: Arc<Mutex<SpoolAppender>>) {
    let mut is_first = true;
    let last = loop {
        shared.set_state(ArchiverState::Connecting { why: String::new() });
        let claimed = tokio::select! {
            claimed = Claimant::new(&shared, is_first).claim() => claimed,
            () = stopped(&shared) => Err(ArchiverState::Stopped),
        };
        let claimed = match claimed {
            Ok(claimed) => claimed,
            Err(state) => break state,
        };
        let shipping = match open(&shared, &appender, &claimed, is_first).await {
            Ok(shipping) => shipping,
            Err(OpenFailure::Closed) => break ArchiverState::Stopped,
            Err(OpenFailure::Wrong(error)) => {
                shared.gap(error.to_string());
                is_first = false;
                continue;
            }
        };
        is_first = false;
        match shipping.run().await {
            LogEnded::Gap => {}
            LogEnded::Stopped => break ArchiverState::Stopped,
            LogEnded::Fenced(why) => {
                break ArchiverState::Fenced { owner: new_owner(&shared).await, why };
            }
        }
    };
    if let ArchiverState::Fenced { owner, why } = &last {
        tracing::error!(
            "another server owns the archive: {why}. The owner is {:?} ({:?}, {:?}) since epoch {}. This server continues without an archive",
            owner.name.node,
            owner.name.resp,
            owner.name.grpc,
            owner.epoch
        );
    }
    if let ArchiverState::Refused { why } = &last {
        tracing::error!("{why}");
    }
    match last {
        // The records that are not archived stay where they are, for the next process.
        ArchiverState::Stopped => shared.set_state(last),
        _ => shared.give_up(last),
    }
}

/// Waits until archiving is stopped.
pub(super) async fn stopped(shared: &Shared) {
    while !shared.is_stopping() {
        shared.shipper.notified().await;
    }
}

enum OpenFailure {
    Closed,
    Wrong(FormatError),
}

/// Opens the log: decides whether it continues the one before, remembers it, and makes slot 0.
async fn open(
    shared: &Arc<Shared>,
    appender: &Mutex<SpoolAppender>,
    claimed: &ClaimedLog,
    is_first: bool,
) -> Result<Shipping, OpenFailure> {
    loop {
        match shared.store.remember_log(claimed.log).await {
            Ok(()) => break,
            Err(SourceError::Closed(_)) => return Err(OpenFailure::Closed),
            // For want of room, for instance.
            Err(SourceError::Lost(why)) => {
                tracing::warn!("the archive waits: its log cannot be noted in the store: {why}");
                shared.set_state(ArchiverState::Connecting { why });
            }
        }
        tokio::select! {
            () = tokio::time::sleep(AGAIN) => {}
            () = stopped(shared) => return Err(OpenFailure::Closed),
        }
    }
    // Nothing is spooled meanwhile.
    let mut appender = appender.lock().await;
    let why = not_continued(shared, claimed, is_first);
    let from = match (&why, claimed.previous.and_then(|previous| previous.last)) {
        (None, Some(last)) => last,
        _ => {
            if let Err(error) = appender.clear().await {
                tracing::warn!("the spool {} cannot be emptied: {error}", shared.options.spool.display());
            }
            shared.store.durable()
        }
    };
    let previous = claimed.previous;
    let opening = Opening {
        host_id: shared.options.host_id.clone(),
        boot_id: shared.options.boot_id.clone(),
        owner: shared.options.owner.clone(),
        program: env!("CARGO_PKG_VERSION").to_owned(),
        previous_log: previous.map_or(0, |previous| previous.id),
        previous_end: previous.map_or(0, |previous| previous.end),
        previous_last_lsn: previous.and_then(|previous| previous.last).unwrap_or_default(),
    };
    let mut chain = LogChain::new(*shared.volume(), claimed.log, claimed.epoch, from);
    let made = chain.opening(shared.entropy.next_u64(), &opening, why.is_some());
    let made = made.map_err(OpenFailure::Wrong)?;
    need(shared, claimed, why.as_deref(), from);
    {
        let mut progress = shared.progress.lock();
        let is_counted = progress.gap.is_some() && progress.log != 0;
        (progress.follows, progress.gap, progress.is_behind) = (false, None, false);
        // Those of the log before.
        progress.flights.clear();
        progress.trouble = None;
        progress.gaps += u64::from(why.is_some() && previous.is_some() && !is_counted);
        (progress.archived, progress.log, progress.epoch) = (from, claimed.log, claimed.epoch);
        (progress.next_slot, progress.replay_slot) = (0, 0);
        progress.state = ArchiverState::Shipping;
    }
    shared.release();
    shared.publish_safe();
    Ok(Shipping::new(Arc::clone(shared), chain, claimed.window, made, from))
}

/// The reason why the new log does not continue the one before; `None` if it does.
fn not_continued(shared: &Shared, claimed: &ClaimedLog, is_first: bool) -> Option<String> {
    let gap = shared.progress.lock().gap.clone();
    if let Some(gap) = gap {
        return Some(gap);
    }
    let Some(previous) = claimed.previous else { return Some("the archive is new".to_owned()) };
    let facts = &shared.facts;
    let Some(last) = previous.last else {
        return Some(format!("the end of log {:016x} is not known", previous.id));
    };
    // Where the records that are not in the archive start: in the spool, or in the store's log.
    let kept_from = shared.spool.from().unwrap_or_else(|| shared.progress.lock().released);
    let why = if !is_first || facts.remembered_log != previous.id {
        format!("this store did not write log {:016x}, the last one of the archive", previous.id)
    } else if facts.last_owned < last {
        let owned = facts.last_owned;
        format!(
            "the store wrote to the archive up to record {owned} at most, and the archive has records up to {last}"
        )
    } else if kept_from > last {
        format!("the store's log starts after record {kept_from}, and the archive has records up to {last}")
    } else {
        return None;
    };
    Some(why)
}

/// Notes the need of a base, if there is one.
fn need(shared: &Shared, claimed: &ClaimedLog, why: Option<&str>, from: Lsn) {
    let needed = match (why, claimed.open_gap) {
        (Some(why), _) => Some((why.to_owned(), from)),
        (None, Some(gap)) => Some(("the last gap has no base yet".to_owned(), gap)),
        (None, None) if !claimed.has_base => Some(("the archive has no base yet".to_owned(), from)),
        (None, None) => None,
    };
    if let Some((why, since)) = needed {
        shared.needs_base(BaseNeed { why, since, log: claimed.log, seq: 0 });
    }
}
