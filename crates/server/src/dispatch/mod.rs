//! Admits requests, and the one table of methods: from the path of a request to its operation. Next: `call/unary.rs` runs a call of one
//! message.
//!
//! Places to change for a new method, as GetStream has them (a test checks the list):
//!
//! - `crates/api/proto/shoal/v1/object_store.proto`: the method and its messages; `cargo x proto` writes the code, and the
//!   generators in `clients/` write theirs;
//! - `crates/server/src/operations/value_stream.rs`: the method, in a file of `operations`;
//! - `crates/server/src/dispatch/mod.rs`: its route, and [`is_stream`] if its caller decides how long it takes;
//! - `crates/server/src/auth/methods.rs`: the actions that its caller needs a grant for;
//! - `crates/server/src/call/with_value.rs`: the fields with values, and whether it writes;
//! - `crates/server/src/timing.rs`: the metrics' operation;
//! - `crates/server/tests/serve/rights.rs`: callers with too few rights;
//! - `crates/client/src/get_stream.rs`: the client's call, which `lib.rs` exports;
//! - `crates/transfer/src/objects/mod.rs`: the same for a store that is served or embedded, if a command needs it;
//! - `clients/python/src/shoal/_steps.py`: the method of the Python client, with `client.py` and `aio.py`;
//! - `docs/format/grpc.md`: the rules that the schema cannot express;
//! - `docs/operate/metrics.md`: the method at its operation.

pub(crate) mod standard;
pub(crate) mod web;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Either};
use hyper::body::Incoming;
use shoal_api::{Method, OPERATIONS_MESSAGE_BYTES_MAX, SEQUENCE_HEADER, SESSION_HEADER, key_value as kv, v1};
use shoal_engine::RequestId;
use shoal_frontend::MinRate;
use shoal_http::{Capacity, ConnectionFlow, MemoryPermit, Peer, Timer, deadline_after};
use shoal_metrics::Metrics;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout_at;
use tonic::Status;

use self::standard::Standard;
use self::web::{Dialect, Origins};
use crate::answer::body::ResponseBody;
use crate::answer::gzip;
use crate::auth::{Caller, Denied, Gate, Revoked, Shown};
use crate::call::body::RequestBody;
use crate::call::decode::Decoders;
use crate::call::streams::{self, PART_BYTES_MAX, StreamLimits, server_streaming};
use crate::call::unary::{storing, unary, whole};
use crate::call::{Call, HttpResponse, refuse};
use crate::failure::Failure;
use crate::operations::backup::Backups;
use crate::operations::report::ReportSource;
use crate::operations::stat::{Counters, ServerFigures, stat};
use crate::operations::{
    backup, buckets, delete, free_space, get, grow, head, key_value, list, multi_delete, multi_get,
    multi_put, operation_stream, put, relocation, value_stream,
};
use crate::timing::{StreamTimer, answered, operation_of};

/// The header in which a client names the compression of its messages.
const ENCODING_HEADER: &str = "grpc-encoding";

/// The compression of a request's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    /// No compression.
    Plain,
    Gzip,
    /// An unknown one, or one that is not accepted here.
    Other,
}

impl Encoding {
    fn of(headers: &http::HeaderMap, takes_gzip: bool) -> Self {
        match headers.get(ENCODING_HEADER).map(http::HeaderValue::as_bytes) {
            None | Some(b"identity") => Self::Plain,
            Some(b"gzip") if takes_gzip => Self::Gzip,
            Some(_) => Self::Other,
        }
    }
}

/// The header with a client's timeout.
const TIMEOUT_HEADER: &str = "grpc-timeout";

