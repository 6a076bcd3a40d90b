//! A client of S3 that signs its requests, for tests that use all frontends alike. Every request is sent once.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use shoal_bench::s3::{S3Endpoint, S3Request, S3Signer};
use shoal_client::{Error, Lsn, RejectRules, Result};
use shoal_s3::sign::key::sha256;
use shoal_s3::text::{hex, percent_encode};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::Mutex as AsyncMutex;

use crate::harness::{run, text_of};

const REGION: &str = "us-east-1";

/// One connection to a bucket. Clones share it.
#[derive(Clone)]
pub(crate) struct S3Client {
    stream: Arc<AsyncMutex<BufReader<TcpStream>>>,
    address: String,
    bucket: String,
    endpoint: S3Endpoint,
    /// The ETags that were read, by the versions that stand for them in the tests' rules.
    etags: Arc<Mutex<HashMap<u64, String>>>,
}

/// An answer.
struct Reply {
    status: u16,
    etag: Option<String>,
    body: Vec<u8>,
    /// The server closes the connection: it refused the body before it had read it.
    is_last: bool,
}

impl Reply {
    /// The text of an element's first occurrence.
    fn element(&self, name: &str) -> String {
        let text = String::from_utf8_lossy(&self.body).into_owned();
        let found = text.split_once(&format!("<{name}>")).and_then(|(_, rest)| rest.split_once("</"));
        found.map(|(value, _)| value.to_owned()).unwrap_or_default()
    }

    /// The reply to a write.
    fn of_write(self) -> Result<Self> {
        match self.status {
            200 | 204 => Ok(self),
            412 => Err(Error::ConditionFailed { rule: None, current: None }),
            // `If-Match` without an object.
            404 if self.element("Code") == "NoSuchKey" => {
                Err(Error::ConditionFailed { rule: None, current: None })
            }
            503 => Err(Error::Busy(self.element("Message"))),
            500 => Err(Error::Unknown(self.element("Message"))),
            status => Err(Error::Invalid(format!("{status}: {}", String::from_utf8_lossy(&self.body)))),
        }
    }
}

impl S3Client {
    /// A connection to `address`, for the key that the server made beside its data file. The bucket exists afterwards.
    pub(crate) async fn connect(address: &str, data: &Path, bucket: &str) -> Self {
        let file = data.with_file_name("shoal.keys");
        let id = run(&["key", "list", "--json", "--key-file", text_of(&file)]).json();
        let id = id["id"].as_str().unwrap().to_owned();
        let secret = std::fs::read_to_string(&file).unwrap();
        let secret = secret.split_once("secret = \"").unwrap().1.split_once('"').unwrap().0.to_owned();
        let stream = connected(address).await;
        let endpoint = S3Endpoint::new(&format!("http://{address}"), REGION, &id, &secret).unwrap();
        let (address, bucket) = (address.to_owned(), bucket.to_owned());
        let client = Self { stream, address, bucket, endpoint, etags: Arc::default() };
        let made = client.call("PUT", &format!("/{}", client.bucket), "", &[], b"").await.unwrap();
        assert!([200, 409].contains(&made.status), "{}", String::from_utf8_lossy(&made.body));
        client
    }

    /// Another connection, with the same key.
    pub(crate) async fn another(&self) -> Self {
        Self { stream: connected(&self.address).await, ..self.clone() }
    }

    fn path(&self, key: &[u8]) -> String {
        let mut path = format!("/{}/", self.bucket);
        percent_encode(&mut path, key);
        path
    }

