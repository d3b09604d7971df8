# Rows to encode or to decode, read in place: a part of _fastbatch.pyx. The twin is `liftenvelope/_native/columns.py`.

cdef object viewed(object buffer):
    return None if buffer is None else memoryview(buffer)


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
