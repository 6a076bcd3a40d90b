//! The order of the steps of a request, each of which may refuse:
//!
//! 1. the host name, if no credentials are asked for, and the origin (`guard.rs`);
//! 2. the path: a file of the pages, an object (`objects/`), or an entry of the table of routes;
//! 3. the session (`session/admit.rs`), and its word if the request changes something;
//! 4. the operation, which checks the grants of the session.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;

use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderName, HeaderValue, Method, Request, StatusCode};
use hyper::body::Incoming;
use shoal_base::task::Boxed;
use shoal_http::{ConnectionFlow, HttpAnswer, HttpProtocol, Peer, Timer, Waiters};
use shoal_metrics::{Operation, RequestResult, Stage, mark, note_caller};

use crate::answer::{ApiError, ApiResult, empty};
use crate::call::{ApiCall, Route, decoded};
use crate::figures;
use crate::guard::{check_host, check_origin, host_of};
use crate::keys;
use crate::objects::pass::pass;
use crate::objects::{archive, presign};
use crate::operations;
use crate::session::{self, sign_in, signed_out};
use crate::state::ConsoleState;

/// The policy of the pages: no script, style or connection but those of the console itself, and none in the text of a page.
const PAGE_POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; media-src 'self' blob:; \
     connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
);

/// The headers of every answer that has none of the same name.
const HEADERS: [(HeaderName, HeaderValue); 6] = [
    (CONTENT_SECURITY_POLICY, PAGE_POLICY),
    (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (HeaderName::from_static("cross-origin-opener-policy"), HeaderValue::from_static("same-origin")),
    (HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin")),
    (CACHE_CONTROL, HeaderValue::from_static("no-store")),
];

/// All routes. A module adds its table here.
const ROUTES: [&[Route]; 6] =
    [session::ROUTES, keys::ROUTES, archive::ROUTES, presign::ROUTES, figures::ROUTES, operations::ROUTES];

/// The route of a request, and the decoded part of its path that has a `*`.
fn route_of(method: &Method, path: &str) -> ApiResult<(&'static Route, String)> {
    let fits = |route: &Route| {
        let (mut given, mut part) = (path.split('/'), String::new());
        for wanted in route.path.split('/') {
            let given = given.next()?;
            match wanted {
                "*" => part = decoded(given).filter(|part| !part.is_empty())?,
                wanted if wanted == given => {}
                _ => return None,
            }
        }
        given.next().is_none().then_some(part)
    };
    // HEAD is a GET whose body is not sent.
    let method = if method == Method::HEAD { &Method::GET } else { method };
    let mut is_path = false;
    for route in ROUTES.into_iter().flatten() {
        if let Some(part) = fits(route) {
            if route.method == *method {
                return Ok((route, part));
            }
            is_path = true;
        }
    }
    match is_path {
        true => {
            let problem = format!("{method} is no method of /api/{path}");
            Err(ApiError::new(StatusCode::METHOD_NOT_ALLOWED, problem))
        }
        false => Err(ApiError::new(StatusCode::NOT_FOUND, format!("there is no /api/{path}"))),
    }
}

impl HttpProtocol for ConsoleState {
    fn serve<'a>(
        &'a self,
        peer: &'a Peer,
        flow: Arc<ConnectionFlow>,
        request: Request<Incoming>,
    ) -> Boxed<'a, HttpAnswer> {
        Box::pin(self.respond(peer, flow, request))
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

impl ConsoleState {
    async fn respond(
        &self,
        peer: &Peer,
        flow: Arc<ConnectionFlow>,
        request: Request<Incoming>,
    ) -> HttpAnswer {
        let is_head = request.method() == Method::HEAD;
        let mut answer = self.answer(peer, flow, request).await.unwrap_or_else(|error| error.answer());
        for (name, value) in HEADERS {
            answer.headers_mut().entry(name).or_insert(value);
        }
        if is_head {
            let (parts, _) = answer.into_parts();
            let (mut answer, body) = empty(parts.status).into_parts();
            answer.headers = parts.headers;
            return HttpAnswer::from_parts(answer, body);
        }
        answer
    }

    async fn answer(
        &self,
        peer: &Peer,
        flow: Arc<ConnectionFlow>,
        request: Request<Incoming>,
    ) -> ApiResult<HttpAnswer> {
        let (head, body) = request.into_parts();
        if !self.security.asks() {
            check_host(host_of(&head), self.insecure)?;
        }
        let path = head.uri.path();
        if let Some(path) = path.strip_prefix("/api/") {
            check_origin(&head)?;
            return self.answer_api((peer, flow), path, (&head, body)).await;
        }
        if path.starts_with("/s3/") {
            return pass(self, (peer, flow), (head, body)).await;
        }
        if !matches!(head.method, Method::GET | Method::HEAD) {
            let problem = format!("{} is no method of a page; use GET", head.method);
            return Err(ApiError::new(StatusCode::METHOD_NOT_ALLOWED, problem));
        }
        let page = self.assets.get(path, &head.headers);
        page.ok_or_else(|| {
            ApiError::new(StatusCode::NOT_FOUND, "there is no such page; the console starts at /")
        })
    }

    /// Answers a request to the API, and counts its time.
    async fn answer_api(
        &self,
        (peer, flow): (&Peer, Arc<ConnectionFlow>),
        path: &str,
        (head, body): (&http::request::Parts, Incoming),
    ) -> ApiResult<HttpAnswer> {
        let is_sign_in = (&head.method, path) == (&Method::POST, "session");
        let found = if is_sign_in { None } else { Some(route_of(&head.method, path)?) };
        let name = found.as_ref().map_or("SignIn", |(route, _)| route.name);
        let mut timer = Timer::begin(&self.metrics, &flow, peer.address, || (Operation::Other, name));
        let answered = {
            let mut handler = pin!(async {
                let _working = flow.working();
                let permit = flow.permit();
                let Some((route, part)) = found else {
                    return sign_in(self, peer, (head, body), &permit).await;
                };
                let Some(admitted) = self.admit(peer, &head.headers) else {
                    return signed_out(self, &permit);
                };
                note_caller(admitted.principal.identity());
                if !matches!(head.method, Method::GET | Method::HEAD) {
                    admitted.check_word(&head.headers)?;
                }
                mark(Stage::Started);
                (route.answer)(self, ApiCall { peer, head, admitted, part, body, permit }).await
            });
            poll_fn(|context| match &mut timer {
                Some(timer) => timer.poll(handler.as_mut(), context),
                None => handler.as_mut().poll(context),
            })
            .await
        };
        if let Some(mut timer) = timer {
            timer.end(result_of(
                answered.as_ref().map_or_else(|error| error.status, |answer| answer.status()),
            ));
        }
        answered
    }
}

/// The metrics' word for the status of an answer.
fn result_of(status: StatusCode) -> RequestResult {
    match status.as_u16() {
        ..400 => RequestResult::Ok,
        401 | 403 => RequestResult::Denied,
        404 => RequestResult::NotFound,
        408 => RequestResult::Cancelled,
        409 | 412 => RequestResult::Rejected,
        429 | 503 | 507 => RequestResult::Refused,
        400..=499 => RequestResult::Invalid,
        _ => RequestResult::Failed,
    }
}
