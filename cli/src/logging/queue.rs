//! Lines to standard error are put into a bounded queue, and a thread writes them. A pipe that is not read stops only
//! that thread. Lines that do not fit in the queue are dropped and counted; the count is logged when there is room again.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use parking_lot::{Condvar, Mutex};
use tracing_subscriber::fmt::MakeWriter;

use super::limit::Limit;

/// Bytes of waiting lines at most; further lines are dropped.
const QUEUE_BYTES_MAX: usize = 1 << 20;

/// Bytes of the last lines that are kept for a report.
const KEPT_BYTES_MAX: usize = 256 << 10;

/// The period in which the thread looks whether lines left out are due for a report, while there are any.
const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// The pause before the next try if standard error takes nothing and cannot be waited for.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// The queue.
pub(super) struct LogQueue {
    state: Mutex<State>,
    /// Something came.
    filled: Condvar,
    /// Something was written.
    emptied: Condvar,
}

#[derive(Default)]
struct State {
    lines: VecDeque<Vec<u8>>,
    /// Of these, and of the line that is being written.
    bytes: usize,
    /// Lines that found no room and were not reported.
    dropped: u64,
    /// Lines that left the queue, ever.
    written: u64,
    /// The last lines, dropped ones included, and their bytes.
    kept: VecDeque<Vec<u8>>,
    kept_bytes: usize,
}

impl State {
    fn keep(&mut self, line: &[u8]) {
        self.kept_bytes += line.len();
        self.kept.push_back(line.to_vec());
        while self.kept_bytes > KEPT_BYTES_MAX
            && let Some(oldest) = self.kept.pop_front()
        {
            self.kept_bytes -= oldest.len();
        }
    }
}

impl LogQueue {
    /// A queue whose thread writes to standard error, and logs the lines that `limit` left out.
    pub(super) fn to_stderr(limit: Arc<Limit>) -> anyhow::Result<Arc<Self>> {
        // A separate descriptor: the standard library's lock is not held while this waits for the reader.
        let stderr = io::stderr().as_fd().try_clone_to_owned().context("cannot write to standard error")?;
        let queue = Arc::new(Self::new());
        let (target, its, wakes) = (File::from(stderr), queue.clone(), queue.clone());
        limit.set_reporter(move || wakes.note_left_out());
        let thread = std::thread::Builder::new().name("log".into());
        thread
            .spawn(move || its.run(target, &limit))
            .context("cannot start the thread that writes the log")?;
        Ok(queue)
    }

    fn new() -> Self {
        Self { state: Mutex::default(), filled: Condvar::new(), emptied: Condvar::new() }
    }

    /// Takes a line if there is room. Never waits for the reader.
    pub(super) fn push(&self, line: Vec<u8>) {
        let mut state = self.state.lock();
        state.keep(&line);
        if state.bytes + line.len() > QUEUE_BYTES_MAX {
            state.dropped += 1;
            return;
        }
        state.bytes += line.len();
        state.lines.push_back(line);
        drop(state);
        self.filled.notify_one();
    }

    /// The last lines, the oldest first.
    pub(super) fn recent(&self) -> Vec<u8> {
        self.state.lock().kept.iter().flatten().copied().collect()
    }

    /// Waits until all lines were written, or none was for `silence_max`.
    pub(super) fn flush(&self, silence_max: Duration) {
        let mut state = self.state.lock();
        let (mut written, mut since) = (state.written, Instant::now());
        while state.bytes > 0 || state.dropped > 0 {
            if state.written > written {
                (written, since) = (state.written, Instant::now());
            }
            let Some(left) = silence_max.checked_sub(since.elapsed()) else { return };
            let _ = self.emptied.wait_for(&mut state, left);
        }
    }

    /// Writes lines until the program exits.
    fn run(&self, mut target: impl Write, limit: &Limit) {
        loop {
            match self.next(limit) {
                Some(line) => {
                    write(&mut target, &line);
                    let mut state = self.state.lock();
                    state.bytes -= line.len();
                    state.written += 1;
                    drop(state);
                    self.emptied.notify_all();
                }
                None => self.tell(limit),
            }
        }
    }

