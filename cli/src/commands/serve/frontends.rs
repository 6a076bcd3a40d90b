//! The frontends of a server: their addresses, and the time for which they serve.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use shoal_console::{ConsoleSources, KeyBook};
use shoal_engine::{Environment, Store};
use shoal_frontend::ArchiveLink;
use shoal_metrics::Metrics;
use shoal_redis::{RedisOptions, RedisServer, StartError, Tls};
use shoal_s3::{S3Options, S3ServeError, S3Server, S3Service};
use shoal_server::{ListenError, Security, ServeError, Server, ServerLimits, ServerOptions};
use shoal_transfer::text::one_line;
use tokio::sync::watch;

use super::console::{self, Console};
use super::settings::{DEFAULT_CONSOLE, DEFAULT_LISTEN, DEFAULT_RESP, DEFAULT_S3, Settings};
use crate::failure::Usage;
use crate::process::resolve::{in_words, resolve};
use crate::process::stopping::{StopThread, StopTime};

/// The danger of an address that asks for no credentials.
const OPEN: &str = "every client that reaches it may read, change and delete everything";
const UNENCRYPTED: &str = "tokens, keys and values go through the network as plain text";

/// The frontends that listen.
pub(super) struct Frontends {
    /// gRPC.
    pub(super) server: Server,
    pub(super) redis: Option<RedisServer>,
    pub(super) s3: Option<S3Server>,
    pub(super) console: Option<Console>,
    /// The archive that Redis clients wait for, once it runs.
    pub(super) archive: ArchiveLink,
    pub(super) metrics: Arc<Metrics>,
}

impl Frontends {
    /// Takes the addresses before the store is touched: if another server has one, nothing is created.
    pub(super) async fn bind(
        settings: &Settings,
        (security, of_s3): (&Security, &Security),
        metrics: &Arc<Metrics>,
    ) -> anyhow::Result<Self> {
        metrics.set_security(security.clone());
        let listen = resolve(&settings.listen, DEFAULT_LISTEN).await?;
        let server = bind(settings, security, metrics, &listen).await?;
        let archive = ArchiveLink::default();
        let redis = match &settings.resp {
            Some((address, _)) => {
                let listen = resolve(address, DEFAULT_RESP).await?;
                bind_redis(settings, security, (metrics, &archive), &listen)?
            }
            None => None,
        };
        let s3 = match &settings.s3 {
            Some(s3) => {
                let listen = resolve(&s3.listen, DEFAULT_S3).await?;
                match bind_s3(settings, of_s3, metrics, &listen) {
                    Err(error) if !s3.is_named && is_taken(&error) => {
                        tracing::warn!(
                            "S3 is off: another program listens on {DEFAULT_S3}; --s3 names another address"
                        );
                        None
                    }
                    bound => Some(bound?),
                }
            }
            None => None,
        };
        let console = match &settings.console {
            Some((listen, is_named)) => {
                let listen = resolve(listen, DEFAULT_CONSOLE).await?;
                console::bind((settings, *is_named), security, metrics, &listen)?.map(|server| Console {
                    server,
                    objects: s3_options(settings, of_s3, metrics, &listen),
                    s3_url: s3.as_ref().and_then(url_of_s3),
                    keys: None,
                    sources: ConsoleSources::default(),
                })
            }
            None => None,
        };
        Ok(Self { server, redis, s3, console, archive, metrics: Arc::clone(metrics) })
    }

    /// Checks that the addresses are this machine's and may be listened on. Takes no port.
    pub(super) async fn check(
        settings: &Settings,
        security: &Security,
        metrics: &Arc<Metrics>,
    ) -> anyhow::Result<()> {
        let listen = resolve(&settings.listen, DEFAULT_LISTEN).await?;
        let bound = bind(settings, security, metrics, &any_port(&listen)).await;
        drop(bound.map_err(|error| named(&error, &listen))?);
        if let Some((address, _)) = &settings.resp {
            let listen = resolve(address, DEFAULT_RESP).await?;
            let bound =
                bind_redis(settings, security, (metrics, &ArchiveLink::default()), &any_port(&listen));
            drop(bound.map_err(|error| named(&error, &listen))?);
        }
        if let Some(s3) = &settings.s3 {
            let listen = resolve(&s3.listen, DEFAULT_S3).await?;
            let bound = bind_s3(settings, security, metrics, &any_port(&listen));
            drop(bound.map_err(|error| named(&error, &listen))?);
        }
        if let Some((listen, _)) = &settings.console {
            let listen = resolve(listen, DEFAULT_CONSOLE).await?;
            let bound = console::bind((settings, true), security, metrics, &any_port(&listen));
            drop(bound.map_err(|error| named(&error, &listen))?);
        }
        Ok(())
    }

