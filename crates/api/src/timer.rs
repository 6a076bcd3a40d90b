//! The timer of hyper: its pings and its wait for headers do not count the time in which this process was suspended.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::awake::AwakeSleep;
use hyper::rt::{Sleep, Timer};

/// See the top of the file.
#[derive(Clone, Copy, Debug)]
pub struct AwakeTimer;

struct HyperSleep(AwakeSleep);

impl Future for HyperSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.0).poll(context)
    }
}

impl Sleep for HyperSleep {}

impl AwakeTimer {
    fn until(self, deadline: Instant) -> Duration {
        deadline.saturating_duration_since(self.now())
    }
}

impl Timer for AwakeTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        Box::pin(HyperSleep(AwakeSleep::new(duration)))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        self.sleep(self.until(deadline))
    }

    fn now(&self) -> Instant {
        tokio::time::Instant::now().into()
    }

    fn reset(&self, sleep: &mut Pin<Box<dyn Sleep>>, deadline: Instant) {
        match sleep.as_mut().downcast_mut_pin::<HyperSleep>() {
            Some(mut sleep) => sleep.0.reset(self.until(deadline)),
            None => *sleep = self.sleep_until(deadline),
        }
    }
}
