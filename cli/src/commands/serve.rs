//! `shoal serve`: opens the store, creating it at the first start, and serves it until a signal.

use std::fmt::Display;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use serde::Deserialize;
use shoal_engine::{DEFAULT_BUCKET, Environment, Store};
use shoal_redis::{Durability, Limits, ListenError, RedisOptions, Tls};
use shoal_server::{Limits as ServerLimits, Security, ServeError, Server, ServerOptions};
use tokio::sync::oneshot;

use crate::config;
use crate::credentials::{CredentialFiles, read_secret};
use crate::failure::{Usage, output_error};
use crate::logging;
use crate::signals::stop_in_order;
use crate::size::Size;
use crate::stopping::{self, STOP_TIMEOUT_S, StopTime, say_left_over};
use crate::store_file::{self, Access, Io, StoreOptions};

const DEFAULT_DATA: &str = "./shoal.data";
const DEFAULT_LISTEN: &str = "127.0.0.1:7411";
const DEFAULT_RESP: &str = "127.0.0.1:7412";
const DEFAULT_CACHE: Size = Size(1 << 30);
/// The danger of an address that asks for no credentials.
const OPEN: &str = "whoever reaches it may read, change and delete everything";
const UNENCRYPTED: &str = "tokens and values go through the network as plain text";

const EXAMPLES: &str = "\
Examples:
  shoal serve                                        data in ./shoal.data, on 127.0.0.1:7411 (gRPC) and 7412 (Redis)
  shoal serve --data /srv/shoal.data --size 200G --cache 4G
  shoal format /dev/nvme1n1                          a whole device: once, it must be blank; and then
  shoal serve --data /dev/nvme1n1 --must-exist
  shoal serve --listen 0.0.0.0:7411 --tls-cert cert.pem --tls-key key.pem --token-file tokens
  shoal serve --config shoal.toml

