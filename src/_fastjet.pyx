# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, auto_pickle=False, autotestdict=False
"""Table of JetStream publishes that wait for acks. `liftenvelope/_native/jet.py` is the readable twin."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_GET_SIZE, PyTuple_SET_ITEM
from libc.math cimport INFINITY, NAN, floor
from libc.string cimport memcmp, memcpy

from _tuples cimport new_tuple

from liftenvelope._deadlines import DeadlineBuckets, repack
from liftenvelope.errors import UsageTypeError

cdef extern from "Python.h":
    object PyUnicode_FromStringAndSize(const char* text, Py_ssize_t size)
    object PyUnicode_Substring(object text, Py_ssize_t start, Py_ssize_t end)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)
    object PyObject_Call(object function, tuple args, dict keywords)
    void PyObject_GC_UnTrack(PyObject* item)

cdef enum:
    FORMS = 1_024
    MOST_DIGITS = 18  # 18 digits fit in 63 bits
    NUMBER = 24       # room for the digits of any 64-bit number
    PARTS = 4

cdef double RESOLUTION = 0.05
cdef bytes SEQUENCE = b'"seq"'
#: Field types of acks that are remembered: they can't lead back to the ack (see numbered()).
cdef frozenset ATOMS = frozenset((str, int, bool, type(None)))


cdef inline Py_ssize_t write_number(char* end, unsigned long long number) noexcept nogil:
    """Write a number that ends at `end`; return the number of digits."""
    cdef char* p = end
    while True:
        p -= 1
        p[0] = <char>(c'0' + <char>(number % 10))
        number //= 10
        if not number:
            return end - p


cdef inline char* put(char* p, const char* text, Py_ssize_t size) noexcept nogil:
    memcpy(p, text, <size_t>size)
    return p + size


@cython.final
cdef class AckReader:
    """Parses acks. The acks of one stream differ only in the last number, so only that number is parsed.

    Invariant: `known` maps the bytes before the last number to an ack that the full parser (`slow`) read from a
    message with the same bytes and a plain number after them. `head` and `pattern` are its last entry used. Any
    other input goes to the full parser.
    """

    cdef type ack_type
    cdef object slow
    cdef dict known
    cdef bytes head      # bytes before the number in the last ack
    cdef tuple pattern   # fields of that ack

    def __init__(self, ack_type, read):
        if not (isinstance(ack_type, type) and issubclass(ack_type, tuple)):
            raise UsageTypeError("ack_type must be a named tuple")
        self.ack_type = ack_type
        self.slow = read
        self.known = {}

    def __call__(self, bytes data not None):
        """Parse an ack; return it, or the error that it reports."""
        return self.read(data)

    cdef object read(self, bytes data):
        cdef const char* p = PyBytes_AS_STRING(data)
        cdef Py_ssize_t n = PyBytes_GET_SIZE(data), at
        cdef long long number
        if self.head is not None:
            at = PyBytes_GET_SIZE(self.head)
            if n > at + 2 and p[at] == c':' and memcmp(p, PyBytes_AS_STRING(self.head), <size_t>at) == 0:
                number = last_number(p + at + 1, p + n)
                if number >= 0:
                    return self.numbered(number)
        return self.look(data)

    cdef object look(self, bytes data):
        """Parse an ack that differs from the last one in more than the number."""
        cdef bytes head, tail
        head, _, tail = data.rpartition(b":")
        cdef const char* p = PyBytes_AS_STRING(tail)
        cdef long long number = last_number(p, p + PyBytes_GET_SIZE(tail))
        cdef tuple pattern
        if number >= 0:
            pattern = self.known.get(head)
            if pattern is not None:
                self.head, self.pattern = head, pattern
                return self.numbered(number)
        outcome = self.slow(data)
        if number >= 0 and head.endswith(SEQUENCE) and type(outcome) is self.ack_type and outcome[1] == number:
            pattern = tuple(outcome)
            if ATOMS.issuperset(map(type, pattern)):
                if len(self.known) >= FORMS:
                    self.known.clear()
                self.known[head] = pattern
                self.head, self.pattern = head, pattern
        return outcome

    cdef object numbered(self, long long number):
        """Return an ack like `pattern` with this number. The constructor is bypassed: it takes half of the time."""
        cdef Py_ssize_t i, size = PyTuple_GET_SIZE(self.pattern)
        cdef object item, ack = new_tuple(self.ack_type, size)
        for i in range(size):
            item = number if i == 1 else <object>PyTuple_GET(self.pattern, i)
            Py_INCREF(item)
            PyTuple_SET_ITEM(ack, i, item)
        # The fields are atoms, so the ack is in no cycle and needs no tracking, like such a plain tuple. Untracked acks
        # save a third of the time in a program that keeps them.
        PyObject_GC_UnTrack(<PyObject*>ack)
        return ack


cdef extern from "Python.h":
    PyObject* PyTuple_GET "PyTuple_GET_ITEM"(object items, Py_ssize_t i)


cdef inline long long last_number(const char* p, const char* end) noexcept nogil:
    """Parse `<number>}` as the whole input from `p` to `end`; return -1 for anything else."""
    cdef long long number = 0
    if end - p < 2 or end - p > MOST_DIGITS + 1 or (end - 1)[0] != c'}':
        return -1
    if p[0] == c'0' and end - p > 2:  # JSON has no such numbers
        return -1
    while p < end - 1:
        if not c'0' <= p[0] <= c'9':
            return -1
        number = number * 10 + (p[0] - c'0')
        p += 1
    return number


@cython.final
cdef class PublishTable:
    """Futures of publishes, by the tokens of their acks and by their deadlines.

    Invariant: a publish is in exactly one bucket of deadlines, and `index` maps its token to that bucket. Each
    publish leaves both at once, whether it ends by an ack, an expiry or a withdrawal. Tokens are never reused, so a
    late or duplicate ack finds nothing.

    `bucket` caches the bucket of the time slice `slice`, because most publishes follow each other within one. It is
    dropped (`slice` = NaN, equal to no slice) whenever `deadlines` may have let the bucket go.
    """

    cdef Py_ssize_t at
    cdef AckReader reader        # read_ack if it is an AckReader, to skip a Python call; else None
    cdef object read_ack
    cdef object refused
    cdef object deadlines
    cdef dict bucket
    cdef double slice
    cdef dict index
    cdef unsigned long long last
    cdef readonly str token

    def __init__(self, str inbox not None, read_ack, refused):
        self.at = PyUnicode_GET_LENGTH(inbox)
        self.reader = read_ack if type(read_ack) is AckReader else None
        self.read_ack = read_ack
        self.refused = refused
        self.deadlines = DeadlineBuckets(RESOLUTION)
        self.bucket = {}
        self.slice = NAN
        self.index = {}
        self.last = 0
        self.token = ""

    def __len__(self):
        return len(self.index)

    def enter(self, future, double deadline, head, block, body):
        """Add a publish; return the command that sends it."""
        if type(head) is not bytes or type(block) is not bytes or type(body) is not bytes:
            raise UsageTypeError("head, block and body must be bytes")
        cdef double number = floor(deadline / RESOLUTION)
        if number != self.slice:
            self.bucket = self.deadlines.bucket(deadline)
            self.slice = number
        cdef char digits[NUMBER]
        self.last += 1
        cdef Py_ssize_t size = write_number(digits + NUMBER, self.last)
        self.token = PyUnicode_FromStringAndSize(digits + NUMBER - size, size)
        self.index[self.token] = self.bucket
        self.bucket[self.token] = future
        return self.frame(head, digits + NUMBER - size, size, block, body)

    cdef bytes frame(self, bytes head, const char* token, Py_ssize_t token_size, bytes block, bytes body):
        cdef Py_ssize_t headed = PyBytes_GET_SIZE(block), n = PyBytes_GET_SIZE(body)
        cdef char block_size[NUMBER]
        cdef char total[NUMBER]
        cdef Py_ssize_t block_digits = write_number(block_size + NUMBER, <unsigned long long>headed)
        cdef Py_ssize_t digits = write_number(total + NUMBER, <unsigned long long>(headed + n))
        cdef Py_ssize_t size = PyBytes_GET_SIZE(head) + token_size + 1 + digits + 2 + headed + n + 2
        if headed:
            size += 2 + block_digits
        cdef bytes frame = PyBytes_FromStringAndSize(NULL, size)
        cdef char* p = PyBytes_AS_STRING(frame)
        if headed:
            p = put(p, b"H", 1)
        p = put(p, PyBytes_AS_STRING(head), PyBytes_GET_SIZE(head))
        p = put(p, token, token_size)
        if headed:
            p = put(p, b" ", 1)
            p = put(p, block_size + NUMBER - block_digits, block_digits)
        p = put(p, b" ", 1)
        p = put(p, total + NUMBER - digits, digits)
        p = put(p, b"\r\n", 2)
        p = put(p, PyBytes_AS_STRING(block), headed)
        p = put(p, PyBytes_AS_STRING(body), n)
        put(p, b"\r\n", 2)
        return frame

    def withdraw(self, str token not None):
        """Remove a publish that was not sent. Return True if it was in the table."""
        return self.pop(token) is not None

    def settle(self, list messages not None):
        """End the publishes answered by messages; return the number of publishes removed from the table."""
        cdef Py_ssize_t settled = 0
        cdef tuple message
        for message in messages:
            if PyTuple_GET_SIZE(message) != PARTS:
                raise UsageTypeError("a message must have a subject, a reply, headers and a payload")
            settled += self.end(message[0], message[2], message[3])
        return settled

    def settle_one(self, str subject not None, headers, bytes data not None):
        """End the publish answered by a message. Return 1, or 0 if it answers none."""
        return self.end(subject, headers, data)

    cdef int end(self, str subject, headers, bytes data) except -1:
        future = self.pop(PyUnicode_Substring(subject, self.at, PyUnicode_GET_LENGTH(subject)))
        if future is None:
            return 0
        if future.done():
            return 1
        if headers:
            outcome = self.refused(future, headers)
            if outcome is None:
                return 1
        elif self.reader is not None:
            outcome = self.reader.read(data)
        else:
            outcome = self.read_ack(data)
        # Before the end: callers that keep their futures must not keep the payloads too.
        future.kept = None
        # The garbage collector keeps tracking the future, unlike its ack. The future refers to its event loop, and an
        # exception handler of the loop may lead back to it. Such a cycle is never freed if the future is untracked.
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
        return 1

    cdef object pop(self, str token):
        cdef dict bucket = self.index.pop(token, None)
        if bucket is None:
            return None
        future = bucket.pop(token)
        # An emptied dict keeps its memory, which may be that of the largest burst; clear() frees it.
        if not bucket:
            bucket.clear()
            if not self.index:
                self.index.clear()
        return future

    def waiting(self):
        """Return the publishes that have not ended, with their tokens, in the order in which they were entered."""
        cdef dict bucket
        return [(bucket[token], token) for token, bucket in self.index.items()]

    def expire(self, double now):
        """Remove the publishes whose deadlines have passed; return them with their tokens, earliest first."""
        cdef dict bucket
        cdef list expired = []
        self.slice = NAN  # the cached bucket may be among the expired ones
        for bucket in self.deadlines.pop_due(now):
            for token, future in bucket.items():
                del self.index[token]
                expired.append((future, token))
        repack(self.index)
        return expired

    def expire_all(self):
        """Remove every publish; return them with their tokens."""
        return self.expire(INFINITY)

    def next_expiry(self):
        """Return the time when expire() next has work; None if nothing is outstanding."""
        self.slice = NAN  # next_end() drops empty buckets, perhaps the cached one
        return self.deadlines.next_end()


@cython.final
cdef class QuickSender:
    """Publishes on a connection that is up and has room; leaves every other publish to the caller.

    Invariant: send() either does all of a publish, or returns None and has changed nothing.
    """

    cdef PublishTable table
    cdef object nc, future_type, loop, clock, timer
    cdef dict heads, retries, keywords
    cdef Py_ssize_t most
    cdef int connected

    def __init__(self, PublishTable table not None, nc, future_type, loop, timer, *, clock, dict heads not None,
                 dict retries not None, Py_ssize_t max_outstanding):
        self.table, self.nc, self.future_type, self.loop, self.timer = table, nc, future_type, loop, timer
        self.heads, self.retries, self.most = heads, retries, max_outstanding
        self.clock, self.keywords = clock, {"loop": loop}
        self.connected = nc.CONNECTED

    def send(self, subject, bytes body not None, bytes block not None, double seconds, attempts, wait):
        """Publish a message; return its future, or None if the caller has to check or to wait first."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(block) + PyBytes_GET_SIZE(body)
        cdef object nc = self.nc
        cdef bytes head = self.heads.get(subject) if type(subject) is str else None
        if (
            head is None
            or len(self.table.index) + len(self.retries) >= self.most
            or nc._status != self.connected
            or nc._pending_data_size >= nc._max_pending_size
            or type(nc._max_payload) is not int  # the server may have sent anything
            or size > nc._max_payload
        ):
            return None
        cdef double deadline = self.clock() + seconds
        future = PyObject_Call(self.future_type, (), self.keywords)
        future.subject, future.before = subject, nc._err
        future.kept = (deadline, head, block, body, attempts, wait) if attempts else None
        cdef bytes frame = self.table.enter(future, deadline, head, block, body)
        if deadline < self.timer.at:
            self.timer.rearm()
        nc._pending.append(frame)
        nc._pending_data_size += PyBytes_GET_SIZE(frame)
        stats = nc.stats
        stats["out_msgs"] += 1
        stats["out_bytes"] += size
        queue = nc._flush_queue
        if queue.empty():
            queue.put_nowait(self.loop.create_future())
        return future
