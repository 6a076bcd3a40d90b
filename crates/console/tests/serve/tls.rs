//! The console over TLS, and at addresses that other machines reach.

use std::net::{SocketAddr, UdpSocket};

use shoal_console::{ConsoleOptions, ConsoleServer};
use shoal_frontend::{Credentials, Security, TlsPem, Tokens};
use shoal_storekit::in_time;
use shoal_testkit::certificates::{Identity, RootCertificate};
use shoal_testkit::skipped::skipped;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::dial::Dialer;
use crate::support::{Page, Running, Setup, TOKEN};

/// A console over TLS, and the root of all certificates.
struct Encrypted {
    running: Running,
    root: RootCertificate,
}

fn pem(root: &RootCertificate) -> TlsPem {
    let (certificate, key) = root.server().pem();
    TlsPem { certificates: certificate.into(), key: key.into(), ..TlsPem::default() }
}

impl Encrypted {
    fn start() -> Self {
        let root = RootCertificate::new();
        let tls = TlsPem { client_roots: Some(root.pem().into()), ..pem(&root) };
        Self { running: Running::with(Setup { tls: Some(tls), ..Setup::default() }), root }
    }

    async fn page(&self, identity: Option<&Identity>) -> Page {
        Page::open(Dialer::tls(self.running.address, &self.root, identity)).await
    }

    /// Gives the grants of a new key to the holder of the certificate `name`. Returns the id and secret of the key.
    fn key_of(&self, name: &str, grant: &str) -> (String, String) {
        let key = self.running.key(grant);
        let mut file = self.running.book.file.lock();
        file.entries.iter_mut().find(|entry| entry.id == key.0).unwrap().certificate = Some(name.to_owned());
        drop(file);
        self.running.book.enforce();
        key
    }
}

#[tokio::test]
async fn a_key_signs_in_over_tls() {
    let console = Encrypted::start();
    let (id, secret) = console.running.key("all *");
    let mut page = console.page(None).await;
    assert_eq!(page.get("/").await.status, 200);
    assert_eq!(page.get("/api/session").await.status, 401);
    let reply = page.sign_in(&id, &secret).await;
    let cookie = reply.header("set-cookie").unwrap();
    assert!(
        cookie.starts_with("__Host-shoal_session=")
            && cookie.ends_with("; HttpOnly; SameSite=Strict; Path=/; Secure"),
        "{cookie}"
    );
    assert_eq!(page.get("/api/session").await.field("identity"), format!("the key {id}"));
    assert_eq!(page.put("/s3/bkt", &[], b"").await.status, 200);
    let value = vec![b'v'; 3 << 20];
    assert_eq!(page.put("/s3/bkt/k", &[], &value).await.status, 200);
    assert!(page.again().await.get("/s3/bkt/k").await.body == value);
    // Another host of the domain can set a cookie of the name without the prefix.
    let mut other = page.again().await;
    other.cookie = other.cookie.replace("__Host-", "");
    assert_eq!(other.get("/api/session").await.status, 401);
    let out = page.send("DELETE", "/api/session", &[], b"").await;
    let cookie = out.header("set-cookie").unwrap();
    assert!(
        cookie.starts_with("__Host-shoal_session=;") && cookie.ends_with("; Max-Age=0; Secure"),
        "{cookie}"
    );
    assert_eq!(page.get("/api/session").await.status, 401);
    console.running.stop().await;
}

#[tokio::test]
async fn a_certificate_has_the_grants_of_its_key() {
    let console = Encrypted::start();
    let (owner, clerk) = (console.root.client("owner.example"), console.root.client("clerk.example"));
    console.key_of("owner.example", "all *");
    let (id, _) = console.key_of("clerk.example", "read bkt/in/*");
    let mut admin = console.page(Some(&owner)).await;
    admin.csrf = admin.get("/api/session").await.field("csrf");
    for (target, body) in [("/s3/bkt", ""), ("/s3/bkt/in/a", "v"), ("/s3/bkt/out", "v")] {
        assert_eq!(admin.put(target, &[], body.as_bytes()).await.status, 200, "{target}");
    }
    let mut page = console.page(Some(&clerk)).await;
    let session = page.get("/api/session").await;
    assert_eq!((session.status, session.field("identity")), (200, format!("the key {id}")));
    assert_eq!(page.get("/s3/bkt/in/a").await.text(), "v");
    assert_eq!(page.get("/s3/bkt/out").await.status, 403);
    // Nothing is changed without the word, which only pages of the console can read.
    assert_eq!(admin.again().await.put("/s3/bkt/b", &[], b"v").await.status, 200);
    admin.csrf.clear();
    assert_eq!(admin.put("/s3/bkt/b", &[], b"v").await.status, 403);
    page.csrf = session.field("csrf");
    assert_eq!(page.put("/s3/bkt/in/b", &[], b"v").await.status, 403);
    // A session is shown on purpose, and the certificate by each connection.
    assert_eq!(page.sign_in("", TOKEN).await.field("identity"), "the token with number 1");
    assert_eq!(page.get("/s3/bkt/out").await.status, 200);
    page.send("DELETE", "/api/session", &[], b"").await;
    assert_eq!(page.get("/api/session").await.field("identity"), format!("the key {id}"));
    // A certificate that no key names, and the one of a revoked key, have to sign in.
    let stranger = console.root.client("stranger.example");
    let mut other = console.page(Some(&stranger)).await;
    assert_eq!(other.get("/api/session").await.status, 401);
    assert_eq!(other.get("/s3/bkt/in/a").await.status, 401);
    console.running.book.file.lock().entries.retain(|entry| entry.id != id);
    console.running.book.enforce();
    assert_eq!(page.get("/api/session").await.status, 401);
    console.running.stop().await;
}

