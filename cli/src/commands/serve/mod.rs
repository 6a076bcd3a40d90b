//! `shoal serve`: opens the store, creating it at the first start, and serves it until a signal.

mod arguments;
mod file;
mod settings;
mod watch;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use shoal_base::BLOCK_BYTES_U64;
use shoal_engine::{Bucket, Environment, Store};
use shoal_metrics::Metrics;
use shoal_redis::{RedisOptions, StartError, Tls};
use shoal_server::{Security, ServeError, Server, ServerLimits, ServerOptions};
use tokio::sync::oneshot;

pub(crate) use self::arguments::Arguments;
pub(crate) use self::file::{keys, read as read_file};
pub(crate) use self::settings::divided_memory;
use self::settings::{DEFAULT_LISTEN, DEFAULT_RESP, Settings};
use self::watch::Watching;
use crate::arguments::size::Size;
use crate::failure::{Usage, announce};
use crate::logging::{self, LogFormat};
use crate::memory::allocator;
use crate::process::notify;
use crate::process::resolve::{in_words, resolve};
use crate::process::signals::{hang_ups, stop_in_order};
use crate::process::stopping::{self, StopThread, StopTime, say_left_over};
use crate::store;
use crate::store::buckets::{default_of_redis, log_choice};
use shoal_transfer::objects::Objects;
use shoal_transfer::text::one_line;

/// The danger of an address that asks for no credentials.
const OPEN: &str = "every client that reaches it may read, change and delete everything";
const UNENCRYPTED: &str = "tokens, keys and values go through the network as plain text";
/// A start waits this long for the count of the results that an earlier run stored.
const RESULTS_WAIT: Duration = Duration::from_secs(1);

pub(crate) async fn run(arguments: Arguments, log: Option<String>) -> anyhow::Result<()> {
    let settings = with_log(arguments, log)?;
    let metrics = settings.watch.metrics();
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
    warn_of_settings(&settings);
    let security = Security::new(settings.credentials.read()?);
    let listen = resolve(&settings.listen, DEFAULT_LISTEN).await?;
    let server = bind(&settings, &security, &metrics, &listen).await?;
    let redis = match &settings.resp {
        Some((address, _)) => {
            let listen = resolve(address, DEFAULT_RESP).await?;
            bind_redis(&settings, &security, &metrics, &listen)?
        }
        None => None,
    };
    let listener = settings.watch.bind().await?;
    let told_at = listener.as_ref().map_or_else(Vec::new, |listener| listener.addresses().to_vec());
    let watched = Watching::start(listener, &metrics);
    warn_of_openness(&settings, &security, &server, redis.as_ref());
    let store = store::file::open(&settings.data, &settings.store).await?;
    warn_of_losses(&settings, &store);
    count_results(&store).await;
    let redis = with_bucket(redis, &settings, &store).await?;
    let watching = tokio::spawn(settings.credentials.clone().watch(security, hang_ups));
    let health = watched.health().clone();
    let stopped = async move {
        drop(stopped.await);
        health.stops();
    };
    say_start(&settings, &store, &server, redis.as_ref(), &told_at);
    // Before the addresses are announced: a reader of them may ask for the health at once.
    watched.health().serves(store.clone());
    announce(&addresses(&server, redis.as_ref(), &told_at));
    notify::tell(notify::READY);
    // A separate task: after the deadline of the stop this does not wait for it.
    let serving = tokio::spawn(serve(store.clone(), server, redis, stopped, Arc::clone(&stop_thread)));
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
    tracing::info!("closing {}", settings.data.display());
    let closed = stopping::close(store, &time, &stop_thread, &settings.data).await;
    served?;
    closed
}

/// Sets the Redis frontend's bucket to the one that follows from the store, unless an option names one. The choice is made at
/// the start and holds until the stop: clients never see another bucket while they are connected.
async fn with_bucket(
    redis: Option<shoal_redis::RedisServer>,
    settings: &Settings,
    store: &Store,
) -> anyhow::Result<Option<shoal_redis::RedisServer>> {
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
    let listen = resolve(&settings.listen, DEFAULT_LISTEN).await?;
    let bound = bind(&settings, &security, &metrics, &any_port(&listen)).await;
    drop(bound.map_err(|error| named(&error, &listen))?);
    if let Some((address, _)) = &settings.resp {
        let listen = resolve(address, DEFAULT_RESP).await?;
        let bound = bind_redis(&settings, &security, &metrics, &any_port(&listen));
        drop(bound.map_err(|error| named(&error, &listen))?);
    }
    settings.watch.check().await
}

/// The addresses of a name: the first, and the others.
type Addresses = (SocketAddr, Vec<SocketAddr>);

/// The addresses with a port that is free.
fn any_port((first, others): &Addresses) -> Addresses {
    let free = |address: &SocketAddr| SocketAddr::new(address.ip(), 0);
    (free(first), others.iter().map(free).collect())
}

/// The error about [`any_port`] of `listen`, with the port that was asked for.
fn named(error: &anyhow::Error, (first, others): &Addresses) -> Usage {
    let with_port = |error: String, address: &SocketAddr| {
        error.replace(&SocketAddr::new(address.ip(), 0).to_string(), &address.to_string())
    };
    Usage(others.iter().chain([first]).fold(one_line(error), with_port))
}

