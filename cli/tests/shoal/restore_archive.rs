//! `shoal restore --archive` and `shoal archive`, with an archive in a folder as a writer leaves it.

use std::fs;
use std::path::{Path, PathBuf};

use shoal_archive::format::*;
use shoal_backup::BackupStream;
use shoal_base::{Lsn, RequestId, TabletId};
use shoal_engine::{
    BucketConfig, ByteRange, Expiry, Metadata, ObjectKey, PutOptions, RejectRules, Store, Write, block_on,
};
use shoal_log::format::{RecordKind, encode_record};
use shoal_storekit::StoreKit;

use crate::harness::{Done, assert_clean, run, text_of};

const LOG: u64 = 7;
const BASE: u64 = 9;
/// The wall clock of the first batch, nanoseconds: 2023-11-14T22:13:20Z.
const START_NS: u64 = 1_700_000_000_000_000_000;
const SECOND: u64 = 1_000_000_000;

/// An archive: a base with a few objects, and a slot for each later write, a second apart.
struct Archive {
    folder: tempfile::TempDir,
    store: Store,
    record: ArchiveRecord,
    chain: u32,
    seq: u64,
    end: LogEnd,
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::new("default", name.as_bytes()).unwrap()
}

fn put(store: &Store, name: &str, value: Vec<u8>, options: PutOptions) {
    block_on(store.put(&key(name), value.into(), options)).unwrap();
}

fn long_value() -> Vec<u8> {
    (0..700_000_u32).map(|at| (at / 9) as u8).collect()
}

fn request() -> RequestId {
    RequestId { session: 5, sequence: 1 }
}