/// The state that all requests share.
pub(crate) struct Dispatch {
    pub(crate) gate: Gate,
    /// The bucket of `io.grpc.KeyValueService`.
    pub(crate) kv_bucket: String,
    /// True if requests may be compressed, and answers are compressed for clients that accept it.
    pub(crate) gzip: bool,
    pub(crate) gzip_answers: bool,
    pub(crate) origins: Origins,
    pub(crate) standard: Standard,
    pub(crate) counters: Counters,
    pub(crate) capacity: Arc<Capacity>,
    pub(crate) min_rate: MinRate,
    /// The time for which a message waits for room.
    pub(crate) room_wait_max: Duration,
    /// The backups that are being sent.
    pub(crate) backups: Backups,
    /// Held while the free runs are read.
    pub(crate) free_space_permits: Arc<Semaphore>,
    /// True from the moment when the server starts to stop.
    pub(crate) draining: watch::Receiver<bool>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) report: ReportSource,
    /// True if health checks need no credentials.
    pub(crate) open_health: bool,
}

impl Dispatch {
    /// Answers one request.
    pub(crate) async fn answer(
        &self,
        peer: &Peer,
        flow: Arc<ConnectionFlow>,
        request: http::Request<Incoming>,
    ) -> HttpResponse {
        self.counters.requests.fetch_add(1, Ordering::Relaxed);
        if let Some(answer) = self.origins.preflight(&request) {
            return answer;
        }
        let Some(dialect) = Dialect::of(&request) else {
            // The answer of the gRPC protocol for other requests.
            return web::empty(http::StatusCode::UNSUPPORTED_MEDIA_TYPE);
        };
        let origin = match self.origins.admit(&request) {
            Ok(origin) => origin,
            Err(status) => return web::empty(status),
        };
        let is_packed = self.gzip_answers && gzip::is_accepted(request.headers());
        let encoding = Encoding::of(request.headers(), self.gzip);
        let operation = || operation_of(request.uri().path());
        let mut timer = Timer::begin(self.metrics.grpc(), &flow, peer.address, operation);
        let mut answer = {
            // Pinned here and once: the handler is as large as the rest of the task.
            let mut handler = pin!(self.in_time(peer, flow, request, dialect));
            poll_fn(|context| match &mut timer {
                Some(timer) => timer.poll(handler.as_mut(), context),
                None => handler.as_mut().poll(context),
            })
            .await
            .unwrap_or_else(refuse)
        };
        let is_stream = answer.body().is_stream();
        if let Some(timer) = timer.and_then(|timer| answered(timer, answer.headers(), is_stream)) {
            answer = answer.map(|body| body.timed(timer));
        }
        if encoding == Encoding::Other {
            gzip::announce_accepted(answer.headers_mut(), self.gzip);
        }
        if is_packed {
            gzip::announce(answer.headers_mut());
            answer = answer.map(ResponseBody::packed);
        }
        web::allow(dialect.dress(answer), origin)
    }

    /// Answers a request before its deadline, if it has one. A late handler is dropped with everything that it holds.
    async fn in_time(
        &self,
        peer: &Peer,
        flow: Arc<ConnectionFlow>,
        request: http::Request<Incoming>,
        dialect: Dialect,
    ) -> Result<HttpResponse, Failure> {
        let Some(timeout) = timeout_of(request.headers())? else {
            return self.admit(peer, flow, request, dialect)?.await;
        };
        let deadline = deadline_after(timeout);
        let answer = self.admit(peer, flow, request, dialect)?;
        let answer = timeout_at(deadline, answer).await.map_err(|_| Failure::deadline())??;
        Ok(answer.map(|body| body.until(deadline)))
    }

