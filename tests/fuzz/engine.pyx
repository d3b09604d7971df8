# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False
"""A coverage-guided fuzzer of the decoders, for gcc alone: `campaign.py` drives it, `sanitized.py` builds it.

Each input is read twice: by the cursor's parser, from a block of exactly its size, so that the address
sanitizer sees one byte too many; and by the public function, which makes objects of it. What takes the
parser where no input has taken it before is kept, and changed further.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from _cursor cimport (
    ACK, HEADER_LEN, PUBLISH, AckFields, MessageFields, ResponseFields, crc32c_init, parse_ack, parse_message,
    parse_response, payload
)

cdef extern from "crc32c.h":
    pass

cdef extern from "mutate.h" nogil:
    enum:
        LARGEST
    ctypedef struct Input:
        uint8_t data[2048]
        size_t size
    uint64_t random_state
    uint32_t coverage_edges
    void coverage_begin()
    int coverage_end()
    size_t below(size_t n)
    void mutate(Input* input, const Input* other, uint8_t kind)

crc32c_init()

# What is read. The last two stand bare on the wire: they are kept, and changed, behind the header of an
# envelope, which is taken off before they are read.
cdef enum:
    MESSAGES = 0
    ACKS = 1
    STORED = 2
    RESPONSES = 3


cdef class Fuzzer:
    """Makes inputs of one kind and reads them. The coverage counts are the module's: one Fuzzer a process."""

    cdef list sound        # inputs that did something new, and were taken
    cdef list broken       # and such as were refused
    cdef bint was_new
    cdef uint8_t kind
    cdef object read       # the public function
    cdef object refusal    # the exception that it may raise
    cdef object note       # a writable buffer: the input that is being read, for whoever finds us dead
    cdef readonly unsigned long long accepted
    cdef readonly unsigned long long refused

    def __init__(self, int kind, unsigned long long seed, seeds, read, refusal, note):
        global random_state
        random_state = seed * 2 + 1
        self.kind, self.read, self.refusal, self.note = kind, read, refusal, note
        self.sound, self.broken = [], []
        for data in seeds:
            if len(data) <= LARGEST:
                self.keep_if_new(data, self.parsed(self.read_of(data)))

    @property
    def edges(self):
        return coverage_edges

    @property
    def kept(self):
        return len(self.sound) + len(self.broken)

    cdef bytes read_of(self, bytes data):
        """The part of an input that is read."""
        return data if self.kind < STORED else data[HEADER_LEN:]

    def parsed(self, bytes data):
        """Whether the parser takes an input, from a block of its own."""
        cdef size_t n = <size_t>PyBytes_GET_SIZE(data)
        cdef uint8_t* block = <uint8_t*>malloc(n if n else 1)  # NULL is no place to begin
        cdef MessageFields message
        cdef AckFields ack
        cdef ResponseFields response
        cdef bint sound
        memcpy(block, PyBytes_AS_STRING(data), n)
        coverage_begin()
        if self.kind == MESSAGES:
            sound = parse_message(payload(block, <Py_ssize_t>n, PUBLISH), block + n, &message)
        elif self.kind == ACKS:
            sound = parse_ack(payload(block, <Py_ssize_t>n, ACK), block + n, &ack)
        elif self.kind == STORED:
            sound = parse_message(block, block + n, &message)
        else:
            sound = parse_response(block, block + n, &response)
        self.was_new = coverage_end()
        free(block)
        return sound

    cdef void keep_if_new(self, bytes data, bint sound):
        if self.was_new:
            (self.sound if sound else self.broken).append(data)

    cdef void pick(self, Input* out):
        """A kept input; for the most part a sound one, since a change seldom mends what is broken."""
        cdef list kept = self.broken if self.broken and below(8) == 0 else self.sound
        cdef bytes data = kept[below(<size_t>len(kept))]
        out.size = <size_t>PyBytes_GET_SIZE(data)
        memcpy(out.data, PyBytes_AS_STRING(data), out.size)

    def made(self):
        """The next input."""
        cdef Input one, other
        self.pick(&one)
        self.pick(&other)
        mutate(&one, &other, self.kind)
        return PyBytes_FromStringAndSize(<char*>one.data, <Py_ssize_t>one.size)

    def run(self, Py_ssize_t count, check, Py_ssize_t every):
        """Make and read inputs; returns them with whether each was taken. Of those that were, every so-manyth
        goes to check(input, value) as well."""
        cdef Py_ssize_t i
        cdef bytes made, data
        cdef bint sound
        cdef list inputs = [], taken = []
        cdef uint8_t[::1] note = self.note
        for i in range(count):
            made = self.made()
            data = self.read_of(made)
            (<uint32_t*>&note[0])[0] = <uint32_t>len(data)
            memcpy(&note[4], PyBytes_AS_STRING(data), <size_t>len(data))
            sound = self.parsed(data)
            self.keep_if_new(made, sound)
            try:
                value = self.read(data)
            except self.refusal:
                if sound:
                    raise AssertionError("the parser takes what the public function refuses")
                self.refused += 1
            else:
                if not sound:
                    raise AssertionError("the public function takes what the parser refuses")
                self.accepted += 1
                if self.accepted % every == 0:
                    check(data, value)
            inputs.append(data)
            taken.append(sound)
        return inputs, taken
