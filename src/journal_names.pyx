# cython: language_level=3
"""Names that came with a round, as bytes in a journal."""

from cpython.bytes cimport PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_AsEncodedString
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy


cdef bytes packed_text(text):
    # Python's texts may hold lone surrogates, and be of a class of the user's.
    cdef bytes packed = PyUnicode_AsEncodedString(text, "utf-8", "surrogatepass")
    cdef uint32_t size = <uint32_t> PyBytes_GET_SIZE(packed)
    return (<char*> &size)[:sizeof(uint32_t)] + packed


cdef bytes packed_digest(uint64_t digest):
    return (<char*> &digest)[:sizeof(uint64_t)]


def pack_names(dict tools, dict errors, used=()):
    """Texts by their hashes, and the names of tools that were used, as bytes."""
    cdef uint32_t counts[3]
    cdef list parts = []
    counts[0], counts[1], counts[2] = len(tools), len(errors), len(used)
    parts.append((<char*> counts)[:sizeof(counts)])
    for table in (tools, errors):
        for digest, text in (<dict> table).items():
            parts.append(packed_digest(digest))
            parts.append(packed_text(text))
    for text in used:
        parts.append(packed_text(text))
    return b"".join(parts)


cdef class _Names:
    cdef const char* place
    cdef Py_ssize_t left

    cdef const char* take(self, size_t size) except NULL:
        cdef const char* taken = self.place
        if size > <size_t> self.left:
            raise ValueError("names: they end too soon")
        self.place += size
        self.left -= size
        return taken

    cdef str text(self):
        cdef uint32_t size
        memcpy(&size, self.take(sizeof(uint32_t)), sizeof(uint32_t))
        return self.take(size)[:size].decode("utf-8", "surrogatepass")

    cdef dict table(self, uint32_t count):
        cdef uint64_t digest
        cdef dict texts = {}
        for _ in range(count):
            memcpy(&digest, self.take(sizeof(uint64_t)), sizeof(uint64_t))
            texts[digest] = self.text()
        return texts


def unpack_names(const unsigned char[::1] packed):
    """What `pack_names` packed: tools, errors, used; ValueError if these are no names."""
    cdef uint32_t counts[3]
    cdef _Names names = _Names()
    names.left = packed.shape[0]
    names.place = <const char*> &packed[0] if names.left else NULL
    memcpy(counts, names.take(sizeof(counts)), sizeof(counts))
    tools = names.table(counts[0])
    errors = names.table(counts[1])
    return tools, errors, frozenset([names.text() for _ in range(counts[2])])
