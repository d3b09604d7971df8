# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, auto_pickle=False, autotestdict=False
"""Parsers for HTTP/2 DATA frames, gRPC messages and NATS messages.

`liftenvelope/_native/frames.py`, `nats_walker.py` and `delivered.py` are the readable twins; the first two show the
layouts.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.object cimport PyObject, PyTypeObject
from cpython.pycapsule cimport PyCapsule_New
from cpython.ref cimport Py_INCREF
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy

from _blocks cimport BlockFunctions, BlockRow
from _cursor cimport Slice, valid_utf8
from _nats cimport *
from _sending cimport PyIter_Send, set_send

from liftenvelope._checks import as_bytes
from liftenvelope.errors import UsageError, UsageTypeError

cdef extern from "Python.h":
    Py_buffer* PyMemoryView_GET_BUFFER(object view)

COMPRESSED = 1
TOO_LONG = 2

cdef enum:
    FRAME_HEADER = 9
    PREFIX = 5
    DATA = 0x0
    HEADERS = 0x1
    PUSH_PROMISE = 0x5
    CONTINUATION = 0x9
    END_HEADERS = 0x4
    SHOWN = 32
    SHORT = 4096  # bytes of input that are sooner copied than walked in place, behind the rest of the last input
    FAULT_COMPRESSED = 1
    FAULT_TOO_LONG = 2
    LONGEST_KEPT = 256
    KEPT = 256  # list places of taken messages to keep before they are deleted


cdef inline uint32_t be32(const uint8_t* p) noexcept nogil:
    return (<uint32_t>p[0] << 24) | (<uint32_t>p[1] << 16) | (<uint32_t>p[2] << 8) | <uint32_t>p[3]


cdef inline Py_ssize_t length_of(const uint8_t* header) noexcept nogil:
    """Return the length of the payload behind a frame header."""
    return (<Py_ssize_t>header[0] << 16) | (<Py_ssize_t>header[1] << 8) | <Py_ssize_t>header[2]


cdef inline const uint8_t* start_of(bytes data):
    return <const uint8_t*>PyBytes_AS_STRING(data)


cdef object borrowed(object data):
    """Return a memoryview of bytes as a view of its own, and any other bytes-like object as bytes."""
    if type(data) is memoryview:
        try:
            view = memoryview(data)
        except ValueError:  # released
            return as_bytes("data", data)
        if view.c_contiguous and view.itemsize == 1 and view.ndim == 1:
            return view
    return data if type(data) is bytes else as_bytes("data", data)


cdef inline const uint8_t* pointer_to(object data):
    """Return the start of bytes or of a memoryview from borrowed()."""
    if type(data) is bytes:
        return start_of(<bytes>data)
    return <const uint8_t*>PyMemoryView_GET_BUFFER(data).buf


def pack_messages(list messages not None):
    """Concatenate bytes-like messages, each with its gRPC prefix: the payload of DATA frames."""
    cdef list parts = [message if type(message) is bytes else as_bytes("message", message) for message in messages]
    cdef Py_ssize_t total = 0, n
    cdef bytes part
    for part in parts:
        n = PyBytes_GET_SIZE(part)
        if n > <Py_ssize_t>0xFFFFFFFF:
            raise UsageError(f"a message of {n} bytes: gRPC carries up to {0xFFFFFFFF}")
        total += PREFIX + n
    cdef bytes packed = PyBytes_FromStringAndSize(NULL, total)
    cdef uint8_t* p = <uint8_t*>PyBytes_AS_STRING(packed)
    for part in parts:
        n = PyBytes_GET_SIZE(part)
        p[0] = 0
        p[1] = <uint8_t>(n >> 24)
        p[2] = <uint8_t>(n >> 16)
        p[3] = <uint8_t>(n >> 8)
        p[4] = <uint8_t>n
        memcpy(p + PREFIX, PyBytes_AS_STRING(part), <size_t>n)
        p += PREFIX + n
    return packed


@cython.final
cdef class MessageCutter:
    """Cuts the bytes of one stream into messages, fed in pieces of any size; or passes them to a sink.

    Invariant: between two calls at most one message is incomplete. It has either `prefix_filled` bytes (1 to 4) of
    its prefix, or a `body` with `body_filled` bytes, never both. The body is allocated once at its full size, after
    its length was checked against `max_message`, so that a message in many pieces is copied once.
    """

    cdef Py_ssize_t max_message
    cdef readonly object sink
    cdef uint8_t prefix[PREFIX]
    cdef Py_ssize_t prefix_filled
    cdef bytes body             # of an incomplete message: allocated at full size, filled piece by piece
    cdef Py_ssize_t body_filled
    cdef readonly int fault
    cdef readonly object fault_value

    def __init__(self, Py_ssize_t max_message, sink=None):
        self.max_message = max_message
        self.sink = sink
        self.prefix_filled = 0
        self.body = None
        self.fault = 0
        self.fault_value = 0

    @property
    def inside_message(self):
        """True if the input so far ends inside a message."""
        return self.prefix_filled > 0 or self.body is not None

    def feed(self, data):
        """Process more bytes of the stream; return the messages that are now complete."""
        cdef bytes given = data if type(data) is bytes else as_bytes("data", data)
        cdef list messages = []
        cdef int64_t whole[2]
        if self.sink is not None:
            whole[0], whole[1] = 0, PyBytes_GET_SIZE(given)
            self.sink.put(given, PyBytes_FromStringAndSize(<const char*>whole, sizeof(whole)))
        else:
            self.cut(start_of(given), PyBytes_GET_SIZE(given), messages)
        return messages

    cdef int cut(self, const uint8_t* p, Py_ssize_t n, list messages) except -1:
        """Process the `n` bytes at `p`; append the messages that are now complete."""
        cdef Py_ssize_t length
        while n > 0 and not self.fault:
            if self.body is not None:
                length = self.fill_body(p, n, messages)
                p += length
                n -= length
                continue
            length = min(PREFIX - self.prefix_filled, n)
            memcpy(self.prefix + self.prefix_filled, p, <size_t>length)
            p += length
            n -= length
            self.prefix_filled += length
            if self.prefix_filled < PREFIX:
                break
            self.prefix_filled = 0
            length = self.message_length()
            if self.fault:
                break
            if length > n:
                self.body = PyBytes_FromStringAndSize(NULL, length)
                self.body_filled = 0
                continue
            messages.append(PyBytes_FromStringAndSize(<const char*>p, length))
            p += length
            n -= length
        if self.fault:
            self.prefix_filled = 0
        return 0

    cdef Py_ssize_t fill_body(self, const uint8_t* p, Py_ssize_t n, list messages) except -1:
        """Add bytes to the incomplete message; return how many of the `n` bytes at `p` belong to it."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(self.body)
        cdef Py_ssize_t length = min(size - self.body_filled, n)
        memcpy(<uint8_t*>PyBytes_AS_STRING(self.body) + self.body_filled, p, <size_t>length)
        self.body_filled += length
        if self.body_filled == size:
            messages.append(self.body)
            self.body = None
        return length

    cdef Py_ssize_t message_length(self) except -1:
        """Return the length in the complete prefix; set a fault if it is compressed or too long."""
        cdef uint32_t length = be32(self.prefix + 1)
        if self.prefix[0] != 0:
            self.fault = FAULT_COMPRESSED
            self.fault_value = self.prefix[0]
            return 0
        if <Py_ssize_t>length > self.max_message:
            self.fault = FAULT_TOO_LONG
            self.fault_value = length
            return 0
        return <Py_ssize_t>length


