# Numbers in the reply subjects of a consumer's messages, and their payloads; a part of _fastframes.pyx.

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
    cdef const uint8_t* p = <const uint8_t*>PyBytes_AS_STRING(reply)
    cdef const uint8_t* end = p + PyBytes_GET_SIZE(reply)
    cdef Py_ssize_t dots = 0, skipped, i
    if end - p < 8 or memcmp(p, b"$JS.ACK.", 8):
        return False
    for i in range(end - p):
        dots += p[i] == c'.'
    if dots != V1_DOTS and dots < V2_DOTS:
        return False
    skipped = 5 if dots == V1_DOTS else 7
    while skipped:
        skipped -= p[0] == c'.'
        p += 1
    return (read_number(&p, end, &numbers.sequence) and read_number(&p, end, &numbers.delivery)
            and read_number(&p, end, &numbers.stored_at))


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


def stored_times(list messages not None, read not None):
    """Return the times in the replies as 64-bit numbers; `read` parses a reply that has another form."""
    cdef Numbers numbers
    cdef tuple held = tuple(messages)  # `read` may change the list
    cdef Py_ssize_t i, n = len(held)
    cdef bytes times = PyBytes_FromStringAndSize(NULL, n * 8)
    cdef char* p = PyBytes_AS_STRING(times)
    for i in range(n):
        if not numbers_of(<Delivered?>held[i], &numbers):
            numbers.stored_at = read((<Delivered>held[i]).reply)
        memcpy(p + i * 8, &numbers.stored_at, 8)
    return times


def joined(list messages not None):
    """Return (ends, values, subject): payloads as the buffers of an Arrow column, and the subject of all."""
    cdef Py_ssize_t i, size = 0, n = len(messages)
    cdef bytes ends = PyBytes_FromStringAndSize(NULL, (n + 1) * 4)
    cdef uint32_t end = 0
    cdef Delivered one
    cdef object subject = None
    cdef bint is_shared = n > 0
    memcpy(PyBytes_AS_STRING(ends), &end, 4)
    for i in range(n):
        one = <Delivered?>messages[i]
        size += PyBytes_GET_SIZE(data_of(one))
        if size <= LARGEST_COLUMN:
            end = <uint32_t>size
            memcpy(PyBytes_AS_STRING(ends) + (i + 1) * 4, &end, 4)
        if i == 0:
            subject = one.subject
        is_shared = is_shared and (one.subject is subject or one.subject == subject)
    if size > LARGEST_COLUMN:
        raise UsageError(f"the values of a batch must have at most {LARGEST_COLUMN} bytes, got {size}: take fewer rows")
    return ends, joined_values(messages, size), subject if is_shared else None


cdef bytes data_of(Delivered one):
    if one.data is None:  # made by __new__ alone
        raise AttributeError("data")
    return one.data


cdef bytes joined_values(list messages, Py_ssize_t size):
    cdef bytes data, values = PyBytes_FromStringAndSize(NULL, size)
    cdef char* p = PyBytes_AS_STRING(values)
    for message in messages:
        data = (<Delivered>message).data
        p = put(p, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
    return values
