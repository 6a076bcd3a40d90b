//! The Redis frontend: the layer between a socket with the Redis protocol and the store.
//!
//! The files that a request passes, in this order; `docs/life-of-a-put.md` has the functions, too:
//!
//! 1. `listen.rs`: [`RedisServer`] listens and starts one dispatch thread per core (`dispatch/accept.rs` hands out new connections);
//! 2. `dispatch/mod.rs` is such a thread: it handles all ready events in one turn, and all writes of a turn share a batch of the log;
//! 3. `connection/mod.rs` receives from `socket.rs` into `connection/input.rs`;
//! 4. `connection/fast_path.rs` starts short GETs and SETs, `connection/start.rs` all other commands, found in `command/table.rs`;
//! 5. `command/` has a file for each family; its `read.rs` and `write.rs` have all calls of the store;
//! 6. `connection/in_flight.rs` keeps the answers in order, and `socket.rs` sends them.
//!
//! A thread answers from memory itself. A command that must wait (a miss, a commit) is a task of its connection, which is woken
//! through `mailbox.rs`. `timing` counts the commands that a turn answered. The protocol is in `docs/format/resp.md`.

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
mod memory;
mod stored_answer;
mod working_set;

mod clients;
mod cursors;
mod decimal;

pub use listen::{RedisServer, Running, StartError};
pub use memory::HARD_FACTOR;
pub use options::{Announced, ClusterMode, Durability, RedisLimits, RedisOptions};
pub use shoal_frontend::MinRate;
pub use tls::Tls;
