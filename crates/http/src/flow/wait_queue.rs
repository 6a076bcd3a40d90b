//! The queue of messages without room: the oldest one may take in more, so that one message can always finish.
//!
//! A message is counted when its bytes arrive, and not before: a client that announces much and sends nothing takes nothing from others.
//! Many messages may have arrived in half when the budget is used up. They wait then, each with one frame and its bytes in HTTP/2's window.
//! Only the longest waiting message may use a certain part of the budget, which takes in its rest; when the store has finished with that
//! message, the next one has its turn. Messages of streams and unary requests wait in the same queue. The bytes of a connection's waiting
//! messages in HTTP/2 may not fill the window that the oldest one needs, so their number is bounded. The model below tries all orders of
//! these events.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// Bytes of a connection's window that its waiting messages leave to the others: the oldest message, short requests, and messages with
/// room.
pub(super) const WINDOW_LEFT_BYTES: usize = 4 << 20;

/// Bytes that the longest waiting message may hold without room: more than any message has.
pub(super) const OLDEST_BYTES: usize = 8 << 20;

/// A place in the queue.
pub(super) type Number = u64;

/// The messages that wait or have waited and have not finished, in the order of their arrival, each with a `W`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Order<W> {
    next: Number,
    queue: BTreeMap<Number, W>,
}

impl<W> Default for Order<W> {
    fn default() -> Self {
        Self { next: 0, queue: BTreeMap::new() }
    }
}

impl<W> Order<W> {
    fn join(&mut self, who: W) -> Number {
        let number = self.next;
        self.next += 1;
        self.queue.insert(number, who);
        number
    }

    fn is_first(&self, number: Number) -> bool {
        self.queue.first_key_value().is_some_and(|(first, _)| *first == number)
    }
}

/// Returns true if a message of which `held` bytes have arrived may take in a `frame` more. `oldest` is the limit of the first message of
/// the queue.
fn may_go_on(has_room: bool, is_first: bool, held: usize, frame: usize, oldest: usize) -> bool {
    has_room || (is_first && held + frame <= oldest)
}

/// The queue of a server.
#[derive(Debug, Default)]
pub(super) struct WaitQueue {
    order: Mutex<Order<Option<Waker>>>,
    /// The number of messages in the queue: usually zero, so that no thread takes the lock.
    count: AtomicUsize,
    /// Bytes of them that HTTP/2 may hold.
    pub(super) waiting: AtomicUsize,
}

