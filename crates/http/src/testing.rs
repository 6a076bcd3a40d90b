//! A protocol for this crate's unit tests, and a frontend that serves it.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::StatusCode;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use shoal_base::task::Boxed;
use shoal_buffer::Buffer;
use shoal_engine::Store;
use shoal_frontend::{Listeners, MinRate, Security, listen};
use shoal_metrics::FrontendMetrics;
use tokio::sync::watch;

use crate::body::{BodyError, WatchedBody};
use crate::capacity::Capacity;
use crate::flow::{ConnectionFlow, MemoryPermit};
use crate::frontend::Frontend;
use crate::limits::ServerLimits;
use crate::serve::{FrontendParts, HttpAnswer, HttpProtocol, Peer, Waiters, boxed_answer};

/// Answers each request with its body, or with 503 if there is no memory for it. Reads nothing of requests of /refuse, and all of those
/// of /collect before it answers.
#[derive(Default)]
pub(crate) struct Echo {
    /// Gathers the writes of a turn, if there is one.
    pub(crate) store: Option<Store>,
    pub(crate) min_rate: MinRate,
}

/// The body of a request on its way back.
pub(crate) struct Returned(Option<(WatchedBody, Arc<MemoryPermit>)>);

impl Body for Returned {
    type Data = Box<Buffer>;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Box<Buffer>>, BodyError>>> {
        let Some((body, _)) = &mut self.0 else { return Poll::Ready(None) };
        let frame = Pin::new(body).poll_frame(context);
        frame.map_ok(|frame| frame.map_data(|bytes| Box::new(bytes.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(|(body, _)| body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.0.as_ref().map_or(SizeHint::with_exact(0), |(body, _)| body.size_hint())
    }
}

fn answer(status: StatusCode) -> http::Response<Returned> {
    let mut answer = http::Response::new(Returned(None));
    *answer.status_mut() = status;
    answer
}

impl HttpProtocol for Echo {
    fn serve<'a>(
        &'a self,
        _: &'a Peer,
        flow: Arc<ConnectionFlow>,
        request: http::Request<Incoming>,
    ) -> Boxed<'a, HttpAnswer> {
        Box::pin(async move { boxed_answer(self.answer(flow, request).await) })
    }

    fn turn(&self, work: &mut dyn FnMut() -> Waiters) {
        match &self.store {
            Some(store) => store.turn(|| match work() {
                Waiters::One => shoal_engine::Waiting::One,
                Waiters::Several => shoal_engine::Waiting::Several,
            }),
            None => drop(work()),
        }
    }

    fn gather(&self, work: &mut dyn FnMut()) {
        match &self.store {
            Some(store) => store.gather(work),
            None => work(),
        }
    }
}

impl Echo {
    async fn answer(
        &self,
        flow: Arc<ConnectionFlow>,
        request: http::Request<Incoming>,
    ) -> http::Response<Returned> {
        if request.uri().path() == "/refuse" {
            return answer(StatusCode::FORBIDDEN);
        }
        if request.uri().path() == "/collect" {
            let mut body = request.into_body();
            while poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await.is_some() {}
            return answer(StatusCode::OK);
        }
        let body = WatchedBody::new(request.into_body(), self.min_rate);
        let permit = flow.permit();
        let bytes = body.size_hint().exact().unwrap_or_default();
        match permit.grow(bytes as usize) {
            Ok(()) => http::Response::new(Returned(Some((body, permit)))),
            Err(_) => answer(StatusCode::SERVICE_UNAVAILABLE),
        }
    }
}

/// Serves on a new port, for the rest of the test.
pub(crate) fn start(
    (capacity, metrics): (&Arc<Capacity>, &Arc<FrontendMetrics>),
    limits: &ServerLimits,
) -> SocketAddr {
    let listener = listen("127.0.0.1:0".parse().unwrap(), true, ("", "")).unwrap();
    let listeners = Listeners::new(vec![listener]).unwrap();
    let address = listeners.addresses()[0];
    let drain = watch::Sender::new(false);
    let parts = FrontendParts {
        protocol: Arc::new(Echo { min_rate: limits.min_rate, ..Echo::default() }),
        capacity: Arc::clone(capacity),
        security: Security::default(),
        metrics: Arc::clone(metrics),
        limits: limits.clone(),
        drain: drain.subscribe(),
    };
    tokio::spawn(async move {
        Frontend::new(parts).accept(&listeners).await;
        drop(drain);
    });
    address
}
