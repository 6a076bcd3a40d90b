//! `shoal bench s3`: puts, gets and lists of a running server over S3.

use clap::Args;
use shoal_bench::s3::{S3BenchOptions, S3Endpoint};

use super::seconds;
use crate::arguments::size::Size;
use crate::failure::Usage;

const EXAMPLES: &str = "\
Examples:
  eval \"$(shoal key env)\"; shoal bench s3 --quick                       the server whose keys are in ./shoal.keys
  shoal bench s3 --pid \"$(pidof shoal)\" --case 'put-*' --variant unsigned
  shoal bench s3 --endpoint http://127.0.0.1:9000 --access-key-id ID      another server; its secret in AWS_SECRET_ACCESS_KEY
  shoal bench s3 --case list --case list-folders --listed 1000000 --keep  then again with --filled

Figures are meaningful only from a release build on an otherwise idle machine.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct S3Arguments {
    /// End within half a minute: half a second a case, fewer objects.
    #[arg(long)]
    quick: bool,
    /// Only this case (put-4k, get-64k, list, list-folders), or with a final `*` all that start with NAME; repeatable.
    #[arg(long = "case", value_name = "NAME")]
    cases: Vec<String>,
    /// Only puts of this variant: unsigned, signed (SHA-256 of the body) or crc32; repeatable.
    #[arg(long = "variant", value_name = "NAME")]
    variants: Vec<String>,
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
    /// Seconds for each case [default: 5, with --quick 0.5].
    #[arg(long, value_name = "N")]
    seconds: Option<f64>,
    /// The server: http://HOST:PORT.
    #[arg(long, value_name = "URL", env = "AWS_ENDPOINT_URL", default_value = "http://127.0.0.1:7413")]
    endpoint: String,
    /// The region that signatures name.
    #[arg(long, value_name = "NAME", env = "AWS_REGION", default_value = "us-east-1")]
    region: String,
    /// The id of a key that may do everything with the bucket.
    #[arg(long, value_name = "ID", env = "AWS_ACCESS_KEY_ID", hide_env_values = true)]
    access_key_id: String,
    /// Its secret. Other users of the machine see an option: set the variable.
    #[arg(long, value_name = "SECRET", env = "AWS_SECRET_ACCESS_KEY", hide_env_values = true)]
    secret_access_key: String,
    /// The server's process on this machine, for its processor time and memory.
    #[arg(long, value_name = "N")]
    pid: Option<u32>,
    /// The bucket, which is made if it is missing; objects under values/ and list/ are overwritten, and deleted at the end.
    #[arg(long, value_name = "NAME", default_value = "shoal-bench")]
    bucket: String,
    /// Bytes of a value, at most 8M; repeatable [default: 4K and 64K].
    #[arg(long = "value-bytes", value_name = "SIZE")]
    sizes: Vec<Size>,
    /// Connections with one request in flight each.
    #[arg(long, value_name = "N", default_value = "64")]
    connections: usize,
    /// Objects of each size [default: 20000, with --quick 1000].
    #[arg(long, value_name = "N")]
    objects: Option<u64>,
    /// Objects that are listed [default: 100000, with --quick 2000].
    #[arg(long, value_name = "N")]
    listed: Option<u64>,
    /// The objects are there, from a run with --keep: do not put them first.
    #[arg(long)]
    filled: bool,
    /// Leave the objects at the end, for --filled.
    #[arg(long)]
    keep: bool,
}

pub(super) fn run(arguments: S3Arguments) -> anyhow::Result<()> {
    let quick = arguments.quick;
    let (quick_s, quick_objects, quick_listed) =
        if quick { (0.5, 1_000, 2_000) } else { (5.0, 20_000, 100_000) };
    let sizes: Vec<u64> = arguments.sizes.iter().map(|size| size.0).collect();
    let (id, secret) = (&arguments.access_key_id, &arguments.secret_access_key);
    let endpoint = S3Endpoint::new(&arguments.endpoint, &arguments.region, id, secret).map_err(Usage)?;
    let options = S3BenchOptions {
        version: env!("CARGO_PKG_VERSION").into(),
        json: arguments.json,
        cases: arguments.cases,
        variants: arguments.variants,
        endpoint,
        process: arguments.pid,
        bucket: arguments.bucket,
        sizes: if sizes.is_empty() { vec![4 << 10, 64 << 10] } else { sizes },
        connections: arguments.connections,
        time: seconds(Some(arguments.seconds.unwrap_or(quick_s)))?.unwrap_or_default(),
        objects: arguments.objects.unwrap_or(quick_objects),
        listed: arguments.listed.unwrap_or(quick_listed),
        filled: arguments.filled,
        keep: arguments.keep,
    };
    options.check().map_err(Usage)?;
    shoal_bench::s3::run(&options, &mut std::io::stdout().lock())
}
