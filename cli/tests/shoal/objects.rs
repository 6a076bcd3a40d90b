//! Single objects: put, get, ls, rm, stat, cp.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;

use crate::harness::{Server, run_with};

#[test]
fn put_get_and_ranges() {
    let server = Server::start();
    let digits = b"0123456789";
    server.put("k", digits, &[]);
    assert_eq!(server.ok(&["get", "k"]), digits);
    for (range, bytes) in
        [("0-0", "0"), ("2-4", "234"), ("7-", "789"), ("-3", "789"), ("8-99", "89"), ("-99", "0123456789")]
    {
        assert_eq!(server.ok(&["get", "k", "--range", range]), bytes.as_bytes(), "{range}");
    }
    for range in ["10-", "10-20"] {
        let done = server.run(&["get", "k", "--range", range]);
        assert!(done.code == 1 && done.stderr.contains("10 bytes"), "{}", done.stderr);
    }

    let file = server.folder.path().join("value");
    server.ok(&[OsStr::new("get"), OsStr::new("k"), OsStr::new("-o"), file.as_os_str()]);
    assert_eq!(fs::read(&file).unwrap(), digits);
    let missing = server.folder.path().join("none");
    let done = server.run(&[OsStr::new("get"), OsStr::new("nix"), OsStr::new("-o"), missing.as_os_str()]);
    assert!(
        done.code == 3
            && done.stderr.contains("cannot get \"nix\" in bucket \"default\": there is no such object"),
        "{}",
        done.stderr
    );
    assert!(!missing.exists());
    server.ok(&[OsStr::new("put"), OsStr::new("copy"), file.as_os_str()]);
    assert_eq!(server.ok(&["get", "copy"]), digits);
}

#[test]
fn large_values_and_odd_keys() {
    let server = Server::start();
    let large: Vec<u8> = (0..5_u32 << 20).map(|index| (index ^ (index >> 9)) as u8).collect();
    for bytes in [0, 1 << 20, (1 << 20) + 1, 5 << 20] {
        server.put("large", &large[..bytes], &[]);
        assert!(server.ok(&["get", "large"]) == large[..bytes], "{bytes} bytes");
    }
    assert!(server.ok(&["get", "large", "--range", "3000000-4999999"]) == large[3_000_000..5_000_000]);
    server.ok(&["cp", "large", "larger"]);
    assert!(server.ok(&["get", "larger"]) == large);

    let odd = OsStr::from_bytes(b"a\xff\n b");
    server.put(odd, b"odd", &[]);
    assert_eq!(server.ok(&[OsStr::new("get"), odd]), b"odd");
    let listed = server.run(&["ls", "a", "--json"]).json_lines();
    assert_eq!(listed[0]["key_hex"], "61ff0a2062");
    let done = server.run(&["put", &"k".repeat(1025), "/dev/null"]);
    assert!(done.code == 1 && done.stderr.contains("1024"), "{}", done.stderr);
}

#[test]
fn conditions() {
    let server = Server::start();
    let put = |options: &[&str]| run_with(server.command(&[&["put", "k", "-"], options].concat()), b"x").code;
    assert_eq!(put(&["--if-exists"]), 4);
    assert_eq!(put(&["--if-absent"]), 0);
    assert_eq!(put(&["--if-absent"]), 4);
    let version = server.run(&["stat", "k", "--json"]).json()["version"].to_string();
    assert_eq!(put(&["--if-version", "99999999"]), 4);
    assert_eq!(put(&["--if-version", &version]), 0);
    let done = server.run(&["rm", "k", "--if-version", &version]);
    assert!(done.code == 4 && done.stderr.contains("the condition does not hold"), "{}", done.stderr);
    assert_eq!(server.run(&["cp", "k", "k2", "--if-exists"]).code, 4);
    assert_eq!(server.run(&["rm", "k", "--if-exists"]).code, 0);
    assert_eq!(server.run(&["rm", "k", "--if-exists"]).code, 4);
    assert_eq!(server.run(&["rm", "k"]).code, 0, "deleting what does not exist is no failure");
    assert!(server.keys().is_empty());
}

#[test]
fn metadata_is_kept_shown_and_copied() {
    let server = Server::start();
    server.put("page", b"<p>", &["--content-type", "text/html", "--meta", "author=ann", "--meta", "empty="]);
    server.ok(&["cp", "page", "copy", "--to-bucket", "other"]);
    let original = server.run(&["stat", "page", "--json"]).json();
    let copy = server.run(&["stat", "copy", "--json", "--bucket", "other"]).json();
    assert_eq!(original["content_type"], "text/html");
    assert_eq!(original["meta"][0]["name"], "author");
    assert_eq!(original["meta"][1]["value"], "");
    for field in ["bytes", "modified_ns", "content_type", "meta"] {
        assert_eq!(original[field], copy[field], "{field}");
    }
    let shown = server.ok(&["stat", "page"]);
    assert!(String::from_utf8(shown).unwrap().contains("author=ann"));
    assert_eq!(server.run(&["stat", "page", "--bucket", "other"]).code, 3);
    let store = server.run(&["stat", "--json"]);
    assert!(store.code == 0 && store.json()["objects"].is_u64());
    assert_eq!(server.run(&["stat"]).code, 0);
}

#[test]
fn listing_and_deleting_by_prefix() {
    let server = Server::start();
    let tree = server.folder.path().join("tree");
    fs::create_dir_all(tree.join("many")).unwrap();
    for index in 0..2100 {
        fs::write(tree.join(format!("many/{index:04}")), b"").unwrap();
    }
    server.ok(&[OsStr::new("import"), tree.as_os_str()]);
    for key in ["a", "b/1", "b/2", "b/c/3", "c"] {
        server.put(key, b"12345", &[]);
    }
    assert_eq!(String::from_utf8(server.ok(&["ls", "b/"])).unwrap(), "b/1\nb/2\nb/c/3\n");
    assert_eq!(server.keys().len(), 2106, "more than two pages, and the folder's own object");
    assert!(server.keys().is_sorted());
    let long = String::from_utf8(server.ok(&["ls", "a", "--long"])).unwrap();
    assert!(long.contains("     5  20") && long.ends_with("  a\n"), "{long}");
    let json = server.run(&["ls", "b/", "--json"]).json_lines();
    assert_eq!((json.len(), json[2]["key"].as_str(), json[0]["bytes"].as_u64()), (3, Some("b/c/3"), Some(5)));
    server.ok(&["rm", "a", "c"]);
    assert_eq!(String::from_utf8(server.ok(&["rm", "--prefix", "many/"])).unwrap(), "2,101 deleted\n");
    assert_eq!(server.keys(), ["b/1", "b/2", "b/c/3"]);
}

#[test]
fn delimiters_roll_keys_up() {
    let server = Server::start();
    for key in ["a", "b/1", "b/2", "b/c/3", "c", "d/x"] {
        server.put(key, b"", &[]);
    }
    assert_eq!(String::from_utf8(server.ok(&["ls", "--delimiter", "/"])).unwrap(), "a\nb/\nc\nd/\n");
    assert_eq!(String::from_utf8(server.ok(&["ls", "b/", "--delimiter", "/"])).unwrap(), "b/1\nb/2\nb/c/\n");
    let json = server.run(&["ls", "-d", "/", "--json"]).json_lines();
    assert_eq!((json[1]["prefix"].as_str(), json[2]["key"].as_str()), (Some("b/"), Some("c")));
}
