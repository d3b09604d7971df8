# Arrow columns under construction, filled row by row without the GIL: a part of _fastbatch.pyx and _fastbulk.pyx.
#
# Invariant of every column here: after add(i, ...), rows 0 to i are complete and the offsets behind them are set, so
# that the first n rows can be handed out at any row. Rows are added in order. A false result of add() means that
# memory ran out, and the column must not be used any more.

@cython.final
cdef class _Memory:
    """Growable bytes from an allocator of the caller.

    Why not malloc: Arrow's pool keeps its pages, while malloc makes the system map and clear new ones for every
    batch. `p` changes when the memory grows, so a pointer into it is valid only until the next fits() or grow().
    """

    cdef object allocate  # bytes -> a writable buffer
    cdef object store     # memoryview of the current buffer
    cdef uint8_t* p
    cdef Py_ssize_t n, capacity

    def __cinit__(self, allocate, Py_ssize_t capacity):
        self.allocate = allocate
        self.hold(capacity)

    cdef int hold(self, Py_ssize_t capacity) except -1:
        store = memoryview(self.allocate(capacity))
        cdef Slice s = span(store)
        if s.n < capacity:
            raise MemoryError
        if self.n:
            memcpy(<uint8_t*>s.p, self.p, <size_t>self.n)
        self.store, self.p, self.capacity = store, <uint8_t*>s.p, s.n
        return 0

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.p if self.n else <void*>"", self.n, 1, flags & ~PyBUF_WRITABLE)

    cdef inline bint fits(self, Py_ssize_t more, Py_ssize_t likely) noexcept nogil:
        """Make room for `more` bytes, and for `likely` bytes in total; false if memory ran out."""
        return more <= self.capacity - self.n or self.grow(more, likely)

    cdef bint grow(self, Py_ssize_t more, Py_ssize_t likely) noexcept nogil:
        with gil:
            try:
                self.hold(max(self.n + more, 2 * self.capacity, likely))
            except MemoryError:
                return False
        return True


cdef _Memory full(object allocate, Py_ssize_t n):
    """Return memory of `n` bytes that are all in use, with undefined content."""
    cdef _Memory memory = _Memory(allocate, n)
    memory.n = n
    return memory


@cython.final
cdef class _Bits:
    """Validity bitmap: all ones until a row is marked null."""

    cdef _Memory memory
    cdef uint8_t* p
    cdef Py_ssize_t nulls

    def __cinit__(self, allocate, Py_ssize_t rows):
        self.memory = full(allocate, (rows + 7) >> 3)
        self.p = self.memory.p
        set_bits(self.p, rows)

    cdef inline void clear(self, Py_ssize_t i) noexcept nogil:
        clear_bit(self.p, i)
        self.nulls += 1

    cdef object buffer(self):
        return self.memory if self.nulls else None


