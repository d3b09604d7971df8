# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, auto_pickle=False, autotestdict=False
# cython: binding=False, embedsignature=True, embedsignature.format=clinic
"""The envelope codec in Cython. `liftenvelope/_native/env.py` is the readable twin.

A fast path for the arguments that callers nearly always pass. Everything unusual, and every error, goes through
the twin or through the checks that both share (`liftenvelope/_checks.py`), so that no rule exists twice.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.dict cimport PyDict_Next
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.string cimport memcmp

from _cursor cimport *

cdef extern from "Python.h":
    object PyUnicode_DecodeUTF8(const char* data, Py_ssize_t size, const char* errors)
    const char* PyUnicode_AsUTF8AndSize(PyObject* text, Py_ssize_t* size)
    object PyUnicode_New(Py_ssize_t size, Py_UCS4 largest)
    bint PyUnicode_IS_COMPACT_ASCII(object text)
    uint8_t* PyUnicode_1BYTE_DATA(object text)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)
    object PyDictProxy_New(object mapping)
    long long PyLong_AsLongLongAndOverflow(object number, int* overflow) except? -1

cdef extern from *:
    """
    #include <structmember.h> /* PyMemberDef and T_OBJECT_EX, before Python 3.12 */

    /* Expose a C field as an attribute in the way of __slots__. CPython's interpreter reads such attributes
     * without a call, several times faster than the properties that Cython creates for readonly fields. */
    static int expose(PyObject *cls, PyMemberDef *member, const char *name, Py_ssize_t offset) {
        PyTypeObject *type = (PyTypeObject *)cls;
        member->name = name;
        member->type = T_OBJECT_EX;
        member->flags = READONLY;
        member->offset = offset;
        PyObject *descriptor = PyDescr_NewMember(type, member);
        if (descriptor == NULL)
            return -1;
        int failed = PyDict_SetItemString(type->tp_dict, name, descriptor);
        Py_DECREF(descriptor);
        PyType_Modified(type);
        return failed;
    }

    static void set_doc(PyObject *function, const char *doc) {
        ((PyCFunctionObject *)function)->m_ml->ml_doc = doc;
    }
    """
    ctypedef struct PyMemberDef:
        pass
    int expose(object cls, PyMemberDef* member, const char* name, Py_ssize_t offset) except -1
    void set_doc(object function, const char* doc)

from functools import partial
from types import MappingProxyType

from liftenvelope._native import env as twin, payloads as bare_twin
from liftenvelope._checks import (
    as_bytes,
    as_headers,
    as_int32,
    as_int64,
    as_list,
    as_optional_bytes,
    as_optional_text,
    as_text,
    storable_headers,
)
from liftenvelope._native.values import ACK_FIELDS as _ACK_FIELDS, MESSAGE_FIELDS as _MESSAGE_FIELDS
from liftenvelope._native.values import instant, plain, rebuild, show
from liftenvelope.errors import EnvelopeTooLargeError, InternalError, UsageTypeError, publish_error
from liftenvelope.types import AckError, AckPolicy, MessageType, as_ack_error, as_ack_policy, as_request_policy

crc32c_init()

cdef object LEADER = AckPolicy.LEADER
cdef object OK = AckError.OK
cdef tuple POLICIES = tuple(AckPolicy)
cdef tuple ERRORS = tuple(AckError)
cdef object ANY_OFFSET = -1
cdef object NO_HEADERS = MappingProxyType({})
cdef Py_ssize_t MAX_ENVELOPE = 0x7FFFFFFF


cdef inline object policy_of(int32_t number):
    return POLICIES[number] if 0 <= number < 3 else AckPolicy(number)


cdef inline object error_of(int32_t number):
    return ERRORS[number] if 0 <= number < 5 else AckError(number)


cdef inline object text_of(Slice s):
    """Return the str of valid UTF-8. ASCII is copied here: for an id, 160 instructions instead of 280."""
    if s.n == 0:
        return ""
    if not is_ascii(s.p, s.n):
        return PyUnicode_DecodeUTF8(<const char*>s.p, s.n, "strict")
    text = PyUnicode_New(s.n, 127)
    put_raw(PyUnicode_1BYTE_DATA(text), s.p, s.n)
    return text


cdef inline object bytes_of(Slice s):
    return PyBytes_FromStringAndSize(<const char*>s.p, s.n) if s.n else b""


cdef inline int utf8(object text, Slice* out) except -1:
    """Return the UTF-8 of a str, which the str owns. The checks have refused lone surrogates, which have none."""
    if PyUnicode_IS_COMPACT_ASCII(text):  # ASCII needs no call
        out.p, out.n = PyUnicode_1BYTE_DATA(text), PyUnicode_GET_LENGTH(text)
        return 0
    out.p = <const uint8_t*>PyUnicode_AsUTF8AndSize(<PyObject*>text, &out.n)
    return 0 if out.p != NULL else -1


# Last text seen in each field that rarely changes from one ack or message to the next. Comparing bytes is several
# times cheaper than creating the same string again. Long texts are not kept.
# Invariant: each slot owns one reference to a str, from the first moment on; `utf8` is memory of that str.
cdef enum:
    SLOTS = 7
    ACK_INBOX_SLOT = 3
    ACK_STREAM_SLOT = 4  # the stream of an ack; the last two slots hold its subjects
    LONGEST_KEPT = 256

cdef struct Kept:
    PyObject* text
    Slice utf8

cdef Kept kept_texts[SLOTS]


cdef void keep(Kept* kept, object text) except *:
    cdef Slice s
    utf8(text, &s)
    cdef PyObject* previous = kept.text
    Py_INCREF(text)
    kept.text, kept.utf8 = <PyObject*>text, s
    if previous != NULL:
        Py_DECREF(<object>previous)


cdef void fill_slots() except *:
    cdef int slot
    for slot in range(SLOTS):
        keep(&kept_texts[slot], "")


cdef inline object repeated_text(int slot, Slice s):
    if s.n == 0:
        return ""
    cdef Kept* kept = &kept_texts[slot]
    if s.n == kept.utf8.n and (s.p == kept.utf8.p or memcmp(kept.utf8.p, s.p, <size_t>s.n) == 0):
        return <object>kept.text
    text = text_of(s)
    if s.n <= LONGEST_KEPT:
        keep(kept, text)
        if slot >= ACK_STREAM_SLOT:
            ack_start.n = 0
    return text


# First bytes of the payload of the last ack: stream and both subjects, which are nearly always those of the ack before.
# One comparison replaces the parsing, the check and the comparison of three texts.
# Invariant: if `n` is not 0, the bytes are three complete fields, whose texts are in the three slots of an ack.
cdef struct AckStart:
    uint8_t bytes[3 * 129]  # tag, length of one byte and at most 127 bytes, three times
    Py_ssize_t n

cdef AckStart ack_start
ack_start.n = 0
fill_slots()


cdef inline const uint8_t* skip_ack_start(const uint8_t* p, const uint8_t* end, AckFields* out):
    """Read the fields that begin like those of the last ack; return the position of the next field.

    The slices point into the kept texts. Fields that repeat later in the ack replace them, as in protobuf.
    """
    if ack_start.n == 0 or ack_start.n > end - p or memcmp(p, ack_start.bytes, <size_t>ack_start.n) != 0:
        return p
    out.stream = kept_texts[ACK_STREAM_SLOT].utf8
    out.partition_subject = kept_texts[ACK_STREAM_SLOT + 1].utf8
    out.msg_subject = kept_texts[ACK_STREAM_SLOT + 2].utf8
    return p + ack_start.n


cdef inline void keep_ack_start(const uint8_t* p, const AckFields* f):
    """Keep the start of an ack whose texts were put into the slots.

    Two bytes from one text to the next leave room for nothing but a tag and a length, so the three fields are the first.
    """
    if (f.stream.n and f.stream.p == p + 2
            and f.partition_subject.n and f.partition_subject.p == f.stream.p + f.stream.n + 2
            and f.msg_subject.n and f.msg_subject.p == f.partition_subject.p + f.partition_subject.n + 2):
        ack_start.n = f.msg_subject.p + f.msg_subject.n - p
        memcpy(ack_start.bytes, p, <size_t>ack_start.n)


cdef inline Slice blob(object data):
    cdef Slice s
    s.p = <const uint8_t*>PyBytes_AS_STRING(data)
    s.n = PyBytes_GET_SIZE(data)
    return s


# The value classes. Their fields are exposed below as read-only slots. No field can lead back to the object that
# holds it, so the classes opt out of garbage collection: the collector need not walk through millions of acks.

@cython.final
@cython.no_gc
@cython.freelist(512)
cdef class Message:
    """Message(value=b"", *, key=None, headers=None, offset=0, timestamp_ns=0, stream="", partition=0, subject="",
            reply_subject="", ack_inbox="", correlation_id="", ack_policy=AckPolicy.LEADER)