    /// Logs the openings of --insecure: addresses that other machines reach, without credentials or without encryption.
    pub(super) fn warn_of_openness(&self, settings: &Settings, security: &Security) {
        let Self { server, redis, s3, console, .. } = self;
        let reachable = |addresses: &[SocketAddr]| {
            let open = addresses.iter().filter(|address| !address.ip().to_canonical().is_loopback());
            in_words(&open.copied().collect::<Vec<_>>())
        };
        let grpc = reachable(server.addresses());
        if !grpc.is_empty() && !security.is_safe() {
            let risk = if security.asks() { UNENCRYPTED } else { OPEN };
            tracing::warn!("--insecure: gRPC listens on {grpc}, which other machines reach; {risk}");
        }
        if let Some(s3) = s3 {
            let s3 = reachable(s3.addresses());
            if !s3.is_empty() && !security.is_encrypted() {
                tracing::warn!("--insecure: S3 listens on {s3}, which other machines reach; {UNENCRYPTED}");
            }
        }
        if let Some(console) = console {
            let console = reachable(console.server.addresses());
            if !console.is_empty() && !security.is_safe() {
                let risk = if security.asks() { UNENCRYPTED } else { OPEN };
                tracing::warn!(
                    "--insecure: the console listens on {console}, which other machines reach; {risk}"
                );
            }
        }
        let Some((redis, (_, options))) = redis.as_ref().zip(settings.resp.as_ref()) else { return };
        let redis = reachable(redis.addresses());
        let asks =
            options.password.is_some() || settings.asks_redis_keys() || settings.asks_redis_certificates();
        if !redis.is_empty() && !asks {
            tracing::warn!(
                "--insecure: the Redis protocol listens on {redis}, which other machines reach; {OPEN}"
            );
        }
    }

    /// One line for each address of a frontend. They are printed at once: the reader of the first line may be gone before another one came.
    pub(super) fn addresses(&self, metrics: &[SocketAddr]) -> String {
        let Self { server, redis, s3, console, .. } = self;
        let scheme = if server.is_encrypted() { "https" } else { "http" };
        let mut lines = String::new();
        for address in server.addresses() {
            lines += &format!("gRPC  {scheme}://{address}\n");
        }
        for (redis, address) in
            redis.iter().flat_map(|redis| redis.addresses().iter().map(move |it| (redis, it)))
        {
            let scheme = if redis.is_encrypted() { "rediss" } else { "redis" };
            lines += &format!("Redis {scheme}://{address}\n");
        }
        for (s3, address) in s3.iter().flat_map(|s3| s3.addresses().iter().map(move |it| (s3, it))) {
            let scheme = if s3.is_encrypted() { "https" } else { "http" };
            lines += &format!("S3    {scheme}://{address}\n");
        }
        let consoles = console.iter().map(|console| &console.server);
        for (console, address) in consoles.flat_map(|it| it.addresses().iter().map(move |at| (it, at))) {
            let scheme = if console.is_encrypted() { "https" } else { "http" };
            lines += &format!("Console {scheme}://{address}\n");
        }
        for address in metrics {
            lines += &format!("Metrics http://{address}/metrics\n");
        }
        lines
    }

    /// Sets the keys and the state of the server for its console.
    pub(super) fn know(&mut self, keys: Option<Arc<dyn KeyBook>>, sources: ConsoleSources) {
        self.console = self.console.take().map(|console| Console { keys, sources, ..console });
    }

