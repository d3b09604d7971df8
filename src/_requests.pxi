# Requests of a gRPC call: a part of _fastbatch.pyx. The twin is `liftenvelope/_native/requests.py`.

@cython.final
cdef class Requests:
    """Rows to publish over gRPC: checked and measured on construction, written in spans. See Envelopes."""

    cdef Rows values, keys
    cdef HeaderRows headers
    cdef tuple keep              # objects that the rows and the two slices point into
    cdef Slice stream, ident
    cdef const int32_t* partitions
    cdef const int64_t* expected  # offset that each row must get; NULL for any
    cdef int32_t policy
    cdef bint has_headers
    cdef int64_t* sizes          # size of each request without its correlation id
    cdef readonly Py_ssize_t length
    cdef readonly Py_ssize_t nbytes  # of all values

    def __cinit__(self, bytes stream not None, Column values not None, Column keys, HeaderColumn headers,
                  partitions, ack_policy, bytes ident not None, expected=None):
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
        offsets = None
        if expected is not None:
            offsets = viewed_as(bytes(expected), 8)
            require_length(span(offsets).n >> 3, "expected", self.length)
            self.expected = <const int64_t*>span(offsets).p
        self.stream.p, self.stream.n = <const uint8_t*>PyBytes_AS_STRING(stream), PyBytes_GET_SIZE(stream)
        self.ident.p, self.ident.n = <const uint8_t*>PyBytes_AS_STRING(ident), PyBytes_GET_SIZE(ident)
        self.keep = stream, values, keys, headers, view, ident, offsets
        self.sizes = <int64_t*>malloc(<size_t>(self.length + 1) * sizeof(int64_t))
        if self.sizes == NULL:
            raise MemoryError
        self.measure()

    def __dealloc__(self):
        free(self.sizes)

    cdef measure(self):
        cdef Py_ssize_t i, fixed = (
            slice_size(self.stream.n) + number_size(self.policy) + constant_size(&self.values) + constant_size(&self.keys)
        )
        with nogil:
            for i in range(self.length):
                self.sizes[i] = fixed + number_size(self.partitions[i]) + number_size(self.expected_at(i))
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
        stream, values, keys, headers, *_ = self.keep
        request_row(i, stream, values.row(i), None if keys is None else keys.row(i),
                    None if headers is None else (<HeaderColumn>headers).row(i), 0, self.policy, b"")
        raise InternalError(f"the batch codec refused row {i}, which the codec takes")

    cdef inline int64_t expected_at(self, Py_ssize_t i) noexcept nogil:
        return -1 if self.expected == NULL else self.expected[i]

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
        return put_number(p, TAG_Q_EXPECTED_OFFSET, self.expected_at(i))


cdef bint has_server_header(const HeaderRows* rows, Py_ssize_t i) noexcept nogil:
    cdef Py_ssize_t j
    cdef Slice name
    for j in range(rows.starts[i], rows.starts[i] + header_count(rows, i)):
        name = row_at(&rows.names, j)
        if name.p != NULL and is_server_header(name):
            return True
    return False
