//! The state that all requests share, and the callers that it knows.

use std::sync::Arc;
use std::time::Duration;

use shoal_engine::{Environment, Store};
use shoal_frontend::access::{Action, Actions, Principal, PrincipalId};
use shoal_frontend::{MinRate, Security};
use shoal_metrics::FrontendMetrics;

use crate::access::acl::Owned;
use crate::body::check::EtagScheme;
use crate::bucket::{Buckets, NOBODY};
use crate::options::S3Options;
use crate::request::error::{ErrorCode, S3Error, S3Result};
use crate::request::id::AnswerIds;
use crate::sign::key::{SecretPair, SigningKeys};
use crate::time::SECOND_NS;

/// The state that all requests share.
pub(crate) struct S3State {
    pub(crate) store: Store,
    pub(crate) security: Security,
    pub(crate) signing: SigningKeys,
    pub(crate) domains: Vec<String>,
    pub(crate) website_domains: Vec<String>,
    pub(crate) etags: EtagScheme,
    pub(crate) ids: AnswerIds,
    pub(crate) buckets: Buckets,
    pub(crate) metrics: Arc<FrontendMetrics>,
    pub(crate) min_rate: MinRate,
    /// The time for which a body waits for room.
    pub(crate) room_wait_max: Duration,
    pub(crate) environment: Environment,
}

impl S3State {
    /// The state of a frontend on `store`.
    pub(crate) async fn new(store: Store, options: S3Options) -> S3Result<Self> {
        let S3Options {
            security, region, domains, website_domains, etags, metrics, limits, environment, ..
        } = options;
        Ok(Self {
            buckets: Buckets::load(&store, environment.clock.clone()).await?,
            store,
            security,
            signing: SigningKeys::new(&region),
            domains,
            website_domains,
            etags,
            ids: AnswerIds::new(&*environment.entropy),
            metrics: Arc::clone(metrics.s3()),
            min_rate: limits.min_rate,
            room_wait_max: limits.room_wait_max,
            environment,
        })
    }

    /// The time in nanoseconds since the Unix epoch.
    pub(crate) fn now_ns(&self) -> u64 {
        self.environment.clock.wall_ns()
    }

    /// The secrets of the key `id` at `now_s`.
    pub(crate) fn secrets(&self, id: &str, now_s: u64) -> SecretPair {
        self.security
            .with(|credentials| credentials.keys().map_or([None, None], |keys| keys.secrets(id, now_s)))
    }

    /// The caller whose signature was verified, by the id of its key.
    pub(crate) fn caller_of(&self, id: Option<&str>) -> S3Result<Caller> {
        let Some(id) = id else { return Ok(Caller(None)) };
        let now_s = self.now_ns() / SECOND_NS;
        let known = self.security.with(|credentials| credentials.keys()?.find_signer(id, now_s).ok());
        let known = known.ok_or_else(|| S3Error::from(ErrorCode::InvalidAccessKeyId))?;
        Ok(Caller(Some(known.principal)))
    }
}

/// The caller of a request: a party that is known, or nobody.
#[derive(Clone, Debug, Default)]
pub(crate) struct Caller(Option<Principal>);

impl Caller {
    /// A caller that another frontend knows.
    pub(crate) fn of(principal: Principal) -> Self {
        Self(Some(principal))
    }

    /// Checks that it may do `action` on a key of `bucket`, or on all keys with a prefix.
    ///
    /// # Errors
    /// `AccessDenied`.
    pub(crate) fn check(&self, action: Action, bucket: &str, key_or_prefix: &[u8]) -> S3Result<()> {
        let Some(principal) = &self.0 else { return Err(ErrorCode::AccessDenied.into()) };
        let allowed = principal.check(Actions::of(&[action]), bucket, key_or_prefix);
        allowed.map_err(|denied| S3Error::new(ErrorCode::AccessDenied, format!("Access Denied: {denied}.")))
    }

    /// Returns true if it may do something in `bucket`.
    pub(crate) fn knows(&self, bucket: &str) -> bool {
        let Some(principal) = &self.0 else { return false };
        let may = |action| match principal.check(Actions::of(&[action]), bucket, b"") {
            Ok(()) => true,
            Err(denied) => denied.is_elsewhere(),
        };
        Action::ALL.into_iter().any(may)
    }

    /// It as the party of its grants.
    pub(crate) fn principal(&self) -> Option<&Principal> {
        self.0.as_ref()
    }

    /// Returns true if it is known: it has signed with a key, or another frontend has let it in.
    pub(crate) fn has_key(&self) -> bool {
        self.0.is_some()
    }

    /// The id of its key; `None` without one.
    pub(crate) fn key_id(&self) -> Option<&str> {
        match self.0.as_ref()?.identity() {
            PrincipalId::Key(id) => Some(id),
            _ => None,
        }
    }

    /// The id of its key as an owner; empty for nobody.
    pub(crate) fn id(&self) -> &str {
        self.key_id().unwrap_or(if self.has_key() { NOBODY } else { "" })
    }

    /// It as an owner in documents.
    pub(crate) fn owner(&self) -> Owned<'_> {
        owner(self.id())
    }
}

/// The key `id` as an owner in documents.
pub(crate) fn owner(id: &str) -> Owned<'_> {
    Owned { id, name: id }
}
