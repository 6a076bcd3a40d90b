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
