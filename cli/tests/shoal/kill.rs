//! `kill -9` of the server in the middle of an import and of concurrent puts, overwrites and deletes, again and again on one
//! store. An object that was acknowledged to another process is there with the right bytes, any other is wholly there or
//! wholly absent, a check of the store after the kill finds nothing wrong, and the store opens again soon.
//!
//! Half of the writers speak gRPC, the others S3, which also store long values by uploads in two parts: a joined value is there
//! once its completion was acknowledged. The writers (this process) know each acknowledgement. An import does not report its own one by one; a watcher lists
//! the objects that it stored so far: a listing shows durable objects only, so every object that it showed must survive.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use shoal_base::{Entropy, SeededEntropy};
use shoal_client::{ByteRange, Client, ConnectOptions, Error, ListRequest, RejectRules};
use shoal_testkit::Value;
use shoal_testkit::lab;

use crate::both::{Objects, PART_BYTES};
use crate::harness::{self, Process, command, run, run_with, started};
use crate::machine::{disk_folder, runtime};

const BUCKET: &str = "default";
/// Clients that write at the same time.
const WRITERS: u64 = 8;
/// Keys of each of them: few, so that most puts overwrite.
const KEYS_PER_WRITER: u64 = 150;
/// As the kernel shows it (x86-64).
const O_DIRECT: u32 = 0o40000;
/// An import that does not reach its point for the kill by then hangs.
const IMPORT_WAIT_MAX: Duration = Duration::from_secs(300);

/// The amount of work.
struct Settings {
    rounds: u64,
    /// Files of the tree that each round imports.
    files: u64,
    /// An opening that takes longer, from the start of the process to its first answer, is reported as slow.
    reopen_max: Duration,
    /// The data file or device; by default a file in a separate folder.
    data: Option<PathBuf>,
    /// The data file bypasses the kernel's cache.
    direct: bool,
    seed: u64,
}

/// A few rounds.
#[test]
fn acknowledged_writes_survive_kills() {
    rounds(&Settings {
        rounds: 3,
        files: 1_000,
        reopen_max: Duration::from_secs(100),
        data: None,
        direct: false,
        seed: clock(),
    });
}

/// Runs a number of short rounds, the laboratory's KILLS, below the build's folder: that is on a disk. The laboratory's rounds
/// bypass the kernel's cache.
#[test]
fn rounds_of_the_laboratory() {
    let folder = disk_folder();
    let kills = lab::given("KILLS");
    rounds(&Settings {
        rounds: kills.unwrap_or(1),
        files: 300,
        reopen_max: Duration::from_secs(100),
        data: Some(folder.path().join("data")),
        direct: kills.is_some(),
        seed: lab::given("SEED").unwrap_or_else(clock),
    });
}

/// Runs the number of rounds that `cargo x kill` sets; an opening slower than is promised is reported.
#[test]
#[ignore = "takes minutes: `cargo x kill` runs it"]
fn rounds_from_environment() {
    let number = |name: &str, or: u64| std::env::var(name).map_or(or, |text| text.parse().unwrap());
    rounds(&Settings {
        rounds: number("KILL_ROUNDS", 10),
        files: number("KILL_FILES", 6_000),
        reopen_max: Duration::from_millis(number("KILL_REOPEN_MS", 2_000)),
        data: std::env::var_os("KILL_DATA").map(PathBuf::from),
        direct: number("KILL_DIRECT", 0) != 0,
        seed: number("KILL_SEED", clock()),
    });
}

fn clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64
}

fn rounds(settings: &Settings) {
    let runtime = runtime();
    let folder = tempfile::tempdir().unwrap();
    println!("seed {}", settings.seed);
    let mut world = World::new(settings, folder.path());
    let (began, direct) = (Instant::now(), world.server.is_direct(&world.data));
    println!(
        "{}, {}",
        world.data.display(),
        if direct { "with O_DIRECT" } else { "through the kernel's cache" }
    );
    assert!(direct || !settings.direct, "no O_DIRECT here");
    for round in 0..settings.rounds {
        runtime.block_on(world.round(round, settings));
    }
    world.server.child.stop();
    world.check("after a clean stop");
    println!(
        "{} kills in {:.0} s: nothing acknowledged was lost",
        settings.rounds,
        began.elapsed().as_secs_f64()
    );
}

/// The cache of the server under test.
pub(crate) const CACHE_BYTES: u64 = 32 << 20;

