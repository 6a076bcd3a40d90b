//! `shoal format`, and that no other command makes a store of existing content: a block device, or a file.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::harness::{Done, command, run, run_with, serve};
use crate::machine::LoopDevice;

const MIB: u64 = 1 << 20;
const BYTES: u64 = 128 * MIB;

/// A file of zeros, which takes no space.
fn blank(folder: &Path) -> PathBuf {
    let path = folder.join("data");
    File::create(&path).unwrap().set_len(BYTES).unwrap();
    path
}

fn write(path: &Path, at: u64, bytes: &[u8]) {
    OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, at).unwrap();
}

fn serve_once(data: &str, options: &[&str]) -> Done {
    let mut command = command(&["serve", "--listen", "127.0.0.1:0", "--size", "64M", "--data", data]);
    command.args(options);
    run_with(command, b"")
}

/// A command that is refused, in one line with this text.
fn refused(done: &Done, says: &str) {
    assert_eq!(done.code, 1, "{}", done.stderr);
    let last = done.stderr.lines().last().unwrap_or_default();
    assert!(last.contains(says), "{says:?} is missing in {last:?}");
}

/// A server runs on it, and keeps its objects over a restart.
fn serves(data: &Path) {
    for round in 0..2 {
        let (mut child, url) = serve(data, &["--must-exist"]);
        let done = run(&["stat", "--server", &url]);
        assert_eq!(done.code, 0, "{}", done.stderr);
        if round == 0 {
            let put = run_with(command(&["put", "greeting", "-", "--server", &url]), b"hello");
            assert_eq!(put.code, 0, "{}", put.stderr);
        } else {
            assert_eq!(run(&["get", "greeting", "--server", &url]).text(), "hello");
        }
        child.stop();
    }
}

/// Found from outside: `serve` looked at four blocks of a device and formatted it.
#[test]
fn a_block_device_is_formatted_by_format_alone() {
    let folder = tempfile::tempdir().unwrap();
    let backing = blank(folder.path());
    let Some(device) = LoopDevice::over(&backing, &[]) else { return };
    let (device, tree) = (&device.0[..], folder.path().join("tree"));
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("file"), "content").unwrap();
    let format = format!("shoal format {device}");
    refused(&serve_once(device, &[]), &format);
    refused(&serve_once(device, &["--must-exist"]), &format);
    refused(&run_with(command(&["put", "key", "-", "--data", device]), b"value"), &format);
    refused(&run(&["import", tree.to_str().unwrap(), "--data", device]), &format);
    refused(&run(&["cp", "key", "other", "--data", device]), &format);
    refused(&run(&["ls", "--data", device]), &format);
    refused(&run(&["check", "--repair", "--data", device]), "no store");
    assert!(fs::read(&backing).unwrap().iter().all(|&byte| byte == 0), "nothing was written");

    let done = run(&["format", "--if-blank", device, "--json"]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert_eq!((&done.json()["formatted"], &done.json()["bytes"]), (&true.into(), &BYTES.into()));
    serves(Path::new(device));
    let done = run(&["format", "--if-blank", device]);
    assert!(done.code == 0 && done.text().contains("nothing was changed"), "{}", done.stderr);
    refused(&run(&["format", device]), "a Shoal store already");
    assert_eq!(run(&["get", "greeting", "--data", device]).text(), "hello", "it is the same store still");

    // It is in use: a Shoal server has it.
    let (mut child, _) = serve(Path::new(device), &[]);
    for arguments in [&["format", device][..], &["format", "--if-blank", device]] {
        refused(&run(arguments), "in use");
    }
    refused(&run(&["format", &format!("--force={device}"), device]), "in use");
    child.stop();
    assert_eq!(run(&["format", &format!("--force={device}"), device]).code, 0);
    assert_eq!(run(&["get", "greeting", "--data", device]).code, 3, "a new store is empty");
}

/// Each of them was formatted over. A file takes the path of a device, and needs no rights.
#[test]
fn existing_contents_are_named_and_kept() {
    let folder = tempfile::tempdir().unwrap();
    // A store of ours without its superblocks and the blocks between them.
    let store = blank(folder.path());
    assert_eq!(run(&["format", store.to_str().unwrap()]).code, 0);
    serves(&store);
    let mut ours = fs::read(&store).unwrap();
    ours[..34 * 4096].fill(0);
    fs::remove_file(&store).unwrap();
    let cases: [(&str, u64, Vec<u8>); 4] = [
        ("a btrfs file system", 0x1_0040, b"_BHRfS_M".to_vec()),
        ("it holds data", 2 * MIB, vec![7; 70_000]),
        ("it holds data (the first at byte 8192)", 8_192, b"Dear Ann,".to_vec()),
        ("it holds data", 0, ours),
    ];
    for (what, at, bytes) in cases {
        let data = blank(folder.path());
        write(&data, at, &bytes);
        let before = fs::read(&data).unwrap();
        let path = data.to_str().unwrap();
        for arguments in [&["format", path][..], &["format", "--if-blank", path]] {
            refused(&run(arguments), what);
            refused(&run(arguments), &format!("shoal format --force={path} {path}"));
        }
        refused(&serve_once(path, &[]), &format!("shoal format --force={path} {path}"));
        for wrong in ["--force", "--force=data", "--force="] {
            assert_eq!(run(&["format", wrong, path]).code, 2, "{wrong}");
        }
        assert_eq!(run(&["format", "--if-blank", &format!("--force={path}"), path]).code, 2);
        assert!(fs::read(&data).unwrap() == before, "{what}: it was changed");
        let done = run(&["format", &format!("--force={path}"), path, "--size", "100M"]);
        assert_eq!(done.code, 0, "{}", done.stderr);
        serves(&data);
        fs::remove_file(data).unwrap();
    }
}