Every option may also stand in the configuration file (TOML, same names: data = \"/srv/shoal.data\", cache = \"4G\") or in an
environment variable. The command line goes before the environment, the environment before the file.

Ctrl-C or SIGTERM stops the server in order, within --stop-timeout; a second one at once, which loses nothing that was
acknowledged.";

/// The options, and the keys of the configuration file.
#[derive(Args, Debug, Default, Deserialize, PartialEq)]
#[command(after_help = EXAMPLES)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Arguments {
    /// The data file, or a block device that `shoal format` made a store of. A file that does not exist is created; what is there is
    /// never formatted [default: ./shoal.data].
    #[arg(long, value_name = "FILE", env = "SHOAL_DATA", hide_env_values = true)]
    pub(crate) data: Option<PathBuf>,
    /// Create nothing: a data file that does not exist is an error.
    #[arg(long, value_name = "BOOL", env = "SHOAL_MUST_EXIST", hide_env_values = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) must_exist: Option<bool>,
    /// For a new data file: how large it may grow. It starts small and grows ahead of need
    /// [default: 80 % of the disk's free space, at most 64G].
    #[arg(long, value_name = "SIZE", env = "SHOAL_SIZE", hide_env_values = true)]
    pub(crate) size: Option<Size>,
    /// Memory for cached pages and values [default: 1G].
    #[arg(long, value_name = "SIZE", env = "SHOAL_CACHE", hide_env_values = true)]
    pub(crate) cache: Option<Size>,
    /// Memory for recent writes that are in the log only [default: follows from cache and log].
    #[arg(long, value_name = "SIZE", env = "SHOAL_OVERLAY", hide_env_values = true)]
    pub(crate) overlay: Option<Size>,
    /// For a new data file: the number of tablets, 1 to 32 [default: as many as cores, at least 4].
    #[arg(long, value_name = "N", env = "SHOAL_TABLETS", hide_env_values = true, value_parser = clap::value_parser!(u16).range(1..=32))]
    pub(crate) tablets: Option<u16>,
    /// How to drive the device [default: auto].
    #[arg(long, value_name = "HOW", env = "SHOAL_IO", hide_env_values = true)]
    pub(crate) io: Option<Io>,
    /// The address to listen on; port 0 takes a free one [default: 127.0.0.1:7411].
    #[arg(long, value_name = "HOST:PORT", env = "SHOAL_LISTEN", hide_env_values = true)]
    pub(crate) listen: Option<String>,
    /// Let other machines in, although nothing proves who they are or nothing is encrypted.
    #[arg(long, value_name = "BOOL", env = "SHOAL_INSECURE", hide_env_values = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) insecure: Option<bool>,
    /// Speak TLS, with the certificate (and those between it and its root) in this PEM file. It and the other files with
    /// credentials are read again when they change, and at SIGHUP.
    #[arg(long, value_name = "FILE", env = "SHOAL_TLS_CERT", hide_env_values = true)]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The certificate's private key, PEM. The file may be open to its owner only.
    #[arg(long, value_name = "FILE", env = "SHOAL_TLS_KEY", hide_env_values = true)]
    pub(crate) tls_key: Option<PathBuf>,
    /// Let in who shows a certificate of these roots, PEM.
    #[arg(long, value_name = "FILE", env = "SHOAL_TLS_CLIENT_CA", hide_env_values = true)]
    pub(crate) tls_client_ca: Option<PathBuf>,
    /// Speak TLS 1.2 too, beside 1.3.
    #[arg(long, value_name = "BOOL", env = "SHOAL_TLS12", hide_env_values = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) tls12: Option<bool>,
    /// Let in who shows one of the tokens in this file, one a line, as `authorization: Bearer TOKEN`. The file may be
    /// open to its owner only.
    #[arg(long, value_name = "FILE", env = "SHOAL_TOKEN_FILE", hide_env_values = true)]
    pub(crate) token_file: Option<PathBuf>,
    /// The bucket that the keys of io.grpc.KeyValueService are the objects of [default: default].
    #[arg(long, value_name = "BUCKET", env = "SHOAL_KV_BUCKET", hide_env_values = true)]
    pub(crate) kv_bucket: Option<String>,
    /// Take compressed requests (gzip), compress answers for clients that ask for it, too (gzip-both), or neither (off)
    /// [default: off].
    #[arg(long, value_name = "gzip|gzip-both|off", env = "SHOAL_GRPC_COMPRESSION", hide_env_values = true)]
    pub(crate) grpc_compression: Option<String>,
    /// Let pages of these origins call by gRPC-Web, as https://example.com, or * for all [default: none].
    #[arg(
        long,
        value_name = "ORIGIN,...",
        env = "SHOAL_WEB_ORIGINS",
        hide_env_values = true,
        value_delimiter = ','
    )]
    pub(crate) web_origins: Option<Vec<String>>,
    /// Give these buckets space of their own: their values lie apart from everybody else's, so that a load that does not fit
    /// the others leaves them no holes [default: none].
    #[arg(
        long,
        value_name = "BUCKET,...",
        env = "SHOAL_OWN_SPACE",
        hide_env_values = true,
        value_delimiter = ','
    )]
    pub(crate) own_space: Option<Vec<String>>,
    /// Give whole groups of free blocks back to the device, slowly: a file gets holes, a raw device may trim. New values cost a
    /// little more there afterwards.
    #[arg(long, value_name = "BOOL", env = "SHOAL_DISCARD", hide_env_values = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) discard: Option<bool>,
    /// Leave values where they are: nothing is moved to make whole free space, until the next start without this.
    #[arg(long, value_name = "BOOL", env = "SHOAL_PAUSE_MOVING", hide_env_values = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) pause_moving: Option<bool>,
    /// The address of the Redis protocol, or off [default: 127.0.0.1:7412; off where gRPC asks for credentials and there is no
    /// --password-file].
    #[arg(long, value_name = "HOST:PORT|off", env = "SHOAL_RESP", hide_env_values = true)]
    pub(crate) resp: Option<String>,
    /// The bucket that Redis keys are the objects of [default: redis].
    #[arg(long, value_name = "BUCKET", env = "SHOAL_RESP_BUCKET", hide_env_values = true)]
    pub(crate) resp_bucket: Option<String>,
    /// The file with the password that Redis clients must give, open to its owner only; without one nobody is asked.
    #[arg(long, value_name = "FILE", env = "SHOAL_PASSWORD_FILE", hide_env_values = true)]
    pub(crate) password_file: Option<PathBuf>,
    /// When a write of a Redis client is acknowledged: when it is durable (sync), or at once, while nothing
    /// acknowledged is older than MS milliseconds without being durable (relaxed:MS) [default: sync].
    #[arg(long, value_name = "sync|relaxed:MS", env = "SHOAL_DURABILITY", hide_env_values = true)]
    pub(crate) durability: Option<String>,
    /// After work, a thread of the Redis frontend looks for more for so many microseconds before it sleeps: answers come sooner,
    /// and a core is busy while clients are [default: 0].
    #[arg(long, value_name = "MICROSECONDS", env = "SHOAL_POLL", hide_env_values = true)]
    pub(crate) poll: Option<u64>,
    /// Answers that a connection of a Redis client does not take, and commands that it sent behind them, may be so many bytes; beyond
    /// that it gets an error and is closed [default: 256M].
    #[arg(long, value_name = "SIZE", env = "SHOAL_RESP_PENDING", hide_env_values = true)]
    pub(crate) resp_pending: Option<Size>,
    /// Whether Redis clients speak TLS, with the files of --tls-cert, --tls-key and --tls-client-ca [default: on where there is
    /// --tls-cert].
    #[arg(long, value_name = "on|off", env = "SHOAL_RESP_TLS", hide_env_values = true)]
    pub(crate) resp_tls: Option<String>,
    /// How many seconds a stop may take: requests under way are finished, and what the log holds is brought into the trees. What is
    /// not done by then is done by the next start, as after a crash [default: 25].
    #[arg(long, value_name = "SECONDS", env = "SHOAL_STOP_TIMEOUT", hide_env_values = true)]
    pub(crate) stop_timeout: Option<u64>,
    /// The configuration file.
    #[arg(long, value_name = "FILE", env = "SHOAL_CONFIG", hide_env_values = true)]
    #[serde(skip)]
    pub(crate) config: Option<PathBuf>,
    /// What the configuration file says of the log; the option is one of all commands.
    #[arg(skip)]
    pub(crate) log: Option<String>,
}

