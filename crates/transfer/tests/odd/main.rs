//! Imports a corpus of odd archives, and compares the result with GNU tar and with Python's tarfile.
//!
//! Each difference needs a row in [`EXPLAINED`]; a large run (`LAB_ODD_TARS=10000`) also fails for a row that no archive needs.

// Clippy's exception for tests does not reach the helpers of an integration test.
#![allow(clippy::unwrap_used)]

mod corpus;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;
use shoal_client::{ListRequest, PutOptions};
use shoal_storekit::StoreKit;
use shoal_testkit::lab;
use shoal_testkit::skipped::skipped;
use shoal_transfer::attributes::{FileAttributes, FileKind};
use shoal_transfer::filter::Filter;
use shoal_transfer::import::Import;
use shoal_transfer::objects::Objects;
use shoal_transfer::report::{Manner, TransferEvents, TransferReport};
use tokio::runtime::{Builder, Runtime};

use self::corpus::{Archive, archive, oddities};

/// Archives that one store takes.
const ARCHIVES_PER_STORE: u64 = 500;
/// With at least this many archives, each row of [`EXPLAINED`] must occur.
const ALL_ROWS_FROM: u64 = 2_000;

const GNU: &str = "GNU tar";
const PYTHON: &str = "Python";
const BOTH: &str = "both";

/// Intended differences: the other program, the oddity, and the reason.
const EXPLAINED: &[(&str, &str, &str)] = &[
    (
        BOTH,
        "pax empty path",
        "an empty record is deleted, and the header's field counts (POSIX); there the name is empty",
    ),
    (BOTH, "pax empty linkpath", "as with the path"),
    (BOTH, "pax empty size", "as with the path; there the size is 0, or a failure"),
    (BOTH, "pax empty mtime", "as with the path; there the time is 0, or a failure"),
    (BOTH, "global empty mtime", "as with the path"),
    (BOTH, "pax odd mtime", "the entry fails by name; there it gets another time"),
    (GNU, "pax short mtime", "`.5` is half a second; there it is a failure"),
    (
        BOTH,
        "pax damaged record",
        "a damaged extended header ends the import; there the entry counts without it",
    ),
    (GNU, "pax path with NUL", "a key may have NUL bytes; there the name ends at the first one"),
    (PYTHON, "pax twice", "the last extended header counts; there both do"),
    (
        PYTHON,
        "long name before pax",
        "the path of an extended header counts; there the outermost header does",
    ),
    (
        BOTH,
        "global path",
        "a folder and a file get one name, and a key with a slash at its end is another one",
    ),
    (BOTH, "global size", "a global size counts for all entries; there some of them keep their own"),
    (BOTH, "odd mtime", "the entry fails by name; there it is stored without its time, or the archive ends"),
    (BOTH, "odd mode", "the entry fails by name; there it is stored without its mode, or the archive ends"),
    (
        BOTH,
        "odd size",
        "the next entry cannot be found, which ends the import; there the next valid header is looked for",
    ),
    (GNU, "size beyond 64 bits", "as with an odd size"),
    (BOTH, "negative size", "as with an odd size; Python reads the same header again and again"),
    (
        BOTH,
        "bad checksum",
        "damage ends the import with a failure; there the next valid header is looked for, or the archive ends in silence",
    ),
    (GNU, "bad first checksum", "as with a bad checksum"),
    (BOTH, "truncated", "a cut between entries is noticed; there the archive ends in silence"),
    (BOTH, "no end mark", "an archive without an end mark is cut off"),
    (
        BOTH,
        "lone zero block",
        "an end mark with entries after it is a failure; there they are left out in silence",
    ),
    (BOTH, "concatenated", "bytes after the end mark are a failure; there they are left out in silence"),
    (BOTH, "bytes after the end", "as with a second archive"),
    (GNU, "absolute name", "a name is a key, byte by byte; there the slash is left out"),
    (GNU, "name with ..", "a name is a key; there the entry is not extracted"),
    (PYTHON, "name with ./", "a leading `./` of a name is left out; there it is a part of the name"),
    (GNU, "name with slashes", "a name is a key; on a file system several slashes are one"),
    (BOTH, "empty name", "the key is the prefix; a file without a name cannot be extracted"),
    (PYTHON, "gnu header with prefix bytes", "a header of GNU has no prefix; there the field is one"),
    (
        BOTH,
        "file with a slash",
        "a file's key may end with a slash; there it is a folder, or a file without the slash",
    ),
    (BOTH, "hard link to a fifo", "a fifo is no object, so the link fails by name"),
    (BOTH, "hard link to a sparse file", "a sparse file fails by name, so the link does"),
    (BOTH, "unknown type", "an entry of an unknown type fails by name; there it is a file"),
    (PYTHON, "label", "a label is no entry; there it is a file"),
    (BOTH, "dumpdir", "a dump of a folder's names fails by name; there it is a folder, or a file"),
    (BOTH, "old sparse file", "a sparse file fails by name"),
    (BOTH, "pax sparse file", "a sparse file fails by name"),
];

