# The bounds-checked protobuf cursor and writer, inlined into each extension.
#
# Invariant: a position `p` never passes its `end`, and nothing behind `end` is read. Lengths are compared as
# `n > end - p`, never `p + n > end`: the sum can overflow. get_ and skip_ functions return the next position, or
# NULL for any fault, and callers stop at the first NULL. They do not describe the fault: for the error text and the
# offset, the caller runs the Python twin (_native/env.py) on the same bytes.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

cdef extern from "crc32c.h" nogil:
    void crc32c_init()
    uint32_t crc32c(const uint8_t* data, size_t size)
    uint32_t crc32c_table(const uint8_t* data, size_t size)
    uint32_t crc32c_native(const uint8_t* data, size_t size)
    int crc32c_has_native()

cdef extern from *:
    int clz64 "__builtin_clzll"(unsigned long long) noexcept nogil
    int ctz64 "__builtin_ctzll"(unsigned long long) noexcept nogil

cdef enum:
    HEADER_LEN = 8
    HEADER_LEN_CRC = 12
    PUBLISH = 0
    ACK = 1
    MAX_GROUP_DEPTH = 100
    MAX_HEADER_KEY = 32767
    MAX_HEADERS = 65535

# A field's tag byte: its number << 3 | wire type (0 varint, 2 length-delimited). All fit in one byte.
cdef enum:
    TAG_OFFSET = 1 << 3
    TAG_KEY = 2 << 3 | 2
    TAG_VALUE = 3 << 3 | 2
    TAG_TIMESTAMP = 4 << 3
    TAG_STREAM = 5 << 3 | 2
    TAG_PARTITION = 6 << 3
    TAG_SUBJECT = 7 << 3 | 2
    TAG_REPLY_SUBJECT = 8 << 3 | 2
    TAG_HEADERS = 9 << 3 | 2
    TAG_ACK_INBOX = 10 << 3 | 2
    TAG_CORRELATION_ID = 11 << 3 | 2
    TAG_ACK_POLICY = 12 << 3
    TAG_ENTRY_KEY = 1 << 3 | 2
    TAG_ENTRY_VALUE = 2 << 3 | 2
    TAG_A_STREAM = 1 << 3 | 2
    TAG_A_PARTITION_SUBJECT = 2 << 3 | 2
    TAG_A_MSG_SUBJECT = 3 << 3 | 2
    TAG_A_OFFSET = 4 << 3
    TAG_A_ACK_INBOX = 5 << 3 | 2
    TAG_A_CORRELATION_ID = 6 << 3 | 2
    TAG_A_ACK_POLICY = 7 << 3
    TAG_A_RECEPTION_TIMESTAMP = 8 << 3
    TAG_A_COMMIT_TIMESTAMP = 9 << 3
    TAG_A_ACK_ERROR = 10 << 3
    TAG_Q_KEY = 1 << 3 | 2  # PublishRequest
    TAG_Q_VALUE = 2 << 3 | 2
    TAG_Q_STREAM = 3 << 3 | 2
    TAG_Q_PARTITION = 4 << 3
    TAG_Q_HEADERS = 5 << 3 | 2
    TAG_Q_ACK_INBOX = 6 << 3 | 2
    TAG_Q_CORRELATION_ID = 7 << 3 | 2
    TAG_Q_ACK_POLICY = 8 << 3
    TAG_Q_EXPECTED_OFFSET = 9 << 3
    TAG_R_ACK = 1 << 3 | 2  # PublishResponse
    TAG_R_ASYNC_ERROR = 2 << 3 | 2
    TAG_R_CORRELATION_ID = 3 << 3 | 2
    TAG_E_CODE = 1 << 3  # PublishAsyncError
    TAG_E_MESSAGE = 2 << 3 | 2

cdef struct Slice:
    const uint8_t* p  # NULL: null or absent
    Py_ssize_t n

cdef struct MessageFields:
    int64_t offset
    int64_t timestamp
    int32_t partition
    int32_t ack_policy
    Slice key
    Slice value
    Slice stream
    Slice subject
    Slice reply_subject
    Slice ack_inbox
    Slice correlation_id
    Py_ssize_t headers          # number of entries, repeated names included
    const uint8_t* first_header  # position of the first entry's length

cdef struct AckFields:
    int64_t offset
    int64_t reception_timestamp
    int64_t commit_timestamp
    int32_t ack_policy
    int32_t error
    Slice stream
    Slice partition_subject
    Slice msg_subject
    Slice ack_inbox
    Slice correlation_id

