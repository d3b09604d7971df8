# Numbers in the reply subjects of a consumer's messages; a part of _fastframes.pyx.

cdef enum:
    V1_DOTS = 8     # $JS.ACK.<stream>.<consumer>.<delivered>.<sseq>.<cseq>.<ns>.<pending>
    V2_DOTS = 10    # the same behind $JS.ACK.<domain>.<account>, perhaps with one more token
    LONGEST_NUMBER = 19  # as many digits fit in 64 bits without a sign

cdef uint64_t LARGEST = 0x7FFFFFFFFFFFFFFF
cdef Py_ssize_t LARGEST_COLUMN = 0x7FFFFFFF  # ends of an Arrow binary column have 32 bits


cdef inline bint numbers_of(Delivered one, Numbers* numbers) except -1:
    """Return the numbers in the reply subject of a message; false as for read_numbers()."""
    if one.numbers_read == 0:
        one.numbers_read = 1 if read_numbers(one.raw_reply, &one.numbers) else -1
    numbers[0] = one.numbers
    return one.numbers_read > 0


cdef bint read_numbers(object raw, Numbers* numbers) except -1:
    """Read the numbers of a reply subject; false if it has another form, or a number is not of plain digits."""
    cdef bytes reply = raw if type(raw) is bytes else (<str>raw).encode("utf-8", "surrogatepass")
    cdef Slice text
    cdef Py_ssize_t start
    text.p, text.n = <const uint8_t*>PyBytes_AS_STRING(reply), PyBytes_GET_SIZE(reply)
    return find_numbers(text, numbers, &start) > 0


cdef Py_ssize_t find_numbers(Slice reply, Numbers* numbers, Py_ssize_t* start) noexcept nogil:
    """Read the numbers of a reply subject; return its dots, 0 if it has another form. `start` is where they begin."""
    cdef const uint8_t* p = reply.p
    cdef const uint8_t* end = p + reply.n
    cdef Py_ssize_t dots = 0, skipped, i
    if reply.n < 8 or memcmp(p, b"$JS.ACK.", 8):
        return 0
    for i in range(reply.n):
        dots += p[i] == c'.'
    if dots != V1_DOTS and dots < V2_DOTS:
        return 0
    skipped = 5 if dots == V1_DOTS else 7
    while skipped:
        skipped -= p[0] == c'.'
        p += 1
    start[0] = p - reply.p
    return dots if read_three(p, end, numbers) != NULL else 0


cdef const uint8_t* read_three(const uint8_t* p, const uint8_t* end, Numbers* numbers) noexcept nogil:
    """Read the numbers at `p`; return the end of their dots, NULL if one is none."""
    if (read_number(&p, end, &numbers.sequence) and read_number(&p, end, &numbers.delivery)
            and read_number(&p, end, &numbers.stored_at)):
        return p
    return NULL


cdef bint read_number(const uint8_t** at, const uint8_t* end, int64_t* number) noexcept nogil:
    """Read the digits of a token, and its dot."""
    cdef const uint8_t* p = at[0]
    cdef uint64_t value = 0
    while p < end and c'0' <= p[0] <= c'9':
        if p - at[0] == LONGEST_NUMBER:
            return False
        value = value * 10 + (p[0] - c'0')
        p += 1
    if p == at[0] or p == end or p[0] != c'.' or value > LARGEST:
        return False
    number[0] = <int64_t>value
    at[0] = p + 1
    return True


def in_order(list messages not None, int64_t expected):
    """Return the stream sequences of those at the start whose deliveries are `expected` and following."""
    cdef Numbers numbers
    cdef list found = []
    for message in messages:
        if not numbers_of(<Delivered?>message, &numbers) or numbers.delivery != expected:
            break
        found.append(numbers.sequence)
        expected += 1
    return found


cdef bytes data_of(Delivered one):
    if one.data is None:  # made by __new__ alone
        raise AttributeError("data")
    return one.data
