//! [`SpaceClient`]: calls the owner from another process.
//!
//! A client is one session, kept alive by a separate task. Calls that change something run one after the other, because each has the next
//! sequence; several clients do not wait for each other. A call whose answer was lost is repeated with the same sequence, so it is executed
//! once. If no repeat is answered in time, the outcome is unknown: the client is over, stops its renewals, and its session expires on the
//! owner's side with its time to live.

use std::sync::Arc;
use std::time::Duration;

use http::uri::PathAndQuery;
use shoal_api::{BytesCodec, OutgoingMessage, Unary, decode};
use shoal_base::Run;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request};

use crate::state::Status;
use crate::{MESSAGE_BYTES_MAX, runs_from, runs_into, v1};

/// A session is renewed once in this part of its time to live.
const RENEWED_PART: u32 = 3;

/// Pause before a call is repeated.
const REPEAT_PAUSE: Duration = Duration::from_millis(20);

/// How a client is run.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The address of the service: `http://HOST:PORT`.
    pub server: String,
    /// The owner fences a client that is silent for longer.
    pub time_to_live: Duration,
    /// A call is tried for this long.
    pub timeout: Duration,
}

impl ClientOptions {
    /// The service at `server`, with 30 s to live and 10 s for a call.
    #[must_use]
    pub fn new(server: impl Into<String>) -> Self {
        Self {
            server: server.into(),
            time_to_live: Duration::from_secs(30),
            timeout: Duration::from_secs(10),
        }
    }
}

/// The reason why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// The session ended: space that it leased and did not commit is free for others.
    #[error("the session was fenced")]
    Fenced,
    /// No free space of the wanted shape, or a limit of the service. Nothing was changed.
    #[error("{0}")]
    NoSpace(String),
    /// The owner refuses the call. Nothing was changed.
    #[error("{0}")]
    Refused(String),
    /// The service does not answer. The outcome of a call that changes something is unknown; the client is over.
    #[error("no answer: {0}")]
    Unavailable(String),
}

/// A session with the owner.
#[derive(Clone)]
pub struct SpaceClient {
    inner: Arc<Inner>,
}

struct Inner {
    channel: Channel,
    session: u64,
    blocks: u64,
    group_blocks: u32,
    timeout: Duration,
    /// The sequence of the last call that changed something; none once its outcome is not known.
    sequence: Mutex<Option<u64>>,
    renewing: JoinHandle<()>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.renewing.abort();
    }
}

impl SpaceClient {
    /// Connects, and starts a session.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn connect(options: &ClientOptions) -> Result<Self, ClientError> {
        let endpoint = Endpoint::from_shared(options.server.clone())
            .map_err(|error| ClientError::Refused(format!("{:?}: {error}", options.server)))?
            .connect_timeout(options.timeout)
            // A connection that died silently is reopened before the session's time is over.
            .http2_keep_alive_interval(options.time_to_live / RENEWED_PART)
            .keep_alive_timeout(options.time_to_live / RENEWED_PART)
            .keep_alive_while_idle(true)
            .tcp_nodelay(true);
        let channel = endpoint.connect().await.map_err(|error| {
            ClientError::Unavailable(format!("{}: {}", options.server, innermost(&error)))
        })?;
        let time_to_live_ms = u32::try_from(options.time_to_live.as_millis()).unwrap_or(u32::MAX);
        let open = call::<v1::Open>(&channel, v1::OpenRequest { time_to_live_ms }, options.timeout);
        let opened = open.await.map_err(Failure::into_error)?;
        let renewing = tokio::spawn(renew(channel.clone(), opened.session, options.time_to_live));
        let inner = Inner {
            channel,
            session: opened.session,
            blocks: opened.blocks,
            group_blocks: opened.group_blocks,
            timeout: options.timeout,
            sequence: Mutex::new(Some(0)),
            renewing,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The session's number: the fencing token.
    #[must_use]
    pub fn session(&self) -> u64 {
        self.inner.session
    }

    /// Blocks of the space.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.inner.blocks
    }

    /// Blocks of a group.
    #[must_use]
    pub fn group_blocks(&self) -> u32 {
        self.inner.group_blocks
    }

