# Cuts the bytes of a gRPC call into messages, without the GIL: a part of _fastbulk.pyx.

cdef enum:
    PAIR = 16  # size of a span: two 64-bit integers


cdef bint keep(_Memory memory, const uint8_t* p, Py_ssize_t n) noexcept nogil:
    """Append bytes; false if memory ran out."""
    if not memory.fits(n, 0):
        return False
    memcpy(memory.p + memory.n, p, <size_t>n)
    memory.n += n
    return True


cdef class _Messages:
    """Cuts the bytes of a gRPC call into messages; a subclass processes each with add(). The sink of a call.

    Invariant: every byte put here was processed or is held in `part` or `rest`, except after DONE and BROKEN. `part`
    holds at most one incomplete message, from its prefix on; it is empty at a message boundary. A complete message
    in the input is passed to add() in place, and only a message split between two payloads is copied. `rest` holds
    the input behind the message that made `state` FULL, until resume(); `part` is empty then.
    """

    cdef Py_ssize_t max_message
    cdef readonly int state         # MORE, or the reason why messages are not processed any more
    cdef readonly bytes bad         # malformed message, or prefix of a compressed or too long one
    cdef _Memory part               # bytes of an incomplete message, prefix included
    cdef _Memory rest               # bytes behind the message that filled the batch
    cdef Py_ssize_t rest_at         # start of the bytes in rest that were not processed

    cdef void cut(self, Py_ssize_t max_message, object allocate):
        self.max_message, self.bad = max_message, b""
        self.part, self.rest = _Memory(allocate, 0), _Memory(allocate, 0)
        self.restart()

    cdef void restart(self):
        self.state = STATE_MORE
        self.part.n = self.rest.n = self.rest_at = 0

    @property
    def inside_message(self):
        """True if the input so far ends inside a message."""
        return self.state == STATE_MORE and self.part.n > 0

    def put(self, view, bytes spans not None):
        """Take payloads: `spans` has the start and end of each in `view`, as 64-bit integers."""
        held = memoryview(view)
        cdef Slice data = span(held)
        cdef Py_ssize_t count = PyBytes_GET_SIZE(spans) // PAIR, i
        cdef const char* p = PyBytes_AS_STRING(spans)
        cdef int64_t pair[2]
        cdef int state
        for i in range(count):
            memcpy(pair, p + i * PAIR, PAIR)
            if not 0 <= pair[0] <= pair[1] <= data.n:
                raise UsageError(f"{pair[0]} to {pair[1]} are not a part of {data.n} bytes")
        self.begin()
        with nogil:
            state = self.run_spans(data.p, p, count)
        self.stopped(state)

    def resume(self):
        """Process the input behind the message that filled the batch, which was taken meanwhile."""
        cdef int state
        if self.state != STATE_FULL:
            return
        self.begin()
        with nogil:
            state = self.run(self.rest.p, &self.rest_at, self.rest.n)
        if state != STATE_FULL:
            self.rest.n = self.rest_at = 0
        self.stopped(state)

    cdef int stopped(self, int state) except -1:
        if state == NO_MEMORY:
            raise MemoryError
        self.state = state
        return 0

    cdef int run_spans(self, const uint8_t* data, const char* spans, Py_ssize_t count) noexcept nogil:
        """Process the payloads up to one that fills the batch; keep the rest of that and those behind it."""
        cdef int64_t pair[2]
        cdef int state = self.state
        cdef Py_ssize_t at, i
        for i in range(count):
            memcpy(pair, spans + i * PAIR, PAIR)
            at = <Py_ssize_t>pair[0]
            if state == STATE_MORE:
                state = self.run(data, &at, <Py_ssize_t>pair[1])
            if state == STATE_FULL:
                if not keep(self.rest, data + at, <Py_ssize_t>pair[1] - at):
                    return NO_MEMORY
            elif state != STATE_MORE:
                break
        return state

    cdef int begin(self) except -1:
        """Prepare for messages; called with the GIL before messages are processed."""
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
                    state = STATE_MORE if keep(self.part, p + at[0], end - at[0]) else NO_MEMORY
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
        if not keep(self.part, p + at[0], n):
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
