//! The settings of `shoal serve`, from its options: the command line overrides the environment, the environment overrides the
//! file, and each part is checked.

use std::path::{Path, PathBuf};
use std::time::Duration;

use shoal_engine::DEFAULT_BUCKET;
use shoal_redis::{Announced, ClusterMode, Durability, RedisLimits, RedisOptions};
use shoal_s3::body::check::EtagScheme;

use super::archive::ArchiveSettings;
use super::arguments::Arguments;

use super::file::{self, in_force};
use super::watch::WatchSettings;
use crate::arguments::credentials::{CredentialFiles, read_secret};
use crate::arguments::size::Size;
use crate::failure::Usage;
use crate::logging::LogFormat;
use crate::memory::budget::{MemoryBudget, TooLittle, Wanted};
use crate::memory::limit::default_memory;
use crate::process::stopping::STOP_TIMEOUT_S;
use crate::store::file::{Access, SCRUB_EVERY, SCRUB_RATE, SNAPSHOT_MAX_AGE, StoreOptions};

/// The former name of `SHOAL_MEMTABLE`. An option that is ignored in silence would be a surprise.
const FORMER_VARIABLE: &str = "SHOAL_OVERLAY";

pub(super) const DEFAULT_DATA: &str = "./shoal.data";
pub(super) const DEFAULT_LISTEN: &str = "127.0.0.1:7411";
pub(super) const DEFAULT_RESP: &str = "127.0.0.1:7412";
pub(super) const DEFAULT_S3: &str = "127.0.0.1:7413";
pub(super) const DEFAULT_CONSOLE: &str = "127.0.0.1:7414";
/// Requests of this duration or longer get a line in the log.
const SLOW: Duration = Duration::from_secs(1);
/// The memory of a server if the system reports no amount.
const DEFAULT_MEMORY: Size = Size(2 << 30);

/// The settings in force: of the command line, the environment, the configuration file and the defaults.
pub(super) struct Settings {
    pub(super) data: PathBuf,
    pub(super) store: StoreOptions,
    /// How the memory is divided.
    pub(super) memory: MemoryBudget,
    /// The warning about the memory to log at the start.
    pub(super) memory_warning: Option<String>,
    pub(super) listen: String,
    pub(super) insecure: bool,
    pub(super) credentials: CredentialFiles,
    pub(super) kv_bucket: String,
    pub(super) gzip: Gzip,
    pub(super) web_origins: Vec<String>,
    /// The options of the Redis frontend, and its address as configured; none if it is off.
    pub(super) resp: Option<(String, RedisOptions)>,
    /// The bucket of Redis clients follows from the store, because no option names it.
    pub(super) is_resp_bucket_free: bool,
    /// Whether Redis clients speak TLS; none: if gRPC's do.
    pub(super) resp_tls: Option<bool>,
    /// The Redis frontend was switched off because it would let in clients that gRPC does not.
    pub(super) is_resp_open: bool,
    pub(super) s3: Option<S3Settings>,
    /// The settings of the archive; none if there is none.
    pub(super) archive: Option<ArchiveSettings>,
    /// The settings of the operations of S3, which the console has also if the S3 frontend is off.
    pub(super) objects: ObjectSettings,
    /// The address of the console as configured, and whether an option names it; none if it is off.
    pub(super) console: Option<(String, bool)>,
    pub(super) stop_timeout: Duration,
    pub(super) watch: WatchSettings,
    pub(super) open_health: bool,
    pub(super) log: String,
    pub(super) log_format: LogFormat,
}

/// The settings of the S3 frontend.
pub(super) struct S3Settings {
    pub(super) listen: String,
    /// An option names the address.
    pub(super) is_named: bool,
}

/// The settings of the operations of S3.
pub(super) struct ObjectSettings {
    pub(super) region: String,
    pub(super) domains: Vec<String>,
    pub(super) website_domains: Vec<String>,
    pub(super) etags: EtagScheme,
    /// `None`: uploads stay open.
    pub(super) upload_life: Option<Duration>,
}

/// The settings of the S3 frontend; `None` if it is off. It is on by default, unless credentials are asked for and none of them is a key.
fn s3(arguments: &Arguments) -> Option<S3Settings> {
    let asks_others = [&arguments.token_file, &arguments.tls_client_ca, &arguments.password_file];
    let has_default = arguments.key_file.is_some() || asks_others.iter().all(|file| file.is_none());
    match &arguments.s3 {
        Some(listen) if listen == "off" => None,
        Some(listen) => Some(S3Settings { listen: listen.clone(), is_named: true }),
        None => has_default.then(|| S3Settings { listen: DEFAULT_S3.to_owned(), is_named: false }),
    }
}

