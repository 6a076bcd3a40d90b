//! The network by an io_uring of the thread's own: all that a turn sends goes to the kernel with the call that waits for
//! the next, and what came lies in memory when that call returns.
//!
//! Every socket has one receive that goes on by itself (multishot) and takes buffers that the thread lends to the kernel;
//! what came is copied behind the socket's other bytes and the buffer given back, all buffers of a turn at once. A socket
//! sends one message at a time; its memory belongs to the kernel until the completion. A socket that is closed is shut down;
//! its descriptor is closed, and its slot used again, when the kernel is through with both.
//!
//! Kernels since 6.1 have what this needs; where it is refused, [`crate::epoll`] does the same.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use bytes::Buf;
use io_uring::types::{BufRingEntry, CancelBuilder, Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};
use rustix::net::Shutdown;
use shoal_buffer::Buffer;

use crate::connection::End;
use crate::mailbox::Token;
use crate::network::{Network, Ready, ReceiveInto};
use crate::socket::{LINGER_BYTES_MAX, LINGER_MAX, Wanted};

/// Entries of the submission queue; where a turn has more, they go in several calls. The completion queue has room for more,
/// and the kernel keeps what does not fit.
const ENTRIES: u32 = 1024;
const COMPLETIONS: u32 = 8192;
/// Buffers that the kernel receives into, of each thread; and their size.
const BUFFERS: u16 = 256;
const BUFFER_BYTES: usize = 16 << 10;
/// Bytes that came and were not taken, of a socket, above which it receives no more for now.
const INBOX_BYTES_MAX: usize = 64 << 10;
/// Pieces of memory that one call sends.
const SLICES_MAX: usize = 256;
/// Messages whose memory is kept for the next.
const SPARE_MAX: usize = 256;
/// How long the kernel may take to end what is under way.
const END_MAX: Timespec = Timespec::new().sec(5);
/// The group of the buffers, in the kernel's terms.
const GROUP: u16 = 0;

/// What a completion is of; the slot's number stands below.
const BELL: u64 = 1 << 32;
const LISTENER: u64 = 2 << 32;
const RECEIVE: u64 = 3 << 32;
const SEND: u64 = 4 << 32;
const CANCEL: u64 = 5 << 32;

/// Memory that is lent to the kernel: a ring of entries in a page of its own, and the buffers that they name.
struct Lent {
    entries: NonNull<BufRingEntry>,
    memory: NonNull<u8>,
    /// How many were given, wrapping; the kernel sees it when it is published.
    tail: u16,
    /// The kernel may write to it for ever.
    leaks: bool,
}

impl Lent {
    const ENTRIES_LAYOUT: Layout =
        match Layout::from_size_align(BUFFERS as usize * size_of::<BufRingEntry>(), 4096) {
            Ok(layout) => layout,
            Err(_) => panic!("the layout of the ring of buffers is sound"),
        };
    const MEMORY_LAYOUT: Layout = match Layout::from_size_align(BUFFERS as usize * BUFFER_BYTES, 4096) {
        Ok(layout) => layout,
        Err(_) => panic!("the layout of the buffers is sound"),
    };

    fn new() -> Self {
        let take = |layout: Layout| {
            // SAFETY: the layouts have a size above zero.
            let memory = unsafe { alloc_zeroed(layout) };
            NonNull::new(memory).unwrap_or_else(|| handle_alloc_error(layout))
        };
        let mut lent = Self {
            entries: take(Self::ENTRIES_LAYOUT).cast(),
            memory: take(Self::MEMORY_LAYOUT),
            tail: 0,
            leaks: false,
        };
        for id in 0..BUFFERS {
            lent.give(id);
        }
        lent.publish();
        lent
    }

    /// What a completion put into buffer `id`.
    fn bytes(&self, id: u16, count: usize) -> &[u8] {
        assert!(id < BUFFERS && count <= BUFFER_BYTES, "the kernel names a buffer that it was given");
        // SAFETY: the buffer lies within the memory, which is initialised; the kernel gave it back with the completion,
        // and gets it again only by `give`, which needs this value mutably.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr().add(usize::from(id) * BUFFER_BYTES), count) }
    }

