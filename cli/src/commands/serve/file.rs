//! The configuration file of `shoal serve` (TOML). Every key is also an option of the command line and an environment
//! variable; the order is option, environment, file, default.

use std::collections::BTreeMap;
use std::path::Path;

use clap::Args;
use clap::error::{ContextKind, ContextValue};

use super::arguments::Arguments;
use crate::failure::Usage;

/// Reads the file at `path`.
pub(crate) fn read(path: &Path) -> anyhow::Result<Arguments> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Usage(format!("cannot read the configuration file {}: {error}", path.display())))?;
    parse(&text).map_err(|what| Usage(format!("configuration file {}: {what}", path.display())).into())
}

/// The keys that the file may have, in the order in which messages name them.
pub(crate) fn keys() -> Vec<String> {
    let command = command();
    let options = command.get_arguments().filter_map(|option| option.get_long());
    options.filter(|name| *name != "config").map(str::to_owned).collect()
}

/// The defaults of the keys, as the help of their options names them.
pub(crate) fn defaults() -> BTreeMap<String, String> {
    let command = command();
    let default = |key: String| {
        let option = command.get_arguments().find(|option| option.get_long() == Some(key.as_str()));
        let help = option.and_then(|option| option.get_help()).map(ToString::to_string).unwrap_or_default();
        let named = help.rsplit_once("[default: ").and_then(|(_, rest)| rest.split_once(']'));
        let default = match named {
            Some((default, _)) => default.replace('\n', " "),
            None if key == "log" => "info".into(),
            None => "not set".into(),
        };
        (key, default)
    };
    keys().into_iter().map(default).collect()
}

/// `options` as a file, in the order of [`keys`]: a set option with its default as a comment, and the defaults of all others as comments.
pub(super) fn in_force(options: &toml::Table) -> String {
    let defaults = defaults();
    let line = |key: String| {
        let default = defaults.get(&key).map_or("", String::as_str);
        match options.get(&key) {
            Some(value) => format!("{key} = {value}  # default: {default}\n"),
            None => format!("# {key}: {default}\n"),
        }
    };
    keys().into_iter().map(line).collect()
}

/// The former name of `memtable`, which is read.
const FORMER_KEY: &str = "overlay";

/// The options of which the keys of the file have their names.
fn command() -> clap::Command {
    Arguments::augment_args(clap::Command::new("serve")).arg(clap::Arg::new("log").long("log"))
}

/// The key that may have been meant by `key`: the suggestion of the command line for such an option.
fn similar(key: &str) -> Option<String> {
    let error = command().try_get_matches_from(["serve".to_owned(), format!("--{key}")]).err()?;
    match error.get(ContextKind::SuggestedArg)? {
        ContextValue::String(option) => Some(option.trim_start_matches('-').to_owned()),
        _ => None,
    }
}

