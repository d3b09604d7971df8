# cython: language_level=3, boundscheck=False, wraparound=False, auto_pickle=False
"""Two faults that the campaign has to find, each behind five bytes that only guidance by coverage gets right."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE


cdef int letters(const char* p, Py_ssize_t n, const char* word):
    """Return the number of letters of a word of five that begin the text."""
    if n < 1 or p[0] != word[0]:
        return 0
    if n < 2 or p[1] != word[1]:
        return 1
    if n < 3 or p[2] != word[2]:
        return 2
    if n < 4 or p[3] != word[3]:
        return 3
    if n < 5 or p[4] != word[4]:
        return 4
    return 5


def read(bytes data not None):
    """Read one byte behind the end of bytes that begin with OVERR; return something for TWINS, None for others."""
    cdef const char* p = PyBytes_AS_STRING(data)
    cdef Py_ssize_t n = PyBytes_GET_SIZE(data)
    if letters(p, n, b"OVERR") == 5:
        return p[n]
    if letters(p, n, b"TWINS") == 5:
        return "found"
    return None