    /// Gives a buffer to the kernel, which sees it when it is published.
    fn give(&mut self, id: u16) {
        let place = usize::from(self.tail & (BUFFERS - 1));
        // SAFETY: `place` is below the number of entries, and only this thread writes them; the kernel reads an entry
        // only when the tail behind it was published. The fields are written one by one: the first entry's last one is
        // the tail.
        unsafe {
            let entry = &mut *self.entries.as_ptr().add(place);
            entry.set_addr(self.memory.as_ptr().add(usize::from(id) * BUFFER_BYTES).addr() as u64);
            entry.set_len(BUFFER_BYTES as u32);
            entry.set_bid(id);
        }
        self.tail = self.tail.wrapping_add(1);
    }

    /// Shows the kernel what it was given.
    fn publish(&mut self) {
        // SAFETY: the address of the first entry is that of the ring, so this is the ring's tail; it is aligned, and the
        // kernel only reads it. Release: the entries are written before it.
        unsafe {
            let tail = BufRingEntry::tail(self.entries.as_ptr()).cast_mut();
            AtomicU16::from_ptr(tail).store(self.tail, Ordering::Release);
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if self.leaks {
            return;
        }
        // SAFETY: both were allocated with these layouts, and nothing that could write to them is under way: the ring said
        // so before it was dropped.
        unsafe {
            dealloc(self.entries.as_ptr().cast(), Self::ENTRIES_LAYOUT);
            dealloc(self.memory.as_ptr(), Self::MEMORY_LAYOUT);
        }
    }
}

/// A message under way. It is in a box that does not move, and nobody touches it before its completion.
struct Message {
    bytes: Buffer,
    slices: Vec<libc::iovec>,
    header: libc::msghdr,
}

impl Message {
    fn new() -> Box<Self> {
        // SAFETY: a header of zeros names no address, no pieces and no control data.
        let header = unsafe { std::mem::zeroed() };
        Box::new(Self { bytes: Buffer::new(), slices: Vec::new(), header })
    }

    /// The entry that sends it. It may be submitted as long as the box is neither dropped nor changed before its completion.
    fn entry(&mut self, fd: RawFd) -> squeue::Entry {
        let (fd, flags) = (Fd(fd), libc::MSG_NOSIGNAL);
        if let Some(bytes) = self.bytes.as_contiguous() {
            return opcode::Send::new(fd, bytes.as_ptr(), bytes.len() as u32).flags(flags).build();
        }
        self.slices.clear();
        let pieces = self.bytes.chunks().take(SLICES_MAX);
        self.slices.extend(
            pieces.map(|piece| libc::iovec {
                iov_base: piece.as_ptr().cast_mut().cast(),
                iov_len: piece.len(),
            }),
        );
        self.header.msg_iov = self.slices.as_mut_ptr();
        self.header.msg_iovlen = self.slices.len();
        opcode::SendMsg::new(fd, &raw const self.header).flags(flags as u32).build()
    }
}

/// A socket, as the kernel's completions find it.
struct Slot {
    /// Kept until the kernel is through with it: an entry in the queue names it by its number, which must not become that
    /// of another file before the entry is submitted. None where the slot is free.
    fd: Option<OwnedFd>,
    token: Token,
    /// It was not removed.
    open: bool,
    /// The kernel has a receive of it.
    receiving: bool,
    /// That receive is being cancelled.
    cancelling: bool,
    /// It is among those whose receive begins with the next call.
    waits: bool,
    /// What came and was not taken.
    inbox: Buffer,
    /// Nothing more comes, or the network failed.
    ended: bool,
    failed: bool,
    sending: Option<Box<Message>>,
    stuck_since_ns: Option<u64>,
    /// It was told in this turn.
    told: bool,
}

impl Slot {
    /// The number of its socket, for an entry of the queue; that of no file where the slot is free.
    fn number(&self) -> RawFd {
        self.fd.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    fn shutdown(&self, how: Shutdown) {
        if let Some(fd) = &self.fd {
            // It fails where the other side has gone already.
            let _ = rustix::net::shutdown(fd, how);
        }
    }
}

/// A socket.
pub(crate) struct RingSocket {
    slot: u32,
    /// Until when, and how many bytes more, what comes is thrown away.
    lingering: Option<(u64, usize)>,
}

/// An io_uring of a thread, and its sockets. The ring is dropped first: the kernel lets go of all memory then.
pub(crate) struct Uring {
    ring: IoUring,
    lent: Lent,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Slots whose receive begins with the next call.
    waiting: Vec<u32>,
    /// Slots that were told of in this turn.
    told: Vec<u32>,
    /// Memory for the completions of a turn.
    landed: Vec<cqueue::Entry>,
    #[expect(clippy::vec_box, reason = "a message stays where it is while the kernel has it")]
    spare: Vec<Box<Message>>,
    bell: RawFd,
    bell_is_watched: bool,
    listener: Option<RawFd>,
    listener_is_watched: bool,
}

impl Uring {
    /// Puts an entry into the queue.
    ///
    /// # Safety
    /// What the entry refers to must be valid until its completion.
    unsafe fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        loop {
            // SAFETY: the caller's promise.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return Ok(());
            }
            self.ring.submit()?;
        }
    }

