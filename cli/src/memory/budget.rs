//! The division of a server's memory.
//!
//! Every part of a server has a bound in bytes. The bounds follow from one figure, the memory limit of the process (`--memory`), so their
//! sum is within it: under load clients wait or are refused, and the kernel never kills the process. [`MemoryBudget::divide`] is a pure
//! function. Each part gets its minimum first; weights divide the rest until each part has its maximum. With enough memory all bounds are
//! at their maximum, and more memory changes nothing.
//!
//! The parts are memory *taken*, which is more than the bytes that a frontend counts: a value is in memory as received and as written to
//! the device, and the allocator keeps some freed memory. The factors are measured (`docs/operate/sizing.md`).

use shoal_console::{MEMORY_BYTES_MAX as CONSOLE_MAX, MEMORY_BYTES_MIN as CONSOLE_MIN};
use shoal_metrics::MemoryParts;
use shoal_redis::{HARD_FACTOR, RedisLimits};
use shoal_server::ServerLimits;

use crate::arguments::size::Size;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The program: threads and their stacks, buffers of the log and of io_uring; two more threads for each core.
const PROGRAM: u64 = 16 * MIB;
const PROGRAM_A_CORE: u64 = MIB / 2;
/// Two backups at the same time.
const BACKUPS: u64 = 2 * 5 * MIB;
/// Divisor of the total: this share is for freed memory that the allocator keeps, and for memory of the kernel.
const SLACK_SHARE: u64 = 8;

/// With less memory, freed memory returns to the system at once: the slack is too small for memory that the allocator keeps.
const LEAN_BELOW: u64 = 512 * MIB;

/// The bounds of the cache if `--cache` is not set.
const CACHE_MIN: u64 = 16 * MIB;
const CACHE_MAX: u64 = GIB;
/// The unit of cache sizes.
const CACHE_UNIT: u64 = 64 << 10;

/// Bytes in flight of gRPC, and the memory that each takes.
const GRPC_FACTOR: (u64, u64) = (5, 2);
const GRPC_MIN: u64 = 6 * MIB;
/// In addition: the message that has waited longest, and waiting messages.
const GRPC_OLDEST: u64 = 8 * MIB;
const GRPC_WAITING_MIN: u64 = 2 * MIB;
/// Divisor of gRPC's memory above its minimum: this share is for waiting messages.
const GRPC_WAITING_SHARE: u64 = 4;

/// Memory of each byte of commands and answers of the Redis frontend. Queued commands and watched keys never wait: each of their bytes
/// takes one byte, up to this multiple of the bound.
const REDIS_FACTOR: u64 = 2;
const _: () = assert!(HARD_FACTOR as u64 <= REDIS_FACTOR);
const REDIS_MIN: u64 = 9 * MIB;
/// Minimum room of one command or answer: a value of 4 MiB and its key.
const REDIS_COMMAND_MIN: u64 = 5 * MIB;

/// Divisor of the total: the console's pages get no more than this share.
const CONSOLE_SHARE: u64 = 256;

/// Segments and parts of a base on their way to the archive, and the newest batches of the log: at most eight segments of 8 MiB and four
/// parts of as many, and at least those of the least sizes.
const ARCHIVE_MIN: u64 = 16 * MIB;
const ARCHIVE_MAX: u64 = 128 * MIB;

/// Maximum bytes of the values that one transaction reads: they take room of commands and answers.
const LOOKS_MAX: u64 = 64 * MIB;

/// Memory of an idle connection. TLS adds its session and a partial record.
const GRPC_CONNECTION: u64 = 32 << 10;
const REDIS_CONNECTION: u64 = 8 << 10;
const TLS: u64 = 32 << 10;
/// Minimum connections of gRPC without TLS; with TLS half of them.
const CONNECTIONS_MIN: u64 = 64;

/// The input of a division.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// All memory, in bytes.
    pub(crate) total: u64,
    /// The configured cache.
    pub(crate) cache: Option<u64>,
    /// The configured limit of the memtables.
    pub(crate) memtable: Option<u64>,
    /// Whether the Redis frontend is on.
    pub(crate) redis: bool,
    /// Whether the console is on.
    pub(crate) console: bool,
    /// Whether the log is archived.
    pub(crate) archive: bool,
    /// Whether connections are encrypted.
    pub(crate) tls: bool,
    pub(crate) cores: u64,
}

/// The memory is too little.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooLittle {
    /// The minimum memory with the configured cache.
    pub(crate) needed: u64,
}