/// A file, folder or symlink that an entry became.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    kind: FileKind,
    content: Vec<u8>,
    /// None if the program does not restore the time.
    seconds: Option<i128>,
    mode: u32,
}

/// What a program made of one archive.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    entries: BTreeMap<Vec<u8>, Node>,
    is_clean: bool,
}

/// Ignores the events of an import.
struct Ignored;

impl TransferEvents for Ignored {
    fn failure(&self, _: &str, _: &str, _: bool) {}

    fn planned(&self, _: &[u8]) -> bool {
        true
    }
}

/// Imports archives into a store in memory.
struct Importer {
    runtime: Runtime,
    objects: Objects,
}

impl Importer {
    fn new() -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let store = StoreKit::new(16_384).in_memory();
        Self { runtime, objects: Objects::embedded(store, PathBuf::from("in memory")) }
    }

    fn import(&self, tar: &[u8], prefix: &str) -> (Outcome, Arc<TransferReport>) {
        let manner = Manner { dry_run: false, lossy: false, place: "the store" };
        let report = Arc::new(TransferReport::new(manner, Arc::new(Ignored)));
        let import = Import {
            objects: self.objects.clone(),
            handle: self.runtime.handle().clone(),
            bucket: "b".into(),
            prefix: prefix.into(),
            filter: Filter::default(),
            report: report.clone(),
        };
        import.tar(tar, 2);
        let is_clean = !report.is_stopped() && report.counts().failed == 0;
        (Outcome { entries: self.entries(prefix), is_clean }, report)
    }

    fn entries(&self, prefix: &str) -> BTreeMap<Vec<u8>, Node> {
        let request =
            ListRequest { bucket: "b".into(), prefix: prefix.into(), limit: 1000, ..ListRequest::default() };
        self.runtime.block_on(async {
            let listed = self.objects.list(&request).await.unwrap().entries;
            let keys = listed.iter().map(|entry| entry.key.clone()).collect();
            let objects = self.objects.get_many("b", keys).await;
            let nodes =
                listed.into_iter().zip(objects).map(|(entry, object)| {
                    let object = object.unwrap().unwrap();
                    let found = FileAttributes::of_object(&entry.key, &object.info)
                        .unwrap_or(FileAttributes { kind: FileKind::File, permissions: None, mtime_ns: 0 });
                    let name = entry.key.slice(prefix.len()..).to_vec();
                    let node = Node {
                        kind: found.kind,
                        content: object.value.to_vec(),
                        seconds: Some(found.mtime_ns.div_euclid(1_000_000_000)),
                        mode: found.permissions.unwrap_or(0),
                    };
                    (without_slash(name), node)
                });
            nodes.collect()
        })
    }

    fn put(&self, key: &str, value: &[u8]) {
        let put = self.objects.put("b", key.as_bytes(), Bytes::copy_from_slice(value), PutOptions::default());
        self.runtime.block_on(put).unwrap();
    }
}

fn without_slash(mut name: Vec<u8>) -> Vec<u8> {
    while name.last() == Some(&b'/') {
        name.pop();
    }
    name
}

