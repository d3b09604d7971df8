# Messages of one subscription as rows in memory of their own; a part of _fastframes.pyx.

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

cdef enum:
    FIRST_ROWS = 16
    FIRST_BYTES = 4096


cdef class _Storage:
    """Memory of blocks: packed rows, or the messages that the rows were made of.

    Rows are only added while the block of the walk that makes them is the one block that has the storage.
    """

    cdef BlockRow* rows
    cdef Py_ssize_t count, row_room
    cdef char* data
    cdef Py_ssize_t used, room
    cdef list objects           # messages of the rows; None if the rows are packed
    cdef list payloads          # of those messages, which keep the memory of the rows
    cdef type message_class
    cdef object acks
    cdef str subject            # of the message made last, as text
    cdef const BlockRow* subject_row

    def __dealloc__(self):
        PyMem_Free(self.rows)
        PyMem_Free(self.data)

    cdef BlockRow* new_row(self) except NULL:
        cdef BlockRow* rows
        if self.count == self.row_room:
            self.row_room = max(2 * self.row_room, <Py_ssize_t>FIRST_ROWS)
            rows = <BlockRow*>PyMem_Realloc(self.rows, <size_t>self.row_room * sizeof(BlockRow))
            if rows == NULL:
                self.row_room = self.count
                raise MemoryError
            self.rows = rows
        self.count += 1
        return self.rows + self.count - 1

    cdef int add(self, const Head* head, const uint8_t* body, const Numbers* numbers) except -1:
        """Add a message; `numbers` are NULL if its reply subject has none."""
        cdef Py_ssize_t size = head.subject.n + head.reply.n + <Py_ssize_t>head.size
        self.make_room(size)
        cdef BlockRow* row = self.new_row()
        cdef char* p = self.data + self.used
        row.sequence = row.delivery = row.stored_at = -1
        if numbers != NULL:
            row.sequence, row.delivery, row.stored_at = numbers.sequence, numbers.delivery, numbers.stored_at
        row.start = <size_t>self.used
        row.subject, row.reply, row.headers = head.subject.n, head.reply.n, <Py_ssize_t>head.header_size
        row.value = <Py_ssize_t>(head.size - head.header_size)
        row.size = size
        p = put(p, <const char*>head.subject.p, head.subject.n)
        if head.reply.n:
            p = put(p, <const char*>head.reply.p, head.reply.n)
        put(p, <const char*>body, <Py_ssize_t>head.size)
        self.used += size
        return 0

    cdef int make_room(self, Py_ssize_t size) except -1:
        cdef Py_ssize_t room = max(2 * self.room, <Py_ssize_t>FIRST_BYTES)
        cdef char* data
        if size <= self.room - self.used:
            return 0
        if size > room - self.used:
            room = self.used + size
        data = <char*>PyMem_Realloc(self.data, <size_t>room)
        if data == NULL:
            raise MemoryError
        self.data, self.room = data, room
        return 0

    cdef void trim(self) noexcept:
        """Give back memory that no row uses: rows may wait for long."""
        cdef char* data
        cdef BlockRow* rows
        if 0 < self.used < self.room:
            data = <char*>PyMem_Realloc(self.data, <size_t>self.used)
            if data != NULL:
                self.data, self.room = data, self.used
        if 0 < self.count < self.row_room:
            rows = <BlockRow*>PyMem_Realloc(self.rows, <size_t>self.count * sizeof(BlockRow))
            if rows != NULL:
                self.rows, self.row_room = rows, self.count

    cdef int add_object(self, Delivered one) except -1:
        cdef Numbers numbers
        cdef bytes data = data_of(one)
        cdef bint known = numbers_of(one, &numbers)
        self.objects.append(one)
        self.payloads.append(data)
        cdef BlockRow* row = self.new_row()
        row.sequence = row.delivery = row.stored_at = -1
        if known:
            row.sequence, row.delivery, row.stored_at = numbers.sequence, numbers.delivery, numbers.stored_at
        row.start = <size_t>PyBytes_AS_STRING(data)
        row.subject = row.reply = row.headers = 0
        row.value = PyBytes_GET_SIZE(data)
        row.size = one._size if one._size else row.value
        return 0

    cdef inline Slice part(self, const BlockRow* row, Py_ssize_t skipped, Py_ssize_t n) noexcept:
        """Return `n` bytes of a row, after those skipped."""
        cdef Slice s
        s.p = <const uint8_t*>(<size_t>self.data + row.start) + skipped
        s.n = n
        return s

    cdef inline Slice value(self, const BlockRow* row) noexcept:
        return self.part(row, row.subject + row.reply + row.headers, row.value)

    cdef inline int subject_of(self, Py_ssize_t i, Slice* out) except -1:
        """Set `out` to the subject of a message."""
        cdef str subject
        if self.objects is None:
            out[0] = self.part(self.rows + i, 0, self.rows[i].subject)
            return 0
        subject = (<Delivered>self.objects[i]).subject
        out.p = <const uint8_t*>PyUnicode_AsUTF8AndSize(subject, &out.n)
        return 0

    cdef Delivered message(self, Py_ssize_t i):
        """Return a message: the one that the row was made of, or a new one."""
        cdef const BlockRow* row = self.rows + i
        cdef Slice subject, reply, headers, value
        if self.objects is not None:
            return self.objects[i]
        subject, reply = self.part(row, 0, row.subject), self.part(row, row.subject, row.reply)
        headers, value = self.part(row, row.subject + row.reply, row.headers), self.value(row)
        cdef Delivered one = <Delivered>new_of(<PyTypeObject*>self.message_class, EMPTY, NULL)
        one.subject = self.text_of(row, subject)
        one.raw_reply = PyBytes_FromStringAndSize(<const char*>reply.p, reply.n)
        one.data = PyBytes_FromStringAndSize(<const char*>value.p, value.n)
        if headers.n:
            one._headers = PyBytes_FromStringAndSize(<const char*>headers.p, headers.n)
        one._acks = self.acks
        one._size = row.size
        one.numbers_read = 1 if row.sequence >= 0 else -1
        one.numbers.sequence, one.numbers.delivery = row.sequence, row.delivery
        one.numbers.stored_at = row.stored_at
        return one

    cdef inline str text_of(self, const BlockRow* row, Slice subject):
        """Return the subject as text: that of the message made last, if it is the same."""
        if self.subject is None or not is_same(subject, self.part(self.subject_row, 0, self.subject_row.subject)):
            self.subject = PyUnicode_DecodeUTF8(<const char*>subject.p, subject.n, "strict")
            self.subject_row = row
        return self.subject


