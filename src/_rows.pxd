# Columns of rows, read in place, and the parts of a row's output that are not protobuf fields.
#
# Invariant: the offsets, views and runs that a Rows or HeaderRows points to were checked when the column was made
# (ascending(), slice_views()). Nothing after that checks them again, so that loops over rows run without the GIL and
# without error paths. The owner of a Rows keeps the buffers alive and unchanged.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy, memset

from _cursor cimport (
    MAX_HEADER_KEY, MAX_HEADERS, Slice, entry_size, is_ascii, put_entry, put_raw, slice_size, valid_utf8,
    varint_size
)

cdef extern from "siphash.h" nogil:
    ctypedef struct sip_key:
        pass
    sip_key sip_key_of(const uint8_t* key)
    void sip_seed(const uint8_t* key)
    uint64_t sip_hash(const uint8_t* p, size_t n)
    uint64_t sip_hash_with(sip_key key, const uint8_t* p, size_t n)

cdef extern from *:
    void prefetch "__builtin_prefetch"(const void* p, int write) noexcept nogil

cdef struct Rows:
    const Slice* items         # one slice per row; NULL: an Arrow array with offsets, described below
    Py_ssize_t stride          # of items; 0 if one item serves every row
    const uint8_t* bits        # validity; NULL if no row is null
    Py_ssize_t first           # bit of row 0
    const int32_t* ends        # start of row i, end of row i - 1; NULL if they have 64 bits
    const int64_t* large_ends
    const uint8_t* data
    bint utf8                  # known to be valid UTF-8

# Headers of each row: a run of names and values.
cdef struct HeaderRows:
    Rows names
    Rows values
    const uint8_t* bits        # validity; NULL if no row is null
    Py_ssize_t first           # bit of row 0
    const int64_t* starts      # start of each row's run, and end of the last

cdef struct CacheLine:
    uint64_t words[8]

# Reading

cdef inline bint has_bit(const uint8_t* bitmap, Py_ssize_t i) noexcept nogil:
    return (bitmap[i >> 3] >> (i & 7)) & 1


cdef inline void set_bits(uint8_t* bitmap, Py_ssize_t n) noexcept nogil:
    """Set the bits of n rows to 1, and the rest of the last byte to 0."""
    if n:
        memset(bitmap, 0xFF, <size_t>((n + 7) >> 3))
        bitmap[(n - 1) >> 3] = <uint8_t>(0xFF >> (7 - ((n - 1) & 7)))


cdef inline void clear_bit(uint8_t* bitmap, Py_ssize_t i) noexcept nogil:
    bitmap[i >> 3] &= <uint8_t>~(1 << (i & 7))


cdef inline Slice row_at(const Rows* rows, Py_ssize_t i) noexcept nogil:
    """Return one row; the pointer is NULL for null."""
    cdef Slice s
    cdef int64_t begin
    if rows.items != NULL:
        return rows.items[i * rows.stride]
    if rows.bits != NULL and not has_bit(rows.bits, rows.first + i):
        s.p = NULL
        s.n = 0
        return s
    if rows.ends != NULL:
        begin = rows.ends[i]
        s.n = rows.ends[i + 1] - begin
    else:
        begin = rows.large_ends[i]
        s.n = rows.large_ends[i + 1] - begin
    s.p = rows.data + begin
    return s


ctypedef fused end_t:
    const int32_t
    const int64_t


cdef inline bint ascending(end_t* ends, Py_ssize_t length, int64_t size) noexcept nogil:
    """Return true if the `length + 1` offsets never decrease and stay within `size` bytes of data."""
    cdef Py_ssize_t i
    cdef bint falls = False
    for i in range(length):
        falls |= ends[i + 1] < ends[i]
    return not falls and ends[0] >= 0 and ends[length] <= size


cdef inline bint slice_views(Slice* out, Py_ssize_t length, Py_ssize_t first, const uint8_t* bits,
                             const uint8_t* views, const Slice* data, Py_ssize_t buffers,
                             Py_ssize_t* nbytes) noexcept nogil:
    cdef Py_ssize_t i
    cdef int32_t header[4]  # length; then 12 bytes of data, or prefix, buffer and offset
    for i in range(first, first + length):
        memcpy(header, views + i * 16, 16)
        if bits != NULL and not has_bit(bits, i):
            out.p = NULL
            out.n = 0
        elif header[0] < 0:
            return False
        else:
            out.n = header[0]
            nbytes[0] += out.n
            if header[0] <= 12:
                out.p = views + i * 16 + 4
            elif header[2] < 0 or header[2] >= buffers or header[3] < 0:
                return False
            elif header[3] > data[header[2]].n or header[0] > data[header[2]].n - header[3]:
                return False
            else:
                out.p = data[header[2]].p + header[3]
        out += 1
    return True

