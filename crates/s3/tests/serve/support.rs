//! A running frontend, and a client that signs its requests.

use std::net::SocketAddr;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::{digest, hmac};
use shoal_base::{Clock, SystemClock};
use shoal_engine::Store;
use shoal_frontend::access::KeyFile;
use shoal_frontend::{Credentials, Security, Tokens};
use shoal_http::{Capacity, ServerLimits};
use shoal_metrics::Metrics;
use shoal_s3::text::{hex, percent_encode};
use shoal_s3::time::basic_of;
use shoal_s3::{S3Options, S3Server};
use shoal_storekit::{StoreKit, in_time};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// The SHA-256 of nothing.
pub(crate) const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// An id and a secret.
#[derive(Clone, Debug)]
pub(crate) struct TestKey {
    pub(crate) id: String,
    pub(crate) secret: String,
}

/// A running frontend.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) store: Store,
    pub(crate) file: KeyFile,
    pub(crate) security: Security,
    pub(crate) metrics: Arc<Metrics>,
    /// The clock of the frontend, and of the dates of its clients.
    clock: Arc<dyn Clock>,
    /// May do everything.
    pub(crate) key: TestKey,
}

pub(crate) fn now_s() -> u64 {
    SystemClock::default().wall_ns() / 1_000_000_000
}

impl Running {
    pub(crate) async fn start() -> Self {
        Self::over(StoreKit::new(128 << 10).in_memory()).await
    }

    pub(crate) async fn over(store: Store) -> Self {
        Self::with_keys(store, KeyFile::default()).await
    }

    /// On a new store, within these limits.
    pub(crate) async fn with_limits(limits: ServerLimits) -> Self {
        Self::within(StoreKit::new(128 << 10).in_memory(), KeyFile::default(), limits).await
    }

    /// With the keys of `file` besides the one that may do everything.
    pub(crate) async fn with_keys(store: Store, file: KeyFile) -> Self {
        Self::within(store, file, ServerLimits::default()).await
    }

    async fn within(store: Store, file: KeyFile, limits: ServerLimits) -> Self {
        Self::by(store, file, S3Options { limits, ..S3Options::default() })
    }

    /// With these options, except those that a test needs.
    pub(crate) fn by(store: Store, mut file: KeyFile, options: S3Options) -> Self {
        let key = created(&mut file, "all *");
        let security = Security::new(credentials(&file));
        let metrics = Arc::new(Metrics::default());
        let options = S3Options {
            metrics: Arc::clone(&metrics),
            listen: "127.0.0.1:0".parse().unwrap(),
            security: security.clone(),
            domains: vec!["s3.test".to_owned()],
            website_domains: vec!["web.test".to_owned()],
            ..options
        };
        let (capacity, clock) = (Capacity::new(&options.limits), options.environment.clock.clone());
        let server = S3Server::bind(options).unwrap();
        let address = server.addresses()[0];
        tokio::spawn(server.run(store.clone(), capacity, std::future::pending()));
        Self { address, store, file, security, metrics, clock, key }
    }

    /// A new key with this grant, in force.
    pub(crate) fn add_key(&mut self, grant: &str) -> TestKey {
        let key = created(&mut self.file, grant);
        self.security.replace(credentials(&self.file));
        key
    }

    pub(crate) async fn client(&self) -> Client {
        self.client_of(&self.key).await
    }

    pub(crate) async fn client_of(&self, key: &TestKey) -> Client {
        Client {
            stream: connect(self.address).await,
            address: self.address,
            is_closed: false,
            host: self.address.to_string(),
            clock: self.clock.clone(),
            key: Some(key.clone()),
        }
    }

    /// A client, and a bucket `bkt`.
    pub(crate) async fn with_bucket(&self) -> Client {
        let mut client = self.client().await;
        assert_eq!(client.put("/bkt", b"").await.status, 200);
        client
    }
}

/// A connection that sends heads and bodies at once.
async fn connect(address: SocketAddr) -> BufReader<TcpStream> {
    let stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    BufReader::new(stream)
}

fn created(file: &mut KeyFile, grant: &str) -> TestKey {
    let entry = file.create(None, vec![grant.to_owned()], now_s(), None).unwrap();
    TestKey { id: entry.id.clone(), secret: entry.secret.clone().unwrap() }
}

fn credentials(file: &KeyFile) -> Credentials {
    Credentials::with_keys(None, Tokens::default(), Some(file.keys().unwrap())).unwrap()
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The texts of an element in the document.
    pub(crate) fn all(&self, element: &str) -> Vec<String> {
        let (open, close) = (format!("<{element}>"), format!("</{element}>"));
        let text = self.text();
        text.split(&open).skip(1).filter_map(|rest| Some(rest.split_once(&close)?.0.to_owned())).collect()
    }

    /// The text of an element's first occurrence.
    pub(crate) fn one(&self, element: &str) -> String {
        self.all(element).into_iter().next().unwrap_or_default()
    }

    /// Status and code.
    pub(crate) fn error(&self) -> (u16, String) {
        (self.status, self.one("Code"))
    }
}