    /// Sends a request, and receives its answer. A request without an answer is of unknown outcome.
    async fn call(
        &self,
        method: &str,
        path: &str,
        query: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Reply> {
        let payload = hex(&sha256(body));
        let request = S3Request { method, path, query, headers, payload: &payload };
        let head = S3Signer::new(&self.endpoint).head(&request, body.len()).unwrap();
        let mut stream = self.stream.lock().await;
        let answer = async {
            stream.write_all(head.as_bytes()).await?;
            stream.write_all(body).await?;
            let reply = receive(&mut stream).await?;
            if reply.is_last
                && let Ok(next) = connection(&self.address).await
            {
                *stream = next;
            }
            Ok(reply)
        };
        answer.await.map_err(|error: std::io::Error| Error::Unknown(error.to_string()))
    }

    /// The value, and a version that stands for its ETag.
    pub(crate) async fn get(&self, key: &[u8]) -> Result<Option<(Lsn, Bytes)>> {
        let gone = |reason: Error| Error::Unavailable { server: "of S3".into(), reason: reason.to_string() };
        let reply = self.call("GET", &self.path(key), "", &[], b"").await.map_err(gone)?;
        match reply.status {
            200 => {
                let etag = reply.etag.expect("an object has an ETag");
                let digest = sha256(etag.as_bytes());
                let version = u64::from_le_bytes(*digest.first_chunk().unwrap());
                self.etags.lock().unwrap().insert(version, etag);
                Ok(Some((Lsn(version), reply.body.into())))
            }
            404 => Ok(None),
            503 => Err(gone(Error::Busy(reply.element("Message")))),
            status => Err(Error::Invalid(format!("{status}: {}", String::from_utf8_lossy(&reply.body)))),
        }
    }

    /// One of `if_exists` and `if_version_not` at most, the latter with a version that [`Self::get`] returned.
    pub(crate) async fn put(&self, key: &[u8], value: &[u8], rules: &RejectRules) -> Result<()> {
        let conditions = self.conditions(rules);
        let headers: Vec<(&str, &str)> =
            conditions.iter().map(|(name, value)| (*name, value.as_str())).collect();
        self.call("PUT", &self.path(key), "", &headers, value).await?.of_write().map(drop)
    }

    fn conditions(&self, rules: &RejectRules) -> Vec<(&'static str, String)> {
        let mut headers = Vec::new();
        if rules.if_exists {
            headers.push(("if-none-match", "*".to_owned()));
        }
        if let Some(version) = rules.if_version_not {
            headers.push(("if-match", self.etags.lock().unwrap()[&version.0].clone()));
        }
        headers
    }

    /// Uploads `parts` and joins them. If that fails before the completion was sent, nothing was changed.
    pub(crate) async fn upload(&self, key: &[u8], parts: &[&[u8]], rules: &RejectRules) -> Result<()> {
        let path = self.path(key);
        let not_yet = |error: Error| match error {
            Error::Unknown(reason) => Error::Unavailable { server: "of S3".into(), reason },
            error => error,
        };
        let started = self.call("POST", &path, "uploads=", &[], b"").await.and_then(Reply::of_write);
        let upload = started.map_err(not_yet)?.element("UploadId");
        let mut document = String::from("<CompleteMultipartUpload>");
        for (index, part) in parts.iter().enumerate() {
            let number = index + 1;
            let query = format!("partNumber={number}&uploadId={upload}");
            let sent = self.call("PUT", &path, &query, &[], part).await.and_then(Reply::of_write);
            let etag = sent.map_err(not_yet)?.etag.expect("a part has an ETag");
            document += &format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>");
        }
        document += "</CompleteMultipartUpload>";
        let conditions = self.conditions(rules);
        let headers: Vec<(&str, &str)> =
            conditions.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let query = format!("uploadId={upload}");
        self.call("POST", &path, &query, &headers, document.as_bytes()).await?.of_write().map(drop)
    }

    /// The number of keys that start with `prefix`, listed page by page.
    pub(crate) async fn count(&self, prefix: &str) -> Result<usize> {
        let (mut count, mut token) = (0, String::new());
        loop {
            let after = if token.is_empty() { String::new() } else { format!("continuation-token={token}&") };
            let query = format!("{after}list-type=2&prefix={prefix}");
            let page = self.call("GET", &format!("/{}", self.bucket), &query, &[], b"").await?.of_write()?;
            count += String::from_utf8_lossy(&page.body).matches("<Key>").count();
            let next = page.element("NextContinuationToken");
            if next.is_empty() {
                return Ok(count);
            }
            token.clear();
            percent_encode(&mut token, next.as_bytes());
        }
    }

    pub(crate) async fn delete(&self, key: &[u8]) -> Result<()> {
        self.call("DELETE", &self.path(key), "", &[], b"").await?.of_write().map(drop)
    }
}

async fn connected(address: &str) -> Arc<AsyncMutex<BufReader<TcpStream>>> {
    Arc::new(AsyncMutex::new(connection(address).await.unwrap()))
}

async fn connection(address: &str) -> std::io::Result<BufReader<TcpStream>> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(BufReader::new(stream))
}

async fn receive(stream: &mut BufReader<TcpStream>) -> std::io::Result<Reply> {
    let mut line = String::new();
    stream.read_line(&mut line).await?;
    let status = line.get(9..12).and_then(|status| status.parse().ok());
    let mut reply = Reply {
        status: status.ok_or(std::io::ErrorKind::UnexpectedEof)?,
        etag: None,
        body: Vec::new(),
        is_last: false,
    };
    let mut length = 0;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse().expect("a length is a number"),
            "etag" => reply.etag = Some(value.to_owned()),
            "connection" => reply.is_last = value.eq_ignore_ascii_case("close"),
            _ => {}
        }
    }
    reply.body = vec![0; length];
    stream.read_exact(&mut reply.body).await?;
    Ok(reply)
}