    /// The first addresses of gRPC and of the Redis protocol; empty without the latter.
    pub(super) fn named(&self) -> (String, String) {
        let first = |addresses: &[SocketAddr]| addresses.first().map(ToString::to_string).unwrap_or_default();
        (
            first(self.server.addresses()),
            self.redis.as_ref().map(|redis| first(redis.addresses())).unwrap_or_default(),
        )
    }

    /// Serves `store` until a stop or a failure. The store is still open when this returns.
    pub(super) async fn serve(
        self,
        store: Store,
        stopped: impl Future<Output = ()> + Send,
        stop: Arc<StopThread>,
    ) -> anyhow::Result<()> {
        let Self { server, redis, s3, console, .. } = self;
        let redis = redis.map(|redis| redis.start(store.clone(), Environment::default())).transpose()?;
        let opened = match (&s3, &console) {
            (Some(s3), _) => s3.service(store.clone()).await.map(Some),
            (None, Some(console)) => S3Service::open(store.clone(), console.objects.clone()).await.map(Some),
            (None, None) => Ok(None),
        };
        let (objects, failed) = match opened {
            Ok(objects) => (objects, Ok(())),
            Err(error) => {
                tracing::warn!("S3 and the console are off: {error}");
                (None, Err(error))
            }
        };
        let (stops, capacity) = (watch::Sender::new(false), server.capacity());
        let told = || {
            let mut told = stops.subscribe();
            async move {
                // Resolves also if the sender is dropped.
                let _ = told.wait_for(|told| *told).await;
            }
        };
        let (told_s3, told_console) = (told(), told());
        let grpc = async {
            let stopped = async {
                stopped.await;
                stops.send_replace(true);
            };
            let served = server.run(store.clone(), stopped).await;
            // If the server stopped by itself.
            stops.send_replace(true);
            served
        };
        let sweeps = s3.is_none();
        let s3 = async {
            let Some((s3, objects)) = s3.zip(objects.clone()) else { return };
            s3.run_service(objects, Arc::clone(&capacity), told_s3).await;
        };
        let console = async {
            let Some((console, objects)) = console.zip(objects.clone()) else { return };
            console.serve(store.clone(), (objects, sweeps), Arc::clone(&capacity), told_console).await;
        };
        let (served, (), ()) = tokio::join!(grpc, s3, console);
        // Waits for its threads, which finish the turn that they are in.
        stop.run(move || drop(redis)).await.context("the Redis frontend did not stop")?;
        failed?;
        Ok(served?)
    }
}

/// The addresses of a name: the first, and the others.
pub(super) type Addresses = (SocketAddr, Vec<SocketAddr>);

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

/// Takes the addresses of the Redis frontend if it is on.
fn bind_redis(
    settings: &Settings,
    security: &Security,
    (metrics, archive): (&Arc<Metrics>, &ArchiveLink),
    (listen, others): &Addresses,
) -> anyhow::Result<Option<RedisServer>> {
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
        archive: archive.clone(),
        metrics,
        ..options.clone()
    };
    match RedisServer::bind(options) {
        Err(error @ (StartError::Listen(ListenError::NotLoopback { .. }) | StartError::Bucket(_))) => {
            Err(Usage(error.to_string()).into())
        }
        result => result.context("no server was started; --resp names another address, or is off").map(Some),
    }
}

/// The options of the S3 frontend.
fn s3_options(
    settings: &Settings,
    security: &Security,
    metrics: &Arc<Metrics>,
    (listen, others): &Addresses,
) -> S3Options {
    let objects = &settings.objects;
    S3Options {
        listen: *listen,
        listen_also: others.clone(),
        insecure: settings.insecure,
        security: security.clone(),
        region: objects.region.clone(),
        domains: objects.domains.clone(),
        website_domains: objects.website_domains.clone(),
        etags: objects.etags,
        upload_life: objects.upload_life,
        metrics: Arc::clone(metrics),
        limits: limits(settings),
        ..S3Options::default()
    }
}

