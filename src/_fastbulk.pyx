# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, auto_pickle=False, autotestdict=False
"""Bulk reads from servers into Arrow columns: `liftenvelope/_native/bulk.py` and `calls.py` are the readable twins.

No Python object is created per message. The GIL is released while a piece of input is processed.
"""

cimport cython
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT64_MAX
from libc.stdlib cimport calloc, free, malloc

from _cursor cimport *
from _nats cimport *
from _rows cimport *

from os import urandom

from liftenvelope.errors import EnvelopeTooLargeError, UsageError

cdef extern from "Python.h":
    Py_buffer* PyMemoryView_GET_BUFFER(object view)

crc32c_init()
sip_seed(urandom(16))

MORE, FULL, LINE, DONE, LOST, BROKEN = range(6)

cdef enum:
    STATE_MORE = 0
    STATE_FULL = 1
    STATE_LINE = 2
    STATE_DONE = 3
    STATE_LOST = 4
    STATE_BROKEN = 5
    NO_MEMORY = 6
    PREFIX = 5
    LONGEST_PREFIX = 512
    MODE_NONE = 0
    MODE_STRIP = 1
    MODE_COLUMNS = 2

cdef Py_ssize_t MAX_ENVELOPE = 0x7FFFFFFF
cdef uint64_t LARGEST = 0x7FFFFFFFFFFFFFFF


def _name_hash(bytes name not None, bytes key=None):
    """Return the hash used by the tables here, with the key of this process or, in tests, a key of 16 bytes."""
    if key is None:
        return sip_hash(name, <size_t>len(name))
    if len(key) != 16:
        raise UsageError(f"key must have 16 bytes, got {len(key)}")
    return sip_hash_with(sip_key_of(key), name, <size_t>len(name))


cdef Slice span(object view):
    """Return the memory of a memoryview; an empty slice for None."""
    cdef Slice s
    clear_slice(&s)
    if view is not None:
        s.p = <const uint8_t*>PyMemoryView_GET_BUFFER(view).buf
        s.n = PyMemoryView_GET_BUFFER(view).len
    return s


include "_columns.pxi"


cdef bytes sound_text(Slice s):
    """Return the bytes as valid UTF-8, with U+FFFD for invalid parts."""
    return PyBytes_FromStringAndSize(<const char*>s.p, s.n).decode("utf-8", "replace").encode()


cdef inline Slice as_slice(bytes text):
    cdef Slice s
    s.p = <const uint8_t*><const char*>text
    s.n = len(text)
    return s


@cython.final
cdef class _Repeats:
    """Dictionary-encoded column of text: the distinct values, and the index of each row's value.

    The hash table has more than twice as many cells as items, so that a search always ends at an empty cell.
    `last` saves the search for most rows: the value of a row is usually that of the row before.
    """

    cdef _Entries items
    cdef _Memory indices
    cdef _Bits valid
    cdef int32_t* table     # open addressing: item + 1; 0 for an empty cell
    cdef Py_ssize_t mask
    cdef int32_t last       # item of the last row that is not null; -1 before the first
    cdef Py_ssize_t rows

    def __cinit__(self, allocate, Py_ssize_t rows):
        self.items, self.indices = _Entries(allocate), full(allocate, rows * 4)
        self.valid, self.last = _Bits(allocate, rows), -1
        self.mask = 63
        self.table = <int32_t*>calloc(<size_t>self.mask + 1, sizeof(int32_t))
        if self.table == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.table)

    cdef inline Slice item(self, int32_t which) noexcept nogil:
        cdef const int32_t* ends = <const int32_t*>self.items.ends.p
        cdef Slice s
        s.p = self.items.data.p + ends[which]
        s.n = ends[which + 1] - ends[which]
        return s

    cdef inline bint add(self, Py_ssize_t i, Slice s, bint null) noexcept nogil:
        if null:
            self.valid.clear(i)
            (<int32_t*>self.indices.p)[i] = 0
            return True
        if self.last < 0 or not same_bytes(self.item(self.last), s):
            self.last = self.find(s)
            if self.last < 0:
                return False
        (<int32_t*>self.indices.p)[i] = self.last
        return True

    cdef int32_t find(self, Slice s) noexcept nogil:
        """Return the index of the item, added if it is new; -1 if memory ran out."""
        cdef Py_ssize_t cell
        if not valid_utf8(s.p, s.n):
            return self.find_other(s)
        cell = self.cell_of(s)
        if self.table[cell]:
            return self.table[cell] - 1
        if s.n > MAX_ENVELOPE - self.items.data.n or not self.items.add(s):  # the ends have 32 bits
            return -1
        self.table[cell] = <int32_t>self.items.rows
        if self.items.rows * 2 > self.mask and not self.widen():
            return -1
        return <int32_t>self.items.rows - 1

    cdef int32_t find_other(self, Slice s) noexcept with gil:
        try:
            text = sound_text(s)
        except MemoryError:
            return -1
        return self.find(as_slice(text))

    cdef Py_ssize_t cell_of(self, Slice s) noexcept nogil:
        cdef Py_ssize_t i = <Py_ssize_t>sip_hash(s.p, <size_t>s.n) & self.mask
        while self.table[i] and not same_bytes(self.item(self.table[i] - 1), s):
            i = (i + 1) & self.mask
        return i

    cdef bint widen(self) noexcept nogil:
        cdef Py_ssize_t mask = self.mask * 4 + 3
        cdef int32_t* table = <int32_t*>calloc(<size_t>mask + 1, sizeof(int32_t))
        cdef int32_t i
        if table == NULL:
            return False
        free(self.table)
        self.table, self.mask = table, mask
        for i in range(<int32_t>self.items.rows):
            table[self.cell_of(self.item(i))] = i + 1
        return True

    def buffers(self):
        """Return (rows, nulls, validity, indices, distinct values)."""
        return self.rows, self.valid.nulls, self.valid.buffer(), self.indices, self.items.buffers()


