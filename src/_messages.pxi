# The bytes of a gRPC call, cut into messages without the GIL: a part of _fastbulk.pyx.

cdef class _Messages:
    """Cuts the bytes of a gRPC call into messages, and has a subclass take each."""

    cdef Py_ssize_t max_message
    cdef readonly bytes bad         # the message that is none, or is too long
    cdef _Memory part               # the beginning of a message that came in part, with its prefix

    cdef void cut(self, Py_ssize_t max_message, object allocate):
        self.max_message, self.bad = max_message, b""
        self.part = _Memory(allocate, 0)

    @property
    def inside_message(self):
        """Whether what came last was not the end of a message."""
        return self.part.n > 0

    def feed(self, view, Py_ssize_t start, Py_ssize_t end):
        """Go on at start, as far as end; returns why it stopped, and where."""
        held = memoryview(view)
        cdef Slice data = span(held)
        cdef Py_ssize_t at = start
        cdef int state
        if not 0 <= start <= end <= data.n:
            raise UsageError(f"{start} to {end} are not a part of {data.n} bytes")
        self.begin()
        with nogil:
            state = self.run(data.p, &at, end)
        if state == NO_MEMORY:
            raise MemoryError
        return state, at

    cdef int begin(self) except -1:
        """What there is to do before anything is taken."""
        return 0

    cdef int wants(self) noexcept nogil:
        """MORE, or why no message is wanted."""
        return STATE_MORE

    cdef int add(self, const uint8_t* p, Py_ssize_t n) noexcept nogil:
        """Take a message that is whole."""
        return STATE_MORE

    cdef int run(self, const uint8_t* p, Py_ssize_t* at, Py_ssize_t end) noexcept nogil:
        cdef int state
        cdef Py_ssize_t size
        while True:
            state = self.wants()
            if state != STATE_MORE or at[0] == end:
                return state
            if self.part.n:
                state = self.fill(p, at, end)
            else:
                size = self.message_size(p + at[0], end - at[0])
                if size < 0:
                    return STATE_BROKEN
                if size > end - at[0]:
                    state = STATE_MORE if self.keep(p + at[0], end - at[0]) else NO_MEMORY
                    at[0] = end
                else:
                    state = self.add(p + at[0] + PREFIX, size - PREFIX)
                    at[0] += size
            if state != STATE_MORE:
                return state

    cdef Py_ssize_t message_size(self, const uint8_t* p, Py_ssize_t n) noexcept nogil:
        """With its prefix; one more than there is where that has not come; -1 for what must not."""
        cdef Py_ssize_t size
        if n < PREFIX:
            return n + 1
        size = (<Py_ssize_t>p[1] << 24) | (<Py_ssize_t>p[2] << 16) | (<Py_ssize_t>p[3] << 8) | <Py_ssize_t>p[4]
        if p[0] != 0 or size > self.max_message:
            self.show(p, PREFIX)
            return -1
        return size + PREFIX

    cdef void show(self, const uint8_t* p, Py_ssize_t n) noexcept with gil:
        self.bad = PyBytes_FromStringAndSize(<const char*>p, n)

    cdef bint keep(self, const uint8_t* p, Py_ssize_t n) noexcept nogil:
        if not self.part.fits(n, 0):
            return False
        memcpy(self.part.p + self.part.n, p, <size_t>n)
        self.part.n += n
        return True

    cdef int fill(self, const uint8_t* p, Py_ssize_t* at, Py_ssize_t end) noexcept nogil:
        """Go on with the message that came in part."""
        cdef Py_ssize_t size = PREFIX, n
        if self.part.n >= PREFIX:
            size = self.message_size(self.part.p, self.part.n)
            if size < 0:
                return STATE_BROKEN
        n = min(size - self.part.n, end - at[0])
        if not self.keep(p + at[0], n):
            return NO_MEMORY
        at[0] += n
        if self.part.n >= PREFIX:
            size = self.message_size(self.part.p, self.part.n)
            if size < 0:
                return STATE_BROKEN
            if size == self.part.n:
                self.part.n = 0
                return self.add(self.part.p + PREFIX, size - PREFIX)
        return STATE_MORE