    /// A run of `blocks` blocks, for good.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn allocate(&self, blocks: u32) -> Result<Run, ClientError> {
        let mut values = self.allocate_batch(&[blocks], 1).await?;
        let run = values.pop().and_then(|mut runs| runs.pop());
        run.ok_or_else(|| ClientError::Refused("the answer has no run".into()))
    }

    /// Runs for each of `sizes`, at most `runs_max` for one, for good: all of them or none.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn allocate_batch(&self, sizes: &[u32], runs_max: u32) -> Result<Vec<Vec<Run>>, ClientError> {
        let session = self.inner.session;
        let answer = self.change::<v1::Allocate>(|sequence| v1::AllocateRequest {
            session,
            sequence,
            sizes: sizes.to_vec(),
            runs_max,
        });
        Ok(answer.await?.values.into_iter().map(|value| runs_from(value.runs)).collect())
    }

    /// Frees blocks that were allocated for good and are not part of a lease.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn free(&self, runs: &[Run]) -> Result<(), ClientError> {
        let session = self.inner.session;
        let answer =
            self.change::<v1::Free>(|sequence| v1::FreeRequest { session, sequence, runs: runs_into(runs) });
        answer.await.map(drop)
    }

    /// The use of the space.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn status(&self) -> Result<Status, ClientError> {
        let answer = call::<v1::Status>(&self.inner.channel, v1::StatusRequest {}, self.inner.timeout).await;
        let status = answer.map_err(Failure::into_error)?;
        Ok(Status {
            blocks: status.blocks,
            free_blocks: status.free_blocks,
            leased_blocks: status.leased_blocks,
            committed_blocks: status.committed_blocks,
            sessions: status.sessions,
            leases: status.leases,
        })
    }

    /// Closes the session: space that it leased and did not commit is free again.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn close(self) -> Result<(), ClientError> {
        self.inner.renewing.abort();
        let request = v1::CloseRequest { session: self.inner.session };
        let closed = call::<v1::Close>(&self.inner.channel, request, self.inner.timeout).await;
        closed.map(drop).map_err(Failure::into_error)
    }

    pub(crate) async fn grant(&self, groups: usize) -> Result<(u64, Vec<Run>), ClientError> {
        let session = self.inner.session;
        let groups = u32::try_from(groups).unwrap_or(u32::MAX);
        let answer = self.change::<v1::Grant>(|sequence| v1::GrantRequest { session, sequence, groups });
        let granted = answer.await?;
        Ok((granted.lease, runs_from(granted.groups)))
    }

    pub(crate) async fn commit(&self, lease: u64, kept: &[Run], freed: &[Run]) -> Result<(), ClientError> {
        let session = self.inner.session;
        let answer = self.change::<v1::Commit>(|sequence| v1::CommitRequest {
            session,
            sequence,
            lease,
            kept: runs_into(kept),
            freed: runs_into(freed),
        });
        answer.await.map(drop)
    }

    pub(crate) async fn give_back(&self, lease: u64) -> Result<(), ClientError> {
        let session = self.inner.session;
        let answer = self.change::<v1::GiveBack>(|sequence| v1::GiveBackRequest { session, sequence, lease });
        answer.await.map(drop)
    }

    /// A call that changes something: repeated until its outcome is known, or there is no more time.
    async fn change<M: Unary>(
        &self,
        request: impl Fn(u64) -> M::Request,
    ) -> Result<M::Response, ClientError> {
        let mut last = self.inner.sequence.lock().await;
        let over = || ClientError::Unavailable("the outcome of an earlier call is not known".into());
        let sequence = last.ok_or_else(over)? + 1;
        // A call that is dropped here leaves the outcome open.
        *last = None;
        let mut outcome = Outcome { renewing: &self.inner.renewing, is_known: false };
        let tries = async {
            loop {
                match call::<M>(&self.inner.channel, request(sequence), self.inner.timeout).await {
                    Err(Failure::Open(_)) => sleep(REPEAT_PAUSE).await,
                    known => return known,
                }
            }
        };
        let tried = timeout(self.inner.timeout, tries).await;
        outcome.is_known = tried.is_ok();
        match tried {
            Ok(Ok(answer)) => {
                *last = Some(sequence);
                Ok(answer)
            }
            Ok(Err(failure)) => {
                // Refused: nothing was changed, and the sequence is unused.
                *last = Some(sequence - 1);
                Err(failure.into_error())
            }
            Err(_) => {
                Err(ClientError::Unavailable(format!("silent for {} s", self.inner.timeout.as_secs_f64())))
            }
        }
    }
}

/// The outcome of a call. If it stays unknown, the renewals stop, and the owner takes back the leases.
struct Outcome<'a> {
    renewing: &'a JoinHandle<()>,
    is_known: bool,
}

impl Drop for Outcome<'_> {
    fn drop(&mut self) {
        if !self.is_known {
            self.renewing.abort();
        }
    }
}

/// A call that failed.
enum Failure {
    /// The call was not executed.
    Known(ClientError),
    /// The call may have been executed.
    Open(String),
}

impl Failure {
    fn into_error(self) -> ClientError {
        match self {
            Self::Known(error) => error,
            Self::Open(why) => ClientError::Unavailable(why),
        }
    }
}

async fn call<M: Unary>(
    channel: &Channel,
    request: M::Request,
    longest: Duration,
) -> Result<M::Response, Failure> {
    let mut grpc = Grpc::new(channel.clone())
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let answer = async {
        grpc.ready().await.map_err(|error| Failure::Open(innermost(&error)))?;
        let path = PathAndQuery::from_static(M::PATH);
        let answer = grpc.unary(Request::new(OutgoingMessage::of(request)), path, BytesCodec).await;
        answer.and_then(|answer| decode(answer.into_inner())).map_err(|status| {
            let message = status.message().to_owned();
            match status.code() {
                Code::Aborted => Failure::Known(ClientError::Fenced),
                Code::ResourceExhausted => Failure::Known(ClientError::NoSpace(message)),
                Code::FailedPrecondition | Code::InvalidArgument | Code::Unimplemented => {
                    Failure::Known(ClientError::Refused(message))
                }
                _ => Failure::Open(message),
            }
        })
    };
    let silent = |_| Err(Failure::Open(format!("silent for {} s", longest.as_secs_f64())));
    timeout(longest, answer).await.unwrap_or_else(silent)
}

/// Renews the session until the owner refuses; otherwise runs for ever. The next renewal replaces one that hangs.
async fn renew(channel: Channel, session: u64, time_to_live: Duration) {
    let every = time_to_live / RENEWED_PART;
    let mut turns = interval(every);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        turns.tick().await;
        let renewed = call::<v1::Renew>(&channel, v1::RenewRequest { session }, every).await;
        if let Err(Failure::Known(_)) = renewed {
            return;
        }
    }
}

/// The first cause of an error: "Connection refused", not "transport error".
fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}
