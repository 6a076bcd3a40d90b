//! Commands about the server.

use std::fmt::Write;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::{
    COMMANDS, Call, Command, Order, Session, find, integer, is, scan, unknown_part, wrong_count_of_part,
};
use crate::answer::{Answer, Failed, Outcome};
use crate::glob;
use crate::options::Durability;

/// The version of Redis whose behaviour this is nearest to: clients ask for it to know which commands there are.
pub(super) const VERSION: &str = "7.2.0";

pub(super) fn ping(_session: &mut Session, call: &Call) -> Result<Answer, Failed> {
    match call.rest(1) {
        [] => Ok(Answer::Simple("PONG")),
        [text] => Ok(Answer::Bulk(text.clone())),
        _ => Err(call.wrong_count()),
    }
}

pub(super) fn echo(_session: &mut Session, call: &Call) -> Result<Answer, Failed> {
    Ok(Answer::Bulk(call.word(1).clone()))
}

pub(super) fn select(_session: &mut Session, call: &Call) -> Result<Answer, Failed> {
    if call.integer(1)? == 0 { Ok(Answer::Ok) } else { Err("ERR DB index is out of range".into()) }
}

pub(super) fn time(_session: &mut Session, call: &Call) -> Result<Answer, Failed> {
    let micros = call.face.clock.wall_ns() / 1000;
    let parts = [micros / 1_000_000, micros % 1_000_000];
    Ok(Answer::Array(parts.map(|part| Answer::string(part.to_string())).into()))
}

/// No replica has anything: there is none. What was written before is durable here.
pub(super) fn wait(_session: &mut Session, call: &Call) -> Result<Answer, Failed> {
    call.integer(1)?;
    let timeout = integer(call.word(2)).map_err(|_| "ERR timeout is not an integer or out of range")?;
    if timeout < 0 { Err("ERR timeout is negative".into()) } else { Ok(Answer::Integer(0)) }
}

pub(super) fn command(_session: &mut Session, call: &Call) -> Result<Answer, Failed> {
    let (part, words) = (call.word(1), call.rest(2));
    let named = |words: &[Bytes]| words.iter().map(|name| find(name)).collect::<Vec<_>>();
    if call.words.len() == 1 {
        return Ok(Answer::Array(COMMANDS.iter().map(described).collect()));
    }
    if is(part, "count") {
        counted(call, 0)?;
        Ok(Answer::Integer(COMMANDS.len() as i64))
    } else if is(part, "info") {
        let all = || COMMANDS.iter().map(Some).collect();
        let commands = if words.is_empty() { all() } else { named(words) };
        Ok(Answer::Array(commands.into_iter().map(|known| known.map_or(Answer::Null, described)).collect()))
    } else if is(part, "docs") {
        let all = || COMMANDS.iter().map(Some).collect();
        let commands = if words.is_empty() { all() } else { named(words) };
        Ok(Answer::Map(commands.into_iter().flatten().map(documented).collect()))
    } else if is(part, "list") {
        counted(call, 0)?;
        Ok(Answer::Array(COMMANDS.iter().map(|command| Answer::text(command.name)).collect()))
    } else if is(part, "getkeys") {
        keys_of(words)
    } else {
        Err(unknown_part(call))
    }
}

fn counted(call: &Call, count: usize) -> Result<(), Failed> {
    if call.rest(2).len() == count { Ok(()) } else { Err(wrong_count_of_part(call)) }
}

fn keys_of(words: &[Bytes]) -> Result<Answer, Failed> {
    let name = words.first().ok_or("ERR Unknown subcommand or wrong number of arguments for 'getkeys'")?;
    let command = find(name).ok_or("ERR Invalid command specified")?;
    if !command.takes(words.len()) {
        return Err("ERR Invalid number of arguments specified for command".into());
    }
    let keys: Vec<Answer> = command.keys.of(words).map(|key| Answer::Bulk(key.clone())).collect();
    if keys.is_empty() {
        return Err("ERR The command has no key arguments".into());
    }
    Ok(Answer::Array(keys))
}

