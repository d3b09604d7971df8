# Subscriptions whose messages are taken by NatsWalker: a part of _fastframes.pyx.

@cython.final
cdef class _MessageRun:
    """Messages of one subscription in one walk: all up to the next status, or a status alone."""

    cdef _Opened opened
    cdef Py_ssize_t size       # total length of the payloads
    cdef list messages         # None if they are rows
    cdef _Storage rows

    cdef object content(self):
        """Return the messages as a list or a block."""
        cdef MessageBlock block
        if self.messages is not None:
            return self.messages
        self.rows.trim()
        block = MessageBlock.__new__(MessageBlock)
        block.show(self.rows, 0, self.rows.count)
        return block


@cython.final
cdef class _Opened:
    """Subscription whose messages are taken, and its run of messages in the current walk.

    `subject` and `subject_bytes` cache the last subject, because most messages of a subscription repeat it:
    comparing bytes is cheaper than decoding. Long subjects are not kept. `prefix` caches the last reply subject up to
    its numbers: to find them anew takes ten times as long.
    """

    cdef object sid
    cdef int64_t number
    cdef bint payloads
    cdef type message_class    # class of the messages; None for tuples
    cdef object acks
    cdef bytes statuses        # subject prefix of statuses
    cdef _MessageRun run       # run that the next message continues; None if it begins one
    cdef bint in_blocks        # messages of the class are rows of a block, and not objects
    cdef str subject           # subject of the last message
    cdef bytes subject_bytes
    cdef uint8_t prefix[LONGEST_KEPT]
    cdef Py_ssize_t prefix_size
    cdef bint prefix_ends      # the numbers of that form are followed by one token alone

    cdef int take(self, const Head* head, const uint8_t* body, bytes whole, list runs) except -1:
        """Add a message to the runs of this walk. See append() for `whole`."""
        cdef bint alone = self.is_status(head)
        if alone or self.run is None:
            self.run = _MessageRun.__new__(_MessageRun)
            self.run.opened, self.run.size = self, 0
            if self.in_blocks and not alone:
                self.run.rows = _Storage.__new__(_Storage)
                self.run.rows.message_class, self.run.rows.acks = self.message_class, self.acks
            else:
                self.run.messages = []
            runs.append(self.run)
        if self.run.messages is None:
            self.add_row(head, body)
        else:
            self.append(head, body, whole)
        if alone:
            self.run = None
        return 0

    cdef int add_row(self, const Head* head, const uint8_t* body) except -1:
        cdef Numbers numbers
        cdef bint known = self.read_reply(head.reply, &numbers)
        self.run.rows.add(head, body, &numbers if known else NULL)
        self.run.size += <Py_ssize_t>(head.size - head.header_size)
        return 0

    cdef bint read_reply(self, Slice reply, Numbers* numbers) noexcept:
        """Read the numbers of a reply subject; false if it has none."""
        cdef const uint8_t* end = reply.p + reply.n
        cdef const uint8_t* p
        cdef Py_ssize_t start = 0, dots
        if self.prefix_size and begins(reply.p, reply.n, <const char*>self.prefix, self.prefix_size):
            p = read_three(reply.p + self.prefix_size, end, numbers)
            if p != NULL and not (self.prefix_ends and memchr(p, c'.', <size_t>(end - p)) != NULL):
                return True
        dots = find_numbers(reply, numbers, &start)
        if dots and start <= LONGEST_KEPT:
            memcpy(self.prefix, reply.p, <size_t>start)
            self.prefix_size, self.prefix_ends = start, dots == V1_DOTS
        return dots > 0

    cdef int append(self, const Head* head, const uint8_t* body, bytes whole) except -1:
        """Append a message. `whole` is its headers and payload if they are a bytes object already, else None."""
        cdef list messages = self.run.messages
        cdef Py_ssize_t n = <Py_ssize_t>(head.size - head.header_size)
        cdef bytes payload = whole
        cdef bytes headers = None
        if whole is None or head.header_size:
            payload = PyBytes_FromStringAndSize(<const char*>body + head.header_size, n)
        self.run.size += n
        if self.payloads:
            messages.append(payload)
            return 0
        if head.header_size:
            headers = PyBytes_FromStringAndSize(<const char*>body, <Py_ssize_t>head.header_size)
        if self.message_class is not None:
            messages.append(self.deliver(head, headers, payload))
            return 0
        cdef bytes reply = PyBytes_FromStringAndSize(<const char*>head.reply.p, head.reply.n) if head.reply.n else b""
        messages.append((self.subject_of(head.subject), reply, headers, payload))
        return 0

    cdef Delivered deliver(self, const Head* head, bytes headers, bytes payload):
        cdef Delivered message = <Delivered>new_of(<PyTypeObject*>self.message_class, EMPTY, NULL)
        message.subject = self.subject_of(head.subject)
        message.raw_reply = PyBytes_FromStringAndSize(<const char*>head.reply.p, head.reply.n)
        message.data = payload
        message._headers = headers
        message._acks = self.acks
        message._size = head.subject.n + head.reply.n + <Py_ssize_t>head.size
        return message

    cdef bint leaves(self, const Head* head) except -1:
        """Return true if the message is left to nats-py, because its reply subject is invalid."""
        return self.message_class is not None and head.reply.n > 0 and not is_text(head.reply)

    cdef bint is_status(self, const Head* head) except -1:
        """Return true for a status of the server, which has no reply subject."""
        if self.message_class is None or head.reply.n > 0:
            return False
        return begins(head.subject.p, head.subject.n, PyBytes_AS_STRING(self.statuses),
                      PyBytes_GET_SIZE(self.statuses))

    cdef str subject_of(self, Slice subject):
        if (subject.n != PyBytes_GET_SIZE(self.subject_bytes)
                or memcmp(subject.p, PyBytes_AS_STRING(self.subject_bytes), <size_t>subject.n) != 0):
            self.subject = PyUnicode_DecodeUTF8(<const char*>subject.p, subject.n, "strict")
            self.subject_bytes = b""
            if subject.n <= LONGEST_KEPT:
                self.subject_bytes = PyBytes_FromStringAndSize(<const char*>subject.p, subject.n)
        return self.subject