/// Extracts the archive with GNU tar.
fn gnu(tar: &Path, folder: &Path) -> Outcome {
    fs::create_dir(folder).unwrap();
    let output = Command::new("tar")
        .args(["--extract", "--same-permissions", "--no-same-owner", "--file"])
        .args([tar, Path::new("--directory"), folder])
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let (mut entries, mut open) = (BTreeMap::new(), vec![folder.to_owned()]);
    while let Some(path) = open.pop() {
        for entry in fs::read_dir(path).unwrap() {
            let path = entry.unwrap().path();
            let metadata = fs::symlink_metadata(&path).unwrap();
            let (kind, content) = if metadata.is_symlink() {
                (FileKind::Symlink, fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec())
            } else if metadata.is_dir() {
                open.push(path.clone());
                (FileKind::Folder, Vec::new())
            } else if metadata.is_file() {
                (FileKind::File, fs::read(&path).unwrap())
            } else {
                continue;
            };
            let name = path.strip_prefix(folder).unwrap().as_os_str().as_bytes().to_vec();
            // Later entries change the time of a folder.
            let seconds = (kind != FileKind::Folder).then(|| metadata.mtime().into());
            entries.insert(name, Node { kind, content, seconds, mode: metadata.mode() & 0o7777 });
        }
    }
    fs::remove_dir_all(folder).unwrap();
    Outcome { entries, is_clean: output.status.success() }
}

