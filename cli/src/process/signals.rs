//! SIGINT (Ctrl-C) and SIGTERM: the first stops the work in order, the second exits the program. At SIGHUP a server reads its credentials
//! again.

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::EXIT_FAILED;
use crate::logging;

/// Calls `stop` at the first signal, and exits the program at the second.
pub(crate) fn stop_in_order(stop: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
    stop_boxed(Box::new(stop))
}

/// Not generic: tokio's code for a task is long.
fn stop_boxed(stop: Box<dyn FnOnce() + Send>) -> anyhow::Result<()> {
    let listen = |kind| signal(kind).context("cannot listen for signals");
    let (mut interrupt, mut terminate) = (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
    tokio::spawn(async move {
        either(&mut interrupt, &mut terminate).await;
        stop();
        either(&mut interrupt, &mut terminate).await;
        logging::finish();
        std::process::exit(EXIT_FAILED.into());
    });
    Ok(())
}

/// The stream of SIGHUPs, which no longer stop the program.
pub(crate) fn hang_ups() -> anyhow::Result<Signal> {
    signal(SignalKind::hangup()).context("cannot listen for SIGHUP")
}

async fn either(interrupt: &mut Signal, terminate: &mut Signal) {
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}
