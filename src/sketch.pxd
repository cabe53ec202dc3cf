# Sketches of texts, which show near-duplicates in any script: from a str to sketch.h.

from cpython.unicode cimport (
    PyUnicode_DATA, PyUnicode_KIND, Py_UNICODE_ISALPHA, Py_UNICODE_ISDECIMAL, Py_UNICODE_ISSPACE,
    Py_UNICODE_TOLOWER,
)
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from "sketch.h" nogil:
    enum:
        SKETCH_MOST
        SKETCH_FIRST
        SKETCH_BLOCK
    int take_plain(const uint8_t* text, int after_blank, uint32_t* out)
    uint64_t sketch_of(const uint32_t* chars, int count)

cdef enum:
    LATIN = 256     # characters with one byte


# Characters of a str, by how many bytes each takes.
ctypedef fused Character:
    uint8_t
    uint16_t
    uint32_t


cdef inline uint32_t normal(Py_UCS4 char) noexcept:
    # A digit as 0, white space as a blank, another letter in lower case; 0: left out.
    if 0x3400 <= char <= 0x9FFF or 0xAC00 <= char <= 0xD7A3:    # Han and Hangul, at once
        return char
    if Py_UNICODE_ISALPHA(char):
        return Py_UNICODE_TOLOWER(char)
    if Py_UNICODE_ISSPACE(char):
        return " "
    return "0" if Py_UNICODE_ISDECIMAL(char) else 0


cdef inline int normalise(
    const Character* text, Py_ssize_t count, const uint8_t* latin, uint32_t* out
) noexcept:
    # The characters that are looked at, each run of digits or white space as one.
    cdef Py_ssize_t place = 0
    cdef uint32_t char, last = " "
    cdef int written = 0, plain
    while place < count and written < SKETCH_MOST:
        if Character is uint8_t:
            if count - place >= SKETCH_BLOCK:
                plain = take_plain(text + place, last == <uint32_t> " ", out + written)
                if plain > 0:
                    place += plain
                    written += plain
                    last = out[written - 1]
                    continue
        char = text[place]
        char = latin[char] if Character is uint8_t or char < LATIN else normal(char)
        out[written] = char
        # What is kept is 0 or a blank, or above these.
        written += (char != 0) & ((char > <uint32_t> "0") | (char != last))
        last = char if char else last
        place += 1
    written = min(written, SKETCH_MOST)
    return written - (written > 0 and out[written - 1] == <uint32_t> " ")


cdef inline uint64_t sketch_of_str(str text, const uint8_t* latin) noexcept:
    # `latin`: what is `normal` of each character below LATIN.
    cdef uint32_t chars[SKETCH_MOST + SKETCH_BLOCK]
    cdef const void* data = PyUnicode_DATA(text)
    cdef int kind = PyUnicode_KIND(text)
    cdef Py_ssize_t length = min(len(text), <Py_ssize_t> SKETCH_FIRST)
    cdef int count
    if kind == 1:
        count = normalise(<const uint8_t*> data, length, latin, chars)
    elif kind == 2:
        count = normalise(<const uint16_t*> data, length, latin, chars)
    else:
        count = normalise(<const uint32_t*> data, length, latin, chars)
    return sketch_of(chars, count)
