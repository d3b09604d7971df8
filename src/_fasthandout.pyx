# cython: language_level=3, boundscheck=True, wraparound=False, initializedcheck=False
# cython: cdivision=True, auto_pickle=False, autotestdict=False
"""Messages of a group's partitions on their way to the user.

`liftenvelope/_native/handout.py` is the readable twin with the rules. Bounds are checked here: a message that is
freed may run code of the user, which may call the buffer again.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.object cimport PyObject, PyTypeObject
from cpython.pycapsule cimport PyCapsule_GetPointer
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_SET_ITEM
from libc.stdint cimport int64_t
from libc.string cimport memcmp, memcpy, memmove
from posix.time cimport clock_gettime, timespec

from _blocks cimport BlockFunctions, BlockRow
from _sending cimport PyIter_Send, set_send
from _tuples cimport new_tuple

import time
from collections import deque
from functools import partial

from liftenvelope._native._fastframes import _BLOCKS, _PARTS, Delivered, MessageBlock
from liftenvelope.errors import UsageTypeError

cdef extern from "Python.h":
    Py_ssize_t PY_SSIZE_T_MAX
    bint PyObject_TypeCheck(object one, PyTypeObject* kind)

ctypedef Py_ssize_t (*PartsOf)(PyObject* message, PyObject** data) noexcept

cdef enum:
    KEPT = 256  # places of handed out messages to keep before they are deleted
    FEWEST = 16  # places to make room for
    FIELDS = 6  # of a message


cdef type DELIVERED = Delivered
cdef type BLOCK = MessageBlock
cdef PartsOf parts_of = <PartsOf>PyCapsule_GetPointer(_PARTS, "liftenvelope.parts_of")
cdef BlockFunctions* of_block = <BlockFunctions*>PyCapsule_GetPointer(_BLOCKS, "liftenvelope.blocks")


cdef struct Place:
    int64_t offset
    Py_ssize_t row          # of the block; -1 for a message that is an object
    Py_ssize_t size         # of the message in bytes
    Py_ssize_t length       # of its payload


cdef inline object data_of(object one):
    """Return the payload of a message that is no tuple."""
    cdef PyObject* data
    if PyObject_TypeCheck(one, <PyTypeObject*>DELIVERED):
        parts_of(<PyObject*>one, &data)
        return <object>data
    return one.data


cdef int measure(object one, Place* place) except -1:
    """Set the sizes of a message that is an object."""
    cdef Py_ssize_t size = 0
    cdef PyObject* data
    if PyObject_TypeCheck(one, <PyTypeObject*>DELIVERED):
        size = parts_of(<PyObject*>one, &data)
        place.length = len(<object>data)
    elif isinstance(one, tuple):
        if len(<tuple>one) > 3:
            size = (<tuple>one)[3]
        place.length = len((<tuple>one)[1])
    else:
        size = getattr(one, "_size", 0)
        place.length = len(one.data)
    place.row, place.size = -1, size or place.length
    return 0


cdef inline int put(object message, Py_ssize_t place, object value) except -1:
    """Fill a place of a new tuple."""
    Py_INCREF(value)
    PyTuple_SET_ITEM(message, place, value)
    return 0


@cython.final
cdef class PartitionBuffer:
    """Messages of one partition: those read ahead, and the batch handed out last.

    Places: handed out before, up to `first`; the batch handed out last, up to `next`; read ahead. `items` has the
    message of each place, or the block of which it is a row. Every method leaves the places right before it frees a
    message or calls `on_room`. Offsets are kept as those of the last message and not of the next one, which may not
    fit into 64 bits.
    """

    cdef readonly object key
    cdef readonly object generation
    cdef public bint is_paused
    cdef public bint is_held
    cdef public bint wants_room
    cdef public Py_ssize_t max_bytes
    cdef readonly Py_ssize_t size
    cdef Py_ssize_t limit
    cdef type message_class
    cdef object topic           # parts of the key
    cdef object partition
    cdef object on_room
    cdef list items
    cdef Place* places
    cdef Py_ssize_t room_of_places
    cdef Py_ssize_t first
    cdef Py_ssize_t next
    cdef object last_item       # of the message handed out last, or None
    cdef Py_ssize_t last_row
    cdef bint has_start
    cdef int64_t start          # offset before the batch handed out last
    cdef bint is_in_hand        # that batch is not settled; first < next then
    cdef bint is_settled        # a message was settled that processed() has not returned
    cdef int64_t settled        # offset of the last one
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
        self.items = []
        self.first = self.next = 0
        self.last_item, self.last_row = None, -1
        self.has_start, self.start = position is not None, 0 if position is None else position - 1
        self.is_in_hand = self.is_settled = False

    def __dealloc__(self):
        PyMem_Free(self.places)

    @property
    def position(self):
        """Offset of the next message to hand out, or a lower one; None if not known yet."""
        return <object>self.before() + 1 if self.is_known() else None

    cdef inline bint is_known(self) noexcept:
        """Return true if the position is known."""
        return self.has_start or self.next > self.first

    cdef inline int64_t before(self) noexcept:
        """Return the offset before the next message to hand out, if it is known."""
        return self.places[self.next - 1].offset if self.next > self.first else self.start

    @property
    def last(self):
        """Message handed out last, as it came; None after a seek, or if it is handed out again."""
        return self.last_item if self.last_row < 0 else of_block.message(self.last_item, self.last_row)

    cdef inline Py_ssize_t ahead(self):
        return <Py_ssize_t>len(self.items) - self.next

    @property
    def waiting(self):
        """Number of messages that were read and not handed out."""
        return self.ahead()

    @property
    def room(self):
        """Number of messages to read ahead now; 0 if a message must be handed out first."""
        cdef Py_ssize_t waiting = self.ahead()
        if waiting > 0 and self.size >= self.max_bytes:
            return 0
        return max(self.limit - waiting, <Py_ssize_t>0)

    @property
    def can_give(self):
        """True if a message can be taken."""
        return self.gives()

    cdef inline bint gives(self) except -1:
        return self.ahead() > 0 and not self.is_paused and not self.is_held

    def extend(self, list offsets not None, list messages not None):
        """Add messages behind those read ahead."""
        cdef list added = list(messages), sizes = []    # code of the user, which tells sizes, may change the list
        cdef Py_ssize_t i, count = len(added), end
        cdef Place place
        cdef int64_t offset
        if len(offsets) != count:
            raise ValueError(f"{len(offsets)} offsets of {count} messages")
        for i in range(count):
            measure(added[i], &place)
            offset = offsets[i]
            sizes.append((offset, place.size, place.length))
        end = self.make_room(count)
        place.row = -1
        for place.offset, place.size, place.length in sizes:
            self.places[end] = place
            self.size += place.size
            end += 1
        self.items.extend(added)

    def extend_blocks(self, list blocks not None):
        """Add the messages of blocks behind those read ahead; their offsets are the sequences minus one."""
        cdef const BlockRow* rows
        cdef Place* place
        cdef Py_ssize_t i, count, end
        for block in tuple(blocks):
            if type(block) is not BLOCK:
                raise TypeError(f"expected MessageBlock, got {type(block).__name__}")
            count = of_block.rows(<PyObject*>block, &rows)
            end = self.make_room(count)
            self.items.extend([block] * count)
            for i in range(count):
                place = self.places + end + i
                place.offset, place.row = rows[i].sequence - 1, i
                place.size, place.length = rows[i].size, rows[i].value
                self.size += place.size

    cdef Py_ssize_t make_room(self, Py_ssize_t count) except -1:
        """Make room for more messages; return the place of the first."""
        cdef Py_ssize_t gone = self.first, end = len(self.items)
        cdef Place* places
        if gone >= KEPT and gone >= end - gone:
            self.next -= gone
            self.first = 0
            end -= gone
            memmove(self.places, self.places + gone, <size_t>end * sizeof(Place))
            del self.items[:gone]
        if end + count > self.room_of_places:
            count = max(2 * self.room_of_places, end + count, <Py_ssize_t>FEWEST)
            places = <Place*>PyMem_Realloc(self.places, <size_t>count * sizeof(Place))
            if places == NULL:
                raise MemoryError
            self.places, self.room_of_places = places, count
        return end

    def clear(self):
        """Drop the messages read ahead. The batch handed out last stays."""
        cdef list dropped = self.items
        self.size = 0
        self.items = dropped[:self.next]

    def seek(self, offset):
        """Continue at another offset: drop all messages, and whatever was handed out or processed."""
        cdef list dropped = self.items
        last = self.last_item
        self.has_start, self.start = True, offset - 1
        self.first = self.next = self.size = 0
        self.forget()
        self.items, self.last_item, self.last_row = [], None, -1

    def go_on(self, generation, offset):
        """Switch to a later generation of the group, in which the partition starts at `offset`."""
        last = self.last_item
        if not self.is_known() or offset != <object>self.before() + 1:
            if not self.has_start or not self.start < offset <= self.before():
                return False
            while self.next > self.first and self.places[self.next - 1].offset >= offset:
                self.next -= 1
                self.size += self.places[self.next].size
            self.show_last()
        cdef list freed = self.free_last()
        self.has_start, self.start, self.generation, self.is_paused = True, offset - 1, generation, False
        self.forget()
        return True

    cdef int show_last(self) except -1:
        """Set the message handed out last: that of the place before the next one, if it is in hand."""
        self.last_item, self.last_row = None, -1
        if self.next > self.first:
            self.last_item, self.last_row = self.items[self.next - 1], self.places[self.next - 1].row
        return 0

    cdef list free_last(self):
        """Forget the batch handed out last; return its messages, for the caller to free at its end."""
        cdef list freed = self.items[self.first:self.next]
        cdef Py_ssize_t i
        for i in range(self.first, self.next):
            self.items[i] = None
        self.first = self.next
        return freed

    def take(self, Py_ssize_t limit):
        """Take up to `limit` messages; return their offsets and the messages as they came."""
        cdef list freed = self.advance(limit)
        cdef Py_ssize_t i
        if freed is None:
            return [], []
        taken = ([self.places[i].offset for i in range(self.first, self.next)],
                 [self.source(i) for i in range(self.first, self.next)])
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
        cdef Py_ssize_t i
        if limit <= 0 or not self.gives():
            return None
        cdef bint is_known = self.is_known()
        cdef int64_t before = self.before()
        cdef list freed = self.free_last()
        freed.append(self.last_item)
        self.has_start, self.start = is_known, before
        self.next += min(limit, self.ahead())
        for i in range(self.first, self.next):
            self.size -= self.places[i].size
        self.show_last()
        self.is_in_hand = True
        return freed

    cdef object advance_one(self):
        """Make the next message the batch handed out last; return what that frees. The message must be there."""
        cdef bint is_known = self.is_known()
        cdef int64_t before = self.before()
        freed = self.last_item
        cdef list more
        if self.next == self.first + 1:
            self.items[self.first] = None  # freed as the last one
            self.first = self.next
        else:
            more = self.free_last()
            more.append(freed)
            freed = more
        self.has_start, self.start = is_known, before
        self.next += 1
        self.size -= self.places[self.first].size
        self.show_last()
        self.is_in_hand = True
        return freed

    cdef int tell_room(self) except -1:
        if self.wants_room:
            self.wants_room = False
            self.on_room()
        return 0

    cdef inline object source(self, Py_ssize_t i):
        """Return a message as it came."""
        cdef Py_ssize_t row = self.places[i].row
        return self.items[i] if row < 0 else of_block.message(self.items[i], row)

    cdef object message(self, Py_ssize_t i):
        """Return a message as the user gets it."""
        one = self.source(i)
        message = new_tuple(self.message_class, FIELDS)
        put(message, 0, self.topic)
        put(message, 1, self.partition)
        put(message, 2, self.places[i].offset)
        if isinstance(one, tuple):
            put(message, 3, (<tuple>one)[1])
            put(message, 4, (<tuple>one)[2])
        else:
            put(message, 3, data_of(one))
            put(message, 4, one)
        put(message, 5, self.generation)
        return message

    cdef list items_from(self, Py_ssize_t begin, Py_ssize_t end):
        """Return the messages at some places: objects, and blocks of those that are rows."""
        cdef list found = []
        cdef Py_ssize_t first, row
        while begin < end:
            item, row = self.items[begin], self.places[begin].row
            first = begin
            begin += 1
            if row < 0:
                found.append(item)
                continue
            while begin < end and self.items[begin] is item and self.places[begin].row == row + begin - first:
                begin += 1
            found.append(item.part(row, row + begin - first))
        return found

    cdef bytes offsets_from(self, Py_ssize_t begin, Py_ssize_t end):
        """Return the offsets at some places as 64-bit numbers."""
        cdef bytes found = PyBytes_FromStringAndSize(NULL, (end - begin) * 8)
        cdef char* p = PyBytes_AS_STRING(found)
        cdef Py_ssize_t i
        for i in range(begin, end):
            memcpy(p, &self.places[i].offset, 8)
            p += 8
        return found

    cdef bint has_next(self, bytes offsets) except -1:
        """Return true if these are the offsets of the next messages."""
        cdef Py_ssize_t i, count = PyBytes_GET_SIZE(offsets) // 8
        cdef const char* p = PyBytes_AS_STRING(offsets)
        if count == 0 or count > self.ahead() or not self.gives():
            return False
        for i in range(count):
            if memcmp(p + 8 * i, &self.places[self.next + i].offset, 8):
                return False
        return True

    def settle(self):
        """Mark the batch handed out last as processed."""
        self.settle_last()

    cdef inline int settle_last(self) except -1:
        if self.is_in_hand:
            self.is_in_hand = False
            self.is_settled, self.settled = True, self.places[self.next - 1].offset
        return 0

    def settle_until(self, end):
        """Leave to the caller what was handed out or processed before an offset."""
        if self.is_in_hand and self.places[self.next - 1].offset < end:
            self.is_in_hand = False
        if self.is_settled and self.settled < end:
            self.is_settled = False

    def processed(self):
        """Return the offset behind the last processed message, once; None if there is nothing new."""
        if not self.is_settled:
            return None
        self.is_settled = False
        return <object>self.settled + 1

    def forget(self):
        """Forget what was handed out or processed: it is not marked as processed any more."""
        self.is_in_hand = self.is_settled = False


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
            while end < <Py_ssize_t>len(buffer.items) and end - begin < limit:
                size += buffer.places[end].length
                if size > max_bytes and (found or end > begin):
                    break
                end += 1
            if end > begin:
                found.append((buffer, buffer.offsets_from(begin, end), buffer.items_from(begin, end)))
                limit -= end - begin
        return found

    def has_parts(self, list parts not None):
        """Return true if messages that `peek` has returned can still be taken."""
        cdef PartitionBuffer buffer
        cdef bytes offsets
        generation = self.session.generation
        for buffer, offsets in parts:
            if buffer.generation != generation or not buffer.has_next(offsets):
                return False
        return True

    def take_parts(self, list parts not None):
        """Take messages that `peek` has returned, if all can still be taken; return whether they were."""
        cdef PartitionBuffer buffer
        cdef bytes offsets
        cdef list freed = []
        if not self.has_parts(parts):
            return False
        for buffer, offsets in parts:
            freed.append(buffer.advance(PyBytes_GET_SIZE(offsets) // 8))
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
