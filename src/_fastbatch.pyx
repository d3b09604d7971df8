# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, auto_pickle=False, autotestdict=False
"""Codec for batches of envelopes: Arrow columns or Python sequences in, Arrow buffers or NATS frames out.

Input is checked once and then read in place, through `row_at()`. The loops over the rows use no Python object
and run without the GIL. The twin is `liftenvelope/_native/batch.py`; `liftenvelope/arrow.py` and
`liftenvelope/nats/` are the callers.

Design choices from profiles, with rows of 100 bytes. Sizes are summed column by column, because summing row by row
cost 5 ns per row. Four more costs were seen as shares of a profile and removed together: slices of all rows made in
advance, with the pages that the system maps for them; clearing fields by memset; memcpy of a few bytes; reaching
the state of a column through another object. Large batches are bound by the memory that they write: see
`put_bulk()`.
"""

cimport cython
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from libc.stdlib cimport calloc, free, malloc

from _cursor cimport *
from _rows cimport *

cdef extern from "Python.h":
    Py_buffer* PyMemoryView_GET_BUFFER(object view)
    PyObject* PyTuple_GET_ITEM(tuple items, Py_ssize_t i)
    const char* PyUnicode_AsUTF8AndSize(PyObject* text, Py_ssize_t* size)
    bint PyUnicode_CheckExact(PyObject* item)
    bint PyUnicode_IS_COMPACT_ASCII(PyObject* text)
    const uint8_t* PyUnicode_1BYTE_DATA(PyObject* text)
    Py_ssize_t PyUnicode_GET_LENGTH(PyObject* text)

from os import urandom

from liftenvelope._native.batch import ENVELOPE_FIELDS as _ENVELOPE_FIELDS, encode_row
from liftenvelope._native.columns import row_headers
from liftenvelope._checks import as_bytes, as_text
from liftenvelope._native.requests import request_row
from liftenvelope.errors import EnvelopeTooLargeError, InternalError, UsageError
from liftenvelope.types import as_request_policy

crc32c_init()
sip_seed(urandom(16))

cdef Py_ssize_t MAX_ENVELOPE = 0x7FFFFFFF

cdef Slice NOTHING
clear_slice(&NOTHING)


cdef Slice span(object view):
    """Return the memory of a memoryview; an empty slice for None."""
    cdef Slice s
    clear_slice(&s)
    if view is not None:
        s.p = <const uint8_t*>PyMemoryView_GET_BUFFER(view).buf
        s.n = PyMemoryView_GET_BUFFER(view).len
    return s


cdef object viewed_as(object buffer, Py_ssize_t width):
    """Return a view of numbers of this width, of a copy if the buffer is not aligned to it."""
    view = memoryview(b"" if buffer is None else buffer)
    return memoryview(bytes(view)) if <size_t>span(view).p % <size_t>width else view


include "_inputs.pxi"


# Encoding

# Added to the size of an invalid row. Larger than any sum of valid sizes, so a row can be marked while the columns are
# still being summed; encode_row() or request_row() then raises the error.
cdef int64_t FAULTY = <int64_t>1 << 56


cdef int require_length(Py_ssize_t length, str name, Py_ssize_t values) except -1:
    if length != values:
        raise UsageError(f"{name} has {length} rows, values {values}")
    return 0


cdef Rows rows_of(Column column, str name, Py_ssize_t values) except *:
    cdef Rows rows
    if column is not None:
        require_length(column.length, name, values)
        return column.rows
    memset(&rows, 0, sizeof(Rows))
    rows.items = &NOTHING
    rows.utf8 = True
    return rows