--

    A published or stored message. Read-only; equal by value.

    An absent key, an empty key and ``None`` are all ``b""``. Arguments: ``value``, then by name ``key``,
    ``headers``, ``offset`` (for a message to publish: the offset that it must get, -1 for any),
    ``timestamp_ns`` (since 1970), ``stream``, ``partition``, ``subject``, ``reply_subject``,
    ``ack_inbox``, ``correlation_id``, ``ack_policy``. Raises UsageError, which names the wrong value.
    """

    cdef object value, key, headers, offset, timestamp_ns, stream, partition, subject, reply_subject
    cdef object ack_inbox, correlation_id, ack_policy

    def __init__(self, value=b"", *, key=None, headers=None, offset=0, timestamp_ns=0, stream="", partition=0,
                 subject="", reply_subject="", ack_inbox="", correlation_id="", ack_policy=LEADER):
        if self.ack_policy is not None:
            raise AttributeError("Message is read-only")
        self.value = as_bytes("value", value)
        self.key = as_optional_bytes("key", key)
        self.headers = MappingProxyType(as_headers(headers))
        self.offset = as_int64("offset", offset)
        self.timestamp_ns = as_int64("timestamp_ns", timestamp_ns)
        self.stream = as_text("stream", stream)
        self.partition = as_int32("partition", partition)
        self.subject = as_text("subject", subject)
        self.reply_subject = as_text("reply_subject", reply_subject)
        self.ack_inbox = as_optional_text("ack_inbox", ack_inbox)
        self.correlation_id = as_optional_text("correlation_id", correlation_id)
        self.ack_policy = as_ack_policy("ack_policy", ack_policy)

    @property
    def timestamp(self):
        """``timestamp_ns`` as an aware UTC datetime, cut to microseconds; None if it is 0."""
        return instant(self.timestamp_ns)

    cdef tuple values(self):
        return (self.value, self.key, self.headers, self.offset, self.timestamp_ns, self.stream, self.partition,
                self.subject, self.reply_subject, self.ack_inbox, self.correlation_id, self.ack_policy)

    def __eq__(self, other):
        if type(other) is not Message:
            return NotImplemented
        return self.values() == (<Message>other).values()

    def __hash__(self):
        return hash((self.offset, self.stream, self.partition, self.key, self.value, self.correlation_id))

    def __repr__(self):
        return show("Message", _MESSAGE_FIELDS, self.values())

    def __copy__(self):
        return self

    def __deepcopy__(self, _memo):
        return self

    def __reduce__(self):
        return rebuild, ("Message", *map(plain, self.values()))


@cython.final
@cython.no_gc
@cython.freelist(512)
cdef class Ack:
    """Ack(*, stream="", partition_subject="", msg_subject="", offset=0, ack_inbox="", correlation_id="",
        ack_policy=AckPolicy.LEADER, reception_timestamp_ns=0, commit_timestamp_ns=0, error=AckError.OK)