cdef struct ResponseFields:
    AckFields ack
    bint has_ack
    bint has_error
    int32_t error_code
    Slice error_text
    Slice correlation_id

# Reading

cdef inline uint64_t load_le64(const uint8_t* p) noexcept nogil:
    # Compilers turn this into one load, plus a byte swap on big-endian machines.
    return (
        <uint64_t>p[0] | <uint64_t>p[1] << 8 | <uint64_t>p[2] << 16 | <uint64_t>p[3] << 24
        | <uint64_t>p[4] << 32 | <uint64_t>p[5] << 40 | <uint64_t>p[6] << 48 | <uint64_t>p[7] << 56
    )


cdef inline const uint8_t* get_varint_slow(const uint8_t* p, const uint8_t* end, uint64_t* out) noexcept nogil:
    cdef uint64_t number = 0
    cdef int shift = 0
    # The tenth byte is read only if the ninth says so. Acks end in a timestamp, whose nine bytes are their last.
    if end - p >= 10 or (end - p == 9 and p[8] < 0x80):
        return get_varint_wide(p, out)
    while p < end and shift < 63:
        number |= <uint64_t>(p[0] & 0x7F) << shift
        if p[0] < 0x80:
            out[0] = number
            return p + 1
        p += 1
        shift += 7
    return NULL


cdef inline const uint8_t* get_varint_wide(const uint8_t* p, uint64_t* out) noexcept nogil:
    """Read a varint of up to ten readable bytes, eight of them at once and without a branch for each.

    Why: timestamps take nine bytes, and the offset of nearly every published message, -1, takes ten. The three
    shifts join the groups of 7 bits into groups of 14, 28 and 56.
    """
    cdef uint64_t word = load_le64(p), high
    cdef uint64_t stops = ~word & 0x8080808080808080u
    cdef int size = 8
    if stops:
        size = (ctz64(stops) >> 3) + 1
        word &= stops ^ (stops - 1)  # keep the bytes up to the last one of the varint
    word = (word & 0x007F007F007F007Fu) | (word & 0x7F007F007F007F00u) >> 1
    word = (word & 0x00003FFF00003FFFu) | (word & 0x3FFF00003FFF0000u) >> 2
    word = (word & 0x000000000FFFFFFFu) | (word & 0x0FFFFFFF00000000u) >> 4
    if not stops:
        high = p[8]
        word |= (high & 0x7F) << 56
        size = 9
        if high > 0x7F:
            if p[9] > 1:
                return NULL  # more than 64 bits, or an eleventh byte
            word |= <uint64_t>p[9] << 63
            size = 10
    out[0] = word
    return p + size


cdef inline const uint8_t* get_varint(const uint8_t* p, const uint8_t* end, uint64_t* out) noexcept nogil:
    if p < end and p[0] < 0x80:
        out[0] = p[0]
        return p + 1
    return get_varint_slow(p, end, out)


cdef inline const uint8_t* get_tag(const uint8_t* p, const uint8_t* end, uint32_t* tag) noexcept nogil:
    cdef uint64_t number = 0
    if p < end and 8 <= p[0] < 0x80:
        tag[0] = p[0]
        return p + 1
    p = get_varint(p, end, &number)
    if p == NULL or number > 0xFFFFFFFFu or number < 8:
        return NULL
    tag[0] = <uint32_t>number
    return p


cdef inline const uint8_t* get_slice(const uint8_t* p, const uint8_t* end, Slice* out) noexcept nogil:
    cdef uint64_t n
    p = get_varint(p, end, &n)
    if p == NULL or n > <uint64_t>(end - p):
        return NULL
    out.p = p
    out.n = <Py_ssize_t>n
    return p + n


cdef inline bint is_ascii(const uint8_t* p, Py_ssize_t n) noexcept nogil:
    # The last word may overlap the one before it, which avoids a loop over single bytes.
    cdef const uint8_t* end = p + n
    cdef uint64_t word, seen = 0
    cdef uint32_t first, last
    if n >= 8:
        memcpy(&seen, end - 8, 8)
        while end - p > 8:
            memcpy(&word, p, 8)
            seen |= word
            p += 8
    elif n >= 4:
        memcpy(&first, p, 4)
        memcpy(&last, end - 4, 4)
        seen = first | last
    elif n:
        seen = p[0] | p[n >> 1] | p[n - 1]
    return not seen & 0x8080808080808080u


