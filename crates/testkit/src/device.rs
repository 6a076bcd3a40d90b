//! Devices that intercept requests on their way: count them, hold them back, delay them, fail them.

use std::io;
use std::ops::{Deref, Range};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use shoal_device::{BlockDevice, Device, DeviceCounters, Submission};
use shoal_device_sim::{Image, Latency, SimDevice, SimOptions};

/// The part of a device that a test writes; [`Intercepted`] makes a device of it, which passes everything else on.
pub trait Intercept: Send + Sync {
    /// The underlying device.
    fn inner(&self) -> &dyn BlockDevice;

    /// Requests on their way to the device; those that are returned go on. A test that looks at requests, or fails some
    /// of them, needs no more than this method.
    fn pass(&self, submissions: Vec<Submission>) -> Vec<Submission> {
        submissions
    }

    /// As [`BlockDevice::submit`].
    fn submit(&self, submissions: Vec<Submission>) {
        self.inner().submit(self.pass(submissions));
    }

    /// As [`BlockDevice::execute`].
    fn execute(&self, submissions: Vec<Submission>) {
        self.inner().execute(self.pass(submissions));
    }

    /// As [`BlockDevice::grow`].
    ///
    /// # Errors
    /// Those of the underlying device.
    fn grow(&self, blocks: u64) -> io::Result<()> {
        self.inner().grow(blocks)
    }

    /// As [`BlockDevice::can_grow`].
    fn can_grow(&self) -> bool {
        self.inner().can_grow()
    }

    /// As [`BlockDevice::is_cached`].
    fn is_cached(&self) -> bool {
        self.inner().is_cached()
    }

    /// As [`BlockDevice::displaced`].
    fn displaced(&self) -> Option<String> {
        self.inner().displaced()
    }

    /// As [`BlockDevice::shortened`].
    fn shortened(&self, needed: u64) -> Option<String> {
        self.inner().shortened(needed)
    }
}

/// A device whose requests pass through an [`Intercept`].
pub struct Intercepted<I>(I);

impl<I: Intercept + 'static> Intercepted<I> {
    /// The device, and a handle of it for the store.
    pub fn new(intercept: I) -> (Arc<Self>, Device) {
        let own = Arc::new(Self(intercept));
        (own.clone(), Device::new(own))
    }
}

impl<I> Deref for Intercepted<I> {
    type Target = I;

    fn deref(&self) -> &I {
        &self.0
    }
}

impl<I: Intercept> BlockDevice for Intercepted<I> {
    fn submit(&self, submissions: Vec<Submission>) {
        self.0.submit(submissions);
    }

    fn execute(&self, submissions: Vec<Submission>) {
        self.0.execute(submissions);
    }

    fn blocks(&self) -> u64 {
        self.0.inner().blocks()
    }

    fn grow(&self, blocks: u64) -> io::Result<()> {
        self.0.grow(blocks)
    }

    fn hold_room(&self, blocks: Range<u64>) -> io::Result<bool> {
        self.0.inner().hold_room(blocks)
    }

    fn describe(&self) -> String {
        format!("{}, intercepted", self.0.inner().describe())
    }

    fn can_grow(&self) -> bool {
        self.0.can_grow()
    }

    fn is_cached(&self) -> bool {
        self.0.is_cached()
    }

    fn displaced(&self) -> Option<String> {
        self.0.displaced()
    }

    fn shortened(&self, needed: u64) -> Option<String> {
        self.0.shortened(needed)
    }

    fn counters(&self) -> DeviceCounters {
        self.0.inner().counters()
    }
}

/// A device whose requests take longer, as over a network. Any number of requests are delayed side by side.
pub struct Late {
    inner: Arc<dyn BlockDevice>,
    delay: Duration,
    later: Mutex<Sender<(Instant, Vec<Submission>)>>,
}

impl Late {
    /// The device `inner`, each of whose requests takes `delay` longer.
    #[must_use]
    pub fn over(inner: Arc<dyn BlockDevice>, delay: Duration) -> Device {
        let (later, waiting) = channel::<(Instant, Vec<Submission>)>();
        let below = inner.clone();
        thread::spawn(move || {
            for (due, submissions) in waiting {
                thread::sleep(due.saturating_duration_since(Instant::now()));
                below.submit(submissions);
            }
        });
        Intercepted::new(Self { inner, delay, later: Mutex::new(later) }).1
    }
}

impl Intercept for Late {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }

    fn submit(&self, submissions: Vec<Submission>) {
        if self.delay.is_zero() {
            return self.inner.submit(submissions);
        }
        let later = self.later.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = later.send((Instant::now() + self.delay, submissions));
        assert!(sent.is_ok(), "the thread ends with the device");
    }

    fn execute(&self, submissions: Vec<Submission>) {
        thread::sleep(self.delay);
        self.inner.execute(submissions);
    }
}

/// A simulated device that keeps no history: for a test that looks at no crash.
#[must_use]
pub fn quiet(image: Image) -> Arc<SimDevice> {
    SimDevice::with_options(image, SimOptions { record: false, ..SimOptions::default() })
}

/// The same, with these latencies.
#[must_use]
pub fn slow(image: Image, latency: Latency) -> Arc<SimDevice> {
    SimDevice::with_options(image, SimOptions { latency, record: false, ..SimOptions::default() })
}

/// A simulated device whose file may grow.
#[must_use]
pub fn growable(image: Image) -> Arc<SimDevice> {
    SimDevice::with_options(image, SimOptions { growable: true, ..SimOptions::default() })
}

/// The blocks of `image` from `first` on that hold anything but zeros.
#[must_use]
pub fn used_blocks(image: &Image, first: u64) -> Vec<u64> {
    (first..image.blocks()).filter(|&block| image.block(block).iter().any(|&byte| byte != 0)).collect()
}

#[cfg(test)]
mod tests {
    use shoal_base::task::block_on;
    use shoal_device::{IoBuf, Op};

    use super::*;

    /// Fails every write.
    struct Unwritable(Arc<SimDevice>);

    impl Intercept for Unwritable {
        fn inner(&self) -> &dyn BlockDevice {
            &*self.0
        }

        fn pass(&self, submissions: Vec<Submission>) -> Vec<Submission> {
            let (reads, writes): (Vec<_>, Vec<_>) =
                submissions.into_iter().partition(|submission| submission.op() == Op::Read);
            writes
                .into_iter()
                .for_each(|submission| submission.fail(&io::ErrorKind::ReadOnlyFilesystem.into()));
            reads
        }
    }

    #[test]
    fn blocked_request_never_reaches_device() {
        let (own, device) = Intercepted::new(Unwritable(quiet(Image::new(8))));
        assert!(block_on(device.read(3, IoBuf::new(1))).result.is_ok());
        assert!(block_on(device.write(3, IoBuf::new(1))).result.is_err());
        assert_eq!((own.counters().reads, own.counters().writes, device.blocks()), (1, 0, 8));
        assert!(used_blocks(&own.0.0.image(), 0).is_empty());
    }
}
