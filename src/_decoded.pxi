# Batches decoded into columns: a part of _fastbatch.pyx.

cdef inline void prefetch_ends(Slice row) noexcept nogil:
    """Prefetch the lines of a row before and behind its value, where its other fields are.

    The processor itself prefetches only what is read in sequence. So this takes a tenth off reads of views, with values
    of 1,024 bytes, and adds a tenth to reads that copy the values.
    """
    prefetch(row.p, 0)
    prefetch(row.p + max(row.n - 64, 0), 0)


cdef list bad_rows(const Rows* rows, Py_ssize_t length, _Bits valid):
    """Return the rows that are null in the columns, but not in the input."""
    if not valid.nulls:
        return []
    return [i for i in range(length) if not has_bit(valid.p, i) and row_at(rows, i).p != NULL]


@cython.final
cdef class MessageColumns:
    """Message envelopes decoded into columns."""

    # None for a column that is not wanted.
    cdef _Texts keys, values, inboxes, idents
    cdef _Views views  # in place of the values
    cdef _Headers headers
    cdef _Memory policies, offsets
    cdef _Bits valid
    cdef bint raw
    cdef readonly list bad  # rows that are not valid envelopes

    def __cinit__(self, Column rows not None, bint large, bint raw, allocate, bint views=False, fields=_ENVELOPE_FIELDS):
        cdef Py_ssize_t n = rows.length
        cdef bint enough
        self.make_columns(rows, large, allocate, views, fields)
        self.valid, self.raw = _Bits(allocate, n), raw
        with nogil:
            enough = self.fill(&rows.rows, n)
        if not enough:
            raise MemoryError
        if self.headers is not None:
            self.headers.require_room()
        self.bad = bad_rows(&rows.rows, n, self.valid)

    cdef int make_columns(self, Column rows, bint large, allocate, bint views, fields) except -1:
        cdef Py_ssize_t n = rows.length, most = rows.nbytes
        if "value" in fields and views:
            self.views = _Views(allocate, n, rows.data())
        elif "value" in fields:
            # The values can't be larger than their envelopes: allocated once, never grown.
            self.values = _Texts(allocate, n, large, most, most)
        if "key" in fields:
            self.keys = _Texts(allocate, n, large, most)
        if "ack_inbox" in fields:
            self.inboxes = _Texts(allocate, n, large, most)
        if "correlation_id" in fields:
            self.idents = _Texts(allocate, n, large, most)
        if "headers" in fields:
            self.headers = _Headers(allocate, n)
        if "ack_policy" in fields:
            self.policies = full(allocate, n * 4)
        if "expected_offset" in fields:
            self.offsets = full(allocate, n * 8)
        return 0

    cdef bint fill(self, const Rows* rows, Py_ssize_t n) noexcept nogil:
        cdef Py_ssize_t i
        for i in range(n):
            if self.views is not None and i < n - 2:
                prefetch_ends(row_at(rows, i + 2))
            if not self.add(i, row_at(rows, i)):
                return False
        return True

    cdef inline bint add(self, Py_ssize_t i, Slice row) noexcept nogil:
        cdef MessageFields f
        cdef bint sound = row.p != NULL and parse_message(payload(row.p, row.n, PUBLISH), row.p + row.n, &f)
        if not sound:
            clear_message(&f)
            if self.raw:
                f.value = row
            self.valid.clear(i)
        if self.policies is not None:
            (<int32_t*>self.policies.p)[i] = f.ack_policy
        if self.offsets is not None:
            (<int64_t*>self.offsets.p)[i] = f.offset
        cdef bint null = not sound and f.value.p == NULL
        if self.views is not None:
            self.views.add(i, f.value, null)
        return (
            (self.values is None or self.values.add_bulk(i, f.value, null))
            and (self.keys is None or self.keys.add(i, f.key, f.key.n == 0))
            and (self.inboxes is None or self.inboxes.add(i, f.ack_inbox, f.ack_inbox.n == 0))
            and (self.idents is None or self.idents.add(i, f.correlation_id, f.correlation_id.n == 0))
            and (self.headers is None or self.headers.add(i, &f, row.p + row.n, False))
        )

    def columns(self):
        """Return buffers by field name; see the twin."""
        cdef dict made = {"validity": self.valid.buffer()}
        if self.views is not None:
            made["value"] = self.views.buffers()
        texts = (
            ("value", self.values), ("key", self.keys), ("ack_inbox", self.inboxes), ("correlation_id", self.idents)
        )
        made.update((name, (<_Texts>column).buffers()) for name, column in texts if column is not None)
        numbers = (("ack_policy", self.policies), ("expected_offset", self.offsets))
        made.update((name, column) for name, column in numbers if column is not None)
        if self.headers is not None:
            made.update(self.headers.columns())
        return made


