# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, auto_pickle=False, autotestdict=False
"""Encode rows of Arrow columns as NATS commands, and track their acks: the twin is `liftenvelope/_native/put.py`.

No Python object is created per row or per ack. The GIL is released while a span of rows or acks is processed.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdlib cimport calloc, free
from libc.string cimport memchr

from _cursor cimport *
from _nats cimport get_number
from _rows cimport *

from os import urandom

from liftenvelope.errors import UsageError

cdef extern from "Python.h":
    Py_buffer* PyMemoryView_GET_BUFFER(object view)

sip_seed(urandom(16))

cdef enum:
    BEGIN = 10           # length of "NATS/1.0" and its line end
    CRLF_SIZE = 2
    LONGEST_SUBJECT = 3_500
    NUMBER_DIGITS = 18
    SIZE_DIGITS = 9


cdef Slice span(object view):
    """Return the memory of a memoryview."""
    cdef Slice s
    s.p = <const uint8_t*>PyMemoryView_GET_BUFFER(view).buf
    s.n = PyMemoryView_GET_BUFFER(view).len
    return s


cdef object viewed(object buffer):
    return memoryview(b"" if buffer is None else buffer)


cdef object viewed_as(object buffer, Py_ssize_t width):
    """Return a view of numbers of this width, of a copy if the buffer is not aligned to it."""
    view = viewed(buffer)
    return memoryview(bytes(view)) if <size_t>span(view).p % <size_t>width else view


cdef inline Slice slice_of(bytes text):
    cdef Slice s
    s.p = <const uint8_t*>PyBytes_AS_STRING(text)
    s.n = PyBytes_GET_SIZE(text)
    return s


cdef inline int require(bint sound, str what) except -1:
    if not sound:
        raise UsageError(f"the Arrow array is broken: {what}; its validate(full=True) says more")
    return 0


cdef inline uint8_t* put_span(uint8_t* p, Slice s) noexcept nogil:
    return put_raw(p, s.p, s.n)


cdef inline uint8_t* put_crlf(uint8_t* p) noexcept nogil:
    p[0] = 13
    p[1] = 10
    return p + CRLF_SIZE


cdef inline uint8_t* put_decimal(uint8_t* p, Py_ssize_t number) noexcept nogil:
    cdef Py_ssize_t count = digits(number), i
    for i in range(count - 1, -1, -1):
        p[i] = <uint8_t>(48 + number % 10)
        number //= 10
    return p + count


@cython.final
cdef class Column:
    """Column of byte strings without nulls, read in place.

    The offsets are checked once, on construction: they ascend and stay within the data. row() and size() rely
    on that and check nothing. `keep` holds the buffers for as long as the pointers are used.
    """

    cdef object keep
    cdef const int64_t* ends
    cdef const uint8_t* data
    cdef readonly Py_ssize_t length

    def __cinit__(self, Py_ssize_t length, Py_ssize_t first, offsets, data):
        cdef Slice ends, content
        if length == 0:
            return
        self.keep = viewed_as(offsets, 8), viewed(data)
        ends, content = span(self.keep[0]), span(self.keep[1])
        require(length > 0 and 0 <= first and first < ends.n // 8 - length, "its offsets are too short")
        self.ends = <const int64_t*>ends.p + first
        self.data = content.p
        require(ascending(self.ends, length, content.n), "its offsets point outside of its data")
        self.length = length

    cdef inline Py_ssize_t size(self, Py_ssize_t i) noexcept nogil:
        return self.ends[i + 1] - self.ends[i]

    cdef inline Slice row(self, Py_ssize_t i) noexcept nogil:
        cdef Slice s
        s.p = self.data + self.ends[i]
        s.n = self.ends[i + 1] - self.ends[i]
        return s


@cython.final
cdef class Form:
    """Parts of a command that do not come from the columns: reply subject and added headers."""

    cdef object keep
    cdef Slice reply, reply_tail, id_head, count_head, closing

    def __cinit__(self, bytes reply=b"", bytes reply_tail=b"", bytes id_head=b"", bytes count_head=b"",
                  bytes closing=b""):
        self.keep = reply, reply_tail, id_head, count_head, closing
        self.reply, self.reply_tail = slice_of(reply), slice_of(reply_tail)
        self.id_head, self.count_head, self.closing = slice_of(id_head), slice_of(count_head), slice_of(closing)

    cdef inline Py_ssize_t lines_size(self, Py_ssize_t number, Py_ssize_t count) noexcept nogil:
        cdef Py_ssize_t size = self.closing.n
        if self.id_head.n:
            size += self.id_head.n + digits(number) + CRLF_SIZE
        if self.count_head.n:
            size += self.count_head.n + digits(count) + CRLF_SIZE
        return size

    cdef inline uint8_t* put_lines(self, uint8_t* p, Py_ssize_t number, Py_ssize_t count) noexcept nogil:
        if self.id_head.n:
            p = put_crlf(put_decimal(put_span(p, self.id_head), number))
        if self.count_head.n:
            p = put_crlf(put_decimal(put_span(p, self.count_head), count))
        return put_span(p, self.closing)


@cython.final
cdef class Commands:
    """Rows to encode as NATS commands, all at once or in spans.

    encode() measures the span, allocates exactly that many bytes, and writes them. size() and put() must agree
    byte for byte: put() does not check for room.
    """

    cdef Column values, subjects, lines
    cdef object keep
    cdef const int32_t* which   # index of each row's subject; NULL: subject i, or the single one
    cdef bint single
    cdef readonly Py_ssize_t length

    def __cinit__(self, Column values not None, Column subjects not None, which, Column lines):
        cdef Slice indices
        cdef Py_ssize_t i
        cdef bint sound = True
        self.values, self.subjects, self.lines, self.length = values, subjects, lines, values.length
        self.single = which is None and subjects.length == 1
        if which is not None:
            self.keep = viewed_as(which, 4)
            indices = span(self.keep)
            require(indices.n >= self.length * 4, "its indices are too few")
            self.which = <const int32_t*>indices.p
            for i in range(self.length):
                sound &= 0 <= self.which[i] < subjects.length
            require(sound, "an index has no item")
        elif not self.single:
            require(subjects.length == self.length, "its subjects are too few")
        require(lines is None or lines.length == self.length, "its headers are too few")

    cdef inline Slice subject(self, Py_ssize_t i) noexcept nogil:
        if self.which != NULL:
            return self.subjects.row(self.which[i])
        return self.subjects.row(0 if self.single else i)

    cdef inline Py_ssize_t block_size(self, Py_ssize_t i, Form form, Py_ssize_t number, Py_ssize_t count) noexcept nogil:
        """Return the size of the header block in bytes, 0 without headers."""
        cdef Py_ssize_t size = form.lines_size(number, count)
        if self.lines is not None:
            size += self.lines.size(i)
        return BEGIN + size + CRLF_SIZE if size else 0

    def subject_at(self, Py_ssize_t i):
        """Return the subject of a row."""
        if not 0 <= i < self.length:
            raise IndexError(i)
        cdef Slice s = self.subject(i)
        return PyBytes_FromStringAndSize(<const char*>s.p, s.n)

    def oversize(self, Py_ssize_t limit, Form form not None, Py_ssize_t number, Py_ssize_t count):
        """Return the first row larger than the limit, headers included, and its size; (-1, 0) for none."""
        cdef Py_ssize_t i, size = 0
        cdef bint found = False
        with nogil:
            for i in range(self.length):
                size = self.values.size(i) + self.block_size(i, form, number + i, count + i)
                if size > limit:
                    found = True
                    break
        if not found:
            return -1, 0
        return i, size

    def reach(self, Py_ssize_t start, Py_ssize_t stop, Py_ssize_t nbytes):
        """Return the end of the longest span from `start` with at most `nbytes` bytes, or of one row."""
        cdef Py_ssize_t at = start, left = nbytes
        if not 0 <= start <= stop <= self.length:
            raise UsageError(f"{start} to {stop} are not rows of {self.length}")
        while at < stop:
            left -= self.values.size(at) + self.subject(at).n
            if self.lines is not None:
                left -= self.lines.size(at)
            if left < 0 and at > start:
                break
            at += 1
        return at

    def encode(self, Py_ssize_t start, Py_ssize_t stop, Form form not None, Py_ssize_t number, Py_ssize_t count):
        """Encode the commands of rows `start` to `stop`."""
        cdef Py_ssize_t i, size = 0
        cdef bytes found
        cdef uint8_t* p
        if not 0 <= start <= stop <= self.length:
            raise UsageError(f"{start} to {stop} are not rows of {self.length}")
        with nogil:
            for i in range(start, stop):
                size += self.size(i, form, number + i - start, count + i - start)
        found = PyBytes_FromStringAndSize(NULL, size)
        p = <uint8_t*>PyBytes_AS_STRING(found)
        with nogil:
            for i in range(start, stop):
                p = self.put(p, i, form, number + i - start, count + i - start)
        return found

    cdef inline Py_ssize_t size(self, Py_ssize_t i, Form form, Py_ssize_t number, Py_ssize_t count) noexcept nogil:
        cdef Py_ssize_t payload = self.values.size(i), block = self.block_size(i, form, number, count), n
        n = command_size(self.subject(i).n, block + payload) + block + payload
        if form.reply.n:
            n += 1 + form.reply.n + digits(count) + form.reply_tail.n
        return n + 2 + digits(block) if block else n

    cdef inline uint8_t* put(self, uint8_t* p, Py_ssize_t i, Form form, Py_ssize_t number,
                             Py_ssize_t count) noexcept nogil:
        cdef Slice value = self.values.row(i)
        cdef Py_ssize_t block = self.block_size(i, form, number, count)
        if block:
            p[0] = c"H"
            p += 1
        p = put_raw(p, <const uint8_t*>"PUB ", 4)
        p = put_span(p, self.subject(i))
        p[0] = 32
        p += 1
        if form.reply.n:
            p = put_span(put_decimal(put_span(p, form.reply), count), form.reply_tail)
            p[0] = 32
            p += 1
        if block:
            p = put_decimal(p, block)
            p[0] = 32
            p += 1
        p = put_crlf(put_decimal(p, block + value.n))
        if block:
            p = put_raw(p, <const uint8_t*>"NATS/1.0\r\n", BEGIN)
            if self.lines is not None:
                p = put_span(p, self.lines.row(i))
            p = put_crlf(form.put_lines(p, number, count))
        return put_crlf(put_bulk(p, value.p, value.n))


# Subjects and headers

cdef inline bint is_plain(Slice s) noexcept nogil:
    cdef Py_ssize_t i, begin = 0
    if not 0 < s.n <= LONGEST_SUBJECT:
        return False
    for i in range(s.n + 1):
        if i == s.n or s.p[i] == c".":
            if i == begin or (i == begin + 1 and (s.p[begin] == c"*" or s.p[begin] == c">")):
                return False
            begin = i + 1
        elif not 33 <= s.p[i] <= 126:
            return False
    return True


def plain_subjects(Column subjects not None, Py_ssize_t start):
    """Return the first subject from `start` on that is not plain, or -1. Other subjects may still be valid."""
    cdef Py_ssize_t i = start if start > 0 else 0
    with nogil:
        while i < subjects.length and is_plain(subjects.row(i)):
            i += 1
    return i if i < subjects.length else -1


cdef inline bint is_header(Slice name, Slice value) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(name.n):
        if not 33 <= name.p[i] <= 126 or name.p[i] == c":":
            return False
    return (name.n > 0 and memchr(value.p, 13, <size_t>value.n) == NULL
            and memchr(value.p, 10, <size_t>value.n) == NULL and valid_utf8(value.p, value.n))


cdef inline Py_ssize_t line_size(Slice name, Slice value) noexcept nogil:
    return name.n + value.n + 4


cdef inline uint8_t* put_line(uint8_t* p, Slice name, Slice value) noexcept nogil:
    p = put_span(p, name)
    p[0] = c":"
    p[1] = 32
    return put_crlf(put_span(p + 2, value))


@cython.final
cdef class _Dropped:
    """Names of headers to drop, comparable without the GIL."""

    cdef tuple keep
    cdef Slice items[8]
    cdef Py_ssize_t count

    def __cinit__(self, tuple names):
        cdef Py_ssize_t i
        if len(names) > 8:
            raise UsageError(f"{len(names)} names: expected 8 at most")
        self.keep, self.count = names, len(names)
        for i in range(self.count):
            self.items[i] = slice_of(names[i])

    cdef inline bint has(self, Slice name) noexcept nogil:
        cdef Py_ssize_t i
        for i in range(self.count):
            if same_bytes(name, self.items[i]):
                return True
        return False


def header_lines(Py_ssize_t rows, Py_ssize_t first, ends, Column names not None, Column values not None,
                 tuple dropped not None):
    """Encode the headers of each row as lines.

    Returns the first row with a header that can't be sent (or -1), the offsets of the rows' lines, and the
    lines. Two passes over the same HeaderSet logic: measure_lines() checks and measures, put_all_lines() writes.
    """
    cdef object view = viewed_as(ends, 4)
    cdef const int32_t* begins = <const int32_t*>span(view).p
    cdef _Dropped left_out = _Dropped(dropped)
    cdef HeaderSet seen
    cdef bytes offsets, lines
    cdef Py_ssize_t bad, entries = min(names.length, values.length)
    if rows:
        require(rows > 0 and 0 <= first and first < span(view).n // 4 - rows, "its offsets are too short")
        begins += first
        require(ascending(begins, rows, entries), "its offsets point outside of its entries")
    offsets = PyBytes_FromStringAndSize(NULL, (rows + 1) * 8)
    cdef int64_t* into = <int64_t*>PyBytes_AS_STRING(offsets)
    cdef uint8_t* p
    memset(&seen, 0, sizeof(HeaderSet))
    try:
        with nogil:
            bad = measure_lines(rows, begins, names, values, left_out, &seen, into)
        if bad < -1:
            raise MemoryError
        if bad >= 0:
            return bad, b"", b""
        lines = PyBytes_FromStringAndSize(NULL, into[rows])
        p = <uint8_t*>PyBytes_AS_STRING(lines)
        with nogil:
            bad = put_all_lines(rows, begins, names, values, left_out, &seen, p)
        if bad < -1:
            raise MemoryError
    finally:
        free_headers(&seen)
    return -1, offsets, lines


cdef inline bint see(HeaderSet* seen, Column names, Column values, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef Py_ssize_t j
    if not begin_headers(seen, end - begin):
        return False
    for j in range(begin, end):
        add_header(seen, names.row(j), values.row(j))
    return True


cdef Py_ssize_t measure_lines(Py_ssize_t rows, const int32_t* begins, Column names, Column values, _Dropped dropped,
                              HeaderSet* seen, int64_t* offsets) noexcept nogil:
    """Compute the end of each row's lines; return the first bad row, -1 for none, -2 if memory ran out."""
    cdef Py_ssize_t i, j
    cdef int64_t size = 0
    offsets[0] = 0
    for i in range(rows):
        if begins[i] < begins[i + 1]:
            if not see(seen, names, values, begins[i], begins[i + 1]):
                return -2
            for j in range(seen.count):
                if not is_header(seen.names[j], seen.values[j]):
                    return i
                if not dropped.has(seen.names[j]):
                    size += line_size(seen.names[j], seen.values[j])
        offsets[i + 1] = size
    return -1