fn objects(arguments: &Arguments) -> Result<ObjectSettings, Usage> {
    let region = arguments.s3_region.clone().unwrap_or_else(|| shoal_s3::DEFAULT_REGION.to_owned());
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    if region.is_empty() || !region.bytes().all(is_plain) {
        return Err(Usage(format!(
            "--s3-region {region:?}: write letters, digits and hyphens, as us-east-1"
        )));
    }
    let domains = arguments.s3_domain.clone().unwrap_or_default();
    let website_domains = arguments.s3_website_domain.clone().unwrap_or_default();
    let is_of_buckets = |site: &&String| domains.iter().any(|domain| domain.eq_ignore_ascii_case(site));
    if let Some(site) = website_domains.iter().find(is_of_buckets) {
        return Err(Usage(format!("--s3-website-domain {site:?} is also a --s3-domain: name two domains")));
    }
    let upload_life = arguments.s3_upload_life.as_deref();
    Ok(ObjectSettings {
        region,
        domains,
        website_domains,
        etags: arguments.s3_etag.unwrap_or_default().into(),
        upload_life: parse_duration("--s3-upload-life", upload_life, shoal_s3::UPLOAD_LIFE)?,
    })
}

/// The files of credentials.
fn credentials(arguments: &Arguments) -> CredentialFiles {
    CredentialFiles {
        certificates: arguments.tls_cert.clone(),
        key: arguments.tls_key.clone(),
        client_roots: arguments.tls_client_ca.clone(),
        tokens: arguments.token_file.clone(),
        keys: arguments.key_file.clone(),
        allow_tls12: arguments.tls12.unwrap_or(false),
    }
}

/// The address of the console, and whether an option names it; `None` if it is off.
fn console(arguments: &Arguments) -> Option<(String, bool)> {
    match &arguments.console {
        Some(listen) if listen == "off" => None,
        Some(listen) => Some((listen.clone(), true)),
        None => Some((DEFAULT_CONSOLE.to_owned(), false)),
    }
}

fn refuse_former_variable() -> anyhow::Result<()> {
    if std::env::var_os(FORMER_VARIABLE).is_some() {
        return Err(Usage(format!("{FORMER_VARIABLE} is now SHOAL_MEMTABLE: rename the variable")).into());
    }
    Ok(())
}

impl Settings {
    pub(super) fn new(arguments: Arguments, log: Option<String>) -> anyhow::Result<Self> {
        let arguments = with_file(arguments)?;
        // They name files with secrets, and have none themselves.
        let configuration = in_force(&toml::Table::try_from(&arguments)?);
        let is_resp_named = arguments.resp.is_some();
        let (memory, memory_warning) = memory(&arguments)?;
        let resp = resp(&arguments, memory.redis_limits())?;
        let (s3, objects, console) = (s3(&arguments), objects(&arguments)?, console(&arguments));
        let (archive, credentials) = (ArchiveSettings::of(&arguments)?, credentials(&arguments));
        let must_exist = arguments.must_exist.unwrap_or(false);
        let settings = Self {
            data: arguments.data.unwrap_or_else(|| DEFAULT_DATA.into()),
            store: StoreOptions {
                access: if must_exist { Access::Write } else { Access::Create },
                size: arguments.size,
                beyond_room: false,
                tablets: arguments.tablets,
                cache: Size(memory.cache),
                memtable: Some(Size(memory.memtable)),
                deadlines: Size(memory.deadlines),
                looks: Size(memory.looks),
                short_values: Size(memory.short_values),
                io: arguments.io.unwrap_or_default(),
                shared_device: arguments.shared_device.unwrap_or(false),
                archived: archive.is_some(),
                own_space: arguments.own_space.unwrap_or_default(),
                discard: arguments.discard,
                pause_relocation: arguments.pause_relocation.unwrap_or(false),
                scrub_every: parse_duration("--scrub-every", arguments.scrub_every.as_deref(), SCRUB_EVERY)?,
                snapshot_max_age: parse_duration(
                    "--snapshot-max-age",
                    arguments.snapshot_max_age.as_deref(),
                    SNAPSHOT_MAX_AGE,
                )?,
                scrub_rate: scrub_rate(arguments.scrub_rate)?,
            },
            listen: arguments.listen.unwrap_or_else(|| DEFAULT_LISTEN.into()),
            insecure: arguments.insecure.unwrap_or(false),
            credentials,
            kv_bucket: arguments.kv_bucket.unwrap_or_else(|| DEFAULT_BUCKET.into()),
            gzip: parse_compression(arguments.grpc_compression.as_deref())?,
            web_origins: arguments.web_origins.unwrap_or_default(),
            is_resp_bucket_free: arguments.resp_bucket.is_none(),
            resp,
            memory,
            memory_warning,
            s3,
            archive,
            objects,
            console,
            stop_timeout: Duration::from_secs(arguments.stop_timeout.unwrap_or(STOP_TIMEOUT_S)),
            watch: WatchSettings {
                address: arguments.metrics,
                slow: parse_duration("--slow", arguments.slow.as_deref(), SLOW)?,
                logs_access: arguments.access_log.unwrap_or(false),
                audit_log: arguments.audit_log,
                configuration,
            },
            log_format: arguments.log_format.unwrap_or_default(),
            open_health: arguments.open_health.unwrap_or(false),
            log: log.or(arguments.log).unwrap_or_else(|| "info".into()),
            resp_tls: arguments.resp_tls.as_deref().map(parse_switch).transpose()?,
            is_resp_open: false,
        };
        settings.with_redis_asking(is_resp_named)
    }