cdef inline bint valid_utf8(const uint8_t* p, Py_ssize_t n) noexcept nogil:
    return is_ascii(p, n) or valid_utf8_slow(p, n)


cdef inline bint valid_utf8_slow(const uint8_t* p, Py_ssize_t n) noexcept nogil:
    """Validate by RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF."""
    cdef const uint8_t* end = p + n
    cdef uint64_t word
    cdef uint8_t lead
    while True:
        while end - p >= 8:
            memcpy(&word, p, 8)
            if word & 0x8080808080808080u:
                break
            p += 8
        while p < end and p[0] < 0x80:
            p += 1
        if p >= end:
            return True
        lead = p[0]
        if lead < 0xC2 or lead > 0xF4:
            return False
        if lead < 0xE0:
            if end - p < 2 or (p[1] & 0xC0) != 0x80:
                return False
            p += 2
        elif lead < 0xF0:
            if end - p < 3 or (p[1] & 0xC0) != 0x80 or (p[2] & 0xC0) != 0x80:
                return False
            if (lead == 0xE0 and p[1] < 0xA0) or (lead == 0xED and p[1] > 0x9F):
                return False
            p += 3
        else:
            if end - p < 4 or (p[1] & 0xC0) != 0x80 or (p[2] & 0xC0) != 0x80 or (p[3] & 0xC0) != 0x80:
                return False
            if (lead == 0xF0 and p[1] < 0x90) or (lead == 0xF4 and p[1] > 0x8F):
                return False
            p += 4


cdef inline const uint8_t* get_text(const uint8_t* p, const uint8_t* end, Slice* out) noexcept nogil:
    p = get_slice(p, end, out)
    if p == NULL or not valid_utf8(out.p, out.n):
        return NULL
    return p


cdef inline const uint8_t* skip_group(const uint8_t* p, const uint8_t* end, uint32_t tag) noexcept nogil:
    cdef uint32_t open_groups[MAX_GROUP_DEPTH]
    cdef int depth = 1
    cdef uint64_t number = 0
    cdef Slice ignored
    open_groups[0] = tag >> 3
    while depth > 0:
        p = get_tag(p, end, &tag)
        if p == NULL:
            return NULL
        if tag & 7 == 0:
            p = get_varint(p, end, &number)
        elif tag & 7 == 2:
            p = get_slice(p, end, &ignored)
        elif tag & 7 == 3:
            if depth == MAX_GROUP_DEPTH:
                return NULL
            open_groups[depth] = tag >> 3
            depth += 1
        elif tag & 7 == 4:
            depth -= 1
            if open_groups[depth] != tag >> 3:
                return NULL
        else:
            p = skip_fixed(p, end, tag)
        if p == NULL:
            return NULL
    return p


cdef inline const uint8_t* skip_fixed(const uint8_t* p, const uint8_t* end, uint32_t tag) noexcept nogil:
    cdef Py_ssize_t size
    if tag & 7 == 1:
        size = 8
    elif tag & 7 == 5:
        size = 4
    else:
        return NULL
    return p + size if size <= end - p else NULL


cdef inline const uint8_t* skip_field(const uint8_t* p, const uint8_t* end, uint32_t tag) noexcept nogil:
    cdef uint64_t number = 0
    cdef Slice ignored
    if tag & 7 == 0:
        return get_varint(p, end, &number)
    if tag & 7 == 2:
        return get_slice(p, end, &ignored)
    if tag & 7 == 3:
        return skip_group(p, end, tag)
    return skip_fixed(p, end, tag)


cdef inline bint sound_header(const uint8_t* p, Py_ssize_t n) noexcept nogil:
    if n < HEADER_LEN or load_le64(p) & 0xFFFFFFFFFFu != 0x00B4430EB9u:  # magic and version
        return False
    if p[5] < HEADER_LEN or p[5] > n:
        return False
    return not (p[6] & 1) or p[5] == HEADER_LEN_CRC


cdef inline const uint8_t* payload(const uint8_t* p, Py_ssize_t n, uint8_t kind) noexcept nogil:
    """Check header, kind and checksum of an envelope; return the start of its payload, NULL if it is invalid."""
    cdef uint32_t expected
    if not sound_header(p, n) or p[7] != kind:
        return NULL
    if p[6] & 1:
        expected = <uint32_t>p[8] << 24 | <uint32_t>p[9] << 16 | <uint32_t>p[10] << 8 | p[11]
        if crc32c(p + HEADER_LEN_CRC, n - HEADER_LEN_CRC) != expected:
            return NULL
    return p + p[5]


