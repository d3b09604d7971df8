# Messages delivered by a consumer; a part of _fastframes.pyx.

cdef struct Numbers:
    int64_t sequence
    int64_t delivery
    int64_t stored_at


cdef class Delivered:
    """A message delivered by a consumer: base of the public message class.

    The reply subject stays as bytes until someone asks for it as text: an ack needs only the bytes. Its numbers are
    read once, by numbers_of().
    """

    cdef readonly str subject
    cdef readonly bytes data
    cdef object raw_reply       # bytes as received, or str
    cdef str text_reply
    cdef Numbers numbers
    cdef int numbers_read       # 0: not yet; 1: `numbers` are those of the reply; -1: the reply has another form
    cdef public object _headers
    cdef public object _acks
    cdef public object _metadata
    cdef public bint _acked
    cdef public Py_ssize_t _size

    def __init__(self, str subject not None, str reply not None, bytes data not None, headers, acks):
        self.subject = subject
        self.raw_reply = self.text_reply = reply
        self.numbers_read = 0
        self.data = data
        self._headers = headers
        self._acks = acks

    @property
    def reply(self):
        """Subject for the ack, empty if there is none."""
        if self.text_reply is None:
            self.text_reply = (<bytes>self.raw_reply).decode()
        return self.text_reply

    @property
    def _is_open(self):
        """True if the message can be acked and has not been."""
        return not self._acked and bool(self.raw_reply)

    def _ack_frame(self, bytes payload not None):
        """Return the PUB command of an ack."""
        cdef bytes reply = self.raw_reply if type(self.raw_reply) is bytes else (<str>self.raw_reply).encode()
        cdef bytes size = b"4" if PyBytes_GET_SIZE(payload) == 4 else b"%d" % PyBytes_GET_SIZE(payload)
        cdef bytes frame = PyBytes_FromStringAndSize(
            NULL, PyBytes_GET_SIZE(reply) + PyBytes_GET_SIZE(size) + PyBytes_GET_SIZE(payload) + 9)
        cdef char* p = put(PyBytes_AS_STRING(frame), b"PUB ", 4)
        p = put(p, PyBytes_AS_STRING(reply), PyBytes_GET_SIZE(reply))
        p = put(p, b" ", 1)
        p = put(p, PyBytes_AS_STRING(size), PyBytes_GET_SIZE(size))
        p = put(p, b"\r\n", 2)
        p = put(p, PyBytes_AS_STRING(payload), PyBytes_GET_SIZE(payload))
        put(p, b"\r\n", 2)
        return frame


cdef Py_ssize_t parts_of(PyObject* message, PyObject** data) noexcept:
    """Return the size of a Delivered, and its payload in `data`, borrowed."""
    data[0] = <PyObject*>(<Delivered>message).data
    return (<Delivered>message)._size


# parts_of() for _fasthandout, which does not see the fields: to read them as attributes takes 20 times as long.
_PARTS = PyCapsule_New(<void*>parts_of, "liftenvelope.parts_of", NULL)