    /// If gRPC asks for credentials, the Redis frontend must ask, too, or be off: otherwise it would be a way around
    /// them. That holds with --insecure as well, which does not cancel configured credentials. If the frontend's
    /// address was named by an option, that is an error.
    fn with_redis_asking(self, is_resp_named: bool) -> anyhow::Result<Self> {
        if self.resp_tls == Some(true) && self.credentials.certificates.is_none() {
            return Err(Usage("--resp-tls on needs --tls-cert and --tls-key".into()).into());
        }
        let asks = self.credentials.tokens.is_some() || self.credentials.client_roots.is_some();
        let is_open = asks && !self.asks_redis_certificates() && !self.asks_redis_keys();
        let Some((address, _)) =
            self.resp.as_ref().filter(|(_, options)| is_open && options.password.is_none())
        else {
            return Ok(self);
        };
        if is_resp_named {
            let problem = format!(
                "refusing to serve the Redis protocol on {address}: it would let in every client that reaches it, while gRPC \
                 asks for credentials; set --key-file or --password-file, or --resp off"
            );
            return Err(Usage(problem).into());
        }
        Ok(Self { resp: None, is_resp_open: true, ..self })
    }

    /// Returns true if every Redis client must show a certificate. A client that may show a token or key instead need not.
    pub(super) fn asks_redis_certificates(&self) -> bool {
        let is_tls = self.resp_tls.unwrap_or(true);
        let is_only_way = self.credentials.tokens.is_none() && self.credentials.keys.is_none();
        is_tls && self.credentials.client_roots.is_some() && is_only_way
    }

    /// Returns true if every Redis client must show a key, or the password.
    pub(super) fn asks_redis_keys(&self) -> bool {
        self.credentials.keys.is_some()
    }
}

/// Divides the memory. Without --memory it is the memory that the program may use; a --cache that leaves too little of that is kept,
/// with the minimum of every other part beside it.
fn memory(arguments: &Arguments) -> anyhow::Result<(MemoryBudget, Option<String>)> {
    refuse_former_variable()?;
    let given = arguments.memory;
    let (cache, memtable) = (arguments.cache, arguments.memtable);
    let redis = arguments.resp.as_deref() != Some("off");
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    let total = given.or_else(default_memory).unwrap_or(DEFAULT_MEMORY).0;
    let (cache, memtable) = (cache.map(|size| size.0), memtable.map(|size| size.0));
    let tls = arguments.tls_cert.is_some();
    let console = arguments.console.as_deref() != Some("off");
    let archive = arguments.archive.is_some();
    let wanted = Wanted { total, cache, memtable, redis, console, archive, tls, cores };
    match MemoryBudget::divide(&wanted) {
        Ok(budget) => Ok((budget, None)),
        Err(TooLittle { needed }) if given.is_none() && (cache.is_some() || memtable.is_some()) => {
            let (needed, total) = (Size(needed), Size(total));
            let warning = format!(
                "--cache and --memtable need {needed} of memory with the least of everything else, and this program may take {total}: \
                 under load the kernel may kill it. Give a smaller --cache, or only --memory"
            );
            let divided = MemoryBudget::divide(&Wanted { total: needed.0, ..wanted });
            let budget = divided.map_err(|_| too_little(total, needed, cache.map(Size)))?;
            Ok((budget, Some(warning)))
        }
        Err(TooLittle { needed }) => Err(too_little(Size(total), Size(needed), cache.map(Size)).into()),
    }
}

