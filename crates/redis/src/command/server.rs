//! Commands about the server.

use std::fmt::Write;
use std::time::Duration;

use shoal_base::{BLOCK_BYTES, glob};

use super::access::Needs;
use super::call::{Call, ConnectionState, Outcome, Part, integer, is};
use super::{cluster, info, scan};
use crate::answer::{Answer, Failed};
use crate::options::Durability;
use shoal_metrics::Usage;

/// The closest version of Redis: clients ask for it to learn the available commands.
pub(super) const VERSION: &str = "7.2.0";

pub(super) fn ping(_session: &mut ConnectionState, call: &Call) -> Result<Answer, Failed> {
    match call.rest(1) {
        [] => Ok(Answer::line("PONG")),
        [text] => Ok(Answer::Bulk(text.clone())),
        _ => Err(call.wrong_count()),
    }
}

pub(super) fn echo(_session: &mut ConnectionState, call: &Call) -> Result<Answer, Failed> {
    Ok(Answer::Bulk(call.word(1).clone()))
}

pub(super) fn select(_session: &mut ConnectionState, call: &Call) -> Result<Answer, Failed> {
    if call.integer(1)? == 0 { Ok(Answer::Ok) } else { Err("ERR DB index is out of range".into()) }
}

pub(super) fn time(_session: &mut ConnectionState, call: &Call) -> Result<Answer, Failed> {
    let micros = call.frontend.clock.wall_ns() / 1000;
    let parts = [micros / 1_000_000, micros % 1_000_000];
    Ok(Answer::Array(parts.map(|part| Answer::string(part.to_string())).into()))
}

/// WAIT replicas milliseconds: the archive counts as one replica, which has all earlier writes.
pub(super) async fn wait(call: Call) -> Outcome {
    let (replicas, time) = (call.integer(1)?, timeout(&call, 2)?);
    Ok(Answer::Integer(i64::from(replicas > 0 && is_archived(&call, time).await)).into())
}

/// WAITAOF local replicas milliseconds: earlier writes are always flushed here.
pub(super) async fn waitaof(call: Call) -> Outcome {
    let (local, replicas, time) = (call.integer(1)?, call.integer(2)?, timeout(&call, 3)?);
    if !(0..=1).contains(&local) {
        return Err("ERR value is out of range, must be between 0 and 1".into());
    }
    let archived = replicas > 0 && is_archived(&call, time).await;
    Ok(Answer::Array([1, i64::from(archived)].map(Answer::Integer).into()).into())
}

/// The milliseconds in the word at `index`; zero means no limit.
fn timeout(call: &Call, index: usize) -> Result<Option<Duration>, Failed> {
    let ms = integer(call.word(index)).map_err(|_| "ERR timeout is not an integer or out of range")?;
    let ms = u64::try_from(ms).map_err(|_| "ERR timeout is negative")?;
    Ok((ms > 0).then(|| Duration::from_millis(ms)))
}

/// Waits until everything that is durable now is in the archive; in a transaction, after its commit. Without an archive there is nothing to
/// wait for.
async fn is_archived(call: &Call, time: Option<Duration>) -> bool {
    match call.frontend.options.archive.get() {
        Some(archive) => archive.wait(time).await,
        None => false,
    }
}

pub(super) const FUNCTION_PARTS: &[Part] = &[
    Part::new("flush", 0..=usize::MAX, "", "Accepted; there are no functions.", Needs::Admin),
    Part::HELP,
    Part::new("list", 0..=usize::MAX, "", "The functions: there are none.", Needs::Nothing),
];

/// There are no functions: the list is empty, and flushing it changes nothing.
pub(super) fn function(_session: &mut ConnectionState, call: &Call) -> Result<Answer, Failed> {
    Ok(match call.part()? {
        "flush" => Answer::Ok,
        "list" => Answer::Array(Vec::new()),
        _ => call.help(),
    })
}

pub(super) const CONFIG_PARTS: &[Part] = &[
    Part::new(
        "get",
        1..=usize::MAX,
        "<pattern> ...",
        "The settings whose names are like one of the patterns.",
        Needs::Admin,
    ),
    Part::HELP,
    Part::new("resetstat", 0..=usize::MAX, "", "Accepted; the figures of INFO continue.", Needs::Admin),
    Part::new(
        "set",
        0..=usize::MAX,
        "<name> <value> ...",
        "Refused, except for the layout of missing types: options are set at the start.",
        Needs::Admin,
    ),
];

