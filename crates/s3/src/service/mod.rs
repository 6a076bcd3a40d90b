//! The operations of S3 on a store, for callers that another frontend has let in.

mod walk;

use std::sync::Arc;
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use shoal_base::task::Boxed;
use shoal_engine::Store;
use shoal_frontend::access::Principal;
use shoal_http::{ConnectionFlow, HttpAnswer, Peer};
use shoal_metrics::FrontendMetrics;

use crate::bucket::sweep::Sweeper;
use crate::options::S3Options;
use crate::server::S3ServeError;
use crate::sign::presigned::presigned_url;
use crate::state::S3State;
use crate::time::SECOND_NS;

pub use self::walk::ObjectWalk;

/// The operations of S3 on a store. A store has one: clones share it, and so do the frontends that use it.
#[derive(Clone)]
pub struct S3Service {
    state: Arc<S3State>,
    upload_life: Option<Duration>,
}

impl S3Service {
    /// The operations on `store`. Of the options those about addresses have no effect.
    ///
    /// # Errors
    /// [`S3ServeError::Buckets`].
    pub async fn open(store: Store, options: S3Options) -> Result<Self, S3ServeError> {
        let upload_life = options.upload_life;
        let state = S3State::new(store, options).await.map_err(S3ServeError::Buckets)?;
        Ok(Self { state: Arc::new(state), upload_life })
    }

    /// Deletes expired objects and old uploads, until it is dropped. One task of a store does that.
    pub fn sweep(&self) -> Boxed<'static, ()> {
        Box::pin(Sweeper::new(Arc::clone(&self.state), self.upload_life).run())
    }

    /// Answers a request of `principal`, which another frontend has let in, as one that it has signed. The path is `/BUCKET/KEY`.
    /// `metrics` counts the request.
    pub fn serve_as<'a>(
        &'a self,
        (principal, metrics): (Principal, &'a Arc<FrontendMetrics>),
        (peer, flow): (&'a Peer, Arc<ConnectionFlow>),
        request: Request<Incoming>,
    ) -> Boxed<'a, HttpAnswer> {
        Box::pin(self.state.answer_given(peer, flow, (principal, metrics), request))
    }

    /// The party that signs with the key `id`; `None` if there is no such key, or its time is over.
    #[must_use]
    pub fn signer(&self, id: &str) -> Option<Principal> {
        self.state.caller_of(Some(id)).ok()?.principal().cloned()
    }

    /// The URL by which its holder may read an object for `seconds` (1 to 604800) at the address `endpoint` of an S3 frontend, signed by
    /// the key `id`; `None` if there is no such key.
    #[must_use]
    pub fn presign(
        &self,
        (endpoint, id): (&str, &str),
        (bucket, key): (&str, &[u8]),
        seconds: u32,
    ) -> Option<String> {
        let now_s = self.state.now_ns() / SECOND_NS;
        let [secret, _] = self.state.secrets(id, now_s);
        let signed_by = (&self.state.signing, id, &*secret?);
        Some(presigned_url(signed_by, endpoint, (bucket, key), (now_s, seconds)))
    }

    pub(crate) fn state(&self) -> &Arc<S3State> {
        &self.state
    }
}