/// What is in force.
struct Settings {
    data: PathBuf,
    store: StoreOptions,
    listen: String,
    insecure: bool,
    credentials: CredentialFiles,
    kv_bucket: String,
    gzip: Gzip,
    web_origins: Vec<String>,
    /// How the Redis frontend is run, and its address as it was given; none where it is off.
    resp: Option<(String, RedisOptions)>,
    /// Whether Redis clients speak TLS; none: where gRPC's do.
    resp_tls: Option<bool>,
    /// It was switched off because it would let in whom gRPC does not.
    is_resp_open: bool,
    stop_timeout: Duration,
    log: String,
}

impl Settings {
    fn new(arguments: Arguments, log: Option<String>) -> anyhow::Result<Self> {
        let file = arguments.config.as_deref().map(config::read).transpose()?.unwrap_or_default();
        let is_resp_named = arguments.resp.is_some() || file.resp.is_some();
        let must_exist = arguments.must_exist.or(file.must_exist).unwrap_or(false);
        let settings = Self {
            data: arguments.data.or(file.data).unwrap_or_else(|| DEFAULT_DATA.into()),
            store: StoreOptions {
                access: if must_exist { Access::Write } else { Access::Create },
                size: arguments.size.or(file.size),
                tablets: arguments.tablets.or(file.tablets),
                cache: arguments.cache.or(file.cache).unwrap_or(DEFAULT_CACHE),
                overlay: arguments.overlay.or(file.overlay),
                io: arguments.io.or(file.io).unwrap_or_default(),
                own_space: arguments.own_space.or(file.own_space).unwrap_or_default(),
                discard: arguments.discard.or(file.discard).unwrap_or(false),
                pause_moving: arguments.pause_moving.or(file.pause_moving).unwrap_or(false),
            },
            listen: arguments.listen.or(file.listen).unwrap_or_else(|| DEFAULT_LISTEN.into()),
            insecure: arguments.insecure.or(file.insecure).unwrap_or(false),
            credentials: CredentialFiles {
                certificates: arguments.tls_cert.or(file.tls_cert),
                key: arguments.tls_key.or(file.tls_key),
                client_roots: arguments.tls_client_ca.or(file.tls_client_ca),
                tokens: arguments.token_file.or(file.token_file),
                allow_tls12: arguments.tls12.or(file.tls12).unwrap_or(false),
            },
            kv_bucket: arguments.kv_bucket.or(file.kv_bucket).unwrap_or_else(|| DEFAULT_BUCKET.into()),
            gzip: parse_compression(arguments.grpc_compression.or(file.grpc_compression).as_deref())?,
            web_origins: arguments.web_origins.or(file.web_origins).unwrap_or_default(),
            resp: resp(
                arguments.resp.or(file.resp),
                arguments.resp_bucket.or(file.resp_bucket),
                arguments.password_file.or(file.password_file).as_deref(),
                arguments.durability.or(file.durability).as_deref(),
                Duration::from_micros(arguments.poll.or(file.poll).unwrap_or(0)),
                arguments.resp_pending.or(file.resp_pending),
            )?,
            stop_timeout: Duration::from_secs(
                arguments.stop_timeout.or(file.stop_timeout).unwrap_or(STOP_TIMEOUT_S),
            ),
            log: log.or(file.log).unwrap_or_else(|| "info".into()),
            resp_tls: arguments.resp_tls.or(file.resp_tls).as_deref().map(parse_switch).transpose()?,
            is_resp_open: false,
        };
        if settings.resp_tls == Some(true) && settings.credentials.certificates.is_none() {
            return Err(Usage("--resp-tls on needs --tls-cert and --tls-key".into()).into());
        }
        settings.with_redis_asking(is_resp_named)
    }

