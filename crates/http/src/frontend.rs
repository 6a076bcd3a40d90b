//! A frontend: the connections that come in on its listeners, until it stops. Next: `connection/mod.rs` serves a connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use shoal_api::within;
use shoal_frontend::Listeners;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::admission::{AdmittedConnection, Leaves};
use crate::connection;
use crate::counts::ConnectionCounts;
use crate::serve::FrontendParts;

/// Pause after a failed accept: if file descriptors have run out, the next one fails at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Connections without credentials that are closed if the process has no descriptor for a new one.
const EVICTED_FOR_FILES: usize = 64;

/// A frontend that serves a protocol over HTTP.
pub struct Frontend {
    parts: Arc<FrontendParts>,
    counts: Arc<ConnectionCounts>,
    tasks: JoinSet<()>,
    changes: watch::Receiver<()>,
}

impl Frontend {
    /// A frontend without connections. Its metrics read their counts from now on.
    #[must_use]
    pub fn new(parts: FrontendParts) -> Self {
        let changes = parts.security.changes();
        let counts = ConnectionCounts::watched_by(&parts.metrics, &parts.capacity);
        Self { parts: Arc::new(parts), counts, tasks: JoinSet::new(), changes }
    }

    /// Accepts connections. Runs for ever.
    pub async fn accept(&mut self, listeners: &Listeners) {
        let Self { parts, counts, tasks, changes } = self;
        let doubt = async {
            while changes.changed().await.is_ok() {
                parts.capacity.admission.doubt_all();
            }
            std::future::pending::<()>().await
        };
        let accept = async {
            loop {
                match listeners.accept().await {
                    Ok((stream, peer)) => add((parts, counts), tasks, stream, peer),
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection");
                        parts.capacity.admission.evict(EVICTED_FOR_FILES);
                        sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        };
        tokio::select! {
            () = doubt => {}
            () = accept => {}
        }
    }

    /// Waits for the requests under way, at most `drain_max` of the limits, and cuts the rest. The caller has started the drain.
    pub async fn finish(mut self) {
        let ended = async { while self.tasks.join_next().await.is_some() {} };
        if within(self.parts.limits.drain_max, ended).await.is_none() {
            let cut = self.tasks.len();
            tracing::warn!("{cut} connection(s) closed: their requests did not finish in time");
            self.tasks.shutdown().await;
        }
    }
}

/// Serves a new connection as one of `tasks`.
fn add(
    (parts, counts): (&Arc<FrontendParts>, &Arc<ConnectionCounts>),
    tasks: &mut JoinSet<()>,
    stream: TcpStream,
    peer: SocketAddr,
) {
    while tasks.try_join_next().is_some() {}
    let FrontendParts { capacity, limits, security, .. } = &**parts;
    let admitted =
        AdmittedConnection::enter(&capacity.admission, limits.unauthenticated_max, security.clone());
    let Some(admitted) = admitted.map(Arc::new) else { return counts.note_refused() };
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%peer, %error, "closed at once");
        return;
    }
    let (parts, counted) = (Arc::clone(parts), counts.open());
    tasks.spawn(async move {
        let served = connection::serve(stream, peer, Arc::clone(&admitted), &parts);
        match admitted.hold(served).await {
            Ok(()) => {}
            Err(Leaves::Evicted) => {
                counted.note_evicted();
                tracing::debug!(%peer, "closed: a new connection took its place");
            }
            Err(Leaves::Overdue) => {
                counted.note_overdue();
                parts.capacity.admission.note_overdue();
                tracing::info!(%peer, "closed: it showed no credentials in time");
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use shoal_metrics::Metrics;
    use shoal_storekit::{eventually, in_time};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::capacity::Capacity;
    use crate::limits::ServerLimits;
    use crate::testing::start;

    /// A connection over which a request of `bytes` was started: its body has not been sent.
    async fn request(address: SocketAddr, bytes: usize) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let head = format!("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: {bytes}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        stream
    }

    /// The status of the answer.
    async fn status(stream: &mut TcpStream) -> String {
        let mut line = [0; 12];
        in_time("an answer", stream.read_exact(&mut line)).await.unwrap();
        String::from_utf8_lossy(&line[9..]).into_owned()
    }

    /// Two frontends hold no more than one: neither memory nor connections.
    #[tokio::test]
    async fn two_frontends_share_one_capacity() {
        let limits =
            ServerLimits { connections_max: 2, bytes_in_flight_max: 1_500, ..ServerLimits::default() };
        let (capacity, metrics) = (Capacity::new(&limits), Metrics::default());
        let one = start((&capacity, metrics.grpc()), &limits);
        let other = start((&capacity, metrics.s3()), &limits);
        let counts = || {
            [metrics.grpc(), metrics.s3()].map(|frontend| {
                let it = frontend.connections().unwrap();
                (it.open, it.opened, it.evicted)
            })
        };
        let mut first = request(one, 1_000).await;
        assert_eq!(status(&mut first).await, "200");
        assert_eq!((capacity.usage().open, capacity.usage().memory_bytes), (1, 1_000));
        let mut second = request(other, 600).await;
        assert_eq!(status(&mut second).await, "503", "the other frontend has the memory");
        assert_eq!(capacity.usage().memory_refusals, 1);
        drop(second);
        eventually("the second connection's end", || async { counts() == [(1, 1, 0), (0, 1, 0)] }).await;
        assert_eq!(capacity.usage().open, 1);
        let mut third = request(other, 400).await;
        assert_eq!(status(&mut third).await, "200");
        let mut fourth = request(other, 0).await;
        assert_eq!(status(&mut fourth).await, "200");
        let mut rest = Vec::new();
        let closed = in_time("the end of the oldest connection", first.read_to_end(&mut rest)).await;
        assert!(closed.is_err() || rest.ends_with(b"\r\n\r\n"), "it answers no more");
        assert_eq!((capacity.usage().open, capacity.usage().evicted), (2, 1));
        eventually("its own frontend counts it", || async { counts() == [(0, 1, 1), (2, 3, 0)] }).await;
    }
}
