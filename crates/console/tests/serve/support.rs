//! A running console, and a client that behaves as a browser's page.

use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use shoal_base::ManualClock;
use shoal_base::{Clock, SystemClock};
use shoal_console::{
    ConsoleOptions, ConsoleParts, ConsoleServer, ConsoleSources, KeyBook, KeyBookError, KeyChange,
};
use shoal_engine::{Environment, Store};
use shoal_frontend::access::KeyFile;
use shoal_frontend::{Credentials, Security, TlsPem, Tokens};
use shoal_http::{Capacity, ServerLimits};
use shoal_metrics::{Health, Metrics};
use shoal_s3::{S3Options, S3Service};
use shoal_server::{Backups, ReportSource};
use shoal_storekit::{StoreKit, in_time};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::dial::{Dialer, Stream};

/// The URL of an S3 frontend that does not run.
pub(crate) const S3_URL: &str = "http://127.0.0.1:7413";

/// A token that may read everything.
pub(crate) const TOKEN: &str = "0123456789abcdef-reads";

/// A running console.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) store: Store,
    pub(crate) security: Security,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) book: Arc<Book>,
    pub(crate) backups: Backups,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

/// A file of keys in memory.
pub(crate) struct Book {
    pub(crate) file: Mutex<KeyFile>,
    security: Security,
    tls: Option<TlsPem>,
}

/// The differences between consoles.
pub(crate) struct Setup {
    pub(crate) asks: bool,
    pub(crate) limits: ServerLimits,
    pub(crate) tls: Option<TlsPem>,
    pub(crate) listen: &'static str,
    pub(crate) insecure: bool,
}

impl Default for Setup {
    fn default() -> Self {
        let limits = ServerLimits::default();
        Self { asks: true, limits, tls: None, listen: "127.0.0.1:0", insecure: false }
    }
}

impl Book {
    /// Puts the keys in force.
    pub(crate) fn enforce(&self) {
        self.security.replace(credentials(&self.file.lock(), self.tls.as_ref()));
    }
}

impl KeyBook for Book {
    fn path(&self) -> String {
        "/etc/shoal/keys".to_owned()
    }

    fn read(&self) -> Result<KeyFile, KeyBookError> {
        Ok(self.file.lock().clone())
    }

    fn change(&self, change: KeyChange<'_>) -> Result<(), KeyBookError> {
        change(&mut self.file.lock())?;
        self.enforce();
        Ok(())
    }
}

fn credentials(file: &KeyFile, tls: Option<&TlsPem>) -> Credentials {
    let tokens = Tokens::parse(format!("{TOKEN} read-only").as_bytes()).unwrap();
    Credentials::with_keys(tls, tokens, Some(file.keys().unwrap())).unwrap()
}

/// The texts of the program that runs the console.
fn texts() -> ReportSource {
    let text = |name: &str, text: &str| (name.to_owned(), text.to_owned());
    ReportSource::new(move || {
        vec![text("configuration.toml", "cache = \"4G\"\n"), text("server.log", "one\ntwo\nthree\n")]
    })
}

fn now_s() -> u64 {
    SystemClock::default().wall_ns() / 1_000_000_000
}

impl Running {
    /// A console that asks for keys.
    pub(crate) fn start() -> Self {
        Self::with(Setup::default())
    }

    /// A console that asks for no credentials.
    pub(crate) fn open() -> Self {
        Self::with(Setup { asks: false, ..Setup::default() })
    }