@cython.final
cdef class _Texts:
    """Column of bytes or text under construction.

    `begin`, `next` and `limit` cache the state of `data`, because reaching it through the other object for
    each row costs too much. `data.n` is therefore stale between grow() and buffers(), which both update it.
    """

    cdef _Memory data, end_memory
    cdef _Bits valid
    cdef uint8_t* begin        # start of the data, position of the next byte, end of the room
    cdef uint8_t* next
    cdef uint8_t* limit
    cdef int32_t* ends         # NULL if the offsets have 64 bits
    cdef int64_t* large_ends
    cdef Py_ssize_t rows, most  # most: upper bound of the data, in bytes

    def __cinit__(self, allocate, Py_ssize_t rows, bint large, Py_ssize_t most, Py_ssize_t capacity=0):
        self.valid = _Bits(allocate, rows)
        self.end_memory = full(allocate, (rows + 1) * (8 if large else 4))
        self.data = _Memory(allocate, capacity)
        self.take_room(0)
        self.rows, self.most = rows, most
        if large:
            self.large_ends = <int64_t*>self.end_memory.p
            self.large_ends[0] = 0
        else:
            self.ends = <int32_t*>self.end_memory.p
            self.ends[0] = 0

    cdef void take_room(self, Py_ssize_t n) noexcept nogil:
        self.begin = self.data.p
        self.next = self.begin + n
        self.limit = self.begin + self.data.capacity

    cdef bint grow(self, Py_ssize_t i, Py_ssize_t more) noexcept nogil:
        # If later rows have the average size of the rows so far, the column is allocated once.
        cdef Py_ssize_t n = self.next - self.begin, likely = (n + more) // (i + 1) + 1
        self.data.n = n
        if not self.data.grow(more, self.most if likely > self.most // self.rows else likely * self.rows):
            return False
        self.take_room(n)
        return True

    cdef inline bint add(self, Py_ssize_t i, Slice s, bint null) noexcept nogil:
        if s.n > self.limit - self.next and not self.grow(i, s.n):
            return False
        self.next = put_raw(self.next, s.p, s.n)
        self.end(i, null)
        return True

    cdef inline bint add_bulk(self, Py_ssize_t i, Slice s, bint null) noexcept nogil:
        if s.n > self.limit - self.next and not self.grow(i, s.n):
            return False
        self.next = put_bulk(self.next, s.p, s.n)
        self.end(i, null)
        return True

    cdef inline void end(self, Py_ssize_t i, bint null) noexcept nogil:
        if null:
            self.valid.clear(i)
        if self.ends != NULL:
            self.ends[i + 1] = <int32_t>(self.next - self.begin)
        else:
            self.large_ends[i + 1] = self.next - self.begin

    def buffers(self):
        """Return (rows, nulls, validity, offsets, data)."""
        self.data.n = self.next - self.begin
        return self.rows, self.valid.nulls, self.valid.buffer(), self.end_memory, self.data


@cython.final
cdef class _Views:
    """Column of binary views under construction, which point into the memory of the rows instead of copying it.

    Layout of a view: https://arrow.apache.org/docs/format/Columnar.html#variable-size-binary-view-layout. `data`
    keeps that memory alive. Its positions fit in 32 bits, which the constructor checks.
    """

    cdef _Memory views
    cdef _Bits valid
    cdef object data           # memoryview of the only buffer that the views point into
    cdef const uint8_t* begin
    cdef Py_ssize_t rows

    def __cinit__(self, allocate, Py_ssize_t rows, data):
        cdef Slice content = span(data)
        if content.n > MAX_ENVELOPE:
            raise UsageError(f"binary views point into at most {MAX_ENVELOPE} bytes, got {content.n}")
        self.views, self.valid = full(allocate, rows * 16), _Bits(allocate, rows)
        self.data, self.begin, self.rows = b"" if data is None else data, content.p, rows

    cdef inline void add(self, Py_ssize_t i, Slice s, bint null) noexcept nogil:
        cdef uint8_t* view = self.views.p + i * 16
        cdef int32_t parts[4]
        memset(parts, 0, sizeof(parts))
        parts[0] = <int32_t>s.n
        if null:
            self.valid.clear(i)
        if s.n > 12:  # shorter ones stand in the view itself
            memcpy(&parts[1], s.p, 4)
            parts[3] = <int32_t>(s.p - self.begin)
        elif s.n:
            put_raw(<uint8_t*>&parts[1], s.p, s.n)
        memcpy(view, parts, sizeof(parts))

    def buffers(self):
        """Return (rows, nulls, validity, views, data)."""
        return self.rows, self.valid.nulls, self.valid.buffer(), self.views, self.data


@cython.final
cdef class _Entries:
    """Column of header names or values: an unknown number of rows, none of them null."""

    cdef _Memory ends, data
    cdef Py_ssize_t rows

    def __cinit__(self, allocate):
        self.ends, self.data = _Memory(allocate, 0), _Memory(allocate, 0)
        self.put_end()

    cdef inline bint add(self, Slice s) noexcept nogil:
        if not self.data.fits(s.n, 0):
            return False
        put_raw(self.data.p + self.data.n, s.p, s.n)
        self.data.n += s.n
        self.rows += 1
        return self.put_end()

    cdef inline bint put_end(self) noexcept nogil:
        if not self.ends.fits(4, 4096):
            return False
        (<int32_t*>(self.ends.p + self.ends.n))[0] = <int32_t>self.data.n
        self.ends.n += 4
        return True

    def buffers(self):
        """Return (rows, nulls, validity, offsets, data)."""
        return self.rows, 0, None, self.ends, self.data


@cython.final
cdef class _Headers:
    """Column of header maps: names and values of all rows, and the end of each row's run."""

    cdef _Entries names, contents
    cdef _Memory ends
    cdef HeaderSet seen

    def __cinit__(self, allocate, Py_ssize_t rows):
        self.names, self.contents = _Entries(allocate), _Entries(allocate)
        self.ends = full(allocate, (rows + 1) * 4)
        (<int32_t*>self.ends.p)[0] = 0

    def __dealloc__(self):
        free_headers(&self.seen)

    cdef inline bint add(self, Py_ssize_t i, const MessageFields* f, const uint8_t* end, bint strip) noexcept nogil:
        """Add the headers of a parsed message; with `strip`, without those that the server adds."""
        if f.headers and not self.add_entries(f, end, strip):
            return False
        (<int32_t*>self.ends.p)[i + 1] = <int32_t>self.names.rows
        return True

    cdef bint add_entries(self, const MessageFields* f, const uint8_t* end, bint strip) noexcept nogil:
        cdef Py_ssize_t left = f.headers, j
        cdef const uint8_t* p = f.first_header
        cdef Slice name, value
        cdef uint32_t tag
        if not begin_headers(&self.seen, left):
            return False
        while True:
            p = get_entry(p, end, &name, &value)
            if not strip or not is_server_header(name):
                add_header(&self.seen, name, value)
            left -= 1
            if left == 0:
                break
            p = get_tag(p, end, &tag)
            while tag != TAG_HEADERS:
                p = get_tag(skip_field(p, end, tag), end, &tag)
        for j in range(self.seen.count):
            if not self.names.add(self.seen.names[j]) or not self.contents.add(self.seen.values[j]):
                return False
        return True

    cdef int require_room(self) except -1:
        """Check that the 32-bit offsets have not overflowed; a batch is checked once, after its last row."""
        if self.names.data.n > MAX_ENVELOPE or self.contents.data.n > MAX_ENVELOPE:
            raise EnvelopeTooLargeError("the headers have more than 2 GiB together: decode fewer rows at a time")
        return 0

    cdef dict columns(self):
        return {
            "header_offsets": self.ends,
            "header_names": self.names.buffers(),
            "header_values": self.contents.buffers(),
        }