# A message to be put into the columns. Its slices point into the input.
cdef struct Row:
    int64_t offset
    int64_t timestamp
    Slice subject
    Slice block             # NATS headers as received
    Slice value
    bint has_fields
    bint stored             # true: fields of a stored message; false: of an envelope
    const uint8_t* end      # end of the bytes that the fields were read from
    MessageFields fields


@cython.final
cdef class _Rows:
    """Columns of the current batch; columns that are not wanted are None.

    Invariant: every wanted column has exactly `rows` complete rows between two calls of add(). The memory for
    `max_rows` rows is allocated by begin(), which needs the GIL, so that add() needs it only to grow a column's
    data, to record a gap or to repair a name. take() hands the batch out and forgets it.
    """

    cdef object allocate
    cdef frozenset wanted
    cdef Py_ssize_t max_rows, max_bytes, rows, nbytes
    cdef Py_ssize_t filled  # bytes that count for max_bytes
    cdef bint open, has_offsets, has_timestamps, has_keys, has_values, has_headers, has_subjects, has_envelopes
    cdef _Memory offsets, timestamps, policies, expected
    cdef _Texts keys, values, idents
    cdef _Headers headers
    cdef _Repeats subjects, inboxes
    cdef _Bits enveloped
    cdef list kept          # repaired header names, alive until they are copied
    cdef list gaps
    cdef int64_t first, last

    def __cinit__(self, wanted, Py_ssize_t max_rows, Py_ssize_t max_bytes, allocate):
        self.wanted, self.allocate = frozenset(wanted), allocate
        self.max_rows, self.max_bytes = max_rows, max_bytes
        self.has_offsets, self.has_timestamps = "offset" in self.wanted, "timestamp" in self.wanted
        self.has_keys, self.has_values = "key" in self.wanted, "value" in self.wanted
        self.has_headers, self.has_subjects = "headers" in self.wanted, "subject" in self.wanted
        self.has_envelopes = "ack_policy" in self.wanted
        self.clear()

    cdef void clear(self):
        self.open = False
        self.rows = self.nbytes = self.filled = 0
        self.kept, self.gaps = [], []
        self.first = self.last = -1
        self.offsets = self.timestamps = self.policies = self.expected = None
        self.keys = self.values = self.idents = None
        self.headers = None
        self.subjects = self.inboxes = None
        self.enveloped = None

    cdef int begin(self) except -1:
        """Allocate the columns of a batch, unless a batch has begun."""
        # The last row may exceed max_bytes. A little room for it avoids doubling a column for that row alone.
        cdef Py_ssize_t n = self.max_rows, most = self.max_bytes + 65_536
        if self.open:
            return 0
        if self.has_offsets:
            self.offsets = full(self.allocate, n * 8)
        if self.has_timestamps:
            self.timestamps = full(self.allocate, n * 8)
        if self.has_keys:
            self.keys = _Texts(self.allocate, n, False, most)
        if self.has_values:
            self.values = _Texts(self.allocate, n, False, most)
        if self.has_headers:
            self.headers = _Headers(self.allocate, n)
        if self.has_subjects:
            self.subjects = _Repeats(self.allocate, n)
        if self.has_envelopes:
            self.inboxes, self.idents = _Repeats(self.allocate, n), _Texts(self.allocate, n, False, most)
            self.policies, self.expected = full(self.allocate, n * 4), full(self.allocate, n * 8)
            self.enveloped = _Bits(self.allocate, n)
        self.open = True
        return 0

    cdef inline bint is_full(self) noexcept nogil:
        return self.rows == self.max_rows or self.filled >= self.max_bytes

    cdef void add_gap(self, int64_t start, int64_t stop) noexcept with gil:
        self.gaps.append((start, stop))

    cdef bint add(self, const Row* row, Py_ssize_t size, Py_ssize_t more) noexcept nogil:
        """Add a row of a message of `size` bytes to every wanted column; false if memory ran out.

        `more` bytes, such as those of a subject before the message, count for the size of the batch too.
        """
        cdef Py_ssize_t i = self.rows
        cdef Slice key
        cdef bint done = True
        clear_slice(&key)
        if row.has_fields:
            key = row.fields.key
        if self.has_offsets:
            (<int64_t*>self.offsets.p)[i] = row.offset
        if self.has_timestamps:
            (<int64_t*>self.timestamps.p)[i] = row.timestamp
        if self.has_values:
            if i == 0:
                self.values.most += row.value.n  # the last row may be as long as the first
            done = self.values.add_bulk(i, row.value, False)
        if self.has_keys:
            done = done and self.keys.add(i, key, key.n == 0)
        if self.has_subjects:
            done = done and self.subjects.add(i, row.subject, False)
        if self.has_headers:
            done = done and self.add_headers(i, row)
        if self.has_envelopes:
            done = done and self.add_envelope(i, row)
        if self.rows == 0:
            self.first = row.offset
        self.last = row.offset
        self.rows += 1
        self.nbytes += size
        self.filled += size + more
        return done

    cdef bint add_envelope(self, Py_ssize_t i, const Row* row) noexcept nogil:
        cdef const MessageFields* f = &row.fields
        cdef Slice none
        clear_slice(&none)
        if not row.has_fields:
            self.enveloped.clear(i)
            (<int32_t*>self.policies.p)[i] = 0
            (<int64_t*>self.expected.p)[i] = 0
            return self.inboxes.add(i, none, True) and self.idents.add(i, none, True)
        (<int32_t*>self.policies.p)[i] = f.ack_policy
        (<int64_t*>self.expected.p)[i] = f.offset
        return (self.inboxes.add(i, f.ack_inbox, f.ack_inbox.n == 0)
                and self.idents.add(i, f.correlation_id, f.correlation_id.n == 0))

    cdef bint add_headers(self, Py_ssize_t i, const Row* row) noexcept nogil:
        cdef Py_ssize_t most = row.fields.headers if row.has_fields else 0
        if row.block.n:
            most += lines_in(row.block)
        if most and not self.add_entries(row, most):
            return False
        (<int32_t*>self.headers.ends.p)[i + 1] = <int32_t>self.headers.names.rows
        return True

    cdef bint add_entries(self, const Row* row, Py_ssize_t most) noexcept nogil:
        cdef HeaderSet* seen = &self.headers.seen
        cdef Py_ssize_t j
        if not begin_headers(seen, most):
            return False
        if row.block.n:
            self.see_block(seen, row.block)
        if row.has_fields and row.fields.headers:
            see_fields(seen, row)
        for j in range(seen.count):
            if not self.headers.names.add(seen.names[j]) or not self.headers.contents.add(seen.values[j]):
                return False
        return True

    cdef void see_block(self, HeaderSet* seen, Slice block) noexcept nogil:
        """Add the lines of NATS headers; the first line is only the version."""
        cdef const uint8_t* end = block.p + block.n
        cdef const uint8_t* p = end_of_line(block.p, end)
        cdef const uint8_t* stop
        cdef Slice name, value
        while p < end:
            stop = end_of_line(p, end)
            if split_header(p, stop, &name, &value):
                if not valid_utf8(name.p, name.n):
                    name = self.keep(name)
                add_header(seen, name, value)
            p = stop

    cdef Slice keep(self, Slice name) noexcept with gil:
        text = sound_text(name)
        self.kept.append(text)
        return as_slice(text)

    cdef dict columns(self):
        """Return the buffers of the batch by column name."""
        cdef dict found = {}
        cdef Py_ssize_t n = self.rows
        if self.has_offsets:
            found["offset"] = self.offsets
        if self.has_timestamps:
            found["timestamp"] = self.timestamps
        if self.has_keys:
            found["key"] = cut(self.keys, n)
        if self.has_values:
            found["value"] = cut(self.values, n)
        if self.has_headers:
            self.headers.require_room()
            found.update(self.headers.columns())
        if self.has_subjects:
            self.subjects.rows = n
            found["subject"] = self.subjects.buffers()
        if self.has_envelopes:
            self.inboxes.rows = n
            found["ack_inbox"], found["correlation_id"] = self.inboxes.buffers(), cut(self.idents, n)
            found["ack_policy"], found["expected_offset"] = self.policies, self.expected
            found["enveloped"] = self.enveloped.nulls, self.enveloped.buffer()
        return found

    cdef tuple take(self):
        """Return (rows, first offset, last offset, gaps, columns) of the batch and start a new batch."""
        if self.rows == 0:
            taken = 0, -1, -1, self.gaps, {}
        else:
            taken = self.rows, self.first, self.last, self.gaps, self.columns()
        self.clear()
        return taken


