# The file of a journal: a header and then entries, each a multiple of eight bytes, in the byte
# order of the machine.
#
#     header   "CELLJRNL", format version, mark of byte order, number of the entry before the first,
#              checksum of all that
#     entry    checksum of what follows, "ENTR", kind, number, length of the body, body
#
# Checksums are XXH3 (64 bits). Numbers are consecutive. The body of a round is declared here; those
# of other entries are in `cellium_fast/entries.py`.

from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport int8_t, int64_t, uint8_t, uint32_t, uint64_t

cdef extern from "Python.h":
    enum:
        PyBUF_READ

cdef enum:
    VERSION = 1
    BYTE_ORDER_MARK = 0x01020304
    OTHER_BYTE_ORDER = 0x04030201
    KIND_ROUND = 1          # other kinds are those of cellium_fast/entries.py

cdef struct FileHeader:
    char name[8]
    uint32_t version
    uint32_t byte_order
    uint64_t number         # of the entry before the first
    uint64_t checksum       # of the fields above

cdef struct EntryHeader:
    uint64_t checksum       # of the fields below and the body
    char name[4]
    uint32_t kind
    uint64_t number
    uint64_t length         # bytes of the body, a multiple of 8

# One round of one session. Behind it, each given column of its calls: tool, signature, shape,
# result, size, flags; then names.
cdef struct RoundBody:
    int64_t id
    uint64_t text
    uint64_t sketch
    int64_t context_tokens
    int64_t context_limit
    float progress
    float reward
    uint32_t calls
    uint32_t names          # bytes
    int8_t success
    uint8_t event
    uint8_t given           # columns: a sum of the numbers below
    uint8_t unused[5]

cdef enum:
    GIVEN_SHAPE = 1
    GIVEN_RESULT = 2
    GIVEN_SIZE = 4
    GIVEN_FLAGS = 8


cdef inline size_t padded(size_t size) noexcept nogil:
    return (size + 7) & ~<size_t> 7


cdef inline size_t size_of(const EntryHeader* entry) noexcept nogil:
    return sizeof(EntryHeader) + entry.length


cdef inline object view_of(const void* bytes, size_t size):
    return PyMemoryView_FromMemory(<char*> bytes, size, PyBUF_READ)


cdef inline uint64_t checksum_of(digest, const void* bytes, size_t size) except? 0:
    # `digest`: xxhash.xxh3_64_intdigest.
    return digest(view_of(bytes, size))