pub(super) fn config(_session: &mut ConnectionState, call: &Call) -> Result<Answer, Failed> {
    match call.part()? {
        "get" => {
            let patterns: Vec<Vec<u8>> = call.rest(2).iter().map(|word| word.to_ascii_lowercase()).collect();
            let wanted = |name: &str| patterns.iter().any(|pattern| glob::matches(pattern, name.as_bytes()));
            let found = configuration(call).into_iter().filter(|(name, _)| wanted(name));
            Ok(Answer::Map(found.map(|(name, value)| (Answer::text(name), Answer::string(value))).collect()))
        }
        "resetstat" => Ok(Answer::Ok),
        "set" => {
            let name = String::from_utf8_lossy(call.word(2)).to_ascii_lowercase();
            // Layout settings of types that do not exist here: any value is accepted.
            let of_others = ["hash-max-", "list-max-", "set-max-", "stream-node-max-", "zset-max-"];
            if of_others.iter().any(|prefix| name.starts_with(prefix)) {
                return Ok(Answer::Ok);
            }
            // Options are set when the server starts.
            Err(format!(
                "ERR CONFIG SET failed (possibly related to argument '{name}') - can't set immutable config"
            )
            .into())
        }
        _ => Ok(call.help()),
    }
}

/// The settings that clients ask for, under Redis's names and in their order.
fn configuration(call: &Call) -> Vec<(&'static str, String)> {
    let (options, addresses) = (&call.frontend.options, &call.frontend.addresses);
    let hosts: Vec<String> = addresses.iter().map(|address| address.ip().to_string()).collect();
    let fsync = if options.durability == Durability::Sync { "always" } else { "everysec" };
    let number = |number: usize| number.to_string();
    let text = str::to_owned;
    vec![
        ("activedefrag", text("no")),
        ("appendfsync", text(fsync)),
        ("appendonly", text("yes")),
        ("bind", hosts.join(" ")),
        ("client-query-buffer-limit", number(options.limits.pending_bytes_max)),
        ("cluster-enabled", text(if cluster::is_on(call) { "yes" } else { "no" })),
        ("daemonize", text("no")),
        ("databases", text("1")),
        ("io-threads", number(options.threads.unwrap_or(1))),
        ("lazyfree-lazy-user-del", text("no")),
        ("lazyfree-lazy-user-flush", text("no")),
        ("lfu-decay-time", text("1")),
        ("lfu-log-factor", text("10")),
        ("maxclients", number(options.limits.connections_max)),
        ("maxmemory", text("0")),
        ("maxmemory-policy", text("noeviction")),
        ("min-replicas-to-write", text("0")),
        ("notify-keyspace-events", String::new()),
        ("port", call.frontend.port().to_string()),
        ("proto-max-bulk-len", number(options.limits.bulk_bytes_max)),
        ("protected-mode", text(if options.insecure { "no" } else { "yes" })),
        ("replica-read-only", text("yes")),
        ("save", String::new()),
        ("tcp-backlog", number(shoal_frontend::BACKLOG as usize)),
        ("tcp-keepalive", crate::socket::KEEPALIVE.as_secs().to_string()),
        ("timeout", text("0")),
    ]
}

/// A section of INFO.
type Section = fn(&Call) -> String;

/// INFO counts up to this number of keys, because it is called often; if there are more, it reports the objects of all buckets.
const COUNTED_MAX: u64 = 10_000;

pub(super) async fn info(call: Call) -> Outcome {
    let sections: [(&str, Section); 11] = [
        ("server", about_server),
        ("clients", about_clients),
        ("memory", about_memory),
        ("persistence", about_persistence),
        ("stats", info::about_stats),
        ("latencystats", info::about_latency),
        ("replication", about_replication),
        ("cpu", about_cpu),
        ("cluster", about_cluster),
        ("damage", about_damage),
        ("shoal", info::about_store),
    ];
    let words = call.rest(1);
    let all = words.is_empty()
        || words.iter().any(|word| ["all", "default", "everything"].iter().any(|every| is(word, every)));
    let wanted = |name: &str| all || words.iter().any(|word| is(word, name));
    let sections = sections.into_iter().filter(|(name, _)| wanted(name));
    let mut parts: Vec<String> = sections.map(|(_, section)| section(&call)).collect();
    if wanted("keyspace") {
        parts.push(about_keyspace(&call).await?);
    }
    Ok(Answer::Verbatim(parts.join("\r\n")).into())
}

fn about_server(call: &Call) -> String {
    let frontend = &call.frontend;
    let up = frontend.clock.monotonic_ns().saturating_sub(frontend.since_ns) / 1_000_000_000;
    format!(
        "# Server\r\nredis_version:{VERSION}\r\nshoal_version:{}\r\nredis_mode:{}\r\nos:Linux\r\narch_bits:64\r\n\
         process_id:{}\r\nrun_id:{}\r\ntcp_port:{}\r\nuptime_in_seconds:{up}\r\nuptime_in_days:{}\r\n",
        env!("CARGO_PKG_VERSION"),
        if cluster::is_on(call) { "cluster" } else { "standalone" },
        std::process::id(),
        frontend.run_id,
        frontend.port(),
        up / 86_400,
    )
}