fn parse(text: &str) -> Result<Arguments, String> {
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| position(text, &error))?;
    let keys = keys();
    let name = |key: &String| match similar(key) {
        Some(known) => format!("{key:?} (did you mean {known:?}?)"),
        None => format!("{key:?}"),
    };
    let unknown: Vec<String> =
        table.keys().filter(|key| !keys.contains(key) && *key != FORMER_KEY).map(name).collect();
    if !unknown.is_empty() {
        return Err(format!("unknown key {}; the keys are {}", unknown.join(", "), keys.join(", ")));
    }
    toml::from_str(text).map_err(|error| position(text, &error))
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
    use crate::arguments::size::Size;
    use crate::commands::serve::arguments::S3Etag;
    use crate::logging::LogFormat;
    use crate::store::file::Io;

    #[test]
    fn options_in_force_are_a_file_with_the_defaults() {
        let given = parse("cache = '4G'\nown-space = ['a', 'b']\n").unwrap();
        let text = in_force(&toml::Table::try_from(&given).unwrap());
        assert!(text.contains("\ncache = 4294967296  # default: 1G, or the rest of --memory"), "{text}");
        assert!(text.contains("\n# insecure: not set\n") && text.contains("\n# slow: 1s\n"), "{text}");
        assert_eq!(text.lines().count(), keys().len());
        let again = parse(&text).unwrap();
        assert_eq!((again.cache, again.own_space), (given.cache, given.own_space));
        assert_eq!(again.slow, None);
    }

    #[test]
    fn every_key_is_understood() {
        let text = "data = '/srv/shoal.data'\nmust-exist = true\nsize = '64G'\nmemory = '2G'\ncache = 1048576\nmemtable = '64M'\ntablets = 8\n\
                    io = 'threads'\nshared-device = true\nlisten = '127.0.0.1:0'\ninsecure = true\n\
                    tls-cert = 'c'\ntls-key = 'k'\ntls-client-ca = 'r'\ntls12 = true\ntoken-file = 't'\nkey-file = 'keys'\n\
                    kv-bucket = 'kv'\ngrpc-compression = 'gzip'\nweb-origins = ['https://a']\nresp = 'off'\nresp-bucket = 'cache'\n\
                    password-file = '/etc/shoal.password'\ndurability = 'relaxed:50'\npoll = 20\nresp-pending = '64M'\ncluster = true\nannounce = 'a:1'\nresp-tls = 'off'\ns3 = 'off'\ns3-region = 'here'\ns3-domain = ['s3.a']\ns3-etag = 'crc'\ns3-website-domain = ['web.a']\ns3-upload-life = '1d'\nconsole = 'off'\naudit-log = '/var/log/shoal.audit'\nlog = 'debug'\n\
                    metrics = 'off'\nopen-health = true\nlog-format = 'json'\nslow = '5ms'\naccess-log = true\nscrub-every = '2d'\nscrub-rate = '1M'\nsnapshot-max-age = '6h'\nown-space = ['films']\ndiscard = true\npause-relocation = true\nstop-timeout = 9\n\
                    archive = 'file:///a'\narchive-interval = '2s'\narchive-puts = 5\narchive-retention = '1d'\narchive-spool = '1G'\narchive-spool-folder = '/spool'\narchive-base-rate = '8M'\n";
        let config = parse(text).unwrap();
        let expected = Arguments {
            data: Some("/srv/shoal.data".into()),
            must_exist: Some(true),
            size: Some(Size(64 << 30)),
            memory: Some(Size(2 << 30)),
            cache: Some(Size(1 << 20)),
            memtable: Some(Size(64 << 20)),
            tablets: Some(8),
            io: Some(Io::Threads),
            shared_device: Some(true),
            listen: Some("127.0.0.1:0".into()),
            insecure: Some(true),
            tls_cert: Some("c".into()),
            tls_key: Some("k".into()),
            tls_client_ca: Some("r".into()),
            tls12: Some(true),
            token_file: Some("t".into()),
            key_file: Some("keys".into()),
            kv_bucket: Some("kv".into()),
            grpc_compression: Some("gzip".into()),
            web_origins: Some(vec!["https://a".into()]),
            resp: Some("off".into()),
            resp_bucket: Some("cache".into()),
            password_file: Some("/etc/shoal.password".into()),
            durability: Some("relaxed:50".into()),
            poll: Some(20),
            resp_pending: Some(Size(64 << 20)),
            cluster: Some(true),
            announce: Some("a:1".into()),
            resp_tls: Some("off".into()),
            s3: Some("off".into()),
            s3_region: Some("here".into()),
            s3_domain: Some(vec!["s3.a".into()]),
            s3_website_domain: Some(vec!["web.a".into()]),
            s3_etag: Some(S3Etag::Crc),
            s3_upload_life: Some("1d".into()),
            console: Some("off".into()),
            log: Some("debug".into()),
            metrics: Some("off".into()),
            open_health: Some(true),
            log_format: Some(LogFormat::Json),
            slow: Some("5ms".into()),
            access_log: Some(true),
            audit_log: Some("/var/log/shoal.audit".into()),
            scrub_every: Some("2d".into()),
            scrub_rate: Some(Size(1 << 20)),
            snapshot_max_age: Some("6h".into()),
            own_space: Some(vec!["films".into()]),
            discard: Some(true),
            pause_relocation: Some(true),
            stop_timeout: Some(9),
            archive: Some("file:///a".into()),
            archive_interval: Some("2s".into()),
            archive_puts: Some(5),
            archive_retention: Some("1d".into()),
            archive_spool: Some(Size(1 << 30)),
            archive_spool_folder: Some("/spool".into()),
            archive_base_rate: Some(Size(8 << 20)),
            config: None,
        };
        assert_eq!(config, expected);
        let table: toml::Table = text.parse().unwrap();
        assert!(keys().iter().all(|key| table.contains_key(key)), "the test above has every key");
        assert_eq!(parse("").unwrap(), Arguments::default());
        assert_eq!(parse("overlay = '64M'").unwrap(), parse("memtable = '64M'").unwrap(), "the former name");
    }

    #[test]
    fn unknown_keys_are_all_named() {
        let error = parse("dada = 'x'\ncache = '1G'\nports = 3\n").unwrap_err();
        assert!(
            error.contains("\"dada\"") && error.contains("\"ports\"") && error.contains("listen"),
            "{error}"
        );
        assert!(error.contains("did you mean \"data\"?"), "{error}");
        for (key, known) in [
            ("lissten", Some("listen")),
            ("cash", Some("cache")),
            ("token_file", Some("token-file")),
            ("xyzzy", None),
        ] {
            assert_eq!(similar(key).as_deref(), known, "{key}");
        }
    }

    #[test]
    fn errors_name_the_line() {
        for (text, words) in [
            ("\ncache = '1Q'\n", "line 2: \"1Q\" is not a size"),
            ("size = 1\nio = 'magic'", "line 2:"),
            ("cache = \n", "line 1:"),
            ("tablets = 99999999", "line 1:"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(words) && !error.contains('\n'), "{error}");
        }
    }
}
