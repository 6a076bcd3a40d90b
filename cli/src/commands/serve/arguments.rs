//! The options of `shoal serve`, and the keys of its configuration file.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize, Serializer};
use shoal_s3::body::check::EtagScheme;

use crate::arguments::size::Size;
use crate::logging::LogFormat;
use crate::store::file::Io;

const EXAMPLES: &str = "Examples:
  shoal serve                                        data in ./shoal.data, on 127.0.0.1:7411 (gRPC) and 7412 (Redis)
  shoal serve --data /srv/shoal.data --size 200G --memory 8G --cache 4G
  shoal format /dev/nvme1n1                          a whole device: once, it must be blank; and then
  shoal serve --data /dev/nvme1n1 --must-exist
  shoal serve --listen 0.0.0.0:7411 --tls-cert cert.pem --tls-key key.pem --token-file tokens
  shoal serve --config shoal.toml

Every option may also be set in the configuration file (TOML, same names: data = \"/srv/shoal.data\", cache = \"4G\") or in an
environment variable. The command line overrides the environment, which overrides the file.

Ctrl-C or SIGTERM stops the server cleanly, within --stop-timeout; a second one stops it at once. Neither loses anything that was
acknowledged.";

/// Writes a path for people. A path that is not UTF-8 has replacement characters: TOML cannot hold it, and an option may.
fn lossy<S: Serializer>(path: &Option<PathBuf>, serializer: S) -> Result<S::Ok, S::Error> {
    path.as_deref().map(Path::to_string_lossy).serialize(serializer)
}

/// The options, and the keys of the configuration file.
#[derive(Args, Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[command(after_help = EXAMPLES)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Arguments {
    /// The data file, or a block device that `shoal format` made a store of. A file that does not exist is created; an
    /// existing file or device is never formatted [default: ./shoal.data].
    #[arg(long, value_name = "FILE", env = "SHOAL_DATA", hide_env_values = true)]
    #[serde(serialize_with = "lossy")]
    pub(crate) data: Option<PathBuf>,
    /// Create nothing: a data file that does not exist is an error.
    #[arg(long, value_name = "BOOL", env = "SHOAL_MUST_EXIST", hide_env_values = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) must_exist: Option<bool>,
    /// The maximum size of the data file: it starts small and grows ahead of need. An existing store grows to this size if it is
    /// larger than its present one, and never shrinks [default for a new data file: 80 % of the disk's free space, at most 64G; for a
    /// store that exists: its present one].
    #[arg(long, value_name = "SIZE", env = "SHOAL_SIZE", hide_env_values = true)]
    pub(crate) size: Option<Size>,
    /// The total memory of the server, shared by the cache, requests, answers, recent writes and connections [default: the
    /// limit of the program's control group, or half of the machine's memory].
    #[arg(long, value_name = "SIZE", env = "SHOAL_MEMORY", hide_env_values = true)]
    pub(crate) memory: Option<Size>,
    /// Memory for cached pages and values, a part of --memory [default: 1G, or the rest of --memory if that is less].
    #[arg(long, value_name = "SIZE", env = "SHOAL_CACHE", hide_env_values = true)]
    pub(crate) cache: Option<Size>,
    /// Memory for recent writes that are in the log only [default: follows from cache and log].
    #[arg(long, alias = "overlay", value_name = "SIZE", env = "SHOAL_MEMTABLE", hide_env_values = true)]
    #[serde(alias = "overlay")]
    pub(crate) memtable: Option<Size>,
    /// For a new data file: the number of tablets, 1 to 32 [default: the number of cores, at least 4].
    #[arg(long, value_name = "N", env = "SHOAL_TABLETS", hide_env_values = true, value_parser = clap::value_parser!(u16).range(1..=32))]
    pub(crate) tablets: Option<u16>,
    /// How to do I/O on the device [default: auto].
    #[arg(long, value_name = "HOW", env = "SHOAL_IO", hide_env_values = true)]
    pub(crate) io: Option<Io>,
    /// The device can be opened on another machine, too (RBD, EBS, DRBD, NVMe-oF): after each flush, and before the answers, look whether
    /// another server opened it. One more read for each commit. An alarm, not a fence: the device has to refuse the former server.
    #[arg(long, value_name = "BOOL", env = "SHOAL_SHARED_DEVICE", hide_env_values = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) shared_device: Option<bool>,
    /// The address to listen on; port 0 takes a free one [default: 127.0.0.1:7411].
    #[arg(long, value_name = "HOST:PORT", env = "SHOAL_LISTEN", hide_env_values = true)]
    pub(crate) listen: Option<String>,
    /// Accept other machines although clients need no credentials or nothing is encrypted.
    #[arg(long, value_name = "BOOL", env = "SHOAL_INSECURE", hide_env_values = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) insecure: Option<bool>,
    /// Speak TLS, with the certificate (and those between it and its root) in this PEM file. It and the other files with
    /// credentials are read again when they change, and at SIGHUP.
    #[arg(long, value_name = "FILE", env = "SHOAL_TLS_CERT", hide_env_values = true)]
    #[serde(serialize_with = "lossy")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The certificate's private key, PEM. The file may be open to its owner only.
    #[arg(long, value_name = "FILE", env = "SHOAL_TLS_KEY", hide_env_values = true)]
    #[serde(serialize_with = "lossy")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Accept clients that present a certificate issued by these roots, PEM.
    #[arg(long, value_name = "FILE", env = "SHOAL_TLS_CLIENT_CA", hide_env_values = true)]
    #[serde(serialize_with = "lossy")]
    pub(crate) tls_client_ca: Option<PathBuf>,
    /// Also speak TLS 1.2, besides 1.3.
    #[arg(long, value_name = "BOOL", env = "SHOAL_TLS12", hide_env_values = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) tls12: Option<bool>,
    /// Accept clients that send one of the tokens in this file, one a line, as `authorization: Bearer TOKEN`. A line may end
    /// with rights: `TOKEN read-only`, `TOKEN bucket=NAME`, or several with commas; without them a token may do everything.
    /// Only the file's owner may have access to it.
    #[arg(long, value_name = "FILE", env = "SHOAL_TOKEN_FILE", hide_env_values = true)]
    #[serde(serialize_with = "lossy")]
    pub(crate) token_file: Option<PathBuf>,
    /// Accept clients that show a key of this file, which `shoal key` writes: gRPC clients send `authorization: Bearer ID.SECRET`,
    /// Redis clients AUTH ID SECRET. A key may do what its grants allow. Only the file's owner may have access to it.
    #[arg(long, value_name = "FILE", env = "SHOAL_KEY_FILE", hide_env_values = true)]
    #[serde(serialize_with = "lossy")]
    pub(crate) key_file: Option<PathBuf>,
    /// The address of S3, or off. Clients sign with a key of --key-file, or of shoal.keys beside the data file, which a first start
    /// makes [default: 127.0.0.1:7413; off with --token-file, --password-file or --tls-client-ca and no --key-file].
    #[arg(long, value_name = "HOST:PORT|off", env = "SHOAL_S3", hide_env_values = true)]
    pub(crate) s3: Option<String>,
    /// The region that clients of S3 name [default: us-east-1].
    #[arg(long, value_name = "REGION", env = "SHOAL_S3_REGION", hide_env_values = true)]
    pub(crate) s3_region: Option<String>,
    /// Take the first part of a host name below one of these domains as the bucket of S3 requests, as in photos.s3.example.org
    /// [default: none].
    #[arg(
        long,
        value_name = "DOMAIN,...",
        env = "SHOAL_S3_DOMAIN",
        hide_env_values = true,
        value_delimiter = ','
    )]
    pub(crate) s3_domain: Option<Vec<String>>,
    /// Serve the websites of buckets on hosts BUCKET.DOMAIN, as photos.web.example.org [default: none].
    #[arg(
        long,
        value_name = "DOMAIN,...",
        env = "SHOAL_S3_WEBSITE_DOMAIN",
        hide_env_values = true,
        value_delimiter = ','
    )]
    pub(crate) s3_website_domain: Option<Vec<String>>,
    /// The ETags of objects in S3 buckets that are made from now on [default: md5].
    #[arg(long, value_name = "FORM", env = "SHOAL_S3_ETAG", hide_env_values = true)]
    pub(crate) s3_etag: Option<S3Etag>,
    /// Abort an upload of S3 in parts that is open for longer than this, as 7d, or never (off) [default: 7d].
    #[arg(long, value_name = "DURATION|off", env = "SHOAL_S3_UPLOAD_LIFE", hide_env_values = true)]
    pub(crate) s3_upload_life: Option<String>,
    /// The address of the console, a page for browsers, or off. It asks for credentials if gRPC does [default: 127.0.0.1:7414; if
    /// that is taken, the server warns and runs without the console].
    #[arg(long, value_name = "HOST:PORT|off", env = "SHOAL_CONSOLE", hide_env_values = true)]
    pub(crate) console: Option<String>,
    /// The bucket of io.grpc.KeyValueService [default: default].
    #[arg(long, value_name = "BUCKET", env = "SHOAL_KV_BUCKET", hide_env_values = true)]
    pub(crate) kv_bucket: Option<String>,
    /// Accept compressed requests (gzip), also compress answers for clients that ask for it (gzip-both), or neither (off)
    /// [default: off].
    #[arg(long, value_name = "gzip|gzip-both|off", env = "SHOAL_GRPC_COMPRESSION", hide_env_values = true)]
    pub(crate) grpc_compression: Option<String>,
    /// Accept gRPC-Web calls from pages of these origins, as https://example.com, or * for all [default: none].
    #[arg(
        long,
        value_name = "ORIGIN,...",
        env = "SHOAL_WEB_ORIGINS",
        hide_env_values = true,
        value_delimiter = ','
    )]
    pub(crate) web_origins: Option<Vec<String>>,
    /// Store the values of each of these buckets in separate groups of blocks, so that its load does not fragment the space of
    /// the others [default: none].
    #[arg(
        long,
        value_name = "BUCKET,...",
        env = "SHOAL_OWN_SPACE",
        hide_env_values = true,
        value_delimiter = ','
    )]
    pub(crate) own_space: Option<Vec<String>>,
    /// Release blocks that have been free for some seconds on the device, slowly: a file gets holes, a raw device may trim
    /// [default: true for a file, false for a block device].
    #[arg(long, value_name = "BOOL", env = "SHOAL_DISCARD", hide_env_values = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) discard: Option<bool>,
    /// Do not relocate values to keep whole groups free, until the next start without this option.
    #[arg(long, value_name = "BOOL", env = "SHOAL_PAUSE_RELOCATION", hide_env_values = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) pause_relocation: Option<bool>,
    /// The address of the Redis protocol, or off [default: 127.0.0.1:7412; off if gRPC asks for credentials and there is
    /// neither --key-file nor --password-file].
    #[arg(long, value_name = "HOST:PORT|off", env = "SHOAL_RESP", hide_env_values = true)]
    pub(crate) resp: Option<String>,
    /// The bucket of Redis clients [default: default, as for all other clients, or redis if that bucket has objects at the
    /// start].
    #[arg(long, value_name = "BUCKET", env = "SHOAL_RESP_BUCKET", hide_env_values = true)]
    pub(crate) resp_bucket: Option<String>,
    /// Act as a Redis cluster of one node for clients that ask; cluster clients connect to the address that the server sees
    /// [default: no cluster].
    #[arg(long, value_name = "BOOL", env = "SHOAL_CLUSTER", hide_env_values = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) cluster: Option<bool>,
    /// As --cluster, and announce this address to cluster clients: the one that they reach if the server's port is mapped to another
    /// one.
    #[arg(long, value_name = "HOST:PORT", env = "SHOAL_ANNOUNCE", hide_env_values = true)]
    pub(crate) announce: Option<String>,
    /// The file with the password that Redis clients must send, unless they show a key. Only its owner may have access to it.
    /// Without this file and --key-file no password is needed.
    #[arg(long, value_name = "FILE", env = "SHOAL_PASSWORD_FILE", hide_env_values = true)]
    #[serde(serialize_with = "lossy")]
    pub(crate) password_file: Option<PathBuf>,
    /// When a write of a Redis client is acknowledged: when it is durable (sync), or at once, while nothing
    /// acknowledged is older than MS milliseconds without being durable (relaxed:MS) [default: sync].
    #[arg(long, value_name = "sync|relaxed:MS", env = "SHOAL_DURABILITY", hide_env_values = true)]
    pub(crate) durability: Option<String>,
    /// The microseconds for which a thread of the Redis frontend polls for more work before it sleeps: latency falls, and a
    /// core is busy while clients are [default: 0].
    #[arg(long, value_name = "MICROSECONDS", env = "SHOAL_POLL", hide_env_values = true)]
    pub(crate) poll: Option<u64>,
    /// The maximum bytes of untaken answers of a Redis client, and of the commands that it sent after them; beyond that its
    /// connection gets an error and is closed [default: 256M].
    #[arg(long, value_name = "SIZE", env = "SHOAL_RESP_PENDING", hide_env_values = true)]
    pub(crate) resp_pending: Option<Size>,
    /// Whether Redis clients speak TLS, with the files of --tls-cert, --tls-key and --tls-client-ca [default: on with
    /// --tls-cert].
    #[arg(long, value_name = "on|off", env = "SHOAL_RESP_TLS", hide_env_values = true)]
    pub(crate) resp_tls: Option<String>,
    /// The address of the metrics for Prometheus (/metrics) and of the checks /livez and /readyz, or off. It needs no credentials
    /// [default: 127.0.0.1:7415; if that is taken, the server warns and runs without metrics].
    #[arg(long, value_name = "HOST:PORT|off", env = "SHOAL_METRICS", hide_env_values = true)]
    pub(crate) metrics: Option<String>,
    /// The format of the log: text, or json, an object a line [default: text].
    #[arg(long, value_name = "text|json", env = "SHOAL_LOG_FORMAT", hide_env_values = true)]
    pub(crate) log_format: Option<LogFormat>,
    /// Log requests that take this long or longer, with the parts of their time; or off [default: 1s].
    #[arg(long, value_name = "DURATION|off", env = "SHOAL_SLOW", hide_env_values = true)]
    pub(crate) slow: Option<String>,
    /// Log every request: its caller, key and result. It costs some throughput.
    #[arg(long, value_name = "BOOL", env = "SHOAL_ACCESS_LOG", hide_env_values = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) access_log: Option<bool>,
    /// The file to which a line of JSON is added for every request of every frontend, with its caller; - is standard output. It is made
    /// with access for its owner alone, and opened again after it was moved. It costs some throughput.
    #[arg(long, value_name = "FILE|-", env = "SHOAL_AUDIT_LOG", hide_env_values = true)]
    #[serde(serialize_with = "lossy")]
    pub(crate) audit_log: Option<PathBuf>,
    /// The pause between two scrubs, which read and verify all stored data in the background; the first one starts ten
    /// minutes after the server; or off [default: 7d].
    #[arg(long, value_name = "DURATION|off", env = "SHOAL_SCRUB_EVERY", hide_env_values = true)]
    pub(crate) scrub_every: Option<String>,
    /// Bytes that a scrub reads in a second [default: 8M].
    #[arg(long, value_name = "SIZE", env = "SHOAL_SCRUB_RATE", hide_env_values = true)]
    pub(crate) scrub_rate: Option<Size>,
    /// The time for which a backup's snapshot may hold the space of values that are overwritten or deleted meanwhile. Then it is dropped,
    /// and the backup fails; or off [default: 24h].
    #[arg(long, value_name = "DURATION|off", env = "SHOAL_SNAPSHOT_MAX_AGE", hide_env_values = true)]
    pub(crate) snapshot_max_age: Option<String>,
    /// Archive the log: a bucket and a prefix below which nothing else is stored, as s3://bucket/prefix (with
    /// ?endpoint=URL for a server other than Amazon's), gs://, az:// or file:///folder.
    /// A machine or a disk that is lost costs the writes of the last seconds, and every moment of the retention can be restored. The first
    /// start uploads the whole store [default: none].
    #[arg(long, value_name = "URL", env = "SHOAL_ARCHIVE", hide_env_values = true)]
    pub(crate) archive: Option<String>,
    /// The time for which writes are collected before they are sent to the archive [default: 1s].
    #[arg(long, value_name = "DURATION", env = "SHOAL_ARCHIVE_INTERVAL", hide_env_values = true)]
    pub(crate) archive_interval: Option<String>,
    /// Objects below 256 KiB that are put into the bucket in a second at most: each one is paid for [default: 10].
    #[arg(long, value_name = "N", env = "SHOAL_ARCHIVE_PUTS", hide_env_values = true, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) archive_puts: Option<u32>,
    /// Every moment of the last time of this length can be restored [default: 7d].
    #[arg(long, value_name = "DURATION", env = "SHOAL_ARCHIVE_RETENTION", hide_env_values = true)]
    pub(crate) archive_retention: Option<String>,
    /// The maximum size of the file DATA.spool, which holds writes while the bucket is away [default: 10G, or half of the
    /// free space of its file system if that is less].
    #[arg(long, value_name = "SIZE", env = "SHOAL_ARCHIVE_SPOOL", hide_env_values = true)]
    pub(crate) archive_spool: Option<Size>,
    /// The folder of that file: its room must outlive a restart of the machine [default: the folder of the data file; needed for a block
    /// device].
    #[arg(long, value_name = "FOLDER", env = "SHOAL_ARCHIVE_SPOOL_FOLDER", hide_env_values = true)]
    #[serde(serialize_with = "lossy")]
    pub(crate) archive_spool_folder: Option<PathBuf>,
    /// Bytes of a base that are uploaded in a second at most [default: 64M].
    #[arg(long, value_name = "SIZE", env = "SHOAL_ARCHIVE_BASE_RATE", hide_env_values = true)]
    pub(crate) archive_base_rate: Option<Size>,
    /// Also answer gRPC's health check (grpc.health.v1.Health/Check) without credentials.
    #[arg(long, value_name = "BOOL", env = "SHOAL_OPEN_HEALTH", hide_env_values = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) open_health: Option<bool>,
    /// The time limit of a stop, in seconds: requests in flight are finished, and the log's records are applied to the trees.
    /// The next start does the rest, as after a crash [default: 25].
    #[arg(long, value_name = "SECONDS", env = "SHOAL_STOP_TIMEOUT", hide_env_values = true)]
    pub(crate) stop_timeout: Option<u64>,
    /// The configuration file.
    #[arg(long, value_name = "FILE", env = "SHOAL_CONFIG", hide_env_values = true)]
    #[serde(skip)]
    pub(crate) config: Option<PathBuf>,
    /// The log's filter in the configuration file; the option is one of all commands.
    #[arg(skip)]
    pub(crate) log: Option<String>,
}

