//! One file per command: what it takes, and what it does.

pub(crate) mod completions;
pub(crate) mod cp;
pub(crate) mod export;
pub(crate) mod get;
pub(crate) mod import;
pub(crate) mod ls;
pub(crate) mod put;
pub(crate) mod rm;
pub(crate) mod serve;
pub(crate) mod stat;

use std::sync::Arc;

use anyhow::anyhow;
use tokio::signal;

use crate::failure::EXIT_FAILED;
use crate::output::show_key;
use crate::tree::report::Report;

/// The error of a command that found no object.
fn no_such_object(bucket: &str, key: &[u8]) -> anyhow::Error {
    anyhow!("there is no object {:?} in the bucket {bucket:?}; `shoal ls` lists what there is", show_key(key))
}

/// What a failure of one object was about.
fn about(verb: &str, bucket: &str, key: &[u8]) -> String {
    let bucket =
        if bucket == shoal_engine::DEFAULT_BUCKET { String::new() } else { format!(" in bucket {bucket:?}") };
    format!("{verb} {:?}{bucket}", show_key(key))
}

/// Ends the work of `report` in order at Ctrl-C, and the program at the second.
fn stop_on_interrupt(report: &Arc<Report>) {
    let report = report.clone();
    tokio::spawn(async move {
        for round in 0.. {
            if signal::ctrl_c().await.is_err() {
                return;
            }
            if round > 0 {
                std::process::exit(EXIT_FAILED.into());
            }
            report.stop("interrupted");
        }
    });
}