    pub(crate) fn with(setup: Setup) -> Self {
        let Setup { asks, limits, tls, listen, insecure } = setup;
        let store = StoreKit::new(128 << 10).in_memory();
        let (book, metrics) = (KeyFile::default(), Arc::new(Metrics::default()));
        let made = || Security::new(credentials(&book, tls.as_ref()));
        let security = if asks { made() } else { Security::default() };
        // The keys of S3 are others if nobody asks for them here.
        let of_s3 = if asks { security.clone() } else { made() };
        let book = Arc::new(Book { file: Mutex::new(book), security: of_s3.clone(), tls });
        let clock = Arc::new(ManualClock::new(now_s() * 1_000_000_000));
        let environment = Environment { clock: clock.clone(), ..Environment::default() };
        let capacity = Capacity::new(&limits);
        let options = ConsoleOptions {
            listen: listen.parse().unwrap(),
            insecure,
            security: security.clone(),
            metrics: Arc::clone(&metrics),
            limits,
            environment: environment.clone(),
            ..ConsoleOptions::default()
        };
        let server = ConsoleServer::bind(options).unwrap();
        let address = server.addresses()[0];
        let s3 =
            S3Options { security: of_s3, metrics: Arc::clone(&metrics), environment, ..S3Options::default() };
        let (of_task, keys) = (store.clone(), Arc::clone(&book));
        let (health, backups) = (Health::default(), Backups::default());
        health.serves(store.clone());
        let sources = ConsoleSources { health, report: texts(), backups: backups.clone() };
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            let objects = S3Service::open(of_task.clone(), s3).await.unwrap();
            let s3_url = Some(S3_URL.to_owned());
            let parts = ConsoleParts { store: of_task, objects, s3_url, keys: Some(keys), sources };
            server.run(parts, capacity, async { drop(stopped.await) }).await;
        });
        Self { address, store, security, clock, metrics, book, backups, stop, task }
    }

    /// Stops the console in order.
    pub(crate) async fn stop(self) {
        self.stop.send(()).unwrap();
        in_time("the console stops", self.task).await.unwrap();
    }

    /// A new key with this grant, in force: its id and secret.
    pub(crate) fn key(&self, grant: &str) -> (String, String) {
        let mut file = self.book.file.lock();
        let entry = file.create(None, vec![grant.to_owned()], now_s(), None).unwrap().clone();
        drop(file);
        self.book.enforce();
        (entry.id, entry.secret.unwrap())
    }

    /// A page that has not signed in.
    pub(crate) async fn page(&self) -> Page {
        Page::open(Dialer::plain(self.address)).await
    }

    /// A page that has signed in by a key with this grant.
    pub(crate) async fn signed_in(&self, grant: &str) -> Page {
        let (id, secret) = self.key(grant);
        let mut page = self.page().await;
        assert_eq!(page.sign_in(&id, &secret).await.status, 200);
        page
    }

    /// A page that may do everything, of a console that may ask for no credentials.
    pub(crate) async fn admin(&self) -> Page {
        if self.security.asks() {
            return self.signed_in("all *").await;
        }
        let mut page = self.page().await;
        page.csrf = page.get("/api/session").await.field("csrf");
        page
    }
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// False if the connection was cut before the end.
    pub(crate) is_whole: bool,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{}", self.text()))
    }

    pub(crate) fn field(&self, name: &str) -> String {
        self.json()[name].as_str().unwrap_or_default().to_owned()
    }
}

/// A page in a browser.
pub(crate) struct Page {
    stream: Stream,
    dialer: Dialer,
    pub(crate) host: String,
    pub(crate) cookie: String,
    pub(crate) csrf: String,
}

impl Page {
    /// A page that has not signed in, by connections of `dialer`.
    pub(crate) async fn open(dialer: Dialer) -> Self {
        let (host, cookie, csrf) = (dialer.address.to_string(), String::new(), String::new());
        Self { stream: dialer.dial().await, dialer, host, cookie, csrf }
    }

    /// Another connection with the same session.
    pub(crate) async fn again(&self) -> Self {
        let (cookie, csrf) = (self.cookie.clone(), self.csrf.clone());
        Self { host: self.host.clone(), cookie, csrf, ..Self::open(self.dialer.clone()).await }
    }

    pub(crate) async fn get(&mut self, target: &str) -> Reply {
        self.send("GET", target, &[], b"").await
    }

    /// A request of the API with a document.
    pub(crate) async fn post(&mut self, target: &str, document: &str) -> Reply {
        self.send("POST", target, &[("content-type", "application/json")], document.as_bytes()).await
    }

    pub(crate) async fn put(&mut self, target: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        self.send("PUT", target, headers, body).await
    }

    /// Signs in, and keeps the cookie and the word.
    pub(crate) async fn sign_in(&mut self, id: &str, secret: &str) -> Reply {
        let document = serde_json::json!({ "id": id, "secret": secret }).to_string();
        let reply = self.post("/api/session", &document).await;
        if reply.status == 200 {
            self.cookie = reply.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
            self.csrf = reply.field("csrf");
        }
        reply
    }