    /// Checks a request before its handler, and returns the future of its answer.
    fn admit(
        &self,
        peer: &Peer,
        flow: Arc<ConnectionFlow>,
        request: http::Request<Incoming>,
        dialect: Dialect,
    ) -> Result<impl Future<Output = Result<HttpResponse, Failure>>, Failure> {
        let headers = request.headers();
        let request_id = request_id(headers)?;
        let encoding = Encoding::of(headers, self.gzip);
        let is_packed = encoding == Encoding::Gzip;
        let authorization = headers.get(http::header::AUTHORIZATION).cloned();
        let path = request.uri().clone();
        let permit = flow.permit();
        let mut request = request.map(|body| {
            RequestBody::new(body, Arc::clone(&permit), self.min_rate, self.room_wait_max)
                .decoded(Decoders::new(dialect.is_text(), is_packed))
        });
        if is_packed {
            request.headers_mut().remove(ENCODING_HEADER);
        }
        let caller = Caller {
            address: peer.address.ip(),
            certificate: peer.certificate.as_ref(),
            authorization: authorization.as_ref().map(http::HeaderValue::as_bytes),
        };
        if self.open_health && path.path() == standard::HEALTH_CHECK {
            // On the heap: it is rare, and would double the size of every request's task.
            return Ok(Either::Left(self.tell_health(request, permit).boxed()));
        }
        let admitted = self.gate.admit(caller, request).map_err(|denied| {
            // The operator learns of refused callers; the program's log limits repeats of a cause.
            tracing::warn!(peer = %peer.address, "refused: {denied}");
            match denied {
                Denied::Address(_) => Failure::denied(denied.to_string()),
                Denied::Missing { .. }
                | Denied::Unknown
                | Denied::Expired
                | Denied::Unnamed
                | Denied::OtherRights => Failure::unauthenticated(denied.to_string()),
            }
        })?;
        if encoding == Encoding::Other {
            let problem = "the encoding of the request's messages (grpc-encoding) is not supported; \
                           grpc-accept-encoding has those that it takes";
            return Err(Failure::encoding(problem));
        }
        peer.set_authenticated();
        shoal_metrics::note_caller(admitted.principal().identity());
        let revoked = is_stream(path.path()).then(|| {
            let certificate = peer.certificate.clone();
            let principal = admitted.principal().clone();
            let address = peer.address.ip();
            Shown { gate: self.gate.clone(), principal, address, certificate, authorization }.revoked()
        });
        let call = Call { request: admitted.with_request_id(request_id), flow, permit };
        Ok(Either::Right(async move { Ok(self.route_watched(path.path(), call, revoked, peer).await) }))
    }

    /// Answers a health check without credentials; the connection still counts as one that showed none.
    async fn tell_health(
        &self,
        request: http::Request<RequestBody>,
        permit: Arc<MemoryPermit>,
    ) -> Result<HttpResponse, Failure> {
        Ok(self.standard.tell_health(request, permit).await)
    }