#[tokio::test]
async fn plain_text_gets_no_answer_at_a_port_of_tls() {
    let console = Encrypted::start();
    for request in
        ["GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]
    {
        let mut stream = Dialer::plain(console.running.address).dial().await;
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut seen = Vec::new();
        // An alert, or a reset because some bytes were not read.
        let _ = in_time("the end of the connection", stream.read_to_end(&mut seen)).await;
        assert!(seen.is_empty() || seen[0] == 0x15, "{}", seen.escape_ascii());
    }
    assert_eq!(console.page(None).await.get("/").await.status, 200);
    console.running.stop().await;
}

#[tokio::test]
async fn other_machines_need_tls_and_credentials() {
    let root = RootCertificate::new();
    let (local, everywhere) = ("127.0.0.1:0".parse().unwrap(), "0.0.0.0:0".parse().unwrap());
    let tokens = || Tokens::parse(TOKEN.as_bytes()).unwrap();
    let bind = |tls: Option<&TlsPem>, tokens, insecure, listen: SocketAddr, also: &[SocketAddr]| {
        let security = Security::new(Credentials::new(tls, tokens).unwrap());
        let listen_also = also.to_vec();
        ConsoleServer::bind(ConsoleOptions {
            listen,
            listen_also,
            insecure,
            security,
            ..ConsoleOptions::default()
        })
    };
    let tls = pem(&root);
    for (tls, tokens) in [(None, Tokens::default()), (Some(&tls), Tokens::default()), (None, tokens())] {
        for (listen, also) in [(everywhere, &[][..]), (local, &[everywhere])] {
            let error = bind(tls, tokens.clone(), false, listen, also).err().unwrap().to_string();
            for words in
                ["0.0.0.0", "authenticated over TLS", "--tls-cert", "--tls-key", "--key-file", "--insecure"]
            {
                assert!(error.contains(words), "{words}: {error}");
            }
        }
        assert!(bind(tls, tokens.clone(), false, local, &[]).is_ok());
        assert!(bind(tls, tokens, true, everywhere, &[]).is_ok());
    }
    assert!(bind(Some(&tls), tokens(), false, everywhere, &[]).is_ok());
}

/// Another site can point its name at an address of the machine, and no name at its own.
#[tokio::test]
async fn an_open_console_answers_to_addresses() {
    let running =
        Running::with(Setup { asks: false, listen: "0.0.0.0:0", insecure: true, ..Setup::default() });
    let port = running.address.port();
    for address in own_addresses() {
        let mut page = Page::open(Dialer::plain((address, port).into())).await;
        for host in [address.to_string(), format!("192.0.2.7:{port}"), format!("localhost:{port}")] {
            page.host = host;
            let session = page.get("/api/session").await;
            assert_eq!(session.field("identity"), "this machine", "{} by {address}", page.host);
            assert_eq!(page.get("/").await.status, 200);
        }
        for host in ["shoal.example", "192.0.2.7.shoal.example"] {
            page.host = format!("{host}:{port}");
            for target in ["/", "/api/session", "/s3/"] {
                assert_eq!(page.get(target).await.status, 421, "{host} {target}");
            }
        }
    }
    running.stop().await;
}

/// Credentials that are taken away while the server runs open it to this machine only.
#[tokio::test]
async fn a_console_without_credentials_stays_closed_to_other_machines() {
    let tls = pem(&RootCertificate::new());
    let running = Running::with(Setup { tls: Some(tls), listen: "0.0.0.0:0", ..Setup::default() });
    running.security.replace(Credentials::default());
    let port = running.address.port();
    for address in own_addresses() {
        let mut page = Page::open(Dialer::plain((address, port).into())).await;
        page.host = format!("localhost:{port}");
        let expected = if address.is_loopback() { 200 } else { 401 };
        assert_eq!(page.get("/api/session").await.status, expected, "{address}");
    }
    running.stop().await;
}

/// The address of loopback, and the one by which the machine reaches others if it has one. No packet is sent.
fn own_addresses() -> Vec<std::net::IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    let found = socket.connect("198.51.100.1:9").and_then(|()| socket.local_addr());
    let others = found.ok().map(|address| address.ip()).filter(|address| !address.is_loopback());
    let all: Vec<_> = std::iter::once([127, 0, 0, 1].into()).chain(others).collect();
    if all.len() == 1 {
        skipped("requests of other machines: this machine has no address but those of loopback");
    }
    all
}