cdef tuple cut(_Texts texts, Py_ssize_t rows):
    texts.rows = rows
    return texts.buffers()


cdef Py_ssize_t lines_in(Slice block) noexcept nogil:
    cdef Py_ssize_t i, lines = 1
    for i in range(block.n):
        lines += block.p[i] == 10
    return lines


cdef const uint8_t* end_of_line(const uint8_t* p, const uint8_t* end) noexcept nogil:
    """Return the position after the line's LF, or the end."""
    cdef const uint8_t* found = <const uint8_t*>memchr(p, 10, <size_t>(end - p))
    return end if found == NULL else found + 1


cdef inline bint is_blank(uint8_t c) noexcept nogil:
    return c == 32 or c == 9 or c == 10 or c == 13


cdef bint split_header(const uint8_t* p, const uint8_t* end, Slice* name, Slice* value) noexcept nogil:
    """Split a line `name: value`; false for any other line."""
    cdef const uint8_t* colon = <const uint8_t*>memchr(p, 58, <size_t>(end - p))
    if colon == NULL or colon == p:
        return False
    name.p, name.n = p, colon - p
    p = colon + 1
    while p < end and is_blank(p[0]):
        p += 1
    while p < end and is_blank((end - 1)[0]):
        end -= 1
    value.p, value.n = p, end - p
    return True


