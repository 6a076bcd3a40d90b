//! `shoal serve`: opens the store, creating it at the first start, and serves it until a signal.

mod archive;
mod arguments;
mod console;
mod file;
mod frontends;
mod key_book;
mod s3_keys;
mod settings;
mod watch;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use shoal_base::BLOCK_BYTES_U64;
use shoal_console::ConsoleSources;
use shoal_engine::{Bucket, Store};
use shoal_redis::RedisServer;
use shoal_s3::S3Server;
use shoal_server::{Security, Server};
use tokio::sync::oneshot;

use self::archive::ServedArchive;
pub(crate) use self::arguments::Arguments;
pub(crate) use self::file::{defaults, keys, read as read_file};
use self::frontends::Frontends;
use self::key_book::ServedKeys;
use self::settings::Settings;
pub(crate) use self::settings::divided_memory;
use self::watch::Watching;
use crate::arguments::credentials::watch;
use crate::arguments::size::Size;
use crate::failure::announce;
use crate::logging::{self, LogFormat};
use crate::memory::allocator;
use crate::process::notify;
use crate::process::resolve::in_words;
use crate::process::signals::{hang_ups, stop_in_order};
use crate::process::stopping::{self, StopThread, StopTime, say_left_over};
use crate::store;
use crate::store::buckets::{default_of_redis, log_choice};
use shoal_transfer::objects::Objects;

/// A start waits this long for the count of the results that an earlier run stored.
const RESULTS_WAIT: Duration = Duration::from_secs(1);

pub(crate) async fn run(arguments: Arguments, log: Option<String>) -> anyhow::Result<()> {
    let settings = with_log(arguments, log)?;
    let metrics = settings.watch.audited_metrics()?;
    metrics.set_memory(settings.memory.figures());
    let (stop, stopped) = oneshot::channel();
    let time = Arc::new(StopTime::new(settings.stop_timeout));
    let begun = Arc::clone(&time);
    stop_in_order(move || {
        begun.begin();
        notify::tell(notify::STOPPING);
        tracing::info!("stopping; another signal stops at once, which loses nothing that was acknowledged");
        // The receiver is dropped if the server is not running yet or not any more.
        let _ = stop.send(());
    })?;
    let hang_ups = hang_ups()?;
    if settings.memory.is_lean() {
        allocator::keep_nothing();
    }
    let stop_thread = Arc::new(StopThread::start()?);
    let security = Security::new(settings.credentials.read()?);
    let of_s3 = s3_keys::security(&settings, &security)?;
    let mut frontends = Frontends::bind(&settings, (&security, &of_s3), &metrics).await?;
    let listener = settings.watch.bind().await?;
    let told_at = listener.as_ref().map_or_else(Vec::new, |listener| listener.addresses().to_vec());
    let watched = Watching::start(listener, &metrics);
    frontends.warn_of_openness(&settings, &security);
    let store = store::file::open(&settings.data, &settings.store).await?;
    warn_of_losses(&settings, &store);
    count_results(&store).await;
    frontends.redis = with_bucket(frontends.redis, &settings, &store).await?;
    let health = watched.health().clone();
    let stopped = async move {
        drop(stopped.await);
        health.stops();
    };
    let archive = ServedArchive::start(&settings, &store, &frontends)?;
    say_start(&settings, &store, &frontends, &told_at);
    let mut credentials = vec![(settings.credentials.clone(), security)];
    credentials.extend(frontends.s3.as_ref().and_then(|s3| s3_keys::start(&settings, s3, of_s3)));
    let keys = ServedKeys::of(&credentials);
    frontends.know(keys, console_sources(&settings, &watched, &frontends.server));
    let watching = tokio::spawn(watch(credentials, hang_ups));
    // Before the addresses are announced: a reader of them may ask for the health at once.
    watched.health().serves(store.clone());
    announce(&frontends.addresses(&told_at));
    notify::tell(notify::READY);
    // A separate task: after the deadline of the stop this does not wait for it.
    let serving = tokio::spawn(frontends.serve(store.clone(), stopped, Arc::clone(&stop_thread)));
    let served = tokio::select! {
        served = serving => served.context("the server ended by an error of the program")?,
        () = time.over() => {
            let said = say_left_over(&store, &settings.data, "requests under way did not end in time");
            // Requests that hold the store continue until the program exits.
            std::mem::forget(store);
            return said;
        }
    };
    // If the server stopped by itself.
    time.begin();
    watching.abort();
    drop(watched);
    if let Some(audit) = metrics.audit() {
        audit.finish();
    }
    ServedArchive::stop(archive, time.left() / 3).await;
    tracing::info!("closing {}", settings.data.display());
    let closed = stopping::close(store, &time, &stop_thread, &settings.data).await;
    served?;
    closed
}

/// The state of the server for its console.
fn console_sources(settings: &Settings, watched: &Watching, server: &Server) -> ConsoleSources {
    let (health, backups) = (watched.health().clone(), server.backups());
    ConsoleSources { health, report: settings.watch.report(), backups }
}

