//! The store and the bucket of a command.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use shoal_client::{Client, ConnectOptions, Error};
use shoal_engine::{DEFAULT_BUCKET, check_bucket};
use shoal_transfer::objects::Objects;

use crate::arguments::credentials::{read_key, read_pem, read_token};
use crate::arguments::size::Size;
use crate::failure::Usage;
use crate::memory::limit::default_cache;
use crate::store::file::{self, Access, StoreOptions};

/// The default address of a server.
pub(crate) const DEFAULT_SERVER: &str = "http://127.0.0.1:7411";

/// Attempts of a call, over about ten seconds, so that a long import survives a restart of the server. `--timeout` may stop it sooner.
const ATTEMPTS: u32 = 14;

/// The cache of a data file that a command opens, unless memory is scarce.
pub(crate) const DEFAULT_CACHE: Size = Size(256 << 20);

/// A server, or a data file that no server has open.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Store")]
pub(crate) struct StoreArguments {
    /// The server [default: SHOAL_SERVER, or http://127.0.0.1:7411].
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// Show the first token of this file to the server. The file may not be open to other users.
    #[arg(long, value_name = "FILE", env = "SHOAL_TOKEN_FILE", hide_env_values = true)]
    token_file: Option<PathBuf>,
    /// With https: believe these roots, PEM [default: those of the system].
    #[arg(long, value_name = "FILE", env = "SHOAL_CA_FILE", hide_env_values = true)]
    ca_file: Option<PathBuf>,
    /// With https: show this certificate to the server, PEM.
    #[arg(
        long,
        value_name = "FILE",
        env = "SHOAL_CLIENT_CERT",
        hide_env_values = true,
        requires = "client_key"
    )]
    client_cert: Option<PathBuf>,
    /// With https: the certificate's private key, PEM.
    #[arg(
        long,
        value_name = "FILE",
        env = "SHOAL_CLIENT_KEY",
        hide_env_values = true,
        requires = "client_cert"
    )]
    client_key: Option<PathBuf>,
    /// Wait this long for a server that does not answer: for the answer of a call with all its attempts, and for the next bytes
    /// of a stream; as 500ms, 30s, 5m.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = timeout)]
    timeout: Duration,
    /// Work on this data file (or device) itself, while no server runs on it.
    #[arg(long, value_name = "FILE", conflicts_with = "server")]
    data: Option<PathBuf>,
    /// With --data: write nothing to it. Commands that only read never write; with this option any write is an error.
    #[arg(long, requires = "data")]
    read_only: bool,
    /// With --data: memory for cached pages and values [default: 256M, or an eighth of the memory of the machine or of the
    /// program's control group if that is less].
    #[arg(long, value_name = "SIZE", requires = "data")]
    cache: Option<Size>,
    /// Open one connection to the server only.
    #[arg(skip)]
    opens_one_connection: bool,
}

impl StoreArguments {
    /// The same store over one connection, for a command that shows the server's connections without its own.
    pub(crate) fn over_one_connection(&self) -> Self {
        Self { opens_one_connection: true, ..self.clone() }
    }

    /// Returns true if the store is a data file, without a server.
    pub(crate) fn is_file(&self) -> bool {
        self.data.is_some()
    }

    /// The data file, if the store is one.
    pub(crate) fn data(&self) -> Option<&Path> {
        self.data.as_deref()
    }

    /// Returns true if nothing may be written to the data file.
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Connects to the server.
    pub(crate) async fn connect(&self) -> anyhow::Result<Client> {
        match Client::connect(self.connection()?).await {
            Ok(client) => Ok(client),
            Err(Error::Invalid(why)) => Err(Usage(why).into()),
            Err(error @ Error::Unavailable { .. }) => {
                Err(anyhow!("{error} (--server names another one; --data FILE works without one)"))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Connects to the server, or opens the data file for `access`.
    pub(crate) async fn open(&self, access: Access) -> anyhow::Result<Objects> {
        if self.read_only && access != Access::Read {
            return Err(Usage("this command writes: it cannot be done with --read-only".into()).into());
        }
        if let Some(path) = &self.data {
            let cache = self.cache.unwrap_or_else(|| default_cache(DEFAULT_CACHE));
            let options = StoreOptions { cache, access, ..StoreOptions::default() };
            let store = file::open(path, &options).await?;
            return Ok(Objects::embedded(store, path.clone()));
        }
        Ok(Objects::Remote(self.connect().await?))
    }

    /// Opens the store as [`Self::open`], works on it, and closes it in order.
    pub(crate) async fn with(
        &self,
        access: Access,
        work: impl AsyncFnOnce(&Objects) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let objects = self.open(access).await?;
        let result = work(&objects).await;
        let closed = objects.close().await;
        result?;
        Ok(closed?)
    }

    /// The options of a connection to the server, with credentials.
    fn connection(&self) -> anyhow::Result<ConnectOptions> {
        let mut options = ConnectOptions { attempts: ATTEMPTS, ..ConnectOptions::new(self.server()) };
        if self.opens_one_connection {
            options.connections = 1;
        }
        (options.answer_timeout, options.call_timeout) = (self.timeout, Some(self.timeout));
        options.connect_timeout = options.connect_timeout.min(self.timeout);
        options.token = self.token_file.as_deref().map(read_token).transpose()?.map(Into::into);
        if options.server.starts_with("https://") {
            options.ca_pem = self.ca_file.as_deref().map(read_pem).transpose()?;
            if let (Some(certificate), Some(key)) = (&self.client_cert, &self.client_key) {
                options.identity_pem = Some((read_pem(certificate)?, read_key(key)?.into()));
            }
        }
        Ok(options)
    }

    /// The address of the server.
    pub(crate) fn server(&self) -> String {
        let from_environment = || std::env::var("SHOAL_SERVER").ok().filter(|server| !server.is_empty());
        self.server.clone().or_else(from_environment).unwrap_or_else(|| DEFAULT_SERVER.into())
    }
}

/// A store and a bucket in it.
#[derive(Args, Clone, Debug)]
pub(crate) struct Target {
    /// The bucket [default: default].
    #[arg(long, short, value_name = "B", env = "SHOAL_BUCKET", value_parser = bucket)]
    bucket: Option<String>,
    #[command(flatten)]
    pub(crate) store: StoreArguments,
}

impl Target {
    /// The bucket.
    pub(crate) fn bucket(&self) -> &str {
        self.bucket.as_deref().unwrap_or(DEFAULT_BUCKET)
    }

    /// The bucket if the command line or the environment names one.
    pub(crate) fn named_bucket(&self) -> Option<&str> {
        self.bucket.as_deref()
    }
}

/// The longest `--timeout`.
const TIMEOUT_MAX: Duration = Duration::from_secs(24 * 3600);

/// Reads a `--timeout` for clap.
fn timeout(text: &str) -> Result<Duration, String> {
    let wanted = "write a time as 500ms, 30s or 5m, up to 24h";
    let time = humantime::parse_duration(text).map_err(|_| wanted)?;
    if time.is_zero() || time > TIMEOUT_MAX { Err(wanted.into()) } else { Ok(time) }
}

/// Checks the name of a bucket for clap.
pub(crate) fn bucket(name: &str) -> Result<String, String> {
    check_bucket(name).map_err(|error| error.to_string())?;
    Ok(name.to_owned())
}
