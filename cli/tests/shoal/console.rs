//! The console of a server: its address, its keys, and its objects beside those of the other frontends.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use rcgen::ExtendedKeyUsagePurpose;
use serde_json::{Value, json};
use shoal_testkit::certificates::{Identity, RootCertificate};
use shoal_testkit::wait::eventually;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

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
    exchange_on(TcpStream::connect(address).unwrap(), address, (method, path), headers, body)
}

fn exchange_on(
    mut stream: impl Read + Write,
    address: &str,
    (method, path): (&str, &str),
    headers: &str,
    body: &str,
) -> Answer {
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

/// A client that trusts one root.
struct Trusting(Arc<ClientConfig>);

impl Trusting {
    fn new(root: &RootCertificate) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(root.der().clone()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap();
        Self(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
    }

    fn dial(&self, address: &str) -> StreamOwned<ClientConnection, TcpStream> {
        let name = ServerName::try_from("localhost").unwrap();
        let session = ClientConnection::new(Arc::clone(&self.0), name).unwrap();
        StreamOwned::new(session, TcpStream::connect(address).unwrap())
    }

    fn ask(&self, address: &str, request: (&str, &str), headers: &str, body: &str) -> Answer {
        exchange_on(self.dial(address), address, request, headers, body)
    }

    /// The names of the warnings in the newest figures.
    fn warnings(&self, address: &str, cookie: &str) -> Vec<String> {
        let mut stream = self.dial(address);
        let head = format!("GET /api/live HTTP/1.1\r\nhost: {address}\r\ncookie: {cookie}\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let (mut text, mut piece) = (String::new(), [0; 4_096]);
        while !text.contains("\n\n") {
            let count = stream.read(&mut piece).unwrap();
            assert!(count > 0, "{text}");
            text.push_str(str::from_utf8(&piece[..count]).unwrap());
        }
        let event = text.split_once("data: ").unwrap().1.split_once("\n\n").unwrap().0;
        let sample: Value = serde_json::from_str(event).unwrap();
        let warnings = sample["health"]["warnings"].as_array().unwrap();
        warnings.iter().map(|warning| warning["id"].as_str().unwrap().to_owned()).collect()
    }
}

/// A certificate for `localhost` that ends after `days` days.
fn certificate(root: &RootCertificate, days: u64) -> Identity {
    root.sign("localhost", |params| {
        params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        params.not_after = (std::time::SystemTime::now() + Duration::from_secs(days * 86_400)).into();
    })
}

#[test]
fn the_console_over_tls_has_secure_sessions_and_warns_of_the_end_of_its_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| text_of(&folder.path().join(name)).to_owned();
    let (root, file) = (RootCertificate::new(), path("shoal.keys"));
    certificate(&root, 10).write_to(folder.path()).unwrap();
    let (id, secret) = key_of(&run(&["key", "create", "--allow", "admin *", "--json", "--key-file", &file]));
    let mut serve = command(&["serve", "--listen", "127.0.0.1:0", "--size", "256M", "--cache", "16M"]);
    serve.args(["--console", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--key-file", &file]);
    serve.args(["--tls-cert", &path("cert.pem"), "--tls-key", &path("key.pem"), "--data", &path("data")]);
    let mut server = Process::start(serve);
    let [_, console, metrics] =
        ["gRPC  https://", "Console https://", "Metrics http://"].map(|start| server.says(start));
    let metrics = metrics.strip_suffix("/metrics").unwrap();
    let client = Trusting::new(&root);
    let pages = client.ask(&console, ("GET", "/"), "", "");
    assert!(pages.status == 200 && pages.body.contains("<script"), "{}", pages.body);
    assert_eq!(client.ask(&console, ("GET", "/api/session"), "", "").status, 401);
    let credentials = json!({ "id": id, "secret": secret }).to_string();
    let signed_in =
        client.ask(&console, ("POST", "/api/session"), "content-type: application/json\r\n", &credentials);
    let cookie = signed_in.head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap();
    assert!(cookie.starts_with("__Host-shoal_session=") && cookie.ends_with("; Secure"), "{cookie}");
    let cookie = cookie.split(';').next().unwrap();
    let session = client.ask(&console, ("GET", "/api/session"), &format!("cookie: {cookie}\r\n"), "");
    assert_eq!(session.field("identity"), format!("the key {id}"));
    // Another root, and plain text.
    let head = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n";
    assert!(Trusting::new(&RootCertificate::new()).dial(&console).write_all(head).is_err());
    let mut plain = TcpStream::connect(&console).unwrap();
    plain.write_all(head).unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP/"), "{}", String::from_utf8_lossy(&answer));

    assert_eq!(client.warnings(&console, cookie), ["certificate_expires"]);
    let end_s = || {
        let text = exchange(metrics, "GET", "/metrics", "", "").body;
        let line = text.lines().find_map(|line| line.strip_prefix("shoal_tls_certificate_expires_seconds "));
        line.unwrap().parse::<f64>().unwrap()
    };
    let before = end_s();
    certificate(&root, 90).write_to(folder.path()).unwrap();
    eventually("the new certificate is in force", || end_s() > before + 79.0 * 86_400.0);
    eventually("the warning goes", || client.warnings(&console, cookie).is_empty());
    server.stop();
}
