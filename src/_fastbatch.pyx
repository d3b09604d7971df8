# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, auto_pickle=False
"""Whole batches of envelopes: Arrow columns or Python sequences in, Arrow buffers or NATS frames out.

Everything that comes in is first made into columns of slices (pointer and length), whatever it was; the
loops over the rows then touch no Python object and run without the GIL. The twin is
`liftenvelope/_batch_py.py`; `liftenvelope/arrow.py` and `liftenvelope/nats/` are the callers.
"""

cimport cython
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp

from _cursor cimport *

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(PyObject* text, Py_ssize_t* size)
    Py_buffer* PyMemoryView_GET_BUFFER(object view)

from liftenvelope._checks import as_bytes, as_text, storable_headers
from liftenvelope.errors import EnvelopeTooLargeError, UsageError

crc32c_init()

cdef Py_ssize_t MAX_ENVELOPE = 0x7FFFFFFF


cdef Slice span(object view):
    """The memory of a memoryview, of none for None."""
    cdef Slice s
    s.p = NULL
    s.n = 0
    if view is not None:
        s.p = <const uint8_t*>PyMemoryView_GET_BUFFER(view).buf
        s.n = PyMemoryView_GET_BUFFER(view).len
    return s


cdef object viewed(object buffer):
    return None if buffer is None else memoryview(buffer)


cdef inline bint is_valid(Slice bitmap, Py_ssize_t i) noexcept nogil:
    return bitmap.p == NULL or (bitmap.p[i >> 3] >> (i & 7)) & 1


cdef inline void set_bit(uint8_t* bitmap, Py_ssize_t i) noexcept nogil:
    bitmap[i >> 3] |= <uint8_t>(1 << (i & 7))


cdef inline void require(bint sound, str what) except *:
    if not sound:
        raise UsageError(f"the Arrow array is broken: {what}; its validate(full=True) says more")


@cython.final
cdef class Column:
    """Rows of bytes, each perhaps null, that stay where they are."""

    cdef Slice* items
    cdef Py_ssize_t stride  # 0 where one item serves every row
    cdef object keep        # what the items point into
    cdef readonly Py_ssize_t length
    cdef readonly Py_ssize_t nbytes

    def __cinit__(self, Py_ssize_t length):
        self.length = length
        self.stride = 1
        self.items = <Slice*>malloc(<size_t>(length if length else 1) * sizeof(Slice))
        if self.items == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.items)

    @staticmethod
    def same(bytes item, Py_ssize_t length):
        """The same bytes for every row."""
        cdef Column column = Column(1)
        column.keep = item
        column.items[0].p = <const uint8_t*>PyBytes_AS_STRING(item)
        column.items[0].n = PyBytes_GET_SIZE(item)
        column.length = length
        column.stride = 0
        return column

    @staticmethod
    def of_sequence(rows, str name, bint text):
        """Python objects: bytes-like ones, or str where the column is of text; None is null."""
        cdef tuple items = tuple(rows)
        cdef Column column = Column(len(items))
        cdef list kept = None
        cdef Slice* slice
        cdef Py_ssize_t i = 0
        for item in items:
            slice = &column.items[i]
            if item is None:
                slice.p = NULL
                slice.n = 0
            else:
                if not text and type(item) is not bytes:
                    item = as_bytes(f"{name}[{i}]", item)
                    kept = [] if kept is None else kept
                    kept.append(item)
                elif text and (type(item) is not str or not item.isascii()):
                    item = as_text(f"{name}[{i}]", item)
                    kept = [] if kept is None else kept
                    kept.append(item)
                if text:
                    slice.p = <const uint8_t*>PyUnicode_AsUTF8AndSize(<PyObject*>item, &slice.n)
                    if slice.p == NULL:
                        raise MemoryError
                else:
                    slice.p = <const uint8_t*>PyBytes_AS_STRING(item)
                    slice.n = PyBytes_GET_SIZE(item)
                column.nbytes += slice.n
            i += 1
        column.keep = (items, kept)
        return column

    @staticmethod
    def of_binary(Py_ssize_t length, Py_ssize_t first, validity, offsets, data, bint large):
        """An Arrow (Large)Binary or (Large)String array: its length, offset and buffers."""
        cdef Column column = Column(length)
        column.keep = viewed(validity), viewed(offsets), viewed(data)
        cdef Slice bits = span(column.keep[0]), ends = span(column.keep[1]), bytes_ = span(column.keep[2])
        cdef Py_ssize_t width = 8 if large else 4
        if length == 0:
            return column
        require(bits.p == NULL or bits.n > (first + length - 1) >> 3, "its validity bitmap is too short")
        require(ends.n >= (first + length + 1) * width, "its offsets are too short")
        cdef bint sound
        with nogil:
            sound = slice_binary(column.items, length, first, bits, ends, bytes_, large, &column.nbytes)
        require(sound, "its offsets point outside of its data")
        return column

    @staticmethod
    def of_views(Py_ssize_t length, Py_ssize_t first, validity, views, data):
        """An Arrow BinaryView or StringView array: its length, offset and buffers."""
        cdef Column column = Column(length)
        column.keep = viewed(validity), viewed(views), [viewed(buffer) for buffer in data]
        cdef Slice bits = span(column.keep[0]), headers = span(column.keep[1])
        cdef Py_ssize_t i, buffers = len(data)
        if length == 0:
            return column
        require(bits.p == NULL or bits.n > (first + length - 1) >> 3, "its validity bitmap is too short")
        require(headers.n >= (first + length) * 16, "its views are too short")
        cdef Slice* spans = <Slice*>malloc(<size_t>(buffers + 1) * sizeof(Slice))
        if spans == NULL:
            raise MemoryError
        for i in range(buffers):
            spans[i] = span(column.keep[2][i])
        cdef bint sound
        with nogil:
            sound = slice_views(column.items, length, first, bits, headers.p, spans, buffers, &column.nbytes)
        free(spans)
        require(sound, "its views point outside of its data")
        return column

    def first_null(self):
        """The first null row; None where no row is."""
        cdef Py_ssize_t i
        for i in range(self.length):
            if self.items[i * self.stride].p == NULL:
                return i
        return None

    def row(self, Py_ssize_t i):
        """The bytes of one row, None for null."""
        cdef Slice s = self.items[i * self.stride]
        return PyBytes_FromStringAndSize(<const char*>s.p, s.n) if s.p != NULL else None