cdef class _Taken:
    """Payloads taken from one stream in one walk."""

    cdef object stream_id
    cdef Py_ssize_t size    # total length of the payloads
    cdef list messages
    cdef object sink        # None if the messages are cut here
    cdef Py_ssize_t frames  # frames that the sink has not got yet


@cython.final
cdef class FrameWalker:
    """Splits the received bytes of a connection into messages of open streams, and frames for h2.

    Invariants: messages are returned before any frame that arrived after them, because walk() ends at the first
    frame that it does not take. While a header block is incomplete (`in_headers`), no DATA frame is taken, so that
    h2 sees and refuses it. Only DATA frames without flags are taken: no flag means no padding and no end of the
    stream, so that the payload is nothing but message bytes.

    The input is walked in place, because it is most of the bytes of a connection: `p[start:size]` is the part of
    `held` that was not processed yet. `held` is borrowed until walk() has returned no frame. Then the rest, less than
    a frame, is copied. feed() completes that frame in a buffer of its own, and puts the input behind it into
    `following`, so that the input is not copied to join it with the rest of the last one.
    """

    cdef Py_ssize_t max_frame_size
    cdef Py_ssize_t max_message
    cdef Py_ssize_t preface
    cdef object held            # bytes or memoryview
    cdef const uint8_t* p       # start of held
    cdef Py_ssize_t size, start
    cdef object following       # memoryview of the input behind `held`, or None
    cdef bint in_headers
    cdef dict cutters
    cdef readonly Py_ssize_t oversize

    def __init__(self, Py_ssize_t max_frame_size, Py_ssize_t max_message, Py_ssize_t preface=0):
        self.max_frame_size = max_frame_size
        self.max_message = max_message
        self.preface = preface
        self.hold(b"")
        self.following = None
        self.in_headers = False
        self.cutters = {}
        self.oversize = 0

    def open(self, stream_id, sink=None):
        """Take the DATA frames of this stream from now on. Return its cutter, for frames that go to h2."""
        cdef MessageCutter cutter = MessageCutter(self.max_message, sink)
        self.cutters[stream_id] = cutter
        return cutter

    def mute(self, stream_id):
        """Take the DATA frames of this stream, count their size and drop their content."""
        self.cutters[stream_id] = None

    def close(self, stream_id):
        """Leave the DATA frames of this stream to h2."""
        self.cutters.pop(stream_id, None)

    def feed(self, data):
        """Add received bytes. Then call walk() until it returns no frame; until then `data` must not change."""
        given = borrowed(data)
        cdef Py_ssize_t n, used
        if self.start == self.size and self.following is None:
            self.hold(given)
            return
        n = len(given)
        used = self.missing(given, n)
        rest = PyBytes_FromStringAndSize(<const char*>self.p + self.start, self.size - self.start)
        if n - used > SHORT and self.following is None:
            view = memoryview(given)
            self.hold(rest + view[:used])
            self.following = view[used:]
        else:
            following, self.following = self.following, None
            self.hold(b"".join((rest, following or b"", given)))

    cdef Py_ssize_t missing(self, object given, Py_ssize_t n) except -1:
        """Return how many of the `n` bytes of the input complete the frame that the last input ended in.

        It is `n` where the frame is incomplete after them, too long or complete already, or if the preface is due.
        """
        cdef uint8_t header[FRAME_HEADER]
        cdef Py_ssize_t left = self.size - self.start, length, have = min(left, FRAME_HEADER)
        if self.preface or left + n < FRAME_HEADER:
            return n
        memcpy(header, self.p + self.start, <size_t>have)
        if have < FRAME_HEADER:
            memcpy(header + have, pointer_to(given), <size_t>(FRAME_HEADER - have))
        length = length_of(header)
        if length > self.max_frame_size or length + FRAME_HEADER <= left:
            return n
        return min(length + FRAME_HEADER - left, n)

    cdef int hold(self, object data) except -1:
        self.held, self.p, self.size, self.start = data, pointer_to(data), len(data), 0
        return 0

    def walk(self):
        """Advance to the next frame that is not taken; return the messages taken before it, and the frame."""
        cdef dict taken = {}
        cdef bytes frame = self.next_preface()
        cdef Py_ssize_t end, begin = self.start, stop = self.start
        cdef const uint8_t* p
        while PyBytes_GET_SIZE(frame) == 0 and not self.oversize:
            end = self.frame_end()
            if end == 0:
                if self.following is None or self.start < self.size:
                    break
                self.feed_sinks(taken, begin, stop)
                following, self.following = self.following, None
                self.hold(following)
                begin = stop = 0
                continue
            p = self.p + self.start
            if not self.take(taken, p, end - self.start - FRAME_HEADER):
                frame = self.piece(self.start, end)
                if p[3] == HEADERS or p[3] == PUSH_PROMISE or p[3] == CONTINUATION:
                    self.in_headers = not p[4] & END_HEADERS
            else:
                stop = end
            self.start = end
        self.feed_sinks(taken, begin, stop)
        if self.oversize and PyBytes_GET_SIZE(frame) == 0:
            frame = self.piece(self.start, min(self.size, self.start + SHOWN))
            self.hold(b"")
        elif PyBytes_GET_SIZE(frame) == 0:
            self.hold(self.piece(self.start, self.size))
        return [((<_Taken>one).stream_id, (<_Taken>one).size, (<_Taken>one).messages) for one in taken.values()], frame

    cdef int feed_sinks(self, dict taken, Py_ssize_t begin, Py_ssize_t stop) except -1:
        """Pass the payloads taken since the last call, in the frames from `begin` to `stop`, to their sinks."""
        cdef _Taken one
        for one in taken.values():
            if one.frames:
                spans = self.spans(begin, stop, one)
                one.frames = 0
                one.sink.put(self.held, spans)
        return 0

    cdef bytes spans(self, Py_ssize_t at, Py_ssize_t stop, _Taken one):
        """Return the start and end of each payload of a stream in the complete frames from `at` to `stop`.

        A second pass over the frames: their number is known by now, so one allocation has the exact size.
        """
        cdef bytes spans = PyBytes_FromStringAndSize(NULL, one.frames * 2 * <Py_ssize_t>sizeof(int64_t))
        cdef char* out = PyBytes_AS_STRING(spans)
        cdef char* end = out + PyBytes_GET_SIZE(spans)
        cdef const uint8_t* p
        cdef uint32_t stream_id = one.stream_id
        cdef int64_t pair[2]
        while at < stop and out < end:
            p = self.p + at
            pair[0] = at + FRAME_HEADER
            pair[1] = at = pair[0] + length_of(p)
            if be32(p + 5) & 0x7FFFFFFF == stream_id:
                memcpy(out, pair, sizeof(pair))
                out += sizeof(pair)
        return spans

    cdef inline bytes piece(self, Py_ssize_t start, Py_ssize_t end):
        return PyBytes_FromStringAndSize(<const char*>self.p + start, end - start)

    cdef bytes next_preface(self):
        cdef Py_ssize_t n = min(self.preface, self.size - self.start)
        self.preface -= n
        self.start += n
        return self.piece(self.start - n, self.start)

    cdef Py_ssize_t frame_end(self) except -1:
        """Return the end of the next frame, 0 if it is incomplete or too long."""
        cdef Py_ssize_t left = self.size - self.start, length
        if left < FRAME_HEADER:
            return 0
        length = length_of(self.p + self.start)
        if length > self.max_frame_size:
            self.oversize = length
            return 0
        return self.start + FRAME_HEADER + length if length <= left - FRAME_HEADER else 0

    cdef bint take(self, dict taken, const uint8_t* p, Py_ssize_t length) except -1:
        """Take the frame at `p` if it is a plain DATA frame of an open stream; return true if it was taken."""
        if p[3] != DATA or p[4] != 0 or self.in_headers:
            return False
        cdef object stream_id = be32(p + 5) & 0x7FFFFFFF
        cdef _Taken one = taken.get(stream_id)
        if one is None:
            if stream_id not in self.cutters:
                return False
            one = _Taken.__new__(_Taken)
            one.stream_id = stream_id
            one.messages = []
            taken[stream_id] = one
        one.size += length
        cdef MessageCutter cutter = self.cutters[stream_id]
        if cutter is None:
            return True
        if cutter.sink is None:
            cutter.cut(p + FRAME_HEADER, length, one.messages)
        else:
            one.sink = cutter.sink
            one.frames += 1
        return True