cdef inline const uint8_t* get_entry(const uint8_t* p, const uint8_t* end, Slice* key, Slice* value) noexcept nogil:
    """Read a map entry, from its length on. As in protobuf, the last key and the last value count."""
    cdef Slice entry
    cdef const uint8_t* at
    cdef uint32_t tag
    p = get_slice(p, end, &entry)
    if p == NULL:
        return NULL
    at = entry.p
    key.p = value.p = at
    key.n = value.n = 0
    while at < p:
        at = get_tag(at, p, &tag)
        if at == NULL:
            return NULL
        if tag == TAG_ENTRY_KEY:
            at = get_text(at, p, key)
        elif tag == TAG_ENTRY_VALUE:
            at = get_slice(at, p, value)
        else:
            at = skip_field(at, p, tag)
        if at == NULL:
            return NULL
    return p


cdef inline void clear_slice(Slice* s) noexcept nogil:
    s.p = NULL
    s.n = 0


cdef inline void clear_message(MessageFields* out) noexcept nogil:
    # Not memset: compilers turn it into "rep stos", which takes longer than half of the parsing.
    out.offset = out.timestamp = 0
    out.partition = out.ack_policy = 0
    clear_slice(&out.key)
    clear_slice(&out.value)
    clear_slice(&out.stream)
    clear_slice(&out.subject)
    clear_slice(&out.reply_subject)
    clear_slice(&out.ack_inbox)
    clear_slice(&out.correlation_id)
    out.headers = 0
    out.first_header = NULL


cdef inline void clear_ack(AckFields* out) noexcept nogil:
    out.offset = out.reception_timestamp = out.commit_timestamp = 0
    out.ack_policy = out.error = 0
    clear_slice(&out.stream)
    clear_slice(&out.partition_subject)
    clear_slice(&out.msg_subject)
    clear_slice(&out.ack_inbox)
    clear_slice(&out.correlation_id)


cdef inline bint parse_message(const uint8_t* p, const uint8_t* end, MessageFields* out) noexcept nogil:
    """Read a bare message, or the payload of an envelope; false for any fault, and for `p` NULL."""
    cdef uint32_t tag
    cdef uint64_t number = 0
    cdef Slice key, value
    clear_message(out)
    if p == NULL:
        return False
    while p < end:
        p = get_tag(p, end, &tag)
        if p == NULL:
            return False
        if tag == TAG_VALUE:
            p = get_slice(p, end, &out.value)
        elif tag == TAG_KEY:
            p = get_slice(p, end, &out.key)
        elif tag == TAG_OFFSET:
            p = get_varint(p, end, <uint64_t*>&out.offset)
        elif tag == TAG_ACK_INBOX:
            p = get_text(p, end, &out.ack_inbox)
        elif tag == TAG_CORRELATION_ID:
            p = get_text(p, end, &out.correlation_id)
        elif tag == TAG_HEADERS:
            if out.headers == 0:
                out.first_header = p
            out.headers += 1
            p = get_entry(p, end, &key, &value)
        elif tag == TAG_TIMESTAMP:
            p = get_varint(p, end, <uint64_t*>&out.timestamp)
        elif tag == TAG_STREAM:
            p = get_text(p, end, &out.stream)
        elif tag == TAG_SUBJECT:
            p = get_text(p, end, &out.subject)
        elif tag == TAG_REPLY_SUBJECT:
            p = get_text(p, end, &out.reply_subject)
        elif tag == TAG_PARTITION:
            p = get_varint(p, end, &number)
            out.partition = <int32_t>number
        elif tag == TAG_ACK_POLICY:
            p = get_varint(p, end, &number)
            out.ack_policy = <int32_t>number
        else:
            p = skip_field(p, end, tag)
        if p == NULL:
            return False
    return True


cdef inline bint parse_ack(const uint8_t* p, const uint8_t* end, AckFields* out) noexcept nogil:
    """Read a bare ack, or the payload of an envelope; false for any fault, and for `p` NULL."""
    clear_ack(out)
    return p != NULL and merge_ack(p, end, out)