cdef bint slice_binary(Slice* out, Py_ssize_t length, Py_ssize_t first, Slice bits, Slice ends, Slice data,
                       bint large, Py_ssize_t* nbytes) noexcept nogil:
    cdef Py_ssize_t i
    cdef int64_t begin, end
    for i in range(first, first + length):
        if not is_valid(bits, i):
            out.p = NULL
            out.n = 0
        else:
            begin = (<const int64_t*>ends.p)[i] if large else (<const int32_t*>ends.p)[i]
            end = (<const int64_t*>ends.p)[i + 1] if large else (<const int32_t*>ends.p)[i + 1]
            if begin < 0 or end < begin or end > data.n:
                return False
            # An empty row is not null, also where the array has no data buffer at all.
            out.p = data.p + begin if end > begin else <const uint8_t*>""
            out.n = end - begin
            nbytes[0] += out.n
        out += 1
    return True


cdef bint slice_views(Slice* out, Py_ssize_t length, Py_ssize_t first, Slice bits, const uint8_t* views,
                      Slice* data, Py_ssize_t buffers, Py_ssize_t* nbytes) noexcept nogil:
    cdef Py_ssize_t i
    cdef int32_t header[4]  # length; then 12 bytes of data, or: prefix, buffer, offset
    for i in range(first, first + length):
        memcpy(header, views + i * 16, 16)
        if not is_valid(bits, i):
            out.p = NULL
            out.n = 0
        elif header[0] < 0:
            return False
        else:
            out.n = header[0]
            nbytes[0] += out.n
            if header[0] <= 12:
                out.p = views + i * 16 + 4
            elif header[2] < 0 or header[2] >= buffers or header[3] < 0:
                return False
            elif header[3] > data[header[2]].n or header[0] > data[header[2]].n - header[3]:
                return False
            else:
                out.p = data[header[2]].p + header[3]
        out += 1
    return True