    fn watch(&mut self, fd: RawFd, what: u64) -> io::Result<()> {
        let entry = opcode::PollAdd::new(Fd(fd), libc::POLLIN as u32).build().user_data(what);
        // SAFETY: the entry refers to no memory.
        unsafe { self.push(&entry) }
    }

    /// A slot receives from the next call on.
    fn receive_later(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        if slot.open && !slot.waits && !slot.receiving && !slot.ended && !slot.failed {
            slot.waits = true;
            self.waiting.push(index);
        }
    }

    /// Puts everything into the queue that is to begin.
    fn begin(&mut self) -> io::Result<()> {
        if !self.bell_is_watched {
            self.watch(self.bell, BELL)?;
            self.bell_is_watched = true;
        }
        if let Some(listener) = self.listener
            && !self.listener_is_watched
        {
            self.watch(listener, LISTENER)?;
            self.listener_is_watched = true;
        }
        for index in std::mem::take(&mut self.waiting) {
            let slot = &mut self.slots[index as usize];
            // The slot may have been freed and used again since.
            if std::mem::take(&mut slot.waits) && slot.open {
                slot.receiving = true;
                let receive = opcode::RecvMulti::new(Fd(slot.number()), GROUP).build();
                // SAFETY: what is received goes to buffers that were lent, which live as long as the ring.
                unsafe { self.push(&receive.user_data(RECEIVE | u64::from(index))) }?;
            }
        }
        self.lent.publish();
        Ok(())
    }

    /// Sends what is left of the message of a slot.
    fn send_on(&mut self, index: u32) -> io::Result<()> {
        let slot = &mut self.slots[index as usize];
        let fd = slot.number();
        let Some(message) = &mut slot.sending else { return Ok(()) };
        let entry = message.entry(fd).user_data(SEND | u64::from(index));
        // SAFETY: the message is in a box that stays in the slot, untouched, until the completion; slots are only
        // dropped with the ring.
        unsafe { self.push(&entry) }
    }

    /// A slot that nobody has and the kernel is through with is free.
    fn free_if_through(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        if !slot.open && !slot.receiving && slot.sending.is_none() {
            slot.inbox = Buffer::new();
            slot.fd = None;
            self.free.push(index);
        }
    }