cdef inline bint merge_ack(const uint8_t* p, const uint8_t* end, AckFields* out) noexcept nogil:
    """Read an ack into fields that may be set already, as protobuf merges a repeated submessage."""
    cdef uint32_t tag
    cdef uint64_t number = 0
    while p < end:
        p = get_tag(p, end, &tag)
        if p == NULL:
            return False
        if tag == TAG_A_STREAM:
            p = get_text(p, end, &out.stream)
        elif tag == TAG_A_PARTITION_SUBJECT:
            p = get_text(p, end, &out.partition_subject)
        elif tag == TAG_A_MSG_SUBJECT:
            p = get_text(p, end, &out.msg_subject)
        elif tag == TAG_A_OFFSET:
            p = get_varint(p, end, <uint64_t*>&out.offset)
        elif tag == TAG_A_ACK_INBOX:
            p = get_text(p, end, &out.ack_inbox)
        elif tag == TAG_A_CORRELATION_ID:
            p = get_text(p, end, &out.correlation_id)
        elif tag == TAG_A_ACK_POLICY:
            p = get_varint(p, end, &number)
            out.ack_policy = <int32_t>number
        elif tag == TAG_A_RECEPTION_TIMESTAMP:
            p = get_varint(p, end, <uint64_t*>&out.reception_timestamp)
        elif tag == TAG_A_COMMIT_TIMESTAMP:
            p = get_varint(p, end, <uint64_t*>&out.commit_timestamp)
        elif tag == TAG_A_ACK_ERROR:
            p = get_varint(p, end, &number)
            out.error = <int32_t>number
        else:
            p = skip_field(p, end, tag)
        if p == NULL:
            return False
    return True


cdef inline bint merge_async_error(const uint8_t* p, const uint8_t* end, ResponseFields* out) noexcept nogil:
    cdef uint32_t tag
    cdef uint64_t number = 0
    while p < end:
        p = get_tag(p, end, &tag)
        if p == NULL:
            return False
        if tag == TAG_E_CODE:
            p = get_varint(p, end, &number)
            out.error_code = <int32_t>number
        elif tag == TAG_E_MESSAGE:
            p = get_text(p, end, &out.error_text)
        else:
            p = skip_field(p, end, tag)
        if p == NULL:
            return False
    return True


cdef inline bint parse_response(const uint8_t* p, const uint8_t* end, ResponseFields* out) noexcept nogil:
    """Read a bare PublishResponse; false for any fault."""
    cdef uint32_t tag
    cdef Slice part
    clear_ack(&out.ack)
    clear_slice(&out.error_text)
    clear_slice(&out.correlation_id)
    out.has_ack = out.has_error = False
    out.error_code = 0
    while p < end:
        p = get_tag(p, end, &tag)
        if p == NULL:
            return False
        if tag == TAG_R_ACK:
            p = get_slice(p, end, &part)
            out.has_ack = True
            if p == NULL or not merge_ack(part.p, p, &out.ack):
                return False
        elif tag == TAG_R_ASYNC_ERROR:
            p = get_slice(p, end, &part)
            out.has_error = True
            if p == NULL or not merge_async_error(part.p, p, out):
                return False
        elif tag == TAG_R_CORRELATION_ID:
            p = get_text(p, end, &out.correlation_id)
        else:
            p = skip_field(p, end, tag)
        if p == NULL:
            return False
    return True


cdef inline bint is_server_header(Slice name) noexcept nogil:
    """Return true for `subject` and `reply`, which the server adds to every message that it stores."""
    if name.n == 7:
        return memcmp(name.p, <const char*>"subject", 7) == 0
    return name.n == 5 and memcmp(name.p, <const char*>"reply", 5) == 0

# Writing. The exact size is computed first (the _size functions), then the output is allocated once and written in one
# pass (the put_ functions). Each put_ function writes exactly as many bytes as its _size function returns, and checks
# no bounds: a difference between the two would overrun the allocation.

cdef inline Py_ssize_t varint_size(uint64_t number) noexcept nogil:
    # Seven bits per byte, without a loop: 9/64 approximates 1/7 closely enough for every length up to 64 bits.
    return ((63 - clz64(number | 1)) * 9 + 73) >> 6


cdef inline Py_ssize_t slice_size(Py_ssize_t n) noexcept nogil:
    """Return the size of a length-delimited field with a one-byte tag; 0 if it is empty."""
    return 1 + varint_size(<uint64_t>n) + n if n else 0


cdef inline Py_ssize_t number_size(int64_t number) noexcept nogil:
    return 1 + varint_size(<uint64_t>number) if number else 0


