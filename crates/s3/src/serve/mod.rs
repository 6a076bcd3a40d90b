//! Answers requests. The order of the steps, each of which may refuse:
//!
//! 1. the limits of the head, the target and its row in the table of operations, without any secret;
//! 2. the signature, without a read of the store;
//! 3. the permissions of the caller;
//! 4. the bucket;
//! 5. the operation, which reads conditions and claims before it takes memory, looks early at the present object, and then asks
//!    for the body. The store decides conditions again, with the write.

pub(crate) mod call;
pub(crate) mod failure;
pub(crate) mod permission;
mod website;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::header::{CONTENT_LENGTH, DATE, HOST, ORIGIN, SERVER};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use shoal_base::task::Boxed;
use shoal_frontend::access::Principal;
use shoal_http::{ConnectionFlow, HttpAnswer, HttpProtocol, Peer, Timer, Waiters, boxed_answer};
use shoal_metrics::{FrontendMetrics, Operation, RequestResult, Stage, mark, note_caller, note_key};

use self::call::S3Call;
use self::permission::check;
use self::website::{PageRequest, error_page};
use crate::access::decide::Origin;
use crate::answer::S3Answer;
use crate::answer::body::S3Body;
use crate::answer::result::absent;
use crate::bucket::FoundBucket;
use crate::bucket::operations as buckets;
use crate::bucket::settings::{self, answer_preflight, headers_for_page};
use crate::object::{change, copy, delete, get, post, put};
use crate::request::error::{ErrorCode, S3Error, S3Result};
use crate::request::headers::{check_expected_owner, check_headers, with_presigned};
use crate::request::operation::{OperationRow, S3Operation, Support, row_of, row_of_page};
use crate::request::query::QueryParameters;
use crate::request::target::{BucketAndKey, check_target, site_of_host};
use crate::sign::chunks::ChunkSigner;
use crate::sign::payload::PayloadHash;
use crate::sign::verify::{RequestHead, verify};
use crate::state::{Caller, S3State};
use crate::time::{SECOND_NS, http_date_of};
use crate::upload::{begin, complete, list as uploads, part, part_copy};

/// The name of the server in answers.
const SERVER_NAME: HeaderValue = HeaderValue::from_static("Shoal");

const REQUEST_ID: HeaderName = HeaderName::from_static("x-amz-request-id");

/// The operation that a request asks for, on a bucket or an object.
struct Asked {
    row: &'static OperationRow,
    target: BucketAndKey,
    query: QueryParameters,
    headers: HeaderMap,
    /// It came to the host name of the bucket's website.
    is_of_site: bool,
}

impl Asked {
    /// Reads the head of a request.
    ///
    /// # Errors
    /// 400, 405, 414, 431, 501.
    fn read(
        head: &http::request::Parts,
        site: Option<String>,
        domains: &[String],
        has_body: bool,
    ) -> S3Result<Self> {
        check_headers(&head.headers)?;
        check_target(head.uri.path_and_query().map_or("", |target| target.as_str()))?;
        let mut headers = head.headers.clone();
        if !headers.contains_key(HOST)
            && let Some(host) = host_of(head).and_then(|host| HeaderValue::from_str(host).ok())
        {
            headers.insert(HOST, host);
        }
        if !has_body && !headers.contains_key(CONTENT_LENGTH) {
            headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        }
        if let Some(bucket) = site {
            let target = BucketAndKey::in_bucket(bucket, head.uri.path())?;
            let row = row_of_page(&head.method)?;
            return Ok(Self { row, target, query: QueryParameters::default(), headers, is_of_site: true });
        }
        let target = BucketAndKey::parse(head.uri.path(), host_of(head), domains)?;
        let query = QueryParameters::parse(head.uri.query())?;
        let row = row_of(&head.method, &target, &query, &headers)?;
        Ok(Self { row, target, query, headers, is_of_site: false })
    }
}

