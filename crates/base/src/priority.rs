//! The priority of threads.

use rustix::process::{getpriority_process, setpriority_process};
use rustix::thread::gettid;

/// A thread with this much more of a nice value gets a third of the time of another one that wants the same core.
const NICE_STEP: i32 = 5;

/// Lowers the priority of this thread beside the other threads of its process. Linux has a nice value for each thread, whatever POSIX
/// says (setpriority(2)). Raising it needs no right; where the system refuses it all the same, the priority stays.
pub fn give_way() {
    let thread = Some(gettid());
    if let Ok(nice) = getpriority_process(thread) {
        let _ = setpriority_process(thread, nice.saturating_add(NICE_STEP));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_gives_way_and_the_others_keep_their_priority() {
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