/// A division: the bytes of each part, and bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemoryBudget {
    pub(crate) total: u64,
    /// The configured or chosen cache, a part of [`Self::store`].
    pub(crate) cache: u64,
    pub(crate) memtable: u64,
    pub(crate) deadlines: u64,
    /// The values that one transaction reads, a part of [`Self::redis`].
    pub(crate) looks: u64,
    tls: bool,
    /// The cache and its tables, recent writes, applies, I/O memory.
    store: u64,
    grpc: u64,
    redis: u64,
    pub(crate) short_values: u64,
    connections: u64,
    /// The history, the map and the census of the console's pages.
    pub(crate) console: u64,
    /// Segments and parts of a base on their way to the archive.
    pub(crate) archive: u64,
    /// The program, and backups.
    fixed: u64,
    slack: u64,
}

/// A part with a choice: its minimum, maximum and weight.
#[derive(Clone, Copy)]
struct Part {
    min: u64,
    max: u64,
    weight: u64,
}

impl MemoryBudget {
    /// Divides `wanted.total`.
    ///
    /// # Errors
    /// [`TooLittle`]: it is less than the minimum of all parts.
    pub(crate) fn divide(wanted: &Wanted) -> Result<Self, TooLittle> {
        let parts = parts(wanted);
        let fixed = PROGRAM + BACKUPS + wanted.cores.saturating_mul(PROGRAM_A_CORE);
        let least = parts.iter().map(|part| part.min).fold(fixed, u64::saturating_add);
        let slack = wanted.total / SLACK_SHARE;
        let Some(rest) = (wanted.total - slack).checked_sub(least) else {
            // The smallest total that is enough without the slack.
            let needed = least.saturating_add(least.div_ceil(SLACK_SHARE - 1)).saturating_add(1);
            return Err(TooLittle { needed: needed.checked_next_multiple_of(MIB).unwrap_or(u64::MAX) });
        };
        let [store, grpc, redis, short_values, connections, console, archive] = share(parts, rest);
        let cache = wanted.cache.unwrap_or_else(|| cache_within(wanted, store));
        let short_values = short_values.min(short_values_of(cache));
        let memtable = memtable_of(wanted, cache);
        let (total, deadlines) = (wanted.total, deadlines_of(cache));
        Ok(Self {
            total,
            cache,
            memtable,
            deadlines,
            looks: redis_bytes(redis).clamp(REDIS_MIN, LOOKS_MAX),
            tls: wanted.tls,
            store,
            grpc,
            redis,
            short_values,
            connections,
            console,
            archive,
            fixed,
            slack,
        })
    }

    /// Returns true if freed memory must return to the system at once.
    pub(crate) fn is_lean(&self) -> bool {
        self.total < LEAN_BELOW
    }

    /// The bounds of the gRPC server.
    pub(crate) fn grpc_limits(&self) -> ServerLimits {
        let most = ServerLimits::default();
        let waiting =
            GRPC_WAITING_MIN + (self.grpc - grpc_bytes(GRPC_MIN, GRPC_WAITING_MIN)) / GRPC_WAITING_SHARE;
        let (times, of) = GRPC_FACTOR;
        let in_flight = bytes((self.grpc - GRPC_OLDEST - waiting) * of / times).min(most.bytes_in_flight_max);
        ServerLimits {
            connections_max: bytes(self.grpc_connections()),
            bytes_in_flight_max: in_flight,
            connection_bytes_in_flight_max: (in_flight / 4)
                .max(bytes(GRPC_MIN))
                .min(most.connection_bytes_in_flight_max),
            connection_window_bytes: u32::try_from(in_flight / 4)
                .unwrap_or(u32::MAX)
                .clamp(6 << 20, most.connection_window_bytes),
            waiting_bytes_max: bytes(waiting).min(most.waiting_bytes_max),
            ..most
        }
    }

    /// Up to half of the memory of connections is for gRPC.
    fn grpc_connections(&self) -> u64 {
        let most = ServerLimits::default().connections_max as u64;
        (self.connections / 2 / with_tls(GRPC_CONNECTION, self.tls)).min(most)
    }

    fn redis_connections(&self) -> u64 {
        let most = RedisLimits::default().connections_max as u64;
        let left = self.connections - self.grpc_connections() * with_tls(GRPC_CONNECTION, self.tls);
        (left / with_tls(REDIS_CONNECTION, self.tls)).min(most)
    }