# NATS

cdef bint is_text(Slice word) except -1:
    cdef uint8_t seen = 0
    cdef Py_ssize_t i
    for i in range(word.n):
        seen |= word.p[i]
    if seen < 0x80:
        return True
    try:
        PyUnicode_DecodeUTF8(<const char*>word.p, word.n, "strict")
    except UnicodeDecodeError:
        return False
    return True


cdef extern from *:
    """
    #define new_of(type, args, kwargs) ((type)->tp_new((type), (args), (kwargs)))
    """
    object new_of(PyTypeObject* message_class, object args, PyObject* kwargs)


cdef tuple EMPTY = ()


cdef inline char* put(char* p, const char* text, Py_ssize_t n) noexcept nogil:
    memcpy(p, text, <size_t>n)
    return p + n


include "_delivered.pxi"


include "_replies.pxi"


include "_blocks.pxi"


include "_header_columns.pxi"


@cython.final
cdef class MessageQueue:
    """Queue of delivered messages with flow control, and an asynchronous iterator over them.

    Invariants: `items[head:]` is the queue, and the places before `head` are None, so that a taken message is freed
    at once. They are deleted only when they are at least 256 and at least half of the list, which
    keeps the cost per message constant. `buffered` is the size of the queue; `owed` falls by the size of each
    message that arrives. take() calls `on_low` whenever `owed + buffered` is below the threshold.
    """

    cdef list items
    cdef Py_ssize_t head
    cdef object on_low
    cdef object wait
    cdef readonly bint in_bytes
    cdef readonly int64_t threshold
    cdef public int64_t owed
    cdef readonly int64_t buffered
    cdef readonly int64_t size
    cdef readonly int64_t arrived

    def __init__(self, int64_t threshold, bint in_bytes, on_low, wait):
        self.items = []
        self.head = 0
        self.threshold = threshold
        self.in_bytes = in_bytes
        self.on_low = on_low
        self.wait = wait
        self.owed = 0
        self.buffered = 0
        self.size = 0
        self.arrived = 0

    def __len__(self):
        return len(self.items) - self.head

    cdef int count(self, int64_t amount, int64_t size) except -1:
        """Count messages that arrive."""
        if self.in_bytes:
            amount = size
        self.owed -= amount
        self.buffered += amount
        self.size += size
        self.arrived += size
        return 0

    cdef int uncount(self, int64_t amount, int64_t size) except -1:
        """Count messages that were taken, and call `on_low` if the queue is low."""
        self.buffered -= size if self.in_bytes else amount
        self.size -= size
        if self.owed + self.buffered < self.threshold:
            self.on_low()
        return 0

    def extend(self, list messages not None):
        """Append messages. The caller must not use the list afterwards."""
        cdef int64_t size = 0
        for message in messages:
            size += (<Delivered?>message)._size
        self.count(len(messages), size)
        if self.head == len(self.items):
            self.items = messages
            self.head = 0
        else:
            self.forget_taken()
            self.items.extend(messages)

    def append(self, Delivered message not None):
        """Append a message."""
        self.count(1, message._size)
        self.forget_taken()
        self.items.append(message)

    cdef int forget_taken(self) except -1:
        if self.head >= KEPT and self.head >= len(self.items) - self.head:
            del self.items[:self.head]
            self.head = 0
        return 0

    def clear(self):
        """Drop all buffered messages."""
        self.items = []
        self.head = 0
        self.buffered = 0
        self.size = 0

    def pop(self):
        """Remove and return the first message."""
        return self.take()

    cdef object take(self):
        if self.head == len(self.items):
            raise IndexError("no message is there")
        message = self.items[self.head]
        self.items[self.head] = None  # free the message now: it may be large, and the list stays
        self.head += 1
        self.uncount(1, (<Delivered>message)._size)
        return message

    def pop_many(self, Py_ssize_t limit):
        """Remove and return the first messages, at most `limit`. `on_low` is called at most once."""
        cdef Py_ssize_t i, n = min(limit, <Py_ssize_t>len(self.items) - self.head)
        cdef int64_t size = 0
        if n <= 0:
            return []
        cdef list taken = self.items[self.head:self.head + n]
        for i in range(n):
            self.items[self.head + i] = None
            size += (<Delivered>taken[i])._size
        self.head += n
        self.uncount(n, size)
        return taken

    def __aiter__(self):
        return self

    def __anext__(self):
        cdef _Step step = _Step.__new__(_Step)
        step.source = self
        return step

    def __iter__(self):
        """Iterate over the messages without removing them."""
        return iter(self.items[self.head:])