    /// As [`Self::route`]; `revoked` stops a stream whose caller may not have it any more.
    fn route_watched<'a>(
        &'a self,
        path: &'a str,
        call: Call,
        revoked: Option<Revoked>,
        peer: &Peer,
    ) -> BoxFuture<'a, HttpResponse> {
        let Some(revoked) = revoked else { return self.route(path, call) };
        let limits = |message_bytes_max| StreamLimits { message_bytes_max, wait_max: self.room_wait_max };
        match path {
            v1::PutStream::PATH => {
                let operation = |request| value_stream::put_stream(request, revoked);
                streams::client_streaming::<v1::PutStream, _>(call, limits(PART_BYTES_MAX), operation).boxed()
            }
            v1::Operations::PATH if call.request.request_id().is_some() => {
                let problem = "a stream of operations has no request id: each operation has its own";
                std::future::ready(refuse(Failure::invalid(problem))).boxed()
            }
            v1::Operations::PATH => {
                let permit = Arc::clone(&call.permit);
                let timer =
                    StreamTimer::new(Arc::clone(&self.metrics), peer.address, call.request.principal());
                let operations =
                    |request| operation_stream::run(request, permit, self.draining.clone(), revoked, timer);
                let answer = streams::bidirectional::<v1::Operations, _>(
                    call,
                    limits(OPERATIONS_MESSAGE_BYTES_MAX),
                    operations,
                );
                std::future::ready(answer).boxed()
            }
            _ => {
                let answer = self.route(path, call);
                async move { answer.await.map(|body| body.while_allowed(revoked)) }.boxed()
            }
        }
    }

    /// The future of the answer of the method at `path`. Each method's is on the heap, so that a short call is not as large as the largest:
    /// the future is moved several times.
    fn route<'a>(&'a self, path: &'a str, call: Call) -> BoxFuture<'a, HttpResponse> {
        let bucket = &self.kv_bucket;
        let permit = Arc::clone(&call.permit);
        match path {
            v1::Put::PATH => storing::<v1::Put, _, _>(call, put::place, put::put).boxed(),
            v1::Get::PATH => unary::<v1::Get, _, _>(call, |request| get::get(request, permit)).boxed(),
            v1::Head::PATH => unary::<v1::Head, _, _>(call, head::head).boxed(),
            v1::Delete::PATH => unary::<v1::Delete, _, _>(call, delete::delete).boxed(),
            kv::Create::PATH => {
                let place = |admitted: &_, request: &kv::CreateRequest, value_bytes| {
                    put::place_value::<kv::Create>(admitted, bucket, &request.key, value_bytes)
                };
                storing::<kv::Create, _, _>(call, place, |request| key_value::create(request, bucket)).boxed()
            }
            kv::Retrieve::PATH => {
                unary::<kv::Retrieve, _, _>(call, |request| key_value::retrieve(request, bucket, permit))
                    .boxed()
            }
            kv::Update::PATH => {
                let place = |admitted: &_, request: &kv::UpdateRequest, value_bytes| {
                    put::place_value::<kv::Update>(admitted, bucket, &request.key, value_bytes)
                };
                storing::<kv::Update, _, _>(call, place, |request| key_value::update(request, bucket)).boxed()
            }
            kv::Delete::PATH => {
                unary::<kv::Delete, _, _>(call, |request| key_value::delete(request, bucket)).boxed()
            }
            v1::List::PATH => whole::<v1::List, _>(call, false, list::list).boxed(),
            v1::ListBuckets::PATH => unary::<v1::ListBuckets, _, _>(call, buckets::list_buckets).boxed(),
            v1::MultiGet::PATH => whole::<v1::MultiGet, _>(call, false, multi_get::multi_get).boxed(),
            v1::MultiPut::PATH => whole::<v1::MultiPut, _>(call, true, multi_put::multi_put).boxed(),
            v1::MultiDelete::PATH => {
                whole::<v1::MultiDelete, _>(call, true, multi_delete::multi_delete).boxed()
            }
            v1::GetStream::PATH => {
                server_streaming::<v1::GetStream, _, _, _>(call, value_stream::get_stream).boxed()
            }
            v1::Stat::PATH => {
                let Self { counters, capacity, metrics, .. } = self;
                let server = ServerFigures { counters, capacity, metrics };
                unary::<v1::Stat, _, _>(call, async move |request| stat(&request, &server)).boxed()
            }
            v1::Report::PATH => {
                unary::<v1::Report, _, _>(call, async |request| self.report.report(&request)).boxed()
            }
            v1::Moving::PATH => {
                unary::<v1::Moving, _, _>(call, async |request| relocation::relocation(request)).boxed()
            }
            v1::Grow::PATH => unary::<v1::Grow, _, _>(call, grow::grow).boxed(),
            v1::Backup::PATH => {
                let backup = async |request| backup::backup(request, &self.backups).await;
                server_streaming::<v1::Backup, _, _, _>(call, backup).boxed()
            }
            v1::FreeSpace::PATH => {
                let runs = async |request| free_space::free_space(request, &self.free_space_permits);
                server_streaming::<v1::FreeSpace, _, _, _>(call, runs).boxed()
            }
            _ => async move {
                match self.standard.answer(path, call, &self.draining).await {
                    Ok(response) => response,
                    Err(_call) => Status::unimplemented(format!("there is no method {path}")).into_http(),
                }
            }
            .boxed(),
        }
    }
}