--

    A server's answer to a published message. Read-only; equal by value.

    Check ``error`` first, or call ``raise_for_error()``: the offset of an error ack is 0 and
    meaningless. Arguments, by name: ``stream``, ``partition_subject``, ``msg_subject``, ``offset``,
    ``ack_inbox``, ``correlation_id``, ``ack_policy``, ``reception_timestamp_ns`` and
    ``commit_timestamp_ns`` (since 1970), ``error``. Raises UsageError, which names the wrong value.
    """

    cdef object stream, partition_subject, msg_subject, offset, ack_inbox, correlation_id, ack_policy
    cdef object reception_timestamp_ns, commit_timestamp_ns, error

    def __init__(self, *, stream="", partition_subject="", msg_subject="", offset=0, ack_inbox="",
                 correlation_id="", ack_policy=LEADER, reception_timestamp_ns=0, commit_timestamp_ns=0, error=OK):
        if self.ack_policy is not None:
            raise AttributeError("Ack is read-only")
        self.stream = as_text("stream", stream)
        self.partition_subject = as_text("partition_subject", partition_subject)
        self.msg_subject = as_text("msg_subject", msg_subject)
        self.offset = as_int64("offset", offset)
        self.ack_inbox = as_optional_text("ack_inbox", ack_inbox)
        self.correlation_id = as_optional_text("correlation_id", correlation_id)
        self.ack_policy = as_ack_policy("ack_policy", ack_policy)
        self.reception_timestamp_ns = as_int64("reception_timestamp_ns", reception_timestamp_ns)
        self.commit_timestamp_ns = as_int64("commit_timestamp_ns", commit_timestamp_ns)
        self.error = as_ack_error("error", error)

    @property
    def reception_timestamp(self):
        """``reception_timestamp_ns`` as an aware UTC datetime, cut to microseconds; None if it is 0."""
        return instant(self.reception_timestamp_ns)

    @property
    def commit_timestamp(self):
        """``commit_timestamp_ns`` as an aware UTC datetime, cut to microseconds; None if it is 0."""
        return instant(self.commit_timestamp_ns)

    def raise_for_error(self):
        """Raise the PublishError that the ack reports, if any."""
        if self.error is not OK:
            raise publish_error(self)

    cdef tuple values(self):
        return (self.stream, self.partition_subject, self.msg_subject, self.offset, self.ack_inbox,
                self.correlation_id, self.ack_policy, self.reception_timestamp_ns, self.commit_timestamp_ns,
                self.error)

    def __eq__(self, other):
        if type(other) is not Ack:
            return NotImplemented
        return self.values() == (<Ack>other).values()

    def __hash__(self):
        return hash(self.values())

    def __repr__(self):
        return show("Ack", _ACK_FIELDS, self.values())

    def __copy__(self):
        return self

    def __deepcopy__(self, _memo):
        return self

    def __reduce__(self):
        return rebuild, ("Ack", *map(plain, self.values()))


cdef PyMemberDef message_members[12]
cdef PyMemberDef ack_members[10]
cdef list KEPT_TEXTS = []  # CPython keeps pointers into these bytes


cdef void expose_fields(object probe, tuple fields, list marks, PyMemberDef* members) except *:
    """Expose each field of a probe at the offset where its mark is found.

    Cython gives no access to the C offsets of fields. So the probe's fields hold distinct objects (marks), and the
    words of the probe are searched for their pointers.
    """
    cdef Py_ssize_t word
    cdef PyObject** words = <PyObject**><PyObject*>probe
    cdef Py_ssize_t size = type(probe).__basicsize__ // sizeof(PyObject*)
    for index, name in enumerate(fields):
        for word in range(size):
            if words[word] == <PyObject*>marks[index]:
                encoded = name.encode()
                KEPT_TEXTS.append(encoded)
                expose(type(probe), &members[index], encoded, word * sizeof(PyObject*))


cdef void expose_all() except *:
    cdef Message m = Message()
    cdef Ack a = Ack()
    marks = [object() for _ in _MESSAGE_FIELDS]
    (m.value, m.key, m.headers, m.offset, m.timestamp_ns, m.stream, m.partition, m.subject, m.reply_subject,
     m.ack_inbox, m.correlation_id, m.ack_policy) = marks
    expose_fields(m, _MESSAGE_FIELDS, marks, message_members)
    marks = [object() for _ in _ACK_FIELDS]
    (a.stream, a.partition_subject, a.msg_subject, a.offset, a.ack_inbox, a.correlation_id, a.ack_policy,
     a.reception_timestamp_ns, a.commit_timestamp_ns, a.error) = marks
    expose_fields(a, _ACK_FIELDS, marks, ack_members)

expose_all()


# Encoding

cdef inline bint plain_headers(dict headers) except -1:
    """Return true if headers need no conversion and no further checks: short ASCII names, bytes values."""
    cdef Py_ssize_t at = 0
    cdef PyObject* name
    cdef PyObject* value
    if len(headers) > MAX_HEADERS:
        return False
    while PyDict_Next(headers, &at, &name, &value):
        if type(<object>name) is not str or type(<object>value) is not bytes:
            return False
        if not PyUnicode_IS_COMPACT_ASCII(<object>name) or PyUnicode_GET_LENGTH(<object>name) > MAX_HEADER_KEY:
            return False
    return True


cdef inline Py_ssize_t headers_size(dict headers) except -1:
    cdef Py_ssize_t at = 0, size = 0, entry
    cdef PyObject* name
    cdef PyObject* value
    cdef Slice key
    while PyDict_Next(headers, &at, &name, &value):
        utf8(<object>name, &key)
        entry = entry_size(key.n, PyBytes_GET_SIZE(<object>value))
        size += 1 + varint_size(<uint64_t>entry) + entry
    return size


cdef inline uint8_t* put_headers(uint8_t* p, uint8_t tag, dict headers) except NULL:
    cdef Py_ssize_t at = 0
    cdef PyObject* name
    cdef PyObject* value
    cdef Slice key, content
    while PyDict_Next(headers, &at, &name, &value):
        utf8(<object>name, &key)
        content = blob(<object>value)
        p = put_entry(p, tag, key.p, key.n, content.p, content.n)
    return p


cdef inline bytes new_envelope(Py_ssize_t body, uint8_t kind, bint crc):
    """Return an envelope with its header written and room for a body of this size."""
    cdef Py_ssize_t header = HEADER_LEN_CRC if crc else HEADER_LEN
    if body > MAX_ENVELOPE - header:
        raise EnvelopeTooLargeError(f"an envelope holds at most {MAX_ENVELOPE} bytes")
    cdef bytes envelope = PyBytes_FromStringAndSize(NULL, header + body)
    put_header(<uint8_t*>PyBytes_AS_STRING(envelope), kind, crc)
    return envelope


cdef inline bytes finished(bytes envelope, uint8_t* end, bint crc):
    cdef uint8_t* begin = <uint8_t*>PyBytes_AS_STRING(envelope)
    if end != begin + PyBytes_GET_SIZE(envelope):
        raise InternalError("an envelope came out at another size than was reckoned")
    if crc:
        put_checksum(begin, end)
    return envelope


# Checked arguments of a publish, for an envelope or a request.
cdef struct Outgoing:
    Slice value
    Slice key
    Slice stream
    Slice inbox
    Slice correlation_id
    int64_t offset
    int32_t partition
    int32_t policy


cdef inline uint8_t* put_offset(uint8_t* p, uint8_t tag, int64_t offset):
    """Write an expected offset: nearly always -1, whose ten bytes are written at once."""
    if offset != -1:
        return put_number(p, tag, offset)
    p[0] = tag
    memset(p + 1, 0xFF, 9)
    p[10] = 1
    return p + 11


cdef bytes write_new_message(const Outgoing* out, dict headers, bint crc):
    cdef Py_ssize_t size = (
        number_size(out.offset) + slice_size(out.key.n) + slice_size(out.value.n) + slice_size(out.inbox.n)
        + slice_size(out.correlation_id.n) + number_size(out.policy)
    )
    if headers is not None:
        size += headers_size(headers)
    cdef bytes envelope = new_envelope(size, PUBLISH, crc)
    cdef uint8_t* p = <uint8_t*>PyBytes_AS_STRING(envelope) + (HEADER_LEN_CRC if crc else HEADER_LEN)
    p = put_offset(p, TAG_OFFSET, out.offset)
    p = put_slice(p, TAG_KEY, out.key.p, out.key.n)
    p = put_slice(p, TAG_VALUE, out.value.p, out.value.n)
    if headers is not None:
        p = put_headers(p, TAG_HEADERS, headers)
    p = put_slice(p, TAG_ACK_INBOX, out.inbox.p, out.inbox.n)
    p = put_slice(p, TAG_CORRELATION_ID, out.correlation_id.p, out.correlation_id.n)
    p = put_number(p, TAG_ACK_POLICY, out.policy)
    return finished(envelope, p, crc)


cdef bytes write_publish_request(const Outgoing* out, dict headers):
    cdef Py_ssize_t size = (
        slice_size(out.key.n) + slice_size(out.value.n) + slice_size(out.stream.n) + number_size(out.partition)
        + slice_size(out.inbox.n) + slice_size(out.correlation_id.n) + number_size(out.policy)
        + number_size(out.offset)
    )
    if headers is not None:
        size += headers_size(headers)
    if size > MAX_ENVELOPE:
        raise EnvelopeTooLargeError(f"a request holds at most {MAX_ENVELOPE} bytes")
    cdef bytes request = PyBytes_FromStringAndSize(NULL, size)
    cdef uint8_t* p = <uint8_t*>PyBytes_AS_STRING(request)
    p = put_slice(p, TAG_Q_KEY, out.key.p, out.key.n)
    p = put_slice(p, TAG_Q_VALUE, out.value.p, out.value.n)
    p = put_slice(p, TAG_Q_STREAM, out.stream.p, out.stream.n)
    p = put_number(p, TAG_Q_PARTITION, out.partition)
    if headers is not None:
        p = put_headers(p, TAG_Q_HEADERS, headers)
    p = put_slice(p, TAG_Q_ACK_INBOX, out.inbox.p, out.inbox.n)
    p = put_slice(p, TAG_Q_CORRELATION_ID, out.correlation_id.p, out.correlation_id.n)
    p = put_number(p, TAG_Q_ACK_POLICY, out.policy)
    p = put_offset(p, TAG_Q_EXPECTED_OFFSET, out.offset)
    return finished(request, p, False)


cdef inline bytes write_outgoing(const Outgoing* out, dict headers, bint bare, bint crc):
    return write_publish_request(out, headers) if bare else write_new_message(out, headers, crc)


cdef inline bint plain_bytes(object data, Slice* out) noexcept:
    """Set a slice to bytes, or to nothing for None; false for anything else, which the checks must convert."""
    clear_slice(out)
    if type(data) is bytes:
        out[0] = blob(data)
        return True
    return data is None


cdef inline bint plain_text(object text, Slice* out) noexcept:
    """Set a slice to an ASCII text, or to nothing for None; false for anything else, which the checks must examine."""
    clear_slice(out)
    if type(text) is str and PyUnicode_IS_COMPACT_ASCII(text):
        out.p, out.n = PyUnicode_1BYTE_DATA(text), PyUnicode_GET_LENGTH(text)
        return True
    return text is None


cdef inline dict sendable(object headers):
    if headers is None or type(headers) is dict and plain_headers(headers):
        return headers
    return storable_headers(headers)


cdef bint has_buffer(object value, Py_buffer* view) except -1:
    try:
        PyObject_GetBuffer(value, view, PyBUF_SIMPLE)
    except (BufferError, TypeError, ValueError):
        return False
    return True


cdef inline bint plain_integer(object number, long long* out) except -1:
    """Read an ordinary int of 64 bits; false for anything else, which the checks must examine."""
    cdef int overflow = 0
    if type(number) is not int:
        return False
    out[0] = PyLong_AsLongLongAndOverflow(number, &overflow)
    return not overflow


cdef inline int32_t int32_of(str name, object number) except? -1:
    cdef long long plain
    if plain_integer(number, &plain) and <int32_t>plain == plain:
        return <int32_t>plain
    return as_int32(name, number)


cdef inline int64_t int64_of(str name, object number) except? -1:
    cdef long long plain
    return plain if plain_integer(number, &plain) else <int64_t>as_int64(name, number)


cdef inline int32_t request_policy(object policy) except -1:
    cdef int number
    for number in range(1, 3):
        if policy is POLICIES[number]:
            return number
    return as_request_policy("ack_policy", policy)


cdef bytes checked(Outgoing* out, object value, object key, object headers, object ack_inbox, object correlation_id,
                   object ack_policy, object expected_offset, bint bare, bint crc):
    """Check the arguments common to envelopes and requests; write an envelope, or a request if `bare`.

    What the checks return has variables of its own: to assign to an argument, Cython counts a reference to it.
    """
    cdef Py_buffer view
    out.policy, out.offset = 0, -1
    if expected_offset is not ANY_OFFSET:
        out.offset = int64_of("expected_offset", expected_offset)
    if not plain_bytes(key, &out.key):
        own_key = as_bytes("key", key)
        out.key = blob(own_key)
    if not plain_text(ack_inbox, &out.inbox):
        own_inbox = as_text("ack_inbox", ack_inbox)
        utf8(own_inbox, &out.inbox)
    if not plain_text(correlation_id, &out.correlation_id):
        own_id = as_text("correlation_id", correlation_id)
        utf8(own_id, &out.correlation_id)
    if ack_policy is not LEADER:
        out.policy = request_policy(ack_policy)
    # Headers are checked last: the dict is not copied, so no Python code may run between its check and its use.
    if type(value) is bytes:
        out.value = blob(value)
        return write_outgoing(out, None if headers is None else sendable(headers), bare, crc)
    if not has_buffer(value, &view):
        own_value = as_bytes("value", value)  # nearly always raises the error
        out.value = blob(own_value)
        return write_outgoing(out, sendable(headers), bare, crc)
    try:
        out.value.p = <const uint8_t*>view.buf
        out.value.n = view.len
        return write_outgoing(out, sendable(headers), bare, crc)
    finally:
        PyBuffer_Release(&view)


def new_message(value, *, key=None, headers=None, ack_inbox=None, correlation_id=None, ack_policy=AckPolicy.LEADER,
                expected_offset=-1, bint crc=False):
    cdef Outgoing out
    return checked(&out, value, key, headers, ack_inbox, correlation_id, ack_policy, expected_offset, False, crc)


def publish_request(stream, value, *, key=None, headers=None, partition=0, ack_inbox=None, correlation_id=None,
                    ack_policy=AckPolicy.LEADER, expected_offset=-1):
    cdef Outgoing out
    if type(stream) is not str or not PyUnicode_IS_COMPACT_ASCII(stream):
        stream = as_text("stream", stream)
    utf8(stream, &out.stream)
    out.partition = int32_of("partition", partition)
    return checked(&out, value, key, headers, ack_inbox, correlation_id, ack_policy, expected_offset, True, False)


cdef bytes allocated_message(MessageFields* f, dict headers, bint crc):
    return new_envelope(
        number_size(f.offset) + slice_size(f.key.n) + slice_size(f.value.n) + number_size(f.timestamp)
        + slice_size(f.stream.n) + number_size(f.partition) + slice_size(f.subject.n)
        + slice_size(f.reply_subject.n) + headers_size(headers) + slice_size(f.ack_inbox.n)
        + slice_size(f.correlation_id.n) + number_size(f.ack_policy),
        PUBLISH, crc)


def marshal_message(message, *, bint crc=False):
    if type(message) is not Message:
        raise UsageTypeError(f"message must be a Message, got {type(message).__name__}")
    return write_message(message, crc)


cdef bytes write_message(Message message, bint crc):
    cdef MessageFields f
    cdef dict headers = storable_headers(message.headers)
    f.offset, f.timestamp, f.partition = message.offset, message.timestamp_ns, message.partition
    f.ack_policy = message.ack_policy
    f.key, f.value = blob(message.key), blob(message.value)
    utf8(message.stream, &f.stream)
    utf8(message.subject, &f.subject)
    utf8(message.reply_subject, &f.reply_subject)
    utf8(message.ack_inbox, &f.ack_inbox)
    utf8(message.correlation_id, &f.correlation_id)
    cdef bytes envelope = allocated_message(&f, headers, crc)
    cdef uint8_t* p = <uint8_t*>PyBytes_AS_STRING(envelope) + (HEADER_LEN_CRC if crc else HEADER_LEN)
    p = put_number(p, TAG_OFFSET, f.offset)
    p = put_slice(p, TAG_KEY, f.key.p, f.key.n)
    p = put_slice(p, TAG_VALUE, f.value.p, f.value.n)
    p = put_number(p, TAG_TIMESTAMP, f.timestamp)
    p = put_slice(p, TAG_STREAM, f.stream.p, f.stream.n)
    p = put_number(p, TAG_PARTITION, f.partition)
    p = put_slice(p, TAG_SUBJECT, f.subject.p, f.subject.n)
    p = put_slice(p, TAG_REPLY_SUBJECT, f.reply_subject.p, f.reply_subject.n)
    p = put_headers(p, TAG_HEADERS, headers)
    p = put_slice(p, TAG_ACK_INBOX, f.ack_inbox.p, f.ack_inbox.n)
    p = put_slice(p, TAG_CORRELATION_ID, f.correlation_id.p, f.correlation_id.n)
    p = put_number(p, TAG_ACK_POLICY, f.ack_policy)
    return finished(envelope, p, crc)


cdef bytes allocated_ack(AckFields* f, bint crc):
    return new_envelope(
        slice_size(f.stream.n) + slice_size(f.partition_subject.n) + slice_size(f.msg_subject.n)
        + number_size(f.offset) + slice_size(f.ack_inbox.n) + slice_size(f.correlation_id.n)
        + number_size(f.ack_policy) + number_size(f.reception_timestamp) + number_size(f.commit_timestamp)
        + number_size(f.error),
        ACK, crc)


def marshal_ack(ack, *, bint crc=False):
    if type(ack) is not Ack:
        raise UsageTypeError(f"ack must be an Ack, got {type(ack).__name__}")
    return write_ack(ack, crc)


cdef bytes write_ack(Ack ack, bint crc):
    cdef AckFields f
    f.offset, f.ack_policy, f.error = ack.offset, ack.ack_policy, ack.error
    f.reception_timestamp, f.commit_timestamp = ack.reception_timestamp_ns, ack.commit_timestamp_ns
    utf8(ack.stream, &f.stream)
    utf8(ack.partition_subject, &f.partition_subject)
    utf8(ack.msg_subject, &f.msg_subject)
    utf8(ack.ack_inbox, &f.ack_inbox)
    utf8(ack.correlation_id, &f.correlation_id)
    cdef bytes envelope = allocated_ack(&f, crc)
    cdef uint8_t* p = <uint8_t*>PyBytes_AS_STRING(envelope) + (HEADER_LEN_CRC if crc else HEADER_LEN)
    p = put_slice(p, TAG_A_STREAM, f.stream.p, f.stream.n)
    p = put_slice(p, TAG_A_PARTITION_SUBJECT, f.partition_subject.p, f.partition_subject.n)
    p = put_slice(p, TAG_A_MSG_SUBJECT, f.msg_subject.p, f.msg_subject.n)
    p = put_number(p, TAG_A_OFFSET, f.offset)
    p = put_slice(p, TAG_A_ACK_INBOX, f.ack_inbox.p, f.ack_inbox.n)
    p = put_slice(p, TAG_A_CORRELATION_ID, f.correlation_id.p, f.correlation_id.n)
    p = put_number(p, TAG_A_ACK_POLICY, f.ack_policy)
    p = put_number(p, TAG_A_RECEPTION_TIMESTAMP, f.reception_timestamp)
    p = put_number(p, TAG_A_COMMIT_TIMESTAMP, f.commit_timestamp)
    p = put_number(p, TAG_A_ACK_ERROR, f.error)
    return finished(envelope, p, crc)


# Decoding

cdef object headers_of(MessageFields* f, const uint8_t* end, bint strip):
    """Return the headers of a parsed message; the second parse of the same bytes can't fail."""
    cdef dict headers = None
    cdef const uint8_t* p = f.first_header
    cdef Slice key, value
    cdef uint32_t tag
    cdef Py_ssize_t left = f.headers
    while True:
        p = get_entry(p, end, &key, &value)
        if not strip or not is_server_header(key):
            if headers is None:
                headers = {}
            headers[text_of(key)] = bytes_of(value)
        left -= 1
        if left == 0:
            return NO_HEADERS if headers is None else PyDictProxy_New(headers)
        p = get_tag(p, end, &tag)
        while tag != TAG_HEADERS:
            p = get_tag(skip_field(p, end, tag), end, &tag)