impl Archive {
    fn new() -> Self {
        let store = StoreKit::new(4_096).in_memory();
        let metadata = Metadata { content_type: "text/plain".into(), ..Metadata::default() };
        let options = PutOptions { metadata, modified_ns: Some(77 * SECOND), ..PutOptions::default() };
        put(&store, "text", b"hello".to_vec(), options);
        put(&store, "long", long_value(), PutOptions::default());
        let expiry = Expiry::At(4_000_000_000 * SECOND);
        put(&store, "until 2096", b"x".to_vec(), PutOptions { expiry, ..PutOptions::default() });
        store.create_bucket("settings", BucketConfig::default()).unwrap();
        let (counter, one, options) = (key("counter"), b"1".to_vec().into(), PutOptions::default());
        let write = Write::put(&counter, &one, &options).with_request_id(Some(request()));
        block_on(async { store.write(write).await.unwrap().durable().await }).unwrap();
        let log =
            RecordLog { id: LOG, epoch: 1, first: 0, end: None, last_lsn: Lsn::NONE, claimed_ns: START_NS };
        let owner_name = OwnerName { node: "a".into(), resp: String::new(), grpc: "10.0.0.4:7411".into() };
        let record = ArchiveRecord {
            flags: RecordFlags::default(),
            volume: store.identity(),
            revision: 1,
            nonce: 1,
            epoch: 1,
            owner: Some([1; 16]),
            building: 0,
            oldest_lsn: Lsn::NONE,
            oldest_ns: START_NS,
            tablets: 4,
            window: 8,
            lease_ms: 9_000,
            logs: vec![log],
            bases: Vec::new(),
            pins: Vec::new(),
            owner_name,
        };
        let folder = tempfile::tempdir().unwrap();
        let end = LogEnd { last_lsn: Lsn::NONE, store_ns: 0, wall_ns: START_NS };
        let mut archive = Self { folder, store, record, chain: 0, seq: 0, end };
        archive.base();
        archive.slot(&archive.start().opening(&Opening::default()));
        archive
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn url(&self) -> String {
        format!("file://{}", self.folder.path().display())
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    fn save(&self) {
        self.write("record", &self.record.encode().unwrap());
    }

    fn base(&mut self) {
        let mut stream = block_on(BackupStream::begin_base(&self.store, 3)).unwrap();
        let mut parts = Vec::new();
        let mut bytes = 0;
        while let Some(part) = block_on(stream.next()).unwrap() {
            let at = parts.len() as u32;
            self.write(&ArchiveName::Part { base: BASE, part: at }.to_string(), &part);
            parts.push(BasePart::of(&part));
            bytes += part.len() as u64;
        }
        let count = parts.len() as u32;
        let end = BaseEnd { parts }.encode();
        self.write(&ArchiveName::BaseEnd { base: BASE }.to_string(), &end);
        let version = stream.version();
        self.end.last_lsn = version;
        self.record.oldest_lsn = version;
        self.record.bases.push(RecordBase {
            id: BASE,
            version,
            log: LOG,
            seq: 0,
            parts: count,
            end_crc: BaseEnd::crc_of(&end),
            bytes,
            objects: 4,
            taken_ns: START_NS,
        });
        self.save();
    }

    fn start(&self) -> SegmentStart {
        let slot = LogSlot { log: LOG, seq: self.seq };
        let (volume, chain, nonce) = (self.record.volume, self.chain, self.seq + 1);
        SegmentStart { volume, slot, epoch: 1, chain, nonce, flags: SegmentFlags::default(), end: self.end }
    }

    fn slot_name(seq: u64) -> String {
        LogSlot { log: LOG, seq }.to_string()
    }

    fn slot(&mut self, bytes: &[u8]) {
        self.write(&Self::slot_name(self.seq), bytes);
        self.chain = u32::from_le_bytes(bytes[..4].try_into().unwrap());
        self.seq += 1;
    }

    /// A put, or a delete, a second after the write before.
    fn log(&mut self, name: &str, value: Option<&[u8]>) {
        let lsn = self.end.last_lsn.next();
        let wall_ns = self.end.wall_ns + SECOND;
        let mut batch = BatchWriter::new(lsn, wall_ns - START_NS, wall_ns);
        let key = key(name);
        batch.push(&match value {
            None => encode_record(RecordKind::Delete, TabletId(0), key.encoded(), &[], false),
            Some(value) => {
                // Flags, modification time, bytes of the value, bytes of the metadata.
                let head = [&[0][..], &(9 * SECOND).to_le_bytes(), &[value.len() as u8, 0]].concat();
                encode_record(RecordKind::Put, TabletId(0), key.encoded(), &[&head, value], false)
            }
        });
        let mut writer = SegmentWriter::new(self.start());
        writer.push(batch);
        let bytes = writer.finish();
        self.end = LogEnd { last_lsn: lsn, store_ns: wall_ns - START_NS, wall_ns };
        self.slot(&bytes);
    }

    /// With the writes that the tests restore.
    fn filled() -> Self {
        let mut archive = Self::new();
        archive.log("new", Some(b"first"));
        archive.log("new", Some(b"second"));
        archive.log("text", None);
        archive
    }

    fn restore(&self, new: &Path, options: &[&str]) -> Done {
        let url = self.url();
        let fixed = ["restore", "--archive", &url, "--data", text_of(new), "--size", "64M", "--json"];
        run(&[&fixed[..], options].concat())
    }

    fn archive(&self, command: &[&str]) -> Done {
        run(&[&["archive"], command, &["--archive", &self.url()]].concat())
    }
}

impl Drop for Archive {
    fn drop(&mut self) {
        block_on(self.store.close()).unwrap();
    }
}

fn get(data: &Path, name: &str) -> Option<Vec<u8>> {
    let done = run(&["get", name, "--data", text_of(data)]);
    (done.code == 0).then_some(done.stdout)
}

#[test]
fn a_store_comes_back_as_it_was() {
    let archive = Archive::filled();
    let new = archive.path("new.data");
    let done = archive.restore(&new, &[]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let json = done.json();
    let last = archive.end.last_lsn.0;
    assert_eq!((json["version"].as_u64(), json["objects"].as_u64()), (Some(last), Some(4)), "{json}");
    assert_eq!(
        (json["log_writes"].as_u64(), json["taken"].as_str()),
        (Some(3), Some("2023-11-14T22:13:23Z"))
    );
    assert_eq!((get(&new, "new"), get(&new, "text")), (Some(b"second".to_vec()), None));
    assert_eq!(get(&new, "long"), Some(long_value()));
    let stat = |name: &str| run(&["stat", name, "--data", text_of(&new), "--json"]).json();
    let (of_new, of_until) = (stat("new"), stat("until 2096"));
    assert_eq!(of_new["modified_ns"].as_u64(), Some(9 * SECOND), "{of_new}");
    assert!(of_new["version"].as_u64().unwrap() > last + (1 << 40) - 1, "{of_new}");
    assert_eq!(of_until["expire_time_ns"].as_u64(), Some(4_000_000_000 * SECOND), "{of_until}");
    assert_clean(&new);
    assert!(!archive.path("new.data.unfinished").exists());
}

#[test]
fn a_restored_store_knows_its_buckets_and_the_results_of_requests() {
    let archive = Archive::filled();
    let new = archive.path("new.data");
    assert_eq!(archive.restore(&new, &[]).code, 0);
    let options = shoal_engine::PathOptions { bytes_max: 64 << 20, ..shoal_engine::PathOptions::default() };
    let store = block_on(Store::open_path(&new, options)).unwrap();
    assert_ne!(store.identity(), archive.record.volume, "a new volume");
    store.load_buckets().unwrap();
    assert!(store.bucket("settings").unwrap().is_some());
    // The client repeats its write: it was done before.
    let (counter, two, options) = (key("counter"), b"2".to_vec().into(), PutOptions::default());
    let write = Write::put(&counter, &two, &options).with_request_id(Some(request()));
    block_on(async { store.write(write).await.unwrap().durable().await }).unwrap();
    let object = block_on(store.get(&counter, ByteRange::ALL)).unwrap().unwrap();
    assert_eq!(object.value.to_vec(), b"1");
    // Another request is a new write.
    let again = RequestId { sequence: 2, ..request() };
    let write = Write::put(&counter, &two, &options).with_request_id(Some(again));
    block_on(async { store.write(write).await.unwrap().durable().await }).unwrap();
    let object = block_on(store.get(&counter, ByteRange::ALL)).unwrap().unwrap();
    assert_eq!(object.value.to_vec(), b"2");
    block_on(store.delete(&key("long"), RejectRules::default())).unwrap();
    block_on(store.close()).unwrap();
}

#[test]
fn earlier_moments() {
    let archive = Archive::filled();
    let first = archive.end.last_lsn.0 - 2;
    for (at, options, new, text) in [
        ("base", ["--at", "2023-11-14T22:13:20Z"], None, true),
        ("first", ["--at", "2023-11-14T22:13:21.5Z"], Some("first"), true),
        ("second", ["--at", "2023-11-14 22:13:22"], Some("second"), true),
        ("last", ["--at", "2024-01-01T00:00:00Z"], Some("second"), false),
        ("version", ["--version", &first.to_string()], Some("first"), true),
    ] {
        let data = archive.path(&format!("{at}.data"));
        let done = archive.restore(&data, &options);
        assert_eq!(done.code, 0, "{at}: {}", done.stderr);
        assert_eq!(get(&data, "new"), new.map(|new| new.as_bytes().to_vec()), "{at}");
        assert_eq!(get(&data, "text").is_some(), text, "{at}");
    }
}

#[test]
fn moments_and_archives_that_do_not_exist_are_refused() {
    let archive = Archive::filled();
    let new = archive.path("new.data");
    let refused = |done: Done, code: i32, why: &str| {
        assert_eq!(done.code, code, "{}", done.stderr);
        assert!(done.stderr.contains(why), "{why}: {}", done.stderr);
        assert!(!new.exists() && !archive.path("new.data.unfinished").exists(), "nothing stays");
    };
    refused(archive.restore(&new, &["--at", "2023-11-14T22:13:19Z"]), 1, "its oldest moment is --version");
    refused(archive.restore(&new, &["--at", "2500-01-01T00:00:00Z"]), 2, "in the future");
    refused(archive.restore(&new, &["--at", "yesterday"]), 2, "2026-11-28T14:02:59Z");
    refused(archive.restore(&new, &["--at", "2999-01-01T00:00:00Z"]), 2, "before 2554");
    refused(
        archive.restore(&new, &["--version", "999"]),
        1,
        "is not archived: the newest moment is --version",
    );
    refused(archive.restore(&new, &["--version", "5", "--at", "2023-11-14T22:13:21Z"]), 2, "cannot be used");
    refused(archive.restore(&new, &["monday.shoal"]), 2, "cannot be used");
    refused(archive.restore(&new, &["--prefix", "a"]), 2, "cannot be used");
    let restore = |options: &[&str]| run(&[&["restore", "--data", text_of(&new)], options].concat());
    refused(restore(&[]), 2, "<BACKUP>");
    refused(restore(&["monday.shoal", "--at", "2023-11-14T22:13:21Z"]), 2, "--archive");
    refused(restore(&["--archive", "/srv/archive"]), 2, "is no address of an archive");
    refused(restore(&["--archive", "file:///no/such/folder"]), 1, "the folder of an archive must exist");
    let empty = tempfile::tempdir().unwrap();
    refused(restore(&["--archive", &format!("file://{}", empty.path().display())]), 1, "there is no archive");
    for command in ["status", "verify", "bases", "cost"] {
        let done = run(&["archive", command, "--archive", &format!("file://{}", empty.path().display())]);
        refused(done, 1, "there is no archive");
        refused(run(&["archive", command, "--archive", "ftp://x"]), 2, "is no address of an archive");
    }
    let sweep = run(&["archive", "sweep", "--archive", &format!("file://{}", empty.path().display())]);
    refused(sweep, 1, "nothing is swept");
}

#[test]
fn damage_is_named_and_nothing_stays() {
    let archive = Archive::filled();
    let (new, name) = (archive.path("new.data"), Archive::slot_name(2));
    let mut bytes = fs::read(archive.path(&name)).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    archive.write(&name, &bytes);
    let done = archive.restore(&new, &[]);
    assert_eq!(done.code, 1);
    assert!(done.stderr.contains(&name) && done.stderr.contains("is damaged"), "{}", done.stderr);
    assert!(!new.exists() && !archive.path("new.data.unfinished").exists());
    // An earlier moment does not need it.
    assert_eq!(archive.restore(&new, &["--at", "2023-11-14T22:13:20Z"]).code, 0);
    let found = archive.archive(&["verify", "--full", "--json"]);
    assert_eq!(found.code, 1);
    assert!(found.json()["problems"][0].as_str().unwrap().starts_with(&name), "{}", found.text());
}

#[test]
fn the_state_of_an_archive_is_shown() {
    let archive = Archive::filled();
    let status = archive.archive(&["status", "--json"]).json();
    assert_eq!(status["version"].as_u64(), Some(archive.end.last_lsn.0), "{status}");
    assert_eq!((status["node"].as_str(), status["owned"].as_bool()), (Some("a"), Some(true)));
    assert_eq!((status["slots_since_base"].as_u64(), status["bases"].as_u64()), (Some(4), Some(1)));
    assert_eq!(status["oldest"].as_str(), Some("2023-11-14T22:13:20Z"));
    let text = archive.archive(&["status"]);
    assert_eq!(text.code, 0, "{}", text.stderr);
    for line in ["owner      a (10.0.0.4:7411) since 2023-11-14", "restore    every moment since 2023-11-14"]
    {
        assert!(text.text().contains(line), "{}", text.text());
    }
    let cost = archive.archive(&["cost", "--json"]).json();
    assert_eq!((cost["slots"]["objects"].as_u64(), cost["log_seconds"].as_f64()), (Some(4), Some(3.0)));
    let puts = 4.0 * 30.0 * 86_400.0 / 3.0;
    assert!((cost["puts"].as_f64().unwrap() - puts).abs() < 1.0, "{cost}");
    assert!((cost["put_price"].as_f64().unwrap() - puts / 1e6 * 5.0).abs() < 0.01, "{cost}");
    assert_eq!(archive.archive(&["cost", "--put-price", "0"]).code, 0);
    let verified = archive.archive(&["verify"]);
    assert!(verified.code == 0 && verified.text().contains("no problems"), "{}", verified.text());
    fs::remove_file(archive.path(&ArchiveName::Part { base: BASE, part: 0 }.to_string())).unwrap();
    let verified = archive.archive(&["verify"]);
    assert!(verified.code == 1 && verified.stderr.contains("00000000 is missing"), "{}", verified.stderr);
    // Without a base nothing can be restored, and the commands say so.
    let mut archive = archive;
    archive.record.bases.clear();
    archive.save();
    assert!(archive.archive(&["status"]).text().contains("nothing is restorable yet"));
    assert_eq!(archive.archive(&["pin", "p"]).code, 3);
    let done = archive.restore(&archive.path("new.data"), &[]);
    assert!(done.code == 1 && done.stderr.contains("nothing is restorable yet"), "{}", done.stderr);
}

#[test]
fn bases_are_pinned_and_unpinned() {
    let archive = Archive::filled();
    let pinned = archive.archive(&["pin", "audit", "--until", "2500-01-01T00:00:00Z", "--json"]);
    assert_eq!(pinned.code, 0, "{}", pinned.stderr);
    assert_eq!(pinned.json()["base"].as_str(), Some("0000000000000009"));
    assert_eq!(archive.archive(&["pin", "audit"]).code, 1, "the name is taken");
    assert_eq!(archive.archive(&["pin", "b", "--base", "00000000000000ff"]).code, 3);
    assert_eq!(archive.archive(&["pin", "b", "--base", "9"]).code, 2);
    assert_eq!(archive.archive(&["pin", "b", "--until", "2001-01-01T00:00:00Z"]).code, 2);
    let second = archive.archive(&["pin", "b", "--base", "0000000000000009"]);
    assert!(second.text().contains("stays until it is unpinned"), "{}", second.text());
    let bases = archive.archive(&["bases", "--json"]).json();
    let base = &bases["bases"][0];
    let names: Vec<_> = base["pins"].as_array().unwrap().iter().map(|pin| pin["name"].as_str()).collect();
    assert_eq!((names, base["moments_after"].as_bool()), (vec![Some("audit"), Some("b")], Some(true)));
    let text = archive.archive(&["bases"]);
    assert!(text.text().contains("pinned until 2500-01-01T00:00:00Z: audit"), "{}", text.text());
    assert_eq!(archive.archive(&["unpin", "audit"]).code, 0);
    let gone = archive.archive(&["unpin", "audit"]);
    assert!(gone.code == 3 && gone.stderr.contains("there is no pin"), "{}", gone.stderr);
    assert_eq!(archive.archive(&["bases", "--json"]).json()["bases"][0]["pins"].as_array().unwrap().len(), 1);
}

#[test]
fn dead_objects_are_swept() {
    let archive = Archive::filled();
    let dead = LogSlot { log: 0xAB, seq: 3 }.to_string();
    archive.write(&dead, b"a slot of a log that the record does not name");
    archive.write("follower/a", b"another version's");
    let dry = archive.archive(&["sweep", "--dry-run"]);
    assert!(dry.code == 0 && dry.text().contains(&dead), "{}", dry.text());
    assert!(archive.path(&dead).exists());
    let swept = archive.archive(&["sweep", "--json"]).json();
    assert_eq!((swept["dead"].as_u64(), swept["deleted"].as_u64()), (Some(1), Some(1)), "{swept}");
    assert!(!archive.path(&dead).exists() && archive.path("follower/a").exists());
    assert_eq!(archive.archive(&["verify", "--full"]).code, 0);
}
