//! How the client opens a TCP connection.

use std::time::Duration;

use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower::ServiceExt;
use tower::util::MapResponse;

type Opened = TokioIo<TcpStream>;

/// Opens TCP connections for an [`Endpoint`](tonic::transport::Endpoint), as [`Client`](crate::Client) does: without Nagle's
/// delay, and without a pace on this machine ([`shoal_base::set_congestion_control`]). The addresses of a name share
/// `timeout`, so that one that does not answer leaves time for the next.
#[must_use]
pub fn connector(timeout: Option<Duration>) -> MapResponse<HttpConnector, fn(Opened) -> Opened> {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(timeout);
    http.map_response(opened)
}

fn opened(stream: Opened) -> Opened {
    let socket = stream.inner();
    // A connection that has ended has no address, and the first call notices it.
    if let Ok(peer) = socket.peer_addr() {
        shoal_base::set_congestion_control(socket, peer);
    }
    stream
}