@cython.final
cdef class HeaderColumn:
    """The headers of each row: a run of names and values."""

    cdef Column names
    cdef Column values
    cdef int64_t* starts  # length + 1 of them
    cdef readonly Py_ssize_t length

    def __cinit__(self, Py_ssize_t length, Column names, Column values):
        self.names, self.values = names, values
        self.length = length
        self.starts = <int64_t*>calloc(<size_t>length + 1, sizeof(int64_t))
        if self.starts == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.starts)

    @staticmethod
    def of_sequence(rows):
        """Mappings of str to bytes-like; None is none."""
        names, values, starts = [], [], [0]
        for headers in rows:
            if headers is not None:
                checked = storable_headers(headers)
                names.extend(checked)
                values.extend(checked.values())
            starts.append(len(names))
        cdef HeaderColumn column = HeaderColumn(
            len(starts) - 1, Column.of_sequence(names, "header", True), Column.of_sequence(values, "header", False))
        cdef Py_ssize_t i
        for i in range(len(starts)):
            column.starts[i] = starts[i]
        return column

    @staticmethod
    def of_map(Py_ssize_t length, Py_ssize_t first, validity, offsets, Column names, Column values):
        """An Arrow map array: its length, offset, buffers, and its children as columns."""
        cdef HeaderColumn column = HeaderColumn(length, names, values)
        cdef tuple kept = (viewed(validity), viewed(offsets))
        cdef Slice bits = span(kept[0]), ends = span(kept[1])
        cdef const int32_t* end = <const int32_t*>ends.p
        cdef Py_ssize_t i
        if length == 0:
            return column
        require(bits.p == NULL or bits.n > (first + length - 1) >> 3, "its validity bitmap is too short")
        require(ends.n >= (first + length + 1) * 4, "its offsets are too short")
        for i in range(length + 1):
            require(0 <= end[first + i] <= names.length and (i == 0 or end[first + i] >= end[first + i - 1]),
                    "its offsets point outside of its entries")
            column.starts[i] = end[first + i]
        for i in range(length):
            require(is_valid(bits, first + i) or end[first + i] == end[first + i + 1],
                    "a null map has entries, which liftenvelope does not read")
        return column


cdef enum Fault:
    SOUND = 0
    BAD_TEXT = 1
    LONG_HEADER = 2
    MANY_HEADERS = 3
    NULL_HEADER = 4
    TOO_LARGE = 5

FAULTS = {
    BAD_TEXT: (UsageError, "a string is not valid UTF-8"),
    LONG_HEADER: (EnvelopeTooLargeError, "a header name has more than 32767 bytes, which crashes the server"),
    MANY_HEADERS: (EnvelopeTooLargeError, "more than 65535 headers; the server stores no more"),
    NULL_HEADER: (UsageError, "a header name is null"),
    TOO_LARGE: (EnvelopeTooLargeError, "an envelope holds at most 2147483647 bytes"),
}


