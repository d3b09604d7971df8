# Cuts the bytes of a gRPC call into messages, without the GIL: a part of _fastbulk.pyx.

cdef class _Messages:
    """Cuts the bytes of a gRPC call into messages; a subclass processes each with add().

    Invariant: every byte before `at` has been processed or is held in `part`. `part` holds at most one
    incomplete message, from its prefix on; it is empty at a message boundary. A complete message in the input
    is passed to add() in place, and only a message split between two inputs is copied.
    """

    cdef Py_ssize_t max_message
    cdef readonly bytes bad         # malformed message, or prefix of a compressed or too long one
    cdef _Memory part               # bytes of an incomplete message, prefix included

    cdef void cut(self, Py_ssize_t max_message, object allocate):
        self.max_message, self.bad = max_message, b""
        self.part = _Memory(allocate, 0)

    @property
    def inside_message(self):
        """True if the input so far ends inside a message."""
        return self.part.n > 0

    def feed(self, view, Py_ssize_t start, Py_ssize_t end):
        """Parse from `start` to `end`; return the reason to stop and the stop position."""
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
        """Prepare for messages; called with the GIL before each feed()."""
        return 0

    cdef int wants(self) noexcept nogil:
        """Return MORE, or the reason to stop before the next message."""
        return STATE_MORE

    cdef int add(self, const uint8_t* p, Py_ssize_t n) noexcept nogil:
        """Process a complete message; return MORE or a reason to stop."""
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
        """Return the size, prefix included: `n + 1` if the prefix is incomplete, -1 if it is not acceptable."""
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
        """Add bytes to the incomplete message; process it once it is complete.

        The prefix is completed first, because the size is known only then.
        """
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
