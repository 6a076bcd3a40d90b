//! `shoal check`: a healthy store passes, damage is named with its object and its place, repair leaves a store that works.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::harness::{Done, Server, check, command, run, run_with, serve};

/// A store that no server has open: a hundred small objects, and a larger one that can be found in the file.
fn stopped_store(server: &mut Server) -> PathBuf {
    let tree = server.folder.path().join("tree");
    fs::create_dir(&tree).unwrap();
    for index in 0..100 {
        fs::write(tree.join(index.to_string()), vec![index; 300 + usize::from(index) * 90]).unwrap();
    }
    server.ok(&["import", tree.to_str().unwrap(), "--prefix", "small/"]);
    server.put("large", &b"0123456789abcdef".repeat(12_000), &[]);
    server.child.stop();
    server.folder.path().join("data")
}

/// Flips a bit in the middle of the large object's value.
fn damage(data: &Path) {
    let bytes = fs::read(data).unwrap();
    let cell = b"0123456789abcdef".repeat(200);
    let at = bytes.windows(cell.len()).position(|window| window == cell).unwrap();
    let file = OpenOptions::new().write(true).open(data).unwrap();
    file.write_all_at(b"X", at as u64 + 70_000).unwrap();
}

#[test]
fn a_healthy_store_passes_and_is_not_changed() {
    let mut server = Server::start();
    let data = server.folder.path().join("data");
    let done = check(&data, &[]);
    assert_eq!(done.code, 1);
    assert!(done.stderr.contains("in use"), "a server has it: {}", done.stderr);

    let data = stopped_store(&mut server);
    let before = fs::read(&data).unwrap();
    let done = check(&data, &[]);
    assert_eq!(done.code, 0, "{}{}", done.text(), done.stderr);
    assert!(done.text().ends_with("\nno problems\n"), "{}", done.text());
    // Without a name it is the file that `shoal serve` makes.
    fs::hard_link(&data, data.with_file_name("shoal.data")).unwrap();
    let mut unnamed = command(&["check"]);
    unnamed.current_dir(data.parent().unwrap());
    assert_eq!(run_with(unnamed, b"").code, 0);
    let done = check(&data, &["--repair", "--json"]);
    let report = done.json();
    assert_eq!(done.code, 0, "{report}");
    assert_eq!((&report["clean"], &report["repaired"]), (&true.into(), &false.into()), "{report}");
    let objects = report["objects"].as_u64().unwrap() + report["log_records"].as_u64().unwrap();
    assert!(objects >= 101, "{report}");
    assert!(report["value_bytes"].as_u64().unwrap() > 600_000, "{report}");
    assert!(fs::read(&data).unwrap() == before, "checking writes nothing");
}

#[test]
fn damage_is_reported_and_rest_is_served() {
    let mut server = Server::start();
    let data = stopped_store(&mut server);
    damage(&data);
    let done = check(&data, &[]);
    assert_eq!(done.code, 1, "{}", done.text());
    let problem = done.text().lines().find(|line| line.starts_with("problem at block ")).unwrap();
    assert!(problem.contains("object default/large"), "{problem}");
    assert!(done.text().ends_with("1 problem found\n"), "{}", done.text());

    let done = check(&data, &["--repair", "--json"]);
    let report = done.json();
    assert_eq!(done.code, 1, "bytes that are lost cannot be repaired: {report}");
    assert_eq!((&report["clean"], &report["repaired"]), (&false.into(), &true.into()), "{report}");
    assert_eq!(report["problems"][0]["block"], report["left"][0]["block"], "{report}");
    assert_eq!(report["problems_left"], 1, "{report}");

    let path = data.to_str().unwrap();
    let done = run(&["get", "small/7", "--data", path]);
    assert_eq!((done.code, done.stdout), (0, vec![7; 930]));
    let done = run(&["get", "large", "--data", path]);
    assert_eq!(done.code, 1);
    assert!(done.stderr.contains("large"), "{}", done.stderr);
    // The object can be replaced: the stop in order applies that, and the tree lets go of the damaged value.
    let done = run_with(command(&["put", "large", "-", "--data", path]), b"new");
    assert_eq!(done.code, 0, "{}", done.stderr);
    let done = check(&data, &["--repair"]);
    assert_eq!(done.code, 0, "{}", done.text());
    assert!(done.text().ends_with("no problems\n"), "{}", done.text());
    assert_eq!(run(&["get", "large", "--data", path]).stdout, b"new");
}