/// A caller with a right to ask, and the form of its request.
struct Admitted {
    caller: Caller,
    /// The headers, and those in the query of a presigned request.
    headers: HeaderMap,
    payload: PayloadHash,
    chunks: Option<ChunkSigner>,
}

impl Admitted {
    /// A caller that another frontend has let in: no signature covers its request.
    fn given(caller: Caller, headers: HeaderMap) -> Self {
        Self { caller, headers, payload: PayloadHash::Unsigned, chunks: None }
    }
}

/// The host that a request names. HTTP/2 has it in the target.
fn host_of(head: &http::request::Parts) -> Option<&str> {
    let named = head.headers.get(HOST).and_then(|host| host.to_str().ok());
    named.or_else(|| head.uri.authority().map(http::uri::Authority::as_str))
}

impl S3State {
    /// Answers a request whose head was read. With a caller, no signature is needed.
    async fn answer(
        &self,
        (peer, flow): (&Peer, &Arc<ConnectionFlow>),
        given: Option<Caller>,
        head: &http::request::Parts,
        asked: S3Result<Asked>,
        body: Incoming,
    ) -> S3Result<S3Answer> {
        let asked = asked?;
        let bucket = asked.target.bucket().unwrap_or_default();
        note_key(bucket, asked.target.key().unwrap_or_default());
        if matches!(asked.row.operation, S3Operation::PreflightBucket | S3Operation::PreflightObject) {
            return answer_preflight(self, bucket, &asked.headers);
        }
        if asked.is_of_site {
            let asked = (asked.row, &asked.target, &asked.headers);
            let page = PageRequest::new((peer, flow), asked, self.security.is_encrypted());
            mark(Stage::Started);
            let _working = flow.working();
            return Box::pin(self.answer_page(peer, &page)).await;
        }
        let admitted = match given {
            Some(caller) => Admitted::given(caller, asked.headers.clone()),
            None => self.admit(peer, head, &asked)?,
        };
        let mut call = self.call((peer, flow), asked, admitted, body);
        mark(Stage::Started);
        let working = flow.working();
        self.let_in(peer, &mut call).await?;
        let answer = self.operate(peer, call).await;
        drop(working);
        answer
    }

    /// Verifies the signature.
    fn admit(&self, peer: &Peer, head: &http::request::Parts, asked: &Asked) -> S3Result<Admitted> {
        let Asked { query, headers, .. } = asked;
        let now_s = self.now_ns() / SECOND_NS;
        let signed = RequestHead {
            method: head.method.as_str(),
            path: head.uri.path(),
            query: head.uri.query(),
            headers,
        };
        let secrets = |id: &str| self.secrets(id, now_s);
        let verified = verify(&signed, query, &self.signing, &secrets, now_s)?;
        let caller = self.caller_of(verified.id.as_deref())?;
        if caller.has_key() {
            peer.set_authenticated();
        }
        let headers = match verified.is_presigned {
            true => with_presigned(headers, query)?,
            false => headers.clone(),
        };
        Ok(Admitted { caller, headers, payload: verified.payload, chunks: verified.chunks })
    }

    /// The request of an admitted caller.
    fn call(
        &self,
        (peer, flow): (&Peer, &Arc<ConnectionFlow>),
        asked: Asked,
        admitted: Admitted,
        body: Incoming,
    ) -> S3Call {
        let Asked { row, target, query, .. } = asked;
        let Admitted { caller, headers, payload, chunks } = admitted;
        if let Some(principal) = caller.principal() {
            note_caller(principal.identity());
        }
        S3Call {
            row,
            target,
            query,
            headers,
            caller,
            origin: Origin { address: peer.address.ip(), is_secure: self.security.is_encrypted() },
            found: FoundBucket::default(),
            payload,
            chunks,
            body: Some(body),
            permit: flow.permit(),
        }
    }

