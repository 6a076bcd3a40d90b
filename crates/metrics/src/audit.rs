//! The audit log: one JSON object for each request of every frontend, with its caller.
//!
//! A request queues its line and does not wait: one thread writes the lines. A full queue, or a file that takes nothing, loses lines, and
//! each lost line is counted and logged. The file is opened again after it was moved, so that any program can rotate it.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use serde::Serialize;
use shoal_frontend::access::PrincipalId;

use crate::slow::SlowRequest;

/// Lines that wait for the thread, at most: beyond that, lines are lost.
pub const AUDIT_LINES_QUEUED_MAX: usize = 65_536;
/// The time between two checks whether the file was moved.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// A line of the log. `docs/operate/logs.md` describes the fields.
#[derive(Serialize)]
struct Line<'a> {
    /// The time at which the answer had left.
    t: String,
    proto: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    who: &'a str,
    ip: String,
    op: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    bucket: &'a str,
    /// The first key, in UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    /// Another key.
    #[serde(skip_serializing_if = "Option::is_none")]
    key_hex: Option<String>,
    /// The number of keys, if there are more.
    #[serde(skip_serializing_if = "is_at_most_one")]
    keys: u64,
    #[serde(skip_serializing_if = "is_at_most_one")]
    times: u64,
    result: &'a str,
    us: u64,
}

fn is_at_most_one(count: &u64) -> bool {
    *count <= 1
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The caller in a line: the id of a key, or the kind of another credential with its name.
fn word_of(caller: &PrincipalId) -> String {
    match caller {
        PrincipalId::Local => "local".to_owned(),
        PrincipalId::Token(number) => format!("token {number}"),
        PrincipalId::Certificate(name) => format!("certificate {name}"),
        PrincipalId::Password => "password".to_owned(),
        PrincipalId::Key(id) => id.to_string(),
        PrincipalId::Lifecycle => "lifecycle".to_owned(),
        other => other.to_string(),
    }
}

/// The line of a request, with its end.
fn line_of(frontend: &str, request: &SlowRequest<'_>, now: SystemTime) -> Vec<u8> {
    let noted = request.noted;
    let key = noted.map(|noted| &noted.key[..]).filter(|key| !key.is_empty());
    let text = key.map(std::str::from_utf8);
    let line = Line {
        t: humantime::format_rfc3339_micros(now).to_string(),
        proto: frontend,
        who: &noted.and_then(|noted| noted.caller.as_ref()).map_or_else(String::new, word_of),
        ip: request.peer.ip().to_canonical().to_string(),
        op: request.operation,
        bucket: noted.map_or("", |noted| &noted.bucket),
        key: text.and_then(Result::ok),
        key_hex: key.filter(|_| matches!(text, Some(Err(_)))).map(hex),
        keys: noted.map_or(0, |noted| noted.keys),
        times: request.times,
        result: request.result,
        us: request.took_ns() / 1_000,
    };
    // Strings and numbers only: it does not fail.
    let mut text = serde_json::to_vec(&line).unwrap_or_default();
    text.push(b'\n');
    text
}

/// An item of the queue.
enum Item {
    Line(Vec<u8>),
    /// Nothing follows.
    End,
}

/// The audit log of a server.
pub struct AuditLog {
    queue: SyncSender<Item>,
    lost: Arc<AtomicU64>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl std::fmt::Debug for AuditLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AuditLog({} lost)", self.lost())
    }
}

impl AuditLog {
    /// Opens the log at `path`, which is made with access for its owner alone; `-` is standard output.
    ///
    /// # Errors
    /// Those of opening the file and of starting a thread.
    pub fn open(path: &Path) -> io::Result<Arc<Self>> {
        let output = Output::open(path)?;
        let (queue, lines) = sync_channel(AUDIT_LINES_QUEUED_MAX);
        let lost = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&lost);
        let thread = std::thread::Builder::new().name("audit".into());
        let thread = thread.spawn(move || write_lines(&lines, output, &counted))?;
        Ok(Arc::new(Self { queue, lost, thread: Mutex::new(Some(thread)) }))
    }

    /// Lines that were lost.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Queues the line of a request.
    pub(crate) fn add(&self, frontend: &str, request: &SlowRequest<'_>) {
        if self.queue.try_send(Item::Line(line_of(frontend, request, SystemTime::now()))).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
            tracing::error!("the audit log lost a line: its queue is full");
        }
    }

    /// Writes all lines that are queued, and ends. Later lines are lost.
    pub fn finish(&self) {
        let Some(thread) = self.thread.lock().take() else { return };
        if self.queue.send(Item::End).is_ok() {
            // It has logged its failure if it panicked.
            let _ = thread.join();
        }
    }
}

/// The place of the lines.
enum Output {
    Standard(io::Stdout),
    File { path: PathBuf, file: BufWriter<File>, identity: (u64, u64), checked: Instant },
}

