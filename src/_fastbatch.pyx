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

from liftenvelope._native.batch import encode_row
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


cdef object viewed(object buffer):
    return None if buffer is None else memoryview(buffer)


cdef object viewed_as(object buffer, Py_ssize_t width):
    """Return a view of numbers of this width, of a copy if the buffer is not aligned to it."""
    view = memoryview(b"" if buffer is None else buffer)
    return memoryview(bytes(view)) if <size_t>span(view).p % <size_t>width else view


cdef inline void require(bint sound, str what) except *:
    if not sound:
        raise UsageError(f"the Arrow array is broken: {what}; its validate(full=True) says more")


cdef const uint8_t* validity_bits(Slice bits, Py_ssize_t first, Py_ssize_t length) except? NULL:
    require(bits.p == NULL or first <= bits.n * 8 - length, "its validity bitmap is too short")
    return bits.p


@cython.final
cdef class Column:
    """Column of nullable byte strings, read in place.

    Each constructor checks all offsets or views, so that row_at() needs no checks. `keep` holds the objects that
    `rows` points into; `made` is memory of our own.
    """

    cdef Rows rows
    cdef Slice* made       # slices that rows.items points to
    cdef object keep       # objects that rows points into
    cdef readonly Py_ssize_t length
    cdef readonly Py_ssize_t nbytes  # of all rows

    def __cinit__(self):
        self.rows.stride = 1

    def __dealloc__(self):
        free(self.made)

    cdef Slice* make_items(self, Py_ssize_t n) except NULL:
        self.made = <Slice*>malloc(<size_t>(n if n else 1) * sizeof(Slice))
        if self.made == NULL:
            raise MemoryError
        self.rows.items = self.made
        return self.made

    @staticmethod
    def same(bytes item, Py_ssize_t length):
        """Return a column with the same bytes in every row."""
        cdef Column column = Column()
        cdef Slice* made = column.make_items(1)
        column.keep, column.length = item, length
        made.p = <const uint8_t*>PyBytes_AS_STRING(item)
        made.n = PyBytes_GET_SIZE(item)
        column.rows.stride = 0
        column.rows.utf8 = valid_utf8(made.p, made.n)
        column.nbytes = length * made.n
        return column

    @staticmethod
    def of_sequence(rows, str name, bint text):
        """Return a column of Python objects: bytes-like ones, or str in a text column; None is null."""
        cdef tuple items = tuple(rows)  # keeps the items alive even if the caller's list changes
        cdef Py_ssize_t i, length = len(items)
        cdef Column column = Column()
        cdef Slice* slice = column.make_items(length)
        cdef PyObject* item
        cdef list kept = []
        for i in range(length):
            item = PyTuple_GET_ITEM(items, i)
            if not text and PyBytes_CheckExact(<object>item):
                slice.p = <const uint8_t*>PyBytes_AS_STRING(<object>item)
                slice.n = PyBytes_GET_SIZE(<object>item)
            elif text and PyUnicode_CheckExact(item) and PyUnicode_IS_COMPACT_ASCII(item):
                slice.p = PyUnicode_1BYTE_DATA(item)
                slice.n = PyUnicode_GET_LENGTH(item)
            else:
                slice[0] = converted(<object>item, name, i, text, kept)
            column.nbytes += slice.n
            slice += 1
        column.keep, column.length = (items, kept), length
        column.rows.utf8 = text
        return column

    @staticmethod
    def of_binary(Py_ssize_t length, Py_ssize_t first, validity, offsets, data, bint large):
        """Return a column of an Arrow (Large)Binary or (Large)String array: length, offset and buffers."""
        cdef Column column = Column()
        cdef Py_ssize_t width = 8 if large else 4
        cdef tuple keep = (viewed(validity), viewed_as(offsets, width), viewed(data))
        cdef Slice ends = span(keep[1]), content = span(keep[2])
        cdef bint sound
        column.keep = keep
        if length == 0:
            return column
        require(first < ends.n // width - length, "its offsets are too short")
        column.rows.bits = validity_bits(span(keep[0]), first, length)
        column.rows.first = first
        # A pointer that is not NULL, even without a data buffer: an empty row is not null.
        column.rows.data = content.p if content.p != NULL else <const uint8_t*>""
        if large:
            column.rows.large_ends = <const int64_t*>ends.p + first
            sound = ascending(column.rows.large_ends, length, content.n)
            column.nbytes = column.rows.large_ends[length] - column.rows.large_ends[0]
        else:
            column.rows.ends = <const int32_t*>ends.p + first
            sound = ascending(column.rows.ends, length, content.n)
            column.nbytes = column.rows.ends[length] - column.rows.ends[0]
        require(sound, "its offsets point outside of its data")
        column.length = length
        return column

    @staticmethod
    def of_views(Py_ssize_t length, Py_ssize_t first, validity, views, data):
        """Return a column of an Arrow BinaryView or StringView array: length, offset and buffers."""
        cdef Column column = Column()
        column.keep = viewed(validity), viewed(views), [viewed(buffer) for buffer in data]
        cdef Slice headers = span(column.keep[1])
        cdef Py_ssize_t i, buffers = len(data)
        if length == 0:
            return column
        require(first <= headers.n // 16 - length, "its views are too short")
        cdef const uint8_t* bits = validity_bits(span(column.keep[0]), first, length)
        cdef Slice* items = column.make_items(length)
        cdef Slice* spans = <Slice*>malloc(<size_t>(buffers + 1) * sizeof(Slice))
        if spans == NULL:
            raise MemoryError
        for i in range(buffers):
            spans[i] = span(column.keep[2][i])
        cdef bint sound
        with nogil:
            sound = slice_views(items, length, first, bits, headers.p, spans, buffers, &column.nbytes)
        free(spans)
        require(sound, "its views point outside of its data")
        column.length = length
        return column

    cdef object data(self):
        """Return the memory of all rows, as one memoryview or None; only an array with offsets has it."""
        if self.length and self.rows.data == NULL:
            raise UsageError("views need rows of an Arrow array with offsets")
        return self.keep[2] if self.length else None

    def row(self, Py_ssize_t i):
        """Return the bytes of one row, None for null."""
        if not 0 <= i < self.length:
            raise IndexError(i)
        cdef Slice s = row_at(&self.rows, i)
        return PyBytes_FromStringAndSize(<const char*>s.p, s.n) if s.p != NULL else None


cdef Slice converted(object item, str name, Py_ssize_t i, bint text, list kept) except *:
    """Convert an item that is neither plain bytes nor ASCII text; keep the converted object in `kept`."""
    cdef Slice s
    clear_slice(&s)
    if item is None:
        return s
    item = as_text(f"{name}[{i}]", item) if text else as_bytes(f"{name}[{i}]", item)
    kept.append(item)
    if not text:
        s.p = <const uint8_t*>PyBytes_AS_STRING(item)
        s.n = PyBytes_GET_SIZE(item)
        return s
    s.p = <const uint8_t*>PyUnicode_AsUTF8AndSize(<PyObject*>item, &s.n)
    if s.p == NULL:
        raise MemoryError
    return s


@cython.final
cdef class HeaderColumn:
    """Column of headers: for each row a run of names and values, in which no name repeats."""

    cdef HeaderRows rows
    cdef int64_t* starts      # memory that rows.starts points to
    cdef Column names, values
    cdef object keep
    cdef readonly Py_ssize_t length

    def __cinit__(self, Py_ssize_t length, Column names not None, Column values not None):
        self.names, self.values, self.length = names, values, length
        self.rows.names, self.rows.values = names.rows, values.rows
        self.starts = <int64_t*>calloc(<size_t>length + 1, sizeof(int64_t))
        if self.starts == NULL:
            raise MemoryError
        self.rows.starts = self.starts

    def __dealloc__(self):
        free(self.starts)

    @staticmethod
    def of_sequence(rows):
        """Return a column of mappings of str to bytes-like; None means no headers."""
        return HeaderColumn.of_dicts([row_headers(i, headers) for i, headers in enumerate(rows)], True)

    @staticmethod
    cdef HeaderColumn of_dicts(list rows, bint text):
        names = Column.of_sequence([name for row in rows for name in row], "header", text)
        values = Column.of_sequence([value for row in rows for value in row.values()], "header", False)
        cdef HeaderColumn column = HeaderColumn(len(rows), names, values)
        cdef Py_ssize_t i
        for i in range(len(rows)):
            column.starts[i + 1] = column.starts[i] + len(rows[i])
        return column

    @staticmethod
    def of_map(Py_ssize_t length, Py_ssize_t first, validity, offsets, Column names, Column values):
        """Return a column of an Arrow map array: its length, offset, buffers, and its children as columns."""
        cdef tuple keep = (viewed(validity), viewed_as(offsets, 4))
        cdef Slice ends = span(keep[1])
        cdef const int32_t* end = <const int32_t*>ends.p
        cdef Py_ssize_t i
        if length == 0:
            return HeaderColumn(0, names, values)
        require(first < ends.n // 4 - length, "its offsets are too short")
        cdef const uint8_t* bits = validity_bits(span(keep[0]), first, length)
        require(values.length == names.length and ascending(end + first, length, names.length),
                "its offsets point outside of its entries")
        cdef HeaderColumn column = HeaderColumn(length, names, values)
        column.keep, column.rows.bits, column.rows.first = keep, bits, first
        for i in range(length + 1):
            column.starts[i] = end[first + i]
        return column.of_unique() if column.repeat() else column

    cdef bint repeat(self) except *:
        """Return true if a name repeats in a row, which Arrow does not forbid."""
        cdef HeaderSet seen
        cdef int found
        memset(&seen, 0, sizeof(HeaderSet))
        with nogil:
            found = repeats(&self.rows, self.length, &seen)
            free_headers(&seen)
        if found < 0:
            raise MemoryError
        return found

    cdef HeaderColumn of_unique(self):
        return HeaderColumn.of_dicts([self.row(i) for i in range(self.length)], False)

    cdef dict row(self, Py_ssize_t i):
        """Return names to values; if a name repeats, the last value counts, at the position of the first."""
        cdef Py_ssize_t begin = self.starts[i]
        return {self.names.row(j): self.values.row(j) for j in range(begin, begin + header_count(&self.rows, i))}


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


@cython.final
cdef class Requests:
    """Rows to publish over gRPC: checked and measured on construction, written in spans. See Envelopes."""

    cdef Rows values, keys
    cdef HeaderRows headers
    cdef tuple keep              # objects that the rows and the two slices point into
    cdef Slice stream, ident
    cdef const int32_t* partitions
    cdef int32_t policy
    cdef bint has_headers
    cdef int64_t* sizes          # size of each request without its correlation id
    cdef readonly Py_ssize_t length
    cdef readonly Py_ssize_t nbytes  # of all values

    def __cinit__(self, bytes stream not None, Column values not None, Column keys, HeaderColumn headers,
                  partitions, ack_policy, bytes ident not None):
        self.policy = as_request_policy("ack_policy", ack_policy)
        # A copy, because the caller may write into a numpy array while rows wait: they were measured before.
        view = viewed_as(bytes(partitions), 4)
        self.length, self.nbytes = values.length, values.nbytes
        self.values, self.keys = values.rows, rows_of(keys, "keys", self.length)
        if headers is not None:
            require_length(headers.length, "headers", self.length)
            self.headers, self.has_headers = headers.rows, True
        require_length(span(view).n >> 2, "partitions", self.length)
        self.partitions = <const int32_t*>span(view).p
        self.stream.p, self.stream.n = <const uint8_t*>PyBytes_AS_STRING(stream), PyBytes_GET_SIZE(stream)
        self.ident.p, self.ident.n = <const uint8_t*>PyBytes_AS_STRING(ident), PyBytes_GET_SIZE(ident)
        self.keep = stream, values, keys, headers, view, ident
        self.sizes = <int64_t*>malloc(<size_t>(self.length + 1) * sizeof(int64_t))
        if self.sizes == NULL:
            raise MemoryError
        self.measure()

    def __dealloc__(self):
        free(self.sizes)

    cdef measure(self):
        cdef Py_ssize_t i, fixed = (
            slice_size(self.stream.n) + number_size(self.policy) + number_size(-1)
            + constant_size(&self.values) + constant_size(&self.keys)
        )
        with nogil:
            for i in range(self.length):
                self.sizes[i] = fixed + number_size(self.partitions[i])
            add_sizes(self.sizes, &self.values, self.length)
            add_sizes(self.sizes, &self.keys, self.length)
            for i in range(self.length):
                if row_at(&self.values, i).p == NULL:
                    self.sizes[i] += FAULTY
            if self.has_headers:
                for i in range(self.length):
                    self.sizes[i] += FAULTY if has_server_header(&self.headers, i) else headers_size(
                        &self.headers, i, FAULTY)
        for i in range(self.length):
            if self.sizes[i] > MAX_ENVELOPE:
                self.explain(i)

    cdef explain(self, Py_ssize_t i):
        """Raise the error of an invalid row, by encoding it with the twin."""
        if self.sizes[i] < FAULTY:
            raise EnvelopeTooLargeError(f"row {i}: a request holds at most {MAX_ENVELOPE} bytes")
        stream, values, keys, headers, _, _ = self.keep
        request_row(i, stream, values.row(i), None if keys is None else keys.row(i),
                    None if headers is None else (<HeaderColumn>headers).row(i), 0, self.policy, b"")
        raise InternalError(f"the batch codec refused row {i}, which the codec takes")

    cdef inline Py_ssize_t size_of(self, Py_ssize_t i, int64_t number) noexcept nogil:
        return <Py_ssize_t>self.sizes[i] + slice_size(self.ident.n + digits(<Py_ssize_t>number))

    def frames(self, Py_ssize_t start, Py_ssize_t stop, int64_t number, Py_ssize_t limit, Py_ssize_t longest):
        """Return the requests of a span, each with its gRPC prefix; see the twin."""
        cdef Py_ssize_t i = start, size, total = 0
        cdef uint8_t* p
        if not 0 <= start <= stop <= self.length or number < 0:
            raise UsageError(f"rows {start} to {stop} are not a span of {self.length} rows")
        while i < stop:
            size = self.size_of(i, number + i - start)
            if size > longest or (i > start and size > limit - total):
                break
            total += size + 5
            i += 1
        cdef bytes out = PyBytes_FromStringAndSize(NULL, total)
        p, stop = <uint8_t*>PyBytes_AS_STRING(out), i
        with nogil:
            for i in range(start, stop):
                p = self.put(p, i, number + i - start)
        return stop, out

    cdef inline uint8_t* put(self, uint8_t* p, Py_ssize_t i, int64_t number) noexcept nogil:
        cdef Slice key = row_at(&self.keys, i), value = row_at(&self.values, i)
        cdef Py_ssize_t size = self.size_of(i, number), count = digits(<Py_ssize_t>number)
        p[0] = 0
        p[1] = <uint8_t>(size >> 24)
        p[2] = <uint8_t>(size >> 16)
        p[3] = <uint8_t>(size >> 8)
        p[4] = <uint8_t>size
        p = put_slice(p + 5, TAG_Q_KEY, key.p, key.n)
        if value.n:
            p[0] = TAG_Q_VALUE
            p = put_bulk(put_varint(p + 1, <uint64_t>value.n), value.p, value.n)
        p = put_slice(p, TAG_Q_STREAM, self.stream.p, self.stream.n)
        p = put_number(p, TAG_Q_PARTITION, self.partitions[i])
        if self.has_headers:
            p = put_headers(p, TAG_Q_HEADERS, &self.headers, i)
        p[0] = TAG_Q_CORRELATION_ID
        p = put_raw(put_varint(p + 1, <uint64_t>(self.ident.n + count)), self.ident.p, self.ident.n)
        p = put_digits(p, <Py_ssize_t>number, count)
        p = put_number(p, TAG_Q_ACK_POLICY, self.policy)
        return put_number(p, TAG_Q_EXPECTED_OFFSET, -1)


cdef bint has_server_header(const HeaderRows* rows, Py_ssize_t i) noexcept nogil:
    cdef Py_ssize_t j
    cdef Slice name
    for j in range(rows.starts[i], rows.starts[i] + header_count(rows, i)):
        name = row_at(&rows.names, j)
        if name.p != NULL and is_server_header(name):
            return True
    return False


# Decoding

include "_columns.pxi"


cdef list bad_rows(const Rows* rows, Py_ssize_t length, _Bits valid):
    """Return the rows that are null in the columns, but not in the input."""
    if not valid.nulls:
        return []
    return [i for i in range(length) if not has_bit(valid.p, i) and row_at(rows, i).p != NULL]


@cython.final
cdef class MessageColumns:
    """Message envelopes decoded into columns."""

    cdef _Texts keys, values, inboxes, idents
    cdef _Views views  # in place of the values
    cdef _Headers headers
    cdef _Memory policies, offsets
    cdef _Bits valid
    cdef bint raw, as_views
    cdef readonly list bad  # rows that are not valid envelopes

    def __cinit__(self, Column rows not None, bint large, bint raw, allocate, bint views=False):
        cdef Py_ssize_t n = rows.length, most = rows.nbytes
        cdef bint enough
        self.as_views = views
        if views:
            self.views = _Views(allocate, n, rows.data())
        else:
            # The values can't be larger than their envelopes: allocated once, never grown.
            self.values = _Texts(allocate, n, large, most, most)
        self.keys = _Texts(allocate, n, large, most)
        self.inboxes, self.idents = _Texts(allocate, n, large, most), _Texts(allocate, n, large, most)
        self.headers = _Headers(allocate, n)
        self.policies, self.offsets = full(allocate, n * 4), full(allocate, n * 8)
        self.valid, self.raw = _Bits(allocate, n), raw
        with nogil:
            enough = self.fill(&rows.rows, n)
        if not enough:
            raise MemoryError
        self.headers.require_room()
        self.bad = bad_rows(&rows.rows, n, self.valid)

    cdef bint fill(self, const Rows* rows, Py_ssize_t n) noexcept nogil:
        cdef Py_ssize_t i
        for i in range(n):
            if not self.add(i, row_at(rows, i)):
                return False
        return True

    cdef inline bint add(self, Py_ssize_t i, Slice row) noexcept nogil:
        cdef MessageFields f
        cdef bint sound = row.p != NULL and parse_message(payload(row.p, row.n, PUBLISH), row.p + row.n, &f)
        if not sound:
            clear_message(&f)
            if self.raw:
                f.value = row
            self.valid.clear(i)
        (<int32_t*>self.policies.p)[i] = f.ack_policy
        (<int64_t*>self.offsets.p)[i] = f.offset
        cdef bint null = not sound and f.value.p == NULL
        if self.as_views:
            self.views.add(i, f.value, null)
        elif not self.values.add_bulk(i, f.value, null):
            return False
        return (
            self.keys.add(i, f.key, f.key.n == 0)
            and self.inboxes.add(i, f.ack_inbox, f.ack_inbox.n == 0)
            and self.idents.add(i, f.correlation_id, f.correlation_id.n == 0)
            and self.headers.add(i, &f, row.p + row.n, False)
        )

    def columns(self):
        """Return buffers by field name; see the twin."""
        return {
            "key": self.keys.buffers(),
            "value": self.views.buffers() if self.as_views else self.values.buffers(),
            "ack_inbox": self.inboxes.buffers(),
            "correlation_id": self.idents.buffers(),
            "ack_policy": self.policies,
            "expected_offset": self.offsets,
            "validity": self.valid.buffer(),
            **self.headers.columns(),
        }


@cython.final
cdef class AckColumns:
    """Ack envelopes decoded into columns."""

    cdef _Texts streams, partition_subjects, msg_subjects, inboxes, idents
    cdef _Memory offsets, policies, receptions, commits, errors
    cdef _Bits valid
    cdef readonly list bad  # rows that are not valid envelopes

    def __cinit__(self, Column rows not None, bint large, allocate):
        cdef Py_ssize_t n = rows.length, most = rows.nbytes
        cdef bint enough
        self.streams, self.partition_subjects = _Texts(allocate, n, large, most), _Texts(allocate, n, large, most)
        self.msg_subjects, self.inboxes = _Texts(allocate, n, large, most), _Texts(allocate, n, large, most)
        self.idents, self.offsets = _Texts(allocate, n, large, most), full(allocate, n * 8)
        self.policies, self.errors = full(allocate, n * 4), full(allocate, n * 4)
        self.receptions, self.commits = full(allocate, n * 8), full(allocate, n * 8)
        self.valid = _Bits(allocate, n)
        with nogil:
            enough = self.fill(&rows.rows, n)
        if not enough:
            raise MemoryError
        self.bad = bad_rows(&rows.rows, n, self.valid)

    cdef bint fill(self, const Rows* rows, Py_ssize_t n) noexcept nogil:
        cdef Py_ssize_t i
        for i in range(n):
            if not self.add(i, row_at(rows, i)):
                return False
        return True

    cdef inline bint add(self, Py_ssize_t i, Slice row) noexcept nogil:
        cdef AckFields f
        cdef bint sound = row.p != NULL and parse_ack(payload(row.p, row.n, ACK), row.p + row.n, &f)
        if not sound:
            clear_ack(&f)
            self.valid.clear(i)
        (<int64_t*>self.offsets.p)[i] = f.offset
        (<int32_t*>self.policies.p)[i] = f.ack_policy
        (<int64_t*>self.receptions.p)[i] = f.reception_timestamp
        (<int64_t*>self.commits.p)[i] = f.commit_timestamp
        (<int32_t*>self.errors.p)[i] = f.error
        return (
            self.streams.add(i, f.stream, not sound)
            and self.partition_subjects.add(i, f.partition_subject, not sound)
            and self.msg_subjects.add(i, f.msg_subject, not sound)
            and self.inboxes.add(i, f.ack_inbox, f.ack_inbox.n == 0)
            and self.idents.add(i, f.correlation_id, f.correlation_id.n == 0)
        )

    def columns(self):
        """Return buffers by field name; see the twin."""
        return {
            "stream": self.streams.buffers(),
            "partition_subject": self.partition_subjects.buffers(),
            "msg_subject": self.msg_subjects.buffers(),
            "ack_inbox": self.inboxes.buffers(),
            "correlation_id": self.idents.buffers(),
            "offset": self.offsets,
            "ack_policy": self.policies,
            "reception_timestamp": self.receptions,
            "commit_timestamp": self.commits,
            "ack_error": self.errors,
            "validity": self.valid.buffer(),
        }


@cython.final
cdef class StoredColumns:
    """Messages without envelopes, as servers send them to subscribers, decoded into columns."""

    cdef _Texts keys, values, streams, subjects, reply_subjects, idents
    cdef _Headers headers
    cdef _Memory offsets, timestamps, partitions
    cdef readonly Py_ssize_t bad  # first row that is not a valid message; -1 if all are

    def __cinit__(self, Column rows not None, allocate):
        cdef Py_ssize_t n = rows.length, most = rows.nbytes
        cdef bint enough
        if most > MAX_ENVELOPE:
            raise EnvelopeTooLargeError("the messages have more than 2 GiB together: decode fewer at a time")
        # The values can't be larger than the messages: allocated once, never grown.
        self.keys, self.values = _Texts(allocate, n, False, most), _Texts(allocate, n, False, most, most)
        self.streams, self.subjects = _Texts(allocate, n, False, most), _Texts(allocate, n, False, most)
        self.reply_subjects, self.idents = _Texts(allocate, n, False, most), _Texts(allocate, n, False, most)
        self.headers, self.bad = _Headers(allocate, n), -1
        self.offsets, self.timestamps = full(allocate, n * 8), full(allocate, n * 8)
        self.partitions = full(allocate, n * 4)
        with nogil:
            enough = self.fill(&rows.rows, n)
        if not enough:
            raise MemoryError

    cdef bint fill(self, const Rows* rows, Py_ssize_t n) noexcept nogil:
        """Decode up to the first invalid row, which is recorded in `bad`; false if memory ran out."""
        cdef MessageFields f
        cdef Slice row
        cdef Py_ssize_t i
        for i in range(n):
            row = row_at(rows, i)
            if not parse_message(row.p, row.p + row.n, &f):
                self.bad = i
                return True
            if not self.add(i, &f, row.p + row.n):
                return False
        return True

    cdef inline bint add(self, Py_ssize_t i, const MessageFields* f, const uint8_t* end) noexcept nogil:
        (<int64_t*>self.offsets.p)[i] = f.offset
        (<int64_t*>self.timestamps.p)[i] = f.timestamp
        (<int32_t*>self.partitions.p)[i] = f.partition
        return (
            self.values.add_bulk(i, f.value, False)
            and self.keys.add(i, f.key, False)
            and self.streams.add(i, f.stream, False)
            and self.subjects.add(i, f.subject, False)
            and self.reply_subjects.add(i, f.reply_subject, False)
            and self.idents.add(i, f.correlation_id, False)
            and self.headers.add(i, f, end, True)
        )

    def columns(self):
        """Return buffers by field name; see the twin."""
        return {
            "offset": self.offsets,
            "key": self.keys.buffers(),
            "value": self.values.buffers(),
            "timestamp": self.timestamps,
            "stream": self.streams.buffers(),
            "partition": self.partitions,
            "subject": self.subjects.buffers(),
            "reply_subject": self.reply_subjects.buffers(),
            "correlation_id": self.idents.buffers(),
            "validity": None,
            **self.headers.columns(),
        }
