# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, auto_pickle=False, autotestdict=False
"""HTTP/2 DATA frames and gRPC messages. `liftenvelope/_frames_py.py` is the readable twin and says what it does."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memcpy

from liftenvelope._checks import as_bytes
from liftenvelope.errors import UsageError

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
    FAULT_COMPRESSED = 1
    FAULT_TOO_LONG = 2


cdef inline uint32_t be32(const uint8_t* p) noexcept nogil:
    return (<uint32_t>p[0] << 24) | (<uint32_t>p[1] << 16) | (<uint32_t>p[2] << 8) | <uint32_t>p[3]


cdef inline const uint8_t* start_of(bytes data):
    return <const uint8_t*>PyBytes_AS_STRING(data)


def pack_messages(list messages not None):
    """The messages, each with its prefix: the payload of DATA frames."""
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
    """Cuts the bytes of one stream into messages, however they were divided on the way."""

    cdef Py_ssize_t max_message
    cdef uint8_t prefix[PREFIX]
    cdef Py_ssize_t prefix_filled
    cdef bytes body             # of a message that came in part: allocated whole, filled as it comes
    cdef Py_ssize_t body_filled
    cdef readonly int fault
    cdef readonly object fault_value

    def __init__(self, Py_ssize_t max_message):
        self.max_message = max_message
        self.prefix_filled = 0
        self.body = None
        self.fault = 0
        self.fault_value = 0

    @property
    def inside_message(self):
        """Whether what came last was not the end of a message."""
        return self.prefix_filled > 0 or self.body is not None

    def feed(self, data):
        """Take in more of the stream; return the messages that are complete now."""
        cdef bytes given = data if type(data) is bytes else as_bytes("data", data)
        cdef list messages = []
        self.cut(start_of(given), PyBytes_GET_SIZE(given), messages)
        return messages

    cdef int cut(self, const uint8_t* p, Py_ssize_t n, list messages) except -1:
        """Append the messages that `n` bytes at `p` complete."""
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
        """How many of the `n` bytes at `p` belong to the message that came in part."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(self.body)
        cdef Py_ssize_t length = min(size - self.body_filled, n)
        memcpy(<uint8_t*>PyBytes_AS_STRING(self.body) + self.body_filled, p, <size_t>length)
        self.body_filled += length
        if self.body_filled == size:
            messages.append(self.body)
            self.body = None
        return length

    cdef Py_ssize_t message_length(self) except -1:
        """What the whole prefix says; a fault if it must not."""
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
    """What was taken out of one stream in one walk."""

    cdef object stream_id
    cdef Py_ssize_t size
    cdef list messages


@cython.final
cdef class FrameWalker:
    """Divides what a connection receives into messages of open streams, and frames for h2."""

    cdef Py_ssize_t max_frame_size
    cdef Py_ssize_t max_message
    cdef Py_ssize_t preface
    cdef bytes buffer
    cdef Py_ssize_t start
    cdef bint in_headers
    cdef dict cutters
    cdef readonly Py_ssize_t oversize

    def __init__(self, Py_ssize_t max_frame_size, Py_ssize_t max_message, Py_ssize_t preface=0):
        self.max_frame_size = max_frame_size
        self.max_message = max_message
        self.preface = preface
        self.buffer = b""
        self.start = 0
        self.in_headers = False
        self.cutters = {}
        self.oversize = 0

    def open(self, stream_id):
        """Take the DATA frames of this stream from now on."""
        cdef MessageCutter cutter = MessageCutter(self.max_message)
        self.cutters[stream_id] = cutter
        return cutter

    def mute(self, stream_id):
        """Take the DATA frames of this stream, but for their size alone."""
        self.cutters[stream_id] = None

    def close(self, stream_id):
        """Leave the DATA frames of this stream to h2."""
        self.cutters.pop(stream_id, None)

    def feed(self, data):
        """Take in more bytes; then call walk until it returns no frame."""
        cdef bytes given = data if type(data) is bytes else as_bytes("data", data)
        if self.start == PyBytes_GET_SIZE(self.buffer):
            self.buffer = given
        else:
            self.buffer = self.buffer[self.start:] + given
        self.start = 0

    def walk(self):
        """What was taken out before the next frame that is not, and that frame."""
        cdef dict taken = {}
        cdef bytes frame = self.next_preface()
        cdef Py_ssize_t end
        cdef const uint8_t* p
        while PyBytes_GET_SIZE(frame) == 0 and not self.oversize:
            end = self.frame_end()
            if end == 0:
                break
            p = start_of(self.buffer) + self.start
            if not self.take(taken, p, end - self.start - FRAME_HEADER):
                frame = self.buffer[self.start:end]
                if p[3] == HEADERS or p[3] == PUSH_PROMISE or p[3] == CONTINUATION:
                    self.in_headers = not p[4] & END_HEADERS
            self.start = end
        if self.oversize and PyBytes_GET_SIZE(frame) == 0:
            frame = self.buffer[self.start:self.start + SHOWN]
            self.buffer = b""
            self.start = 0
        return [((<_Taken>one).stream_id, (<_Taken>one).size, (<_Taken>one).messages)
                for one in taken.values()], frame

    cdef bytes next_preface(self):
        cdef bytes part = b""
        if self.preface:
            part = self.buffer[self.start:self.start + self.preface]
            self.preface -= PyBytes_GET_SIZE(part)
            self.start += PyBytes_GET_SIZE(part)
        return part

    cdef Py_ssize_t frame_end(self) except -1:
        """Where the next frame ends, 0 if that has not come yet or must not."""
        cdef Py_ssize_t left = PyBytes_GET_SIZE(self.buffer) - self.start
        if left < FRAME_HEADER:
            return 0
        cdef const uint8_t* p = start_of(self.buffer) + self.start
        cdef Py_ssize_t length = (<Py_ssize_t>p[0] << 16) | (<Py_ssize_t>p[1] << 8) | <Py_ssize_t>p[2]
        if length > self.max_frame_size:
            self.oversize = length
            return 0
        return self.start + FRAME_HEADER + length if length <= left - FRAME_HEADER else 0

    cdef bint take(self, dict taken, const uint8_t* p, Py_ssize_t length) except -1:
        """Take the frame at `p` out if it is one to be taken out; say whether it was."""
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
        if cutter is not None:
            cutter.cut(p + FRAME_HEADER, length, one.messages)
        return True