/// Returns true if the method at `path` streams until its caller stops it.
fn is_stream(path: &str) -> bool {
    let ours = [
        v1::PutStream::PATH,
        v1::GetStream::PATH,
        v1::Operations::PATH,
        v1::FreeSpace::PATH,
        v1::Backup::PATH,
    ];
    ours.contains(&path) || standard::is_stream(path)
}

/// The request id of a write, if its sender set one: its session, and its number there.
fn request_id(headers: &http::HeaderMap) -> Result<Option<RequestId>, Failure> {
    let number = |name: &str| {
        let Some(value) = headers.get(name) else { return Ok(None) };
        let number = value.to_str().ok().and_then(|text| text.parse::<u64>().ok());
        number.map(Some).ok_or_else(|| Failure::invalid(format!("{name} is a number")))
    };
    match (number(SESSION_HEADER)?, number(SEQUENCE_HEADER)?) {
        (None, None) => Ok(None),
        (Some(session), Some(sequence)) => Ok(Some(RequestId { session, sequence })),
        _ => Err(Failure::invalid(format!("{SESSION_HEADER} and {SEQUENCE_HEADER} belong together"))),
    }
}

/// The client's timeout for the call, if it set one.
fn timeout_of(headers: &http::HeaderMap) -> Result<Option<Duration>, Failure> {
    let Some(value) = headers.get(TIMEOUT_HEADER) else { return Ok(None) };
    let timeout = parse_timeout(value.as_bytes());
    timeout
        .map(Some)
        .ok_or_else(|| Failure::invalid(format!("{TIMEOUT_HEADER} is up to 8 digits and a unit")))
}

/// The time in `text`: one to eight digits, and a letter for the unit.
fn parse_timeout(text: &[u8]) -> Option<Duration> {
    let (&unit, digits) = text.split_last()?;
    if !(1..=8).contains(&digits.len()) || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let count = digits.iter().fold(0, |count, digit| count * 10 + u64::from(digit - b'0'));
    match unit {
        b'H' => Some(Duration::from_secs(count * 3600)),
        b'M' => Some(Duration::from_secs(count * 60)),
        b'S' => Some(Duration::from_secs(count)),
        b'm' => Some(Duration::from_millis(count)),
        b'u' => Some(Duration::from_micros(count)),
        b'n' => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The size of the result of a function of this shape, in bytes.
    fn size_given<'a, R>(
        _: impl FnOnce(&'a Dispatch, &'a Peer, Arc<ConnectionFlow>, http::Request<Incoming>) -> R,
    ) -> usize {
        size_of::<R>()
    }

    #[test]
    fn listed_places_name_the_example_method() {
        let root = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        assert_eq!(shoal_testkit::places::lacking(root, include_str!("mod.rs"), "GetStream"), [""; 0]);
    }

    /// Every request's task is copied to its place, for any method. A regression: it had 27 KiB, a seventh of the time of a get of 64 KiB.
    #[test]
    fn the_task_of_a_request_is_small() {
        let bytes = size_given(Dispatch::answer);
        assert!(bytes <= 2816, "{bytes} bytes");
    }

    #[test]
    fn timeouts() {
        for (text, expected) in [
            ("1H", Some(Duration::from_secs(3600))),
            ("2M", Some(Duration::from_secs(120))),
            ("03S", Some(Duration::from_secs(3))),
            ("99999999m", Some(Duration::from_millis(99_999_999))),
            ("5u", Some(Duration::from_micros(5))),
            ("0n", Some(Duration::ZERO)),
            ("100000000n", None),
            ("S", None),
            ("", None),
            ("5", None),
            ("-5S", None),
            ("5s", None),
        ] {
            assert_eq!(parse_timeout(text.as_bytes()), expected, "{text}");
        }
    }
}
