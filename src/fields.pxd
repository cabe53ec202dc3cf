# Volatile fields in canonical JSON: told by their keys, seen through by hiding their values.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memchr, memcpy

cdef enum:
    LONGEST_KEY = 40        # characters from which a key is none that is known
    KEY_FILTER = 4096       # places of a table that knows all keys, and takes few others for one


# Keys of volatile fields in lower case, without _ and -.
ctypedef struct Keys:
    uint8_t known[KEY_FILTER]


cdef inline char folded(char char) noexcept:
    # 0: not part of a key's words
    if 65 <= char <= 90:        # A to Z
        return char + 32
    return 0 if char == 95 or char == 45 else char      # _ and -


cdef inline uint32_t key_place(const char* start, const char* end) noexcept:
    cdef uint32_t place = 0
    cdef char char
    while start < end:
        char = folded(start[0])
        if char:
            place = place * 33 ^ <uint8_t> char
        start += 1
    return (place ^ place >> 12) % KEY_FILTER


cdef inline void know(Keys* keys, bytes name) noexcept:
    cdef const char* start = PyBytes_AS_STRING(name)
    keys.known[key_place(start, start + PyBytes_GET_SIZE(name))] = 1


cdef inline bint is_key(const char* start, const char* end, const Keys* keys, frozenset names):
    cdef char name[LONGEST_KEY]
    cdef int written = 0
    if end - start >= LONGEST_KEY or not keys.known[key_place(start, end)]:
        return False
    while start < end:
        name[written] = folded(start[0])
        written += name[written] != 0
        start += 1
    return PyBytes_FromStringAndSize(name, written) in names


cdef inline bint may_hold_keys(bytes text, const Keys* keys, frozenset names):
    # Whether a volatile key, or what looks like one within a text, is in canonical JSON.
    cdef const char* first = PyBytes_AS_STRING(text)
    cdef const char* end = first + PyBytes_GET_SIZE(text)
    cdef const char* colon = first
    cdef const char* start
    while True:
        colon = <const char*> memchr(colon, 58, end - colon)
        if colon == NULL:
            return False
        # A closing quote before it, and none within a text.
        if colon - first > 2 and (colon - 1)[0] == 34 and (colon - 2)[0] != 92:
            start = colon - 1
            while start > first and (start - 1)[0] != 34 and colon - start <= LONGEST_KEY:
                start -= 1
            if is_key(start, colon - 1, keys, names):
                return True
        colon += 1


cdef inline const char* text_end(const char* start, const char* end) noexcept:
    # Behind the quoted text that begins here.
    start += 1
    while start < end and start[0] != 34:
        start += 2 if start[0] == 92 else 1     # a backslash hides the next character
    return start + 1 if start < end else end


cdef inline const char* value_end(const char* start, const char* end) noexcept:
    # Behind the JSON value that begins here.
    cdef int depth = 0
    while start < end:
        if start[0] == 34:
            start = text_end(start, end)
        else:
            if start[0] == 123 or start[0] == 91:       # { [
                depth += 1
            elif start[0] == 125 or start[0] == 93:     # } ]
                depth -= 1
            start += 1
        if depth == 0 and (start >= end or start[0] == 44 or start[0] == 125 or start[0] == 93):
            break
    return start


cdef inline bytes hidden(bytes text, const Keys* keys, frozenset names):
    # Canonical JSON with # for each value of a volatile field.
    cdef const char* here = PyBytes_AS_STRING(text)
    cdef const char* end = here + PyBytes_GET_SIZE(text)
    cdef const char* behind
    cdef char* out
    cdef Py_ssize_t written = 0
    if not may_hold_keys(text, keys, names):
        return text
    out = <char*> PyMem_Malloc(end - here)
    if out == NULL:
        raise MemoryError
    try:
        while here < end:
            behind = text_end(here, end) if here[0] == 34 else here + 1
            memcpy(out + written, here, behind - here)
            written += behind - here
            if (
                here[0] == 34 and behind < end and behind[0] == 58
                and is_key(here + 1, behind - 1, keys, names)
            ):
                out[written] = 58
                out[written + 1] = 35       # never longer than the value
                written += 2
                behind = value_end(behind + 1, end)
            here = behind
        return PyBytes_FromStringAndSize(out, written)
    finally:
        PyMem_Free(out)