    /// Finds the bucket of a request, and checks its permissions. A request about all buckets, and one that creates its bucket, has none.
    /// PostObject does both itself: its signature is in its body.
    ///
    /// # Errors
    /// `AccessDenied`, `NoSuchBucket`.
    async fn let_in(&self, peer: &Peer, call: &mut S3Call) -> S3Result<()> {
        match call.row.operation {
            S3Operation::PostObject => return Ok(()),
            S3Operation::ListBuckets | S3Operation::CreateBucket => return check(call),
            _ => self.find_bucket(call).await?,
        }
        self.check(call).await?;
        // Also a caller without a key, if the bucket lets it in.
        peer.set_authenticated();
        check_expected_owner(&call.headers, call.found.owner())
    }

    /// Runs the operation. Each has its future on the heap, so that a short one is not as large as the largest.
    fn operate<'a>(&'a self, peer: &'a Peer, call: S3Call) -> BoxFuture<'a, S3Result<S3Answer>> {
        use S3Operation as Of;
        if call.row.support == Support::Absent {
            return std::future::ready(absent(call.row.operation).map(S3Answer::xml)).boxed();
        }
        match call.row.operation {
            Of::GetObject => get::get_object(self, call).boxed(),
            Of::HeadObject => get::head_object(self, call).boxed(),
            Of::PutObject => put::put_object(self, call).boxed(),
            Of::PostObject => post::post_object(self, peer, call).boxed(),
            Of::DeleteObject => delete::delete_object(self, call).boxed(),
            Of::DeleteObjects => delete::delete_objects(self, call).boxed(),
            Of::CopyObject => copy::copy_object(self, call).boxed(),
            Of::GetObjectAttributes => get::get_attributes(self, call).boxed(),
            Of::GetObjectTagging => change::get_tags(self, call).boxed(),
            Of::PutObjectTagging | Of::DeleteObjectTagging => change::set_tags(self, call).boxed(),
            Of::ListObjects | Of::ListObjectsV2 | Of::ListObjectVersions => {
                buckets::list_objects(self, call).boxed()
            }
            Of::ListBuckets => buckets::list_buckets(self, call).boxed(),
            Of::CreateBucket => buckets::create_bucket(self, call).boxed(),
            Of::DeleteBucket => buckets::delete_bucket(self, call).boxed(),
            Of::HeadBucket => std::future::ready(Ok(buckets::head_bucket(self))).boxed(),
            Of::GetBucketLocation => std::future::ready(Ok(buckets::location(self))).boxed(),
            Of::CreateMultipartUpload => begin::create_upload(self, call).boxed(),
            Of::UploadPart => part::upload_part(self, call).boxed(),
            Of::UploadPartCopy => part_copy::upload_part_copy(self, call).boxed(),
            Of::CompleteMultipartUpload => complete::complete_upload(self, call).boxed(),
            Of::AbortMultipartUpload => complete::abort_upload(self, call).boxed(),
            Of::ListParts => uploads::list_parts(self, call).boxed(),
            Of::ListMultipartUploads => uploads::list_uploads(self, call).boxed(),
            Of::GetObjectAcl => change::get_acl(self, call).boxed(),
            Of::PutObjectAcl => change::put_acl(self, call).boxed(),
            _ => self.configure(call),
        }
    }