#[test]
fn a_file_without_a_store_is_refused_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let path = data.to_str().unwrap();
    refused(&serve_once(path, &["--must-exist"]), "there is no store");
    refused(&run(&["get", "key", "--data", path]), "there is no store");
    assert!(!data.exists(), "nothing was created");

    File::create(&data).unwrap();
    for done in [serve_once(path, &[]), run_with(command(&["put", "key", "-", "--data", path]), b"value")] {
        refused(&done, "0 bytes");
        refused(&done, &format!("shoal format {path}"));
    }
    assert_eq!(fs::metadata(&data).unwrap().len(), 0);
    assert_eq!(run(&["format", path, "--size", "64M"]).code, 0);
    serves(&data);
    fs::remove_file(&data).unwrap();

    let data = blank(folder.path());
    refused(&serve_once(path, &[]), &format!("it is blank: `shoal format {path}`"));
    write(&data, BYTES - 1, &[1]);
    refused(&serve_once(path, &[]), "restore it from your backup");
}

#[test]
fn a_missing_file_is_created_and_a_missing_device_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let path = data.to_str().unwrap();
    // A start that was cut short left this.
    fs::write(folder.path().join("data.unfinished"), vec![0; 300_000]).unwrap();
    let done = run(&["format", path, "--size", "96M", "--tablets", "3", "--json"]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let report = done.json();
    assert_eq!((&report["bytes"], &report["tablets"]), (&(96 * MIB).into(), &3.into()), "{report}");
    serves(&data);
    // A name that no device has is not the name of a file in the memory under /dev.
    for arguments in [
        &["format", "/dev/shoal-no-device"][..],
        &["serve", "--listen", "127.0.0.1:0", "--data", "/dev/shoal-no-device"],
    ] {
        refused(&run(arguments), "there is no device");
    }
    assert!(!Path::new("/dev/shoal-no-device").exists());
}

/// Text, and data after the last whole block, were destroyed.
#[test]
fn a_file_with_one_byte_in_it_is_no_blank_file() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let path = data.to_str().unwrap();
    let random = shoal_testkit::bytes::random(4_095, 7);
    let cases: [Vec<u8>; 4] = [
        b"Dear Ann,\n.".to_vec(),
        [vec![0; 4_096], random].concat(),
        [vec![0; 200_000], b"word".to_vec()].concat(),
        [vec![0; 40_960], vec![1]].concat(),
    ];
    for bytes in cases {
        fs::write(&data, &bytes).unwrap();
        for arguments in
            [&["format", path][..], &["format", "--if-blank", path], &["format", path, "--size", "64M"]]
        {
            refused(&run(arguments), "it is not blank");
        }
        let done = [
            serve_once(path, &[]),
            run_with(command(&["put", "key", "-", "--data", path]), b"value"),
            run(&["ls", "--data", path]),
        ];
        done.iter().for_each(|done| refused(done, "restore it from your backup"));
        assert!(fs::read(&data).unwrap() == bytes, "{} bytes were changed", bytes.len());
    }
    // Zeros of any length are blank.
    fs::write(&data, vec![0; 200_001]).unwrap();
    assert_eq!(run(&["format", path, "--size", "64M"]).code, 0);
    serves(&data);
}

/// Another program's file was deleted, because its name was that of a store that is being made.
#[test]
fn a_foreign_file_under_the_temporary_name_stays() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (data, new, backup, tar) = (at("data"), at("new"), at("backup"), at("tar"));
    assert_eq!(run_with(command(&["put", "key", "-", "--data", &data]), b"value").code, 0);
    assert_eq!(run(&["backup", &backup, "--data", &data]).code, 0);
    let used = fs::read(&data).unwrap();
    for bytes in [b"my notes".to_vec(), vec![1; 300_000], used] {
        for place in [&new, &tar] {
            fs::write(format!("{place}.unfinished"), &bytes).unwrap();
        }
        let done = [
            run(&["format", &new, "--size", "64M"]),
            serve_once(&new, &[]),
            run_with(command(&["put", "key", "-", "--data", &new]), b"value"),
            run(&["restore", "--data", &new, &backup]),
            run(&["backup", &new, "--data", &data]),
            run(&["export", "--tar", &tar, "--data", &data]),
        ];
        for (number, done) in done.iter().enumerate() {
            assert_eq!(done.code, 1, "{number}: {}", done.stderr);
            assert!(
                done.stderr.contains(".unfinished") && done.stderr.contains("elsewhere"),
                "{number}: {}",
                done.stderr
            );
        }
        assert!(!Path::new(&new).exists() && !Path::new(&tar).exists());
        for place in [&new, &tar] {
            assert!(fs::read(format!("{place}.unfinished")).unwrap() == bytes, "it was changed");
        }
    }
    // The file of an interrupted run is taken over: a restore, as it is killed.
    fs::remove_file(format!("{new}.unfinished")).unwrap();
    let big = shoal_testkit::bytes::random(30 << 20, 1);
    assert_eq!(run_with(command(&["put", "big", "-", "--data", &data]), &big).code, 0);
    assert_eq!(run(&["backup", &backup, "--data", &data, "--force"]).code, 0);
    let mut restore = command(&["restore", "--data", &new, "-"]);
    let mut child = restore.stdin(std::process::Stdio::piped()).spawn().unwrap();
    let bytes = fs::read(&backup).unwrap();
    std::io::Write::write_all(child.stdin.as_mut().unwrap(), &bytes[..20 << 20]).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(Path::new(&format!("{new}.unfinished")).exists());
    let done = run(&["restore", "--data", &new, &backup]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert_eq!(run(&["get", "big", "--data", &new]).stdout.len(), big.len());
}
