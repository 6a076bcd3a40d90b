//! The services that every gRPC server is expected to have: health and reflection. They pass the same gate as the others; only the health
//! check may be open to everybody, if the operator allows it.

use std::pin::Pin;
use std::sync::Arc;

use shoal_http::MemoryPermit;
use tokio::sync::watch;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};

use crate::answer::body::ResponseBody;
use crate::call::body::RequestBody;
use crate::call::{Call, HttpResponse};

/// The names that health knows: the server as a whole, and its services.
const SERVICES: [&str; 3] = ["", shoal_api::v1::OBJECT_STORE, shoal_api::key_value::KEY_VALUE_SERVICE];

/// Returns true if `path` is a method of these that streams until its caller stops it.
pub(crate) fn is_stream(path: &str) -> bool {
    path.starts_with("/grpc.")
}

/// The one call that may be open to callers without credentials.
pub(crate) const HEALTH_CHECK: &str = "/grpc.health.v1.Health/Check";

type Answer = Pin<Box<dyn Future<Output = http::Response<Body>> + Send>>;
type Handler = Box<dyn Fn(http::Request<RequestBody>) -> Answer + Send + Sync>;

/// Health and reflection.
pub(crate) struct Standard {
    reporter: HealthReporter,
    health: HealthServer<HealthService>,
    /// By the prefix of its paths.
    reflection: Vec<(&'static str, Handler)>,
}

impl Standard {
    pub(crate) async fn new() -> Result<Self, tonic_reflection::server::Error> {
        let reporter = HealthReporter::new();
        let health = HealthServer::new(HealthService::from_health_reporter(reporter.clone()));
        let schema = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(shoal_api::FILE_DESCRIPTOR_SET)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        let reflection = vec![
            ("/grpc.reflection.v1.ServerReflection/", handler(schema().build_v1()?)),
            // Older tools ask for this one.
            ("/grpc.reflection.v1alpha.ServerReflection/", handler(schema().build_v1alpha()?)),
        ];
        let standard = Self { reporter, health, reflection };
        standard.set_serving(true).await;
        Ok(standard)
    }

    /// Sets the health to serving, for requests of all kinds, or not.
    pub(crate) async fn set_serving(&self, serving: bool) {
        let status = if serving { ServingStatus::Serving } else { ServingStatus::NotServing };
        for service in SERVICES {
            self.reporter.set_service_status(service, status).await;
        }
    }

    /// Closes the streams of the clients that watch the health; otherwise they would delay the server's shutdown.
    pub(crate) async fn end_watches(&self) {
        for service in SERVICES {
            self.reporter.clone().clear_service_status(service).await;
        }
    }

    /// Answers a call of the health service.
    pub(crate) async fn tell_health(
        &self,
        request: http::Request<RequestBody>,
        permit: Arc<MemoryPermit>,
    ) -> HttpResponse {
        serve(self.health.clone(), request).await.map(|body| ResponseBody::new(body, permit))
    }

    /// Answers `call` if its path is one of these services'; returns it otherwise. A stream is closed when `draining`: streams of the
    /// health by [`Self::end_watches`], streams of the reflection here.
    pub(crate) async fn answer(
        &self,
        path: &str,
        call: Call,
        draining: &watch::Receiver<bool>,
    ) -> Result<HttpResponse, Call> {
        let permit = Arc::clone(&call.permit);
        if path.starts_with("/grpc.health.v1.Health/") {
            let (http, _admitted) = call.request.take();
            let answer = serve(self.health.clone(), http).await;
            return Ok(answer.map(|body| ResponseBody::new(body, permit)));
        }
        if let Some((_, handler)) = self.reflection.iter().find(|(prefix, _)| path.starts_with(prefix)) {
            let (http, _admitted) = call.request.take();
            let answer = handler(http).await;
            return Ok(answer.map(|body| ResponseBody::new(body, permit).until_draining(draining.clone())));
        }
        Err(call)
    }
}

/// `service` as a function; its type cannot be named.
fn handler<S>(service: S) -> Handler
where
    S: Service<http::Request<RequestBody>, Response = http::Response<Body>, Error = std::convert::Infallible>,
    S: Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
{
    Box::new(move |request| serve(service.clone(), request))
}

fn serve<S>(mut service: S, request: http::Request<RequestBody>) -> Answer
where
    S: Service<http::Request<RequestBody>, Response = http::Response<Body>, Error = std::convert::Infallible>,
    S::Future: Send + 'static,
{
    let answer = service.call(request);
    Box::pin(async move {
        match answer.await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    })
}