@cython.final
cdef class Envelopes:
    """A batch that is to be encoded: checked and measured when it is made, written in spans."""

    cdef Column values, keys, ack_inboxes, correlation_ids
    cdef HeaderColumn headers
    cdef object offset_view
    cdef const int64_t* offsets  # NULL: the same for every row
    cdef int64_t offset
    cdef int32_t policy
    cdef bint crc
    cdef int32_t* sizes  # of each envelope; -1 for null
    cdef readonly Py_ssize_t length

    def __cinit__(self, Column values not None, Column keys, HeaderColumn headers, Column ack_inboxes,
                  Column correlation_ids, int32_t ack_policy, expected_offset, bint crc):
        self.values, self.keys, self.headers = values, keys, headers
        self.ack_inboxes, self.correlation_ids = ack_inboxes, correlation_ids
        self.length = values.length
        self.policy, self.crc = ack_policy, crc
        self.check_lengths(keys=keys, ack_inboxes=ack_inboxes, correlation_ids=correlation_ids, headers=headers)
        if isinstance(expected_offset, int):
            self.offset = expected_offset
        else:
            self.offset_view = memoryview(expected_offset)
            self.offsets = <const int64_t*>span(self.offset_view).p
            if span(self.offset_view).n < self.length * <Py_ssize_t>sizeof(int64_t):
                raise UsageError(f"expected_offsets must have {self.length} rows")
        self.sizes = <int32_t*>malloc(<size_t>(self.length + 1) * sizeof(int32_t))
        if self.sizes == NULL:
            raise MemoryError
        self.measure_all()

    def __dealloc__(self):
        free(self.sizes)

    cdef check_lengths(self, keys, ack_inboxes, correlation_ids, headers):
        columns = {"keys": keys, "ack_inboxes": ack_inboxes, "correlation_ids": correlation_ids, "headers": headers}
        for name, column in columns.items():
            if column is not None and column.length != self.length:
                raise UsageError(f"{name} has {column.length} rows, values {self.length}")

    cdef measure_all(self):
        cdef Py_ssize_t i = 0
        cdef Fault fault = SOUND
        with nogil:
            while i < self.length:
                fault = self.measure(i)
                if fault != SOUND:
                    break
                i += 1
        if fault != SOUND:
            kind, text = FAULTS[fault]
            raise kind(f"row {i}: {text}")

    cdef inline Slice at(self, Column column, Py_ssize_t i) noexcept nogil:
        cdef Slice s
        if <PyObject*>column == <PyObject*>None:
            s.p = NULL
            s.n = 0
            return s
        return column.items[i * column.stride]

    cdef inline int64_t offset_at(self, Py_ssize_t i) noexcept nogil:
        return self.offset if self.offsets == NULL else self.offsets[i]

    cdef Fault measure(self, Py_ssize_t i) noexcept nogil:
        cdef Slice value = self.at(self.values, i), inbox = self.at(self.ack_inboxes, i)
        cdef Slice ident = self.at(self.correlation_ids, i)
        cdef Fault fault = SOUND
        cdef Py_ssize_t size
        if value.p == NULL:
            self.sizes[i] = -1
            return SOUND
        if not valid_utf8(inbox.p, inbox.n) or not valid_utf8(ident.p, ident.n):
            return BAD_TEXT
        size = (
            (HEADER_LEN_CRC if self.crc else HEADER_LEN) + number_size(self.offset_at(i))
            + slice_size(self.at(self.keys, i).n) + slice_size(value.n) + slice_size(inbox.n)
            + slice_size(ident.n) + number_size(self.policy)
        )
        if <PyObject*>self.headers != <PyObject*>None:
            size += self.measure_headers(i, &fault)
        if fault == SOUND and size > MAX_ENVELOPE:
            fault = TOO_LARGE
        self.sizes[i] = <int32_t>size
        return fault

    cdef Py_ssize_t measure_headers(self, Py_ssize_t i, Fault* fault) noexcept nogil:
        cdef Py_ssize_t size = 0, entry, j
        cdef Slice name
        if self.headers.starts[i + 1] - self.headers.starts[i] > MAX_HEADERS:
            fault[0] = MANY_HEADERS
            return 0
        for j in range(self.headers.starts[i], self.headers.starts[i + 1]):
            name = self.headers.names.items[j]
            if name.p == NULL:
                fault[0] = NULL_HEADER
            elif name.n > MAX_HEADER_KEY:
                fault[0] = LONG_HEADER
            elif not valid_utf8(name.p, name.n):
                fault[0] = BAD_TEXT
            entry = entry_size(name.n, self.headers.values.items[j].n)
            size += 1 + varint_size(<uint64_t>entry) + entry
        return size

    def oversize(self, Py_ssize_t limit):
        """(row, bytes) of the first envelope that is larger than the limit; None where none is."""
        cdef Py_ssize_t i
        for i in range(self.length):
            if self.sizes[i] > limit:
                return i, self.sizes[i]
        return None

    def first_null(self):
        """The first row without a value; None where every row has one."""
        return self.values.first_null()

    def reach(self, Py_ssize_t start, Py_ssize_t limit):
        """(stop, bytes) of the longest span from start whose envelopes have at most limit bytes together."""
        cdef Py_ssize_t i, total = 0
        for i in range(start, self.length):
            if self.sizes[i] > limit - total:
                return i, total
            total += self.sizes[i] if self.sizes[i] > 0 else 0
        return self.length, total

    def write(self, Py_ssize_t start, Py_ssize_t stop, offsets, data, validity):
        """Write a span as the three buffers of an Arrow binary array; returns how many rows are null."""
        cdef tuple views = (memoryview(offsets), memoryview(data), memoryview(validity))
        cdef int32_t* ends = <int32_t*>span(views[0]).p
        cdef uint8_t* begin = <uint8_t*>span(views[1]).p
        cdef uint8_t* bits = <uint8_t*>span(views[2]).p
        cdef uint8_t* p = begin
        cdef Py_ssize_t i, nulls = 0, room = 0
        for i in range(start, stop):
            room += self.sizes[i] if self.sizes[i] > 0 else 0
        if (not 0 <= start <= stop <= self.length or span(views[0]).n < (stop - start + 1) * 4
                or span(views[1]).n < room or span(views[2]).n < (stop - start + 7) >> 3):
            raise UsageError("the buffers are too small for the span")
        with nogil:
            memset(bits, 0, <size_t>((stop - start + 7) >> 3))
            ends[0] = 0
            for i in range(start, stop):
                if self.sizes[i] < 0:
                    nulls += 1
                else:
                    set_bit(bits, i - start)
                    p = self.put(p, i)
                ends[i - start + 1] = <int32_t>(p - begin)
        return nulls

    def frames(self, Py_ssize_t start, Py_ssize_t stop, list subjects, which):
        """A span as NATS PUB commands: ``which`` holds the index of each row's subject as 32-bit integers,
        None where all rows go to the first."""
        cdef Py_ssize_t i, total = 0
        cdef object view = viewed(which)
        cdef const int32_t* chosen = <const int32_t*>span(view).p
        cdef Column targets = Column.of_sequence(subjects, "subjects", False)
        if not 0 <= start <= stop <= self.length or (chosen != NULL and span(view).n < self.length * 4):
            raise UsageError("the span or the subjects do not fit the batch")
        for i in range(start, stop):
            total += frame_size(targets.items[chosen[i] if chosen != NULL else 0].n, self.sizes[i])
        cdef bytes out = PyBytes_FromStringAndSize(NULL, total)
        cdef uint8_t* p = <uint8_t*>PyBytes_AS_STRING(out)
        cdef Slice subject
        with nogil:
            for i in range(start, stop):
                subject = targets.items[chosen[i] if chosen != NULL else 0]
                p = put_pub(p, subject.p, subject.n, self.sizes[i])
                p = self.put(p, i)
                p[0] = b"\r"
                p[1] = b"\n"
                p += 2
        return out

    cdef uint8_t* put(self, uint8_t* p, Py_ssize_t i) noexcept nogil:
        cdef uint8_t* begin = p
        cdef Slice key = self.at(self.keys, i), value = self.at(self.values, i)
        cdef Slice inbox = self.at(self.ack_inboxes, i), ident = self.at(self.correlation_ids, i)
        p = put_header(p, PUBLISH, self.crc)
        p = put_number(p, TAG_OFFSET, self.offset_at(i))
        p = put_slice(p, TAG_KEY, key.p, key.n)
        p = put_slice(p, TAG_VALUE, value.p, value.n)
        if <PyObject*>self.headers != <PyObject*>None:
            p = self.put_headers(p, i)
        p = put_slice(p, TAG_ACK_INBOX, inbox.p, inbox.n)
        p = put_slice(p, TAG_CORRELATION_ID, ident.p, ident.n)
        p = put_number(p, TAG_ACK_POLICY, self.policy)
        if self.crc:
            put_checksum(begin, p)
        return p

    cdef uint8_t* put_headers(self, uint8_t* p, Py_ssize_t i) noexcept nogil:
        cdef Py_ssize_t j
        cdef Slice name, value
        for j in range(self.headers.starts[i], self.headers.starts[i + 1]):
            name = self.headers.names.items[j]
            value = self.headers.values.items[j]
            p = put_entry(p, name.p, name.n, value.p, value.n)
        return p