#[test]
fn foreign_file_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("letters");
    fs::write(&path, "Dear Ann,\n".repeat(10_000)).unwrap();
    for options in [&[][..], &["--repair"]] {
        let done = check(&path, options);
        assert_eq!(done.code, 1);
        assert_eq!(done.stderr.lines().count(), 1, "{}", done.stderr);
    }
    assert_eq!(fs::read(&path).unwrap(), "Dear Ann,\n".repeat(10_000).as_bytes());
}

/// Symptom: "the device holds no store: it is empty" for a file whose superblocks a mistake had zeroed: a user would
/// believe that, and format it.
#[test]
fn zeros_in_front_of_data_are_not_called_empty() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut");
    let mut bytes = vec![0; 4 << 20];
    bytes[3 << 20..].fill(b'x');
    fs::write(&path, &bytes).unwrap();
    for options in [&[][..], &["--repair"]] {
        let done = check(&path, options);
        assert_eq!(done.code, 1);
        assert!(!done.stderr.contains("empty"), "{}", done.stderr);
        assert!(done.stderr.contains("there are zeros, but"), "{}", done.stderr);
    }
    assert_eq!(fs::read(&path).unwrap(), bytes);
    fs::write(&path, vec![0; 4 << 20]).unwrap();
    let done = check(&path, &[]);
    assert!(done.code == 1 && done.stderr.contains("it is blank"), "{}", done.stderr);
}

/// A server that is killed, and a batch of its log that rots; the outcome of the repair.
fn repaired_with_losses() -> (Server, PathBuf, Done) {
    loop {
        let mut server = Server::start();
        server.put("kept", b"kept", &[]);
        server.put("marked", &b"a value in the log ".repeat(5), &[]);
        server.put("behind", b"behind", &[]);
        server.child.kill().unwrap();
        server.child.wait().unwrap();
        let data = server.folder.path().join("data");
        let bytes = fs::read(&data).unwrap();
        let cell = b"a value in the log ".repeat(5);
        let at = bytes.windows(cell.len()).position(|window| window == cell).unwrap();
        OpenOptions::new().write(true).open(&data).unwrap().write_all_at(b"X", at as u64).unwrap();
        let done = check(&data, &["--repair", "--json"]);
        let get = run(&["get", "marked", "--data", data.to_str().unwrap()]);
        // Otherwise a tree had taken the value over before the kill.
        if done.json()["problems_found"] != 0 && get.code == 3 {
            return (server, data, done);
        }
    }
}

#[test]
fn a_repair_with_losses_is_not_clean_until_acknowledged() {
    let (_server, data, done) = repaired_with_losses();
    let report = done.json();
    assert_eq!(
        (done.code, &report["clean"], &report["problems_left"]),
        (1, &false.into(), &0.into()),
        "{report}"
    );
    assert_eq!(
        (&report["losses"]["lost"], report["lost_records"].as_array().unwrap().len()),
        (&1.into(), 1),
        "{report}"
    );
    let path = data.to_str().unwrap();
    for key in ["kept", "behind"] {
        assert_eq!(run(&["get", key, "--data", path]).stdout, key.as_bytes());
    }
    // The loss is reported to every check, and to every server of it.
    let done = check(&data, &["--repair"]);
    assert!(
        done.code == 1 && done.text().contains("repaired with losses: 1 lost (objects, or records"),
        "{}",
        done.text()
    );
    let (mut child, url) = serve(&data, &[]);
    let figures = run(&["stat", "--json", "--server", &url]).text().to_owned();
    assert!(figures.contains("losses.lost"), "{figures}");
    child.stop();

    let done = check(&data, &["--acknowledge"]);
    assert!(
        done.code == 0 && done.text().contains("acknowledged: losses of earlier repairs"),
        "{}",
        done.text()
    );
    assert_eq!(check(&data, &[]).code, 0);
}