/// The results of Python for all archives, in order; none without Python.
fn python(tars: &[PathBuf]) -> Option<Vec<Outcome>> {
    let mut command = Command::new("python3");
    command.args(["-c", include_str!("others.py")]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().ok()?;
    let mut stdin = child.stdin.take().unwrap();
    let output = std::thread::scope(|scope| {
        scope.spawn(move || tars.iter().for_each(|tar| writeln!(stdin, "{}", tar.display()).unwrap()));
        child.wait_with_output().unwrap()
    });
    let text = String::from_utf8(output.stdout).unwrap();
    let outcomes: Vec<Outcome> =
        text.lines().map(|line| python_outcome(&serde_json::from_str(line).unwrap())).collect();
    assert_eq!(outcomes.len(), tars.len(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(outcomes)
}

fn python_outcome(line: &Value) -> Outcome {
    let hex = |text: &str| -> Vec<u8> {
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
    };
    let node = |(name, node): (&String, &Value)| {
        let kind = match node[0].as_str().unwrap() {
            "file" => FileKind::File,
            "folder" => FileKind::Folder,
            "symlink" => FileKind::Symlink,
            _ => return None,
        };
        let content = hex(node[1].as_str().unwrap());
        let (seconds, mode) = (node[2].as_i64().map(i128::from), node[3].as_u64().unwrap() as u32);
        Some((hex(name), Node { kind, content, seconds, mode }))
    };
    let entries = line["entries"].as_object().unwrap().iter().filter_map(node).collect();
    Outcome { entries, is_clean: line["error"].is_null() && line["failed"] == 0 }
}

/// The differences of `theirs` from `ours`.
fn differences(ours: &Outcome, theirs: &Outcome) -> Vec<String> {
    let mut found = Vec::new();
    if ours.is_clean != theirs.is_clean {
        found.push(format!("without failure: here {}, there {}", ours.is_clean, theirs.is_clean));
    }
    let names: BTreeSet<&Vec<u8>> = ours.entries.keys().chain(theirs.entries.keys()).collect();
    for name in names {
        let shown = String::from_utf8_lossy(name);
        match (ours.entries.get(name), theirs.entries.get(name)) {
            (Some(one), Some(other)) => {
                let is_same = one.kind == other.kind
                    && one.content == other.content
                    && (other.seconds.is_none() || one.seconds == other.seconds)
                    && (one.kind == FileKind::Symlink || one.mode == other.mode);
                if !is_same {
                    found.push(format!("{shown}: here {one:?}, there {other:?}"));
                }
            }
            (Some(_), None) => found.push(format!("{shown}: only here")),
            // The archive has no entry for the folder.
            (None, Some(other)) if other.kind == FileKind::Folder => {}
            (None, _) => found.push(format!("{shown}: only there")),
        }
    }
    found
}

/// Compares results, and remembers the rows of [`EXPLAINED`] that were needed.
#[derive(Default)]
struct Comparison {
    used: BTreeSet<usize>,
    unexplained: Vec<String>,
}

impl Comparison {
    fn compare(&mut self, number: u64, archive: &Archive, program: &str, ours: &Outcome, theirs: &Outcome) {
        let differences = differences(ours, theirs);
        if differences.is_empty() {
            return;
        }
        let rows = EXPLAINED.iter().enumerate();
        let explains = |(_, (whose, oddity, _)): &(usize, &(&str, &str, &str))| {
            [program, BOTH].contains(whose) && archive.oddities.contains(oddity)
        };
        let rows: Vec<usize> = rows.filter(explains).map(|(index, _)| index).collect();
        if rows.is_empty() {
            let oddities = &archive.oddities;
            self.unexplained.push(format!("archive {number} {oddities:?}, {program}: {differences:#?}"));
        }
        // A row is needed by an archive that has no other oddity.
        if archive.oddities.len() == 1 {
            self.used.extend(rows);
        }
    }
}

#[test]
fn every_difference_from_gnu_tar_and_python_is_explained() {
    let count = lab::number("ODD_TARS", 3 * oddities().len() as u64);
    let first = lab::number("SEED", 1).saturating_sub(1) * 1_000_000 * oddities().len() as u64;
    let folder = tempfile::tempdir().unwrap();
    let version = Command::new("tar").arg("--version").output();
    let has_gnu = version.is_ok_and(|output| output.stdout.starts_with(b"tar (GNU tar)"));
    if !has_gnu {
        skipped("tars are not compared with GNU tar, which is not here");
    }
    let mut comparison = Comparison::default();
    for from in (0..count).step_by(ARCHIVES_PER_STORE as usize) {
        let importer = Importer::new();
        let numbers: Vec<u64> =
            (from..count.min(from + ARCHIVES_PER_STORE)).map(|number| first + number).collect();
        let tars: Vec<PathBuf> =
            numbers.iter().map(|number| folder.path().join(format!("{number}.tar"))).collect();
        let archives: Vec<Archive> = numbers.iter().map(|&number| archive(number)).collect();
        archives.iter().zip(&tars).for_each(|(archive, tar)| fs::write(tar, &archive.bytes).unwrap());
        let python = python(&tars);
        if python.is_none() {
            skipped("tars are not compared with Python, which is not here");
        }
        for (index, (&number, archive)) in numbers.iter().zip(&archives).enumerate() {
            let (ours, _) = importer.import(&archive.bytes, &format!("{number}/"));
            if has_gnu {
                let theirs = gnu(&tars[index], &folder.path().join("out"));
                comparison.compare(number, archive, GNU, &ours, &theirs);
            }
            if let Some(python) = &python {
                comparison.compare(number, archive, PYTHON, &ours, &python[index]);
            }
        }
        tars.iter().for_each(|tar| fs::remove_file(tar).unwrap());
    }
    let unexplained = &comparison.unexplained;
    assert!(unexplained.is_empty(), "{} differences:\n{}", unexplained.len(), unexplained.join("\n"));
    if count >= ALL_ROWS_FROM && has_gnu {
        let unused = EXPLAINED.iter().enumerate().filter(|(index, _)| !comparison.used.contains(index));
        let unused: Vec<_> = unused.map(|(_, row)| row).collect();
        assert!(unused.is_empty(), "no archive needs {unused:?}");
    }
}

/// A hard link became a copy of an older object of the store with the name of its target.
#[test]
fn a_hard_link_never_takes_the_value_of_an_older_object() {
    let importer = Importer::new();
    for (number, oddity) in
        oddities().into_iter().enumerate().filter(|(_, oddity)| oddity.starts_with("hard link"))
    {
        let prefix = format!("{number}/");
        // The last one is the link itself.
        for target in ["0a", "0none", "0fifo", "0s", "0d", "0l", "0h"] {
            importer.put(&format!("{prefix}{target}"), b"an older object");
        }
        let (outcome, report) = importer.import(&archive(number as u64).bytes, &prefix);
        if outcome.is_clean {
            for link in [&b"0h"[..], b"0i"] {
                let node = outcome.entries.get(link);
                assert!(node.is_none_or(|node| node.content != b"an older object"), "{oddity}: {node:?}");
            }
        }
        let stores =
            ["hard link", "hard link to a hard link", "hard link to a symlink", "hard link with content"];
        assert_eq!(report.counts().failed == 0, stores.contains(&oddity), "{oddity}");
    }
}