/// The division of the memory with these options and their configuration file.
///
/// # Errors
/// [`Usage`]: it is too little; or the file cannot be read.
pub(crate) fn divided_memory(arguments: &Arguments) -> anyhow::Result<MemoryBudget> {
    Ok(memory(&with_file(arguments.clone())?)?.0)
}

/// The options in force: those of the command line and environment, then those of their configuration file.
fn with_file(arguments: Arguments) -> anyhow::Result<Arguments> {
    let file = arguments.config.as_deref().map(file::read).transpose()?;
    Ok(arguments.or(file.unwrap_or_default()))
}

fn too_little(total: Size, needed: Size, cache: Option<Size>) -> Usage {
    let with_cache = cache.map(|cache| format!(" with --cache {cache}")).unwrap_or_default();
    Usage(format!(
        "{total} of memory are too little: a server needs {needed}{with_cache}; give it that by --memory, or by the memory limit of its \
         container or unit"
    ))
}

/// A duration as `100ms`, `7d`; none for `off`.
pub(super) fn parse_duration(
    option: &str,
    given: Option<&str>,
    default: Duration,
) -> Result<Option<Duration>, Usage> {
    match given {
        None => Ok(Some(default)),
        Some("off") => Ok(None),
        Some(text) => match humantime::parse_duration(text) {
            Ok(duration) if duration.is_zero() => {
                Err(Usage(format!("{option} {text}: a duration above 0 is needed; `off` switches it off")))
            }
            Ok(duration) => Ok(Some(duration)),
            Err(error) => {
                Err(Usage(format!("{option} {text:?} is no duration: {error}; write 100ms, 2s, 7d or off")))
            }
        },
    }
}

fn scrub_rate(given: Option<Size>) -> Result<Size, Usage> {
    match given.unwrap_or(SCRUB_RATE) {
        Size(0) => {
            Err(Usage("--scrub-rate 0: a scrub would never end; --scrub-every off switches it off".into()))
        }
        rate => Ok(rate),
    }
}

fn parse_switch(text: &str) -> Result<bool, Usage> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        other => Err(Usage(format!("{other:?} is neither on nor off"))),
    }
}

/// The options of the Redis frontend and its address as configured; `None` if it is off.
fn resp(arguments: &Arguments, limits: RedisLimits) -> anyhow::Result<Option<(String, RedisOptions)>> {
    let defaults = RedisOptions::default();
    let password_file = arguments.password_file.as_deref();
    let durability = arguments.durability.as_deref();
    let options = RedisOptions {
        bucket: arguments.resp_bucket.clone().unwrap_or(defaults.bucket),
        password: password_file.map(password).transpose()?,
        durability: durability.map_or(Ok(Durability::Sync), parse_durability)?,
        poll: Duration::from_micros(arguments.poll.unwrap_or(0)),
        limits: pending_limits(limits, arguments.resp_pending)?,
        cluster: cluster_mode(arguments.cluster, arguments.announce.clone())?,
        ..RedisOptions::default()
    };
    let address = arguments.resp.clone().unwrap_or_else(|| DEFAULT_RESP.into());
    Ok((address != "off").then_some((address, options)))
}

/// Returns the mode of the Redis frontend, with the address that it announces as a cluster.
fn cluster_mode(cluster: Option<bool>, announce: Option<String>) -> Result<ClusterMode, Usage> {
    let Some(text) = announce else {
        return Ok(if cluster == Some(true) { ClusterMode::On { announce: None } } else { ClusterMode::Off });
    };
    if cluster == Some(false) {
        return Err(Usage("--announce is for a cluster, and --cluster is off; leave one of them out".into()));
    }
    let wrong = || Usage(format!("--announce {text:?}: write HOST:PORT, as shoal.example:7412"));
    let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    let is_v6 = host.starts_with('[') && host.ends_with(']');
    let host = if is_v6 { host.trim_start_matches('[').trim_end_matches(']') } else { host };
    let port = port.parse().ok().filter(|port| *port > 0).ok_or_else(wrong)?;
    // It becomes part of a line of words, and a name has no colon.
    let is_odd =
        |character: char| character.is_whitespace() || character.is_control() || ",@/".contains(character);
    if host.is_empty() || host.contains(is_odd) || host.contains(':') != is_v6 {
        return Err(wrong());
    }
    Ok(ClusterMode::On { announce: Some(Announced { host: host.to_owned(), port }) })
}

