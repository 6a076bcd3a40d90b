//! The priority of threads, and the length of their time slices.
#![allow(unsafe_code)]

use std::io;
use std::ptr;

use rustix::process::{getpriority_process, setpriority_process};
use rustix::thread::gettid;

/// A thread whose nice value is higher by this gets a third of the time of another one that wants the same core.
const NICE_STEP: i32 = 5;
/// A short time slice, in nanoseconds. Usual ones are longer: 1.4 ms on a machine with two cores.
const SHORT_SLICE_NS: u64 = 300_000;

/// Lowers the priority of this thread beside the other threads of its process. Linux has a nice value for each thread, unlike POSIX
/// (setpriority(2)). Raising it needs no right; if the system refuses it all the same, the priority stays.
pub fn give_way() {
    let thread = Some(gettid());
    if let Ok(nice) = getpriority_process(thread) {
        let _ = setpriority_process(thread, nice.saturating_add(NICE_STEP));
    }
}

/// Sets a short time slice for this thread: when it wakes, it takes the core from a thread with a longer one at once, and not at the end of
/// that slice. Its share of the time stays the same: a thread that has used up its share waits as before. Linux knows slices of threads
/// from 6.12 on (sched_setattr(2), `Documentation/scheduler/sched-eevdf.rst`); if a system has none, or refuses it, nothing changes.
pub fn shorten_slice() {
    if let Ok(mut attributes) = attributes() {
        attributes.sched_runtime = attributes.sched_runtime.min(SHORT_SLICE_NS);
        let _ = set_attributes(&attributes);
    }
}

/// The scheduling attributes of this thread.
fn attributes() -> io::Result<libc::sched_attr> {
    let mut attributes = libc::sched_attr {
        size: 0,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    };
    let bytes = size_of_val(&attributes);
    // SAFETY: the kernel writes at most `bytes` bytes to `attributes`, which has as many and takes every value of them; 0 is this thread.
    let result =
        unsafe { libc::syscall(libc::SYS_sched_getattr, 0, ptr::from_mut(&mut attributes), bytes, 0) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(attributes) }
}

/// Sets the attributes that [`attributes`] returns.
fn set_attributes(attributes: &libc::sched_attr) -> io::Result<()> {
    // SAFETY: the kernel reads `attributes.size` bytes at most, which it wrote there itself; 0 is this thread.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, ptr::from_ref(attributes), 0) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_gets_a_short_slice_and_keeps_its_priority() {
        let state = || attributes().map(|now| (now.sched_policy, now.sched_nice, now.sched_runtime)).unwrap();
        let before = state();
        // A kernel that knows no slices reports 0.
        let slice_ns = move |wanted: u64| if before.2 == 0 { 0 } else { wanted };
        let shortened = std::thread::spawn(move || {
            shorten_slice();
            state()
        });
        assert_eq!(shortened.join().unwrap(), (before.0, before.1, slice_ns(SHORT_SLICE_NS)));
        assert_eq!(state(), before, "the other threads");
        let shorter = std::thread::spawn(move || {
            let mut attributes = attributes().unwrap();
            attributes.sched_runtime = slice_ns(SHORT_SLICE_NS / 2);
            set_attributes(&attributes).unwrap();
            shorten_slice();
            state()
        });
        assert_eq!(shorter.join().unwrap().2, slice_ns(SHORT_SLICE_NS / 2), "the user's own slice");
    }

    #[test]
    fn give_way_lowers_only_the_calling_thread() {
        let nice = || getpriority_process(Some(gettid())).unwrap();
        let before = nice();
        let lowered = std::thread::spawn(move || {
            give_way();
            nice()
        });
        assert_eq!(lowered.join().unwrap(), (before + NICE_STEP).min(19));
        assert_eq!(nice(), before);
    }
}