cdef void see_fields(HeaderSet* seen, const Row* row) noexcept nogil:
    """Add the headers of an envelope or of a stored message, the latter without those that the server adds.

    The fields were parsed before, so the second parse can't fail.
    """
    cdef Py_ssize_t left = row.fields.headers
    cdef const uint8_t* p = row.fields.first_header
    cdef Slice name, value
    cdef uint32_t tag
    while True:
        p = get_entry(p, row.end, &name, &value)
        if not row.stored or not is_server_header(name):
            add_header(seen, name, value)
        left -= 1
        if left == 0:
            return
        p = get_tag(p, row.end, &tag)
        while tag != TAG_HEADERS:
            p = get_tag(skip_field(p, row.end, tag), row.end, &tag)


# JetStream

cdef struct AckReply:
    int64_t sequence
    int64_t delivery
    int64_t timestamp
    int64_t pending


cdef inline const uint8_t* get_decimal(const uint8_t* p, const uint8_t* end, int64_t* out) noexcept nogil:
    """Read a number up to a dot or the end; return the start of the next number, NULL for other input."""
    cdef const uint8_t* begin = p
    cdef uint64_t number = 0
    while p < end and 48 <= p[0] <= 57:
        number = number * 10 + (p[0] - 48)
        p += 1
    if p == begin or p - begin > 19 or number > LARGEST or (p < end and p[0] != 46):
        return NULL
    out[0] = <int64_t>number
    return p + 1