/// The server under test.
pub(crate) struct Server {
    pub(crate) child: Process,
    url: String,
    /// The address of S3. A store on a device has no folder for the key.
    s3: Option<String>,
}

impl Server {
    /// Starts it and waits until it prints its address.
    pub(crate) fn start(data: &Path, listen: &str) -> Self {
        let cache = format!("{}M", CACHE_BYTES >> 20);
        let mut command = command(&["serve", "--size", "4G", "--cache", &cache, "--log", "error"]);
        command.args(["--listen", listen]).arg("--data").arg(data);
        let has_s3 = !is_device(data);
        if has_s3 {
            command.args(["--s3", "127.0.0.1:0"]);
        }
        let (mut child, url) = started(command);
        let s3 = has_s3.then(|| child.says("S3    http://"));
        Self { child, url, s3 }
    }

    /// Returns true if it bypasses the kernel's cache for its data, by the flags of its descriptor.
    fn is_direct(&self, data: &Path) -> bool {
        let (proc, data) =
            (PathBuf::from(format!("/proc/{}", self.child.id())), data.canonicalize().unwrap());
        let files = fs::read_dir(proc.join("fd")).unwrap().map(|file| file.unwrap().path());
        let mut its = files.filter(|file| fs::read_link(file).is_ok_and(|target| target == data));
        its.any(|file| {
            let info = fs::read_to_string(proc.join("fdinfo").join(file.file_name().unwrap())).unwrap();
            let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim();
            u32::from_str_radix(flags, 8).unwrap() & O_DIRECT != 0
        })
    }

    pub(crate) async fn client(&self) -> Client {
        // One attempt: the acknowledgement of a write must not depend on a second one.
        Client::connect(ConnectOptions { attempts: 1, ..ConnectOptions::new(&self.url) }).await.unwrap()
    }
}

fn is_device(data: &Path) -> bool {
    fs::metadata(data).is_ok_and(|found| found.file_type().is_block_device())
}

/// The values that a key may hold: none is no object.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    acknowledged: Option<Value>,
    /// A write that was started and whose outcome is not known.
    in_flight: Option<Option<Value>>,
}

/// One client: its keys, and its next writes.
struct Writer {
    id: u64,
    keys: HashMap<u64, Known>,
    dice: SeededEntropy,
    acknowledged: u64,
}

impl Writer {
    /// Writes until the server is gone.
    async fn write(mut self, objects: Objects) -> Self {
        loop {
            let key = self.id * KEYS_PER_WRITER + self.dice.next_u64() % KEYS_PER_WRITER;
            let bytes = self.bytes(matches!(objects, Objects::S3(_)));
            let value = Value { key, seed: self.dice.next_u64(), bytes };
            let what = (!self.dice.next_u64().is_multiple_of(6)).then_some(value);
            self.keys.entry(key).or_default().in_flight = Some(what);
            let name = name(key);
            let result = match what {
                Some(value) => objects.put(&name, value.to_vec().into(), RejectRules::default()).await,
                None => objects.delete(&name).await,
            };
            let known = self.keys.entry(key).or_default();
            match result {
                Ok(_) => {
                    *known = Known { acknowledged: what, in_flight: None };
                    self.acknowledged += 1;
                }
                // It was refused before anything was started.
                Err(Error::Busy(_)) => known.in_flight = None,
                Err(Error::Unknown(_) | Error::Unavailable { .. }) => return self,
                Err(error) => panic!("a write of {key} failed while the server was there: {error}"),
            }
        }
    }

    /// Of every kind: in the leaf, in the log, in extents beside it and before it, as a stream, and of two parts.
    fn bytes(&mut self, has_parts: bool) -> usize {
        if has_parts && self.dice.next_u64().is_multiple_of(60) {
            return PART_BYTES + (self.dice.next_u64() % 100_000) as usize;
        }
        let most = match self.dice.next_u64() % 40 {
            0..15 => 900,
            15..30 => 16_000,
            30..38 => 70_000,
            38 => 400_000,
            _ => 1_500_000,
        };
        (self.dice.next_u64() % most) as usize
    }

    /// Compares the store with the known states, and knows it exactly then.
    async fn verify(&mut self, client: &Client) {
        for (&key, known) in &mut self.keys {
            let found = client.get(BUCKET, &name(key), ByteRange::ALL).await.unwrap();
            let is = |what: &Option<Value>| match (what, &found) {
                (Some(value), Some(object)) => value.check(&object.value).is_ok(),
                (None, None) => true,
                _ => false,
            };
            let actual = [Some(known.acknowledged), known.in_flight].into_iter().flatten().find(is);
            let Some(actual) = actual else {
                panic!("{:?} holds {:?}, known is {known:?}", name(key), found.map(|object| object.info));
            };
            *known = Known { acknowledged: actual, in_flight: None };
        }
    }
}

