//! `shoal serve`: opens the store, creating it at the first start, and serves it until a signal.

use std::fmt::Display;
use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use shoal_server::{ServeError, Server, ServerOptions};
use tokio::sync::oneshot;

use crate::config::Config;
use crate::failure::{Usage, output_error};
use crate::logging;
use crate::signals::stop_in_order;
use crate::size::Size;
use crate::store_file::{self, Creation, Io, StoreOptions};

const DEFAULT_DATA: &str = "./shoal.data";
const DEFAULT_LISTEN: &str = "127.0.0.1:7411";
const DEFAULT_CACHE: Size = Size(1 << 30);

const EXAMPLES: &str = "\
Examples:
  shoal serve                                        data in ./shoal.data, on 127.0.0.1:7411
  shoal serve --data /srv/shoal.data --size 200G --cache 4G
  shoal serve --data /dev/nvme1n1                    a whole device; a new one must be blank (zeros)
  shoal serve --config shoal.toml

Every option may also stand in the configuration file (TOML, same names: data = \"/srv/shoal.data\", cache = \"4G\") or in an
environment variable. The command line goes before the environment, the environment before the file.

Ctrl-C or SIGTERM stops the server in order; a second one at once, which loses nothing that was acknowledged.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The data file, or a block device; a file is created at the first start [default: ./shoal.data].
    #[arg(long, value_name = "FILE", env = "SHOAL_DATA", hide_env_values = true)]
    data: Option<PathBuf>,
    /// For a new data file: how large it may grow. It starts small and grows ahead of need
    /// [default: 80 % of the disk's free space, at most 64G].
    #[arg(long, value_name = "SIZE", env = "SHOAL_SIZE", hide_env_values = true)]
    size: Option<Size>,
    /// Memory for cached pages and values [default: 1G].
    #[arg(long, value_name = "SIZE", env = "SHOAL_CACHE", hide_env_values = true)]
    cache: Option<Size>,
    /// Memory for recent writes that are in the log only [default: follows from cache and log].
    #[arg(long, value_name = "SIZE", env = "SHOAL_OVERLAY", hide_env_values = true)]
    overlay: Option<Size>,
    /// For a new data file: the number of tablets, 1 to 32 [default: as many as cores, at least 4].
    #[arg(long, value_name = "N", env = "SHOAL_TABLETS", hide_env_values = true, value_parser = clap::value_parser!(u16).range(1..=32))]
    tablets: Option<u16>,
    /// How to drive the device [default: auto].
    #[arg(long, value_name = "HOW", env = "SHOAL_IO", hide_env_values = true)]
    io: Option<Io>,
    /// The address to listen on; port 0 takes a free one [default: 127.0.0.1:7411].
    #[arg(long, value_name = "HOST:PORT", env = "SHOAL_LISTEN", hide_env_values = true)]
    listen: Option<String>,
    /// Let other machines in, although nothing proves who they are and nothing is encrypted.
    #[arg(long, value_name = "BOOL", env = "SHOAL_INSECURE", hide_env_values = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    insecure: Option<bool>,
    /// Give these buckets space of their own: their values lie apart from everybody else's, so that a load that does not fit
    /// the others leaves them no holes [default: none].
    #[arg(
        long,
        value_name = "BUCKET,...",
        env = "SHOAL_OWN_SPACE",
        hide_env_values = true,
        value_delimiter = ','
    )]
    own_space: Option<Vec<String>>,
    /// Note every allocation and free in this new file, for `shoal bench space --replay`.
    #[arg(long, value_name = "FILE", env = "SHOAL_TRACE_SPACE", hide_env_values = true)]
    trace_space: Option<PathBuf>,
    /// The configuration file.
    #[arg(long, value_name = "FILE", env = "SHOAL_CONFIG", hide_env_values = true)]
    config: Option<PathBuf>,
}

/// What is in force.
struct Settings {
    data: PathBuf,
    store: StoreOptions,
    listen: String,
    insecure: bool,
    log: String,
}