    fn received(&mut self, index: u32, completion: &cqueue::Entry) -> io::Result<()> {
        let (result, flags) = (completion.result(), completion.flags());
        let slot = &mut self.slots[index as usize];
        if let Some(id) = cqueue::buffer_select(flags) {
            if slot.open && result > 0 {
                slot.inbox.append_copy(self.lent.bytes(id, result as usize));
            }
            self.lent.give(id);
        }
        if !cqueue::more(flags) {
            slot.receiving = false;
            slot.cancelling = false;
        }
        match -result {
            libc::ECANCELED | libc::ENOBUFS | libc::EINTR | libc::EAGAIN => {}
            0 => slot.ended = true,
            1.. => slot.failed = true,
            _ => {}
        }
        if slot.inbox.len() <= INBOX_BYTES_MAX {
            self.receive_later(index);
        } else if slot.receiving && !slot.cancelling {
            slot.cancelling = true;
            let cancel = opcode::AsyncCancel::new(RECEIVE | u64::from(index)).build().user_data(CANCEL);
            // SAFETY: the entry refers to no memory.
            unsafe { self.push(&cancel) }?;
        }
        self.free_if_through(index);
        Ok(())
    }

    fn sent(&mut self, index: u32, result: i32) -> io::Result<()> {
        let slot = &mut self.slots[index as usize];
        let Some(message) = &mut slot.sending else { return Ok(()) };
        match result {
            0.. => {
                slot.stuck_since_ns = None;
                message.bytes.advance((result as usize).min(message.bytes.len()));
            }
            _ if [libc::EINTR, libc::EAGAIN].contains(&-result) => {}
            _ => slot.failed = true,
        }
        if slot.open && !slot.failed && !message.bytes.is_empty() {
            return self.send_on(index);
        }
        if let Some(mut message) = slot.sending.take()
            && self.spare.len() < SPARE_MAX
        {
            message.bytes.clear();
            self.spare.push(message);
        }
        self.free_if_through(index);
        Ok(())
    }

    fn slot(&self, socket: &RingSocket) -> &Slot {
        &self.slots[socket.slot as usize]
    }

    fn slot_mut(&mut self, socket: &RingSocket) -> &mut Slot {
        &mut self.slots[socket.slot as usize]
    }

    /// Tells of a slot, once a turn.
    fn tell(&mut self, index: u32, ready: &mut Vec<Ready>) {
        let slot = &mut self.slots[index as usize];
        if slot.open && !std::mem::replace(&mut slot.told, true) {
            self.told.push(index);
            let ended = slot.ended || slot.failed;
            ready.push(Ready::Socket { token: slot.token, readable: true, writable: true, ended });
        }
    }
}

impl Drop for Uring {
    /// Nothing may be under way when its memory is freed; where the kernel cannot say so, that memory is leaked.
    fn drop(&mut self) {
        let cancelled = self.ring.submitter().register_sync_cancel(Some(END_MAX), CancelBuilder::any());
        if cancelled.is_err_and(|error| error.raw_os_error() != Some(libc::ENOENT)) {
            tracing::warn!("the kernel did not let go of what was under way: its memory is lost");
            self.lent.leaks = true;
            self.slots.iter_mut().for_each(|slot| std::mem::forget(slot.sending.take()));
        }
    }
}

impl Network for Uring {
    type Socket = RingSocket;

    /// The kernel chooses among the buffers that it was lent.
    const RECEIVE_INTO: Option<ReceiveInto<RingSocket>> = None;
    const KEEPS_WHAT_IS_SENT: bool = true;

    fn new(bell: &OwnedFd) -> io::Result<Self> {
        let ring = IoUring::builder()
            .dontfork()
            .setup_cqsize(COMPLETIONS)
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(ENTRIES)?;
        let lent = Lent::new();
        // SAFETY: the entries lie in a page of their own, of this size, and live until the ring is gone.
        unsafe {
            let address = lent.entries.as_ptr().addr() as u64;
            ring.submitter().register_buf_ring_with_flags(address, BUFFERS, GROUP, 0)?;
        }
        Ok(Self {
            ring,
            lent,
            slots: Vec::new(),
            free: Vec::new(),
            waiting: Vec::new(),
            told: Vec::new(),
            landed: Vec::new(),
            spare: Vec::new(),
            bell: bell.as_raw_fd(),
            bell_is_watched: false,
            listener: None,
            listener_is_watched: false,
        })
    }