fn name(key: u64) -> Vec<u8> {
    format!("writers/{}/{key}", key / KEYS_PER_WRITER).into_bytes()
}

/// The store, the writers, and the tree that is imported.
struct World {
    data: PathBuf,
    server: Server,
    writers: Vec<Writer>,
    tree: PathBuf,
    /// Contents of the tree by path.
    files: HashMap<String, Value>,
    folder: PathBuf,
    dice: SeededEntropy,
}

impl World {
    fn new(settings: &Settings, folder: &Path) -> Self {
        let data = settings.data.clone().unwrap_or_else(|| folder.join("data"));
        // A server makes a file, but no store of a device.
        if is_device(&data) {
            let done = run(&["format".into(), "--size".into(), "4G".into(), data.clone().into_os_string()]);
            assert_eq!(done.code, 0, "{}", done.stderr);
        }
        let tree = folder.join("tree");
        let dice = SeededEntropy::new(settings.seed);
        let files = make_tree(&tree, settings.files, &dice);
        let writer = |id| Writer {
            id,
            keys: HashMap::new(),
            dice: SeededEntropy::new(settings.seed ^ (id + 1)),
            acknowledged: 0,
        };
        Self {
            server: Server::start(&data, "127.0.0.1:0"),
            data,
            writers: (0..WRITERS).map(writer).collect(),
            tree,
            files,
            folder: folder.to_owned(),
            dice,
        }
    }

