//! Remote stores, through the crate `object_store`, none of whose types leaves this module and `transport.rs`.
//!
//! The crate signs requests, finds credentials (environment, files, instance) and knows the three protocols. It retries nothing here: it would
//! send a create again after an answer that hid a success, and call its own object a foreign one.

use std::error::Error as StdError;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt};
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::client::HttpError;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path;
use object_store::{
    ClientOptions, Error, GetOptions, ObjectStore, PutMode, PutOptions, PutPayload, PutResult, RetryConfig,
    UpdateVersion,
};

use super::address::RemoteKind;
use super::attempts::WRITE_TIME;
use super::requests::{Attempt, BucketEntry, BucketRequests, FetchedObject, RequestFailure, VersionTag};
use super::transport::{StatusError, Transport};

/// The time of a read without progress.
const READ_TIME: Duration = Duration::from_secs(10);

/// A prefix of a bucket of a remote store.
pub(super) struct RemoteBucket {
    /// Writes have their own connections: a slow read does not hold them.
    writes: Arc<dyn ObjectStore>,
    reads: Arc<dyn ObjectStore>,
    prefix: String,
}

/// The parts of an address of a remote store.
pub(super) struct RemoteAddress<'a> {
    pub(super) kind: RemoteKind,
    pub(super) bucket: &'a str,
    pub(super) prefix: &'a str,
    pub(super) endpoint: Option<&'a str>,
    pub(super) region: Option<&'a str>,
}

impl RemoteBucket {
    pub(super) fn open(address: &RemoteAddress<'_>) -> Result<Self, RequestFailure> {
        let open = |time| {
            let transport =
                Transport::new(time).map_err(|error| RequestFailure::Refused(error.to_string()))?;
            build(address, transport).map_err(failure)
        };
        let prefix = match address.prefix {
            "" => String::new(),
            prefix => format!("{prefix}/"),
        };
        Ok(Self { writes: open(WRITE_TIME)?, reads: open(READ_TIME)?, prefix })
    }

    fn path(&self, name: &str) -> Path {
        Path::from(format!("{}{name}", self.prefix))
    }

    async fn put(&self, name: &str, bytes: Bytes, mode: PutMode) -> Result<VersionTag, RequestFailure> {
        let options = PutOptions { mode, ..PutOptions::default() };
        let put = self.writes.put_opts(&self.path(name), PutPayload::from_bytes(bytes), options).await;
        match put {
            Ok(PutResult { e_tag, version, .. }) => Ok(VersionTag { etag: e_tag, generation: version }),
            // A key need not exist for a put: the bucket does not.
            Err(error @ Error::NotFound { .. }) => Err(RequestFailure::Refused(words(&error))),
            Err(error) => Err(failure(error)),
        }
    }
}

fn build(address: &RemoteAddress<'_>, transport: Transport) -> object_store::Result<Arc<dyn ObjectStore>> {
    let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
    let is_http = address.endpoint.is_some_and(|url| url.starts_with("http://"));
    let options = ClientOptions::new().with_allow_http(is_http);
    Ok(match address.kind {
        RemoteKind::S3 => {
            let mut builder = AmazonS3Builder::from_env().with_bucket_name(address.bucket);
            builder = builder.with_retry(retry).with_http_connector(transport).with_client_options(options);
            if let Some(endpoint) = address.endpoint {
                builder = builder.with_endpoint(endpoint);
            }
            if let Some(region) = address.region {
                builder = builder.with_region(region);
            }
            Arc::new(builder.build()?)
        }
        RemoteKind::Gcs => {
            let mut builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(address.bucket);
            builder = builder.with_retry(retry).with_http_connector(transport).with_client_options(options);
            if let Some(endpoint) = address.endpoint {
                builder = builder.with_config("google_base_url".parse()?, endpoint);
            }
            Arc::new(builder.build()?)
        }
        RemoteKind::Azure => {
            let mut builder = MicrosoftAzureBuilder::from_env().with_container_name(address.bucket);
            builder = builder.with_retry(retry).with_http_connector(transport).with_client_options(options);
            if let Some(endpoint) = address.endpoint {
                builder = builder.with_endpoint(endpoint.to_owned());
            }
            Arc::new(builder.build()?)
        }
    })
}

