# cython: language_level=3, boundscheck=True, wraparound=False, initializedcheck=False
# cython: cdivision=True, auto_pickle=False, autotestdict=False
"""Messages of a group's partitions on their way to the user.

`liftenvelope/_native/handout.py` is the readable twin with the rules. Bounds are checked here: a message that is
freed may run code of the user, which may call the buffer again.
"""

cimport cython
from cpython.object cimport PyObject, PyTypeObject
from cpython.pycapsule cimport PyCapsule_GetPointer
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_SET_ITEM
from posix.time cimport clock_gettime, timespec

from _sending cimport PyIter_Send, set_send
from _tuples cimport new_tuple

import time
from bisect import bisect_left
from collections import deque
from functools import partial

from liftenvelope._native._fastframes import _PARTS, Delivered
from liftenvelope.errors import UsageTypeError

cdef extern from "Python.h":
    Py_ssize_t PY_SSIZE_T_MAX
    bint PyObject_TypeCheck(object one, PyTypeObject* kind)

ctypedef Py_ssize_t (*PartsOf)(PyObject* message, PyObject** data) noexcept

cdef enum:
    KEPT = 256  # places of handed out messages to keep before they are deleted
    FIELDS = 6  # of a message


cdef type DELIVERED = Delivered
cdef PartsOf parts_of = <PartsOf>PyCapsule_GetPointer(_PARTS, "liftenvelope.parts_of")


cdef inline object data_of(object one):
    """Return the payload of a message that is no tuple."""
    cdef PyObject* data
    if PyObject_TypeCheck(one, <PyTypeObject*>DELIVERED):
        parts_of(<PyObject*>one, &data)
        return <object>data
    return one.data


cdef inline Py_ssize_t size_of(object one) except -1:
    """Return the size of a message in bytes."""
    cdef Py_ssize_t size = 0
    cdef PyObject* data
    if PyObject_TypeCheck(one, <PyTypeObject*>DELIVERED):
        size = parts_of(<PyObject*>one, &data)
        return size or len(<object>data)
    if isinstance(one, tuple):
        if len(<tuple>one) > 3:
            size = (<tuple>one)[3]
        return size or len((<tuple>one)[1])
    size = getattr(one, "_size", 0)
    return size or len(one.data)


cdef Py_ssize_t size_of_all(list messages, Py_ssize_t begin, Py_ssize_t end) except -1:
    """Return the size of the messages at some places."""
    cdef Py_ssize_t i, size = 0
    for i in range(begin, end):
        size += size_of(messages[i])
    return size


cdef inline int put(object message, Py_ssize_t place, object value) except -1:
    """Fill a place of a new tuple."""
    Py_INCREF(value)
    PyTuple_SET_ITEM(message, place, value)
    return 0


