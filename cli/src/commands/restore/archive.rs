//! `shoal restore --archive`: a new store as an archived one was at a moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, anyhow};
use serde_json::json;
use shoal_archive::restore::{ArchiveReader, RestoreMoment, RestorePlan, RestoreProgress, RestoredState};
use shoal_engine::Lsn;
use shoal_transfer::text::{counted, show_count};

use super::lanes::Lanes;
use super::{Arguments, VERSIONS_BETWEEN};
use crate::arguments::archive;
use crate::arguments::size::Size;
use crate::arguments::target::DEFAULT_CACHE;
use crate::failure::{Reported, Usage};
use crate::memory::limit::default_cache;
use crate::output::progress::{Ticker, drawn};
use crate::output::{Output, show_time, warn};
use crate::process::signals::stop_in_order;
use crate::store::file::{Access, NewStore, StoreOptions};

/// Parses a time as RFC 3339, nanoseconds since the Unix epoch.
pub(crate) fn parse_time(text: &str) -> Result<u64, String> {
    let time = humantime::parse_rfc3339_weak(text)
        .map_err(|_| "a time in UTC is expected, such as 2026-11-28T14:02:59Z".to_owned())?;
    let since = time.duration_since(SystemTime::UNIX_EPOCH).map_err(|error| error.to_string())?;
    u64::try_from(since.as_nanos()).map_err(|_| "a time before 2554 is expected".to_owned())
}

fn moment_of(arguments: &Arguments) -> anyhow::Result<RestoreMoment> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
    match (arguments.at, arguments.version) {
        (Some(ns), _) if u128::from(ns) > now => {
            Err(Usage(format!("--at {} is in the future: leave it out for the newest moment", show_time(ns)))
                .into())
        }
        (Some(ns), _) => Ok(RestoreMoment::Time(ns)),
        (None, Some(version)) => Ok(RestoreMoment::Version(Lsn(version))),
        (None, None) => Ok(RestoreMoment::Newest),
    }
}

/// The counts of the restored store.
struct Counted {
    objects: u64,
    /// Objects that count by estimate until a compaction.
    estimated: u64,
    value_bytes: u64,
    expired: u64,
    missing: u64,
}

pub(super) async fn run(arguments: &Arguments, url: &str) -> anyhow::Result<()> {
    let moment = moment_of(arguments)?;
    let is_stopped = Arc::new(AtomicBool::new(false));
    let stop = is_stopped.clone();
    stop_in_order(move || stop.store(true, Ordering::Relaxed))?;
    let (bucket, keeper) = archive::open(url)?;
    let failure = || format!("cannot restore from the archive {url}");
    let reader = ArchiveReader::open(bucket, &keeper).await.with_context(failure)?;
    let plan = reader.plan(moment).with_context(failure)?;
    let newest = reader.newest().await.with_context(failure)?;
    let first_version = newest.version.0.checked_add(VERSIONS_BETWEEN);
    let first_version = first_version.ok_or_else(|| anyhow!("version {} is too large", newest.version))?;
    let options = StoreOptions {
        access: Access::Create,
        size: arguments.size,
        // The results of requests are beside their keys, by tablet.
        tablets: Some(reader.record().tablets),
        cache: arguments.cache.unwrap_or_else(|| default_cache(DEFAULT_CACHE)),
        ..StoreOptions::default()
    };
    let new = NewStore::create(&arguments.data, &options, first_version, plan.base.bytes).await?;
    let (progress, started) = (Arc::new(RestoreProgress::default()), Instant::now());
    let until_ns = match moment {
        RestoreMoment::Time(ns) => ns.min(newest.wall_ns),
        RestoreMoment::Newest | RestoreMoment::Version(_) => newest.wall_ns,
    };
    let shown = show(&progress, &plan, until_ns, arguments.json);
    let mut lanes = Lanes::new(&new.store, is_stopped);
    let restored = reader.restore(&plan, &mut lanes, &progress).await.map_err(anyhow::Error::from);
    let restored = match restored {
        Ok(state) => finish(&new, &mut lanes).await.map(|counted| (state, counted)),
        Err(error) => Err(error),
    };
    drop(shown);
    let (state, counted) = match restored {
        Ok(restored) => restored,
        Err(error) => {
            drop(lanes);
            new.discard().await;
            let data = arguments.data.display();
            return Err(error.context(format!("nothing was restored into {data} from the archive {url}")));
        }
    };
    new.finish().await?;
    tell(arguments, &plan, &state, &counted, (first_version, started.elapsed()))?;
    if counted.missing == 0 { Ok(()) } else { Err(Reported.into()) }
}