/// Sets the Redis frontend's bucket to the one that follows from the store, unless an option names one. The choice is made at
/// the start and holds until the stop: clients never see another bucket while they are connected.
async fn with_bucket(
    redis: Option<RedisServer>,
    settings: &Settings,
    store: &Store,
) -> anyhow::Result<Option<RedisServer>> {
    let redis = match redis {
        Some(redis) if settings.is_resp_bucket_free => redis,
        other => return Ok(other),
    };
    let objects = Objects::embedded(store.clone(), settings.data.clone());
    let chosen = default_of_redis(&objects).await;
    let chosen = chosen.context("cannot learn which bucket Redis clients see; --resp-bucket names it")?;
    log_choice(&objects, chosen).await;
    Ok(Some(redis.with_bucket(Bucket::new(chosen)?)))
}

/// The settings, with the log started.
fn with_log(arguments: Arguments, log: Option<String>) -> anyhow::Result<Settings> {
    let format = log_format(&arguments);
    let settings = Settings::new(arguments, log);
    if settings.is_err() && format == LogFormat::Json {
        // The error is a line of the log, too.
        logging::start_server("error", format)?;
    }
    let settings = settings?;
    logging::start_server(&settings.log, settings.log_format)?;
    warn_of_settings(&settings);
    Ok(settings)
}

/// The format of the log as far as it is known before all settings are checked.
fn log_format(arguments: &Arguments) -> LogFormat {
    let of_file = || read_file(arguments.config.as_deref()?).ok()?.log_format;
    arguments.log_format.or_else(of_file).unwrap_or_default()
}

fn warn_of_settings(settings: &Settings) {
    if let Some(warning) = &settings.memory_warning {
        tracing::warn!("{warning}");
    }
    if settings.store.shared_device {
        tracing::warn!(
            "--shared-device is an alarm, not a fence: this server stops writing when it finds another one on {}, and writes of both may be \
             lost by then. The device has to refuse the former server (docs/operate/network-devices.md)",
            settings.data.display()
        );
    }
    if settings.is_resp_open {
        tracing::warn!(
            "the Redis frontend is off: it would let in everybody on this machine, and gRPC asks for credentials; \
             give --key-file or --password-file, or --resp off"
        );
    }
}

/// Counts the stored results of an earlier run, which are no objects. A start waits at most [`RESULTS_WAIT`] for it:
/// until the count completes, the figures count them as objects.
async fn count_results(store: &Store) {
    let store = store.clone();
    let counting = tokio::spawn(async move {
        if let Err(error) = store.count_results().await {
            tracing::warn!("stored results of an earlier run count as objects in the figures: {error}");
        }
    });
    drop(tokio::time::timeout(RESULTS_WAIT, counting).await);
}

fn warn_of_losses(settings: &Settings, store: &Store) {
    let losses = store.stat().losses;
    if !losses.is_none() {
        let data = settings.data.display();
        tracing::warn!(
            "{data} was repaired with losses: {losses}; acknowledge this with `shoal check --data {data} --acknowledge`"
        );
    }
}

/// Checks everything that a start checks before it opens the store: values, files, and that the addresses are this machine's
/// and may be listened on. Takes no port, and no data file.
///
/// # Errors
/// As those of a start.
pub(crate) async fn check(arguments: Arguments, log: Option<String>) -> anyhow::Result<()> {
    let settings = Settings::new(arguments, log)?;
    let (metrics, security) = (settings.watch.metrics(), Security::new(settings.credentials.read()?));
    Frontends::check(&settings, &security, &metrics).await?;
    settings.watch.check().await
}

/// Logs one line with the addresses, sizes and counts of this start.
fn say_start(
    settings: &Settings,
    store: &Store,
    Frontends { server, redis, s3, console, .. }: &Frontends,
    metrics: &[SocketAddr],
) {
    let stat = store.stat();
    let bytes = |blocks: u64| Size(blocks.saturating_mul(BLOCK_BYTES_U64));
    let or_off = |addresses: &[SocketAddr]| match addresses {
        [] => "off".to_owned(),
        some => in_words(some),
    };
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        grpc = in_words(server.addresses()),
        redis = or_off(redis.as_ref().map_or(&[], RedisServer::addresses)),
        redis_bucket = redis.as_ref().map(RedisServer::bucket),
        s3 = or_off(s3.as_ref().map_or(&[], S3Server::addresses)),
        console = or_off(console.as_ref().map_or(&[], |console| console.server.addresses())),
        metrics = or_off(metrics),
        archive = settings.archive.as_ref().map_or("off", |archive| archive.named.as_str()),
        objects = stat.objects_with_log(),
        size = %bytes(stat.device_blocks),
        cap = %bytes(stat.blocks_max),
        free = %bytes(stat.room_blocks()),
        cache = %bytes(stat.pool.frames as u64),
        memory = settings.memory.words(),
        "serving {}",
        settings.data.display(),
    );
}