@cython.final
cdef class PartitionBuffer:
    """Messages of one partition: those read ahead, and the batch handed out last.

    Places of the lists: handed out before, up to `first`; the batch handed out last, up to `next`; read ahead.
    Every method leaves the places right before it frees a message or calls `on_room`.
    """

    cdef readonly object key
    cdef readonly object generation
    cdef public bint is_paused
    cdef public bint is_held
    cdef public bint wants_room
    cdef public Py_ssize_t max_bytes
    cdef readonly Py_ssize_t size
    cdef readonly object last
    cdef Py_ssize_t limit
    cdef type message_class
    cdef object topic           # parts of the key
    cdef object partition
    cdef object on_room
    cdef list offsets
    cdef list messages
    cdef Py_ssize_t first
    cdef Py_ssize_t next
    cdef object start           # position before the batch handed out last
    cdef bint is_in_hand        # that batch is not settled; first < next then
    cdef object settled         # offset of the last settled message that processed() has not returned, or None
    cdef bint is_queued         # the buffer is in the turns of a HandOut

    def __init__(self, key, generation, position, Py_ssize_t limit, type message_class not None, on_room):
        if not issubclass(message_class, tuple):
            raise UsageTypeError(f"{message_class!r} is no subclass of tuple")
        self.key = key
        self.topic, self.partition = key
        self.generation = generation
        self.limit = limit
        self.max_bytes = PY_SSIZE_T_MAX
        self.size = 0
        self.message_class = message_class
        self.on_room = on_room
        self.offsets, self.messages = [], []
        self.first = self.next = 0
        self.start = position
        self.is_in_hand = False
        self.settled = None

    @property
    def position(self):
        """Offset of the next message to hand out, or a lower one; None if not known yet."""
        return self.place()

    cdef object place(self):
        return self.offsets[self.next - 1] + 1 if self.next > self.first else self.start

    @property
    def waiting(self):
        """Number of messages that were read and not handed out."""
        return len(self.messages) - self.next

    @property
    def room(self):
        """Number of messages to read ahead now; 0 if a message must be handed out first."""
        cdef Py_ssize_t waiting = len(self.messages) - self.next
        if waiting > 0 and self.size >= self.max_bytes:
            return 0
        return max(self.limit - waiting, <Py_ssize_t>0)

    @property
    def can_give(self):
        """True if a message can be taken."""
        return self.gives()

    cdef inline bint gives(self) except -1:
        return <Py_ssize_t>len(self.messages) > self.next and not self.is_paused and not self.is_held

    def extend(self, list offsets not None, list messages not None):
        """Add messages behind those read ahead."""
        if len(offsets) != len(messages):
            raise ValueError(f"{len(offsets)} offsets of {len(messages)} messages")
        cdef Py_ssize_t gone = self.first
        if gone >= KEPT and gone >= <Py_ssize_t>len(self.messages) - gone:
            self.next -= gone
            self.first = 0
            del self.offsets[:gone]
            del self.messages[:gone]
        self.offsets.extend(offsets)
        self.messages.extend(messages)
        self.size += size_of_all(messages, 0, len(messages))

    def clear(self):
        """Drop the messages read ahead. The batch handed out last stays."""
        cdef list dropped = self.messages
        self.size = 0
        self.messages = dropped[:self.next]
        del self.offsets[self.next:]

    def seek(self, offset):
        """Continue at another offset: drop all messages, and whatever was handed out or processed."""
        cdef list dropped = self.messages
        last = self.last
        self.start = offset
        self.first = self.next = self.size = 0
        self.forget()
        self.offsets, self.messages, self.last = [], [], None

    def go_on(self, generation, offset):
        """Switch to a later generation of the group, in which the partition starts at `offset`."""
        cdef Py_ssize_t end
        position, last = self.place(), self.last
        if offset != position:
            start = self.start
            if position is None or start is None or not start <= offset < position:
                return False
            end, self.next = self.next, bisect_left(self.offsets, offset, self.first, self.next)
            self.size += size_of_all(self.messages, self.next, end)
            self.last = self.messages[self.next - 1] if self.next > self.first else None
        cdef list freed = self.free_last()
        self.start, self.generation, self.is_paused = offset, generation, False
        self.forget()
        return True

    cdef list free_last(self):
        """Forget the batch handed out last; return its messages, for the caller to free at its end."""
        cdef list freed = self.messages[self.first:self.next]
        cdef Py_ssize_t i
        for i in range(self.first, self.next):
            self.messages[i] = None
        self.first = self.next
        return freed

    def take(self, Py_ssize_t limit):
        """Take up to `limit` messages; return their offsets and the messages as they came."""
        cdef list freed = self.advance(limit)
        if freed is None:
            return [], []
        taken = self.offsets[self.first:self.next], self.messages[self.first:self.next]
        self.tell_room()
        return taken

    def take_messages(self, Py_ssize_t limit):
        """Take up to `limit` messages as the user gets them."""
        cdef list found = []
        self.hand_out(limit, found)
        return found

    cdef int hand_out(self, Py_ssize_t limit, list found) except -1:
        """Take up to `limit` messages, and append them as the user gets them."""
        cdef list freed = self.advance(limit)
        cdef Py_ssize_t i
        if freed is not None:
            for i in range(self.first, self.next):
                found.append(self.message(i))
            self.tell_room()
        return 0

    cdef list advance(self, Py_ssize_t limit):
        """Make up to `limit` messages the batch handed out last; return what that frees, None if there are none."""
        if limit <= 0 or not self.gives():
            return None
        start = self.place()
        cdef list freed = self.free_last()
        freed.append(self.last)
        self.start = start
        self.next += min(limit, <Py_ssize_t>len(self.messages) - self.next)
        self.size -= size_of_all(self.messages, self.first, self.next)
        self.last = self.messages[self.next - 1]
        self.is_in_hand = True
        return freed

    cdef object advance_one(self):
        """Make the next message the batch handed out last; return what that frees. The message must be there."""
        start, freed = self.place(), self.last
        cdef list more
        if self.next == self.first + 1:
            self.messages[self.first] = None  # freed as the last one
            self.first = self.next
        else:
            more = self.free_last()
            more.append(freed)
            freed = more
        self.start = start
        self.last = self.messages[self.next]
        self.next += 1
        self.size -= size_of(self.last)
        self.is_in_hand = True
        return freed

    cdef int tell_room(self) except -1:
        if self.wants_room:
            self.wants_room = False
            self.on_room()
        return 0

    cdef object message(self, Py_ssize_t i):
        """Return a message as the user gets it."""
        one = self.messages[i]
        message = new_tuple(self.message_class, FIELDS)
        put(message, 0, self.topic)
        put(message, 1, self.partition)
        put(message, 2, self.offsets[i])
        if isinstance(one, tuple):
            put(message, 3, (<tuple>one)[1])
            put(message, 4, (<tuple>one)[2])
        else:
            put(message, 3, data_of(one))
            put(message, 4, one)
        put(message, 5, self.generation)
        return message

    def settle(self):
        """Mark the batch handed out last as processed."""
        self.settle_last()

    cdef inline int settle_last(self) except -1:
        if self.is_in_hand:
            self.is_in_hand = False
            self.settled = self.offsets[self.next - 1]
        return 0

    def settle_until(self, end):
        """Leave to the caller what was handed out or processed before an offset."""
        if self.is_in_hand and self.offsets[self.next - 1] < end:
            self.is_in_hand = False
        if self.settled is not None and self.settled < end:
            self.settled = None

    def processed(self):
        """Return the offset behind the last processed message, once; None if there is nothing new."""
        settled, self.settled = self.settled, None
        return None if settled is None else settled + 1

    def forget(self):
        """Forget what was handed out or processed: it is not marked as processed any more."""
        self.is_in_hand = False
        self.settled = None