/// A client with one connection, and another one if that was closed.
pub(crate) struct Client {
    stream: BufReader<TcpStream>,
    address: SocketAddr,
    is_closed: bool,
    pub(crate) host: String,
    clock: Arc<dyn Clock>,
    /// `None`: it does not sign.
    pub(crate) key: Option<TestKey>,
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, bytes).as_ref())
}

/// The scope of a signature of this date.
fn scope_of(date: &str) -> String {
    format!("{}/us-east-1/s3/aws4_request", &date[..8])
}

/// The signature of a text by the key of this date.
fn signature_of(secret: &str, date: &str, text: &str) -> String {
    let sign =
        |key: &[u8], text: &[u8]| hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text).as_ref().to_vec();
    let key = format!("AWS4{secret}").into_bytes();
    let key = scope_of(date).split('/').fold(key, |key, part| sign(&key, part.as_bytes()));
    hex(&sign(&key, text.as_bytes()))
}

/// The signature of a canonical request.
fn signature(secret: &str, date: &str, canonical: &str) -> String {
    let text = format!("AWS4-HMAC-SHA256\n{date}\n{}\n{}", scope_of(date), sha256(canonical.as_bytes()));
    signature_of(secret, date, &text)
}

/// The boundary of forms.
const BOUNDARY: &str = "----shoal7MA4";

/// The body of a form with these fields, and `file` as its last part.
pub(crate) fn form_body(fields: &[(&str, &str)], file: &[u8]) -> Vec<u8> {
    let mut body = String::new();
    for (name, value) in fields {
        body +=
            &format!("--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n");
    }
    body += &format!(
        "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a b.txt\"\r\n\r\n"
    );
    [body.as_bytes(), file, format!("\r\n--{BOUNDARY}--\r\n").as_bytes()].concat()
}

fn canonical_query(query: &str) -> String {
    let pair = |pair: &str| if pair.contains('=') { pair.to_owned() } else { format!("{pair}=") };
    let mut pairs: Vec<String> = query.split('&').filter(|it| !it.is_empty()).map(pair).collect();
    pairs.sort();
    pairs.join("&")
}

impl Client {
    /// Now, as signatures write it.
    fn date(&self) -> String {
        basic_of(self.clock.wall_ns() / 1_000_000_000)
    }

