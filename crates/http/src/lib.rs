//! Connections of frontends over HTTP: they are accepted, read within limits of time and memory, and shut down in order.
//!
//! A protocol on top (gRPC in `shoal-server`) implements [`HttpProtocol`]: it gets whole requests and returns answers. The files that a request
//! passes:
//!
//! 1. `frontend.rs`: [`Frontend`] accepts connections, within the limits of `admission.rs`;
//! 2. `connection/mod.rs` speaks HTTP on one, over TLS if there is a certificate; `connection/tasks.rs` and
//!    `connection/http1.rs` run its requests;
//! 3. `serve.rs`: the protocol gets the request, and the [`Peer`] that sent it;
//! 4. `body.rs` and `flow/intake.rs`: the protocol reads its body, at least at a minimum rate (`min_rate.rs`) and only as memory allows;
//! 5. `flow/sending.rs`: the pieces of answers leave in turn.
//!
//! [`Capacity`] is the number of connections and the memory of all frontends of a server: those with the same one share its limits.
//! `counts.rs` counts the connections of each, `flow` the memory, [`ServerLimits`] has the numbers, and [`Timer`] counts requests and their
//! times. Nothing here knows the store, or a message of a protocol.

mod admission;
mod body;
mod capacity;
mod connection;
mod counts;
mod flow;
mod frontend;
mod limits;
mod min_rate;
mod serve;
#[cfg(test)]
mod testing;
mod timing;

pub use body::{BodyError, WatchedBody};
pub use capacity::Capacity;
pub use flow::{
    AnswerShare, ConnectionFlow, Flow, FramesPermit, Idle, Intake, MemoryPermit, NoRoom, Refused,
    RunningHandler, StreamIntake, WAITING_BYTES_MAX, deadline_after,
};
pub use frontend::Frontend;
pub use limits::{Http1Limits, ServerLimits};
pub use serve::{AnswerBody, FrontendParts, HttpAnswer, HttpProtocol, Peer, Waiters, boxed_answer};
pub use timing::Timer;