/// The bounds of the Redis frontend if `pending` bytes may wait at a connection.
fn pending_limits(limits: RedisLimits, pending: Option<Size>) -> Result<RedisLimits, Usage> {
    let Some(pending) = pending else { return Ok(limits) };
    let least = 2 * limits.answer_bytes_max as u64;
    match usize::try_from(pending.0) {
        Ok(bytes) if pending.0 >= least => Ok(RedisLimits { pending_bytes_max: bytes, ..limits }),
        _ => {
            Err(Usage(format!("--resp-pending {} is too little; at least {least} bytes may wait", pending.0)))
        }
    }
}

/// The directions in which messages may be compressed.
#[derive(Clone, Copy)]
pub(super) struct Gzip {
    pub(super) requests: bool,
    pub(super) answers: bool,
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

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn command_line_overrides_file_overrides_default() {
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
        assert_eq!(
            (defaults.listen.as_str(), defaults.store.cache),
            (DEFAULT_LISTEN, Size(defaults.memory.cache))
        );
        assert_eq!(defaults.store.access, Access::Create);
        let given = Arguments { must_exist: Some(true), ..Arguments::default() };
        assert_eq!(Settings::new(given, None).unwrap().store.access, Access::Write);
    }

    #[test]
    fn durations_parse_with_units() {
        let parse = |text| parse_duration("--slow", text, SLOW);
        assert_eq!((parse(None).unwrap(), parse(Some("off")).unwrap()), (Some(SLOW), None));
        assert_eq!(parse(Some("100ms")).unwrap(), Some(Duration::from_millis(100)));
        assert_eq!(parse(Some("7d")).unwrap(), Some(SCRUB_EVERY));
        for wrong in ["", "soon", "5", "0s", "-1s"] {
            assert!(parse(Some(wrong)).unwrap_err().to_string().contains("--slow"), "{wrong}");
        }
        assert!(scrub_rate(Some(Size(0))).is_err());
    }

    #[test]
    fn a_report_has_the_options_that_were_given() {
        let file = Arguments { listen: Some("a:1".into()), cache: Some(Size(5)), ..Arguments::default() };
        let given = Arguments { listen: Some("b:2".into()), insecure: Some(true), ..Arguments::default() };
        let text = toml::Table::try_from(given.or(file)).unwrap().to_string();
        assert_eq!(text, "cache = 5\ninsecure = true\nlisten = \"b:2\"\n");
    }

    #[test]
    fn the_redis_frontend_is_on_unless_it_is_off() {
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
    fn a_cluster_is_asked_for() {
        let mode = |cluster, announce: &str| {
            let announce = (!announce.is_empty()).then(|| announce.to_owned());
            let given = Arguments { cluster, announce, ..Arguments::default() };
            Settings::new(given, None).map(|settings| settings.resp.unwrap().1.cluster)
        };
        assert_eq!(mode(None, "").unwrap(), ClusterMode::Off);
        assert_eq!(mode(Some(true), "").unwrap(), ClusterMode::On { announce: None });
        for (text, host, port) in [
            ("shoal.example:7412", "shoal.example", 7412),
            ("10.0.0.1:1", "10.0.0.1", 1),
            ("[::1]:65535", "::1", 65_535),
        ] {
            let announce = Some(Announced { host: host.into(), port });
            assert_eq!(mode(None, text).unwrap(), ClusterMode::On { announce });
        }
        for wrong in ["host", "host:", ":7412", "host:0", "host:65536", "::1:7412", "a b:1", "a,b:1", "[]:1"]
        {
            assert!(mode(None, wrong).unwrap_err().is::<Usage>(), "{wrong}");
        }
        assert!(mode(Some(false), "host:7412").unwrap_err().is::<Usage>());
    }

    #[test]
    fn pending_bytes_limit_is_an_option() {
        let pending = |bytes| {
            let given = Arguments { resp_pending: Some(Size(bytes)), ..Arguments::default() };
            Settings::new(given, None).map(|settings| settings.resp.unwrap().1.limits.pending_bytes_max)
        };
        assert_eq!(pending(64 << 20).unwrap(), 64 << 20);
        assert!(pending(8 << 20).unwrap_err().is::<Usage>());
    }

    /// It was a way around tokens and certificates.
    #[test]
    fn redis_frontend_requires_credentials() {
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
            let with_keys = Arguments { key_file: file(), ..given() };
            let settings = Settings::new(with_keys, None).unwrap();
            assert!(settings.resp.is_some() && !settings.asks_redis_certificates());
            let settings = Settings::new(Arguments { resp: Some("off".into()), ..given() }, None).unwrap();
            assert!(settings.resp.is_none() && !settings.is_resp_open);
            // A regression: an address that was asked for was ignored.
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