cdef object message_of(const uint8_t* p, const uint8_t* end, bint strip):
    """Decode a message; return None for any fault. With `strip`, drop the headers that the server adds."""
    cdef MessageFields f
    if not parse_message(p, end, &f):
        return None
    cdef Message message = Message.__new__(Message)
    message.offset = f.offset
    message.key = bytes_of(f.key)
    message.value = bytes_of(f.value)
    message.timestamp_ns = f.timestamp
    message.stream = repeated_text(0, f.stream)
    message.partition = f.partition
    message.subject = repeated_text(1, f.subject)
    message.reply_subject = text_of(f.reply_subject)
    message.headers = headers_of(&f, end, strip) if f.headers else NO_HEADERS
    message.ack_inbox = repeated_text(2, f.ack_inbox)
    message.correlation_id = text_of(f.correlation_id)
    message.ack_policy = policy_of(f.ack_policy)
    return message


cdef object ack_of(const AckFields* f):
    cdef Ack ack = Ack.__new__(Ack)
    ack.stream = repeated_text(ACK_STREAM_SLOT, f.stream)
    ack.partition_subject = repeated_text(ACK_STREAM_SLOT + 1, f.partition_subject)
    ack.msg_subject = repeated_text(ACK_STREAM_SLOT + 2, f.msg_subject)
    ack.offset = f.offset
    ack.ack_inbox = repeated_text(ACK_INBOX_SLOT, f.ack_inbox)
    ack.correlation_id = text_of(f.correlation_id)
    ack.ack_policy = policy_of(f.ack_policy)
    ack.reception_timestamp_ns = f.reception_timestamp
    ack.commit_timestamp_ns = f.commit_timestamp
    ack.error = error_of(f.error)
    return ack