    fn listen(&mut self, listener: &TcpListener) -> io::Result<()> {
        self.listener = Some(listener.as_raw_fd());
        Ok(())
    }

    fn stop_listening(&mut self, _listener: &TcpListener) {
        self.listener = None;
    }

    fn add(&mut self, fd: OwnedFd, token: Token) -> io::Result<RingSocket> {
        let slot = Slot {
            fd: Some(fd),
            token,
            open: true,
            receiving: false,
            cancelling: false,
            waits: false,
            inbox: Buffer::new(),
            ended: false,
            failed: false,
            sending: None,
            stuck_since_ns: None,
            told: false,
        };
        let index = match self.free.pop() {
            Some(index) => {
                self.slots[index as usize] = slot;
                index
            }
            None => {
                self.slots.push(slot);
                self.slots.len() as u32 - 1
            }
        };
        self.receive_later(index);
        Ok(RingSocket { slot: index, lingering: None })
    }

    fn remove(&mut self, socket: RingSocket) {
        // What the kernel has of it ends by this.
        let slot = self.slot_mut(&socket);
        slot.shutdown(Shutdown::Both);
        slot.open = false;
        self.free_if_through(socket.slot);
    }

    fn wait(&mut self, timeout: Duration, ready: &mut Vec<Ready>) -> io::Result<()> {
        ready.clear();
        self.begin()?;
        let timespec = Timespec::from(timeout);
        let waited = self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&timespec));
        if let Err(error) = waited
            && ![libc::ETIME, libc::EINTR, libc::EBUSY, libc::EAGAIN]
                .contains(&error.raw_os_error().unwrap_or(0))
        {
            return Err(error);
        }
        let mut landed = std::mem::take(&mut self.landed);
        landed.extend(self.ring.completion());
        for completion in landed.drain(..) {
            let index = completion.user_data() as u32;
            match completion.user_data() & !u64::from(u32::MAX) {
                BELL => {
                    self.bell_is_watched = false;
                    ready.push(Ready::Bell);
                }
                LISTENER => {
                    self.listener_is_watched = false;
                    if self.listener.is_some() {
                        ready.push(Ready::Listener);
                    }
                }
                RECEIVE => {
                    self.received(index, &completion)?;
                    self.tell(index, ready);
                }
                SEND => {
                    self.sent(index, completion.result())?;
                    self.tell(index, ready);
                }
                _ => {}
            }
        }
        self.landed = landed;
        for index in self.told.drain(..) {
            self.slots[index as usize].told = false;
        }
        Ok(())
    }

    fn set_ready(&mut self, _socket: &mut RingSocket, _readable: bool, _writable: bool, _ended: bool) {}

    fn is_readable(&self, socket: &RingSocket) -> bool {
        let slot = self.slot(socket);
        !slot.inbox.is_empty() || slot.ended || slot.failed
    }

    fn receive(
        &mut self,
        socket: &mut RingSocket,
        received: &mut Buffer,
        _wanted: Wanted,
    ) -> Result<Option<usize>, End> {
        let slot = self.slot_mut(socket);
        let count = slot.inbox.len();
        if count > 0 {
            if received.is_empty() {
                std::mem::swap(received, &mut slot.inbox);
            } else {
                received.append_buffer(std::mem::take(&mut slot.inbox));
            }
            self.receive_later(socket.slot);
            return Ok(Some(count));
        }
        match (slot.failed, slot.ended) {
            (true, _) => Err(End::Gone),
            (false, true) => Ok(None),
            (false, false) => Ok(Some(0)),
        }
    }

    fn unread(&self, socket: &RingSocket) -> usize {
        self.slot(socket).inbox.len()
    }

    fn send(&mut self, socket: &mut RingSocket, out: &mut Buffer, now_ns: u64) -> Result<(), End> {
        let spare = &mut self.spare;
        let slot = &mut self.slots[socket.slot as usize];
        if slot.failed {
            return Err(End::Gone);
        }
        if slot.sending.is_none() {
            if out.is_empty() {
                slot.stuck_since_ns = None;
                return Ok(());
            }
            let message = slot.sending.insert(spare.pop().unwrap_or_else(Message::new));
            std::mem::swap(&mut message.bytes, out);
            self.send_on(socket.slot).map_err(|_| End::Gone)?;
        }
        self.slot_mut(socket).stuck_since_ns.get_or_insert(now_ns);
        Ok(())
    }

    fn unsent(&self, socket: &RingSocket) -> usize {
        self.slot(socket).sending.as_ref().map_or(0, |message| message.bytes.len())
    }

    fn stuck_since_ns(&self, socket: &RingSocket) -> Option<u64> {
        self.slot(socket).stuck_since_ns
    }

    fn linger(&mut self, socket: &mut RingSocket, now_ns: u64) {
        if socket.lingering.is_none() {
            self.slot(socket).shutdown(Shutdown::Write);
            socket.lingering = Some((now_ns + LINGER_MAX.as_nanos() as u64, LINGER_BYTES_MAX));
        }
    }

    fn is_lingering(&self, socket: &RingSocket) -> bool {
        socket.lingering.is_some()
    }

    fn drain(&mut self, socket: &mut RingSocket, now_ns: u64) -> bool {
        let Some((until_ns, left)) = socket.lingering else { return false };
        let slot = self.slot_mut(socket);
        let left = left.saturating_sub(slot.inbox.len());
        slot.inbox.clear();
        socket.lingering = Some((until_ns, left));
        if slot.ended || slot.failed || left == 0 || now_ns >= until_ns {
            return true;
        }
        self.receive_later(socket.slot);
        false
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::os::unix::net::UnixStream;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    /// A network and its bell; none where the kernel refuses io_uring (`tests/uring.rs` fails where it does not).
    fn network() -> Option<(Uring, OwnedFd)> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        Some((Uring::new(&bell).ok()?, bell))
    }

    /// Turns until `through`.
    fn wait_until(network: &mut Uring, through: impl Fn(&Uring) -> bool) {
        for _ in 0..100 {
            network.wait(Duration::from_millis(100), &mut Vec::new()).unwrap();
            if through(network) {
                return;
            }
        }
        panic!("the kernel is not through");
    }

    #[test]
    fn what_came_is_unread_until_it_is_received() {
        let Some((mut network, _bell)) = network() else { return };
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut socket = network.add(ours.into(), Token { place: 0, generation: 1 }).unwrap();
        assert_eq!(network.unread(&socket), 0);
        theirs.write_all(&[7; 1_000]).unwrap();
        wait_until(&mut network, |network| network.unread(&socket) == 1_000);
        let mut received = Buffer::new();
        assert!(matches!(network.receive(&mut socket, &mut received, Wanted::default()), Ok(Some(1_000))));
        assert_eq!((received.len(), network.unread(&socket)), (1_000, 0));
    }

    #[test]
    fn a_message_of_a_removed_socket_goes_to_no_other() {
        let Some((mut network, _bell)) = network() else { return };
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let mut socket = network.add(ours.into(), Token { place: 0, generation: 1 }).unwrap();
        network.send(&mut socket, &mut Buffer::from(b"a secret".to_vec()), 0).unwrap();
        // The message is in the queue, and the kernel does not know of it yet.
        network.remove(socket);
        // Whoever opens files now gets the lowest free numbers.
        let others: Vec<_> = (0..64).map(|_| UnixStream::pair().unwrap()).collect();
        wait_until(&mut network, |network| network.free == [0]);
        for (one, other) in others {
            for mut end in [&one, &other] {
                end.set_nonblocking(true).unwrap();
                assert_eq!(end.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
            }
        }
        assert!(network.slots[0].fd.is_none(), "closed when the kernel was through");
    }
}