/// As COMMAND INFO shows a command.
fn described(command: &'static Command) -> Answer {
    let mut flags = Vec::new();
    if command.keys.first > 0 || command.order == Order::All {
        flags.push(if command.writes { "write" } else { "readonly" });
    }
    if command.keys.first > 0 {
        flags.push("fast");
    }
    if command.is_for_strangers() {
        flags.push("no-auth");
    }
    let keys = command.keys;
    Answer::Array(vec![
        Answer::text(command.name),
        Answer::Integer(command.arity.into()),
        Answer::Set(flags.iter().map(|flag| Answer::Simple(flag)).collect()),
        Answer::Integer(keys.first as i64),
        Answer::Integer(keys.last as i64),
        Answer::Integer(keys.step as i64),
        Answer::Set(Vec::new()),
        Answer::Array(Vec::new()),
        Answer::Array(Vec::new()),
        Answer::Array(Vec::new()),
    ])
}

/// As COMMAND DOCS shows a command.
fn documented(command: &'static Command) -> (Answer, Answer) {
    let group = if command.keys.first > 0 { "string" } else { "server" };
    let about = vec![
        (Answer::text("summary"), Answer::text("As in Redis; docs/format/resp.md says what differs.")),
        (Answer::text("since"), Answer::text("1.0.0")),
        (Answer::text("group"), Answer::text(group)),
    ];
    (Answer::text(command.name), Answer::Map(about))
}

/// There are no functions: the list is empty, and emptying it changes nothing.
pub(super) fn function(_session: &mut Session, call: &Call) -> Result<Answer, Failed> {
    if is(call.word(1), "flush") {
        Ok(Answer::Ok)
    } else if is(call.word(1), "list") {
        Ok(Answer::Array(Vec::new()))
    } else {
        Err(unknown_part(call))
    }
}

pub(super) fn config(_session: &mut Session, call: &Call) -> Result<Answer, Failed> {
    let part = call.word(1);
    if is(part, "get") {
        if call.words.len() < 3 {
            return Err(wrong_count_of_part(call));
        }
        let patterns: Vec<Vec<u8>> = call.rest(2).iter().map(|word| word.to_ascii_lowercase()).collect();
        let wanted = |name: &str| patterns.iter().any(|pattern| glob::matches(pattern, name.as_bytes()));
        let found = configuration(call).into_iter().filter(|(name, _)| wanted(name));
        Ok(Answer::Map(found.map(|(name, value)| (Answer::text(name), Answer::string(value))).collect()))
    } else if is(part, "resetstat") {
        Ok(Answer::Ok)
    } else if is(part, "set") {
        let name = String::from_utf8_lossy(call.word(2)).to_ascii_lowercase();
        // How Redis lays out types that there are not: anything is fine.
        let of_others = ["hash-max-", "list-max-", "set-max-", "stream-node-max-", "zset-max-"];
        if of_others.iter().any(|prefix| name.starts_with(prefix)) {
            return Ok(Answer::Ok);
        }
        // Options are given when the server starts.
        Err(format!(
            "ERR CONFIG SET failed (possibly related to argument '{name}') - can't set immutable config"
        )
        .into())
    } else {
        Err(unknown_part(call))
    }
}

/// What Redis calls the settings that clients ask for.
fn configuration(call: &Call) -> Vec<(&'static str, String)> {
    let (options, address) = (&call.face.options, call.face.address);
    let fsync = if options.durability == Durability::Sync { "always" } else { "everysec" };
    vec![
        ("appendfsync", fsync.to_owned()),
        ("appendonly", "yes".to_owned()),
        ("bind", address.ip().to_string()),
        ("cluster-enabled", "yes".to_owned()),
        ("databases", "1".to_owned()),
        ("maxclients", options.limits.connections_max.to_string()),
        ("maxmemory", "0".to_owned()),
        ("maxmemory-policy", "noeviction".to_owned()),
        ("port", address.port().to_string()),
        ("proto-max-bulk-len", options.limits.bulk_bytes_max.to_string()),
        ("save", String::new()),
        ("tcp-keepalive", crate::socket::KEEPALIVE.as_secs().to_string()),
        ("timeout", "0".to_owned()),
    ]
}

/// Writes a section of INFO.
type Section = fn(&Call, &mut String);

/// INFO counts so many keys at most, as it is asked often; where there are more, it tells the objects of all buckets.
const COUNTED_MAX: u64 = 10_000;

