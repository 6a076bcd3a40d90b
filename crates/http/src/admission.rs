//! The time in which a connection must show credentials, and the notice that it has to leave for a new one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_util::future::poll_fn;
use shoal_api::AwakeSleep;
use shoal_frontend::Security;
use tokio::sync::Notify;

/// A connection whose time is over gets an error in its protocol, and is cut this much later.
const FAREWELL_MAX: Duration = Duration::from_secs(1);

/// All connections.
pub(crate) type Admission = shoal_frontend::Admission<Eviction>;

/// Wakes a connection that has to go.
#[derive(Debug, Default)]
pub(crate) struct Eviction(Notify);

impl shoal_frontend::Connection for Eviction {
    fn wake(&self) {
        self.0.notify_one();
    }
}

/// The reason why a connection has to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaves {
    /// A new connection took its place.
    Evicted,
    /// It showed no credentials in time.
    Overdue,
}

/// A connection's place among all of them, and the time in which it has to show credentials if the server asks for some.
pub(crate) struct AdmittedConnection {
    entered: shoal_frontend::Admitted<Eviction>,
    unauthenticated_max: Duration,
    security: Security,
    /// True when its time is over; the signal of that.
    is_overdue: AtomicBool,
    overdue: Notify,
}

impl AdmittedConnection {
    /// Admits a new connection; `None` if there is no room.
    pub(crate) fn enter(
        all: &Arc<Admission>,
        unauthenticated_max: Duration,
        security: Security,
    ) -> Option<Self> {
        let entered = all.enter(|_| Eviction::default())?;
        let (is_overdue, overdue) = (AtomicBool::new(false), Notify::new());
        Some(Self { entered, unauthenticated_max, security, is_overdue, overdue })
    }

    /// Notes that its peer has shown credentials.
    pub(crate) fn set_authenticated(&self) {
        self.entered.set_authenticated();
    }

    /// Completes when the connection should send its farewell, because its peer has shown no credentials in time. [`Self::hold`] watches
    /// the time.
    pub(crate) async fn overdue(&self) {
        self.overdue.notified().await;
    }

    /// Completes when its peer has had time to receive the farewell.
    async fn watch(&self) {
        // A server that asks for no credentials now may do so after its configuration was read again.
        loop {
            AwakeSleep::new(self.unauthenticated_max).await;
            if self.entered.may_stay() {
                std::future::pending().await
            }
            if self.security.asks() {
                break;
            }
        }
        self.is_overdue.store(true, Ordering::Relaxed);
        self.overdue.notify_one();
        AwakeSleep::new(FAREWELL_MAX).await;
        if self.entered.may_stay() {
            std::future::pending().await
        }
    }

    /// Runs `connection` to its end, or until it has to leave.
    ///
    /// # Errors
    /// The reason for which it was cut, or stopped.
    pub(crate) async fn hold<T>(&self, connection: impl Future<Output = T>) -> Result<T, Leaves> {
        let mut connection = std::pin::pin!(connection);
        let mut leaves = std::pin::pin!(async {
            tokio::select! {
                () = self.entered.0.notified() => Leaves::Evicted,
                () = self.watch() => Leaves::Overdue,
            }
        });
        let mut is_awaited = false;
        poll_fn(|context| {
            if let Poll::Ready(ended) = connection.as_mut().poll(context) {
                let is_overdue = !self.entered.may_stay() && self.is_overdue.load(Ordering::Relaxed);
                return Poll::Ready(if is_overdue { Err(Leaves::Overdue) } else { Ok(ended) });
            }
            // An eviction wakes this task, once it has polled here.
            if is_awaited && self.entered.may_stay() && !self.entered.is_evicted() {
                return Poll::Pending;
            }
            is_awaited = true;
            leaves.as_mut().poll(context).map(Err)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use futures_util::FutureExt;
    use shoal_frontend::{Credentials, Tokens};

    use super::*;

    /// Requires a token.
    fn security() -> Security {
        let tokens = Tokens::parse(b"correct-horse-battery").unwrap();
        Security::new(Credentials::new(None, tokens).unwrap())
    }

    #[tokio::test]
    async fn an_evicted_connection_ends() {
        let all = Admission::new(2);
        let enter = || AdmittedConnection::enter(&all, Duration::from_secs(3600), security()).unwrap();
        let (first, second) = (enter(), enter());
        first.set_authenticated();
        let _third = enter();
        assert_eq!(second.hold(pending::<()>()).await, Err(Leaves::Evicted));
        assert_eq!(first.hold(std::future::ready(5)).await, Ok(5));
        // Under way when other credentials come into force and a new connection takes its place.
        let mut held = Box::pin(first.hold(pending::<()>()));
        assert!((&mut held).now_or_never().is_none());
        all.doubt_all();
        all.evict(9);
        assert_eq!(held.await, Err(Leaves::Evicted));
    }

    #[tokio::test]
    async fn unauthenticated_peer_times_out() {
        let all = Admission::new(3);
        let enter = || AdmittedConnection::enter(&all, Duration::from_millis(10), security()).unwrap();
        let (silent, known) = (enter(), enter());
        let mut held = Box::pin(known.hold(pending::<()>()));
        assert!((&mut held).now_or_never().is_none());
        known.set_authenticated();
        assert_eq!(silent.hold(pending::<()>()).await, Err(Leaves::Overdue));
        silent.overdue().await;
        let ended = silent.hold(std::future::ready(5)).await;
        assert_eq!(ended, Err(Leaves::Overdue), "it ended because of that");
        assert!((&mut held).now_or_never().is_none(), "it may be idle for as long as it likes");
        assert!(known.overdue().now_or_never().is_none());
    }

    #[tokio::test]
    async fn a_peer_may_be_silent_if_no_credentials_are_asked_for() {
        let all = Admission::new(3);
        let max = Duration::from_millis(10);
        let silent = AdmittedConnection::enter(&all, max, Security::default()).unwrap();
        assert_eq!(shoal_api::within(max * 20, silent.hold(pending::<()>())).await, None);
    }
}
