# Headers of a consumer's messages as the buffers of an Arrow map column; a part of _fastframes.pyx.

cdef enum:
    MOST_PLAIN = 16  # headers of a plain block, each of which is compared with those before it


cdef struct Plain:
    Slice names[MOST_PLAIN]
    Slice values[MOST_PLAIN]
    Py_ssize_t count


cdef bint read_plain(Slice block, Plain* plain) noexcept:
    """Read a block of headers; false if it has a status, a name twice, many headers, or text that is not UTF-8.

    Reads others as `liftenvelope.nats.headers.headers_of` does: a line without a colon, or with a name that is not
    ASCII or has white space, is left out.
    """
    cdef const uint8_t* p = block.p
    cdef const uint8_t* end = p + block.n
    cdef const uint8_t* stop = line_end(p, end)
    cdef const uint8_t* colon
    cdef Slice name, value
    plain.count = 0
    if begins(p, stop - p, b" ", 1) or begins(p, stop - p, b"NATS/1.0 ", 9):
        return False
    while stop < end:
        p = stop + CRLF
        stop = line_end(p, end)
        colon = <const uint8_t*>memchr(p, c':', <size_t>(stop - p))
        if colon == NULL:
            continue
        name, value = stripped(p, colon), stripped(colon + 1, stop)
        if not is_name(name):
            continue
        if plain.count == MOST_PLAIN or has_name(plain, name) or not valid_utf8(value.p, value.n):
            return False
        plain.names[plain.count], plain.values[plain.count] = name, value
        plain.count += 1
    return True


cdef const uint8_t* line_end(const uint8_t* p, const uint8_t* end) noexcept nogil:
    """Return the position of the next CRLF, or the end."""
    while end - p >= CRLF:
        p = <const uint8_t*>memchr(p, 13, <size_t>(end - p - 1))
        if p == NULL:
            break
        if p[1] == 10:
            return p
        p += 1
    return end


cdef Slice stripped(const uint8_t* p, const uint8_t* end) noexcept nogil:
    cdef Slice text
    while p < end and is_space(p[0]):
        p += 1
    while p < end and is_space((end - 1)[0]):
        end -= 1
    text.p, text.n = p, end - p
    return text


cdef bint is_name(Slice name) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(name.n):
        if name.p[i] >= 0x80 or is_space(name.p[i]):
            return False
    return True


cdef bint has_name(const Plain* plain, Slice name) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(plain.count):
        if plain.names[i].n == name.n and memcmp(plain.names[i].p, name.p, <size_t>name.n) == 0:
            return True
    return False


cdef bint header_block(_Storage storage, Py_ssize_t i, Slice* block) except -1:
    """Return true if a message has headers, and their block, or NULL if they are not one."""
    cdef const BlockRow* row = storage.rows + i
    block.p, block.n = NULL, 0
    if storage.objects is None:
        block[0] = storage.part(row, row.subject + row.reply, row.headers)
        return row.headers > 0
    headers = (<Delivered>storage.objects[i])._headers
    if type(headers) is bytes:
        block.p, block.n = start_of(<bytes>headers), PyBytes_GET_SIZE(<bytes>headers)
    return bool(headers)


cdef bint have_headers(list blocks) except -1:
    """Return true if a message of the blocks has headers."""
    cdef MessageBlock block
    cdef Slice text
    cdef Py_ssize_t i
    for block in blocks:
        for i in range(block.begin, block.begin + block.count):
            if header_block(block.storage, i, &text):
                return True
    return False


def header_columns(list blocks not None, entries not None):
    """Return (ends, name ends, names, value ends, values): headers as the buffers of an Arrow map column."""
    cdef list held = checked_blocks(blocks)
    cdef list found = []        # by message: None, a plain block, True for that of a row, or a list of pairs
    cdef Plain plain
    cdef Slice text
    cdef MessageBlock block
    cdef Py_ssize_t i, j, rows = 0, names = 0, values = 0
    if not have_headers(held):
        return bytes(4 * rows_in(held) + 4), bytes(4), b"", bytes(4), b""
    for block in held:
        for i in range(block.begin, block.begin + block.count):
            if not header_block(block.storage, i, &text):
                found.append(None)
            elif text.p != NULL and read_plain(text, &plain):
                found.append(True if block.storage.objects is None else (<Delivered>block.storage.objects[i])._headers)
                rows += plain.count
                for j in range(plain.count):
                    names += plain.names[j].n
                    values += plain.values[j].n
            else:
                pairs = [((<str?>name).encode(), <bytes?>value) for name, value in entries(block.storage.message(i))]
                found.append(pairs)
                rows += len(pairs)
                for name, value in pairs:
                    names += PyBytes_GET_SIZE(<bytes>name)
                    values += PyBytes_GET_SIZE(<bytes>value)
    check_size(max(rows, names, values), "headers")
    return filled_columns(held, found, rows, names, values)


cdef tuple filled_columns(list blocks, list found, Py_ssize_t rows, Py_ssize_t names, Py_ssize_t values):
    cdef bytes name_data = PyBytes_FromStringAndSize(NULL, names), value_data = PyBytes_FromStringAndSize(NULL, values)
    cdef bytes ends = PyBytes_FromStringAndSize(NULL, (len(found) + 1) * 4)
    cdef Column name_column, value_column
    cdef bytes name_ends = new_column(&name_column, rows, name_data)
    cdef bytes value_ends = new_column(&value_column, rows, value_data)
    cdef uint32_t end = 0
    cdef char* next_end = put(PyBytes_AS_STRING(ends), <const char*>&end, 4)
    cdef Plain plain
    cdef Slice text
    cdef MessageBlock block
    cdef Py_ssize_t i, j, at = 0
    for block in blocks:
        for i in range(block.begin, block.begin + block.count):
            one = found[at]
            at += 1
            if one is True or type(one) is bytes:
                if one is True:
                    header_block(block.storage, i, &text)
                else:
                    text.p, text.n = start_of(<bytes>one), PyBytes_GET_SIZE(<bytes>one)
                read_plain(text, &plain)
                for j in range(plain.count):
                    add_text(&name_column, plain.names[j].p, plain.names[j].n)
                    add_text(&value_column, plain.values[j].p, plain.values[j].n)
                end += <uint32_t>plain.count
            elif one is not None:
                for name, value in <list>one:
                    add_text(&name_column, PyBytes_AS_STRING(<bytes>name), PyBytes_GET_SIZE(<bytes>name))
                    add_text(&value_column, PyBytes_AS_STRING(<bytes>value), PyBytes_GET_SIZE(<bytes>value))
                end += <uint32_t>len(<list>one)
            next_end = put(next_end, <const char*>&end, 4)
    return ends, name_ends, name_data, value_ends, value_data
