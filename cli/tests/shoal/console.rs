//! The console of a server: its address, its keys, and its objects beside those of the other frontends.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::credentials::key_of;
use crate::harness::{Process, command, run, text_of};

/// A page of the console.
struct Page {
    address: String,
    cookie: String,
    csrf: String,
}

/// The status, the head and the body of an answer.
struct Answer {
    status: u16,
    head: String,
    body: String,
}

fn exchange(address: &str, method: &str, path: &str, headers: &str, body: &str) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-length: {}\r\n{headers}\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    Answer { status: head[9..12].parse().unwrap(), head: head.to_owned(), body: body.to_owned() }
}

impl Page {
    /// A page that has signed in, if a key is given.
    fn open(address: &str, key: Option<(&str, &str)>) -> Self {
        let mut page = Self { address: address.to_owned(), cookie: String::new(), csrf: String::new() };
        let session = match key {
            Some((id, secret)) => page.post("/api/session", &json!({ "id": id, "secret": secret })),
            None => page.send("GET", "/api/session", ""),
        };
        assert_eq!(session.status, 200, "{}", session.body);
        let cookie = session.head.lines().find_map(|line| line.strip_prefix("set-cookie: "));
        page.cookie = cookie.unwrap_or_default().split(';').next().unwrap().to_owned();
        page.csrf =
            serde_json::from_str::<Value>(&session.body).unwrap()["csrf"].as_str().unwrap().to_owned();
        page
    }

    fn send(&self, method: &str, path: &str, body: &str) -> Answer {
        let Self { address, cookie, csrf } = self;
        let headers =
            format!("cookie: {cookie}\r\nx-shoal-csrf: {csrf}\r\ncontent-type: application/json\r\n");
        exchange(address, method, path, &headers, body)
    }

    fn post(&self, path: &str, document: &Value) -> Answer {
        self.send("POST", path, &document.to_string())
    }
}

impl Answer {
    fn field(&self, name: &str) -> String {
        let document: Value = serde_json::from_str(&self.body).unwrap();
        document[name].as_str().unwrap_or_else(|| panic!("{}", self.body)).to_owned()
    }
}

#[test]
fn keys_of_the_console_are_in_force_for_all_frontends_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let (file, token) = (folder.path().join("shoal.keys"), folder.path().join("token"));
    let (id, secret) =
        key_of(&run(&["key", "create", "--allow", "all *", "--json", "--key-file", text_of(&file)]));
    let mut serve = command(&["serve", "--listen", "127.0.0.1:0", "--size", "256M", "--cache", "16M"]);
    serve.args(["--s3", "127.0.0.1:0", "--console", "127.0.0.1:0", "--key-file", text_of(&file)]);
    serve.args(["--data", text_of(&folder.path().join("data"))]);
    let mut server = Process::start(serve);
    let [grpc, s3, console] = ["gRPC  ", "S3    http://", "Console http://"].map(|start| server.says(start));
    assert_eq!(exchange(&console, "GET", "/api/session", "", "").status, 401);
    let page = Page::open(&console, Some((&id, &secret)));
    assert_eq!(page.send("PUT", "/s3/photos", "").status, 200);
    assert_eq!(page.send("PUT", "/s3/photos/cat", "meow").status, 200);
    let wanted = json!({ "bucket": "photos", "key": "cat", "seconds": 60 });
    let url = page.post("/api/presign", &wanted).field("url");
    let target = url.strip_prefix(&format!("http://{s3}")).unwrap();
    let shared = exchange(&s3, "GET", target, "", "");
    assert_eq!((shared.status, &*shared.body), (200, "meow"));

    let new = json!({ "name": "reader", "grants": ["read,list photos"], "expires_ms": null });
    let made = page.post("/api/keys", &new);
    let reader = made.field("id");
    fs::write(&token, format!("{reader}.{}", made.field("secret"))).unwrap();
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
    let get =
        || run(&["get", "cat", "--bucket", "photos", "--server", &grpc, "--token-file", text_of(&token)]);
    assert_eq!(get().text(), "meow");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(run(&["key", "list", "--key-file", text_of(&file)]).text().contains(&reader));
    assert_eq!(page.send("DELETE", &format!("/api/keys/{reader}"), "").status, 204);
    assert_eq!(get().code, 1, "it is revoked");
    // The last key may go, too; its session goes with it.
    assert_eq!(page.send("DELETE", &format!("/api/keys/{id}"), "").status, 204);
    assert_eq!(page.send("GET", "/api/session", "").status, 401);
    assert_eq!(exchange(&s3, "GET", target, "", "").status, 403, "the URL was signed by it");
    server.stop();
}

/// Without credentials it has the key that the first start makes for S3, and its operations although S3 is off.
#[test]
fn the_console_of_one_machine_asks_for_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let start = |s3: &str| {
        let mut serve = command(&["serve", "--listen", "127.0.0.1:0", "--size", "256M", "--cache", "16M"]);
        serve.args(["--s3", s3, "--console", "127.0.0.1:0", "--data", text_of(&folder.path().join("data"))]);
        let mut server = Process::start(serve);
        server.says("gRPC  ");
        let s3 = (s3 != "off").then(|| server.says("S3    http://"));
        let console = server.says("Console http://");
        (server, s3, console)
    };
    let wanted = json!({ "bucket": "photos", "key": "cat", "seconds": 60 });
    let (mut server, s3, console) = start("127.0.0.1:0");
    let page = Page::open(&console, None);
    assert_eq!(page.send("PUT", "/s3/photos", "").status, 200);
    assert_eq!(page.send("PUT", "/s3/photos/cat", "meow").status, 200);
    assert_eq!(page.send("GET", "/api/keys", "").field("file"), text_of(&folder.path().join("shoal.keys")));
    let url = page.post("/api/presign", &wanted).field("url");
    let s3 = s3.unwrap();
    let shared = exchange(&s3, "GET", url.strip_prefix(&format!("http://{s3}")).unwrap(), "", "");
    assert_eq!((shared.status, &*shared.body), (200, "meow"));
    server.stop();
    let (mut server, _, console) = start("off");
    let page = Page::open(&console, None);
    assert_eq!(page.send("GET", "/s3/photos/cat", "").body, "meow");
    let refused = page.post("/api/presign", &wanted);
    assert!(refused.status == 409 && refused.field("error").contains("--s3"), "{}", refused.body);
    assert!(page.send("GET", "/api/keys", "").body.contains("\"file\":null"));
    assert_eq!(page.post("/api/keys", &json!({ "grants": ["read a"] })).status, 409);
    server.stop();
}

#[test]
fn the_address_of_the_console_is_refused_or_given_up() {
    let open = run(&["serve", "--console", "0.0.0.0:0"]);
    assert!(open.code == 2 && open.stderr.contains("authenticated over TLS"), "{}", open.stderr);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let named = run(&["serve", "--listen", "127.0.0.1:0", "--console", &address, "--data", text_of(&data)]);
    assert!(named.code == 1 && named.stderr.contains("--console names another address"), "{}", named.stderr);
    assert!(!data.exists());
    // Another program of this machine may have it: then it is taken as well.
    let _held = TcpListener::bind("127.0.0.1:7414");
    let mut serve = command(&["serve", "--listen", "127.0.0.1:0", "--size", "256M", "--cache", "16M"]);
    serve.args(["--data", text_of(&data)]).env_remove("SHOAL_CONSOLE").stderr(Stdio::piped());
    let mut server = Process::start(serve);
    server.says("gRPC  http://");
    let log = server.stop_and_read();
    assert!(log.contains("the console is off: another program listens on 127.0.0.1:7414"), "{log}");
}