include "_ordered.pxi"


# Both queues are iterated over.

cdef inline bint item_is_ready(object source) except -1:
    cdef int64_t sequence
    if type(source) is MessageQueue:
        return (<MessageQueue>source).head < len((<MessageQueue>source).items)
    return (<OrderedQueue>source).gives(&sequence)


cdef inline object take_item(object source):
    return (<MessageQueue>source).take() if type(source) is MessageQueue else (<OrderedQueue>source).take()


cdef inline object wait_for_item(object source):
    return (<MessageQueue>source).wait() if type(source) is MessageQueue else (<OrderedQueue>source).wait()


include "_step.pxi"


include "_opened.pxi"


cdef inline bint is_misread(const Head* head, const uint8_t* body, Py_ssize_t n) noexcept nogil:
    """Return true if nats-py might take the start of a message's headers for a word of its line; see the twin."""
    return head.header_size > 0 and head.reply.n == 0 and n > 0 and body[0] != 78  # N of NATS/1.0


@cython.final
cdef class NatsWalker:
    """Takes the messages of chosen subscriptions out of the bytes of a NATS connection.

    Invariants: all bytes that are not part of a taken message are returned unchanged and in order. From the first
    malformed line on, everything is left (`passing_all`), so that the client that owns the connection sees the fault
    as it would without the walker.

    State between two walks, one of three unless `passing_all`:
    - `passing` > 0: the next bytes are the rest of a message that is left.
    - `body` is not None: a message to take is incomplete. `line` is its line, `body` has room for all of its
      headers and payload, and `body_filled` counts the bytes received, CRLF included. It is copied once, however
      many pieces it arrives in.
    - neither: the input from `start` on begins at a line, which may be incomplete.

    The input is `p[:size]`, which is `buffer`, or bytes that walk_over() has borrowed.
    """

    cdef int64_t max_message
    cdef dict opened
    cdef _Opened last          # last result of lookup()
    cdef bytes buffer          # None while the input is borrowed
    cdef const uint8_t* p
    cdef Py_ssize_t size, start
    cdef int64_t passing
    cdef bint passing_all
    # An incomplete message to take; see above. first_of_crlf is kept for put_back().
    cdef bytes line
    cdef bytes body
    cdef int64_t body_filled
    cdef uint8_t first_of_crlf

    def __init__(self, int64_t max_message):
        self.max_message = max_message
        self.opened = {}
        self.clear()

    cdef void clear(self):
        self.last = None
        self.hold(b"")
        self.passing = 0
        self.passing_all = False
        self.line = self.body = None

    def open(self, int64_t sid, bint payloads=False):
        """Take the messages of this subscription from now on."""
        cdef _Opened one = _Opened.__new__(_Opened)
        one.sid = sid
        one.number = sid
        one.payloads = payloads
        one.message_class = None
        one.subject = ""
        one.subject_bytes = b""
        self.opened[sid] = one
        self.last = None

    def open_delivered(self, int64_t sid, type message_class not None, acks, bytes statuses not None,
                       bint blocks=False):
        """Take the messages of this subscription from now on, as objects of a class or in blocks."""
        if not issubclass(message_class, Delivered):
            raise UsageTypeError(f"{message_class!r} is no subclass of Delivered")
        self.open(sid)
        cdef _Opened one = self.opened[sid]
        one.message_class = message_class
        one.acks = acks
        one.statuses = statuses
        one.in_blocks = blocks

    def close(self, int64_t sid):
        """Leave the messages of this subscription from now on, including a partly received one."""
        self.opened.pop(sid, None)
        self.last = None

    def skip(self, int64_t size):
        """Leave the next `size` bytes: the rest of a message that the client has begun to read."""
        self.passing = size

    def pass_all(self):
        """Leave everything, until reset()."""
        self.passing_all = True

    def reset(self):
        """Restart at the first byte of a new connection. The subscriptions stay open."""
        self.clear()

    def feed(self, data):
        """Add received bytes. Then call walk() until it leaves nothing."""
        cdef bytes given = data if type(data) is bytes else as_bytes("data", data)
        if self.start < self.size:
            given = self.piece(self.start, self.size) + given
        self.hold(given)

    cdef void hold(self, bytes data) noexcept:
        self.buffer, self.p, self.size, self.start = data, start_of(data), PyBytes_GET_SIZE(data), 0

    cdef bytes piece(self, Py_ssize_t start, Py_ssize_t end):
        return PyBytes_FromStringAndSize(<const char*>self.p + start, end - start)

    def walk_over(self, data):
        """feed(), and walk() once. The bytes may change afterwards, and are not copied but for what they end in."""
        given = borrowed(data)
        cdef const uint8_t* p = pointer_to(given)
        cdef Py_ssize_t n = len(given), used = 0
        if self.start < self.size:
            used = self.end_line(p, n)
            if used == 0:
                self.feed(given)
                return self.walk()
        self.buffer, self.p, self.size, self.start = None, p, n, used
        try:
            return self.walk()
        finally:
            self.own()

    cdef int own(self) except -1:
        """Copy the rest of the input, which is borrowed."""
        cdef const char* p = <const char*>self.p + self.start
        cdef Py_ssize_t n = self.size - self.start
        kept = self.buffer
        self.hold(b"")  # the copy may fail for lack of memory
        self.hold(PyBytes_FromStringAndSize(p, n))
        return 0

    cdef Py_ssize_t end_line(self, const uint8_t* p, Py_ssize_t n) except -1:
        """Complete the line that the input ends in, if it is that of a message to take, and begin that message.

        Return how many of the `n` bytes at `p` belong to the line; 0 if nothing was done.
        """
        cdef const uint8_t* found = <const uint8_t*>memchr(p, 10, <size_t>n)
        cdef Py_ssize_t size
        cdef Head head
        if found == NULL or self.body is not None or self.passing or self.passing_all:
            return 0
        if memchr(self.p + self.start, 10, <size_t>(self.size - self.start)) != NULL:
            return 0
        cdef bytes line = self.piece(self.start, self.size) + p[:found - p + 1]
        if self.read_line(start_of(line), PyBytes_GET_SIZE(line), &head, &size) != MESSAGE:
            return 0
        cdef _Opened one = self.lookup(head.sid)
        if one is None or one.leaves(&head):
            return 0
        self.begin(line, head.size)
        return found - p + 1

    def walk(self):
        """Take messages, then leave bytes, up to the next message to take or the end of the input."""
        cdef list runs = []
        cdef _MessageRun run
        cdef Py_ssize_t at, left
        self.put_back()
        try:
            self.fill(runs)
            left = at = self.start
            at = self.walk_from(runs, &left)
            rest = self.piece(left, at)
            self.start = at
            return [(run.opened.sid, run.size, run.content()) for run in runs], rest
        finally:
            for run in runs:
                run.opened.run = None

    cdef Py_ssize_t walk_from(self, list runs, Py_ssize_t* left) except -1:
        """Take messages, then skip what is left; return the end of the skipped bytes, and their start in `left`.

        Stops before a message to take that follows skipped bytes: the caller must see those bytes first. Stops also
        behind the line of a message that nats-py would misread.
        """
        cdef const uint8_t* p = self.p
        cdef Py_ssize_t end = self.size, at = self.passed(self.start), body
        cdef Head head
        cdef _Opened one
        cdef int kind
        while at < end:
            kind = self.read_line(p + at, end - at, &head, &body)
            if kind == OTHER and body == 0:
                break
            body += at
            one = self.lookup(head.sid) if kind == MESSAGE else None
            if one is None or one.leaves(&head):
                if kind == MESSAGE:
                    self.passing = head.size + CRLF
                    if is_misread(&head, p + body, end - body):
                        at = body
                        break
                at = self.passed(body)
                continue
            if left[0] < at:
                break
            if head.size + CRLF > end - body:
                self.keep_part(at, body, head.size)
                left[0] = at = end
                break
            one.take(&head, p + body, None, runs)
            left[0] = at = body + <Py_ssize_t>head.size + CRLF
        return at

    cdef int read_line(self, const uint8_t* p, Py_ssize_t n, Head* head, Py_ssize_t* size) except -1:
        """Return the kind of the line at `p`; set `size` to its length, 0 if it is incomplete.

        A malformed or too long line sets `passing_all`.
        """
        cdef const uint8_t* found = <const uint8_t*>memchr(p, 10, <size_t>n)
        cdef int kind
        size[0] = 0
        if found == NULL:
            self.passing_all = n > LONGEST_LINE
            size[0] = self.passing_all
            return OTHER
        size[0] = found - p + 1
        kind = parse_line(p, size[0] - CRLF, head) if size[0] >= CRLF and (found - 1)[0] == 13 else UNKNOWN
        if kind == MESSAGE and (head.size > self.max_message or not is_text(head.subject)):
            kind = UNKNOWN
        if kind == UNKNOWN:
            self.passing_all = True
        return kind

    cdef _Opened lookup(self, int64_t sid):
        if self.last is not None and self.last.number == sid:
            return self.last
        cdef _Opened one = self.opened.get(sid)
        if one is not None:
            self.last = one
        return one

    cdef Py_ssize_t passed(self, Py_ssize_t at) noexcept:
        """Return the end of the bytes to leave, starting at `at`."""
        cdef Py_ssize_t n = self.size - at
        if self.passing_all:
            return at + n
        if self.passing < n:
            n = <Py_ssize_t>self.passing
        self.passing -= n
        return at + n

    cdef int keep_part(self, Py_ssize_t at, Py_ssize_t body, int64_t size) except -1:
        """Keep the beginning of an incomplete message, and allocate room for the rest."""
        self.begin(self.piece(at, body), size)
        self.add_to_body(self.p + body, self.size - body)
        return 0

    cdef int begin(self, bytes line, int64_t size) except -1:
        self.body = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>size)
        self.line = line
        self.body_filled = 0
        return 0

    cdef Py_ssize_t add_to_body(self, const uint8_t* p, Py_ssize_t n) except -1:
        """Add bytes to the incomplete message; return how many of the `n` bytes at `p` belong to it and its CRLF."""
        cdef int64_t size = PyBytes_GET_SIZE(self.body)
        cdef int64_t used = min(size + CRLF - self.body_filled, <int64_t>n)
        cdef int64_t copied = min(size - self.body_filled, used)
        if copied > 0:
            memcpy(<uint8_t*>PyBytes_AS_STRING(self.body) + self.body_filled, p, <size_t>copied)
        self.body_filled += used
        if self.body_filled == size + 1:
            self.first_of_crlf = p[used - 1] if used else self.first_of_crlf
        return <Py_ssize_t>used

    cdef int fill(self, list runs) except -1:
        """Continue the incomplete message, if there is one; take it if it is now complete."""
        cdef Head head
        cdef _Opened one
        if self.body is None:
            return 0
        self.start += self.add_to_body(self.p + self.start, self.size - self.start)
        if self.body_filled == PyBytes_GET_SIZE(self.body) + CRLF:
            parse_line(start_of(self.line), PyBytes_GET_SIZE(self.line) - CRLF, &head)
            one = self.lookup(head.sid)
            one.take(&head, start_of(self.body), self.body, runs)
            self.line = self.body = None
        return 0

    cdef int put_back(self) except -1:
        """Put an incomplete message back before the input, if it must be left after all.

        Its subscription was closed, or everything is left now. The bytes must come out unchanged and in order.
        """
        cdef Head head
        if self.body is None:
            return 0
        parse_line(start_of(self.line), PyBytes_GET_SIZE(self.line) - CRLF, &head)
        cdef _Opened one = self.lookup(head.sid)
        if not self.passing_all and one is not None and not one.leaves(&head):
            return 0
        cdef bytes came = self.body[:min(self.body_filled, <int64_t>PyBytes_GET_SIZE(self.body))]
        if self.body_filled > PyBytes_GET_SIZE(self.body):
            came += bytes((self.first_of_crlf,))
        self.hold(self.line + came + self.piece(self.start, self.size))
        self.line = self.body = None
        return 0