cdef Py_ssize_t put_all_lines(Py_ssize_t rows, const int32_t* begins, Column names, Column values, _Dropped dropped,
                              HeaderSet* seen, uint8_t* p) noexcept nogil:
    cdef Py_ssize_t i, j
    for i in range(rows):
        if begins[i] < begins[i + 1]:
            if not see(seen, names, values, begins[i], begins[i + 1]):
                return -2
            for j in range(seen.count):
                if not dropped.has(seen.names[j]):
                    p = put_line(p, seen.names[j], seen.values[j])
    return -1


# Acks

cdef inline Py_ssize_t run_of_digits(const uint8_t* p, const uint8_t* end, Py_ssize_t most, int64_t* number) noexcept nogil:
    """Return the number of digits at `p`, and their value; 0 if there are none or more than `most`."""
    cdef Slice word
    word.p = p
    word.n = 0
    while p + word.n < end and word.n <= most and 48 <= p[word.n] <= 57:
        word.n += 1
    return word.n if word.n <= most and get_number(word, number) else 0


@cython.final
cdef class Acks:
    """Ack tracker for consecutively numbered publishes.

    Invariant: `floor` is the ack floor. Only numbers from `floor` to `floor + ring - 1` are counted, so that
    each has a byte of its own in `beyond`, at number modulo ring. Numbers acked out of order are marked there
    until the floor reaches them; the byte at the floor itself is always 0 between calls. A number below the
    floor, or marked, is a repeated ack and changes nothing.
    """

    cdef readonly int64_t floor, acked, duplicates, first, last
    cdef int64_t ring
    cdef uint8_t* beyond   # 1 if acked, by number modulo ring, from the floor on
    cdef bint empty
    cdef bytes begin, middle, head

    def __cinit__(self, bytes inbox not None, int64_t sid, int64_t number, Py_ssize_t size, bint empty):
        if number < 0 or size <= 0:
            raise UsageError(f"number must be at least 0 and size at least 1, got {number} and {size}")
        self.floor, self.ring, self.empty = number, size, empty
        self.beyond = <uint8_t*>calloc(<size_t>size, 1)
        if self.beyond == NULL:
            raise MemoryError
        self.head = b""
        self.follow(inbox, sid)

    def __dealloc__(self):
        free(self.beyond)

    def follow(self, bytes inbox not None, int64_t sid):
        """Switch to another subscription."""
        self.begin, self.middle = b"MSG " + inbox, b" %d " % sid

    def learn(self, bytes head not None):
        """Set the bytes of an ack before the sequence, so that feed() recognises acks."""
        self.head = head

    def take(self, int64_t number, int64_t sequence, bint duplicate):
        """Count an ack; return True if it is the first for that number."""
        return bool(self.count(number, sequence, duplicate))

    cdef inline bint count(self, int64_t number, int64_t sequence, bint duplicate) noexcept nogil:
        if not self.floor <= number < self.floor + self.ring or self.beyond[number % self.ring]:
            return False
        self.acked += 1
        self.duplicates += duplicate
        if sequence:
            if sequence < self.first or not self.first:
                self.first = sequence
            if sequence > self.last:
                self.last = sequence
        self.beyond[number % self.ring] = 1
        while self.beyond[self.floor % self.ring]:
            self.beyond[self.floor % self.ring] = 0
            self.floor += 1
        return True

    def feed(self, view, Py_ssize_t start, Py_ssize_t end):
        """Count the received acks; return the start of the first other or incomplete input."""
        held = memoryview(view)
        cdef Slice data = span(held), begin = slice_of(self.begin), middle = slice_of(self.middle)
        cdef Slice head = slice_of(self.head)
        cdef const uint8_t* p
        cdef const uint8_t* next
        if not 0 <= start <= end <= data.n:
            raise UsageError(f"{start} to {end} are not a part of {data.n} bytes")
        p = data.p + start
        with nogil:
            while True:
                next = self.one(p, data.p + end, begin, middle, head)
                if next == NULL:
                    break
                p = next
        return p - data.p

    cdef const uint8_t* one(self, const uint8_t* p, const uint8_t* end, Slice begin, Slice middle,
                            Slice head) noexcept nogil:
        """Count the ack at `p`; return the position after it, NULL for other or incomplete input.

        An ack is counted only once all of its bytes, line end included, were seen. Input that is returned to
        the caller therefore has changed nothing, and may be fed again with more bytes.
        """
        cdef int64_t number = 0, size = 0, sequence = 0
        cdef bint duplicate = False
        cdef Py_ssize_t n
        if end - p < begin.n or memcmp(p, begin.p, <size_t>begin.n) != 0:
            return NULL
        p += begin.n
        n = run_of_digits(p, end, NUMBER_DIGITS, &number)
        p += n
        if not n or end - p < middle.n or memcmp(p, middle.p, <size_t>middle.n) != 0:
            return NULL
        p += middle.n
        n = run_of_digits(p, end, SIZE_DIGITS, &size)
        p += n
        if not n or end - p < CRLF_SIZE or p[0] != 13 or p[1] != 10:
            return NULL
        p += CRLF_SIZE
        if end - p < size + CRLF_SIZE or p[size] != 13 or p[size + 1] != 10:
            return NULL
        if not self.read(p, size, head, &sequence, &duplicate):
            return NULL
        self.count(number, sequence, duplicate)
        return p + size + CRLF_SIZE

    cdef inline bint read(self, const uint8_t* p, Py_ssize_t size, Slice head, int64_t* sequence,
                          bint* duplicate) noexcept nogil:
        cdef Py_ssize_t n
        if size == 0:
            return self.empty
        if not head.n or size < head.n or memcmp(p, head.p, <size_t>head.n) != 0:
            return False
        p += head.n
        size -= head.n
        n = run_of_digits(p, p + size, NUMBER_DIGITS, sequence)
        if not n or p[0] == 48:
            return False
        p += n
        size -= n
        if size == 1 and p[0] == c"}":
            return True
        duplicate[0] = True
        return ((size == 18 and memcmp(p, <const char*>b',"duplicate":true}', 18) == 0)
                or (size == 19 and memcmp(p, <const char*>b',"duplicate": true}', 19) == 0))