/// Takes the addresses of the S3 frontend.
fn bind_s3(
    settings: &Settings,
    security: &Security,
    metrics: &Arc<Metrics>,
    listen: &Addresses,
) -> anyhow::Result<S3Server> {
    match S3Server::bind(s3_options(settings, security, metrics, listen)) {
        Err(error @ S3ServeError::Listen(ListenError::NotLoopback { .. })) => {
            Err(Usage(error.to_string()).into())
        }
        result => result.context("no server was started; --s3 names another address, or is off"),
    }
}

/// The URL of an S3 frontend, as a client on this machine reaches it.
fn url_of_s3(s3: &S3Server) -> Option<String> {
    let scheme = if s3.is_encrypted() { "https" } else { "http" };
    s3.addresses().first().map(|address| format!("{scheme}://{address}"))
}

/// Returns true if another program has the port.
fn is_taken(error: &anyhow::Error) -> bool {
    match error.downcast_ref() {
        Some(S3ServeError::Listen(error)) => is_in_use(error),
        _ => false,
    }
}

/// Returns true if another program has the port.
pub(super) fn is_in_use(error: &ListenError) -> bool {
    matches!(error, ListenError::System { error, .. } if error.kind() == std::io::ErrorKind::AddrInUse)
}

/// The bounds of the frontends over HTTP, which share memory and connections.
pub(super) fn limits(settings: &Settings) -> ServerLimits {
    ServerLimits {
        drain_max: StopTime::new(settings.stop_timeout).drain_max(),
        ..settings.memory.grpc_limits()
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
        limits: limits(settings),
    };
    match Server::bind(options).await {
        Err(error @ (ServeError::Listen(ListenError::NotLoopback { .. }) | ServeError::Bucket(_))) => {
            Err(Usage(error.to_string()).into())
        }
        result => result.context("no server was started; --listen names another address"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use shoal_base::{Clock, ManualClock, SystemClock};
    use shoal_storekit::{StoreKit, in_time};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::sync::oneshot;

    use super::super::Arguments;
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

    /// The answer of a console that asks for no credentials.
    async fn answer(address: SocketAddr, request: &str, csrf: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let head = format!(
            "{request} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\nx-shoal-csrf: {csrf}\r\ncontent-length: 0\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{request}: {answer}");
        answer
    }

    /// S3 sweeps if it is on. Without it, the console does.
    #[tokio::test(flavor = "multi_thread")]
    async fn uploads_of_the_console_end_without_s3() {
        let local = || Some("127.0.0.1:0".to_owned());
        let given =
            Arguments { listen: local(), console: local(), s3: Some("off".into()), ..Arguments::default() };
        let settings = Settings::new(given, None).unwrap();
        let security = Security::default();
        let bound = Frontends::bind(&settings, (&security, &security), &Arc::default()).await;
        let mut frontends = bound.unwrap();
        let clock = Arc::new(ManualClock::new(SystemClock::default().wall_ns()));
        let console = frontends.console.as_mut().unwrap();
        console.objects.environment.clock = clock.clone();
        console.objects.upload_life = Some(Duration::from_secs(1));
        let address = console.server.addresses()[0];
        let (stop, stopped) = oneshot::channel::<()>();
        let (store, stop_thread) =
            (StoreKit::new(128 << 10).in_memory(), Arc::new(StopThread::start().unwrap()));
        let served =
            tokio::spawn(
                async move { frontends.serve(store, async { drop(stopped.await) }, stop_thread).await },
            );
        let session = answer(address, "GET /api/session", "").await;
        let csrf = session.split("\"csrf\":\"").nth(1).unwrap().split('"').next().unwrap();
        answer(address, "PUT /s3/bkt", csrf).await;
        answer(address, "POST /s3/bkt/k?uploads", csrf).await;
        let has_upload = async || answer(address, "GET /s3/bkt?uploads", csrf).await.contains("<UploadId>");
        assert!(has_upload().await);
        in_time("the end of the upload", async {
            while has_upload().await {
                // The sweeper looks at its clock ten times a second, and trusts it after an hour.
                clock.advance(3_600_000_000_000);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        stop.send(()).unwrap();
        in_time("the server stops", served).await.unwrap().unwrap();
    }
}
