# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False
"""The coverage-guided loop of the campaign: `campaign.py` drives it, `sanitized.py` builds it.

Inputs that reach a new edge of the watched extension are kept and changed further. `exact` hides the zero byte
that CPython puts behind the content of bytes, so that AddressSanitizer reports a read of one byte too many.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_CheckExact, PyByteArray_GET_SIZE
from cpython.bytes cimport (
    PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
)
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef extern from "crc32c.h":
    void crc32c_init()

cdef extern from "sanitizer/asan_interface.h":
    void __asan_poison_memory_region(const void* p, size_t n)
    void __asan_unpoison_memory_region(const void* p, size_t n)

cdef extern from "cover.h":
    int coverage_watch(const char* path)
    void coverage_begin()
    int coverage_end()
    uint32_t coverage_edges()

cdef extern from "mutate.h" nogil:
    enum:
        LARGEST
        LARGEST_INPUT
        MOST_CHUNKS
    ctypedef struct Input:
        uint8_t data[2048]
        size_t size
    ctypedef struct Shape:
        int format
        int bars
        size_t most
    uint64_t random_state
    size_t below(size_t n)
    size_t chunk_places(Input* input, size_t* places, size_t most)
    size_t size_at(const uint8_t* p)
    void mutate(Input* input, Input* other, const Shape* shape)
    void add_word(const uint8_t* data, size_t n)

crc32c_init()

cdef bint hides = False
cdef list hidden = []


cdef const char* end_of(object block):
    if PyBytes_CheckExact(block):
        return PyBytes_AS_STRING(block) + PyBytes_GET_SIZE(block)
    return PyByteArray_AS_STRING(block) + PyByteArray_GET_SIZE(block)


def exact(block):
    """The bytes or bytearray, without the byte behind its end for as long as the extension under test runs."""
    # Shorter ones are CPython's own and shared.
    if hides and (PyByteArray_CheckExact(block) and len(block) or PyBytes_CheckExact(block) and len(block) > 1):
        hidden.append(block)
        __asan_poison_memory_region(end_of(block), 1)
    return block


cdef show_again():
    global hides
    hides = False
    for block in hidden:
        __asan_unpoison_memory_region(end_of(block), 1)
    hidden.clear()


def pack(chunks):
    """An input of these chunks."""
    return b"".join([len(chunk).to_bytes(2, "little") + chunk for chunk in chunks])


def watch(str path):
    """Count the edges of this shared object."""
    if not coverage_watch(path.encode()):
        raise RuntimeError(f"{path} is not loaded")


def edges():
    """Distinct edges reached so far."""
    return coverage_edges()


cdef list chunks_of(const Input* made, size_t most):
    cdef size_t places[MOST_CHUNKS + 1]
    cdef size_t i, count = chunk_places(<Input*>made, places, most)
    return [PyBytes_FromStringAndSize(<char*>made.data + places[i] + 2, <Py_ssize_t>size_at(made.data + places[i]))
            for i in range(count)]


cdef class Fuzzer:
    """Makes inputs and runs them. Random state and coverage are the module's: one Fuzzer per process.

    `run(chunks)` gives an input to the extension. It may raise `refusals`, and nothing else. `note` is a writable
    buffer that has the input while it runs, for the process that finds this one dead. `check(chunks)` runs for
    each input that is kept and for every so-manyth of those taken and those refused.
    """

    cdef list sound        # kept inputs that were taken
    cdef list broken       # kept inputs that were refused
    cdef object work, refusals, check, note
    cdef list known        # words; the mutator points into them
    cdef Shape shape
    cdef Py_ssize_t every
    cdef readonly unsigned long long accepted, refused

    def __init__(self, unsigned long long seed, tuple shape, words, work, refusals, check, Py_ssize_t every, note):
        global random_state
        random_state = seed * 2 + 1
        self.shape.format, self.shape.bars, self.shape.most = shape
        self.work, self.refusals, self.check, self.note, self.every = work, refusals, check, note, every
        self.sound, self.broken, self.known = [], [], list(words)
        for word in self.known:
            add_word(<const uint8_t*>PyBytes_AS_STRING(word), <size_t>PyBytes_GET_SIZE(word))

    @property
    def kept(self):
        return len(self.sound) + len(self.broken)

    def one(self, bytes data not None):
        """Run one input; keep it if it is new."""
        cdef Input made
        if len(data) <= LARGEST_INPUT:
            made.size = <size_t>PyBytes_GET_SIZE(data)
            memcpy(made.data, PyBytes_AS_STRING(data), made.size)
            self.one_of(&made)

    cdef one_of(self, Input* made):
        global hides
        cdef list chunks = chunks_of(made, self.shape.most)
        cdef uint8_t[::1] note = self.note
        cdef bint sound = True, new
        cdef unsigned long long count
        (<uint32_t*>&note[0])[0] = <uint32_t>made.size
        memcpy(&note[4], made.data, made.size)
        hides = True
        coverage_begin()
        try:
            self.work(chunks)
        except self.refusals:
            sound = False
        finally:
            new = coverage_end()
            show_again()
        if sound:
            self.accepted += 1
            count = self.accepted
        else:
            self.refused += 1
            count = self.refused
        if new:
            (self.sound if sound else self.broken).append(PyBytes_FromStringAndSize(<char*>made.data, <Py_ssize_t>made.size))
        if new or count % self.every == 0:
            self.check(chunks)

    cdef void pick(self, Input* out):
        """A kept input; mostly a sound one, since a change seldom mends what is broken, and rather a short one."""
        cdef list kept = self.broken if self.broken and (not self.sound or below(8) == 0) else self.sound
        cdef bytes data = kept[below(<size_t>len(kept))], other = kept[below(<size_t>len(kept))]
        if len(other) < len(data) and below(2):
            data = other
        out.size = <size_t>PyBytes_GET_SIZE(data)
        memcpy(out.data, PyBytes_AS_STRING(data), out.size)

    def run(self, Py_ssize_t count):
        """Make and run so many inputs."""
        cdef Py_ssize_t i
        cdef Input made, other
        if not self.kept:
            raise RuntimeError("no seed reaches an edge of the extension")
        for i in range(count):
            self.pick(&made)
            self.pick(&other)
            mutate(&made, &other, &self.shape)
            self.one_of(&made)