    /// The next line; none if there is something to report, now or soon.
    fn next(&self, limit: &Limit) -> Option<Vec<u8>> {
        let mut state = self.state.lock();
        if state.lines.is_empty() && state.dropped == 0 {
            if limit.owes() {
                let _ = self.filled.wait_for(&mut state, LOOK_PAUSE);
            } else {
                self.filled.wait(&mut state);
            }
        }
        state.lines.pop_front()
    }

    /// Wakes the thread: the first line was left out, which it reports later.
    pub(super) fn note_left_out(&self) {
        // Under the lock, so that the thread is not between its check and its wait.
        let state = self.state.lock();
        self.filled.notify_one();
        drop(state);
    }

    /// Logs the number of dropped lines, and of lines left out. The queue is empty, so there is room.
    fn tell(&self, limit: &Limit) {
        let dropped = self.state.lock().dropped;
        if dropped > 0 {
            tracing::warn!(
                target: "shoal::logging",
                "{dropped} lines of the log were dropped: standard error was not read"
            );
            // Only now, when the line is in the queue: the program's end waits for both.
            self.state.lock().dropped -= dropped;
            self.emptied.notify_all();
        }
        if limit.owes() {
            limit.report();
        }
    }
}

/// Without a reader the line is lost.
fn write(target: &mut impl Write, mut line: &[u8]) {
    while !line.is_empty() {
        match target.write(line) {
            Ok(count) => line = line.get(count..).filter(|_| count > 0).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // Another process that shares the descriptor has made it non-blocking.
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(RETRY_PAUSE),
            Err(_) => return,
        }
    }
}

/// Passes the lines of `tracing` to the queue.
pub(super) struct QueueWriter(pub(super) Arc<LogQueue>);

/// One line, which comes in one piece.
pub(super) struct Line<'a>(&'a LogQueue);

impl<'a> MakeWriter<'a> for QueueWriter {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line(&self.0)
    }
}

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.push(bytes.to_vec());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    /// An unread pipe stops no thread that logs; once it is read, the queued lines come out whole and in order.
    #[test]
    fn full_pipe_does_not_block_logging() {
        let (mut reader, writer) = io::pipe().unwrap();
        let queue = Arc::new(LogQueue::new());
        let its = queue.clone();
        std::thread::spawn(move || its.run(writer, &Limit::default()));
        let line = |number: usize| format!("{number:0>999}\n").into_bytes();
        // Twice the room of the queue and a pipe.
        for number in 0..3_000 {
            queue.push(line(number));
        }
        queue.flush(Duration::from_millis(50));
        let (dropped, held) = {
            let state = queue.state.lock();
            (state.dropped as usize, state.bytes)
        };
        assert!(held <= QUEUE_BYTES_MAX && dropped > 0, "{held} bytes, {dropped} dropped");
        let taken = 3_000 - dropped;
        let mut text = vec![0; taken * 1_000];
        reader.read_exact(&mut text).unwrap();
        // The thread makes room while lines come, so a line may be taken after one that was dropped.
        let mut next = 0;
        for whole in text.chunks(1_000) {
            let number: usize = str::from_utf8(whole).unwrap().trim().parse().unwrap();
            assert!(number >= next && whole == line(number), "{number} after {next}");
            next = number + 1;
        }
        queue.flush(Duration::from_secs(60));
        {
            let state = queue.state.lock();
            assert_eq!((state.bytes, state.dropped), (0, 0), "and the rest was told of");
        }
        queue.push(line(5));
        reader.read_exact(&mut text[..1_000]).unwrap();
        assert!(text[..1_000] == line(5));
        // A closed pipe stops no thread either.
        drop(reader);
        (0..10).for_each(|number| queue.push(line(number)));
        queue.flush(Duration::from_secs(60));
        assert_eq!(queue.state.lock().bytes, 0);
    }
}