    /// The bounds of the Redis frontend.
    pub(crate) fn redis_limits(&self) -> RedisLimits {
        let most = RedisLimits::default();
        let held = bytes(redis_bytes(self.redis)).min(most.memory_bytes_max);
        let command = bytes(redis_command(held as u64)).min(most.command_bytes_max);
        let answer = (held / 4).min(most.answer_bytes_max);
        RedisLimits {
            connections_max: bytes(self.redis_connections()),
            memory_bytes_max: held,
            command_bytes_max: command,
            reply_bytes_max: command.min(most.reply_bytes_max),
            answer_bytes_max: answer,
            pending_bytes_max: (held / 2).max(2 * answer).min(most.pending_bytes_max),
            ..most
        }
    }

    /// The parts and their names; together at most the total.
    pub(crate) fn parts(&self) -> [(&'static str, u64); 9] {
        [
            ("store", self.store),
            ("gRPC", self.grpc),
            ("Redis", self.redis),
            ("short values", self.short_values),
            ("connections", self.connections),
            ("console", self.console),
            ("archive", self.archive),
            ("program", self.fixed),
            ("slack", self.slack),
        ]
    }

    /// The division as figures.
    pub(crate) fn figures(&self) -> MemoryParts {
        let named = |(name, bytes): (&str, u64)| (name.to_lowercase().replace(' ', "_"), bytes);
        MemoryParts { total: self.total, parts: self.parts().map(named).into() }
    }

    /// The division in one line.
    pub(crate) fn words(&self) -> String {
        let parts = self.parts().map(|(name, bytes)| format!("{name} {}", Size(bytes)));
        format!("{}: {}", Size(self.total), parts.join(", "))
    }
}

fn bytes(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// The memory of a connection.
fn with_tls(connection: u64, tls: bool) -> u64 {
    if tls { connection + TLS } else { connection }
}

/// The part of connections.
fn connections(tls: bool) -> Part {
    let (grpc, redis) = (with_tls(GRPC_CONNECTION, tls), with_tls(REDIS_CONNECTION, tls));
    let grpc = ServerLimits::default().connections_max as u64 * grpc;
    let redis = RedisLimits::default().connections_max as u64 * redis;
    Part { min: 2 * CONNECTIONS_MIN * GRPC_CONNECTION, max: grpc + redis.max(grpc), weight: 1 }
}

/// The parts in the order of [`MemoryBudget::divide`].
fn parts(wanted: &Wanted) -> [Part; 7] {
    let store = |cache: u64| store_bytes(wanted, cache);
    let (least, most) = (wanted.cache.unwrap_or(CACHE_MIN), wanted.cache.unwrap_or(CACHE_MAX));
    let grpc_min = grpc_bytes(GRPC_MIN, GRPC_WAITING_MIN);
    let in_flight_max = ServerLimits::default().bytes_in_flight_max as u64;
    let redis_max = RedisLimits::default().memory_bytes_max as u64;
    let redis = |held: u64| if wanted.redis { REDIS_FACTOR * held + redis_command(held) } else { 0 };
    [
        Part { min: store(least), max: store(most), weight: 10 },
        Part {
            min: grpc_min,
            max: grpc_min
                + (grpc_bytes(in_flight_max, GRPC_WAITING_MIN) - grpc_min) * GRPC_WAITING_SHARE
                    / (GRPC_WAITING_SHARE - 1)
                + MIB,
            weight: 2,
        },
        Part { min: redis(REDIS_MIN), max: redis(redis_max), weight: 3 },
        Part { min: MIB, max: short_values_of(most), weight: 1 },
        connections(wanted.tls),
        match wanted.console {
            true => {
                let max = (wanted.total / CONSOLE_SHARE).clamp(CONSOLE_MIN, CONSOLE_MAX);
                Part { min: CONSOLE_MIN, max, weight: 1 }
            }
            false => Part { min: 0, max: 0, weight: 1 },
        },
        match wanted.archive {
            true => Part { min: ARCHIVE_MIN, max: ARCHIVE_MAX, weight: 2 },
            false => Part { min: 0, max: 0, weight: 1 },
        },
    ]
}

/// The memory of gRPC with `in_flight` bytes in flight, and `waiting` bytes of messages that wait.
fn grpc_bytes(in_flight: u64, waiting: u64) -> u64 {
    let (times, of) = GRPC_FACTOR;
    in_flight * times / of + GRPC_OLDEST + waiting
}

/// The memory of a store with this cache: the cache and its tables, the values that an apply rewrites, I/O memory, manifests, the steps that
/// streams share, deadlines, and the records of the memtables, including lent room during an apply.
fn store_bytes(wanted: &Wanted, cache: u64) -> u64 {
    let rewritten = (cache / 8).min(64 * MIB);
    let kept = (cache / 8).min(16 * MIB);
    let manifests = (cache / 64).min(4 * MIB);
    let streams = (cache / 32).min(8 * MIB);
    let memtables = memtable_of(wanted, cache).saturating_mul(3) / 2;
    [cache / 32, rewritten, kept, manifests, streams, deadlines_of(cache), memtables]
        .into_iter()
        .fold(cache, u64::saturating_add)
}

/// Bytes of the read cache: a scattered hot set of short values needs it in place of whole pages.
fn short_values_of(cache: u64) -> u64 {
    (cache / 4).max(MIB)
}

/// Bytes of the engine's list of keys with a deadline.
fn deadlines_of(cache: u64) -> u64 {
    (cache / 8).clamp(2 * MIB, 16 * MIB)
}

/// The limit of the memtables: the engine's default, or less if the cache is very small.
fn memtable_of(wanted: &Wanted, cache: u64) -> u64 {
    let usual = (cache / 10).clamp(12 * MIB, 104 * MIB);
    wanted.memtable.unwrap_or(usual.min((cache / 4).max(4 * MIB)))
}

/// The largest cache with which a store takes no more than `bytes`.
fn cache_within(wanted: &Wanted, bytes: u64) -> u64 {
    let (mut fits, mut too_much) = (CACHE_MIN / CACHE_UNIT, CACHE_MAX / CACHE_UNIT + 1);
    while too_much - fits > 1 {
        let middle = fits.midpoint(too_much);
        *(if store_bytes(wanted, middle * CACHE_UNIT) <= bytes { &mut fits } else { &mut too_much }) = middle;
    }
    fits * CACHE_UNIT
}

/// The maximum length of a command, and of its answer, in a Redis frontend with room for `held` bytes.
fn redis_command(held: u64) -> u64 {
    (held / 2).clamp(REDIS_COMMAND_MIN, RedisLimits::default().command_bytes_max as u64)
}

/// The room in bytes of a Redis frontend that takes at most `taken` bytes of memory, including its longest command.
fn redis_bytes(taken: u64) -> u64 {
    let longest = RedisLimits::default().command_bytes_max as u64;
    // The longest command is half of the frontend's bytes, between two bounds.
    let with_half = taken * 2 / (2 * REDIS_FACTOR + 1);
    let with = |command: u64| taken.saturating_sub(command) / REDIS_FACTOR;
    match with_half / 2 {
        half if half < REDIS_COMMAND_MIN => with(REDIS_COMMAND_MIN),
        half if half > longest => with(longest),
        _ => with_half,
    }
}

/// Gives each part its minimum and divides `rest` by weights. The excess over a maximum goes to the other parts.
fn share<const N: usize>(parts: [Part; N], mut rest: u64) -> [u64; N] {
    let mut shares = parts.map(|part| part.min);
    loop {
        let mut open = parts.iter().zip(&mut shares).filter(|(part, share)| **share < part.max);
        let weights: u64 = open.by_ref().map(|(part, _)| part.weight).sum();
        if weights == 0 {
            return shares;
        }
        let unit = rest / weights;
        let mut is_one_full = false;
        for (part, share) in parts.iter().zip(&mut shares) {
            let more = unit.saturating_mul(part.weight).min(part.max - *share);
            is_one_full |= more > 0 && *share + more == part.max;
            *share += more;
            rest -= more;
        }
        if !is_one_full {
            return shares;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn wanted(total: u64) -> Wanted {
        Wanted {
            total,
            cache: None,
            memtable: None,
            redis: true,
            console: true,
            archive: false,
            tls: false,
            cores: 2,
        }
    }

    fn any_wanted() -> impl Strategy<Value = Wanted> {
        let total = prop_oneof![0..GIB, 0..64 * GIB, any::<u64>()];
        let cache = prop::option::of(prop_oneof![0..64 * MIB, 0..8 * GIB, any::<u64>()]);
        let memtable = prop::option::of(prop_oneof![0..64 * MIB, any::<u64>()]);
        (total, cache, memtable, any::<(bool, bool, bool, bool)>(), 1..256_u64).prop_map(
            |(total, cache, memtable, (redis, console, archive, tls), cores)| Wanted {
                total,
                cache,
                memtable,
                redis,
                console,
                archive,
                tls,
                cores,
            },
        )
    }

    proptest! {
        /// The parts together are within the total, each has its minimum, and a refusal names a total that is enough.
        #[test]
        fn the_sum_holds(wanted in any_wanted()) {
            let budget = match MemoryBudget::divide(&wanted) {
                Ok(budget) => budget,
                Err(TooLittle { needed }) => {
                    prop_assert!(needed > wanted.total);
                    // Only a cache near the largest number has no total that is enough.
                    prop_assume!(needed < 1 << 60);
                    MemoryBudget::divide(&Wanted { total: needed, ..wanted }).unwrap()
                }
            };
            let sum: u64 = budget.parts().iter().map(|(_, bytes)| bytes).sum();
            prop_assert!(sum <= budget.total, "{budget:?}");
            let least = if wanted.console { CONSOLE_MIN } else { 0 };
            prop_assert!((least..=CONSOLE_MAX).contains(&budget.console), "{budget:?}");
            let archive = if wanted.archive { ARCHIVE_MIN..=ARCHIVE_MAX } else { 0..=0 };
            prop_assert!(archive.contains(&budget.archive), "{budget:?}");
            prop_assert!(budget.cache >= wanted.cache.unwrap_or(CACHE_MIN));
            prop_assert!(store_bytes(&wanted, budget.cache) <= budget.store, "{budget:?}");
            let grpc = budget.grpc_limits();
            let taken = grpc_bytes(grpc.bytes_in_flight_max as u64, grpc.waiting_bytes_max as u64);
            prop_assert!(taken <= budget.grpc, "{grpc:?} {budget:?}");
            prop_assert!(grpc.bytes_in_flight_max as u64 >= GRPC_MIN, "{grpc:?}");
            prop_assert!(grpc.connection_bytes_in_flight_max <= grpc.bytes_in_flight_max);
            let (redis, figures) = (budget.redis_limits(), budget.figures());
            let connections = grpc.connections_max as u64 * with_tls(GRPC_CONNECTION, wanted.tls)
                + redis.connections_max as u64 * with_tls(REDIS_CONNECTION, wanted.tls);
            prop_assert!(connections <= budget.connections, "{grpc:?} {redis:?} {budget:?}");
            prop_assert!(grpc.connections_max >= 32 && redis.connections_max >= 32, "{grpc:?} {redis:?}");
            prop_assert_eq!(figures.parts.iter().map(|(_, bytes)| bytes).sum::<u64>(), sum);
            if wanted.redis {
                let held = redis.memory_bytes_max as u64;
                prop_assert!(REDIS_FACTOR * held + redis.command_bytes_max as u64 <= budget.redis + 2, "{redis:?} {budget:?}");
                prop_assert!(redis.command_bytes_max as u64 >= REDIS_COMMAND_MIN, "{redis:?}");
                prop_assert!(redis.reply_bytes_max <= redis.memory_bytes_max - (4 << 20), "{redis:?}");
                prop_assert!(redis.pending_bytes_max >= 2 * redis.answer_bytes_max);
                prop_assert!(budget.looks <= held.max(REDIS_MIN), "{budget:?}");
            }
        }

        /// More memory makes no part smaller.
        #[test]
        fn more_memory_is_more_of_each(total in 0..16 * GIB, more in 0..4 * GIB) {
            let Ok(less) = MemoryBudget::divide(&wanted(total)) else { return Ok(()) };
            let more = MemoryBudget::divide(&wanted(total + more)).unwrap();
            for ((name, less), (_, more)) in less.parts().into_iter().zip(more.parts()) {
                prop_assert!(more + MIB >= less, "{name}: {less} and {more}");
            }
        }
    }

    #[test]
    fn with_enough_memory_all_bounds_are_the_usual_ones() {
        let budget = MemoryBudget::divide(&wanted(12 * GIB)).unwrap();
        assert_eq!((budget.cache, budget.memtable), (GIB, GIB / 10));
        let (grpc, usual) = (budget.grpc_limits(), ServerLimits::default());
        assert_eq!(format!("{grpc:?}"), format!("{usual:?}"));
        let (redis, usual) = (budget.redis_limits(), RedisLimits::default());
        assert_eq!(format!("{redis:?}"), format!("{usual:?}"));
    }

    #[test]
    fn small_containers_are_enough() {
        for (total, cache) in
            [(128 * MIB, 16 * MIB), (256 * MIB, 48 * MIB), (512 * MIB, 144 * MIB), (GIB, 320 * MIB)]
        {
            let budget = MemoryBudget::divide(&wanted(total)).unwrap();
            println!("{}; cache {}, memtables {}", budget.words(), Size(budget.cache), Size(budget.memtable));
            println!("  {:?}\n  {:?}", budget.grpc_limits(), budget.redis_limits());
            assert!(budget.cache >= cache, "{}", budget.words());
        }
        let TooLittle { needed } = MemoryBudget::divide(&wanted(64 * MIB)).unwrap_err();
        assert!(needed <= 128 * MIB, "{needed}");
        let large = Wanted { cache: Some(480 * MIB), ..wanted(512 * MIB) };
        assert!(MemoryBudget::divide(&large).unwrap_err().needed > 560 * MIB);
    }
}
