//! The last backup, as a user sees it: from the server, from its closed file, and after a kill.

use rustix::process::Signal;

use crate::harness::{Server, run, serve, signal};

#[test]
fn last_backup_is_reported_after_kill() {
    let mut server = Server::start();
    server.put("a", b"1", &[]);
    let told = |done: crate::harness::Done| {
        let line = done
            .text()
            .lines()
            .find_map(|line| line.strip_prefix("last backup").map(str::trim).map(String::from));
        line.unwrap()
    };
    assert_eq!(told(server.run(&["stat"])), "none");
    assert!(server.run(&["stat", "--json"]).json()["last_backup"].is_null());
    let folder = tempfile::tempdir().unwrap();
    let (dest, copy) = (folder.path().join("one.shoal"), folder.path().join("two.shoal"));
    let backup = server.run(&["backup", dest.to_str().unwrap(), "--json"]).json();
    let is_told = |told: String| {
        let version = format!("of version {}", backup["version"]);
        assert!(
            told.starts_with(&backup["taken"].as_str().unwrap()[..19]) && told.ends_with(&version),
            "{told}"
        );
    };
    is_told(told(server.run(&["stat"])));
    let all = server.run(&["stat", "--all"]);
    assert!(
        all.text().lines().any(|line| line.starts_with("backup.taken ") && line.ends_with(" s")),
        "{}",
        all.text()
    );

    signal(&server.child, Signal::KILL);
    server.child.wait().unwrap();
    let data = server.folder.path().join("data");
    // A backup of the closed file writes nothing to it, so it is not noted.
    let closed = ["--data", data.to_str().unwrap()];
    let done = run(&[&["backup", copy.to_str().unwrap()][..], &closed].concat());
    assert_eq!(done.code, 0, "{}", done.stderr);
    is_told(told(run(&[&["stat"][..], &closed].concat())));
    (server.child, server.url) = serve(&data, &[]);
    is_told(told(server.run(&["stat"])));
    let json = server.run(&["stat", "--json"]).json();
    assert_eq!((&json["last_backup"]["version"], &json["objects"]), (&backup["version"], &1.into()));

    // A restored store has had no backup yet.
    let new = folder.path().join("new");
    let words = ["restore", "--data", new.to_str().unwrap(), dest.to_str().unwrap(), "--size", "64M"];
    assert_eq!(run(&words).code, 0);
    assert_eq!(told(run(&["stat", "--data", new.to_str().unwrap()])), "none");
}