cdef const uint8_t* numbers_of(Slice reply, bint* more) noexcept nogil:
    """Return the start of the numbers in an ack subject, NULL for other subjects; set `more` if tokens may follow.

    $JS.ACK.<stream>.<consumer>.<delivered>.<sequence>.<delivery>.<timestamp>.<pending>. The longer form has two
    more tokens, domain and account, before the stream, and optionally more at the end (nats-server,
    server/consumer.go).
    """
    cdef const uint8_t* end = reply.p + reply.n
    cdef const uint8_t* p = reply.p
    cdef Py_ssize_t dots = 0, i
    if not begins(reply.p, reply.n, b"$JS.ACK.", 8):
        return NULL
    for i in range(reply.n):
        dots += reply.p[i] == 46
    if dots != 8 and dots < 10:
        return NULL
    more[0] = dots != 8
    i = 6 if more[0] else 4
    while i:
        p = <const uint8_t*>memchr(p, 46, <size_t>(end - p)) + 1
        i -= 1
    return p


cdef bint parse_numbers(const uint8_t* p, const uint8_t* end, bint more, AckReply* out) noexcept nogil:
    cdef int64_t delivered
    p = get_decimal(p, end, &delivered)
    if p != NULL:
        p = get_decimal(p, end, &out.sequence)
    if p != NULL:
        p = get_decimal(p, end, &out.delivery)
    if p != NULL:
        p = get_decimal(p, end, &out.timestamp)
    if p != NULL:
        p = get_decimal(p, end, &out.pending)
    return p != NULL and (more or p > end) and out.sequence > 0


