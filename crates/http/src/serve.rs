//! The wall between a connection and the protocol on it: requests go one way, answers the other.

use std::net::SocketAddr;
use std::sync::Arc;

use http_body::Body;
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use shoal_base::task::Boxed;
use shoal_buffer::Buffer;
use shoal_frontend::Security;
use shoal_metrics::FrontendMetrics;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::admission::AdmittedConnection;
use crate::capacity::Capacity;
use crate::flow::ConnectionFlow;
use crate::limits::ServerLimits;

/// The clients of a connection's thread that wait for writes in its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiters {
    /// One client, as far as this thread knows: no other connection is open, and no answer is ready.
    One,
    /// Possibly several.
    Several,
}

/// The body of an answer of any protocol.
pub type AnswerBody = UnsyncBoxBody<Box<Buffer>, Box<dyn std::error::Error + Send + Sync>>;

/// The answer to a request of any protocol.
pub type HttpAnswer = http::Response<AnswerBody>;

/// `answer` with its body on the heap.
pub fn boxed_answer<B>(answer: http::Response<B>) -> HttpAnswer
where
    B: Body<Data = Box<Buffer>, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
{
    answer.map(|body| body.map_err(Into::into).boxed_unsync())
}

/// A protocol over HTTP: it answers the requests of all connections.
///
/// Connections use it as a trait object, with one type of futures and one of bodies: so HTTP, whose code is long, is compiled once for all
/// protocols.
pub trait HttpProtocol: Send + Sync + 'static {
    /// Answers `request` of `peer`, on the connection of `flow`. The memory of the request and its answer is counted by a permit of `flow`.
    fn serve<'a>(
        &'a self,
        peer: &'a Peer,
        flow: Arc<ConnectionFlow>,
        request: http::Request<Incoming>,
    ) -> Boxed<'a, HttpAnswer>;

    /// Runs `work`, which polls requests of one connection on this thread. The writes that they queue may reach the device together; if one
    /// client waits, this thread may write them itself.
    fn turn(&self, work: &mut dyn FnMut() -> Waiters);

    /// Runs `work`, which polls requests again after such a write. The writes that they queue may reach the device together.
    fn gather(&self, work: &mut dyn FnMut());
}

/// The other end of a connection.
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// The name in the certificate that it showed.
    pub certificate: Option<Arc<str>>,
    pub(crate) admitted: Arc<AdmittedConnection>,
    /// The earliest expiry of that certificate and its issuers; `None`: never.
    pub(crate) expires: Option<Instant>,
}

impl Peer {
    /// Notes that it has shown credentials, or that none are needed: its connection may stay.
    #[inline]
    pub fn set_authenticated(&self) {
        self.admitted.set_authenticated();
    }
}

/// The parts of a frontend that all its connections use.
pub struct FrontendParts {
    /// Answers the requests.
    pub protocol: Arc<dyn HttpProtocol>,
    /// The connections and the memory that it may take, which other frontends may share.
    pub capacity: Arc<Capacity>,
    /// TLS, and whether callers have to show credentials.
    pub security: Security,
    /// Its counters of bytes.
    pub metrics: Arc<FrontendMetrics>,
    /// Bounds on a connection. Those on all of them are the capacity's.
    pub limits: ServerLimits,
    /// Becomes true when the server stops: no connection takes further requests then.
    pub drain: watch::Receiver<bool>,
}