cdef inline Py_ssize_t digits(Py_ssize_t number) noexcept nogil:
    cdef Py_ssize_t count = 1
    while number > 9:
        number //= 10
        count += 1
    return count


cdef inline Py_ssize_t frame_size(Py_ssize_t subject, Py_ssize_t payload) noexcept nogil:
    return 4 + subject + 1 + digits(payload) + 2 + payload + 2  # "PUB subject size\r\n", payload, "\r\n"


cdef inline uint8_t* put_pub(uint8_t* p, const uint8_t* subject, Py_ssize_t n, Py_ssize_t payload) noexcept nogil:
    cdef Py_ssize_t count = digits(payload), i
    p = put_raw(p, <const uint8_t*>"PUB ", 4)
    p = put_raw(p, subject, n)
    p[0] = b" "
    p += 1
    for i in range(count):
        p[count - 1 - i] = <uint8_t>(48 + payload % 10)
        payload //= 10
    return put_raw(p + count, <const uint8_t*>"\r\n", 2)


# Decoding

@cython.final
cdef class Memory:
    """Bytes that grow. They come from an allocator of the caller's: Arrow's pool keeps its pages, where
    malloc would have the system map and clear new ones for every batch."""

    cdef object allocate  # bytes -> a writable buffer
    cdef object store     # a memoryview of the buffer that holds them now
    cdef uint8_t* p
    cdef Py_ssize_t n, capacity

    def __cinit__(self, allocate, Py_ssize_t capacity):
        self.allocate = allocate
        self.hold(capacity)

    cdef int hold(self, Py_ssize_t capacity) except -1:
        store = memoryview(self.allocate(capacity))
        cdef Slice s = span(store)
        if self.n:
            memcpy(<uint8_t*>s.p, self.p, <size_t>self.n)
        self.store, self.p, self.capacity = store, <uint8_t*>s.p, s.n
        return 0

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.p if self.n else <void*>"", self.n, 1, flags & ~PyBUF_WRITABLE)

    cdef inline bint grow(self, Py_ssize_t more) noexcept nogil:
        """Make room; false where memory has run out."""
        if more <= self.capacity - self.n:
            return True
        return self.grow_much(more)

    cdef bint grow_much(self, Py_ssize_t more) noexcept nogil:
        cdef Py_ssize_t wanted = self.n + more
        if wanted < 2 * self.capacity:
            wanted = 2 * self.capacity
        with gil:
            try:
                self.hold(wanted)
            except MemoryError:
                return False
        return True

    cdef inline bint put(self, const uint8_t* data, Py_ssize_t n) noexcept nogil:
        if not self.grow(n):
            return False
        put_raw(self.p + self.n, data, n)
        self.n += n
        return True