cdef object response_of(const ResponseFields* f):
    ack = ack_of(&f.ack) if f.has_ack else None
    ident = (<Ack>ack).correlation_id if ack is not None and f.correlation_id.n == 0 else text_of(f.correlation_id)
    return ident, ack, f.error_code if f.has_error else -1, text_of(f.error_text)


cdef object explain(object reader, bytes raw):
    """Raise the error for bytes that the fast path refused, by decoding them with the twin."""
    reader(raw)
    raise InternalError(f"the two codecs disagree about {raw[:200].hex()}")


cdef inline const uint8_t* begin_of(bytes raw):
    return <const uint8_t*>PyBytes_AS_STRING(raw)


cdef inline const uint8_t* end_of(bytes raw):
    return <const uint8_t*>PyBytes_AS_STRING(raw) + PyBytes_GET_SIZE(raw)


def unmarshal_message(data):
    cdef bytes raw = data if type(data) is bytes else as_bytes("data", data)
    message = message_of(payload(begin_of(raw), PyBytes_GET_SIZE(raw), PUBLISH), end_of(raw), False)
    return message if message is not None else explain(twin.unmarshal_message, raw)


def unmarshal_ack(data):
    cdef bytes raw = data if type(data) is bytes else as_bytes("data", data)
    cdef AckFields f
    cdef const uint8_t* begin = payload(begin_of(raw), PyBytes_GET_SIZE(raw), ACK)
    cdef const uint8_t* p
    clear_ack(&f)
    if begin == NULL:
        return explain(twin.unmarshal_ack, raw)
    p = skip_ack_start(begin, end_of(raw), &f)
    if not merge_ack(p, end_of(raw), &f):
        return explain(twin.unmarshal_ack, raw)
    ack = ack_of(&f)
    if p == begin:
        keep_ack_start(begin, &f)
    return ack


