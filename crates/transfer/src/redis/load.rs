//! Imports the strings of a server of the Redis protocol.

use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use bytes::Bytes;
use shoal_base::limits::VALUE_BYTES_SINGLE_MAX;
use shoal_client::{Expiry, PutOptions};

use crate::attributes::FileKind;
use crate::attributes::extras::now_ns;
use crate::import::Import;
use crate::import::feed::Feeder;
use crate::redis::link::{Link, Reply};
use crate::text::{counted, one_line, show_bytes, show_key};
use crate::work::{BATCH_BYTES_MAX, BATCH_ITEMS_MAX};

/// Keys requested from the server at a time.
const SCAN_COUNT: &[u8] = b"1000";
/// Maximum bytes of pipelined commands: they fit in the buffers of the sockets.
const REQUEST_BYTES_MAX: usize = 32 << 10;

/// The reply of PEXPIRETIME and PTTL for an absent key.
const NO_KEY: i64 = -2;

/// The server wants a password.
#[derive(Debug, thiserror::Error)]
#[error("it wants a password")]
pub struct PasswordWanted;

/// A server.
pub struct RedisSource<S> {
    link: Link<S>,
    /// The server has PEXPIRETIME; otherwise PTTL is used.
    has_expire_time: bool,
}

/// A string to read.
struct Found {
    name: Bytes,
    key: Bytes,
    bytes: u64,
}

impl Import {
    /// Stores all strings of the database of `source`, the server at `address`, with `jobs` workers. Blocks: not for threads of the
    /// runtime.
    pub fn redis<S: Read + Write>(&self, source: RedisSource<S>, address: &str, jobs: u16) {
        self.feed(jobs, |feeder| source.run(address, feeder));
    }
}

impl RedisSource<TcpStream> {
    /// Connects to `HOST:PORT`, authenticates, and selects the database.
    ///
    /// # Errors
    /// [`PasswordWanted`], and those of the connection and of the server, with their context.
    pub fn connect(address: &str, password: Option<&[u8]>, db: u32) -> anyhow::Result<Self> {
        let link = Link::connect(address).with_context(|| format!("cannot connect to {address}"))?;
        Self::start(link, password, db).with_context(|| format!("the server at {address} cannot be read"))
    }
}

impl<S: Read + Write> RedisSource<S> {
    fn start(mut link: Link<S>, password: Option<&[u8]>, db: u32) -> anyhow::Result<Self> {
        if let Some(password) = password {
            expect_ok(link.ask(&[b"AUTH", password])?)?;
        }
        if db > 0 {
            expect_ok(link.ask(&[b"SELECT", db.to_string().as_bytes()])?)?;
        }
        let has_expire_time = match link.ask(&[b"PEXPIRETIME", b"any key"])? {
            Reply::Error(why) if why.contains("unknown command") => false,
            Reply::Error(why) if why.starts_with("NOAUTH") => return Err(PasswordWanted.into()),
            Reply::Error(why) => bail!("the server answers: {why}"),
            _ => true,
        };
        Ok(Self { link, has_expire_time })
    }

    /// The other databases than `db` that have keys, with their number of keys. Empty if the server does not report them.
    pub fn other_databases(&mut self, db: u32) -> Vec<(u32, u64)> {
        match self.link.ask(&[b"INFO", b"keyspace"]) {
            Ok(Reply::Value(text)) => databases(&text).filter(|&(number, _)| number != db).collect(),
            _ => Vec::new(),
        }
    }

    fn run(mut self, address: &str, feeder: &mut Feeder<'_>) {
        let (mut seen, mut cursor) = (0, b"0".to_vec());
        loop {
            match self.page(&cursor, feeder) {
                Ok((keys, next)) => (seen, cursor) = (seen + keys, next),
                Err(error) => {
                    let why = one_line(&error);
                    return feeder.stop(&format!("{address}: {why}, after {}", counted(seen, "key")));
                }
            }
            if cursor == b"0" || feeder.report().is_stopped() {
                return;
            }
        }
    }

