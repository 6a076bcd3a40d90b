//! The configuration file of `shoal serve` (TOML). Every key is also an option of the command line and an environment
//! variable; the order is option, environment, file, default.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::failure::Usage;
use crate::size::Size;
use crate::store_file::Io;

/// What the file says. Every key may be left out.
#[derive(Debug, Default, Deserialize, PartialEq)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Config {
    pub(crate) data: Option<PathBuf>,
    pub(crate) must_exist: Option<bool>,
    pub(crate) size: Option<Size>,
    pub(crate) cache: Option<Size>,
    pub(crate) overlay: Option<Size>,
    pub(crate) tablets: Option<u16>,
    pub(crate) io: Option<Io>,
    pub(crate) listen: Option<String>,
    pub(crate) insecure: Option<bool>,
    pub(crate) tls_cert: Option<PathBuf>,
    pub(crate) tls_key: Option<PathBuf>,
    pub(crate) tls_client_ca: Option<PathBuf>,
    pub(crate) tls12: Option<bool>,
    pub(crate) token_file: Option<PathBuf>,
    pub(crate) kv_bucket: Option<String>,
    pub(crate) grpc_compression: Option<String>,
    pub(crate) web_origins: Option<Vec<String>>,
    pub(crate) resp: Option<String>,
    pub(crate) resp_bucket: Option<String>,
    pub(crate) password_file: Option<PathBuf>,
    pub(crate) durability: Option<String>,
    pub(crate) poll: Option<u64>,
    pub(crate) resp_pending: Option<Size>,
    pub(crate) resp_tls: Option<String>,
    pub(crate) log: Option<String>,
    pub(crate) own_space: Option<Vec<String>>,
    pub(crate) discard: Option<bool>,
    pub(crate) pause_moving: Option<bool>,
    pub(crate) stop_timeout: Option<u64>,
}

/// The keys that the file may have, in the order in which messages name them.
const KEYS: [&str; 29] = [
    "data",
    "must-exist",
    "size",
    "cache",
    "overlay",
    "tablets",
    "io",
    "listen",
    "insecure",
    "tls-cert",
    "tls-key",
    "tls-client-ca",
    "tls12",
    "token-file",
    "kv-bucket",
    "grpc-compression",
    "web-origins",
    "resp",
    "resp-bucket",
    "password-file",
    "durability",
    "poll",
    "resp-pending",
    "resp-tls",
    "log",
    "own-space",
    "discard",
    "pause-moving",
    "stop-timeout",
];

impl Config {
    /// Reads the file at `path`.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            Usage(format!("cannot read the configuration file {}: {error}", path.display()))
        })?;
        Self::parse(&text)
            .map_err(|what| Usage(format!("configuration file {}: {what}", path.display())).into())
    }

    fn parse(text: &str) -> Result<Self, String> {
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| position(text, &error))?;
        let unknown: Vec<String> =
            table.keys().filter(|key| !KEYS.contains(&key.as_str())).map(|key| format!("{key:?}")).collect();
        if !unknown.is_empty() {
            return Err(format!("unknown key {}; the keys are {}", unknown.join(", "), KEYS.join(", ")));
        }
        toml::from_str(text).map_err(|error| position(text, &error))
    }
}

/// The error with the line that it is about, in one line.
fn position(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    let line = before.bytes().filter(|&byte| byte == b'\n').count() + 1;
    format!("line {line}: {}", error.message().replace('\n', " "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_understood() {
        let text = "data = '/srv/shoal.data'\nmust-exist = true\nsize = '64G'\ncache = 1048576\noverlay = '64M'\ntablets = 8\n\
                    io = 'threads'\nlisten = '127.0.0.1:0'\ninsecure = true\n\
                    tls-cert = 'c'\ntls-key = 'k'\ntls-client-ca = 'r'\ntls12 = true\ntoken-file = 't'\n\
                    kv-bucket = 'kv'\ngrpc-compression = 'gzip'\nweb-origins = ['https://a']\nresp = 'off'\nresp-bucket = 'cache'\n\
                    password-file = '/etc/shoal.password'\ndurability = 'relaxed:50'\npoll = 20\nresp-pending = '64M'\nresp-tls = 'off'\nlog = 'debug'\n\
                    own-space = ['films']\ndiscard = true\npause-moving = true\nstop-timeout = 9\n";
        let config = Config::parse(text).unwrap();
        let expected = Config {
            data: Some("/srv/shoal.data".into()),
            must_exist: Some(true),
            size: Some(Size(64 << 30)),
            cache: Some(Size(1 << 20)),
            overlay: Some(Size(64 << 20)),
            tablets: Some(8),
            io: Some(Io::Threads),
            listen: Some("127.0.0.1:0".into()),
            insecure: Some(true),
            tls_cert: Some("c".into()),
            tls_key: Some("k".into()),
            tls_client_ca: Some("r".into()),
            tls12: Some(true),
            token_file: Some("t".into()),
            kv_bucket: Some("kv".into()),
            grpc_compression: Some("gzip".into()),
            web_origins: Some(vec!["https://a".into()]),
            resp: Some("off".into()),
            resp_bucket: Some("cache".into()),
            password_file: Some("/etc/shoal.password".into()),
            durability: Some("relaxed:50".into()),
            poll: Some(20),
            resp_pending: Some(Size(64 << 20)),
            resp_tls: Some("off".into()),
            log: Some("debug".into()),
            own_space: Some(vec!["films".into()]),
            discard: Some(true),
            pause_moving: Some(true),
            stop_timeout: Some(9),
        };
        assert_eq!(config, expected);
        let table: toml::Table = text.parse().unwrap();
        assert!(KEYS.iter().all(|key| table.contains_key(*key)), "the test above has every key");
        assert_eq!(Config::parse("").unwrap(), Config::default());
    }

    #[test]
    fn unknown_keys_are_all_named() {
        let error = Config::parse("dada = 'x'\ncache = '1G'\nports = 3\n").unwrap_err();
        assert!(error.contains("\"dada\", \"ports\"") && error.contains("listen"), "{error}");
    }

    #[test]
    fn errors_name_the_line() {
        for (text, words) in [
            ("\ncache = '1Q'\n", "line 2: \"1Q\" is not a size"),
            ("size = 1\nio = 'magic'", "line 2:"),
            ("cache = \n", "line 1:"),
            ("tablets = 99999999", "line 1:"),
        ] {
            let error = Config::parse(text).unwrap_err();
            assert!(error.contains(words) && !error.contains('\n'), "{error}");
        }
    }
}