    /// A command against the server, its output thrown away.
    fn spawn(&self, arguments: &[OsString]) -> Child {
        let mut command = command(arguments);
        command.env("SHOAL_SERVER", &self.server.url);
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    fn import(&self, prefix: &str) -> Vec<OsString> {
        vec!["import".into(), self.tree.clone().into(), "--prefix".into(), prefix.into(), "--json".into()]
    }

    async fn round(&mut self, round: u64, settings: &Settings) {
        let prefix = format!("tree/{round}/");
        // The import of the round before is removed, so that its space is used again.
        let before = format!("tree/{}/", round.wrapping_sub(1));
        let mut remove = self.spawn(&["rm".into(), "--prefix".into(), before.into()]);
        let mut import = self.spawn(&self.import(&prefix));
        let client = self.server.client().await;
        let mut writing = Vec::new();
        for writer in self.writers.drain(..) {
            let objects = match &self.server.s3 {
                Some(address) if writer.id % 2 == 1 => Objects::s3(address, &self.data, BUCKET).await,
                _ => Objects::Grpc(client.clone(), BUCKET.into()),
            };
            writing.push(tokio::spawn(writer.write(objects)));
        }
        let count = Arc::new(AtomicUsize::new(0));
        let watching = tokio::spawn(watch(client, prefix.clone(), count.clone()));

        let started = Instant::now();
        let wanted = settings.files * (5 + self.dice.next_u64() % 85) / 100;
        while (count.load(Ordering::Relaxed) as u64) < wanted {
            let (import, server) = (import.try_wait().unwrap(), self.server.child.try_wait().unwrap());
            assert!(
                started.elapsed() < IMPORT_WAIT_MAX && import.is_none_or(|status| status.success()),
                "the import got to {count:?} of {wanted} files; it ended: {import:?}; the server ended: {server:?}"
            );
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        tokio::time::sleep(Duration::from_micros(self.dice.next_u64() % 30_000)).await;
        let killed_after = started.elapsed();
        self.server.child.kill().unwrap();
        self.server.child.wait().unwrap();
        for task in writing {
            self.writers.push(task.await.unwrap());
        }
        let seen = watching.await.unwrap();

        let check = self.check("after kill -9");
        let listen = self.server.url.strip_prefix("http://").unwrap().to_owned();
        let opening = Instant::now();
        self.server = Server::start(&self.data, &listen);
        let client = self.server.client().await;
        client.head(BUCKET, b"anything").await.unwrap();
        let reopened = opening.elapsed();

        let mut acknowledged = 0;
        for writer in &mut self.writers {
            writer.verify(&client).await;
            acknowledged += writer.acknowledged;
        }
        self.verify_import(&client, &prefix, &seen).await;
        println!(
            "round {round}: killed {} ms into the import, {} of {} files and {acknowledged} puts and deletes were \
             acknowledged so far; {check}; reopened in {} ms; everything acknowledged is there",
            killed_after.as_millis(),
            seen.len(),
            settings.files,
            reopened.as_millis(),
        );
        // Reported only: a slow machine is no fault of the store.
        if reopened > settings.reopen_max {
            println!("round {round}: SLOW: reopening took {reopened:?}, more than {:?}", settings.reopen_max);
        }

        // Both lived through the kill, and may have stopped trying; a second import continues after the last object of the first.
        remove.wait().unwrap();
        import.wait().unwrap();
        self.finish_import(&prefix);
    }

    /// Checks the store after the kill, before it is opened.
    fn check(&self, when: &str) -> String {
        let done = harness::check(&self.data, &[]);
        assert_eq!(done.code, 0, "check {when}: {}{}", done.text(), done.stderr);
        format!("check clean ({})", done.text().lines().next().unwrap_or_default())
    }

    /// The files that the watcher saw are there; every file that is there is whole.
    async fn verify_import(&self, client: &Client, prefix: &str, seen: &HashSet<String>) {
        let keys = list(client, prefix).await.unwrap();
        if let Some(key) = seen.iter().find(|&key| !keys.contains(key)) {
            let found = client.get(BUCKET, key.as_bytes(), ByteRange::ALL).await.unwrap();
            assert!(found.is_some(), "{key} was stored before the kill and is gone");
            let again = list(client, prefix).await.unwrap().contains(key);
            panic!("{key} is there, but a listing left it out (the next one has it: {again}); {found:?}");
        }
        for key in keys.iter().filter(|key| !key.ends_with('/')) {
            let expected = self.files[key.strip_prefix(prefix).unwrap()];
            let object = client.get(BUCKET, key.as_bytes(), ByteRange::ALL).await.unwrap().unwrap();
            expected.check(&object.value).unwrap_or_else(|wrong| panic!("{key}: {wrong}"));
        }
    }

    /// The import continues, and stores the whole tree.
    fn finish_import(&mut self, prefix: &str) {
        let import = self.import(prefix);
        let mut run_here = |arguments: &[OsString]| {
            let mut command = command(arguments);
            command.env("SHOAL_SERVER", &self.server.url);
            let done = run_with(command, b"");
            let server = self.server.child.try_wait().unwrap();
            assert_eq!(done.code, 0, "{arguments:?} (server ended: {server:?}): {}", done.stderr);
        };
        run_here(&import);
        let out = self.folder.join("out");
        run_here(&["export".into(), prefix.into(), out.clone().into()]);
        for (path, value) in &self.files {
            let bytes = fs::read(out.join(path)).unwrap();
            value.check(&bytes).unwrap_or_else(|wrong| panic!("{prefix}{path}: {wrong}"));
        }
        fs::remove_dir_all(out).unwrap();
    }
}

/// Files of many sizes in folders of a hundred.
fn make_tree(root: &Path, files: u64, dice: &SeededEntropy) -> HashMap<String, Value> {
    let mut made = HashMap::new();
    for index in 0..files {
        let most = match dice.next_u64() % 50 {
            0..35 => 5_000,
            35..48 => 40_000,
            _ => 300_000,
        };
        let value = Value { key: index, seed: dice.next_u64(), bytes: (dice.next_u64() % most) as usize };
        let path = format!("{}/{index}", index / 100);
        let file = root.join(&path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, value.to_vec()).unwrap();
        made.insert(path, value);
    }
    made
}

/// Lists the keys under `prefix` again and again until the server is gone; returns all that were ever seen.
async fn watch(client: Client, prefix: String, count: Arc<AtomicUsize>) -> HashSet<String> {
    let mut seen = HashSet::new();
    while let Ok(keys) = list(&client, &prefix).await {
        seen.extend(keys);
        count.store(seen.len(), Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    seen
}

async fn list(client: &Client, prefix: &str) -> Result<HashSet<String>, Error> {
    let request = ListRequest { prefix: prefix.to_owned().into(), ..ListRequest::default() };
    let mut pages = client.list_all(request);
    let mut keys = HashSet::new();
    while let Some(page) = pages.next_page().await? {
        keys.extend(page.entries.iter().map(|entry| String::from_utf8(entry.key.to_vec()).unwrap()));
    }
    Ok(keys)
}