# Headers of one message. If a name repeats, the last value counts, at the position of the first.
#
# Up to 8 headers are compared one by one; more go through a hash table with open addressing. The table has at least
# twice as many cells as entries, so that a search always ends at an empty cell. Names and values are slices of the
# message, not copies.
cdef struct HeaderSet:
    Slice* names
    Slice* values
    int32_t* table       # entry + 1; 0 for an empty cell
    Py_ssize_t count
    Py_ssize_t capacity
    Py_ssize_t mask      # cells - 1; 0 if all names are compared instead


cdef inline void free_headers(HeaderSet* out) noexcept nogil:
    free(out.names)
    free(out.values)
    free(out.table)
    memset(out, 0, sizeof(HeaderSet))


cdef inline bint begin_headers(HeaderSet* out, Py_ssize_t entries) noexcept nogil:
    """Make room for `entries` and drop those of the previous message; false if memory ran out."""
    cdef Py_ssize_t size = 32
    while size < 2 * entries:
        size *= 2
    if size > out.capacity:
        free_headers(out)
        out.names = <Slice*>malloc(<size_t>size * sizeof(Slice))
        out.values = <Slice*>malloc(<size_t>size * sizeof(Slice))
        out.table = <int32_t*>malloc(<size_t>size * sizeof(int32_t))
        if out.names == NULL or out.values == NULL or out.table == NULL:
            return False
        out.capacity = size
    out.count = 0
    out.mask = size - 1 if entries > 8 else 0
    if out.mask:
        memset(out.table, 0, <size_t>size * sizeof(int32_t))
    return True


cdef inline bint same_bytes(Slice a, Slice b) noexcept nogil:
    return a.n == b.n and (a.n == 0 or memcmp(a.p, b.p, <size_t>a.n) == 0)


cdef inline Py_ssize_t find_header(const HeaderSet* headers, Slice name, Py_ssize_t* cell) noexcept nogil:
    """Return the index of the name, or the index that it would get; set `cell` to its cell in the table."""
    cdef Py_ssize_t i = 0
    if headers.mask == 0:
        while i < headers.count and not same_bytes(headers.names[i], name):
            i += 1
        return i
    i = <Py_ssize_t>sip_hash(name.p, <size_t>name.n) & headers.mask
    while headers.table[i] and not same_bytes(headers.names[headers.table[i] - 1], name):
        i = (i + 1) & headers.mask
    cell[0] = i
    return headers.table[i] - 1 if headers.table[i] else headers.count


cdef inline bint add_header(HeaderSet* out, Slice name, Slice value) noexcept nogil:
    """Add a header, or replace the value of a known name; return true if the name is new."""
    cdef Py_ssize_t cell = 0
    cdef Py_ssize_t i = find_header(out, name, &cell)
    out.values[i] = value
    if i < out.count:
        return False
    out.names[i] = name
    out.count += 1
    if out.mask:
        out.table[cell] = <int32_t>out.count
    return True

cdef inline Py_ssize_t header_count(const HeaderRows* rows, Py_ssize_t i) noexcept nogil:
    if rows.bits != NULL and not has_bit(rows.bits, rows.first + i):
        return 0
    return rows.starts[i + 1] - rows.starts[i]


cdef inline int repeats(const HeaderRows* rows, Py_ssize_t length, HeaderSet* seen) noexcept nogil:
    """Return 1 if a name repeats within a row, 0 if none does, -1 if memory ran out."""
    cdef Py_ssize_t i, j, count
    for i in range(length):
        count = header_count(rows, i)
        if count < 2:
            continue
        if not begin_headers(seen, count):
            return -1
        for j in range(rows.starts[i], rows.starts[i] + count):
            if not add_header(seen, row_at(&rows.names, j), row_at(&rows.values, j)):
                return 1
    return 0

# Measuring

cdef inline Py_ssize_t constant_size(const Rows* rows) noexcept nogil:
    """Return the size of a field that is the same for every row; 0 for other fields."""
    return 0 if rows.stride else slice_size(rows.items.n)


cdef inline void add_sizes(int64_t* sizes, const Rows* rows, Py_ssize_t length) noexcept nogil:
    """Add the sizes of a field that varies, which constant_size() does not count."""
    cdef Py_ssize_t i
    if rows.items == NULL and rows.bits == NULL and rows.ends != NULL:
        for i in range(length):  # no branch, so that compilers process four rows at a time
            sizes[i] += narrow_size(rows.ends[i + 1] - rows.ends[i])
    elif rows.stride:
        for i in range(length):
            sizes[i] += slice_size(row_at(rows, i).n)


