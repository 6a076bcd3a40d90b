//! The Redis frontend: the layer between a socket with the Redis protocol and the store.
//!
//! In reading order, which is the order in which a request passes: [`Server`] listens and starts one dispatch thread per core.
//! `dispatch` is such a thread: it handles all ready events in one turn, and all writes of a turn share a batch of the log;
//! `socket` is its side of a connection, and `timing` counts the commands that the turn answered. `connection` parses requests,
//! starts commands and keeps their answers in order. `command` has the table of commands and one file per family; its `read`
//! and `write` have all calls of the store. `answer` has the results of commands. The protocol is in `docs/format/resp.md`.
//!
//! A thread answers from memory itself. A command that must wait (a miss, a commit) is a task of its connection, which is woken
//! through the thread's mailbox.

mod listen;
mod options;

mod connection;
mod dispatch;
mod mailbox;
mod shared;
mod socket;
mod timing;
mod tls;

mod answer;
mod command;
mod frontend;
mod kept;
mod memory;
mod working_set;

mod clients;
mod cursors;
mod number;

pub use listen::{ListenError, Running, Server};
pub use memory::HARD_FACTOR;
pub use options::{Announced, ClusterMode, Durability, Limits, RedisOptions};
pub use shoal_frontend::MinRate;
pub use tls::Tls;