@cython.final
cdef class NatsRows:
    """Reads the messages of one consumer from the bytes of a NATS connection into columns.

    Invariants: `next_offset` follows the last row or gap, so a read can resume there on another connection.
    Deliveries are numbered from 1 without gaps: a missing number means that a message was lost on the way, which
    ends the read with LOST before `next_offset` moves. A gap in the sequences is different: JetStream has deleted
    these messages, and the gap is recorded.

    feed() stops before a message that is not complete, so no bytes are kept here. `prefix` caches the part of the
    reply subject before the numbers, which is the same for almost all messages of a consumer.
    """

    cdef _Rows batch
    cdef int mode
    cdef int64_t max_message, sid, stop, delivery
    cdef readonly int64_t next_offset, pending, stored_ns
    cdef readonly Py_ssize_t need
    cdef readonly tuple line
    cdef uint8_t prefix[LONGEST_PREFIX]  # beginning of the last reply subject, up to the numbers
    cdef Py_ssize_t prefix_size
    cdef bint prefix_more    # true if more tokens may follow the numbers
    cdef Py_ssize_t body, frame_end
    cdef Head head

    def __cinit__(self, wanted, int mode, Py_ssize_t max_rows, Py_ssize_t max_bytes, int64_t max_message, allocate):
        self.batch = _Rows(wanted, max_rows, max_bytes, allocate)
        self.mode, self.max_message = mode, max_message
        self.sid = self.stop = self.pending = -1
        self.line = ()

    def follow(self, int64_t sid, int64_t next_offset, int64_t stop):
        """Read from a new consumer, from `next_offset` up to and excluding `stop`; -1 for no end."""
        self.sid, self.next_offset, self.stop = sid, next_offset, stop
        self.delivery = self.prefix_size = 0
        self.pending = -1

    @property
    def rows(self):
        """Number of rows in the batch."""
        return self.batch.rows

    @property
    def nbytes(self):
        """Size of the rows in the batch, in bytes on the wire."""
        return self.batch.nbytes

    def take(self):
        """Return (rows, first offset, last offset, gaps, columns) of the batch and start a new batch."""
        return self.batch.take()

    def feed(self, view, Py_ssize_t start, Py_ssize_t end):
        """Parse from `start` to `end`; return the reason to stop and the stop position."""
        held = memoryview(view)
        cdef Slice data = span(held)
        cdef Py_ssize_t at = start
        cdef int state
        if not 0 <= start <= end <= data.n:
            raise UsageError(f"{start} to {end} are not a part of {data.n} bytes")
        self.batch.begin()
        self.need = 0
        with nogil:
            state = self.run(data.p, &at, end)
        if state == NO_MEMORY:
            raise MemoryError
        if state == STATE_LINE:
            self.line = self.body, self.frame_end, self.head.sid, self.head.header_size
        return state, at

    cdef int run(self, const uint8_t* p, Py_ssize_t* at, Py_ssize_t end) noexcept nogil:
        cdef int state
        while not self.batch.is_full():
            if self.stop >= 0 and self.next_offset >= self.stop:
                return STATE_DONE
            if at[0] == end:
                return STATE_MORE
            state = self.read_frame(p + at[0], end - at[0], at[0])
            if state == STATE_MORE and self.need == 0:
                state = self.add(p + self.body)
            if state != STATE_MORE or self.need:
                return state
            at[0] = self.frame_end
        return STATE_FULL

    cdef int read_frame(self, const uint8_t* p, Py_ssize_t n, Py_ssize_t at) noexcept nogil:
        """Parse the line at `p` and find the end of its frame.

        Returns MORE with `need` = 0 for a complete message of ours, MORE with `need` > 0 for incomplete input,
        LINE for anything else, BROKEN for input that no server sends.
        """
        cdef const uint8_t* found = <const uint8_t*>memchr(p, 10, <size_t>n)
        cdef int kind
        self.head.reply.n = 0
        self.head.sid = self.head.header_size = self.head.size = 0
        self.need = n + 1
        if found == NULL:
            return STATE_BROKEN if n > LONGEST_LINE else STATE_MORE
        if found == p or (found - 1)[0] != 13:
            return STATE_BROKEN
        kind = parse_line(p, found - p - 1, &self.head)
        if kind == UNKNOWN or self.head.size > self.max_message:
            return STATE_BROKEN
        self.body = self.frame_end = at + (found - p) + 1
        if kind == MESSAGE:
            self.frame_end += <Py_ssize_t>self.head.size + CRLF
            if self.frame_end - at > n:
                self.need = self.frame_end - at
                return STATE_MORE
        self.need = 0
        if kind != MESSAGE or self.head.sid != self.sid or self.head.reply.n == 0:
            return STATE_LINE
        return STATE_MORE

    cdef int add(self, const uint8_t* body) noexcept nogil:
        """Add the message whose line read_frame() parsed."""
        cdef AckReply reply
        cdef Row row
        cdef Py_ssize_t size = <Py_ssize_t>self.head.size, more
        if not self.parse_reply(&reply):
            return STATE_LINE
        if reply.delivery != self.delivery + 1 or reply.sequence <= self.next_offset:
            return STATE_LOST
        row.offset, row.timestamp = reply.sequence - 1, reply.timestamp
        if self.stop >= 0 and row.offset >= self.stop:
            self.close_gap(self.stop)
            return STATE_DONE
        self.delivery, self.pending, self.stored_ns = reply.delivery, reply.pending, reply.timestamp
        self.close_gap(row.offset)
        self.next_offset = row.offset + 1
        row.subject = self.head.subject
        row.block.p, row.block.n = body, <Py_ssize_t>self.head.header_size
        row.value.p, row.value.n = body + self.head.header_size, size - row.block.n
        row.has_fields = row.stored = False
        if self.mode != MODE_NONE:
            self.open_envelope(&row)
        more = row.subject.n if self.batch.has_subjects else 0
        return STATE_MORE if self.batch.add(&row, size, more) else NO_MEMORY

    cdef void open_envelope(self, Row* row) noexcept nogil:
        """Open an envelope. Like the server, take a payload that is not a valid envelope as the value."""
        row.end = row.value.p + row.value.n
        if parse_message(payload(row.value.p, row.value.n, PUBLISH), row.end, &row.fields):
            row.has_fields, row.value = True, row.fields.value
            if row.value.p == NULL:
                row.value.p = row.end

    cdef void close_gap(self, int64_t offset) noexcept nogil:
        if offset > self.next_offset:
            self.batch.add_gap(self.next_offset, offset)
            self.next_offset = offset

    cdef inline bint parse_reply(self, AckReply* out) noexcept nogil:
        cdef Slice reply = self.head.reply
        cdef const uint8_t* p
        cdef Py_ssize_t size
        cdef bint more = False
        if self.prefix_size and begins(reply.p, reply.n, <const char*>self.prefix, self.prefix_size):
            if parse_numbers(reply.p + self.prefix_size, reply.p + reply.n, self.prefix_more, out):
                return True
        p = numbers_of(reply, &more)
        if p == NULL or not parse_numbers(p, reply.p + reply.n, more, out):
            return False
        size = p - reply.p
        if size <= LONGEST_PREFIX:
            memcpy(self.prefix, reply.p, <size_t>size)
            self.prefix_size, self.prefix_more = size, more
        return True