cdef Memory zeros(object allocate, Py_ssize_t n):
    cdef Memory memory = Memory(allocate, n)
    memory.n = n
    if n:
        memset(memory.p, 0, <size_t>n)
    return memory


@cython.final
cdef class Texts:
    """A column of bytes or text that is being filled, row by row."""

    cdef Memory bits, ends, data
    cdef Py_ssize_t rows, nulls
    cdef bint large

    def __cinit__(self, allocate, Py_ssize_t length, bint large, Py_ssize_t capacity=0):
        self.bits = zeros(allocate, (length + 7) >> 3)
        self.ends = zeros(allocate, (length + 1) * (8 if large else 4))
        self.data = Memory(allocate, capacity)
        self.large = large

    cdef inline bint add(self, Slice s, bint valid) noexcept nogil:
        cdef Py_ssize_t i = self.rows
        self.rows = i + 1
        if valid:
            set_bit(self.bits.p, i)
            if s.n and not self.data.put(s.p, s.n):
                return False
        else:
            self.nulls += 1
        if self.large:
            (<int64_t*>self.ends.p)[i + 1] = self.data.n
        else:
            (<int32_t*>self.ends.p)[i + 1] = <int32_t>self.data.n
        return True

    def buffers(self):
        """(rows, nulls, validity, offsets, data)."""
        return self.rows, self.nulls, self.bits if self.nulls else None, self.ends, self.data


@cython.final
cdef class Numbers:
    """A column of 64-bit integers that is being filled; null where the row is."""

    cdef Memory data
    cdef Py_ssize_t rows

    def __cinit__(self, allocate, Py_ssize_t length):
        self.data = zeros(allocate, length * 8)

    cdef inline void add(self, int64_t number) noexcept nogil:
        (<int64_t*>self.data.p)[self.rows] = number
        self.rows += 1