cdef inline bint is_same(Slice one, Slice other) noexcept:
    return one.n == other.n and memcmp(one.p, other.p, <size_t>one.n) == 0


@cython.final
cdef class MessageBlock:
    """Messages of a consumer in a row, without an object for each."""

    cdef _Storage storage       # None only without rows
    cdef Py_ssize_t begin, count
    cdef readonly Py_ssize_t size

    def __init__(self, list messages not None):
        cdef _Storage storage = _Storage.__new__(_Storage)
        storage.objects, storage.payloads = [], []
        for message in messages:
            storage.add_object(<Delivered?>message)
        self.show(storage, 0, storage.count)

    cdef int show(self, _Storage storage, Py_ssize_t begin, Py_ssize_t count) except -1:
        """Have these rows of a storage."""
        cdef Py_ssize_t i
        self.storage, self.begin, self.count, self.size = storage, begin, count, 0
        for i in range(begin, begin + count):
            self.size += storage.rows[i].size
        return 0

    def __len__(self):
        return self.count

    def __getitem__(self, Py_ssize_t i):
        if not 0 <= i < self.count:
            raise IndexError(f"message {i} of {self.count}")
        return self.storage.message(self.begin + i)

    def messages(self):
        """Return all messages."""
        cdef Py_ssize_t i
        return [self.storage.message(self.begin + i) for i in range(self.count)]

    def part(self, Py_ssize_t begin, Py_ssize_t end):
        """Return the messages from one place up to another as a block, which shares the memory."""
        if not 0 <= begin <= end <= self.count:
            raise IndexError(f"messages {begin} to {end} of {self.count}")
        cdef MessageBlock block = MessageBlock.__new__(MessageBlock)
        block.show(self.storage, self.begin + begin, end - begin)
        return block

    @property
    def sequences(self):
        """Stream sequences of the messages; -1 for a message that does not come from a consumer."""
        cdef Py_ssize_t i
        return [self.storage.rows[i].sequence for i in range(self.begin, self.begin + self.count)]

    @property
    def last_sequence(self):
        """Stream sequence of the last message, as in `sequences`."""
        if self.count == 0:
            raise IndexError("messages -1 to 0 of 0")
        return self.storage.rows[self.begin + self.count - 1].sequence

    def in_order(self, int64_t expected):
        """Return how many messages at the start have the deliveries `expected` and following."""
        cdef const BlockRow* row
        cdef Py_ssize_t i = 0
        rows_of_block(<PyObject*>self, &row)
        while i < self.count and row[i].sequence >= 0 and row[i].delivery - i == expected:
            i += 1
        return i


cdef Py_ssize_t rows_of_block(PyObject* block, const BlockRow** rows) noexcept:
    cdef Py_ssize_t count = (<MessageBlock>block).count
    rows[0] = (<MessageBlock>block).storage.rows + (<MessageBlock>block).begin if count else NULL
    return count