    /// Runs an operation on the settings of a bucket.
    fn configure(&self, call: S3Call) -> BoxFuture<'_, S3Result<S3Answer>> {
        use S3Operation as Of;
        match call.row.operation {
            Of::GetBucketCors => std::future::ready(settings::get_cors(&call)).boxed(),
            Of::GetBucketAcl => std::future::ready(Ok(settings::get_acl(&call))).boxed(),
            Of::PutBucketAcl => settings::put_acl(self, call).boxed(),
            Of::GetBucketPolicy => std::future::ready(settings::get_policy(&call)).boxed(),
            Of::GetBucketPolicyStatus => std::future::ready(settings::get_policy_status(&call)).boxed(),
            Of::PutBucketPolicy => settings::put_policy(self, call).boxed(),
            Of::DeleteBucketPolicy => settings::delete_policy(self, call).boxed(),
            Of::GetBucketTagging => std::future::ready(settings::get_tags(&call)).boxed(),
            Of::PutBucketTagging => settings::put_tags(self, call).boxed(),
            Of::DeleteBucketTagging => settings::delete_tags(self, call).boxed(),
            Of::GetPublicAccessBlock => std::future::ready(settings::get_block(&call)).boxed(),
            Of::PutPublicAccessBlock => settings::put_block(self, call).boxed(),
            Of::DeletePublicAccessBlock => settings::delete_block(self, call).boxed(),
            Of::GetBucketOwnershipControls => std::future::ready(settings::get_ownership(&call)).boxed(),
            Of::PutBucketOwnershipControls => settings::put_ownership(self, call).boxed(),
            Of::DeleteBucketOwnershipControls => settings::delete_ownership(self, call).boxed(),
            Of::PutBucketCors => settings::put_cors(self, call).boxed(),
            Of::DeleteBucketCors => settings::delete_cors(self, call).boxed(),
            Of::GetBucketLifecycleConfiguration => std::future::ready(settings::get_lifecycle(&call)).boxed(),
            Of::PutBucketLifecycleConfiguration => settings::put_lifecycle(self, call).boxed(),
            Of::DeleteBucketLifecycle => settings::delete_lifecycle(self, call).boxed(),
            Of::GetBucketWebsite => std::future::ready(settings::get_website(&call)).boxed(),
            Of::PutBucketWebsite => settings::put_website(self, call).boxed(),
            Of::DeleteBucketWebsite => settings::delete_website(self, call).boxed(),
            other => std::future::ready(Err(S3Error::not_implemented(other.name()))).boxed(),
        }
    }
}

impl HttpProtocol for S3State {
    fn serve<'a>(
        &'a self,
        peer: &'a Peer,
        flow: Arc<ConnectionFlow>,
        request: Request<Incoming>,
    ) -> Boxed<'a, HttpAnswer> {
        Box::pin(async { boxed_answer(self.answer_signed(peer, flow, request).await) })
    }

    fn turn(&self, work: &mut dyn FnMut() -> Waiters) {
        self.store.turn(|| match work() {
            Waiters::One => shoal_engine::Waiting::One,
            Waiters::Several => shoal_engine::Waiting::Several,
        });
    }

    fn gather(&self, work: &mut dyn FnMut()) {
        self.store.gather(work);
    }
}

impl S3State {
    /// Answers a request of a client of S3.
    async fn answer_signed(
        &self,
        peer: &Peer,
        flow: Arc<ConnectionFlow>,
        request: Request<Incoming>,
    ) -> Response<S3Body> {
        let (head, body) = request.into_parts();
        let site = host_of(&head).and_then(|host| site_of_host(host, &self.website_domains, &self.domains));
        let is_of_site = site.is_some();
        let asked = Asked::read(&head, site, &self.domains, !body.is_end_stream());
        let bucket_of_page = match head.headers.contains_key(ORIGIN) {
            true => asked.as_ref().ok().and_then(|asked| asked.target.bucket()).map(ToOwned::to_owned),
            false => None,
        };
        let entry = Entry { given: None, is_of_site, metrics: &self.metrics };
        let mut answer = self.answer_timed((peer, flow), entry, &head, asked, body).await;
        if let Some(bucket) = bucket_of_page {
            answer.headers.extend(headers_for_page(self, &bucket, &head.method, &head.headers));
        }
        answer.into_response(head.method == Method::HEAD)
    }

    /// Answers a request of a caller that another frontend has let in. Its path is `/BUCKET/KEY`, on any host.
    /// The rules of buckets for pages of other origins have no effect.
    pub(crate) async fn answer_given(
        &self,
        peer: &Peer,
        flow: Arc<ConnectionFlow>,
        (principal, metrics): (Principal, &Arc<FrontendMetrics>),
        request: Request<Incoming>,
    ) -> HttpAnswer {
        let (head, body) = request.into_parts();
        let asked = Asked::read(&head, None, &[], !body.is_end_stream());
        let entry = Entry { given: Some(Caller::of(principal)), is_of_site: false, metrics };
        let answer = self.answer_timed((peer, flow), entry, &head, asked, body).await;
        boxed_answer(answer.into_response(head.method == Method::HEAD))
    }