@cython.final
cdef class MessageColumns:
    """Message envelopes decoded into columns."""

    cdef Texts keys, values, inboxes, idents, names, contents
    cdef Numbers policies, offsets
    cdef Memory bits, header_ends
    cdef HeaderSet seen
    cdef bint raw
    cdef Py_ssize_t rows
    cdef readonly list bad  # rows that are no sound envelopes

    def __cinit__(self, Column rows not None, bint large, bint raw, allocate):
        cdef Py_ssize_t n = rows.length, i
        # The values can't be larger than their envelopes: one allocation that never has to grow.
        self.keys, self.values = Texts(allocate, n, large), Texts(allocate, n, large, rows.nbytes)
        self.inboxes, self.idents = Texts(allocate, n, large), Texts(allocate, n, large)
        self.names, self.contents = Texts(allocate, 0, False), Texts(allocate, 0, False)
        self.policies, self.offsets = Numbers(allocate, n), Numbers(allocate, n)
        self.bits, self.header_ends = zeros(allocate, (n + 7) >> 3), zeros(allocate, (n + 1) * 4)
        self.seen = HeaderSet()
        self.raw, self.bad = raw, []
        cdef bint enough = True
        with nogil:
            for i in range(n):
                enough = self.decode(rows.items[i])
                if not enough:
                    break
        if not enough:
            raise MemoryError
        if self.names.data.n > MAX_ENVELOPE or self.contents.data.n > MAX_ENVELOPE:
            raise EnvelopeTooLargeError("the headers have more than 2 GiB together: decode fewer rows at a time")

    cdef bint decode(self, Slice row) noexcept nogil:
        cdef MessageFields f
        cdef Py_ssize_t i = self.rows
        cdef bint sound
        self.rows += 1
        if row.p != NULL:
            sound = parse_message(row.p, row.n, &f)
            if sound:
                set_bit(self.bits.p, i)
                return self.add(&f, row.p + row.n)
            with gil:
                self.bad.append(i)
        return self.add_null(row)

    cdef bint add_null(self, Slice row) noexcept nogil:
        cdef bint enough = self.values.add(row, self.raw and row.p != NULL)
        self.keys.add(row, False)
        self.inboxes.add(row, False)
        self.idents.add(row, False)
        self.policies.add(0)
        self.offsets.add(0)
        (<int32_t*>self.header_ends.p)[self.rows] = <int32_t>self.names.rows
        return enough

    cdef bint add(self, MessageFields* f, const uint8_t* end) noexcept nogil:
        cdef bint enough = self.values.add(f.value, True)
        enough = self.keys.add(f.key, f.key.n > 0) and enough
        enough = self.inboxes.add(f.ack_inbox, f.ack_inbox.n > 0) and enough
        enough = self.idents.add(f.correlation_id, f.correlation_id.n > 0) and enough
        self.policies.add(f.ack_policy)
        self.offsets.add(f.offset)
        if f.headers and enough:
            enough = self.add_headers(f, end)
        (<int32_t*>self.header_ends.p)[self.rows] = <int32_t>self.names.rows
        return enough

    cdef bint add_headers(self, MessageFields* f, const uint8_t* end) noexcept nogil:
        cdef Py_ssize_t left = f.headers, j
        cdef const uint8_t* p = f.first_header
        cdef Slice name, value
        cdef uint32_t tag
        if not self.seen.begin(left):
            return False
        while True:
            p = get_entry(p, end, &name, &value)
            self.seen.put(name, value)
            left -= 1
            if left == 0:
                break
            p = get_tag(p, end, &tag)
            while tag != TAG_HEADERS:
                p = get_tag(skip_field(p, end, tag), end, &tag)
        for j in range(self.seen.count):
            if not append_entry(self.names, self.seen.names[j]) or not append_entry(self.contents, self.seen.values[j]):
                return False
        return True

    def columns(self):
        """Field name to (rows, nulls, validity, offsets, data) of texts, to data of numbers."""
        return {
            "key": self.keys.buffers(),
            "value": self.values.buffers(),
            "ack_inbox": self.inboxes.buffers(),
            "correlation_id": self.idents.buffers(),
            "ack_policy": self.policies.data,
            "expected_offset": self.offsets.data,
            "header_offsets": self.header_ends,
            "header_names": self.names.buffers(),
            "header_values": self.contents.buffers(),
            "validity": self.bits,
        }


cdef bint append_entry(Texts column, Slice s) noexcept nogil:
    """Add to a column whose number of rows was not known: no row of it is null."""
    cdef int32_t end
    if not column.data.put(s.p, s.n):
        return False
    end = <int32_t>column.data.n
    column.rows += 1
    return column.ends.put(<const uint8_t*>&end, 4)