def read_messages(payloads, /, *, bint strip_headers=True):
    cdef list messages = []
    cdef bytes raw
    for i, data in enumerate(as_list("payloads", payloads)):
        raw = data if type(data) is bytes else as_bytes(f"payloads[{i}]", data)
        message = message_of(begin_of(raw), end_of(raw), strip_headers)
        messages.append(message if message is not None else explain(partial(bare_twin.read_stored, i), raw))
    return messages


def read_publish_responses(payloads, /):
    cdef list responses = []
    cdef bytes raw
    cdef ResponseFields f
    for i, data in enumerate(as_list("payloads", payloads)):
        raw = data if type(data) is bytes else as_bytes(f"payloads[{i}]", data)
        if not parse_response(begin_of(raw), end_of(raw), &f):
            explain(partial(bare_twin.read_response, i), raw)
        responses.append(response_of(&f))
    return responses


def peek_type(data):
    cdef bytes raw = data if type(data) is bytes else as_bytes("data", data)
    if not sound_header(<const uint8_t*>PyBytes_AS_STRING(raw), PyBytes_GET_SIZE(raw)):
        return explain(twin.peek_type, raw)
    return MessageType(<uint8_t>PyBytes_AS_STRING(raw)[7])


def is_envelope(data):
    cdef bytes raw = data if type(data) is bytes else as_bytes("data", data)
    return bool(sound_header(<const uint8_t*>PyBytes_AS_STRING(raw), PyBytes_GET_SIZE(raw)))