impl WaitQueue {
    fn lock(&self) -> MutexGuard<'_, Order<Option<Waker>>> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes waiters after bytes were released by a sequentially consistent write: either a waiter sees the bytes, or this call sees the
    /// waiter.
    pub(super) fn wake(&self) {
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        let wakers: Vec<Waker> = self.lock().queue.values_mut().filter_map(Option::take).collect();
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// A message's place in the queue, from its first wait for room until its bytes are released.
#[derive(Debug)]
pub(super) struct MessagePlace {
    queue: Arc<WaitQueue>,
    number: Number,
}

impl MessagePlace {
    pub(super) fn join(queue: &Arc<WaitQueue>) -> Self {
        queue.count.fetch_add(1, Ordering::SeqCst);
        let number = queue.lock().join(None);
        Self { queue: Arc::clone(queue), number }
    }

    /// Returns true if the message, which holds `held` bytes and has a `frame` more, may continue. If not, `waker` is woken when that may
    /// have changed. `has_room` checks the budget.
    pub(super) fn may_go_on(
        &self,
        held: usize,
        frame: usize,
        waker: &Waker,
        has_room: impl FnOnce() -> bool,
    ) -> bool {
        let mut order = self.queue.lock();
        // Before the budget is checked: a thread that releases bytes later wakes this one.
        if let Some(place) = order.queue.get_mut(&self.number) {
            *place = Some(waker.clone());
        }
        may_go_on(has_room(), order.is_first(self.number), held, frame, OLDEST_BYTES)
    }
}

impl Drop for MessagePlace {
    fn drop(&mut self) {
        let gone = self.queue.lock().queue.remove(&self.number);
        drop(gone);
        self.queue.count.fetch_sub(1, Ordering::SeqCst);
        // Another one is the first now.
        self.queue.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use shoal_testkit::task::Wakes;

    use super::*;

    /// A message in units, each of them a frame.
    #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
    struct Message {
        connection: usize,
        unsent: usize,
        /// Bytes of it that HTTP/2 holds, in its window.
        unread: usize,
        /// Bytes that are counted.
        held: usize,
        stage: Stage,
        number: Option<Number>,
    }

    impl Message {
        fn is_whole(&self) -> bool {
            self.unsent + self.unread == 0
        }
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    enum Stage {
        Coming,
        /// A frame arrived without room for it.
        Waiting,
        /// It is complete, and the store is at work.
        Whole,
        Done,
        Refused,
    }

    #[derive(Clone, Copy)]
    struct Rules {
        room: usize,
        oldest: usize,
        waiting_max: usize,
        stream_window: usize,
        connection_window: usize,
        /// Of unary requests: a complete request waits, too, if its last frame found no room.
        whole_waits: bool,
    }

    #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
    struct World {
        messages: Vec<Message>,
        order: Order<()>,
    }

    impl World {
        fn new(messages: &[(usize, usize)]) -> Self {
            let message = |&(connection, units): &(usize, usize)| Message {
                connection,
                unsent: units,
                unread: 0,
                held: 0,
                stage: Stage::Coming,
                number: None,
            };
            Self { messages: messages.iter().map(message).collect(), order: Order::default() }
        }

        fn used(&self) -> usize {
            self.messages.iter().map(|message| message.held).sum()
        }

        fn of(&self, connection: usize) -> impl Iterator<Item = &Message> {
            self.messages.iter().filter(move |message| message.connection == connection)
        }

        /// The client sends a unit, if both windows allow it.
        fn send(&self, index: usize, rules: Rules) -> Option<Self> {
            let message = &self.messages[index];
            let on_connection: usize = self.of(message.connection).map(|message| message.unread).sum();
            let may = message.unsent > 0
                && matches!(message.stage, Stage::Coming | Stage::Waiting)
                && message.unread < rules.stream_window
                && on_connection < rules.connection_window;
            may.then(|| {
                let mut next = self.clone();
                next.messages[index].unsent -= 1;
                next.messages[index].unread += 1;
                next
            })
        }

        /// The server polls the message: it takes a frame, waits or continues; or the store has finished with it.
        fn look(&self, index: usize, rules: Rules) -> Option<Self> {
            let mut next = self.clone();
            let (used, message) = (self.used(), &mut next.messages[index]);
            match message.stage {
                Stage::Coming if message.unread > 0 => {
                    // It has arrived: it counts, with room or without.
                    (message.unread, message.held) = (message.unread - 1, message.held + 1);
                    let is_whole = message.is_whole();
                    message.stage = match used + 1 > rules.room {
                        true if rules.whole_waits || !is_whole => Stage::Waiting,
                        _ if is_whole => Stage::Whole,
                        _ => Stage::Coming,
                    };
                }
                Stage::Waiting => {
                    let on_connection =
                        self.of(message.connection).filter(|message| message.number.is_some()).count();
                    let number = match message.number {
                        Some(number) => number,
                        None if on_connection >= rules.waiting_max => {
                            *message =
                                Message { unread: 0, held: 0, stage: Stage::Refused, ..message.clone() };
                            return Some(next);
                        }
                        None => *message.number.insert(next.order.join(())),
                    };
                    let is_first = next.order.is_first(number);
                    if may_go_on(used < rules.room, is_first, message.held, 1, rules.oldest) {
                        message.stage = if message.is_whole() { Stage::Whole } else { Stage::Coming };
                    }
                }
                Stage::Whole => {
                    (message.held, message.stage) = (0, Stage::Done);
                    message.number.take().map(|number| next.order.queue.remove(&number));
                }
                Stage::Coming | Stage::Done | Stage::Refused => {}
            }
            (next != *self).then_some(next)
        }

        fn is_over(&self) -> bool {
            self.messages.iter().all(|message| matches!(message.stage, Stage::Done | Stage::Refused))
        }
    }

    /// The outcomes of all orders of events.
    struct Explored {
        worlds: usize,
        /// Worlds in which nothing can happen any more, with unfinished messages.
        stuck: usize,
        refused: usize,
        most_used: usize,
    }

    fn explore(messages: &[(usize, usize)], rules: Rules) -> Explored {
        let first = World::new(messages);
        let (mut seen, mut left) = (BTreeSet::from([first.clone()]), vec![first]);
        let mut explored = Explored { worlds: 0, stuck: 0, refused: 0, most_used: 0 };
        while let Some(world) = left.pop() {
            explored.worlds += 1;
            explored.most_used = explored.most_used.max(world.used());
            let all = (0..world.messages.len())
                .flat_map(|index| [world.send(index, rules), world.look(index, rules)]);
            let next: Vec<World> = all.flatten().collect();
            if next.is_empty() {
                explored.stuck += usize::from(!world.is_over());
                let refused = world.messages.iter().filter(|message| message.stage == Stage::Refused).count();
                explored.refused = explored.refused.max(refused);
            }
            left.extend(next.into_iter().filter(|world| seen.insert(world.clone())));
        }
        explored
    }

    /// As in the server, the windows of the waiting messages leave a part of the connection's.
    const RULES: Rules = Rules {
        room: 3,
        oldest: 3,
        waiting_max: 2,
        stream_window: 1,
        connection_window: 3,
        whole_waits: false,
    };

    /// The oldest message may have a frame more than a message has: when it is whole, it is checked once more.
    const UNARY: Rules = Rules { oldest: 4, whole_waits: true, ..RULES };

    /// Every step reduces the remaining work, so a world without a stuck message finishes.
    #[test]
    fn all_schedules_complete_all_messages() {
        for messages in [
            &[(0, 3), (0, 3), (0, 3)][..],
            &[(0, 2), (1, 3), (2, 3)],
            &[(0, 2), (0, 2), (0, 2), (1, 2)],
            &[(0, 2), (0, 2), (0, 2), (0, 2)],
        ] {
            for (room, rules) in (1..=3).flat_map(|room| [(room, RULES), (room, UNARY)]) {
                let rules = Rules { room, ..rules };
                let Explored { worlds, stuck, refused, most_used } = explore(messages, rules);
                assert_eq!(stuck, 0, "{messages:?} with room for {room}: {worlds} worlds");
                // One frame of each may have arrived without room, and the oldest message.
                let bound = room + messages.len() + rules.oldest;
                assert!(most_used <= bound, "{most_used} of {bound}");
                let on_one = (0..3).map(|wanted| messages.iter().filter(|(it, _)| *it == wanted).count());
                assert!(refused == 0 || on_one.max() > Some(rules.waiting_max), "{refused} were refused");
            }
        }
    }

    /// Each part of the rule is needed: the model can fail.
    #[test]
    fn each_part_of_the_rule_is_needed() {
        let messages = [(0, 3), (1, 3), (2, 3)];
        for rules in [Rules { oldest: 0, ..RULES }, Rules { oldest: 3, ..UNARY }] {
            assert!(explore(&messages, rules).stuck > 0, "too little is kept for the oldest");
        }
        let messages = [(0, 3), (0, 3), (0, 3), (0, 3)];
        let jammed = Rules { waiting_max: 4, room: 1, ..RULES };
        assert!(explore(&messages, jammed).stuck > 0, "those that wait fill the window of the oldest");
    }

    #[test]
    fn first_waiter_is_woken_when_room_is_free() {
        let queue = Arc::<WaitQueue>::default();
        let (wakes, waker) = Wakes::new();
        let (first, second) = (MessagePlace::join(&queue), MessagePlace::join(&queue));
        assert!(first.may_go_on(0, 1, &waker, || false), "the oldest one");
        assert!(!first.may_go_on(OLDEST_BYTES, 1, &waker, || false), "it has its end, too");
        assert!(!second.may_go_on(0, 1, &waker, || false));
        assert!(second.may_go_on(0, 1, &waker, || true));
        queue.wake();
        assert_eq!(wakes.count(), 2, "both had asked");
        queue.wake();
        assert_eq!(wakes.count(), 2, "nobody has asked again");
        assert!(!second.may_go_on(0, 1, &waker, || false));
        drop(first);
        assert_eq!(wakes.count(), 3);
        assert!(second.may_go_on(0, 1, &waker, || false), "it is the oldest one now");
        drop(second);
        assert_eq!(queue.count.load(Ordering::Relaxed), 0);
    }
}
