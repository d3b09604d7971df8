# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, auto_pickle=False, autotestdict=False
"""Acks for messages stored by JetStream: `liftenvelope/_native/acks.py` is the readable twin with the rules."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.object cimport PyObject

from _cursor cimport *

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(PyObject* text, Py_ssize_t* size) except NULL

from liftenvelope._native.acks import _INTERNAL
from liftenvelope._checks import as_bytes, as_text
from liftenvelope.errors import UsageError

crc32c_init()

cdef tuple INTERNAL = _INTERNAL

cdef enum:
    V1_TOKENS = 9
    V2_TOKENS = 11
    MOST_TOKENS = 12
    LONGEST_INBOX = 2048
    LEADER = 0
    ALL = 1
    SHOWN = 100
    # Room for "PUB ", a blank, a size and two line ends.
    AROUND = 32

cdef struct Place:
    int64_t stream_sequence
    int64_t delivery
    int64_t stored_ns


cdef inline bint sound_inbox(const uint8_t* p, Py_ssize_t n) noexcept nogil:
    """Return true if NATS accepts this as a subject to publish on."""
    cdef Py_ssize_t i, begin = 0
    if n == 0 or n > LONGEST_INBOX:
        return False
    for i in range(n + 1):
        if i < n and (p[i] <= 0x20 or p[i] == 0x7F):
            return False
        if i == n or p[i] == c".":
            if i == begin:
                return False
            if i - begin == 1 and (p[begin] == c"*" or p[begin] == c">"):
                return False
            begin = i + 1
    return True


cdef bint begins_with(const uint8_t* p, Py_ssize_t n, tuple prefixes) except -1:
    """Return true if a subject begins with one of the prefixes."""
    cdef bytes prefix
    for prefix in prefixes:
        if PyBytes_GET_SIZE(prefix) <= n and memcmp(p, PyBytes_AS_STRING(prefix), PyBytes_GET_SIZE(prefix)) == 0:
            return True
    return False


cdef bint allowed_inbox(const uint8_t* p, Py_ssize_t n, tuple prefixes) except -1:
    """Return true if an ack may be sent to this subject.

    The publisher chooses the subject, and the ack is sent with our permissions: a subject that can break the
    protocol line, or that addresses an internal service, must not pass.
    """
    return sound_inbox(p, n) and begins_with(p, n, prefixes) and not begins_with(p, n, INTERNAL)


def is_ack_inbox(inbox, tuple prefixes not None=(b"",)):
    """Return True if an ack may be sent to this subject, which a publisher has chosen."""
    cdef bytes given = inbox if type(inbox) is bytes else as_bytes("inbox", inbox)
    return allowed_inbox(<const uint8_t*>PyBytes_AS_STRING(given), PyBytes_GET_SIZE(given), prefixes)


cdef inline bint get_place(const uint8_t* p, Py_ssize_t n, Place* place) noexcept nogil:
    """Parse stream sequence, delivery sequence and time; false for other reply subjects.

    9 tokens are the short form; 11 or more have domain and account before the stream. Tokens beyond
    MOST_TOKENS are counted, but their starts are not recorded: nothing reads them.
    """
    cdef Py_ssize_t starts[MOST_TOKENS + 1]
    cdef Py_ssize_t i
    cdef int tokens = 1, at
    if n < 8 or memcmp(p, <const char*>"$JS.ACK.", 8) != 0:
        return False
    starts[0] = 0
    for i in range(n):
        if p[i] == c".":
            if tokens < MOST_TOKENS:
                starts[tokens] = i + 1
            tokens += 1
    if tokens < MOST_TOKENS:
        starts[tokens] = n + 1
    at = 5 if tokens == V1_TOKENS else 7
    if at == 7 and tokens < V2_TOKENS:
        return False
    return (
        get_digits(p + starts[at], starts[at + 1] - starts[at] - 1, &place.stream_sequence)
        and get_digits(p + starts[at + 1], starts[at + 2] - starts[at + 1] - 1, &place.delivery)
        and get_digits(p + starts[at + 2], starts[at + 3] - starts[at + 2] - 1, &place.stored_ns)
        and place.stream_sequence > 0 and place.delivery > 0
    )


@cython.final
cdef class Acknowledger:
    """Writes acks for the messages of one partition, as a consumer delivers them.

    Invariant: an ack to `reply` covers no message that was not taken here. Deliveries are numbered
    without gaps, and an ack to JetStream covers all earlier deliveries. After a gap no message is taken, until
    begin() with a consumer that redelivers: otherwise the ack of a later message would cover the missing one,
    and its publisher would never get an ack.
    """

    cdef bytes stream
    cdef bytes partition_subject
    cdef Py_ssize_t max_ack
    cdef tuple prefixes
    cdef readonly bytes reply
    cdef readonly int64_t stream_sequence
    cdef readonly int64_t delivery
    cdef readonly bint gap
    cdef readonly bint repeated
    cdef readonly bytes refused
    # Output buffer, reused by the next call: `used` bytes of `room` are written.
    cdef uint8_t* buffer
    cdef Py_ssize_t room
    cdef Py_ssize_t used
    cdef Py_ssize_t payloads
    cdef Py_ssize_t acks

    def __init__(self, stream, partition_subject, Py_ssize_t max_ack, prefixes=(b"",)):
        self.stream = as_text("stream", stream).encode()
        self.partition_subject = as_text("partition_subject", partition_subject).encode()
        if max_ack < 1:
            raise UsageError(f"max_ack must be at least 1, got {max_ack}")
        self.max_ack = max_ack
        self.prefixes = tuple([as_bytes("prefix", prefix) for prefix in prefixes])
        self.begin()

    def __dealloc__(self):
        PyMem_Free(self.buffer)

    def begin(self, int64_t delivery=0):
        """Start with another consumer, whose last message has this delivery sequence and is acknowledged."""
        self.reply = b""
        self.stream_sequence = 0
        self.delivery = delivery
        self.gap = False
        self.repeated = False
        self.refused = b""

    def take(self, list messages not None, int64_t now_ns):
        """Take messages, in the order of their delivery; return their acks."""
        cdef list others = []
        cdef tuple message
        cdef bytes reply, payload
        cdef Place place
        self.used = self.payloads = self.acks = 0
        self.repeated = False
        self.refused = b""
        for message in messages:
            subject, reply, _, payload = message
            if not get_place(<const uint8_t*>PyBytes_AS_STRING(reply), PyBytes_GET_SIZE(reply), &place):
                others.append(message)
            elif self.is_next(&place, reply):
                self.put_ack(subject, &place, payload, now_ns)
        frames = PyBytes_FromStringAndSize(<const char*>self.buffer, self.used) if self.used else b""
        return frames, self.acks, self.payloads, others

    cdef bint is_next(self, const Place* place, bytes reply) except -1:
        """Record a delivery; return true if there is no gap and the message is new."""
        self.gap = self.gap or place.delivery != self.delivery + 1
        if self.gap:
            return False
        self.delivery = place.delivery
        if place.stream_sequence <= self.stream_sequence:
            self.repeated = True
            return False
        self.stream_sequence = place.stream_sequence
        self.reply = reply
        return True

    cdef int put_ack(self, subject, const Place* place, bytes raw, int64_t now_ns) except -1:
        """Write the ack, if the message gets one. Its exact size is computed first, then written in one pass."""
        cdef const uint8_t* begin = <const uint8_t*>PyBytes_AS_STRING(raw)
        cdef Py_ssize_t n = PyBytes_GET_SIZE(raw), size, subject_n
        cdef MessageFields f
        if not parse_message(payload(begin, n, PUBLISH), begin + n, &f):
            return 0  # no envelope: stored as a plain value
        if f.ack_policy != LEADER and f.ack_policy != ALL:
            return 0
        if not allowed_inbox(f.ack_inbox.p, f.ack_inbox.n, self.prefixes):
            if f.ack_inbox.n:
                self.refused = f.ack_inbox.p[:min(f.ack_inbox.n, SHOWN)]
            return 0
        cdef const uint8_t* subject_p = <const uint8_t*>PyUnicode_AsUTF8AndSize(<PyObject*>subject, &subject_n)
        size = HEADER_LEN + (
            slice_size(PyBytes_GET_SIZE(self.stream)) + slice_size(PyBytes_GET_SIZE(self.partition_subject))
            + slice_size(subject_n) + number_size(place.stream_sequence - 1) + slice_size(f.ack_inbox.n)
            + slice_size(f.correlation_id.n) + number_size(f.ack_policy) + number_size(place.stored_ns)
            + number_size(now_ns)
        )
        if size > self.max_ack:
            return 0
        self.make_room(size + f.ack_inbox.n + AROUND)
        cdef uint8_t* p = self.put_command(self.buffer + self.used, &f.ack_inbox, size)
        p = put_header(p, ACK, False)
        p = put_slice(p, TAG_A_STREAM, <const uint8_t*>PyBytes_AS_STRING(self.stream), PyBytes_GET_SIZE(self.stream))
        p = put_slice(p, TAG_A_PARTITION_SUBJECT, <const uint8_t*>PyBytes_AS_STRING(self.partition_subject),
                      PyBytes_GET_SIZE(self.partition_subject))
        p = put_slice(p, TAG_A_MSG_SUBJECT, subject_p, subject_n)
        p = put_number(p, TAG_A_OFFSET, place.stream_sequence - 1)
        p = put_slice(p, TAG_A_ACK_INBOX, f.ack_inbox.p, f.ack_inbox.n)
        p = put_slice(p, TAG_A_CORRELATION_ID, f.correlation_id.p, f.correlation_id.n)
        p = put_number(p, TAG_A_ACK_POLICY, f.ack_policy)
        p = put_number(p, TAG_A_RECEPTION_TIMESTAMP, place.stored_ns)
        p = put_number(p, TAG_A_COMMIT_TIMESTAMP, now_ns)
        p[0] = c"\r"
        p[1] = c"\n"
        self.used = p + 2 - self.buffer
        self.payloads += size
        self.acks += 1
        return 0

    cdef uint8_t* put_command(self, uint8_t* p, const Slice* inbox, Py_ssize_t size) noexcept:
        cdef uint8_t digits[20]
        cdef int count = 0
        memcpy(p, <const char*>"PUB ", 4)
        p = put_raw(p + 4, inbox.p, inbox.n)
        p[0] = c" "
        p += 1
        while size:
            digits[count] = <uint8_t>(48 + size % 10)
            size //= 10
            count += 1
        while count:
            count -= 1
            p[0] = digits[count]
            p += 1
        p[0] = c"\r"
        p[1] = c"\n"
        return p + 2

    cdef int make_room(self, Py_ssize_t size) except -1:
        cdef Py_ssize_t wanted = self.used + size
        cdef void* grown
        if wanted <= self.room:
            return 0
        wanted += wanted // 2 + 4096
        grown = PyMem_Realloc(self.buffer, <size_t>wanted)
        if grown == NULL:
            raise MemoryError
        self.buffer = <uint8_t*>grown
        self.room = wanted
        return 0