# Liftbridge

include "_messages.pxi"


@cython.final
cdef class StoredRows(_Messages):
    """Reads the messages of one subscription from the bytes of a gRPC call into columns.

    Invariant: `next_offset` follows the highest row or gap, so a read can resume there on another connection. The
    server's first message is empty and only confirms the subscription (`stands`).
    """

    cdef _Rows batch
    cdef int64_t stop
    cdef readonly int64_t next_offset
    cdef readonly bint stands       # true once the server's first message was received
    cdef bint begun                 # true once a row was added

    def __cinit__(self, wanted, Py_ssize_t max_rows, Py_ssize_t max_bytes, Py_ssize_t max_message, allocate):
        self.batch = _Rows(wanted, max_rows, max_bytes, allocate)
        self.cut(max_message, allocate)
        self.stop = -1

    def follow(self, int64_t next_offset, int64_t stop):
        """Read from a new subscription, from `next_offset` up to and excluding `stop`; -1 for no end."""
        self.next_offset, self.stop = next_offset, stop
        self.stands = self.begun = False
        self.restart()

    @property
    def rows(self):
        """Number of rows in the batch."""
        return self.batch.rows

    @property
    def nbytes(self):
        """Size of the rows in the batch, in bytes on the wire."""
        return self.batch.nbytes

    def take(self):
        """Return (rows, first offset, last offset, gaps, columns) of the batch and start a new batch."""
        return self.batch.take()

    cdef int begin(self) except -1:
        return self.batch.begin()

    cdef int wants(self) noexcept nogil:
        if self.batch.is_full():
            return STATE_FULL
        return STATE_DONE if 0 <= self.stop <= self.next_offset else STATE_MORE

    cdef int add(self, const uint8_t* p, Py_ssize_t n) noexcept nogil:
        cdef Row row
        if not self.stands and n == 0:
            self.stands = True
            return STATE_MORE
        if not self.stands or not parse_message(p, p + n, &row.fields):
            self.show(p, n)
            return STATE_BROKEN
        row.offset, row.timestamp = row.fields.offset, row.fields.timestamp
        if row.offset < 0 or row.offset == INT64_MAX:
            self.show(p, n)  # as in the client: no read can continue after the largest offset
            return STATE_BROKEN
        if row.offset < self.next_offset and not self.begun:
            return STATE_MORE  # a server starts at the high watermark if the requested start is beyond it
        if self.stop >= 0 and row.offset >= self.stop:
            self.close_gap(self.stop)
            return STATE_DONE
        self.begun = True
        # Offsets can go back if a server was killed between writing its log and its index: the last messages
        # got no ack, and later messages reuse their offsets.
        self.close_gap(row.offset)
        self.next_offset = max(self.next_offset, row.offset + 1)
        row.subject, row.value = row.fields.subject, row.fields.value
        row.has_fields = row.stored = True
        row.end = p + n
        row.block.n = 0
        return STATE_MORE if self.batch.add(&row, n, 0) else NO_MEMORY

    cdef void close_gap(self, int64_t offset) noexcept nogil:
        if offset > self.next_offset:
            self.batch.add_gap(self.next_offset, offset)
            self.next_offset = offset