    /// Imports a page of keys. Returns their number and the next cursor.
    fn page(&mut self, cursor: &[u8], feeder: &mut Feeder<'_>) -> anyhow::Result<(u64, Vec<u8>)> {
        let Reply::List(page) = self.ask(&[b"SCAN", cursor, b"COUNT", SCAN_COUNT])? else {
            return Err(no_reply("SCAN"));
        };
        let Ok([Reply::Value(next), Reply::List(found)]) = <[Reply; 2]>::try_from(page) else {
            return Err(no_reply("SCAN"));
        };
        let (mut names, mut once) = (Vec::new(), HashSet::new());
        for name in &found {
            if feeder.report().is_stopped() {
                break;
            }
            match name {
                Reply::Value(name) if once.insert(name) => names.push(name.clone()),
                Reply::Value(_) => {}
                Reply::Long(bytes) => feeder.report().refused("(a key)", &format!("it has {bytes} bytes")),
                _ => return Err(no_reply("SCAN")),
            }
        }
        let mut asked = Vec::new();
        for name in names {
            if feeder.report().is_stopped() {
                break;
            }
            let Some(key) = feeder.key(&name) else { continue };
            if asked.len() >= BATCH_ITEMS_MAX || self.link.added_bytes() + 2 * name.len() > REQUEST_BYTES_MAX
            {
                self.look(std::mem::take(&mut asked), feeder)?;
            }
            self.link.add(&[b"TYPE", &name]);
            self.link.add(&[b"STRLEN", &name]);
            asked.push((name, key));
        }
        self.look(asked, feeder)?;
        Ok((found.len() as u64, next.to_vec()))
    }

    /// Receives the replies to TYPE and STRLEN of `asked`, and reads the strings.
    fn look(&mut self, asked: Vec<(Bytes, Bytes)>, feeder: &mut Feeder<'_>) -> anyhow::Result<()> {
        let mut replies = self.link.call().map_err(lost)?.into_iter();
        let (mut batch, mut bytes) = (Vec::new(), 0);
        for (name, key) in asked {
            let (Some(kind), Some(length)) = (replies.next(), replies.next()) else {
                return Err(no_reply("TYPE"));
            };
            if feeder.report().is_stopped() {
                return Ok(());
            }
            let length = match (kind, length) {
                // Deleted meanwhile.
                (Reply::Text(kind), _) if kind == "none" => continue,
                (Reply::Text(kind), Reply::Number(length)) if kind == "string" => length.unsigned_abs(),
                (Reply::Text(kind), _) => {
                    let why = format!("it is a {kind}; only strings are imported");
                    feeder.report().refused(&show_key(&key), &why);
                    continue;
                }
                (Reply::Error(why), _) => bail!("TYPE of {:?}: the server answers: {why}", show_key(&name)),
                _ => return Err(no_reply("TYPE")),
            };
            if length > VALUE_BYTES_SINGLE_MAX {
                refuse_long(&key, length, feeder);
                continue;
            }
            if bytes + length > BATCH_BYTES_MAX && !batch.is_empty() {
                self.read(std::mem::take(&mut batch), feeder)?;
                bytes = 0;
            }
            bytes += length;
            batch.push(Found { name, key, bytes: length });
        }
        self.read(batch, feeder)
    }