/// The form of ETags.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum S3Etag {
    /// The MD5 of the value, as clients expect it.
    #[default]
    Md5,
    /// A CRC-64 and the length, which clients take for one of an upload in parts: long values are put with less processor time.
    Crc,
}

impl From<S3Etag> for EtagScheme {
    fn from(form: S3Etag) -> Self {
        match form {
            S3Etag::Md5 => Self::Md5,
            S3Etag::Crc => Self::Crc,
        }
    }
}

impl Arguments {
    /// These options, and for each that is not set that of `file`.
    pub(super) fn or(self, file: Self) -> Self {
        macro_rules! each {
            ($($option:ident)*) => { Self { $($option: self.$option.or(file.$option)),* } };
        }
        each! {
            access_log announce archive archive_base_rate archive_interval archive_puts archive_retention archive_spool archive_spool_folder audit_log cache cluster config console data discard durability
            grpc_compression insecure io key_file kv_bucket listen log log_format memory memtable
            metrics must_exist open_health own_space password_file pause_relocation poll
            resp resp_bucket resp_pending resp_tls s3 s3_domain s3_etag s3_region s3_upload_life s3_website_domain scrub_every scrub_rate
            shared_device size slow snapshot_max_age stop_timeout tablets tls12 tls_cert tls_client_ca tls_key
            token_file web_origins
        }
    }
}
