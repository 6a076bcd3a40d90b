//! WAIT and WAITAOF with an archive.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use shoal_base::task::Boxed;
use shoal_frontend::{ArchiveFrontier, ArchiveLink};
use shoal_redis::RedisOptions;

use crate::support::{Client, Seen, serve};

/// An archive that has everything after a number of calls without a time limit, and nothing before.
struct Archive {
    waits: AtomicU64,
    limited: AtomicU64,
}

impl ArchiveFrontier for Archive {
    fn wait(&self, time: Option<Duration>) -> Boxed<'static, bool> {
        match time {
            Some(time) => {
                self.limited.store(time.as_millis() as u64, Ordering::Relaxed);
                Box::pin(async { false })
            }
            None => {
                let waits = self.waits.fetch_add(1, Ordering::Relaxed);
                let is_over = Arc::new(AtomicBool::new(false));
                let mut is_started = false;
                Box::pin(poll_fn(move |context| {
                    if is_over.load(Ordering::Acquire) {
                        return Poll::Ready(waits < 3);
                    }
                    if !std::mem::replace(&mut is_started, true) {
                        // Another thread wakes this one, as that of an archive does.
                        let (is_over, waker) = (Arc::clone(&is_over), context.waker().clone());
                        std::thread::spawn(move || {
                            std::thread::sleep(Duration::from_millis(5));
                            is_over.store(true, Ordering::Release);
                            waker.wake();
                        });
                    }
                    Poll::Pending
                }))
            }
        }
    }
}

#[test]
fn wait_counts_the_archive_as_a_replica() {
    let link = ArchiveLink::default();
    let archive = Arc::new(Archive { waits: AtomicU64::new(0), limited: AtomicU64::new(0) });
    link.set(archive.clone());
    let served = serve(RedisOptions { archive: link, ..RedisOptions::default() });
    let mut client = Client::new(&served);
    client.script(
        "
        set a 1 => +OK
        wait 0 0 => :0
        wait 1 0 => :1
        wait 2 0 => :1
        waitaof 1 1 0 => [:1, :1]
        waitaof 0 0 0 => [:1, :0]
        wait 1 250 => :0
        wait 1 0 => :0
        ",
    );
    assert_eq!((archive.waits.load(Ordering::Relaxed), archive.limited.load(Ordering::Relaxed)), (4, 250));
    client.script("multi => +OK\n set a 2 => +QUEUED\n wait 1 0 => +QUEUED\n exec => [+OK, :0]");
    assert_eq!(archive.waits.load(Ordering::Relaxed), 5, "it waits after the commit");
    // The answer of a pipeline's WAIT is before that of the next command.
    client.send(b"WAIT 1 0\r\nPING\r\n");
    assert_eq!((client.next(), client.next()), (Some(Seen::Integer(0)), Some(Seen::Simple("PONG".into()))));
}