cdef inline Py_ssize_t entry_size(Py_ssize_t key, Py_ssize_t value) noexcept nogil:
    """Return the length of a map entry's content. Both fields are written even if they are empty."""
    return 2 + varint_size(<uint64_t>key) + key + varint_size(<uint64_t>value) + value


cdef inline uint8_t* put_varint(uint8_t* p, uint64_t number) noexcept nogil:
    while number > 0x7F:
        p[0] = <uint8_t>number | 0x80
        number >>= 7
        p += 1
    p[0] = <uint8_t>number
    return p + 1


cdef inline uint8_t* put_number(uint8_t* p, uint8_t tag, int64_t number) noexcept nogil:
    if number == 0:
        return p
    p[0] = tag
    return put_varint(p + 1, <uint64_t>number)


cdef struct Block:
    uint64_t low
    uint64_t high


cdef inline uint8_t* put_raw(uint8_t* p, const uint8_t* data, Py_ssize_t n) noexcept nogil:
    # Most fields are short, and a call of memcpy costs more than the copy itself: use two moves that may overlap.
    cdef Block low16, high16
    cdef uint64_t low, high
    cdef uint32_t low4, high4
    if n > 32:
        memcpy(p, data, <size_t>n)
    elif n > 16:
        memcpy(&low16, data, 16)
        memcpy(&high16, data + n - 16, 16)
        memcpy(p, &low16, 16)
        memcpy(p + n - 16, &high16, 16)
    elif n >= 8:
        memcpy(&low, data, 8)
        memcpy(&high, data + n - 8, 8)
        memcpy(p, &low, 8)
        memcpy(p + n - 8, &high, 8)
    elif n >= 4:
        memcpy(&low4, data, 4)
        memcpy(&high4, data + n - 4, 4)
        memcpy(p, &low4, 4)
        memcpy(p + n - 4, &high4, 4)
    elif n:
        p[0] = data[0]
        p[n >> 1] = data[n >> 1]
        p[n - 1] = data[n - 1]
    return p + n


cdef inline uint8_t* put_slice(uint8_t* p, uint8_t tag, const uint8_t* data, Py_ssize_t n) noexcept nogil:
    if n == 0:
        return p
    p[0] = tag
    return put_raw(put_varint(p + 1, <uint64_t>n), data, n)


cdef inline uint8_t* put_entry(uint8_t* p, uint8_t tag, const uint8_t* key, Py_ssize_t key_n,
                               const uint8_t* value, Py_ssize_t value_n) noexcept nogil:
    p[0] = tag
    p = put_varint(p + 1, <uint64_t>entry_size(key_n, value_n))
    p[0] = TAG_ENTRY_KEY
    p = put_raw(put_varint(p + 1, <uint64_t>key_n), key, key_n)
    p[0] = TAG_ENTRY_VALUE
    return put_raw(put_varint(p + 1, <uint64_t>value_n), value, value_n)


cdef inline uint8_t* put_header(uint8_t* p, uint8_t kind, bint crc) noexcept nogil:
    """Write an envelope header; with `crc`, the four bytes of the checksum are left for put_checksum()."""
    p[0] = 0xB9
    p[1] = 0x0E
    p[2] = 0x43
    p[3] = 0xB4
    p[4] = 0
    p[5] = HEADER_LEN_CRC if crc else HEADER_LEN
    p[6] = crc
    p[7] = kind
    return p + p[5]


cdef inline void put_checksum(uint8_t* envelope, const uint8_t* end) noexcept nogil:
    cdef uint32_t checksum = crc32c(envelope + HEADER_LEN_CRC, end - envelope - HEADER_LEN_CRC)
    envelope[8] = checksum >> 24
    envelope[9] = checksum >> 16 & 0xFF
    envelope[10] = checksum >> 8 & 0xFF
    envelope[11] = checksum & 0xFF


cdef inline bint get_digits(const uint8_t* p, Py_ssize_t n, int64_t* out) noexcept nogil:
    """Read a decimal number, as in subjects; false if it is malformed or exceeds 63 bits."""
    cdef uint64_t number = 0
    cdef Py_ssize_t i
    if n <= 0 or n > 19:
        return False
    for i in range(n):
        if not 48 <= p[i] <= 57:
            return False
        number = number * 10 + (p[i] - 48)  # 19 digits fit in 64 bits
    if number > 0x7FFFFFFFFFFFFFFFu:
        return False
    out[0] = <int64_t>number
    return True
