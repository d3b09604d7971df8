# Rows of a MessageBlock, and the functions by which _fasthandout reads them: it does not see the class, and to call its
# methods for each message takes 20 times as long.

from cpython.object cimport PyObject
from libc.stdint cimport int64_t

cdef struct BlockRow:
    int64_t sequence        # of the stream; -1 if the reply subject has no numbers, as the other two then
    int64_t delivery
    int64_t stored_at
    # Subject, reply, headers and payload follow each other from `start` on, which is added to the base of the block.
    # A row of a message that is an object has only the payload.
    size_t start
    Py_ssize_t subject, reply, headers, value
    Py_ssize_t size         # bytes that the message counts for

cdef struct BlockFunctions:
    Py_ssize_t (*rows)(PyObject* block, const BlockRow** rows) noexcept
    object (*message)(object block, Py_ssize_t i)