async fn finish(new: &NewStore, lanes: &mut Lanes) -> anyhow::Result<Counted> {
    lanes.finish().await?;
    new.store.count_results().await?;
    // A snapshot applies everything: the counts are exact then.
    drop(new.store.snapshot().await.context("the restored objects cannot be counted")?);
    let stat = new.store.stat();
    Ok(Counted {
        objects: stat.objects.saturating_sub(lanes.buckets.len() as u64),
        estimated: stat.unsettled,
        value_bytes: stat.value_bytes_with_log(),
        expired: lanes.expired,
        missing: lanes.missing,
    })
}

fn tell(
    arguments: &Arguments,
    plan: &RestorePlan,
    state: &RestoredState,
    counted_up: &Counted,
    (first_version, elapsed): (u64, Duration),
) -> anyhow::Result<()> {
    let Counted { objects, estimated, value_bytes, expired, missing } = *counted_up;
    let mut output = Output::new();
    if arguments.json {
        output.json(&json!({
            "data": arguments.data.to_string_lossy(),
            "version": state.version.0,
            "taken": show_time(state.wall_ns),
            "taken_ns": state.wall_ns,
            "first_version": first_version,
            "base": format!("{:016x}", plan.base.id),
            "base_bytes": state.base_bytes,
            "log_bytes": state.log_bytes,
            "log_writes": state.log_writes,
            "objects": objects,
            "objects_estimated": estimated,
            "value_bytes": value_bytes,
            "expired": expired,
            "missing": missing,
            "seconds": elapsed.as_secs_f64(),
        }))?;
        return output.finish();
    }
    let mut line = format!(
        "{}: {}{} with {} of values, as of version {} of {}; {} of a base and {} of log in {:.1} s",
        arguments.data.display(),
        if estimated > 0 { "about " } else { "" },
        counted(objects, "object"),
        Size(value_bytes),
        state.version,
        show_time(state.wall_ns),
        Size(state.base_bytes),
        Size(state.log_bytes),
        elapsed.as_secs_f64()
    );
    if expired > 0 {
        line.push_str(&format!("; {} expired meanwhile", show_count(expired)));
    }
    if missing > 0 {
        line.push_str(&format!(
            "; missing in the store when the base was made: {}",
            counted(missing, "thing")
        ));
    }
    output.line(&line)?;
    output.finish()
}

/// Shows the progress until it is dropped. With `as_json` nothing.
fn show(
    progress: &Arc<RestoreProgress>,
    plan: &RestorePlan,
    until_ns: u64,
    as_json: bool,
) -> Option<(Ticker, Option<indicatif::ProgressBar>)> {
    if as_json {
        return None;
    }
    let (progress, from_ns) = (progress.clone(), plan.base.taken_ns);
    let mut rate = Rate { started: Instant::now(), log_started: None };
    let bar = drawn("{spinner} {wide_msg}");
    let shown = bar.clone();
    let ticker = Ticker::start(bar.is_some(), move || {
        let message = format!("restore: {}", rate.message(&progress, from_ns, until_ns));
        match &bar {
            Some(bar) => {
                bar.set_message(message);
                bar.tick();
            }
            None => warn(&message),
        }
    });
    Some((ticker, shown))
}

/// The rates of a restore.
struct Rate {
    started: Instant,
    /// The first sight of the log, and its bytes then.
    log_started: Option<(Instant, u64)>,
}

impl Rate {
    fn message(&mut self, progress: &RestoreProgress, from_ns: u64, until_ns: u64) -> String {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (all, base, log) = (get(&progress.base_bytes), get(&progress.base_done), get(&progress.log_done));
        let writes = counted(get(&progress.writes), "write");
        let wall_ns = get(&progress.wall_ns);
        let rate = |bytes: u64, seconds: f64| bytes as f64 / seconds.max(1e-3) / 1e6;
        if log == 0 {
            let seconds = self.started.elapsed().as_secs_f64();
            let mut text =
                format!("base: {} of {}, {writes}, {:.1} MB/s", Size(base), Size(all), rate(base, seconds));
            if base > 0 {
                let left = all.saturating_sub(base) as f64 / base as f64 * seconds;
                text.push_str(&format!(", about {left:.0} s left and the log"));
            }
            return text;
        }
        let (since, bytes) = *self.log_started.get_or_insert_with(|| (Instant::now(), log));
        let seconds = since.elapsed().as_secs_f64();
        let mut text = format!("log: {}, {writes}", Size(log));
        if log > bytes {
            text.push_str(&format!(", {:.1} MB/s", rate(log - bytes, seconds)));
        }
        if wall_ns > 0 {
            text.push_str(&format!(", at {}", show_time(wall_ns)));
            let done =
                wall_ns.saturating_sub(from_ns) as f64 / until_ns.saturating_sub(from_ns).max(1) as f64;
            if done > 0.01 && done < 1.0 {
                text.push_str(&format!(", about {:.0} s left", seconds / done * (1.0 - done)));
            }
        }
        text
    }
}