fn open_file(path: &Path) -> io::Result<(BufWriter<File>, (u64, u64))> {
    let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    let metadata = file.metadata()?;
    Ok((BufWriter::new(file), (metadata.dev(), metadata.ino())))
}

impl Output {
    fn open(path: &Path) -> io::Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::Standard(io::stdout()));
        }
        let (file, identity) = open_file(path)?;
        Ok(Self::File { path: path.to_owned(), file, identity, checked: Instant::now() })
    }

    /// Opens the file again if it was moved.
    fn renew(&mut self) -> io::Result<()> {
        let Self::File { path, file, identity, checked } = self else { return Ok(()) };
        if checked.elapsed() < CHECK_EVERY {
            return Ok(());
        }
        let is_same = std::fs::metadata(&path).is_ok_and(|found| (found.dev(), found.ino()) == *identity);
        if !is_same {
            file.flush()?;
            (*file, *identity) = open_file(path)?;
        }
        *checked = Instant::now();
        Ok(())
    }

    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        self.renew()?;
        match self {
            Self::Standard(output) => output.write_all(line),
            Self::File { file, .. } => file.write_all(line),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Standard(output) => output.flush(),
            Self::File { file, .. } => file.flush(),
        }
    }
}

/// Writes queued lines until the end, and flushes whenever none waits.
fn write_lines(lines: &Receiver<Item>, mut output: Output, lost: &AtomicU64) {
    let mut unflushed = 0;
    let check = |result: io::Result<()>, count: u64| {
        if let Err(error) = result {
            lost.fetch_add(count, Ordering::Relaxed);
            tracing::error!("the audit log lost {count} lines: {error}");
        }
    };
    loop {
        let item = match lines.try_recv() {
            Ok(item) => Ok(item),
            Err(TryRecvError::Empty) => {
                check(output.flush(), std::mem::take(&mut unflushed));
                lines.recv().map_err(|_| TryRecvError::Disconnected)
            }
            Err(error) => Err(error),
        };
        let Ok(Item::Line(line)) = item else { break };
        match output.write(&line) {
            Ok(()) => unflushed += 1,
            failed => check(failed, 1),
        }
    }
    check(output.flush(), unflushed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slow::{Marks, Noted};

    fn request<'a>(noted: &'a Noted, operation: &'a str) -> SlowRequest<'a> {
        let marks = Marks { began_ns: 1_000, ..Marks::default() };
        let peer = ([127, 0, 0, 1], 9).into();
        SlowRequest { operation, noted: Some(noted), times: 1, result: "ok", peer, marks, ended_ns: 85_000 }
    }

    fn noted(key: &[u8]) -> Noted {
        let caller = Some(PrincipalId::Key("SHKA".into()));
        Noted { bucket: "photos".into(), key: key.to_vec(), keys: 1, caller }
    }

    #[test]
    fn a_line_has_caller_key_and_result() {
        let line = |noted: &Noted| {
            String::from_utf8(line_of("s3", &request(noted, "PutObject"), SystemTime::UNIX_EPOCH)).unwrap()
        };
        let start = r#"{"t":"1970-01-01T00:00:00.000000Z","proto":"s3","who":"SHKA","ip":"127.0.0.1","op":"PutObject","bucket":"photos""#;
        let end = ",\"result\":\"ok\",\"us\":84}\n";
        assert_eq!(line(&noted(b"a\"\n/\xC3\xA4")), format!("{start},\"key\":\"a\\\"\\n/\u{e4}\"{end}"));
        assert_eq!(line(&noted(&[0xFF, 1])), format!("{start},\"key_hex\":\"ff01\"{end}"));
        let nobody = Noted::default();
        assert!(line(&nobody).contains(r#""ip":"127.0.0.1","op":"PutObject","result":"ok""#));
    }

    #[test]
    fn a_moved_file_is_opened_again_and_all_lines_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let (path, moved) = (folder.path().join("audit"), folder.path().join("audit.1"));
        let log = AuditLog::open(&path).unwrap();
        let noted = noted(b"k");
        (0..1_000).for_each(|_| log.add("grpc", &request(&noted, "get")));
        std::thread::sleep(CHECK_EVERY + Duration::from_millis(100));
        std::fs::rename(&path, &moved).unwrap();
        (0..1_000).for_each(|_| log.add("grpc", &request(&noted, "put")));
        log.finish();
        let count = |path: &Path, word: &str| {
            std::fs::read_to_string(path).unwrap().lines().filter(|line| line.contains(word)).count()
        };
        assert_eq!((count(&moved, "\"get\""), count(&path, "\"put\"")), (1_000, 1_000));
        assert_eq!(log.lost(), 0);
        log.add("grpc", &request(&noted, "late"));
        assert_eq!(log.lost(), 1, "a line after the end");
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_full_disk_loses_lines_and_counts_them() {
        let log = AuditLog::open(Path::new("/dev/full")).unwrap();
        log.add("redis", &request(&noted(b"k"), "set"));
        log.finish();
        assert_eq!(log.lost(), 1);
    }
}
