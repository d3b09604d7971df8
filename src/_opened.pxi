# Subscriptions whose messages are taken by NatsWalker: a part of _fastframes.pyx.

@cython.final
cdef class _Opened:
    """Subscription whose messages are taken, and its messages of the current walk.

    `subject` and `subject_bytes` cache the last subject, because most messages of a subscription repeat it:
    comparing bytes is cheaper than decoding. Long subjects are not kept.
    """

    cdef object sid
    cdef int64_t number
    cdef bint payloads
    cdef type message_class    # class of the messages; None for tuples
    cdef object acks
    cdef bytes statuses        # subject prefix of statuses, which are left
    cdef Py_ssize_t size       # total length of the payloads in this walk
    cdef list messages         # messages of this walk; None before the first
    cdef str subject           # subject of the last message
    cdef bytes subject_bytes

    cdef int take(self, const Head* head, const uint8_t* body, bytes whole) except -1:
        """Append a message. `whole` is its headers and payload if they are a bytes object already, else None."""
        cdef Py_ssize_t n = <Py_ssize_t>(head.size - head.header_size)
        cdef bytes payload = whole
        cdef bytes headers = None
        if whole is None or head.header_size:
            payload = PyBytes_FromStringAndSize(<const char*>body + head.header_size, n)
        self.size += n
        if self.payloads:
            self.messages.append(payload)
            return 0
        if head.header_size:
            headers = PyBytes_FromStringAndSize(<const char*>body, <Py_ssize_t>head.header_size)
        if self.message_class is not None:
            self.messages.append(self.deliver(head, headers, payload))
            return 0
        cdef bytes reply = PyBytes_FromStringAndSize(<const char*>head.reply.p, head.reply.n) if head.reply.n else b""
        self.messages.append((self.subject_of(head.subject), reply, headers, payload))
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
        """Return true if the message is left to nats-py: a status, or one with an invalid reply subject."""
        if self.message_class is None:
            return False
        if head.reply.n:
            return not is_text(head.reply)
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