cdef inline uint32_t narrow_size(int32_t n) noexcept nogil:
    """Return slice_size() of a 32-bit length, computed by comparisons, which can be vectorised."""
    return <uint32_t>n + 2 * (n > 0) + (n > 0x7F) + (n > 0x3FFF) + (n > 0x1FFFFF) + (n > 0xFFFFFFF)


cdef inline bint all_ascii(const Rows* rows, Py_ssize_t length) noexcept nogil:
    """Return true if an Arrow array is ASCII as a whole: then no row has to be validated on its own."""
    if rows.items != NULL or length == 0:
        return False
    if rows.ends != NULL:
        return is_ascii(rows.data + rows.ends[0], rows.ends[length] - rows.ends[0])
    return is_ascii(rows.data + rows.large_ends[0], rows.large_ends[length] - rows.large_ends[0])


cdef inline void add_text_sizes(int64_t* sizes, const Rows* rows, Py_ssize_t length, int64_t faulty) noexcept nogil:
    """Add the sizes of a text field; add `faulty` for rows that are not valid UTF-8."""
    cdef Py_ssize_t i
    cdef Slice s
    add_sizes(sizes, rows, length)
    if not rows.utf8 and not all_ascii(rows, length):
        for i in range(length):
            s = row_at(rows, i)
            if not valid_utf8(s.p, s.n):
                sizes[i] += faulty

cdef inline int64_t headers_size(const HeaderRows* rows, Py_ssize_t i, int64_t faulty) noexcept nogil:
    """Return the size of a row's headers; `faulty` if there are too many, or a name is null, too long or not UTF-8.

    The server crashes on too many headers and on names that are too long: see _checks.storable_headers().
    """
    cdef Py_ssize_t size = 0, entry, j, count = header_count(rows, i)
    cdef Slice name
    if count > MAX_HEADERS:
        return faulty
    for j in range(rows.starts[i], rows.starts[i] + count):
        name = row_at(&rows.names, j)
        if name.p == NULL or name.n > MAX_HEADER_KEY or not (rows.names.utf8 or valid_utf8(name.p, name.n)):
            return faulty
        entry = entry_size(name.n, row_at(&rows.values, j).n)
        size += 1 + varint_size(<uint64_t>entry) + entry
    return size

# Writing

cdef inline uint8_t* put_headers(uint8_t* p, uint8_t tag, const HeaderRows* rows, Py_ssize_t i) noexcept nogil:
    cdef Py_ssize_t j, begin = rows.starts[i]
    cdef Slice name, value
    for j in range(begin, begin + header_count(rows, i)):
        name = row_at(&rows.names, j)
        value = row_at(&rows.values, j)
        p = put_entry(p, tag, name.p, name.n, value.p, value.n)
    return p


cdef inline uint8_t* put_bulk(uint8_t* p, const uint8_t* data, Py_ssize_t n) noexcept nogil:
    """Copy data that is usually longer than a cache line.

    Measured by encode_batch of 1,024 bytes: 66 ns for a row. With memcpy() in place of this loop it took 81 ns, and with
    a prefetch of the output 1,024 bytes ahead 82. Stores past the cache took 153, except where each row begins a line.
    """
    cdef CacheLine line
    cdef Py_ssize_t i = 0
    if n < 64:
        return put_raw(p, data, n)
    while i < n - 64:
        memcpy(&line, data + i, 64)
        memcpy(p + i, &line, 64)
        i += 64
    memcpy(&line, data + n - 64, 64)
    memcpy(p + n - 64, &line, 64)
    return p + n


cdef inline Py_ssize_t digits(Py_ssize_t number) noexcept nogil:
    cdef Py_ssize_t count = 1
    while number > 9:
        number //= 10
        count += 1
    return count


cdef inline uint8_t* put_digits(uint8_t* p, Py_ssize_t number, Py_ssize_t count) noexcept nogil:
    """Write a number of `count` decimal digits."""
    cdef Py_ssize_t i
    for i in range(count - 1, -1, -1):
        p[i] = <uint8_t>(48 + number % 10)
        number //= 10
    return p + count


cdef inline Py_ssize_t command_size(Py_ssize_t subject, Py_ssize_t payload) noexcept nogil:
    # "PUB subject size\r\n", and the "\r\n" after the payload
    return 4 + subject + 1 + digits(payload) + 2 + 2


cdef inline uint8_t* put_pub(uint8_t* p, Slice subject, Py_ssize_t payload) noexcept nogil:
    cdef Py_ssize_t size = payload if payload > 0 else 0
    p = put_raw(p, <const uint8_t*>"PUB ", 4)
    p = put_raw(p, subject.p, subject.n)
    p[0] = b" "
    return put_raw(put_digits(p + 1, size, digits(size)), <const uint8_t*>"\r\n", 2)
