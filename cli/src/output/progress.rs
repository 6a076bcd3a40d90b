//! The progress of a long command on standard error: in place on a terminal, a line every few seconds elsewhere.

use std::io::{self, IsTerminal};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// The period of updates on a terminal.
const PICTURE_INTERVAL: Duration = Duration::from_millis(200);
/// The period of lines without a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// The bar that `template` draws, if standard error is a terminal.
pub(crate) fn drawn(template: &str) -> Option<ProgressBar> {
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = || ProgressBar::no_length().with_style(style.progress_chars("=> "));
    io::stderr().is_terminal().then(bar)
}

/// Calls a function on a separate thread, in the period of a progress display, until it is dropped.
pub(crate) struct Ticker {
    /// Dropping it wakes the thread.
    end: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Ticker {
    pub(crate) fn start(is_drawn: bool, mut show: impl FnMut() + Send + 'static) -> Self {
        let (end, ended) = sync_channel(0);
        let interval = if is_drawn { PICTURE_INTERVAL } else { LINE_INTERVAL };
        let thread = std::thread::spawn(move || {
            while ended.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                show();
            }
        });
        Self { end: Some(end), thread: Some(thread) }
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // A panic of this thread does not affect the work.
            let _ = thread.join();
        }
    }
}