cdef object message_of_block(object block, Py_ssize_t i):
    return (<MessageBlock>block).storage.message((<MessageBlock>block).begin + i)


cdef BlockFunctions block_functions
block_functions.rows = rows_of_block
block_functions.message = message_of_block
_BLOCKS = PyCapsule_New(<void*>&block_functions, "liftenvelope.blocks", NULL)


# Columns of blocks

# A column of text or bytes of which the size is known. The ends need not be aligned.
cdef struct Column:
    char* next
    char* next_end
    uint32_t filled


cdef inline void add_text(Column* column, const void* text, Py_ssize_t n) noexcept:
    column.next = put(column.next, <const char*>text, n)
    column.filled += <uint32_t>n
    column.next_end = put(column.next_end, <const char*>&column.filled, 4)


cdef bytes new_column(Column* column, Py_ssize_t rows, bytes content):
    """Return the ends of a column, of which the first is set; its content is `content`."""
    cdef bytes ends = PyBytes_FromStringAndSize(NULL, (rows + 1) * 4)
    column.filled = 0
    column.next = PyBytes_AS_STRING(content)
    column.next_end = put(PyBytes_AS_STRING(ends), <const char*>&column.filled, 4)
    return ends


cdef list checked_blocks(list blocks):
    """Return a copy of the list, which code of the user can't change."""
    cdef list copy = list(blocks)
    for block in copy:
        if type(block) is not MessageBlock:
            raise TypeError(f"expected MessageBlock, got {type(block).__name__}")
    return copy


cdef Py_ssize_t rows_in(list blocks) noexcept:
    cdef Py_ssize_t rows = 0
    for block in blocks:
        rows += (<MessageBlock>block).count
    return rows


def stored_times(list blocks not None, read not None):
    """Return the times in the replies as 64-bit numbers; `read` parses a reply that has another form."""
    cdef list held = checked_blocks(blocks)
    cdef bytes times = PyBytes_FromStringAndSize(NULL, rows_in(held) * 8)
    cdef char* p = PyBytes_AS_STRING(times)
    cdef MessageBlock block
    cdef Py_ssize_t i
    cdef int64_t stored_at
    for block in held:
        for i in range(block.begin, block.begin + block.count):
            stored_at = block.storage.rows[i].stored_at
            if block.storage.rows[i].sequence < 0:
                stored_at = read(block.storage.message(i).reply)
            p = put(p, <const char*>&stored_at, 8)
    return times


def joined(list blocks not None):
    """Return (ends, values, subject): payloads as the buffers of an Arrow column, and the subject of all."""
    cdef list held = checked_blocks(blocks)
    cdef Py_ssize_t i, size = 0, rows = 0
    cdef MessageBlock block
    cdef Slice subject, value, first
    first.p, first.n = NULL, 0
    cdef bint is_shared = True
    cdef object text = None
    cdef Column column
    for block in held:
        for i in range(block.begin, block.begin + block.count):
            size += block.storage.rows[i].value
            block.storage.subject_of(i, &subject)
            if rows == 0:
                first = subject
                text = PyUnicode_DecodeUTF8(<const char*>first.p, first.n, "strict")
            is_shared = is_shared and is_same(subject, first)
            rows += 1
    check_size(size, "values")
    cdef bytes values = PyBytes_FromStringAndSize(NULL, size)
    cdef bytes ends = new_column(&column, rows, values)
    for block in held:
        for i in range(block.begin, block.begin + block.count):
            value = block.storage.value(block.storage.rows + i)
            add_text(&column, value.p, value.n)
    return ends, values, text if is_shared else None


def subjects(list blocks not None):
    """Return (ends, subjects): the subjects as the buffers of an Arrow column."""
    cdef list held = checked_blocks(blocks)
    cdef Py_ssize_t i, size = 0
    cdef MessageBlock block
    cdef Slice subject
    cdef Column column
    for block in held:
        for i in range(block.begin, block.begin + block.count):
            block.storage.subject_of(i, &subject)
            size += subject.n
    check_size(size, "subjects")
    cdef bytes texts = PyBytes_FromStringAndSize(NULL, size)
    cdef bytes ends = new_column(&column, rows_in(held), texts)
    for block in held:
        for i in range(block.begin, block.begin + block.count):
            block.storage.subject_of(i, &subject)
            add_text(&column, subject.p, subject.n)
    return ends, texts


cdef int check_size(Py_ssize_t size, str what) except -1:
    if size > LARGEST_COLUMN:
        text = f"the {what} of a batch must have at most {LARGEST_COLUMN} bytes, got {size}"
        raise UsageError(f"{text}: take fewer rows")
    return 0