@cython.final
cdef class HeaderSet:
    """The headers of one message; of a repeated name the last value counts, at the first one's place."""

    cdef Slice* names
    cdef Slice* values
    cdef int32_t* table  # open addressing; entry + 1, 0 for none
    cdef Py_ssize_t count, capacity, mask

    def __dealloc__(self):
        free(self.names)
        free(self.values)
        free(self.table)

    cdef bint begin(self, Py_ssize_t entries) noexcept nogil:
        cdef Py_ssize_t size = 16
        self.count = 0
        while size < 2 * entries:
            size *= 2
        if size > self.capacity:
            free(self.names)
            free(self.values)
            free(self.table)
            self.capacity = 0
            self.names = <Slice*>malloc(<size_t>size * sizeof(Slice))
            self.values = <Slice*>malloc(<size_t>size * sizeof(Slice))
            self.table = <int32_t*>malloc(<size_t>size * sizeof(int32_t))
            if self.names == NULL or self.values == NULL or self.table == NULL:
                return False
            self.capacity = size
        self.mask = size - 1
        memset(self.table, 0, <size_t>size * sizeof(int32_t))
        return True

    cdef void put(self, Slice name, Slice value) noexcept nogil:
        cdef uint64_t mix = 0xcbf29ce484222325u  # FNV-1a
        cdef Py_ssize_t i
        cdef Slice* other
        for i in range(name.n):
            mix = (mix ^ name.p[i]) * 0x100000001b3u
        i = <Py_ssize_t>(mix >> 20) & self.mask
        while self.table[i]:
            other = &self.names[self.table[i] - 1]
            if other.n == name.n and memcmp(other.p, name.p, <size_t>name.n) == 0:
                self.values[self.table[i] - 1] = value
                return
            i = (i + 1) & self.mask
        self.names[self.count] = name
        self.values[self.count] = value
        self.count += 1
        self.table[i] = <int32_t>self.count


@cython.final
cdef class AckColumns:
    """Ack envelopes decoded into columns."""

    cdef Texts streams, partition_subjects, msg_subjects, inboxes, idents
    cdef Numbers offsets, policies, receptions, commits, errors
    cdef Memory bits
    cdef Py_ssize_t rows
    cdef readonly list bad  # rows that are no sound envelopes

    def __cinit__(self, Column rows not None, bint large, allocate):
        cdef Py_ssize_t n = rows.length, i
        self.streams, self.partition_subjects = Texts(allocate, n, large), Texts(allocate, n, large)
        self.msg_subjects, self.inboxes = Texts(allocate, n, large), Texts(allocate, n, large)
        self.idents, self.offsets = Texts(allocate, n, large), Numbers(allocate, n)
        self.policies, self.errors = Numbers(allocate, n), Numbers(allocate, n)
        self.receptions, self.commits = Numbers(allocate, n), Numbers(allocate, n)
        self.bits = zeros(allocate, (n + 7) >> 3)
        self.bad = []
        cdef bint enough = True
        with nogil:
            for i in range(n):
                enough = self.decode(rows.items[i])
                if not enough:
                    break
        if not enough:
            raise MemoryError

    cdef bint decode(self, Slice row) noexcept nogil:
        cdef AckFields f
        cdef Py_ssize_t i = self.rows
        cdef bint sound = row.p != NULL and parse_ack(row.p, row.n, &f)
        self.rows += 1
        if sound:
            set_bit(self.bits.p, i)
        else:
            memset(&f, 0, sizeof(AckFields))
            if row.p != NULL:
                with gil:
                    self.bad.append(i)
        self.offsets.add(f.offset)
        self.policies.add(f.ack_policy)
        self.receptions.add(f.reception_timestamp)
        self.commits.add(f.commit_timestamp)
        self.errors.add(f.error)
        return (self.streams.add(f.stream, sound) and self.partition_subjects.add(f.partition_subject, sound)
                and self.msg_subjects.add(f.msg_subject, sound) and self.inboxes.add(f.ack_inbox, f.ack_inbox.n > 0)
                and self.idents.add(f.correlation_id, f.correlation_id.n > 0))

    def columns(self):
        """Field name to (rows, nulls, validity, offsets, data) of texts, to data of numbers."""
        return {
            "stream": self.streams.buffers(),
            "partition_subject": self.partition_subjects.buffers(),
            "msg_subject": self.msg_subjects.buffers(),
            "ack_inbox": self.inboxes.buffers(),
            "correlation_id": self.idents.buffers(),
            "offset": self.offsets.data,
            "ack_policy": self.policies.data,
            "reception_timestamp": self.receptions.data,
            "commit_timestamp": self.commits.data,
            "ack_error": self.errors.data,
            "validity": self.bits,
        }
