//! The Redis face: what stands between a socket that speaks the Redis protocol and the store.
//!
//! In reading order, which is the order in which a request passes: [`Server`] listens and starts one dispatch thread per
//! core; `dispatch` is such a thread: all that became ready is handled in one turn, and all writes of a turn share a
//! batch of the log; it reaches its sockets by `epoll` (with `socket`);
//! `connection` parses requests and keeps their answers in order, with what was `begun`, and `pace` ends who sends too
//! slowly; `command` has the table of
//! commands and one file per family; `answer` is what they say. What the protocol looks like is in
//! `docs/format/resp.md`.
//!
//! A thread answers from memory itself. What must wait (a miss, a commit) is a task of its connection, which is woken
//! through the thread's mailbox.

mod listen;
mod options;

mod backlog;
mod begun;
mod connection;
mod dispatch;
mod epoll;
mod mailbox;
mod pace;
mod sets;
mod shared;
mod socket;
mod tls;

mod answer;
mod command;
mod face;
mod working;

mod clients;
mod cursors;
mod glob;
mod number;
mod process;

pub use listen::{ListenError, Running, Server};
pub use options::{Durability, Limits, RedisOptions};
pub use tls::Tls;
