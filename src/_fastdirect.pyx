# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, auto_pickle=False, autotestdict=False
"""Rewrites direct get answers as consumer deliveries: `liftenvelope/_native/direct.py` is the readable twin.

No Python object is created per message. The GIL is released while a piece of input is processed.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdlib cimport free, realloc
from libc.string cimport memchr

from _cursor cimport *
from _nats cimport MESSAGE, Head, get_number, parse_line
from _rows cimport digits, put_bulk

from liftenvelope.errors import UsageError

cdef extern from "Python.h":
    Py_buffer* PyMemoryView_GET_BUFFER(object view)

cdef enum:
    BEGIN = 8              # length of "NATS/1.0"
    # Room for "HMSG ", " $JS.ACK.d.d.1.", dots, blanks, line ends, and the digits of seven numbers.
    AROUND = 64 + 7 * 20
    FIRST_YEAR = 1970
    BEHIND_LAST_YEAR = 2262

# Fields of the header lines that the server adds.
cdef struct Added:
    Slice stream
    Slice subject
    int64_t sequence
    int64_t pending
    int64_t time_ns
    Py_ssize_t own      # size of the message's own headers, without the end of their last line


cdef inline bint is_break(uint8_t c) noexcept nogil:
    return c == 13 or c == 10


cdef bint line_before(const uint8_t* begin, const uint8_t** end, Slice* line) noexcept nogil:
    """Read the line that ends at `end`, and move `end` to the end of the line before; false if there is none."""
    cdef const uint8_t* p = end[0]
    while p > begin and not is_break((p - 1)[0]):
        p -= 1
    if p - begin < 2 or (p - 1)[0] != 10 or (p - 2)[0] != 13:
        return False
    line.p, line.n = p, end[0] - p
    end[0] = p - 2
    return True


cdef bint value_of(const uint8_t* begin, const uint8_t** end, const char* name, Py_ssize_t size,
                   Slice* value) noexcept nogil:
    """Read the value of the header line that ends at `end`; false if it has another name."""
    if not line_before(begin, end, value) or value.n < size or memcmp(value.p, name, <size_t>size) != 0:
        return False
    value.p += size
    value.n -= size
    return True


cdef inline bint number_of(const uint8_t* begin, const uint8_t** end, const char* name, Py_ssize_t size,
                           int64_t* number) noexcept nogil:
    cdef Slice value
    return value_of(begin, end, name, size, &value) and value.n > 0 and get_number(value, number)


cdef inline bint part_of(Slice text, Py_ssize_t at, Py_ssize_t size, int64_t* number) noexcept nogil:
    cdef Slice part
    part.p, part.n = text.p + at, size
    return get_number(part, number)


cdef bint read_moment(Slice text, int64_t* time_ns) noexcept nogil:
    """Convert a UTC time like `2026-01-31T12:00:00.123456789Z` to nanoseconds since 1970; false if it is invalid.

    Years from 1970 to 2261 fit in 64 bits. The days are counted from 1 March, so that the leap day is the last day of
    its year and the lengths of the months follow (153 * month + 2) / 5.
    """
    cdef int64_t year, month, day, hour, minute, second, fraction = 0, years, months, days
    cdef Py_ssize_t places = text.n - 21, i
    if text.n < 20 or text.n == 21 or text.n > 30 or text.p[text.n - 1] != c"Z":
        return False
    if (text.p[4] != c"-" or text.p[7] != c"-" or text.p[10] != c"T" or text.p[13] != c":" or text.p[16] != c":"
            or not (part_of(text, 0, 4, &year) and part_of(text, 5, 2, &month) and part_of(text, 8, 2, &day)
                    and part_of(text, 11, 2, &hour) and part_of(text, 14, 2, &minute)
                    and part_of(text, 17, 2, &second))):
        return False
    if text.n > 20:
        if text.p[19] != c"." or not part_of(text, 20, places, &fraction):
            return False
        for i in range(9 - places):
            fraction *= 10
    if (not FIRST_YEAR <= year < BEHIND_LAST_YEAR or not 1 <= month <= 12 or not 1 <= day <= 31
            or hour > 23 or minute > 59 or second > 59):
        return False
    years, months = (year - 1, month + 9) if month < 3 else (year, month - 3)
    days = 365 * years + years // 4 - years // 100 + years // 400 + (153 * months + 2) // 5 + day - 1
    time_ns[0] = ((days - 719_468) * 86_400 + hour * 3_600 + minute * 60 + second) * 1_000_000_000 + fraction
    return True


cdef inline bint has_blank(Slice s) noexcept nogil:
    return memchr(s.p, 32, <size_t>s.n) != NULL


cdef bint read_added(const uint8_t* p, Py_ssize_t n, Added* out) noexcept nogil:
    """Parse the six lines that the server adds to a message; false if they are not the last lines of the block.

    They are read from the end backwards: a publisher chooses the other lines, which may have the same names, but
    can't put anything after the server's lines.
    """
    cdef const uint8_t* end = p + n - 4
    cdef Slice time
    cdef int64_t ignored
    if n < 4 or memcmp(end, <const char*>b"\r\n\r\n", 4) != 0:
        return False
    if not (number_of(p, &end, b"Nats-Last-Sequence: ", 20, &ignored)
            and number_of(p, &end, b"Nats-Num-Pending: ", 18, &out.pending)
            and value_of(p, &end, b"Nats-Time-Stamp: ", 17, &time)
            and number_of(p, &end, b"Nats-Sequence: ", 15, &out.sequence)
            and value_of(p, &end, b"Nats-Subject: ", 14, &out.subject)
            and value_of(p, &end, b"Nats-Stream: ", 13, &out.stream)):
        return False
    out.own = end - p
    return (out.sequence > 0 and out.subject.n > 0 and not has_blank(out.subject)
            and read_moment(time, &out.time_ns))


cdef inline uint8_t* put_digits(uint8_t* p, int64_t number, uint8_t behind) noexcept nogil:
    cdef Py_ssize_t count = digits(number), i
    for i in range(count - 1, -1, -1):
        p[i] = <uint8_t>(48 + number % 10)
        number //= 10
    p[count] = behind
    return p + count + 1


@cython.final
cdef class DirectFrames:
    """Rewrites direct get answers as consumer deliveries.

    Only complete answers of the subscription are rewritten. take() stops at the first other or incomplete input,
    which the caller feeds again or leaves, so no input is kept here. Deliveries are numbered from 1 without gaps,
    as the readers of consumer deliveries require. Before each answer, fits() reserves an upper bound of its size.
    """

    cdef bytes stream
    cdef Slice name
    cdef int64_t sid
    cdef uint8_t* made      # output of the current take(): n bytes of capacity
    cdef Py_ssize_t n, capacity
    cdef readonly int64_t delivery
    cdef public bint foreign

    def __cinit__(self, bytes stream not None):
        self.stream = stream
        self.name.p, self.name.n = <const uint8_t*><const char*>stream, len(stream)
        self.sid = -1

    def __dealloc__(self):
        free(self.made)

    def follow(self, int64_t sid):
        """Switch to the answers of another subscription."""
        self.sid, self.delivery = sid, 0

    def take(self, view, Py_ssize_t start, Py_ssize_t end):
        """Return the answers as consumer messages, and the start of the first other or incomplete input."""
        held = memoryview(view)
        cdef Py_buffer* data = PyMemoryView_GET_BUFFER(held)
        cdef const uint8_t* p
        cdef Py_ssize_t size
        if not 0 <= start <= end <= data.len:
            raise UsageError(f"{start} to {end} are not a part of {data.len} bytes")
        p = <const uint8_t*>data.buf + start
        self.n = 0
        with nogil:
            size = self.one(p, end - start)
            while size > 0:
                p += size
                size = self.one(p, <const uint8_t*>data.buf + end - p)
        if size < 0:
            raise MemoryError
        return PyBytes_FromStringAndSize(<const char*>self.made, self.n), p - <const uint8_t*>data.buf

    cdef Py_ssize_t one(self, const uint8_t* p, Py_ssize_t n) noexcept nogil:
        """Rewrite the answer at `p`; return its size, 0 for other or incomplete input, -1 if memory ran out."""
        cdef const uint8_t* found = <const uint8_t*>memchr(p, 10, <size_t>n) if n else NULL
        cdef Py_ssize_t line
        cdef Head head
        cdef Added added
        if found == NULL or found == p or (found - 1)[0] != 13 or p[0] != c"H":
            return 0
        line = found - p + 1
        if parse_line(p, line - 2, &head) != MESSAGE or head.sid != self.sid or head.reply.n:
            return 0
        if head.size + 2 > n - line or not read_added(p + line, <Py_ssize_t>head.header_size, &added):
            return 0
        if not self.fits(added.subject.n + added.own + <Py_ssize_t>(head.size - head.header_size) + AROUND):
            return -1
        self.delivery += 1
        self.foreign |= added.stream.n != self.name.n or memcmp(added.stream.p, self.name.p, <size_t>self.name.n) != 0
        self.put(p + line, &head, &added)
        return line + <Py_ssize_t>head.size + 2

    cdef inline bint fits(self, Py_ssize_t more) noexcept nogil:
        cdef Py_ssize_t capacity = self.capacity * 2 + 65_536
        cdef uint8_t* made
        if more <= self.capacity - self.n:
            return True
        if capacity - self.n < more:
            capacity = self.n + more
        made = <uint8_t*>realloc(self.made, <size_t>capacity)
        if made == NULL:
            return False
        self.made, self.capacity = made, capacity
        return True

    cdef inline void put(self, const uint8_t* body, const Head* head, const Added* added) noexcept nogil:
        cdef Py_ssize_t payload = <Py_ssize_t>(head.size - head.header_size)
        cdef uint8_t* p = self.made + self.n
        cdef bint has_own = added.own != BEGIN or memcmp(body, <const char*>b"NATS/1.0", BEGIN) != 0
        if has_own:
            p[0] = c"H"
            p += 1
        p = put_raw(p, <const uint8_t*>"MSG ", 4)
        p = put_raw(p, added.subject.p, added.subject.n)
        p[0] = 32
        p = put_digits(p + 1, self.sid, 32)
        p = put_raw(p, <const uint8_t*>"$JS.ACK.d.d.1.", 14)
        p = put_digits(p, added.sequence, c".")
        p = put_digits(p, self.delivery, c".")
        p = put_digits(p, added.time_ns, c".")
        p = put_digits(p, added.pending, 32)
        if has_own:
            p = put_digits(p, added.own + 4, 32)
        p = put_digits(p, payload + (added.own + 4 if has_own else 0), 13)
        p[0] = 10
        p += 1
        if has_own:
            p = put_raw(p, body, added.own)
            p = put_raw(p, <const uint8_t*>"\r\n\r\n", 4)
        p = put_bulk(p, body + head.header_size, payload)
        p[0] = 13
        p[1] = 10
        self.n = p + 2 - self.made