@cython.final
cdef class Envelopes:
    """A batch to encode: checked and measured on construction, written in spans of rows.

    Invariant: sizes[i] is exactly the number of bytes that put() writes for row i, or -1 for a null row. put()
    checks neither values nor room: the constructor raised for every invalid row, and callers allocate size_of().
    """

    cdef Rows values, keys, ack_inboxes, correlation_ids
    cdef HeaderRows headers
    cdef tuple keep          # objects that the rows point into
    cdef const int64_t* offsets  # NULL: one offset for every row, in the prefix
    cdef int64_t offset
    cdef int32_t policy
    cdef bint crc, has_headers
    cdef uint8_t prefix[HEADER_LEN_CRC + 11]  # first bytes of every envelope
    cdef Py_ssize_t prefix_size
    cdef Py_ssize_t fixed    # size of the prefix and of the fields that don't vary
    cdef int64_t* sizes      # size of each envelope; -1 for null
    cdef Py_ssize_t total    # sum of the sizes
    cdef readonly Py_ssize_t length

    def __cinit__(self, Column values not None, Column keys, HeaderColumn headers, Column ack_inboxes,
                  Column correlation_ids, ack_policy, expected_offset, bint crc):
        self.policy, self.crc = as_request_policy("ack_policy", ack_policy), crc
        self.length = values.length
        self.values = values.rows
        self.keys = rows_of(keys, "keys", self.length)
        self.ack_inboxes = rows_of(ack_inboxes, "ack_inboxes", self.length)
        self.correlation_ids = rows_of(correlation_ids, "correlation_ids", self.length)
        if headers is not None:
            require_length(headers.length, "headers", self.length)
            self.headers, self.has_headers = headers.rows, True
        self.keep = values, keys, headers, ack_inboxes, correlation_ids, self.take_offsets(expected_offset)
        self.make_prefix()
        self.sizes = <int64_t*>malloc(<size_t>(self.length + 1) * sizeof(int64_t))
        if self.sizes == NULL:
            raise MemoryError
        self.measure_all()

    def __dealloc__(self):
        free(self.sizes)

    cdef object take_offsets(self, expected):
        if isinstance(expected, int):
            self.offset = expected
            return None
        # A copy, because the caller may write into a numpy array while rows wait: they were measured before.
        view = viewed_as(bytes(expected), 8)
        if span(view).n < self.length * <Py_ssize_t>sizeof(int64_t):
            raise UsageError(f"expected_offsets must have {self.length} rows")
        self.offsets = <const int64_t*>span(view).p
        return view

    cdef void make_prefix(self):
        cdef uint8_t* p = put_header(self.prefix, PUBLISH, self.crc)
        if self.offsets == NULL:
            p = put_number(p, TAG_OFFSET, self.offset)
        self.prefix_size = p - self.prefix
        self.fixed = (
            self.prefix_size + number_size(self.policy) + constant_size(&self.values) + constant_size(&self.keys)
            + constant_size(&self.ack_inboxes) + constant_size(&self.correlation_ids)
        )

    cdef measure_all(self):
        cdef Py_ssize_t i
        with nogil:
            for i in range(self.length):
                self.sizes[i] = self.fixed
            add_sizes(self.sizes, &self.values, self.length)
            add_sizes(self.sizes, &self.keys, self.length)
            add_text_sizes(self.sizes, &self.ack_inboxes, self.length, FAULTY)
            add_text_sizes(self.sizes, &self.correlation_ids, self.length, FAULTY)
            self.add_other_sizes()
            for i in range(self.length):
                if self.sizes[i] > MAX_ENVELOPE:
                    break
                self.total += self.sizes[i] if self.sizes[i] > 0 else 0
            else:
                i = self.length
        if i < self.length:
            self.explain(i)

    cdef void add_other_sizes(self) noexcept nogil:
        cdef Py_ssize_t i
        if self.offsets != NULL:
            for i in range(self.length):
                self.sizes[i] += number_size(self.offsets[i])
        if self.has_headers:
            for i in range(self.length):
                self.sizes[i] += headers_size(&self.headers, i, FAULTY)
        if self.values.items != NULL or self.values.bits != NULL:
            for i in range(self.length):
                if row_at(&self.values, i).p == NULL:
                    self.sizes[i] = -1

    cdef explain(self, Py_ssize_t i):
        """Raise the error of an invalid row, by encoding it with the twin."""
        if self.sizes[i] < FAULTY:
            raise EnvelopeTooLargeError(f"row {i}: an envelope holds at most {MAX_ENVELOPE} bytes")
        values, keys, headers, inboxes, idents, _ = self.keep
        encode_row(i, values.row(i), [
            None if keys is None else keys.row(i),
            None if headers is None else (<HeaderColumn>headers).row(i),
            None if inboxes is None else inboxes.row(i),
            None if idents is None else idents.row(i),
        ], self.policy, -1, False)
        raise InternalError(f"the batch codec refused row {i}, which the codec takes")

    def oversize(self, Py_ssize_t limit):
        """Return (row, bytes) of the first envelope larger than the limit, None if there is none."""
        cdef Py_ssize_t i
        for i in range(self.length):
            if self.sizes[i] > limit:
                return i, self.sizes[i]
        return None

    def first_null(self):
        """Return the first row without a value, None if every row has one."""
        cdef Py_ssize_t i
        for i in range(self.length):
            if self.sizes[i] < 0:
                return i
        return None

    cpdef Py_ssize_t size_of(self, Py_ssize_t start, Py_ssize_t stop) except -1:
        """Return the size of all envelopes of a span, in bytes."""
        cdef Py_ssize_t i, total = 0
        if not 0 <= start <= stop <= self.length:
            raise UsageError(f"rows {start} to {stop} are not a span of {self.length} rows")
        if stop - start == self.length:
            return self.total
        for i in range(start, stop):
            total += self.sizes[i] if self.sizes[i] > 0 else 0
        return total

    def reach(self, Py_ssize_t start, Py_ssize_t limit):
        """Return (stop, bytes) of the longest span from `start` whose envelopes fit in `limit` bytes."""
        cdef Py_ssize_t i = start, size, total = 0
        self.size_of(start, start)  # checks it
        while i < self.length:
            size = self.sizes[i] if self.sizes[i] > 0 else 0
            if size > limit - total:
                break
            total += size
            i += 1
        return i, total

    def write(self, Py_ssize_t start, Py_ssize_t stop, offsets, data, validity):
        """Write a span into the three buffers of an Arrow binary array; return the number of null rows."""
        cdef tuple views = (memoryview(offsets), memoryview(data), memoryview(validity))
        cdef Slice ends = span(views[0]), content = span(views[1]), bits = span(views[2])
        cdef Py_ssize_t room = self.size_of(start, stop), rows = stop - start, nulls
        if room > MAX_ENVELOPE:
            raise UsageError(f"an Arrow binary array holds at most {MAX_ENVELOPE} bytes, not {room}")
        if ends.n < (rows + 1) * 4 or content.n < room or bits.n < (rows + 7) >> 3:
            raise UsageError("the buffers are too small for the span")
        with nogil:
            set_bits(<uint8_t*>bits.p, rows)
            nulls = self.put_span(start, stop, <int32_t*>ends.p, <uint8_t*>content.p, <uint8_t*>bits.p)
        return nulls

    cdef Py_ssize_t put_span(self, Py_ssize_t start, Py_ssize_t stop, int32_t* ends, uint8_t* begin,
                             uint8_t* bits) noexcept nogil:
        cdef uint8_t* p = begin
        cdef Py_ssize_t i, nulls = 0
        ends[0] = 0
        for i in range(start, stop):
            if self.sizes[i] >= 0:
                p = self.put(p, i)
            else:
                clear_bit(bits, i - start)
                nulls += 1
            ends[i - start + 1] = <int32_t>(p - begin)
        return nulls

    def frames(self, Py_ssize_t start, Py_ssize_t stop, list subjects not None, which):
        """Return a span as NATS PUB commands; see the twin."""
        cdef Py_ssize_t i, chosen, total = self.size_of(start, stop)
        cdef object view = None if which is None else viewed_as(which, 4)
        cdef const int32_t* choice = <const int32_t*>span(view).p
        cdef Column targets = Column.of_sequence(subjects, "subjects", False)
        if view is not None and span(view).n < self.length * 4:
            raise UsageError(f"which must have {self.length} rows")
        for i in range(start, stop):
            chosen = 0 if view is None else choice[i]
            if not 0 <= chosen < targets.length:
                raise UsageError(f"row {i}: subject {chosen} of {targets.length}")
            total += command_size(targets.made[chosen].n, self.sizes[i])
        cdef bytes out = PyBytes_FromStringAndSize(NULL, total)
        cdef uint8_t* p = <uint8_t*>PyBytes_AS_STRING(out)
        with nogil:
            for i in range(start, stop):
                p = put_pub(p, targets.made[choice[i] if choice != NULL else 0], self.sizes[i])
                if self.sizes[i] >= 0:
                    p = self.put(p, i)
                p[0] = b"\r"
                p[1] = b"\n"
                p += 2
        return out

    cdef inline uint8_t* put(self, uint8_t* p, Py_ssize_t i) noexcept nogil:
        cdef uint8_t* begin = p
        cdef Slice key = row_at(&self.keys, i), value = row_at(&self.values, i)
        cdef Slice inbox = row_at(&self.ack_inboxes, i), ident = row_at(&self.correlation_ids, i)
        p = put_raw(p, self.prefix, self.prefix_size)
        if self.offsets != NULL:
            p = put_number(p, TAG_OFFSET, self.offsets[i])
        p = put_slice(p, TAG_KEY, key.p, key.n)
        if value.n:
            p[0] = TAG_VALUE
            p = put_bulk(put_varint(p + 1, <uint64_t>value.n), value.p, value.n)
        if self.has_headers:
            p = put_headers(p, TAG_HEADERS, &self.headers, i)
        p = put_slice(p, TAG_ACK_INBOX, inbox.p, inbox.n)
        p = put_slice(p, TAG_CORRELATION_ID, ident.p, ident.n)
        p = put_number(p, TAG_ACK_POLICY, self.policy)
        if self.crc:
            put_checksum(begin, p)
        return p


include "_requests.pxi"


# Decoding

include "_columns.pxi"
include "_decoded.pxi"