    /// Where gRPC asks callers who they are, the Redis frontend asks too, or is not there: it would be a way around, with --insecure
    /// as well, which says nothing against the credentials that were given. Who named its address is told so.
    fn with_redis_asking(self, is_resp_named: bool) -> anyhow::Result<Self> {
        let asks = self.credentials.tokens.is_some() || self.credentials.client_roots.is_some();
        let is_open = asks && !self.asks_redis_certificates();
        let Some((address, _)) =
            self.resp.as_ref().filter(|(_, options)| is_open && options.password.is_none())
        else {
            return Ok(self);
        };
        if is_resp_named {
            let problem = format!(
                "refusing to serve the Redis protocol on {address}: it would let in everybody who reaches it, and gRPC asks for \
                 credentials; give --password-file, or --resp off"
            );
            return Err(Usage(problem).into());
        }
        Ok(Self { resp: None, is_resp_open: true, ..self })
    }

    /// Whether every Redis client shows a certificate that proves who it is: where a token would do instead, it need not.
    fn asks_redis_certificates(&self) -> bool {
        let is_tls = self.resp_tls.unwrap_or(true);
        is_tls && self.credentials.client_roots.is_some() && self.credentials.tokens.is_none()
    }
}

fn parse_switch(text: &str) -> Result<bool, Usage> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        other => Err(Usage(format!("{other:?} is neither on nor off"))),
    }
}

/// How the Redis frontend is run; none where it is off.
fn resp(
    address: Option<String>,
    bucket: Option<String>,
    password_file: Option<&Path>,
    durability: Option<&str>,
    poll: Duration,
    pending: Option<Size>,
) -> anyhow::Result<Option<(String, RedisOptions)>> {
    let defaults = RedisOptions::default();
    let options = RedisOptions {
        bucket: bucket.unwrap_or(defaults.bucket),
        password: password_file.map(password).transpose()?,
        durability: durability.map_or(Ok(Durability::Sync), parse_durability)?,
        poll,
        limits: pending.map_or(Ok(defaults.limits), pending_limits)?,
        ..RedisOptions::default()
    };
    let address = address.unwrap_or_else(|| DEFAULT_RESP.into());
    Ok((address != "off").then_some((address, options)))
}

/// The bounds of the Redis frontend where so much may wait at a connection.
fn pending_limits(pending: Size) -> Result<Limits, Usage> {
    let defaults = Limits::default();
    let least = 2 * defaults.answer_bytes_max as u64;
    match usize::try_from(pending.0) {
        Ok(bytes) if pending.0 >= least => Ok(Limits { pending_bytes_max: bytes, ..defaults }),
        _ => {
            Err(Usage(format!("--resp-pending {} is too little; at least {least} bytes may wait", pending.0)))
        }
    }
}

/// What may be compressed.
#[derive(Clone, Copy)]
struct Gzip {
    requests: bool,
    answers: bool,
}

fn parse_compression(text: Option<&str>) -> Result<Gzip, Usage> {
    match text {
        None | Some("off") => Ok(Gzip { requests: false, answers: false }),
        Some("gzip") => Ok(Gzip { requests: true, answers: false }),
        Some("gzip-both") => Ok(Gzip { requests: true, answers: true }),
        Some(other) => {
            Err(Usage(format!("{other:?} is no compression that is known; write gzip, gzip-both or off")))
        }
    }
}