    /// The headers of a signed request whose body has the hash `payload`.
    pub(crate) fn signed(
        &self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        payload: &str,
    ) -> Vec<(String, String)> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let mut all: Vec<(String, String)> = headers.iter().map(owned).collect();
        let Some(TestKey { id, secret }) = &self.key else { return all };
        let date = self.date();
        all.push(("x-amz-date".to_owned(), date.clone()));
        all.push(("x-amz-content-sha256".to_owned(), payload.to_owned()));
        let mut signed: Vec<(String, String)> =
            all.iter().filter(|(name, _)| name.starts_with("x-amz-")).cloned().collect();
        signed.push(("host".to_owned(), self.host.clone()));
        signed.sort();
        let names: Vec<&str> = signed.iter().map(|(name, _)| name.as_str()).collect();
        let names = names.join(";");
        let lines: String = signed.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let query = canonical_query(query);
        let canonical = format!("{method}\n{path}\n{query}\n{lines}\n{names}\n{payload}");
        let signature = signature(secret, &date, &canonical);
        let scope = format!("{}/us-east-1/s3/aws4_request", &date[..8]);
        let value =
            format!("AWS4-HMAC-SHA256 Credential={id}/{scope}, SignedHeaders={names}, Signature={signature}");
        all.push(("authorization".to_owned(), value));
        all
    }

    /// The target of a presigned request, which expires after `life_s` from `date_s`.
    pub(crate) fn presigned(&self, method: &str, path: &str, date_s: u64, life_s: u64) -> String {
        let TestKey { id, secret } = self.key.as_ref().unwrap();
        let date = basic_of(date_s);
        let mut credential = String::new();
        percent_encode(&mut credential, format!("{id}/{}/us-east-1/s3/aws4_request", &date[..8]).as_bytes());
        let query = canonical_query(&format!(
            "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={credential}&X-Amz-Date={date}&X-Amz-Expires={life_s}&X-Amz-SignedHeaders=host"
        ));
        let canonical = format!("{method}\n{path}\n{query}\nhost:{}\n\nhost\nUNSIGNED-PAYLOAD", self.host);
        format!("{path}?{query}&X-Amz-Signature={}", signature(secret, &date, &canonical))
    }

    /// Sends a head.
    pub(crate) async fn send_head(&mut self, method: &str, target: &str, headers: &[(String, String)]) {
        if std::mem::take(&mut self.is_closed) {
            self.stream = connect(self.address).await;
        }
        let mut head = format!("{method} {target} HTTP/1.1\r\nhost: {}\r\n", self.host);
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        head += "\r\n";
        self.stream.write_all(head.as_bytes()).await.unwrap();
    }

    /// Sends a body. A server that refuses it may have closed the connection.
    pub(crate) async fn send_body(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes).await;
    }

    /// Receives an answer.
    pub(crate) async fn receive(&mut self, method: &str) -> Reply {
        in_time("an answer", self.receive_now(method)).await
    }

    async fn receive_now(&mut self, method: &str) -> Reply {
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
        let mut reply = Reply { status, headers, body: Vec::new() };
        self.is_closed = reply.header("connection") == Some("close");
        let bytes: usize = reply.header("content-length").map_or(0, |bytes| bytes.parse().unwrap());
        if method != "HEAD" && status != 100 && status != 304 {
            reply.body = vec![0; bytes];
            self.stream.read_exact(&mut reply.body).await.unwrap();
        }
        reply
    }

    /// A request with a body.
    pub(crate) async fn send(
        &mut self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Reply {
        let mut all = self.signed(method, target, headers, &sha256(body));
        if !body.is_empty() || method == "PUT" || method == "POST" {
            all.push(("content-length".to_owned(), body.len().to_string()));
        }
        self.send_head(method, target, &all).await;
        self.send_body(body).await;
        self.receive(method).await
    }

    /// Posts a form.
    pub(crate) async fn post_form(
        &mut self,
        target: &str,
        fields: &[(&str, &str)],
        conditions: &[&str],
        file: &[u8],
    ) -> Reply {
        let body = self.form(fields, conditions, file);
        self.send_form(target, &body).await
    }

    /// The body of a form. If the client has a key, it has a policy with these conditions (JSON), and others that allow all its fields.
    pub(crate) fn form(&self, fields: &[(&str, &str)], conditions: &[&str], file: &[u8]) -> Vec<u8> {
        let mut all: Vec<(&str, &str)> = fields.to_vec();
        let signed = self.key.as_ref().map(|TestKey { id, secret }| {
            let date = self.date();
            let credential = format!("{id}/{}", scope_of(&date));
            let own = [
                ("x-amz-algorithm", "AWS4-HMAC-SHA256"),
                ("x-amz-credential", credential.as_str()),
                ("x-amz-date", date.as_str()),
            ];
            let names = fields.iter().chain(&own).map(|(name, _)| *name).chain(["bucket"]);
            let mut list: Vec<String> =
                names.map(|name| format!("[\"starts-with\", \"${name}\", \"\"]")).collect();
            list.extend(conditions.iter().map(|condition| (*condition).to_owned()));
            let policy = format!(
                "{{\"expiration\": \"2999-01-01T00:00:00Z\", \"conditions\": [{}]}}",
                list.join(", ")
            );
            let policy = STANDARD.encode(policy);
            let signature = signature_of(secret, &date, &policy);
            (credential, date, policy, signature)
        });
        if let Some((credential, date, policy, signature)) = &signed {
            all.extend([
                ("x-amz-algorithm", "AWS4-HMAC-SHA256"),
                ("x-amz-credential", credential),
                ("x-amz-date", date),
                ("policy", policy),
                ("x-amz-signature", signature),
            ]);
        }
        form_body(&all, file)
    }

    /// Posts the body of a form.
    pub(crate) async fn send_form(&mut self, target: &str, body: &[u8]) -> Reply {
        let headers = [
            ("content-type".to_owned(), format!("multipart/form-data; boundary={BOUNDARY}")),
            ("content-length".to_owned(), body.len().to_string()),
        ];
        self.send_head("POST", target, &headers).await;
        self.send_body(body).await;
        self.receive("POST").await
    }

    pub(crate) async fn put(&mut self, target: &str, body: &[u8]) -> Reply {
        self.send("PUT", target, &[], body).await
    }

    /// Starts an upload of an object. Returns its id.
    pub(crate) async fn begin_upload(&mut self, path: &str, headers: &[(&str, &str)]) -> String {
        let started = self.send("POST", &format!("{path}?uploads"), headers, b"").await;
        assert_eq!(started.status, 200, "{}", started.text());
        started.one("UploadId")
    }

    /// Sends a part.
    pub(crate) async fn send_part(&mut self, path: &str, upload: &str, number: u32, value: &[u8]) -> Reply {
        self.put(&format!("{path}?partNumber={number}&uploadId={upload}"), value).await
    }

    /// Completes an upload with these numbers and ETags.
    pub(crate) async fn complete_upload(
        &mut self,
        path: &str,
        upload: &str,
        parts: &[(u32, &str)],
        headers: &[(&str, &str)],
    ) -> Reply {
        let part = |(number, etag): &(u32, &str)| {
            format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>")
        };
        let parts: String = parts.iter().map(part).collect();
        let document = format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>");
        self.send("POST", &format!("{path}?uploadId={upload}"), headers, document.as_bytes()).await
    }

    pub(crate) async fn get(&mut self, target: &str) -> Reply {
        self.send("GET", target, &[], b"").await
    }

    pub(crate) async fn get_with(&mut self, target: &str, headers: &[(&str, &str)]) -> Reply {
        self.send("GET", target, headers, b"").await
    }

    pub(crate) async fn head(&mut self, target: &str) -> Reply {
        self.send("HEAD", target, &[], b"").await
    }

    pub(crate) async fn delete(&mut self, target: &str) -> Reply {
        self.send("DELETE", target, &[], b"").await
    }
}
