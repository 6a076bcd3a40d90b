//! The options of the Redis frontend.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crate::tls::Tls;
use shoal_base::limits::VALUE_BYTES_SINGLE_MAX;
use shoal_engine::DEFAULT_BUCKET;
use shoal_frontend::{ArchiveLink, MinRate, Security};
use shoal_metrics::Metrics;

/// When a write is acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// When it is durable.
    #[default]
    Sync,
    /// At once, unless a write acknowledged by the same thread is older than this and not durable yet; the duration bounds the
    /// loss of a power cut.
    Relaxed(Duration),
}

/// Selects whether the server presents itself as a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ClusterMode {
    /// A standalone server: CLUSTER commands are refused, as in Redis without cluster support.
    #[default]
    Off,
    /// It is a cluster of one node, which has all slots.
    On {
        /// The address of the node in replies to CLUSTER. None: the local address of the client's connection, which for a
        /// mapped port is not the one that the client used.
        announce: Option<Announced>,
    },
}

/// An address that clients reach the server at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announced {
    /// A name or an IP address, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// The options of the frontend.
#[derive(Clone, Debug)]
pub struct RedisOptions {
    /// Listening address; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Further addresses of the same name, which get the same port.
    pub listen_also: Vec<SocketAddr>,
    /// True if other machines may connect although there is no password.
    pub insecure: bool,
    /// The password that AUTH asks for.
    pub password: Option<Vec<u8>>,
    /// The keys that AUTH takes, besides the password.
    pub security: Security,
    /// The TLS that connections speak; none: plain text.
    pub tls: Option<Tls>,
    /// The bucket whose objects are the keys: by default the one of all other clients, so all of them see the same objects.
    pub bucket: String,
    /// The cluster mode.
    pub cluster: ClusterMode,
    /// The time at which a write is acknowledged.
    pub durability: Durability,
    /// Dispatch threads; none: one per core.
    pub threads: Option<usize>,
    /// Time for which a thread polls after work before it sleeps. Zero: it sleeps at once.
    pub poll: Duration,
    /// The archive that WAIT and WAITAOF wait for.
    pub archive: ArchiveLink,
    /// The counts of the commands.
    pub metrics: Arc<Metrics>,
    /// Bounds.
    pub limits: RedisLimits,
}

impl RedisOptions {
    /// Returns true if AUTH takes keys.
    pub(crate) fn takes_keys(&self) -> bool {
        self.security.with(|credentials| credentials.keys().is_some())
    }

    /// Returns true if there is a user of this name: `default`, or the id of a key.
    pub(crate) fn has_user(&self, name: &str) -> bool {
        let has_key =
            || self.security.with(|credentials| credentials.keys().is_some_and(|keys| keys.has_id(name)));
        name == "default" || has_key()
    }

    /// Returns true if a client must send AUTH.
    pub(crate) fn asks(&self) -> bool {
        self.password.is_some() || self.takes_keys()
    }
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self {
            listen: (Ipv4Addr::LOCALHOST, 7412).into(),
            listen_also: Vec::new(),
            insecure: false,
            password: None,
            security: Security::default(),
            tls: None,
            bucket: DEFAULT_BUCKET.into(),
            cluster: ClusterMode::default(),
            durability: Durability::Sync,
            threads: None,
            poll: Duration::ZERO,
            archive: ArchiveLink::default(),
            metrics: Arc::default(),
            limits: RedisLimits::default(),
        }
    }
}

/// Bounds of connections, commands and answers.
#[derive(Clone, Debug)]
pub struct RedisLimits {
    /// Connections; for a further one, the oldest that has not authenticated (without a password: sent a command) makes room;
    /// if there is none, the new one gets an error and is closed.
    pub connections_max: usize,
    /// Time in which a connection must agree on TLS and authenticate; checked every second. Without a password, an idle
    /// connection has no such limit.
    pub unauthenticated_max: Duration,
    /// Bytes of one bulk string, and so of a value (Redis: `proto-max-bulk-len`).
    pub bulk_bytes_max: usize,
    /// Bytes of all words of one command.
    pub command_bytes_max: usize,
    /// Bytes of commands and of untaken answers, of all threads together. Above it, long commands are not received any further,
    /// long values are not read, and a command that reads many of them fails with TRYAGAIN, until there is room; one connection
    /// or read at a time continues without it. At least 4 MiB more than [`Self::reply_bytes_max`].
    pub memory_bytes_max: usize,
    /// Bytes of the answer of one command, and of the strings that BITOP reads.
    pub reply_bytes_max: usize,
    /// Bytes of commands in memory that are unfinished or wait, of all connections of a thread; above it, connections whose
    /// commands wait for them to take their answers get an error and are closed, the largest first, and then the connection
    /// that needs more.
    pub received_bytes_max: usize,
    /// Started and unanswered commands of one connection; further ones wait.
    pub commands_in_flight_max: usize,
    /// Bytes of answers that a connection has not taken; further commands of it wait.
    pub answer_bytes_max: usize,
    /// Bytes of untaken answers of a connection and of the commands that wait for it to take them. Up to this limit it is read
    /// from, and executes nothing more; above it, it gets an error and is closed.
    pub pending_bytes_max: usize,
    /// Bytes of untaken answers and of commands in progress, of all connections of a thread; above it, the connections that do
    /// not take their answers are closed, the largest first.
    pub answers_bytes_max: usize,
    /// The minimum rate of a started command; a client that sends less is closed. A connection may leave its answers untaken
    /// for the time for which a client may be silent.
    pub min_rate: MinRate,
}

impl Default for RedisLimits {
    fn default() -> Self {
        Self {
            connections_max: 10_000,
            unauthenticated_max: Duration::from_secs(10),
            bulk_bytes_max: VALUE_BYTES_SINGLE_MAX as usize,
            command_bytes_max: 64 << 20,
            memory_bytes_max: 2 << 30,
            reply_bytes_max: 64 << 20,
            received_bytes_max: 512 << 20,
            commands_in_flight_max: 1024,
            answer_bytes_max: 8 << 20,
            pending_bytes_max: 256 << 20,
            answers_bytes_max: 512 << 20,
            min_rate: MinRate::default(),
        }
    }
}