fn parse_durability(text: &str) -> Result<Durability, Usage> {
    let relaxed = text.strip_prefix("relaxed:").and_then(|ms| ms.parse().ok());
    match (text, relaxed) {
        ("sync", _) => Ok(Durability::Sync),
        (_, Some(ms)) => Ok(Durability::Relaxed(Duration::from_millis(ms))),
        _ => Err(Usage(format!("{text:?} is no durability; write sync, or relaxed:MS as relaxed:100"))),
    }
}

/// The first line of the file.
fn password(path: &Path) -> anyhow::Result<Vec<u8>> {
    let text = read_secret(path, "a password")?;
    let line = text.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.is_empty() {
        return Err(Usage(format!("the password file {} has an empty first line", path.display())).into());
    }
    Ok(line.to_vec())
}

pub(crate) async fn run(arguments: Arguments, log: Option<String>) -> anyhow::Result<()> {
    let settings = Settings::new(arguments, log)?;
    logging::start_server(&settings.log)?;
    let (stop, stopped) = oneshot::channel();
    let time = Arc::new(StopTime::new(settings.stop_timeout));
    let begun = Arc::clone(&time);
    stop_in_order(move || {
        begun.begin();
        tracing::info!("stopping; another signal stops at once, which loses nothing that was acknowledged");
        // Nobody listens where the server is not running yet or no more.
        let _ = stop.send(());
    })?;
    if settings.is_resp_open {
        tracing::warn!(
            "the Redis frontend is off: it would let in everybody on this machine, and gRPC asks for credentials; \
             give --password-file, or --resp off"
        );
    }
    let security = Security::new(settings.credentials.read()?);
    let server = bind(&settings, &security).await?;
    let redis = bind_redis(&settings, &security).await?;
    warn_of_openness(&settings, &security, &server, redis.as_ref());
    let store = store_file::open(&settings.data, &settings.store).await?;
    let losses = store.stat().losses;
    if !losses.is_none() {
        let data = settings.data.display();
        tracing::warn!(
            "{data} was repaired with losses: {losses}; `shoal check --data {data} --acknowledge` says that somebody has seen this"
        );
    }
    let watching = tokio::spawn(settings.credentials.clone().watch(security));
    // A task of its own: what it still waits for when the time is over is not waited for here.
    let serving = tokio::spawn(serve(store.clone(), server, redis, stopped));
    let served = tokio::select! {
        served = serving => served.context("the server ended by an error of the program")?,
        () = time.over() => {
            say_left_over(&settings.data, "requests under way did not end in time");
            // Requests that hold the store go on until the program ends.
            std::mem::forget(store);
            return Ok(());
        }
    };
    // Where it ended by itself.
    time.begin();
    watching.abort();
    tracing::info!("closing {}", settings.data.display());
    let closed = stopping::close(store, &time, &settings.data).await;
    served?;
    closed
}

/// Says what --insecure opens: addresses that other machines reach, where nothing proves who calls or nothing is encrypted.
fn warn_of_openness(
    settings: &Settings,
    security: &Security,
    server: &Server,
    redis: Option<&shoal_redis::Server>,
) {
    let is_reachable = |address: SocketAddr| !address.ip().to_canonical().is_loopback();
    let grpc = server.address();
    if is_reachable(grpc) && !security.is_safe() {
        let risk = if security.asks() { UNENCRYPTED } else { OPEN };
        tracing::warn!("--insecure: gRPC listens on {grpc}, which other machines reach; {risk}");
    }
    let Some((redis, (_, options))) = redis.zip(settings.resp.as_ref()) else { return };
    let redis = redis.address();
    if is_reachable(redis) && options.password.is_none() && !settings.asks_redis_certificates() {
        tracing::warn!(
            "--insecure: the Redis protocol listens on {redis}, which other machines reach; {OPEN}"
        );
    }
}

/// Serves `store` until it is told to stop, or cannot. The store is open still when this returns.
async fn serve(
    store: Store,
    server: Server,
    redis: Option<shoal_redis::Server>,
    stopped: oneshot::Receiver<()>,
) -> anyhow::Result<()> {
    announce(&server, redis.as_ref())?;
    let redis = redis.map(|redis| redis.start(store.clone(), Environment::default())).transpose()?;
    let served = server.run(store, async { drop(stopped.await) }).await;
    // Waits for its threads, which finish the turn that they are in.
    tokio::task::spawn_blocking(move || drop(redis)).await.context("the Redis frontend did not stop")?;
    Ok(served?)
}