@cython.final
cdef class PublishAcks(_Messages):
    """Outcomes of the requests of one PublishAsync call, by the number at the end of the correlation id.

    Invariants: numbers `oldest` to `next - 1` are in flight, at most `window` of them, so that each has a slot of
    its own at `number & mask`. A slot holds partition + 1 while its answer is missing, and 0 otherwise. `pending`
    is the number of slots that are not 0; `oldest` moves past slots that are. Answers for other numbers, for a slot
    that is 0, or of another stream on the same subject change nothing.
    """

    cdef tuple texts
    cdef Slice stream, ident        # name of the stream; prefix of the correlation ids
    cdef int32_t* slots             # by number & mask: partition + 1 while unanswered, else 0
    cdef Py_ssize_t mask
    cdef int64_t* spans             # lowest and highest acked offset of each partition; -1 for none
    cdef Py_ssize_t partitions, window
    cdef list refusals
    cdef readonly int64_t next, oldest, acked
    cdef readonly Py_ssize_t pending

    def __cinit__(self, bytes stream not None, bytes ident not None, Py_ssize_t window, Py_ssize_t partitions,
                  Py_ssize_t max_message, allocate):
        cdef Py_ssize_t i, size = 1
        if window < 1 or partitions < 1:
            raise UsageError(f"a window of {window} for {partitions} partitions")
        while size < window:
            size *= 2
        self.cut(max_message, allocate)
        self.texts, self.stream, self.ident = (stream, ident), as_slice(stream), as_slice(ident)
        self.window, self.partitions, self.refusals, self.mask = window, partitions, [], size - 1
        self.slots = <int32_t*>calloc(<size_t>size, sizeof(int32_t))
        self.spans = <int64_t*>malloc(<size_t>partitions * 2 * sizeof(int64_t))
        if self.slots == NULL or self.spans == NULL:
            raise MemoryError
        for i in range(2 * partitions):
            self.spans[i] = -1

    def __dealloc__(self):
        free(self.slots)
        free(self.spans)

    @property
    def room(self):
        """Count of requests that may be sent now."""
        return self.window - (self.next - self.oldest)

    def sent(self, partitions, Py_ssize_t start, Py_ssize_t stop):
        """Record rows as sent. `partitions` holds the partition of each row as 32-bit integers."""
        held = memoryview(partitions)
        cdef Slice data = span(held)
        cdef int32_t partition
        cdef Py_ssize_t i
        if not 0 <= start <= stop <= data.n >> 2 or stop - start > self.window - (self.next - self.oldest):
            raise UsageError(f"{start} to {stop} are not a span of {data.n >> 2} rows that there is room for")
        for i in range(start, stop):
            memcpy(&partition, data.p + 4 * i, 4)
            if not 0 <= partition < self.partitions:
                raise UsageError(f"partition {partition} is not one of {self.partitions}")
        for i in range(start, stop):
            memcpy(&partition, data.p + 4 * i, 4)
            self.slots[self.next & self.mask] = partition + 1
            self.next += 1
        self.pending += stop - start

    def refused(self):
        """Return (number, answer) of the requests refused since the last call."""
        found, self.refusals = self.refusals, []
        return found

    def offsets(self):
        """Return the lowest and highest acked offset by partition."""
        return {i: (self.spans[2 * i], self.spans[2 * i + 1]) for i in range(self.partitions)
                if self.spans[2 * i] >= 0}

    cdef int add(self, const uint8_t* p, Py_ssize_t n) noexcept nogil:
        cdef ResponseFields answer
        cdef int64_t number
        cdef int32_t partition
        if not parse_response(p, p + n, &answer):
            self.show(p, n)
            return STATE_BROKEN
        if not self.number_of(&answer, &number):
            return STATE_MORE  # not a number that waits for an answer
        partition = self.slots[number & self.mask] - 1
        if not answer.has_error and not (answer.has_ack and same_bytes(answer.ack.stream, self.stream)):
            return STATE_MORE  # ack of another stream that records the same subject
        self.slots[number & self.mask] = 0
        self.pending -= 1
        while self.oldest < self.next and self.slots[self.oldest & self.mask] == 0:
            self.oldest += 1
        if answer.has_error or answer.ack.error:
            self.refuse(number, p, n)
        else:
            self.acked += 1
            self.note(self.spans + 2 * partition, answer.ack.offset)
        return STATE_MORE

    cdef inline bint number_of(self, const ResponseFields* answer, int64_t* number) noexcept nogil:
        """Read the number of the answered request; false if no request with that number waits for an answer."""
        cdef Slice given = answer.correlation_id if answer.correlation_id.n else answer.ack.correlation_id
        cdef Py_ssize_t n = self.ident.n
        if not begins(given.p, given.n, <const char*>self.ident.p, n) or not get_digits(given.p + n, given.n - n, number):
            return False
        return self.oldest <= number[0] < self.next and self.slots[number[0] & self.mask] != 0

    cdef inline void note(self, int64_t* spans, int64_t offset) noexcept nogil:
        if spans[0] < 0 or offset < spans[0]:
            spans[0] = offset
        if offset > spans[1]:
            spans[1] = offset

    cdef void refuse(self, int64_t number, const uint8_t* p, Py_ssize_t n) noexcept with gil:
        self.refusals.append((number, PyBytes_FromStringAndSize(<const char*>p, n)))
