# Parser for the lines that a NATS server sends, inlined into each extension. liftenvelope/_native/nats_walker.py
# shows their layout. It accepts only the form that servers write: blanks between words, decimal sizes, CRLF.
# Anything else is UNKNOWN, and the caller leaves it to the client that owns the connection.

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy

from _cursor cimport Slice

cdef enum:
    OTHER = 0  # a line without a message after it
    MESSAGE = 1
    UNKNOWN = 2
    LONGEST_LINE = 65_536
    CRLF = 2
    MOST_DIGITS = 18  # 18 digits fit in 63 bits

cdef struct Head:
    Slice subject
    Slice reply
    int64_t sid
    int64_t header_size
    int64_t size


cdef inline bint is_space(uint8_t c) noexcept nogil:
    return c <= 32 and (c == 32 or 9 <= c <= 13)


cdef inline const uint8_t* get_word(const uint8_t* p, const uint8_t* end, Slice* word) noexcept nogil:
    """Read the word at `p`; return the position after it, NULL if there is none.

    Reply subjects have a hundred bytes, so eight that are all above a blank are passed at a time.
    """
    cdef uint64_t eight
    word.p = p
    while end - p >= 8:
        memcpy(&eight, p, 8)
        if (eight - 0x2121212121212121u) & ~eight & 0x8080808080808080u:
            break
        p += 8
    while p < end and not is_space(p[0]):
        p += 1
    word.n = p - word.p
    return p if word.n else NULL


cdef inline bint get_number(Slice word, int64_t* out) noexcept nogil:
    cdef int64_t number = 0
    cdef Py_ssize_t i
    if word.n > MOST_DIGITS:
        return False
    for i in range(word.n):
        if not 48 <= word.p[i] <= 57:
            return False
        number = number * 10 + (word.p[i] - 48)
    out[0] = number
    return True


cdef inline bint parse_head(const uint8_t* p, const uint8_t* end, Py_ssize_t sizes, Head* head) noexcept nogil:
    """Parse the words after MSG or HMSG: subject, sid, optional reply, then `sizes` sizes."""
    cdef Slice words[5]
    cdef Py_ssize_t count = 0
    while True:
        while p < end and p[0] == 32:  # nats-server 2.15.1 writes two for a reply that it leaves out
            p += 1
        if count == 5:
            return False
        p = get_word(p, end, &words[count])
        if p == NULL:
            return False
        count += 1
        if p == end:
            break
        if p[0] != 32:
            return False
    if count != sizes + 2 and count != sizes + 3:
        return False
    head.subject = words[0]
    head.reply.p = NULL
    head.reply.n = 0
    if count == sizes + 3:
        head.reply = words[2]
    head.header_size = 0
    if sizes == 2 and not get_number(words[count - 2], &head.header_size):
        return False
    return (get_number(words[1], &head.sid) and get_number(words[count - 1], &head.size)
            and head.header_size <= head.size)


cdef inline bint begins(const uint8_t* p, Py_ssize_t n, const char* text, Py_ssize_t size) noexcept nogil:
    return n >= size and memcmp(p, text, <size_t>size) == 0


cdef inline int parse_line(const uint8_t* p, Py_ssize_t n, Head* head) noexcept nogil:
    """Return the kind of the line in the `n` bytes at `p`, CRLF excluded; fill `head` for a MESSAGE."""
    if begins(p, n, b"MSG ", 4):
        return MESSAGE if parse_head(p + 4, p + n, 1, head) else UNKNOWN
    if begins(p, n, b"HMSG ", 5):
        return MESSAGE if parse_head(p + 5, p + n, 2, head) else UNKNOWN
    if n == 4 and (begins(p, n, b"PING", 4) or begins(p, n, b"PONG", 4)):
        return OTHER
    if n == 3 and begins(p, n, b"+OK", 3):
        return OTHER
    if begins(p, n, b"-ERR '", 6) and n >= 8 and p[n - 1] == 39:
        return OTHER
    if begins(p, n, b"INFO ", 5) and n > 5 and memchr(p + 5, 13, <size_t>(n - 5)) == NULL:
        return OTHER
    return UNKNOWN