pub(super) async fn info(call: Call) -> Outcome {
    let sections: [(&str, Section); 7] = [
        ("server", about_server),
        ("clients", about_clients),
        ("memory", about_memory),
        ("persistence", about_persistence),
        ("stats", about_stats),
        ("replication", about_replication),
        ("cluster", about_cluster),
    ];
    let words = call.rest(1);
    let all = words.is_empty()
        || words.iter().any(|word| ["all", "default", "everything"].iter().any(|every| is(word, every)));
    let wanted = |name: &str| all || words.iter().any(|word| is(word, name));
    let mut parts = Vec::new();
    for (_, write) in sections.into_iter().filter(|(name, _)| wanted(name)) {
        let mut text = String::new();
        write(&call, &mut text);
        parts.push(text);
    }
    if wanted("keyspace") {
        parts.push(about_keyspace(&call).await?);
    }
    Ok(Answer::Verbatim(parts.join("\r\n")).into())
}

fn about_server(call: &Call, text: &mut String) {
    let face = &call.face;
    let up = face.clock.monotonic_ns().saturating_sub(face.since_ns) / 1_000_000_000;
    let _ = write!(
        text,
        "# Server\r\nredis_version:{VERSION}\r\nshoal_version:{}\r\nredis_mode:standalone\r\nos:Linux\r\narch_bits:64\r\n\
         process_id:{}\r\nrun_id:{}\r\ntcp_port:{}\r\nuptime_in_seconds:{up}\r\nuptime_in_days:{}\r\n",
        env!("CARGO_PKG_VERSION"),
        std::process::id(),
        face.run_id,
        face.address.port(),
        up / 86_400,
    );
}

fn about_clients(call: &Call, text: &mut String) {
    let (connected, _) = call.face.clients.counts();
    let most = call.face.options.limits.connections_max;
    let _ = write!(
        text,
        "# Clients\r\nconnected_clients:{connected}\r\nmaxclients:{most}\r\nblocked_clients:0\r\n"
    );
}

fn about_memory(call: &Call, text: &mut String) {
    let stat = call.face.store.stat();
    let _ = write!(
        text,
        "# Memory\r\nused_memory:{}\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\n",
        stat.overlay_bytes
    );
}

fn about_persistence(call: &Call, text: &mut String) {
    let stat = call.face.store.stat();
    let (status, aof) = if stat.poisoned.is_none() { ("ok", "ok") } else { ("err", "err") };
    let _ = write!(
        text,
        "# Persistence\r\nloading:0\r\naof_enabled:1\r\naof_last_write_status:{aof}\r\nrdb_changes_since_last_save:0\r\n\
         rdb_bgsave_in_progress:0\r\nrdb_last_bgsave_status:{status}\r\naof_rewrite_in_progress:0\r\n"
    );
}

fn about_stats(call: &Call, text: &mut String) {
    let face = &call.face;
    let (_, connections) = face.clients.counts();
    let commands = face.commands.load(Ordering::Relaxed);
    let _ = write!(
        text,
        "# Stats\r\ntotal_connections_received:{connections}\r\ntotal_commands_processed:{commands}\r\n\
         evicted_keys:0\r\n"
    );
}

fn about_replication(call: &Call, text: &mut String) {
    let _ = write!(
        text,
        "# Replication\r\nrole:master\r\nconnected_slaves:0\r\nmaster_replid:{}\r\nmaster_repl_offset:0\r\n",
        call.face.run_id
    );
}

fn about_cluster(_call: &Call, text: &mut String) {
    text.push_str("# Cluster\r\ncluster_enabled:1\r\n");
}

async fn about_keyspace(call: &Call) -> Result<String, Failed> {
    let counted = scan::count(call, COUNTED_MAX).await?;
    let keys = if counted.all { counted.keys } else { call.face.store.stat().objects.max(counted.keys) };
    if keys == 0 {
        return Ok("# Keyspace\r\n".to_owned());
    }
    let average = counted.ttl_ms.checked_div(counted.expiring).unwrap_or(0);
    Ok(format!("# Keyspace\r\ndb0:keys={keys},expires={},avg_ttl={average}\r\n", counted.expiring))
}