fn about_clients(call: &Call) -> String {
    let (connected, _) = call.frontend.clients.counts();
    let most = call.frontend.options.limits.connections_max;
    format!("# Clients\r\nconnected_clients:{connected}\r\nmaxclients:{most}\r\nblocked_clients:0\r\n")
}

/// The memory of the process is the system's figure; the other figures are parts of it.
fn about_memory(call: &Call) -> String {
    let (stat, usage) = (call.frontend.store.stat(), Usage::now());
    let cached = stat.pool.frames_used * BLOCK_BYTES;
    let waiting = call.frontend.clients.list(|_, client| Some(client.waiting_bytes()));
    let waiting: usize = waiting.into_iter().sum();
    format!(
        "# Memory\r\nused_memory:{resident}\r\nused_memory_human:{:.2}M\r\nused_memory_rss:{resident}\r\nused_memory_peak:{}\r\n\
         used_memory_dataset:{}\r\nmem_clients_normal:{waiting}\r\nshoal_cache_bytes:{cached}\r\nshoal_cache_bytes_max:{}\r\n\
         shoal_overlay_bytes:{}\r\nmem_fragmentation_ratio:1.00\r\nmaxmemory:0\r\nmaxmemory_human:0B\r\n\
         maxmemory_policy:noeviction\r\n",
        usage.resident_bytes as f64 / 1_048_576.0,
        usage.resident_most_bytes,
        cached as u64 + stat.memtable_bytes,
        stat.pool.frames * BLOCK_BYTES,
        stat.memtable_bytes,
        resident = usage.resident_bytes,
    )
}

fn about_cpu(_call: &Call) -> String {
    let Usage { user_seconds, system_seconds, .. } = Usage::now();
    format!(
        "# CPU\r\nused_cpu_sys:{system_seconds:.6}\r\nused_cpu_user:{user_seconds:.6}\r\nused_cpu_sys_children:0.000000\r\n\
         used_cpu_user_children:0.000000\r\n"
    )
}

fn about_persistence(call: &Call) -> String {
    let stat = call.frontend.store.stat();
    let word = |is_ok| if is_ok { "ok" } else { "err" };
    let status = word(stat.poisoned.is_none());
    let aof = word(stat.poisoned.is_none() && stat.no_room.is_none());
    format!(
        "# Persistence\r\nloading:0\r\naof_enabled:1\r\naof_last_write_status:{aof}\r\nrdb_changes_since_last_save:0\r\n\
         rdb_bgsave_in_progress:0\r\nrdb_last_bgsave_status:{status}\r\naof_rewrite_in_progress:0\r\n"
    )
}

fn about_replication(call: &Call) -> String {
    format!(
        "# Replication\r\nrole:master\r\nconnected_slaves:0\r\nmaster_replid:{}\r\nmaster_repl_offset:0\r\n",
        call.frontend.run_id
    )
}

fn about_cluster(call: &Call) -> String {
    format!("# Cluster\r\ncluster_enabled:{}\r\n", u8::from(cluster::is_on(call)))
}

/// Damage found by reads and listings since the store was opened; `SHOAL.DAMAGE` looks at everything.
fn about_damage(call: &Call) -> String {
    let ranges = call.frontend.store.damage_met();
    let mut text = format!("# Damage\r\ndamaged_ranges:{}\r\n", ranges.len());
    for (number, range) in ranges.iter().enumerate() {
        let to = range.to.as_ref().map_or(String::new(), |to| to.escape_ascii().to_string());
        let (tablet, from, block) = (range.tablet, range.from.escape_ascii(), range.block);
        let _ = write!(text, "damaged_range{number}:tablet={tablet},from={from},to={to},block={block}\r\n");
    }
    text
}

/// A count up to the limit is exact. Above it, `keys` is the number of objects of all buckets, `expires` is extrapolated from
/// the counted keys, and the line is marked as estimated.
async fn about_keyspace(call: &Call) -> Result<String, Failed> {
    let counted = scan::count(call, COUNTED_MAX).await?;
    if counted.keys == 0 {
        return Ok("# Keyspace\r\n".to_owned());
    }
    let average = counted.ttl_ms.checked_div(counted.expiring).unwrap_or(0);
    let line = |keys: u64, expires: u64| {
        format!("# Keyspace\r\ndb0:keys={keys},expires={expires},avg_ttl={average}")
    };
    if counted.all {
        return Ok(line(counted.keys, counted.expiring) + "\r\n");
    }
    let keys = call.frontend.store.stat().objects.max(counted.keys);
    let expires = u128::from(counted.expiring) * u128::from(keys) / u128::from(counted.keys);
    Ok(line(keys, expires as u64) + ",estimated=1\r\n")
}