/// One line a frontend, all at once: who reads the first one may be gone before another came.
fn announce(server: &Server, redis: Option<&shoal_redis::Server>) -> anyhow::Result<()> {
    let scheme = if server.is_encrypted() { "https" } else { "http" };
    let mut lines = format!("gRPC  {scheme}://{}\n", server.address());
    if let Some(redis) = redis {
        let scheme = if redis.is_encrypted() { "rediss" } else { "redis" };
        lines += &format!("Redis {scheme}://{}\n", redis.address());
    }
    let mut stdout = std::io::stdout();
    stdout.write_all(lines.as_bytes()).and_then(|()| stdout.flush()).map_err(output_error)
}

/// The address that `given` names.
async fn resolve(given: &str, example: &str) -> anyhow::Result<SocketAddr> {
    let wrong = |why: &dyn Display| {
        Usage(format!("cannot listen on {given:?}: {why}; write HOST:PORT, as {example}"))
    };
    let address = tokio::net::lookup_host(given).await.map_err(|error| wrong(&error))?.next();
    Ok(address.ok_or_else(|| wrong(&"the host has no address"))?)
}

/// Takes the address of the Redis frontend, where it is on.
async fn bind_redis(settings: &Settings, security: &Security) -> anyhow::Result<Option<shoal_redis::Server>> {
    let Some((address, options)) = &settings.resp else { return Ok(None) };
    let listen = resolve(address, DEFAULT_RESP).await?;
    let security = security.clone();
    let tls = settings.resp_tls.unwrap_or(security.is_encrypted()).then(|| Tls {
        config: Arc::new(move || security.tls_of_others()),
        asks_certificates: settings.asks_redis_certificates(),
    });
    let options = RedisOptions { listen, insecure: settings.insecure, tls, ..options.clone() };
    match shoal_redis::Server::bind(options) {
        Err(
            error @ (ListenError::Listen(shoal_server::ListenError::NotLoopback { .. })
            | ListenError::Bucket(_)),
        ) => Err(Usage(error.to_string()).into()),
        result => result.context("no server was started; --resp names another address, or is off").map(Some),
    }
}

