//! Runs the built binary as people and programs do: [`harness`] starts servers and commands, [`machine`] and [`process`] are the parts
//! of the machine that tests use; [`usage`] is about wrong command lines and configurations, [`objects`] about single objects, [`tree`]
//! about whole folders, [`transfer`] about the contents that they hold or not, [`folding`] about names that a file system does not
//! distinguish, [`archive`] about the archive, [`tarball`] about tars, [`timeouts`] about servers that do not answer, [`from_redis`] about strings of Redis, [`serve`]
//! about the server, [`idle`] about one without clients, [`watch`] about watching it, [`check`] and [`damage`] about damage, [`backup`] about backups, [`last_backup`]
//! about the one that `stat` shows, [`format`](mod@format) about new stores, [`grow`] about stores that become larger, [`read_only`]
//! about stores that cannot be written, [`kill`] about stores after a kill, [`linear`] about answers to clients over kills, [`keys`]
//! about strange keys, [`credentials`](mod@credentials) about the keys of clients, [`s3`] about S3, [`containers`] and [`s3_memory`] about little memory, [`no_room`] about file systems without room, [`memory`] and [`load`] about
//! load and overload, [`another_clock`] about time namespaces, [`abuse`] about burdensome clients and devices, [`readme`] about the
//! commands of the README, [`scale`] and [`tail`] about `shoal bench`, [`space`] about maps and dumps, [`space_service`] about the allocator
//! between processes.

// Clippy's exception for tests does not reach the helpers of an integration test.
#![allow(clippy::unwrap_used)]

mod abuse;
mod another_clock;
mod archive;
mod backup;
mod both;
mod check;
mod console;
mod containers;
mod credentials;
mod damage;
mod disk;
mod drill;
mod everyday;
mod folding;
mod format;
mod from_redis;
mod grow;
mod harness;
mod idle;
mod increments;
mod keys;
mod kill;
mod last_backup;
mod linear;
mod listing;
mod load;
mod machine;
mod memory;
mod no_room;
mod objects;
mod process;
mod read_only;
mod readme;
mod restore_archive;
mod s3;
mod s3_client;
mod s3_memory;
mod scale;
mod serve;
mod shared_device;
mod space;
mod space_service;
mod stopping;
mod tail;
mod tarball;
mod timeouts;
mod transfer;
mod tree;
mod usage;
mod watch;
mod which_bucket;
mod whole_bucket;
