//! Every interleaving of a few threads' steps on one page's word: readers, writers, a write-back and an eviction.
//!
//! Each step is one atomic operation of the real word, so this covers all effects of threads on each other except
//! weaker memory orders (covered by Miri and the stress tests). A schedule is run anew for each interleaving.

use crate::resident::word::Word;

/// The page that the word protects, and its users.
#[derive(Default)]
struct World {
    word: Word,
    readers: u32,
    writers: u32,
    /// The newest image, and the one on the device.
    image: u32,
    device: u32,
    evictions: u32,
}

impl World {
    /// Releases a pin as `Pinned` does.
    fn unpin(&self) {
        if !self.word.unpin() {
            let duties = self.word.unpin_for_others();
            assert!(!duties.free && !duties.close);
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Role {
    Reader,
    Writer,
    WriteBack,
    Evictor,
}

/// A thread: its role, its next step, and its memory.
struct Thread {
    role: Role,
    step: u32,
    saw: u32,
}

/// The result of a step.
#[derive(PartialEq, Eq)]
enum Turn {
    Went,
    /// The thread waits for others.
    Blocked,
    Ended,
}

impl Thread {
    fn next(&mut self, to: u32) -> Turn {
        self.step = to;
        Turn::Went
    }

    fn turn(&mut self, world: &mut World) -> Turn {
        match (self.role, self.step) {
            (Role::Reader, 0) if world.word.pin(true) => {
                assert_eq!(world.writers, 0, "pinned while somebody writes");
                world.readers += 1;
                self.saw = world.image;
                self.next(1)
            }
            (Role::Reader, 0) => Turn::Blocked,
            (Role::Reader, _) => {
                assert_eq!(self.saw, world.image, "changed under a reader");
                world.readers -= 1;
                world.unpin();
                Turn::Ended
            }
            (Role::Writer, 0) if world.word.pin(true) => self.next(1),
            (Role::Writer, 0) => Turn::Blocked,
            (Role::Writer, 1) => {
                if world.word.latch() {
                    return self.next(2);
                }
                world.unpin();
                self.next(0)
            }
            (Role::Writer, 2) => {
                if !world.word.is_drained() {
                    world.word.tell_when_drained();
                    return Turn::Blocked;
                }
                assert_eq!((world.readers, world.writers), (0, 0), "wrote while others are there");
                world.writers += 1;
                self.next(3)
            }
            (Role::Writer, _) => {
                world.image += 1;
                world.writers -= 1;
                if !world.word.unlatch_and_unpin() {
                    world.word.unlatch(true);
                    world.unpin();
                }
                Turn::Ended
            }
            (Role::WriteBack, 0) => {
                if !world.word.is_dirty() || !world.word.is_idle() || !world.word.pin(false) {
                    return Turn::Blocked;
                }
                self.next(1)
            }
            (Role::WriteBack, 1) => {
                if !world.word.is_dirty() {
                    world.unpin();
                    return self.next(0);
                }
                assert_eq!(world.writers, 0);
                self.saw = world.image;
                self.next(2)
            }
            (Role::WriteBack, 2) => {
                assert_eq!(self.saw, world.image, "changed while it was written");
                world.device = self.saw;
                self.next(3)
            }
            (Role::WriteBack, 3) => {
                world.word.clean();
                self.next(4)
            }
            (Role::WriteBack, _) => {
                world.unpin();
                Turn::Ended
            }
            (Role::Evictor, 0) => match world.word.claim() {
                None => Turn::Blocked,
                Some(_) => {
                    assert_eq!((world.readers, world.writers), (0, 0), "taken from under somebody");
                    assert_eq!(world.device, world.image, "an image was lost");
                    world.evictions += 1;
                    self.next(1)
                }
            },
            (Role::Evictor, _) => {
                world.word.publish(0);
                Turn::Ended
            }
        }
    }
}

/// Runs the threads by `schedule`, which has one choice among the runnable threads for each step; returns the number of
/// choices at each step.
fn run(roles: &[Role], schedule: &[usize]) -> (Vec<usize>, World) {
    let mut world = World::default();
    world.word.publish(0);
    let mut threads: Vec<_> = roles.iter().map(|&role| Thread { role, step: 0, saw: 0 }).collect();
    // A blocked thread is retried after a step of another thread.
    let mut ready: Vec<usize> = (0..threads.len()).collect();
    let mut blocked = Vec::new();
    let mut choices = Vec::new();
    while !ready.is_empty() {
        let choice = schedule.get(choices.len()).copied().unwrap_or(0);
        choices.push(ready.len());
        assert!(choices.len() < 200, "threads keep each other from ending");
        let thread = ready[choice];
        match threads[thread].turn(&mut world) {
            Turn::Went => ready.append(&mut blocked),
            Turn::Ended => {
                ready.remove(choice);
                ready.append(&mut blocked);
            }
            Turn::Blocked => {
                ready.remove(choice);
                blocked.push(thread);
            }
        }
        ready.sort_unstable();
    }
    for thread in blocked {
        // A write-back of an unchanged page, or an eviction of a page that stays dirty, has nothing to do; no other
        // role waits.
        let role = threads[thread].role;
        assert!(matches!(role, Role::WriteBack | Role::Evictor), "{role:?} waits for ever: {schedule:?}");
    }
    (choices, world)
}

/// Runs every schedule, depth first; returns the number of schedules and of all evictions.
fn explore(roles: &[Role]) -> (usize, u32) {
    let (mut schedule, mut count, mut evictions) = (Vec::new(), 0, 0);
    loop {
        let (choices, world) = run(roles, &schedule);
        count += 1;
        evictions += world.evictions;
        assert!(world.word.is_idle() && !world.word.is_latched(), "something is left: {schedule:?}");
        schedule.resize(choices.len(), 0);
        // The last choice that has another one.
        while let Some(last) = schedule.pop() {
            if last + 1 < choices[schedule.len()] {
                schedule.push(last + 1);
                break;
            }
        }
        if schedule.is_empty() {
            return (count, evictions);
        }
    }
}

#[test]
fn readers_and_writers_exclude_each_other() {
    let (schedules, _) = explore(&[Role::Reader, Role::Writer, Role::Writer]);
    assert!(schedules > 1_000, "{schedules}");
}

#[test]
fn a_write_back_has_the_newest_image_and_nothing_is_lost() {
    let (schedules, evictions) = explore(&[Role::Writer, Role::WriteBack, Role::Evictor]);
    assert!(schedules > 100 && evictions > 0, "{schedules} schedules, {evictions} evictions");
    let (schedules, evictions) = explore(&[Role::Reader, Role::Writer, Role::WriteBack]);
    assert!(schedules > 1_000 && evictions == 0, "{schedules}");
}