    /// A request with the cookie, and with the word unless it is a GET.
    pub(crate) async fn send(
        &mut self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Reply {
        let mut all = headers.to_vec();
        let (cookie, csrf) = (self.cookie.clone(), self.csrf.clone());
        if !cookie.is_empty() {
            all.push(("cookie", &cookie));
        }
        if !csrf.is_empty() && method != "GET" {
            all.push(("x-shoal-csrf", &csrf));
        }
        self.send_only(method, target, &all, body).await
    }

    /// A request with these headers alone.
    pub(crate) async fn send_only(
        &mut self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Reply {
        self.send_head(method, target, headers, body.len()).await;
        let _ = self.stream.write_all(body).await;
        let _ = self.stream.flush().await;
        self.receive(method).await
    }

    /// Sends a head that announces a body.
    pub(crate) async fn send_head(
        &mut self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        bytes: usize,
    ) {
        let mut head = format!("{method} {target} HTTP/1.1\r\nhost: {}\r\n", self.host);
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        if bytes > 0 || method == "PUT" || method == "POST" {
            head += &format!("content-length: {bytes}\r\n");
        }
        self.stream.write_all(format!("{head}\r\n").as_bytes()).await.unwrap();
        self.stream.flush().await.unwrap();
    }

    pub(crate) async fn send_body(&mut self, body: &[u8]) {
        self.stream.write_all(body).await.unwrap();
    }

    /// Posts a body without its length.
    pub(crate) async fn send_chunks(&mut self, target: &str, headers: &[(&str, &str)], chunks: &[&[u8]]) {
        let mut text = format!("POST {target} HTTP/1.1\r\nhost: {}\r\n", self.host);
        for (name, value) in headers {
            text += &format!("{name}: {value}\r\n");
        }
        let mut text = (text + "\r\n").into_bytes();
        for chunk in chunks {
            text.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
            text.extend_from_slice(chunk);
            text.extend_from_slice(b"\r\n");
        }
        text.extend_from_slice(b"0\r\n\r\n");
        self.stream.write_all(&text).await.unwrap();
    }

    pub(crate) async fn receive(&mut self, method: &str) -> Reply {
        let mut reply = in_time("an answer", self.receive_head()).await;
        let has_body = method != "HEAD" && reply.status != 204 && reply.status != 304;
        let bytes = reply.header("content-length").map(|bytes| bytes.parse::<usize>().unwrap());
        if let Some(bytes) = bytes.filter(|_| has_body) {
            reply.body = vec![0; bytes];
            reply.is_whole = in_time("a body", self.stream.read_exact(&mut reply.body)).await.is_ok();
        } else if has_body {
            reply.is_whole = in_time("a body", self.receive_chunks(&mut reply.body)).await;
        }
        if reply.header("connection") == Some("close") || !reply.is_whole {
            self.stream = self.dialer.dial().await;
        }
        reply
    }

    pub(crate) async fn receive_head(&mut self) -> Reply {
        let mut line = String::new();
        self.stream.read_line(&mut line).await.unwrap();
        let status = line.get(9..12).and_then(|status| status.parse().ok());
        let status = status.unwrap_or_else(|| panic!("no status in {line:?}"));
        let mut headers = Vec::new();
        loop {
            let mut line = String::new();
            self.stream.read_line(&mut line).await.unwrap();
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            headers.push((name.to_ascii_lowercase(), value.to_owned()));
        }
        Reply { status, headers, body: Vec::new(), is_whole: true }
    }

    /// The rest of an answer up to the end of its connection.
    pub(crate) async fn receive_rest(&mut self) -> Vec<u8> {
        let mut body = Vec::new();
        let _ = self.stream.read_to_end(&mut body).await;
        body
    }

    /// Returns false if the connection was cut.
    pub(crate) async fn receive_chunks(&mut self, body: &mut Vec<u8>) -> bool {
        loop {
            match self.receive_chunk().await {
                None => return false,
                Some(chunk) if chunk.is_empty() => return true,
                Some(chunk) => body.extend_from_slice(&chunk),
            }
        }
    }

    /// The next chunk of a body; the last one is empty. `None` if the connection was cut.
    pub(crate) async fn receive_chunk(&mut self) -> Option<Vec<u8>> {
        let mut line = String::new();
        self.stream.read_line(&mut line).await.ok()?;
        let bytes = usize::from_str_radix(line.trim_end(), 16).ok()?;
        let mut chunk = vec![0; bytes + 2];
        self.stream.read_exact(&mut chunk).await.ok()?;
        chunk.truncate(bytes);
        Some(chunk)
    }
}