/// An error with its causes, without line breaks.
fn words(error: &dyn StdError) -> String {
    let text = error.to_string();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn failure(error: Error) -> RequestFailure {
    let text = words(&error);
    match &error {
        Error::NotFound { .. } if text.contains("NoSuchBucket") => RequestFailure::Refused(text),
        Error::NotFound { .. } => RequestFailure::NotFound,
        Error::AlreadyExists { .. } | Error::Precondition { .. } | Error::NotModified { .. } => {
            RequestFailure::Conflict
        }
        Error::NotImplemented { .. } | Error::NotSupported { .. } => RequestFailure::Unsupported(text),
        Error::Generic { .. } => generic(&error, text),
        // Credentials, rights, configuration.
        _ => RequestFailure::Refused(text),
    }
}

/// An error without a variant: by the status of the answer, or a connection that failed.
fn generic(error: &Error, text: String) -> RequestFailure {
    let mut cause: Option<&(dyn StdError + 'static)> = Some(error);
    let mut is_http = false;
    while let Some(error) = cause {
        if let Some(answer) = error.downcast_ref::<StatusError>() {
            let text = answer.to_string();
            return match answer.status {
                429 | 503 => RequestFailure::Throttled(text),
                501 => RequestFailure::Unsupported(text),
                408 | 500.. => RequestFailure::Unknown(text),
                _ => RequestFailure::Refused(text),
            };
        }
        is_http |= error.is::<HttpError>();
        cause = error.source();
    }
    if is_http { RequestFailure::Unknown(text) } else { RequestFailure::Refused(text) }
}

impl BucketRequests for RemoteBucket {
    fn create(&self, name: &str, bytes: Bytes) -> Attempt<'_, ()> {
        let name = name.to_owned();
        async move { self.put(&name, bytes, PutMode::Create).await.map(drop) }.boxed()
    }

    fn replace(&self, name: &str, bytes: Bytes, tag: &VersionTag) -> Attempt<'_, VersionTag> {
        let version = UpdateVersion { e_tag: tag.etag.clone(), version: tag.generation.clone() };
        let name = name.to_owned();
        async move { self.put(&name, bytes, PutMode::Update(version)).await }.boxed()
    }

    fn get(&self, name: &str, range: Option<Range<u64>>) -> Attempt<'_, FetchedObject> {
        let path = self.path(name);
        async move {
            let options = GetOptions { range: range.map(Into::into), ..GetOptions::default() };
            let found = self.reads.get_opts(&path, options).await.map_err(failure)?;
            let meta = found.meta.clone();
            let bytes = found.bytes().await.map_err(failure)?;
            let tag = VersionTag { etag: meta.e_tag, generation: meta.version };
            Ok(FetchedObject { bytes, object_bytes: meta.size, tag })
        }
        .boxed()
    }

    fn delete(&self, name: &str) -> Attempt<'_, ()> {
        let path = self.path(name);
        async move {
            let one = futures_util::stream::iter([Ok(path)]).boxed();
            let mut deleted = self.writes.delete_stream(one);
            while let Some(result) = deleted.next().await {
                match result.map_err(failure) {
                    Ok(_) | Err(RequestFailure::NotFound) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        }
        .boxed()
    }

    fn list<'a>(&'a self, prefix: &str, take: &'a mut (dyn FnMut(BucketEntry) + Send)) -> Attempt<'a, ()> {
        let path = self.path(prefix);
        async move {
            let mut objects = self.reads.list(Some(&path));
            while let Some(meta) = objects.next().await {
                let meta = meta.map_err(failure)?;
                if let Some(name) = meta.location.as_ref().strip_prefix(&self.prefix) {
                    take(BucketEntry { name: name.to_owned(), bytes: meta.size });
                }
            }
            Ok(())
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// A server that answers every request with `answer` and closes the connection; its address, and the number of its requests.
    async fn server(answer: String) -> (String, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&requests);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (answer, count) = (answer.clone(), Arc::clone(&count));
                tokio::spawn(async move {
                    let mut bytes = vec![0; 16 << 10];
                    let _ = stream.read(&mut bytes).await;
                    count.fetch_add(1, Ordering::Relaxed);
                    if answer == "silence" {
                        std::future::pending::<()>().await;
                    }
                    let _ = stream.write_all(answer.as_bytes()).await;
                });
            }
        });
        (address, requests)
    }

    fn bucket(endpoint: &str) -> RemoteBucket {
        let transport = Transport::new(Duration::from_millis(300)).unwrap();
        let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
        let builder = AmazonS3Builder::new().with_bucket_name("b").with_endpoint(endpoint).with_retry(retry);
        let builder = builder.with_access_key_id("a").with_secret_access_key("s");
        let store: Arc<dyn ObjectStore> = Arc::new(builder.with_http_connector(transport).build().unwrap());
        RemoteBucket { writes: Arc::clone(&store), reads: store, prefix: "p/".to_owned() }
    }

    fn answer(status: &str, body: &str) -> String {
        let head = "last-modified: Mon, 30 Nov 2026 18:00:00 GMT\r\netag: \"7\"\r\nconnection: close";
        format!("HTTP/1.1 {status}\r\n{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
    }

    /// The name of a result.
    fn name<T>(result: &Result<T, RequestFailure>) -> &'static str {
        match result {
            Ok(_) => "ok",
            Err(RequestFailure::NotFound) => "not found",
            Err(RequestFailure::Conflict) => "conflict",
            Err(RequestFailure::Unknown(_)) => "unknown",
            Err(RequestFailure::Throttled(_)) => "throttled",
            Err(RequestFailure::Refused(_)) => "refused",
            Err(RequestFailure::Unsupported(_)) => "unsupported",
        }
    }

    /// Each answer of a server is one result, and no request is sent twice.
    #[tokio::test]
    async fn answers_are_classified_and_nothing_is_repeated() {
        let no_bucket = "<Error><Code>NoSuchBucket</Code></Error>";
        let no_key = "<Error><Code>NoSuchKey</Code></Error>";
        let expired = "<Error><Code>ExpiredToken</Code></Error>";
        let cut = "HTTP/1.1 200 OK\r\ncontent-length: 500\r\netag: \"7\"\r\n\
            last-modified: Mon, 30 Nov 2026 18:00:00 GMT\r\n\r\nhalf";
        for (answer, [create, replace, get]) in [
            (answer("200 OK", ""), ["ok", "ok", "ok"]),
            (answer("412 Precondition Failed", ""), ["conflict", "conflict", "conflict"]),
            (answer("409 Conflict", ""), ["conflict", "conflict", "conflict"]),
            (answer("404 Not Found", no_key), ["refused", "conflict", "not found"]),
            (answer("404 Not Found", no_bucket), ["refused", "conflict", "refused"]),
            (answer("400 Bad Request", expired), ["refused", "refused", "refused"]),
            (answer("401 Unauthorized", ""), ["refused", "refused", "refused"]),
            (answer("403 Forbidden", ""), ["refused", "refused", "refused"]),
            (answer("408 Request Timeout", ""), ["unknown", "unknown", "unknown"]),
            (answer("429 Too Many Requests", ""), ["throttled", "throttled", "throttled"]),
            (answer("500 Internal Server Error", ""), ["unknown", "unknown", "unknown"]),
            (answer("501 Not Implemented", ""), ["unsupported", "unsupported", "unsupported"]),
            (answer("503 Slow Down", ""), ["throttled", "throttled", "throttled"]),
            (String::new(), ["unknown", "unknown", "unknown"]),
            ("silence".to_owned(), ["unknown", "unknown", "unknown"]),
            (cut.to_owned(), ["ok", "ok", "unknown"]),
        ] {
            let (address, requests) = server(answer.clone()).await;
            let bucket = bucket(&address);
            let tag = VersionTag { etag: Some("\"6\"".to_owned()), generation: None };
            let body = Bytes::from_static(b"body");
            let results = [
                name(&bucket.create("k", body.clone()).await),
                name(&bucket.replace("k", body, &tag).await),
                name(&bucket.get("k", None).await),
            ];
            assert_eq!(results, [create, replace, get], "{answer:?}");
            assert_eq!(requests.load(Ordering::Relaxed), 3, "{answer:?}");
        }
    }

    /// Each kind of store with another server than its provider's. Azure needs an account, which only the environment has.
    #[tokio::test]
    async fn each_kind_has_an_endpoint() {
        for (kind, needs) in [(RemoteKind::S3, ""), (RemoteKind::Gcs, ""), (RemoteKind::Azure, "Account")] {
            let endpoint = Some("http://127.0.0.1:1");
            let address = RemoteAddress { kind, bucket: "b", prefix: "p", endpoint, region: Some("r") };
            match RemoteBucket::open(&address) {
                Ok(bucket) => assert_eq!(bucket.path("record").as_ref(), "p/record"),
                Err(RequestFailure::Refused(why)) => {
                    assert!(!needs.is_empty() && why.contains(needs), "{why}")
                }
                Err(other) => panic!("{kind:?}: {other}"),
            }
        }
    }

    /// The request may not have been sent, but nothing shows that.
    #[tokio::test]
    async fn an_unreachable_server_is_no_answer() {
        let result = bucket("http://127.0.0.1:1").create("k", Bytes::from_static(b"x")).await;
        assert_eq!(name(&result), "unknown", "{result:?}");
    }
}
