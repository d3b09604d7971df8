# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, auto_pickle=False, autotestdict=False
"""Message conversion for the gateway: `liftenvelope/_native/gate.py` is the readable twin."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.object cimport PyObject

from _cursor cimport *

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(PyObject* text, Py_ssize_t* size) except NULL

from liftenvelope._checks import as_bytes, as_text

crc32c_init()

cdef enum:
    TOKENS = 9
    DOMAIN_TOKENS = 11
    NUMBER_DIGITS = 18
    MOST_SUBJECTS = 1024
    NO_ACK = 2
    # Room for tags, sizes and numbers of any message, in addition to its copied fields.
    AROUND = 96

cdef struct Place:
    int64_t sequence
    int64_t timestamp
    int64_t pending


cdef inline bint get_place(const uint8_t* p, Py_ssize_t n, Place* place) noexcept nogil:
    """Parse sequence, time and pending of a JetStream reply subject; false for other subjects."""
    cdef Py_ssize_t starts[DOMAIN_TOKENS + 2]
    cdef int64_t ignored
    cdef Py_ssize_t i
    cdef int tokens = 1, at
    if n < 8 or memcmp(p, <const char*>"$JS.ACK.", 8) != 0:
        return False
    starts[0] = 0
    for i in range(n):
        if p[i] == c".":
            if tokens > DOMAIN_TOKENS:
                return False
            starts[tokens] = i + 1
            tokens += 1
    starts[tokens] = n + 1
    if tokens == TOKENS:
        at = 5
    elif tokens >= DOMAIN_TOKENS:
        at = 7
    else:
        return False
    return (
        get_digits(p + starts[at], starts[at + 1] - starts[at] - 1, &place.sequence)
        and get_digits(p + starts[at + 1], starts[at + 2] - starts[at + 1] - 1, &ignored)
        and get_digits(p + starts[at + 2], starts[at + 3] - starts[at + 2] - 1, &place.timestamp)
        and get_digits(p + starts[at + 3], starts[at + 4] - starts[at + 3] - 1, &place.pending)
    )


cdef inline uint8_t* put_prefix(uint8_t* p, Py_ssize_t size) noexcept nogil:
    """Write the gRPC prefix of a message of `size` bytes."""
    p[0] = 0
    p[1] = size >> 24 & 0xFF
    p[2] = size >> 16 & 0xFF
    p[3] = size >> 8 & 0xFF
    p[4] = size & 0xFF
    return p + 5


cdef inline uint8_t* put_decimal(uint8_t* p, int64_t number) noexcept nogil:
    cdef uint8_t digits[20]
    cdef int count = 0
    while number or not count:
        digits[count] = <uint8_t>(48 + number % 10)
        number //= 10
        count += 1
    while count:
        count -= 1
        p[0] = digits[count]
        p += 1
    return p


#: Most bytes of an output buffer that are kept for the next call.
cdef Py_ssize_t MAX_KEPT = 256 * 1024


cdef class _Buffer:
    """Output buffer, reused by the next call so that a steady flow allocates nothing.

    A large one is freed, since a subscription may then be quiet for long. more() may move the memory: a pointer into it is valid until the next call of more().
    """

    cdef uint8_t* data
    cdef Py_ssize_t room
    cdef Py_ssize_t used

    def __dealloc__(self):
        PyMem_Free(self.data)

    cdef uint8_t* more(self, Py_ssize_t size) except NULL:
        """Make room for `size` bytes; return the position after the used ones."""
        cdef Py_ssize_t wanted = self.used + size
        cdef void* grown
        if wanted > self.room:
            wanted += wanted // 2 + 4096
            grown = PyMem_Realloc(self.data, <size_t>wanted)
            if grown == NULL:
                raise MemoryError
            self.data = <uint8_t*>grown
            self.room = wanted
        return self.data + self.used

    cdef bytes taken(self):
        cdef bytes out = PyBytes_FromStringAndSize(<const char*>self.data, self.used) if self.used else b""
        self.used = 0
        if self.room > MAX_KEPT:
            PyMem_Free(self.data)
            self.data, self.room = NULL, 0
        return out


@cython.final
cdef class MessageFramer:
    """Converts the deliveries of one partition's consumer to gRPC messages.

    All messages on a subject end with the same bytes (stream, partition, subject, two headers), encoded once in
    `tails`. The number of tails is bounded, because publishers choose the subjects. `last_subject` is compared by
    identity: the NATS walker returns the same str for equal subjects in a row.
    """

    cdef public int64_t sequence
    cdef public int64_t pending
    cdef bytes middle
    cdef dict tails
    cdef object last_subject
    cdef bytes last_tail
    cdef _Buffer out

    def __init__(self, stream, partition):
        self.sequence = 0
        self.pending = 0
        self.tails = {}
        self.last_subject = None
        self.out = _Buffer()
        cdef bytes name = as_text("stream", stream).encode()
        cdef int64_t number = partition
        cdef uint8_t* p = self.out.more(PyBytes_GET_SIZE(name) + AROUND)
        p = put_slice(p, TAG_STREAM, <const uint8_t*>PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
        p = put_number(p, TAG_PARTITION, number)
        self.out.used = p - self.out.data
        self.middle = self.out.taken()

    def frame(self, list messages not None, int64_t least, int64_t most):
        """Return gRPC messages for the deliveries with sequences from `least` to `most`."""
        cdef Place place
        cdef bytes reply, payload
        cdef tuple message
        self.out.used = 0
        for message in messages:
            subject, reply, _, payload = message
            if not get_place(<const uint8_t*>PyBytes_AS_STRING(reply), PyBytes_GET_SIZE(reply), &place):
                continue
            self.sequence = place.sequence
            self.pending = place.pending
            if -1 < most < self.sequence:
                break
            if self.sequence >= least:
                self.put(subject, payload, place.sequence - 1, place.timestamp)
            if self.sequence == most:
                break
        return self.out.taken()

    cdef int put(self, subject, bytes raw, int64_t offset, int64_t timestamp) except -1:
        cdef const uint8_t* begin = <const uint8_t*>PyBytes_AS_STRING(raw)
        cdef Py_ssize_t n = PyBytes_GET_SIZE(raw), size, headers = 0
        cdef MessageFields f
        cdef bint enveloped = parse_message(payload(begin, n, PUBLISH), begin + n, &f)
        if not enveloped:  # a plain value, as in Liftbridge
            clear_message(&f)
            f.value.p, f.value.n = begin, n
        elif f.headers:
            raw_headers = unique_headers(&f, begin + n)
            headers = PyBytes_GET_SIZE(raw_headers)
        if subject is not self.last_subject:
            self.last_tail = self.tail(subject)
            self.last_subject = subject
        cdef Py_ssize_t tail = PyBytes_GET_SIZE(self.last_tail)
        size = (
            number_size(offset) + slice_size(f.key.n) + slice_size(f.value.n) + number_size(timestamp) + headers
            + tail
        )
        cdef uint8_t* p = put_prefix(self.out.more(size + AROUND), size)
        p = put_number(p, TAG_OFFSET, offset)
        p = put_slice(p, TAG_KEY, f.key.p, f.key.n)
        p = put_slice(p, TAG_VALUE, f.value.p, f.value.n)
        p = put_number(p, TAG_TIMESTAMP, timestamp)
        if headers:
            p = put_raw(p, <const uint8_t*>PyBytes_AS_STRING(raw_headers), headers)
        p = put_raw(p, <const uint8_t*>PyBytes_AS_STRING(self.last_tail), tail)
        self.out.used = p - self.out.data
        return 0

    cdef bytes tail(self, subject):
        """Encode the fields common to all messages on a subject: stream, partition, subject, headers."""
        found = self.tails.get(subject)
        if found is not None:
            return found
        cdef bytes name = subject.encode()
        cdef const uint8_t* data = <const uint8_t*>PyBytes_AS_STRING(name)
        cdef Py_ssize_t n = PyBytes_GET_SIZE(name)
        cdef _Buffer out = _Buffer()
        cdef uint8_t* p = out.more(PyBytes_GET_SIZE(self.middle) + 2 * n + 2 * AROUND)
        p = put_raw(p, <const uint8_t*>PyBytes_AS_STRING(self.middle), PyBytes_GET_SIZE(self.middle))
        p = put_slice(p, TAG_SUBJECT, data, n)
        p = put_entry(p, TAG_HEADERS, <const uint8_t*><const char*>"subject", 7, data, n)
        p = put_entry(p, TAG_HEADERS, <const uint8_t*><const char*>"reply", 5, data, 0)
        out.used = p - out.data
        if len(self.tails) >= MOST_SUBJECTS:
            self.tails.clear()
        self.tails[subject] = made = out.taken()
        return made


cdef bytes unique_headers(const MessageFields* f, const uint8_t* end):
    """Encode the headers as a map; if a name repeats, the last value counts, at the position of the first."""
    cdef dict headers = {}
    cdef const uint8_t* p = f.first_header
    cdef Py_ssize_t left = f.headers, size = 0
    cdef Slice key, value
    cdef uint32_t tag = TAG_HEADERS
    cdef bytes name, content
    clear_slice(&key)
    clear_slice(&value)
    while left and p != NULL:  # never NULL: the same bytes were parsed before
        if tag == TAG_HEADERS:
            p = get_entry(p, end, &key, &value)
            name = PyBytes_FromStringAndSize(<const char*>key.p, key.n)
            headers[name] = PyBytes_FromStringAndSize(<const char*>value.p, value.n)
            left -= 1
        else:
            p = skip_field(p, end, tag)
        if left:
            p = get_tag(p, end, &tag)
    for name, content in headers.items():
        size += PyBytes_GET_SIZE(name) + PyBytes_GET_SIZE(content) + AROUND
    cdef _Buffer out = _Buffer()
    cdef uint8_t* at = out.more(size + 1)
    for name, content in headers.items():
        at = put_entry(at, TAG_HEADERS, <const uint8_t*>PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name),
                       <const uint8_t*>PyBytes_AS_STRING(content), PyBytes_GET_SIZE(content))
    out.used = at - out.data
    return out.taken()


@cython.final
cdef class _Route:
    """Route of a partition: the parts of its commands and responses that never vary, encoded once."""

    cdef bytes stream
    cdef int64_t partition
    cdef bytes command   # PUB command up to the number in its reply subject
    cdef bytes answer    # JetStream's ack up to the sequence
    cdef bytes ack       # our ack up to the offset


cdef struct Request:
    Slice key
    Slice value
    Slice stream
    Slice correlation_id
    int32_t partition
    int32_t policy
    bint plain           # false: valid, but for the general path in Python
    Py_ssize_t headers   # size of the header fields in the envelope
    Py_ssize_t name      # size of the longest correlation id or ack inbox, in bytes


cdef inline bint get_header(const uint8_t* p, const uint8_t* end, Request* out) noexcept nogil:
    cdef uint32_t tag
    cdef Slice part
    while p < end:
        p = get_tag(p, end, &tag)
        if p == NULL:
            return False
        if tag == TAG_ENTRY_KEY:
            p = get_text(p, end, &part)
            if p != NULL and part.n > MAX_HEADER_KEY:
                out.plain = False
        elif tag == TAG_ENTRY_VALUE:
            p = get_slice(p, end, &part)
        else:
            p = skip_field(p, end, tag)
            if tag & 7 == 0 or tag & 7 == 2:
                out.plain = False
        if p == NULL:
            return False
    return True


cdef inline bint get_request(const uint8_t* p, const uint8_t* end, Request* out) noexcept nogil:
    cdef uint32_t tag
    cdef uint64_t number = 0
    cdef Slice part
    clear_slice(&out.key)
    clear_slice(&out.value)
    clear_slice(&out.stream)
    clear_slice(&out.correlation_id)
    out.partition = out.policy = 0
    out.plain = True
    out.headers = out.name = 0
    while p < end:
        p = get_tag(p, end, &tag)
        if p == NULL:
            return False
        if tag == TAG_Q_KEY:
            p = get_slice(p, end, &out.key)
        elif tag == TAG_Q_VALUE:
            p = get_slice(p, end, &out.value)
        elif tag == TAG_Q_STREAM:
            # Text is validated even if a later field replaces it: protobuf refuses the whole message.
            p = get_text(p, end, &out.stream)
        elif tag == TAG_Q_PARTITION:
            p = get_varint(p, end, &number)
            out.partition = <int32_t>number
        elif tag == TAG_Q_HEADERS:
            p = get_slice(p, end, &part)
            if p == NULL or not get_header(part.p, p, out):
                return False
            out.headers += slice_size(part.n) if part.n else 2
        elif tag == TAG_Q_ACK_INBOX:
            p = get_text(p, end, &part)  # validated, not used: the gateway has its own inbox
            if p != NULL and part.n > out.name:
                out.name = part.n
        elif tag == TAG_Q_CORRELATION_ID:
            p = get_text(p, end, &out.correlation_id)
            if p != NULL and out.correlation_id.n > out.name:
                out.name = out.correlation_id.n
        elif tag == TAG_Q_ACK_POLICY:
            p = get_varint(p, end, &number)
            out.policy = <int32_t>number
            if not 0 <= out.policy <= NO_ACK:
                out.plain = False
        else:
            p = skip_field(p, end, tag)
            if (tag & 7 == 0 or tag & 7 == 2) and tag != TAG_Q_EXPECTED_OFFSET:
                out.plain = False
        if p == NULL:
            return False
    return True


cdef inline uint8_t* put_request_headers(uint8_t* p, const uint8_t* at, const uint8_t* end) noexcept nogil:
    cdef uint32_t tag = 0
    cdef Slice part
    clear_slice(&part)
    while at != NULL and at < end:  # never NULL: the same bytes were parsed before
        at = get_tag(at, end, &tag)
        if tag == TAG_Q_HEADERS:
            at = get_slice(at, end, &part)
            p[0] = TAG_HEADERS
            p = put_raw(put_varint(p + 1, <uint64_t>part.n), part.p, part.n)
        else:
            at = skip_field(at, end, tag)
    return p


@cython.final
cdef class PublishPipe:
    """Converts requests to PUB commands, and JetStream's acks to responses.

    Invariants: each message taken gets a unique number, the last token of its reply subject, and is in `waiting`
    under that number until acked() or expire() removes it. Numbers only grow, so a late ack never meets another
    message. take() stops at the first request that is not plain or has no route: the caller handles that one, so
    that requests are published in their order. A request enters `waiting` only after its command was written.
    `pending_bytes` is the sum of the sizes in `waiting`: pop() subtracts what it removes.
    """

    cdef bytes inbox
    cdef Py_ssize_t max_message
    cdef Py_ssize_t max_name
    cdef dict routes
    cdef dict waiting
    cdef readonly int64_t next_number
    cdef readonly int64_t pending_bytes
    cdef _Route last
    cdef _Buffer out

    def __init__(self, inbox, Py_ssize_t max_message, Py_ssize_t max_name):
        self.inbox = as_text("inbox", inbox).encode()
        self.max_message = max_message
        self.max_name = max_name
        self.routes = {}
        self.waiting = {}
        self.next_number = self.pending_bytes = 0
        self.last = None
        self.out = _Buffer()

    @property
    def pending(self):
        """Count of messages without an ack."""
        return len(self.waiting)

    def route(self, stream, partition, stream_subject, subject, jetstream_stream, domain=""):
        """Take messages for a partition from now on."""
        cdef _Route route = _Route()
        cdef bytes name = as_text("stream", stream).encode()
        cdef bytes whole = as_text("stream_subject", stream_subject).encode()
        cdef bytes own = as_text("subject", subject).encode()
        cdef _Buffer ack = _Buffer()
        cdef uint8_t* p = ack.more(
            PyBytes_GET_SIZE(name) + PyBytes_GET_SIZE(whole) + PyBytes_GET_SIZE(own) + AROUND
        )
        p = put_slice(p, TAG_A_STREAM, <const uint8_t*>PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
        p = put_slice(p, TAG_A_PARTITION_SUBJECT, <const uint8_t*>PyBytes_AS_STRING(whole), PyBytes_GET_SIZE(whole))
        p = put_slice(p, TAG_A_MSG_SUBJECT, <const uint8_t*>PyBytes_AS_STRING(own), PyBytes_GET_SIZE(own))
        ack.used = p - ack.data
        route.stream = name
        route.partition = partition
        route.command = b"PUB %b %b" % (own, self.inbox)
        cdef bytes where = b',"domain":"%b"' % as_text("domain", domain).encode() if domain else b""
        route.answer = b'{"stream":"%b"%b,"seq":' % (as_text("jetstream_stream", jetstream_stream).encode(), where)
        route.ack = ack.taken()
        self.routes[name, partition] = route
        self.last = None

    def close_route(self, stream, partition):
        """Take no messages for a partition until route() is called again."""
        self.routes.pop((as_text("stream", stream).encode(), partition), None)
        self.last = None

    def take(self, list requests not None, Py_ssize_t start, int64_t now_ns):
        """Return PUB commands for requests, up to the first one that is not taken."""
        cdef Py_ssize_t index = start, size, payloads = 0
        cdef const uint8_t* p
        cdef const uint8_t* end
        cdef Request request
        cdef _Route route
        cdef bytes raw
        cdef object received_ns = now_ns  # one object for the whole batch
        self.out.used = 0
        while index < len(requests):
            item = requests[index]
            raw = item if type(item) is bytes else as_bytes("request", item)
            p = <const uint8_t*>PyBytes_AS_STRING(raw)
            end = p + PyBytes_GET_SIZE(raw)
            if not get_request(p, end, &request) or not request.plain or request.name > self.max_name:
                break
            route = self.find(&request)
            if route is None:
                break
            size = HEADER_LEN + slice_size(request.key.n) + slice_size(request.value.n) + request.headers
            if size > self.max_message:
                break
            self.put(route, &request, p, end, size)
            correlation_id = PyBytes_FromStringAndSize(<const char*>request.correlation_id.p, request.correlation_id.n)
            self.waiting[self.next_number] = (
                route, correlation_id, request.policy, PyBytes_GET_SIZE(raw), received_ns
            )
            self.next_number += 1
            self.pending_bytes += PyBytes_GET_SIZE(raw)
            payloads += size
            index += 1
        return self.out.taken(), index, index - start, payloads

    cdef _Route find(self, const Request* request):
        cdef _Route route = self.last
        if (
            route is not None and route.partition == request.partition
            and PyBytes_GET_SIZE(route.stream) == request.stream.n
            and (request.stream.n == 0  # memcmp must not get the NULL of an absent field
                 or memcmp(PyBytes_AS_STRING(route.stream), request.stream.p, <size_t>request.stream.n) == 0)
        ):
            return route
        name = PyBytes_FromStringAndSize(<const char*>request.stream.p, request.stream.n)
        route = self.routes.get((name, request.partition))
        self.last = route
        return route

    cdef int put(self, _Route route, const Request* request, const uint8_t* at, const uint8_t* end,
                 Py_ssize_t size) except -1:
        cdef Py_ssize_t command = PyBytes_GET_SIZE(route.command)
        cdef uint8_t* p = self.out.more(command + size + AROUND)
        p = put_raw(p, <const uint8_t*>PyBytes_AS_STRING(route.command), command)
        p = put_decimal(p, self.next_number)
        p[0] = c" "
        p = put_decimal(p + 1, size)
        p[0] = c"\r"
        p[1] = c"\n"
        p = put_header(p + 2, PUBLISH, False)
        p = put_slice(p, TAG_KEY, request.key.p, request.key.n)
        p = put_slice(p, TAG_VALUE, request.value.p, request.value.n)
        if request.headers:
            p = put_request_headers(p, at, end)
        p[0] = c"\r"
        p[1] = c"\n"
        self.out.used = p + 2 - self.out.data
        return 0

    def acked(self, list messages not None, int64_t now_ns):
        """Return responses, with their gRPC prefixes, for JetStream's acks, and the answers that are not plain acks."""
        cdef Py_ssize_t n, prefix = PyBytes_GET_SIZE(self.inbox)
        cdef const char* subject_p
        cdef int64_t number
        cdef int64_t offset
        cdef _Route route
        cdef bytes correlation_id
        cdef int64_t policy, received_ns
        cdef list others = []
        cdef tuple message
        self.out.used = 0
        for message in messages:
            subject = message[0]
            subject_p = PyUnicode_AsUTF8AndSize(<PyObject*>subject, &n)
            if n - prefix > NUMBER_DIGITS:
                continue
            if not get_digits(<const uint8_t*>subject_p + prefix, n - prefix, &number):
                continue
            waiting = self.pop(number)
            if waiting is None:
                continue
            route, correlation_id, policy, _, received_ns = waiting
            if not get_offset(route.answer, message, &offset):
                others.append((message, (route.stream, route.partition), policy, correlation_id, received_ns))
            elif policy != NO_ACK:
                self.put_response(route.ack, offset, correlation_id, policy, received_ns, now_ns)
        return self.out.taken(), others

    cdef int put_response(self, bytes ack, int64_t offset, bytes correlation_id, int64_t policy,
                          int64_t received_ns, int64_t now_ns) except -1:
        cdef Py_ssize_t head = PyBytes_GET_SIZE(ack), n = PyBytes_GET_SIZE(correlation_id)
        cdef const uint8_t* id_p = <const uint8_t*>PyBytes_AS_STRING(correlation_id)
        cdef Py_ssize_t body = (
            head + number_size(offset) + slice_size(n) + number_size(policy)
            + number_size(received_ns) + number_size(now_ns)
        )
        cdef Py_ssize_t size = 1 + varint_size(<uint64_t>body) + body + slice_size(n)
        cdef uint8_t* p = put_prefix(self.out.more(size + AROUND), size)
        p[0] = TAG_R_ACK
        p = put_varint(p + 1, <uint64_t>body)
        p = put_raw(p, <const uint8_t*>PyBytes_AS_STRING(ack), head)
        p = put_number(p, TAG_A_OFFSET, offset)
        p = put_slice(p, TAG_A_CORRELATION_ID, id_p, n)
        p = put_number(p, TAG_A_ACK_POLICY, policy)
        p = put_number(p, TAG_A_RECEPTION_TIMESTAMP, received_ns)
        p = put_number(p, TAG_A_COMMIT_TIMESTAMP, now_ns)
        p = put_slice(p, TAG_R_CORRELATION_ID, id_p, n)
        self.out.used = p - self.out.data
        return 0

    def expire(self, int64_t number):
        """Remove pending messages numbered below `number`; return their policies and correlation ids."""
        cdef list old = [self.pop(known) for known in list(self.waiting) if known < number]
        return [(policy, correlation_id) for _, correlation_id, policy, _, _ in old]

    cdef tuple pop(self, int64_t number):
        """Remove a pending message and return it; None if the number is not pending."""
        cdef tuple found = self.waiting.pop(number, None)
        if found is not None:
            self.pending_bytes -= <int64_t>found[3]
        return found


cdef bint get_offset(bytes answer, tuple message, int64_t* offset) except? False:
    """Parse the offset of a plain ack; false for other answers."""
    cdef bytes payload = message[3]
    cdef Py_ssize_t head = PyBytes_GET_SIZE(answer), n = PyBytes_GET_SIZE(payload)
    cdef const uint8_t* p = <const uint8_t*>PyBytes_AS_STRING(payload)
    if message[2] is not None or n < head + 2 or n - head - 1 > NUMBER_DIGITS:
        return False
    if p[n - 1] != c"}" or memcmp(p, PyBytes_AS_STRING(answer), <size_t>head) != 0:
        return False
    if not get_digits(p + head, n - head - 1, offset):
        return False
    offset[0] -= 1
    return True
