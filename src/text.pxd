# Texts read character by character: what JSON text holds, and what changes from error to error.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.unicode cimport (
    PyUnicode_DATA, PyUnicode_FromKindAndData, PyUnicode_KIND, PyUnicode_READ, PyUnicode_WRITE,
)
from libc.math cimport isfinite
from libc.string cimport memchr, memcmp

cdef enum:
    LONG_NUMBER = 19    # digits from which orjson may read an integer as a float
    HEX_ID = 7          # digits from which a hexadecimal word is an id


cdef inline bint holds_null(bytes text) noexcept:
    cdef const char* here = PyBytes_AS_STRING(text)
    cdef const char* end = here + PyBytes_GET_SIZE(text)
    while True:
        here = <const char*> memchr(here, b"n", end - here)
        if here == NULL or end - here < 4:
            return False
        if memcmp(here, b"null", 4) == 0:
            return True
        here += 1


cdef inline bint is_json(value):
    # Whether it holds nothing but what JSON has; for what orjson took, which is not nested deep.
    kind = type(value)
    if value is None or kind is str or kind is int or kind is bool:
        return True
    if kind is float:
        return isfinite(<double> value)
    if kind is list:
        for part in <list> value:
            if not is_json(part):
                return False
        return True
    if kind is dict:
        for key, part in (<dict> value).items():
            if type(key) is not str or not is_json(part):
                return False
        return True
    return False


cdef inline bint holds_long_number(str text):
    # A number that long has a digit at a place that is a multiple of its length.
    cdef Py_ssize_t length = len(text)
    cdef Py_ssize_t place = LONG_NUMBER - 1
    cdef Py_ssize_t first, end
    while place < length:
        first = end = place
        while end < length and text[end].isdecimal():
            end += 1
        while first > 0 and end > place and text[first - 1].isdecimal():
            first -= 1
        if end - first >= LONG_NUMBER:
            return True
        place += LONG_NUMBER
    return False


cdef inline bint is_decimal(Py_UCS4 char) noexcept:
    return "0" <= char <= "9" if char < "\x80" else char.isdecimal()


cdef inline bint is_hex(Py_UCS4 char) noexcept:
    return "0" <= char <= "9" or "a" <= char <= "f" or "A" <= char <= "F"


cdef inline bint is_word(Py_UCS4 char) noexcept:
    # A Latin letter or digit; the last four are those that have one as their other case.
    return (
        "0" <= char <= "9" or "a" <= char <= "z" or "A" <= char <= "Z"
        or char in "\u0130\u0131\u017F\u212A"
    )


# Characters of a str, wherever they lie; 0 beyond its end.
ctypedef struct Characters:
    int kind
    void* data
    Py_ssize_t count


cdef inline Py_UCS4 char_at(const Characters* text, Py_ssize_t place) noexcept:
    return PyUnicode_READ(text.kind, text.data, place) if place < text.count else 0


cdef inline Py_ssize_t hex_end(const Characters* text, Py_ssize_t place) noexcept:
    while is_hex(char_at(text, place)):
        place += 1
    return place


cdef inline Py_ssize_t uuid_end(const Characters* text, Py_ssize_t start) noexcept:
    # Behind 8-4-4-4-12 hexadecimal digits, of which the first 8 are there; `start` if it is none.
    cdef Py_ssize_t place = start + 8
    cdef int _group
    for _group in range(4):
        if char_at(text, place) != "-" or hex_end(text, place + 1) - place - 1 < 4:
            return start
        place += 5
    return place + 8 if hex_end(text, place) - place == 8 else start


cdef inline Py_ssize_t id_end(const Characters* text, Py_ssize_t start) noexcept:
    # Behind an id that is a word of its own: a UUID, or a hexadecimal number with a decimal digit
    # in it or behind it. `start` if it is none.
    cdef Py_ssize_t end = hex_end(text, start)
    cdef Py_ssize_t place
    if end - start == 8:
        place = uuid_end(text, start)
        if place > start and not is_word(char_at(text, place)):
            return place
    if end - start >= HEX_ID and not is_word(char_at(text, end)):
        for place in range(start, end + 1):
            if is_decimal(char_at(text, place)):
                return end
    return start


cdef inline Py_ssize_t volatile_end(
    const Characters* text, Py_ssize_t start, Py_UCS4 char
) noexcept:
    # Behind the volatile part that begins with this character; `start` if none does.
    cdef Py_ssize_t end = start
    if char == "0" and char_at(text, start + 1) in "xX" and is_hex(char_at(text, start + 2)):
        return hex_end(text, start + 2)
    if is_hex(char) and not (start and is_word(char_at(text, start - 1))):
        end = id_end(text, start)
    if end == start:
        while is_decimal(char_at(text, end)):
            end += 1
    return end


cdef inline str masked(str text):
    # Each volatile part as #, each white space as one blank, none at the ends.
    cdef Characters given
    cdef Py_ssize_t place = 0, written = 0, end
    cdef Py_UCS4 char
    cdef bint blank = False
    cdef void* out
    given.kind = PyUnicode_KIND(text)
    given.data = PyUnicode_DATA(text)
    given.count = len(text)
    out = PyMem_Malloc(given.count * given.kind + 1)
    if out == NULL:
        raise MemoryError
    while place < given.count:
        char = char_at(&given, place)
        if char.isspace():
            blank = written > 0
            place += 1
            continue
        end = place
        if is_hex(char) or is_decimal(char):
            end = volatile_end(&given, place, char)
        if end > place:
            char = "#"
        else:
            end = place + 1
        if blank:
            PyUnicode_WRITE(given.kind, out, written, " ")
            written += 1
            blank = False
        PyUnicode_WRITE(given.kind, out, written, char)
        written += 1
        place = end
    try:
        return PyUnicode_FromKindAndData(given.kind, out, written)
    finally:
        PyMem_Free(out)