/// Takes the address that `settings` names, before the store is touched: where another server has it, nothing is created.
async fn bind(settings: &Settings, security: &Security) -> anyhow::Result<Server> {
    let listen = resolve(&settings.listen, DEFAULT_LISTEN).await?;
    let options = ServerOptions {
        listen,
        insecure: settings.insecure,
        security: security.clone(),
        kv_bucket: settings.kv_bucket.clone(),
        gzip: settings.gzip.requests,
        gzip_answers: settings.gzip.answers,
        web_origins: settings.web_origins.clone(),
        limits: ServerLimits {
            drain_max: StopTime::new(settings.stop_timeout).drain_max(),
            ..ServerLimits::default()
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
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_command_line_goes_before_the_file_and_the_file_before_the_default() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shoal.toml");
        std::fs::write(&path, "cache = '2G'\nlisten = '127.0.0.1:1'\ninsecure = true\nlog = 'debug'\n")
            .unwrap();
        let given = Arguments {
            config: Some(path),
            listen: Some("127.0.0.1:2".into()),
            insecure: Some(false),
            ..Arguments::default()
        };
        let settings = Settings::new(given, None).unwrap();
        assert_eq!(settings.listen, "127.0.0.1:2");
        assert!(!settings.insecure);
        assert_eq!(settings.store.cache, Size(2 << 30));
        assert_eq!(settings.log, "debug");
        assert_eq!(settings.data, PathBuf::from(DEFAULT_DATA));

        let defaults = Settings::new(Arguments::default(), None).unwrap();
        assert_eq!((defaults.listen.as_str(), defaults.store.cache), (DEFAULT_LISTEN, DEFAULT_CACHE));
        assert_eq!(defaults.store.access, Access::Create);
        let given = Arguments { must_exist: Some(true), ..Arguments::default() };
        assert_eq!(Settings::new(given, None).unwrap().store.access, Access::Write);
    }

    #[tokio::test]
    async fn other_machines_are_let_in_only_on_demand() {
        let bind = async |listen: &str, insecure| {
            let given =
                Arguments { listen: Some(listen.into()), insecure: Some(insecure), ..Arguments::default() };
            bind(&Settings::new(given, None).unwrap(), &Security::default())
                .await
                .map(|server| server.address())
        };
        assert_ne!(bind("127.0.0.1:0", false).await.unwrap().port(), 0);
        assert!(bind("localhost:0", false).await.is_ok());
        assert!(bind("0.0.0.0:0", false).await.unwrap_err().is::<Usage>());
        assert!(bind("0.0.0.0:0", true).await.is_ok());
        assert!(bind("nonsense", true).await.unwrap_err().is::<Usage>());
    }

    #[test]
    fn the_redis_face_is_on_unless_it_is_off() {
        let settings = |resp: Option<&str>, durability: Option<&str>| {
            let (resp, durability) = (resp.map(str::to_owned), durability.map(str::to_owned));
            Settings::new(Arguments { resp, durability, ..Arguments::default() }, None)
        };
        assert_eq!(settings(None, None).unwrap().resp.unwrap().0, DEFAULT_RESP);
        assert!(settings(Some("off"), None).unwrap().resp.is_none());
        let relaxed = settings(None, Some("relaxed:250")).unwrap().resp.unwrap().1.durability;
        assert_eq!(relaxed, Durability::Relaxed(Duration::from_millis(250)));
        for wrong in ["", "relaxed", "relaxed:", "relaxed:-1", "fast"] {
            assert!(settings(None, Some(wrong)).err().unwrap().is::<Usage>(), "{wrong}");
        }
    }

    #[test]
    fn what_may_wait_at_a_connection_is_an_option() {
        let pending = |bytes| {
            let given = Arguments { resp_pending: Some(Size(bytes)), ..Arguments::default() };
            Settings::new(given, None).map(|settings| settings.resp.unwrap().1.limits.pending_bytes_max)
        };
        assert_eq!(pending(64 << 20).unwrap(), 64 << 20);
        assert!(pending(8 << 20).unwrap_err().is::<Usage>());
    }

    /// It was a way around tokens and certificates.
    #[test]
    fn the_redis_face_is_no_way_around_credentials() {
        let folder = tempfile::tempdir().unwrap();
        let password = folder.path().join("password");
        std::fs::write(&password, "tide pool\n").unwrap();
        set_permissions(&password, Permissions::from_mode(0o600)).unwrap();
        let file = || Some(folder.path().join("secrets"));
        for (token_file, tls_client_ca) in [(file(), None), (None, file())] {
            let given = || Arguments {
                insecure: Some(true),
                token_file: token_file.clone(),
                tls_client_ca: tls_client_ca.clone(),
                ..Arguments::default()
            };
            let settings = Settings::new(given(), None).unwrap();
            // Certificates are shown to the Redis frontend, too; tokens cannot be.
            assert_eq!(settings.resp.is_none(), token_file.is_some());
            let given = || Arguments { resp_tls: Some("off".into()), ..given() };
            let settings = Settings::new(given(), None).unwrap();
            assert!(settings.resp.is_none() && settings.is_resp_open);
            let with_password = Arguments { password_file: Some(password.clone()), ..given() };
            let settings = Settings::new(with_password, None).unwrap();
            assert!(settings.resp.is_some() && !settings.is_resp_open);
            let settings = Settings::new(Arguments { resp: Some("off".into()), ..given() }, None).unwrap();
            assert!(settings.resp.is_none() && !settings.is_resp_open);
            // An address that was asked for was ignored.
            for named in ["0.0.0.0:7412", "127.0.0.1:7412"] {
                let named = || Some(named.to_owned());
                let error = Settings::new(Arguments { resp: named(), ..given() }, None).err().unwrap();
                assert!(error.is::<Usage>() && error.to_string().contains("--password-file"), "{error}");
                let given = Arguments { resp: named(), password_file: Some(password.clone()), ..given() };
                assert_eq!(Settings::new(given, None).unwrap().resp.map(|(address, _)| address), named());
            }
        }
    }

    #[test]
    fn the_password_is_the_first_line_of_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("password");
        std::fs::write(&path, "tide pool\r\nnot this\n").unwrap();
        set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        let error = password(&path).unwrap_err();
        assert!(error.is::<Usage>() && error.to_string().contains("chmod 600"), "{error}");
        set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        assert_eq!(password(&path).unwrap(), b"tide pool");
        std::fs::write(&path, "\n").unwrap();
        assert!(password(&path).unwrap_err().is::<Usage>());
        assert!(password(&folder.path().join("missing")).unwrap_err().is::<Usage>());
    }
}