cdef class Ownership:
    """Base of a member's session: the part that decides on each message."""

    cdef public object generation
    cdef public double owned_until

    def __init__(self, generation=0, double owned_until=0.0):
        self.generation = generation
        self.owned_until = owned_until


@cython.final
cdef class HandOut:
    """Hands out the messages of partitions in turn; an asynchronous iterator over them."""

    cdef Ownership session
    cdef object wait
    cdef list in_hand           # buffers with messages handed out last
    cdef PartitionBuffer one_in_hand    # another one of them, or None: after a single message it is the only one
    cdef object read_clock
    cdef int clock_id           # clock of clock_gettime() that `read_clock` reads; -1 if it reads something else
    cdef public double until
    cdef readonly object turns

    def __init__(self, Ownership session not None, clock, wait):
        self.session = session
        self.clock = clock
        self.wait = wait
        self.until = 0.0
        self.turns = deque()
        self.in_hand = []

    @property
    def clock(self):
        return self.read_clock

    @clock.setter
    def clock(self, clock):
        self.read_clock, self.clock_id = clock, -1
        # Read with each message. A call of Python's function takes as long as all else that hands one out.
        if type(clock) is partial and clock.func is time.clock_gettime and not clock.keywords:
            [self.clock_id] = clock.args

    cdef double now(self) except? -1.0:
        cdef timespec moment
        if self.clock_id < 0 or clock_gettime(self.clock_id, &moment) != 0:
            return self.read_clock()
        return <double>moment.tv_sec + 1e-9 * <double>moment.tv_nsec

    def add(self, PartitionBuffer buffer not None):
        """Give a buffer a turn, unless it has one."""
        if not buffer.is_queued:
            buffer.is_queued = True
            self.turns.append(buffer)

    def clear(self):
        """Take the turns of all buffers away."""
        while self.turns:
            self.drop()

    cdef PartitionBuffer drop(self):
        cdef PartitionBuffer buffer = self.turns.popleft()
        buffer.is_queued = False
        return buffer

    def gives(self):
        """Take the turns of buffers away that can give nothing; return True if the first one left can."""
        return self.first() is not None

    cdef PartitionBuffer first(self):
        """Return the buffer whose turn it is; None if there is none."""
        cdef PartitionBuffer buffer
        # A new generation may have begun before the task that acts on assignments has run.
        generation = self.session.generation
        while self.turns:
            buffer = self.turns[0]
            if (buffer.generation is generation or buffer.generation == generation) and buffer.gives():
                return buffer
            self.drop()
        return None

    def settle(self):
        """Mark the messages handed out last as processed."""
        self.settle_all()

    cdef int settle_all(self) except -1:
        cdef PartitionBuffer buffer = self.one_in_hand
        if buffer is not None:
            self.one_in_hand = None
            buffer.settle_last()
        if self.in_hand:
            for buffer in self.in_hand:
                buffer.settle_last()
            self.in_hand.clear()
        return 0

    def peek(self, Py_ssize_t limit, Py_ssize_t max_bytes):
        """Return the buffers whose turn it is, with offsets and messages that `take_parts` can take."""
        cdef list found = []
        cdef PartitionBuffer buffer
        cdef Py_ssize_t size = 0, begin, end
        generation = self.session.generation
        for buffer in tuple(self.turns):
            if limit <= 0 or size > max_bytes:
                break
            if buffer.generation != generation or not buffer.gives():
                continue
            begin = end = buffer.next
            while end < <Py_ssize_t>len(buffer.messages) and end - begin < limit:
                one = buffer.messages[end]
                size += len((<tuple>one)[1] if isinstance(one, tuple) else data_of(one))
                if size > max_bytes and (found or end > begin):
                    break
                end += 1
            if end > begin:
                found.append((buffer, buffer.offsets[begin:end], buffer.messages[begin:end]))
                limit -= end - begin
        return found

    def has_parts(self, list parts not None):
        """Return true if messages that `peek` has returned can still be taken."""
        cdef PartitionBuffer buffer
        cdef list offsets
        generation = self.session.generation
        for buffer, offsets in parts:
            if buffer.generation != generation or not buffer.gives() or not offsets:
                return False
            if buffer.offsets[buffer.next:buffer.next + len(offsets)] != offsets:
                return False
        return True

    def take_parts(self, list parts not None):
        """Take messages that `peek` has returned, if all can still be taken; return whether they were."""
        cdef PartitionBuffer buffer
        cdef list offsets
        cdef list freed = []
        if not self.has_parts(parts):
            return False
        for buffer, offsets in parts:
            freed.append(buffer.advance(len(offsets)))
        for buffer, _ in parts:
            if buffer.is_queued:
                self.turns.remove(buffer)
                buffer.is_queued = False
            self.has_taken(buffer)
        for buffer, _ in parts:
            buffer.tell_room()
        return True

    def take_messages(self, Py_ssize_t limit):
        """Take up to `limit` messages as the user gets them, in order within each partition."""
        cdef list found = []
        cdef PartitionBuffer buffer
        cdef Py_ssize_t left = len(self.turns)
        while left > 0 and len(found) < limit and self.first() is not None:
            left -= 1
            buffer = self.drop()
            try:
                buffer.hand_out(limit - len(found), found)
            finally:
                self.has_taken(buffer)
        return found

    cdef int has_taken(self, PartitionBuffer buffer) except -1:
        self.in_hand.append(buffer)
        if buffer.gives():
            self.add(buffer)
        return 0

    def take_one(self):
        """Take the next message."""
        return self.next_one()

    cdef object next_one(self):
        cdef PartitionBuffer buffer = self.first()
        if buffer is None:
            raise IndexError("no message is there")
        freed = buffer.advance_one()
        try:
            message = buffer.message(buffer.first)
            buffer.tell_room()
        finally:
            if self.one_in_hand is None:
                self.one_in_hand = buffer
            else:
                self.in_hand.append(buffer)
            if not buffer.gives():
                self.drop()
            elif len(self.turns) > 1:
                self.turns.rotate(-1)
        return message

    def __aiter__(self):
        return self

    def __anext__(self):
        cdef _Step step = _Step.__new__(_Step)
        step.source = self
        return step

    cdef bint gives_at_once(self) except -1:
        cdef double now = self.now()
        if now >= self.until or now >= self.session.owned_until:
            return False
        self.settle_all()
        return self.first() is not None


cdef inline bint item_is_ready(object source) except -1:
    return (<HandOut>source).gives_at_once()


cdef inline object take_item(object source):
    return (<HandOut>source).next_one()


cdef inline object wait_for_item(object source):
    return (<HandOut>source).wait()


include "_step.pxi"