    fn read(&mut self, batch: Vec<Found>, feeder: &mut Feeder<'_>) -> anyhow::Result<()> {
        if feeder.report().manner().dry_run {
            batch.iter().for_each(|found| feeder.report().would(FileKind::File, &found.key, found.bytes));
            return Ok(());
        }
        let time: &[u8] = if self.has_expire_time { b"PEXPIRETIME" } else { b"PTTL" };
        for found in &batch {
            // The time first: if the key gets another value meanwhile, the object has a deadline too many rather than none.
            self.link.add(&[time, &found.name]);
            self.link.add(&[b"GET", &found.name]);
        }
        let mut replies = self.link.call().map_err(lost)?.into_iter();
        for Found { key, .. } in batch {
            let (Some(Reply::Number(time)), Some(value)) = (replies.next(), replies.next()) else {
                return Err(no_reply("PEXPIRETIME"));
            };
            match value {
                // Created meanwhile, with an unknown deadline: a later state of the database.
                Reply::Value(_) if time == NO_KEY => {}
                Reply::Value(value) if value.len() as u64 <= VALUE_BYTES_SINGLE_MAX => {
                    let Some(expiry) = self.expiry(time) else {
                        feeder.report().expired();
                        continue;
                    };
                    feeder.put(key, value, FileKind::File, PutOptions { expiry, ..PutOptions::default() });
                }
                Reply::Value(value) => refuse_long(&key, value.len() as u64, feeder),
                Reply::Long(bytes) => refuse_long(&key, bytes, feeder),
                // Deleted meanwhile, or of another type now: a later state of the database.
                Reply::Nil => {}
                Reply::Error(why) if why.starts_with("WRONGTYPE") => {}
                Reply::Error(why) => bail!("GET of {:?}: the server answers: {why}", show_key(&key)),
                _ => return Err(no_reply("GET")),
            }
        }
        Ok(())
    }

    /// The expiry of the object; none if the deadline has passed.
    fn expiry(&self, time_ms: i64) -> Option<Expiry> {
        let Ok(time_ms) = u64::try_from(time_ms) else { return Some(Expiry::Never) };
        if !self.has_expire_time {
            return Some(Expiry::After(Duration::from_millis(time_ms.max(1))));
        }
        let at_ns = time_ms.saturating_mul(1_000_000);
        (at_ns > now_ns()).then_some(Expiry::At(at_ns))
    }

    fn ask(&mut self, words: &[&[u8]]) -> anyhow::Result<Reply> {
        match self.link.ask(words).map_err(lost)? {
            Reply::Error(why) => bail!("the server answers: {why}"),
            reply => Ok(reply),
        }
    }
}

/// The lines `dbN:keys=M,...` of INFO.
fn databases(text: &[u8]) -> impl Iterator<Item = (u32, u64)> {
    text.split(|&byte| byte == b'\n').filter_map(|line| {
        let (number, rest) = std::str::from_utf8(line).ok()?.strip_prefix("db")?.split_once(":keys=")?;
        let keys = rest.split(|letter: char| !letter.is_ascii_digit()).next()?;
        Some((number.parse().ok()?, keys.parse().ok()?))
    })
}

fn refuse_long(key: &[u8], bytes: u64, feeder: &Feeder<'_>) {
    let (has, limit) = (show_bytes(bytes), show_bytes(VALUE_BYTES_SINGLE_MAX));
    let why = format!("it has {has}; at most {limit} are imported, and `shoal put` stores more from a file");
    feeder.report().refused(&show_key(key), &why);
}

fn expect_ok(reply: Reply) -> anyhow::Result<()> {
    match reply {
        Reply::Error(why) => bail!("the server answers: {why}"),
        _ => Ok(()),
    }
}

fn lost(error: io::Error) -> anyhow::Error {
    match error.kind() {
        io::ErrorKind::InvalidData => error.into(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => anyhow!("the server is silent for a minute"),
        _ => anyhow!("the connection was lost: {error}"),
    }
}

fn no_reply(command: &str) -> anyhow::Error {
    anyhow!("its reply to {command} is not one")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn databases_are_parsed_from_the_reply_to_info() {
        let text = b"# Keyspace\r\ndb0:keys=2,expires=1,avg_ttl=9\r\ndb11:keys=30,expires=0\r\ndbx:keys=1\r\ndb3:keys=\r\n\xff\r\n";
        assert_eq!(databases(text).collect::<Vec<_>>(), [(0, 2), (11, 30)]);
        assert_eq!(databases(b"").count(), 0);
    }
}