impl Settings {
    fn new(arguments: Arguments, log: Option<String>) -> anyhow::Result<Self> {
        let file = arguments.config.as_deref().map(Config::read).transpose()?.unwrap_or_default();
        Ok(Self {
            data: arguments.data.or(file.data).unwrap_or_else(|| DEFAULT_DATA.into()),
            store: StoreOptions {
                creation: Creation::Allowed,
                size: arguments.size.or(file.size),
                tablets: arguments.tablets.or(file.tablets),
                cache: arguments.cache.or(file.cache).unwrap_or(DEFAULT_CACHE),
                overlay: arguments.overlay.or(file.overlay),
                io: arguments.io.or(file.io).unwrap_or_default(),
                own_space: arguments.own_space.or(file.own_space).unwrap_or_default(),
                trace_space: arguments.trace_space.or(file.trace_space),
            },
            listen: arguments.listen.or(file.listen).unwrap_or_else(|| DEFAULT_LISTEN.into()),
            insecure: arguments.insecure.or(file.insecure).unwrap_or(false),
            log: log.or(file.log).unwrap_or_else(|| "info".into()),
        })
    }
}

pub(crate) async fn run(arguments: Arguments, log: Option<String>) -> anyhow::Result<()> {
    let settings = Settings::new(arguments, log)?;
    logging::start(&settings.log)?;
    let (stop, stopped) = oneshot::channel();
    stop_in_order(move || {
        tracing::info!("stopping; another signal stops at once, which loses nothing that was acknowledged");
        // Nobody listens where the server is not running yet or no more.
        let _ = stop.send(());
    })?;
    let server = bind(&settings).await?;
    let store = store_file::open(&settings.data, &settings.store).await?;
    announce(&server)?;
    let served = server.run(store.clone(), async { drop(stopped.await) }).await;
    tracing::info!("closing {}", settings.data.display());
    let closed = store.close().await;
    served?;
    closed.with_context(|| format!("cannot close the store {} in order", settings.data.display()))
}

/// One line a face.
fn announce(server: &Server) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout();
    writeln!(stdout, "gRPC  http://{}", server.address()).and_then(|()| stdout.flush()).map_err(output_error)
}

/// Takes the address that `settings` names, before the store is touched: where another server has it, nothing is created.
async fn bind(settings: &Settings) -> anyhow::Result<Server> {
    let wrong = |why: &dyn Display| {
        Usage(format!("cannot listen on {:?}: {why}; write HOST:PORT, as {DEFAULT_LISTEN}", settings.listen))
    };
    let addresses = tokio::net::lookup_host(&settings.listen).await;
    let address = addresses.map_err(|error| wrong(&error))?.next();
    let listen = address.ok_or_else(|| wrong(&"the host has no address"))?;
    let options = ServerOptions { listen, insecure: settings.insecure, ..ServerOptions::default() };
    match Server::bind(options).await {
        Err(error @ ServeError::NotLoopback(_)) => Err(Usage(error.to_string()).into()),
        result => result.context("no server was started; --listen names another address"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments() -> Arguments {
        Arguments {
            data: None,
            size: None,
            cache: None,
            overlay: None,
            tablets: None,
            io: None,
            listen: None,
            insecure: None,
            own_space: None,
            trace_space: None,
            config: None,
        }
    }

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
            ..arguments()
        };
        let settings = Settings::new(given, None).unwrap();
        assert_eq!(settings.listen, "127.0.0.1:2");
        assert!(!settings.insecure);
        assert_eq!(settings.store.cache, Size(2 << 30));
        assert_eq!(settings.log, "debug");
        assert_eq!(settings.data, PathBuf::from(DEFAULT_DATA));

        let defaults = Settings::new(arguments(), None).unwrap();
        assert_eq!((defaults.listen.as_str(), defaults.store.cache), (DEFAULT_LISTEN, DEFAULT_CACHE));
        assert_eq!(defaults.store.creation, Creation::Allowed);
    }

    #[tokio::test]
    async fn other_machines_are_let_in_only_on_demand() {
        let bind = async |listen: &str, insecure| {
            let given = Arguments { listen: Some(listen.into()), insecure: Some(insecure), ..arguments() };
            bind(&Settings::new(given, None).unwrap()).await.map(|server| server.address())
        };
        assert_ne!(bind("127.0.0.1:0", false).await.unwrap().port(), 0);
        assert!(bind("localhost:0", false).await.is_ok());
        assert!(bind("0.0.0.0:0", false).await.unwrap_err().is::<Usage>());
        assert!(bind("0.0.0.0:0", true).await.is_ok());
        assert!(bind("nonsense", true).await.unwrap_err().is::<Usage>());
    }
}