def _crc32c_by(data, *, bint native):
    """Compute a CRC-32C by the processor's instruction or by the table. Tests compare the two."""
    cdef bytes raw = as_bytes("data", data)
    if native and not crc32c_has_native():
        raise UsageTypeError("this processor has no instruction for CRC-32C")
    if native:
        return crc32c_native(<const uint8_t*>PyBytes_AS_STRING(raw), <size_t>PyBytes_GET_SIZE(raw))
    return crc32c_table(<const uint8_t*>PyBytes_AS_STRING(raw), <size_t>PyBytes_GET_SIZE(raw))


def _crc32c_is_native():
    """Return True if this processor has an instruction for CRC-32C."""
    return bool(crc32c_has_native())


cdef void take_doc(object function) except *:
    """Give a function the docstring of its twin.

    The functions are built-in ones, without Cython's `binding`, because CPython calls these 5 to 7 ns faster. Their
    docstrings, which begin with the signature, are in a C struct.
    """
    name = function.__name__
    doc = getattr(twin, name).__doc__ or ""  # None under -OO
    text = f"{name}{function.__text_signature__}\n--\n\n{doc}".encode()
    KEPT_TEXTS.append(text)
    set_doc(function, text)


for _function in (
    is_envelope,
    marshal_ack,
    marshal_message,
    new_message,
    peek_type,
    unmarshal_ack,
    unmarshal_message,
):
    take_doc(_function)