@cython.final
cdef class AckColumns:
    """Ack envelopes decoded into columns."""

    cdef _Texts streams, partition_subjects, msg_subjects, inboxes, idents
    cdef _Memory offsets, policies, receptions, commits, errors
    cdef _Bits valid
    cdef readonly list bad  # rows that are not valid envelopes

    def __cinit__(self, Column rows not None, bint large, allocate):
        cdef Py_ssize_t n = rows.length, most = rows.nbytes
        cdef bint enough
        self.streams, self.partition_subjects = _Texts(allocate, n, large, most), _Texts(allocate, n, large, most)
        self.msg_subjects, self.inboxes = _Texts(allocate, n, large, most), _Texts(allocate, n, large, most)
        self.idents, self.offsets = _Texts(allocate, n, large, most), full(allocate, n * 8)
        self.policies, self.errors = full(allocate, n * 4), full(allocate, n * 4)
        self.receptions, self.commits = full(allocate, n * 8), full(allocate, n * 8)
        self.valid = _Bits(allocate, n)
        with nogil:
            enough = self.fill(&rows.rows, n)
        if not enough:
            raise MemoryError
        self.bad = bad_rows(&rows.rows, n, self.valid)

    cdef bint fill(self, const Rows* rows, Py_ssize_t n) noexcept nogil:
        cdef Py_ssize_t i
        for i in range(n):
            if not self.add(i, row_at(rows, i)):
                return False
        return True

    cdef inline bint add(self, Py_ssize_t i, Slice row) noexcept nogil:
        cdef AckFields f
        cdef bint sound = row.p != NULL and parse_ack(payload(row.p, row.n, ACK), row.p + row.n, &f)
        if not sound:
            clear_ack(&f)
            self.valid.clear(i)
        (<int64_t*>self.offsets.p)[i] = f.offset
        (<int32_t*>self.policies.p)[i] = f.ack_policy
        (<int64_t*>self.receptions.p)[i] = f.reception_timestamp
        (<int64_t*>self.commits.p)[i] = f.commit_timestamp
        (<int32_t*>self.errors.p)[i] = f.error
        return (
            self.streams.add(i, f.stream, not sound)
            and self.partition_subjects.add(i, f.partition_subject, not sound)
            and self.msg_subjects.add(i, f.msg_subject, not sound)
            and self.inboxes.add(i, f.ack_inbox, f.ack_inbox.n == 0)
            and self.idents.add(i, f.correlation_id, f.correlation_id.n == 0)
        )

    def columns(self):
        """Return buffers by field name; see the twin."""
        return {
            "stream": self.streams.buffers(),
            "partition_subject": self.partition_subjects.buffers(),
            "msg_subject": self.msg_subjects.buffers(),
            "ack_inbox": self.inboxes.buffers(),
            "correlation_id": self.idents.buffers(),
            "offset": self.offsets,
            "ack_policy": self.policies,
            "reception_timestamp": self.receptions,
            "commit_timestamp": self.commits,
            "ack_error": self.errors,
            "validity": self.valid.buffer(),
        }


@cython.final
cdef class StoredColumns:
    """Messages without envelopes, as servers send them to subscribers, decoded into columns."""

    cdef _Texts keys, values, streams, subjects, reply_subjects, idents
    cdef _Headers headers
    cdef _Memory offsets, timestamps, partitions
    cdef readonly Py_ssize_t bad  # first row that is not a valid message; -1 if all are

    def __cinit__(self, Column rows not None, allocate):
        cdef Py_ssize_t n = rows.length, most = rows.nbytes
        cdef bint enough
        if most > MAX_ENVELOPE:
            raise EnvelopeTooLargeError("the messages have more than 2 GiB together: decode fewer at a time")
        # The values can't be larger than the messages: allocated once, never grown.
        self.keys, self.values = _Texts(allocate, n, False, most), _Texts(allocate, n, False, most, most)
        self.streams, self.subjects = _Texts(allocate, n, False, most), _Texts(allocate, n, False, most)
        self.reply_subjects, self.idents = _Texts(allocate, n, False, most), _Texts(allocate, n, False, most)
        self.headers, self.bad = _Headers(allocate, n), -1
        self.offsets, self.timestamps = full(allocate, n * 8), full(allocate, n * 8)
        self.partitions = full(allocate, n * 4)
        with nogil:
            enough = self.fill(&rows.rows, n)
        if not enough:
            raise MemoryError

    cdef bint fill(self, const Rows* rows, Py_ssize_t n) noexcept nogil:
        """Decode up to the first invalid row, which is recorded in `bad`; false if memory ran out."""
        cdef MessageFields f
        cdef Slice row
        cdef Py_ssize_t i
        for i in range(n):
            row = row_at(rows, i)
            if not parse_message(row.p, row.p + row.n, &f):
                self.bad = i
                return True
            if not self.add(i, &f, row.p + row.n):
                return False
        return True

    cdef inline bint add(self, Py_ssize_t i, const MessageFields* f, const uint8_t* end) noexcept nogil:
        (<int64_t*>self.offsets.p)[i] = f.offset
        (<int64_t*>self.timestamps.p)[i] = f.timestamp
        (<int32_t*>self.partitions.p)[i] = f.partition
        return (
            self.values.add_bulk(i, f.value, False)
            and self.keys.add(i, f.key, False)
            and self.streams.add(i, f.stream, False)
            and self.subjects.add(i, f.subject, False)
            and self.reply_subjects.add(i, f.reply_subject, False)
            and self.idents.add(i, f.correlation_id, False)
            and self.headers.add(i, f, end, True)
        )

    def columns(self):
        """Return buffers by field name; see the twin."""
        return {
            "offset": self.offsets,
            "key": self.keys.buffers(),
            "value": self.values.buffers(),
            "timestamp": self.timestamps,
            "stream": self.streams.buffers(),
            "partition": self.partitions,
            "subject": self.subjects.buffers(),
            "reply_subject": self.reply_subjects.buffers(),
            "correlation_id": self.idents.buffers(),
            "validity": None,
            **self.headers.columns(),
        }