    /// Answers a request, and counts its time.
    async fn answer_timed(
        &self,
        (peer, flow): (&Peer, Arc<ConnectionFlow>),
        entry: Entry<'_>,
        head: &http::request::Parts,
        asked: S3Result<Asked>,
        body: Incoming,
    ) -> S3Answer {
        let operation = || match &asked {
            Ok(asked) => (measured(asked.row.operation), asked.row.operation.name()),
            Err(_) => (Operation::Other, "(no operation)"),
        };
        let mut timer = Timer::begin(entry.metrics, &flow, peer.address, operation);
        let result = {
            // Pinned here and once: the handler is as large as the rest of the task.
            let mut handler = pin!(self.answer((peer, &flow), entry.given, head, asked, body));
            poll_fn(|context| match &mut timer {
                Some(timer) => timer.poll(handler.as_mut(), context),
                None => handler.as_mut().poll(context),
            })
            .await
        };
        let id = self.ids.next();
        let mut answer = result.unwrap_or_else(|error| {
            if error.code == ErrorCode::InternalError {
                tracing::warn!(peer = %peer.address, id, "{error}");
            }
            match entry.is_of_site {
                true => error_page(&error, &id),
                false => S3Answer::error(&error, head.uri.path(), &id),
            }
        });
        if let Some(mut timer) = timer {
            let result = result_of(answer.status.as_u16());
            if answer.body.is_stream() {
                answer.body.set_timer(timer);
            } else {
                timer.end(result);
            }
        }
        let headers = &mut answer.headers;
        headers.insert(SERVER, SERVER_NAME);
        if let Ok(id) = HeaderValue::from_str(&id) {
            headers.insert(REQUEST_ID, id);
        }
        if let Ok(date) = HeaderValue::try_from(http_date_of(self.now_ns() / SECOND_NS)) {
            headers.insert(DATE, date);
        }
        answer
    }
}

/// The way by which a request comes in.
struct Entry<'a> {
    /// The caller that another frontend has let in; `None`: the signature names it.
    given: Option<Caller>,
    /// It came to the host name of a bucket's website.
    is_of_site: bool,
    /// Counts the request.
    metrics: &'a Arc<FrontendMetrics>,
}

/// The metrics' word for an operation.
fn measured(operation: S3Operation) -> Operation {
    use S3Operation as Of;
    match operation {
        Of::GetObject => Operation::Get,
        Of::HeadObject | Of::GetObjectAttributes => Operation::Head,
        Of::PutObject
        | Of::PostObject
        | Of::CopyObject
        | Of::UploadPart
        | Of::UploadPartCopy
        | Of::CompleteMultipartUpload => Operation::Put,
        Of::PutObjectTagging | Of::DeleteObjectTagging => Operation::Update,
        Of::DeleteObject => Operation::Delete,
        Of::DeleteObjects => Operation::MultiDelete,
        Of::ListObjects
        | Of::ListObjectsV2
        | Of::ListObjectVersions
        | Of::ListBuckets
        | Of::ListParts
        | Of::ListMultipartUploads => Operation::List,
        _ => Operation::Other,
    }
}

/// The metrics' word for the status of an answer.
fn result_of(status: u16) -> RequestResult {
    match status {
        ..400 => RequestResult::Ok,
        404 => RequestResult::NotFound,
        409 | 412 => RequestResult::Rejected,
        403 => RequestResult::Denied,
        408 => RequestResult::Cancelled,
        503 | 507 => RequestResult::Refused,
        400..=499 | 501 => RequestResult::Invalid,
        _ => RequestResult::Failed,
    }
}