/// Logs the openings of --insecure: addresses that other machines reach, without credentials or without encryption.
fn warn_of_openness(
    settings: &Settings,
    security: &Security,
    server: &Server,
    redis: Option<&shoal_redis::RedisServer>,
) {
    let reachable = |addresses: &[SocketAddr]| {
        let open = addresses.iter().filter(|address| !address.ip().to_canonical().is_loopback());
        in_words(&open.copied().collect::<Vec<_>>())
    };
    let grpc = reachable(server.addresses());
    if !grpc.is_empty() && !security.is_safe() {
        let risk = if security.asks() { UNENCRYPTED } else { OPEN };
        tracing::warn!("--insecure: gRPC listens on {grpc}, which other machines reach; {risk}");
    }
    let Some((redis, (_, options))) = redis.zip(settings.resp.as_ref()) else { return };
    let redis = reachable(redis.addresses());
    let asks = options.password.is_some() || settings.asks_redis_keys() || settings.asks_redis_certificates();
    if !redis.is_empty() && !asks {
        tracing::warn!(
            "--insecure: the Redis protocol listens on {redis}, which other machines reach; {OPEN}"
        );
    }
}

/// Serves `store` until a stop or a failure. The store is still open when this returns.
async fn serve(
    store: Store,
    server: Server,
    redis: Option<shoal_redis::RedisServer>,
    stopped: impl Future<Output = ()> + Send,
    stop: Arc<StopThread>,
) -> anyhow::Result<()> {
    let redis = redis.map(|redis| redis.start(store.clone(), Environment::default())).transpose()?;
    let served = server.run(store, stopped).await;
    // Waits for its threads, which finish the turn that they are in.
    stop.run(move || drop(redis)).await.context("the Redis frontend did not stop")?;
    Ok(served?)
}

/// Logs one line with the addresses, sizes and counts of this start.
fn say_start(
    settings: &Settings,
    store: &Store,
    server: &Server,
    redis: Option<&shoal_redis::RedisServer>,
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
        redis = or_off(redis.map_or(&[], shoal_redis::RedisServer::addresses)),
        redis_bucket = redis.map(shoal_redis::RedisServer::bucket),
        metrics = or_off(metrics),
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

/// One line for each address of a frontend. They are printed at once: the reader of the first line may be gone before another one came.
fn addresses(server: &Server, redis: Option<&shoal_redis::RedisServer>, metrics: &[SocketAddr]) -> String {
    let scheme = if server.is_encrypted() { "https" } else { "http" };
    let mut lines = String::new();
    for address in server.addresses() {
        lines += &format!("gRPC  {scheme}://{address}\n");
    }
    for (redis, address) in redis.iter().flat_map(|redis| redis.addresses().iter().map(move |it| (redis, it)))
    {
        let scheme = if redis.is_encrypted() { "rediss" } else { "redis" };
        lines += &format!("Redis {scheme}://{address}\n");
    }
    for address in metrics {
        lines += &format!("Metrics http://{address}/metrics\n");
    }
    lines
}

/// Takes the addresses of the Redis frontend if it is on.
fn bind_redis(
    settings: &Settings,
    security: &Security,
    metrics: &Arc<Metrics>,
    (listen, others): &Addresses,
) -> anyhow::Result<Option<shoal_redis::RedisServer>> {
    let Some((_, options)) = &settings.resp else { return Ok(None) };
    let security = security.clone();
    let tls = settings.resp_tls.unwrap_or(security.is_encrypted()).then(|| Tls {
        config: Arc::new({
            let security = security.clone();
            move || security.tls_of_others()
        }),
        asks_certificates: settings.asks_redis_certificates(),
    });
    let metrics = Arc::clone(metrics);
    let options = RedisOptions {
        listen: *listen,
        listen_also: others.clone(),
        insecure: settings.insecure,
        security,
        tls,
        metrics,
        ..options.clone()
    };
    match shoal_redis::RedisServer::bind(options) {
        Err(
            error @ (StartError::Listen(shoal_server::ListenError::NotLoopback { .. })
            | StartError::Bucket(_)),
        ) => Err(Usage(error.to_string()).into()),
        result => result.context("no server was started; --resp names another address, or is off").map(Some),
    }
}

/// Takes the addresses before the store is touched: if another server has one, nothing is created.
async fn bind(
    settings: &Settings,
    security: &Security,
    metrics: &Arc<Metrics>,
    (listen, others): &Addresses,
) -> anyhow::Result<Server> {
    let options = ServerOptions {
        listen: *listen,
        listen_also: others.clone(),
        insecure: settings.insecure,
        security: security.clone(),
        kv_bucket: settings.kv_bucket.clone(),
        gzip: settings.gzip.requests,
        gzip_answers: settings.gzip.answers,
        web_origins: settings.web_origins.clone(),
        metrics: Arc::clone(metrics),
        open_health: settings.open_health,
        report: settings.watch.report(),
        limits: ServerLimits {
            drain_max: StopTime::new(settings.stop_timeout).drain_max(),
            ..settings.memory.grpc_limits()
        },
    };
    match Server::bind(options).await {
        Err(
            error @ (ServeError::Listen(shoal_server::ListenError::NotLoopback { .. })
            | ServeError::Bucket(_)),
        ) => Err(Usage(error.to_string()).into()),
        result => result.context("no server was started; --listen names another address"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn other_machines_are_let_in_only_on_demand() {
        let bind = async |listen: &str, insecure| {
            let given =
                Arguments { listen: Some(listen.into()), insecure: Some(insecure), ..Arguments::default() };
            let settings = Settings::new(given, None).unwrap();
            let listen = resolve(&settings.listen, DEFAULT_LISTEN).await?;
            let server = bind(&settings, &Security::default(), &Arc::default(), &listen).await?;
            anyhow::Ok(server.address())
        };
        assert_ne!(bind("127.0.0.1:0", false).await.unwrap().port(), 0);
        assert!(bind("localhost:0", false).await.is_ok());
        assert!(bind("0.0.0.0:0", false).await.unwrap_err().is::<Usage>());
        assert!(bind("0.0.0.0:0", true).await.is_ok());
        assert!(bind("nonsense", true).await.unwrap_err().is::<Usage>());
    }
}
