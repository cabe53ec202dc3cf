# cython: language_level=3
"""What results of tool calls say in passing: transient errors, and short acknowledgements.

The words that tell are those of `cellium_fast.result_words`.
"""

from cpython.unicode cimport PyUnicode_DATA, PyUnicode_KIND, PyUnicode_READ
from libc.stdint cimport uint8_t, uint32_t

import re

from cellium_fast import result_words

cdef enum:
    START = 3           # characters by which words are looked up
    STARTS = 4096       # places of a table that knows some words, and takes few others for one

cdef Py_ssize_t TEXT = result_words.TRANSIENT_TEXT
cdef Py_ssize_t SHORT = result_words.SHORT
cdef Py_ssize_t LONG = result_words.LONG
cdef frozenset PARTICIPLES_NOT = result_words.PARTICIPLES_NOT
cdef Py_ssize_t NAMES = result_words.NAMES
cdef Py_ssize_t NUMBERS = result_words.NUMBERS
cdef frozenset DONE = result_words.DONE
cdef frozenset BESIDE = result_words.BESIDE
cdef frozenset NOT_DONE = result_words.NOT_DONE
# Other words that `plain_line` may take for those.
cdef tuple WELL = (
    "exit", "exited", "error", "errors", "issue", "issues", "warning", "warnings", "problem",
    "problems",
)
cdef dict JSON_MARKS = str.maketrans('{}":,_', " " * 6)
cdef str PUNCTUATION = " .,;:!'\"`()[]{}<>*-\u2013\u2014\u2026\u3002\uff01\uff0c\u2705\u2713\u2714"


# --- Errors ---------------------------------------------------------------------------------------
cdef inline uint32_t lower(uint32_t char) noexcept:
    return char + 32 if 65 <= char <= 90 else char      # A to Z


cdef inline bint is_word(uint32_t char) noexcept:
    return 97 <= lower(char) <= 122 or 48 <= char <= 57     # a letter or a digit


cdef inline Py_ssize_t place_of(uint32_t first, uint32_t second, uint32_t third) noexcept:
    return (first * 961 + second * 31 + third) % STARTS


cdef dict words_by_start():
    found = {}
    for word, rest in result_words.TRANSIENT.items():
        KNOWN_STARTS[place_of(ord(word[0]), ord(word[1]), ord(word[2]))] = 1
        found.setdefault(word[:START], []).append((word, rest))
    return found


cdef uint8_t[STARTS] KNOWN_STARTS
cdef dict WORDS = words_by_start()
cdef dict MATCHERS = {}
cdef frozenset CODES = frozenset(map(str, result_words.TRANSIENT_CODES))


cdef object matcher_of(str expression):
    # Compiled when its word is met for the first time: most never are.
    match = MATCHERS.get(expression)
    if match is None:
        match = MATCHERS[expression] = re.compile(expression, re.IGNORECASE).match
    return match


cdef bint begins_transient(str text, Py_ssize_t place) except -1:
    for word, rest in WORDS.get(text[place:place + START].lower(), ()):
        end = place + len(word)
        if text[place:end].lower() == word and matcher_of(rest)(text, end):
            return True
    return False


cdef inline bint is_start(uint32_t before, uint32_t char, uint32_t behind) noexcept:
    # Of a word, or of one inside a name in CamelCase.
    return is_word(char) and (
        not is_word(before)
        or (lower(char) != char and (lower(before) == before or lower(behind) == behind))
    )


def is_transient(str text not None):
    """Whether an error's text says that waiting may cure it; only its first part is looked at."""
    cdef str part = text if len(text) <= TEXT else text[:TEXT]
    cdef int kind = PyUnicode_KIND(part)
    cdef void* data = PyUnicode_DATA(part)
    cdef Py_ssize_t place
    cdef uint32_t char, third, before = 0
    cdef uint32_t second = PyUnicode_READ(kind, data, 0) if part else 0
    for place in range(len(part) - START + 1):
        char = second
        second = PyUnicode_READ(kind, data, place + 1)
        if is_start(before, char, second):
            third = PyUnicode_READ(kind, data, place + 2)
            if (
                KNOWN_STARTS[place_of(lower(char), lower(second), lower(third))]
                and begins_transient(part, place)
            ):
                return True
        before = char
    return begins_with_code(part)


cdef bint begins_with_code(str text) except -1:
    cdef str start = text.lstrip("([{<#:'\"* \t\r\n")[:START]
    return start in CODES and matcher_of(result_words.TRANSIENT_START)(text) is not None


# --- Acknowledgements -----------------------------------------------------------------------------
cdef inline uint32_t longer(uint32_t hash, uint32_t char) noexcept:
    return hash * 33 ^ char


cdef void know_done() noexcept:
    cdef uint32_t hash
    for word in (*DONE, *WELL):
        hash = 0
        for char in word:
            hash = longer(hash, ord(char))
        KNOWN_DONE[hash % STARTS] = 1


cdef uint8_t[STARTS] KNOWN_DONE
know_done()


cdef bint may_say_done(str text) noexcept:
    # Whether one of the words may be of those; True if there are other than ASCII characters.
    cdef int kind = PyUnicode_KIND(text)
    cdef void* data = PyUnicode_DATA(text)
    cdef Py_ssize_t place
    cdef uint32_t char, last = 0, before = 0, hash = 0
    for place in range(len(text)):
        char = PyUnicode_READ(kind, data, place)
        if char >= 128:
            return True
        if is_word(char):
            char = lower(char)
            hash = longer(hash, char)
        elif KNOWN_DONE[hash % STARTS] or (before == 101 and last == 100):     # -ed
            return True
        else:
            hash = 0
        before = last
        last = char
    return KNOWN_DONE[hash % STARTS] or (before == 101 and last == 100)


def is_acknowledgement(str text not None):
    """Whether a result's text says that something was done, shortly, and nothing else."""
    if not may_say_done(text):
        return False
    return acknowledges(text.strip())


cdef str first_sentence(str line):
    # Of a line that is too long for an acknowledgement; empty if it is still too long.
    cdef Py_ssize_t end = line.find(". ") if len(line) <= LONG else -1
    return line[:end] if 0 < end <= SHORT else ""


cdef bint is_participle(str word) noexcept:
    return len(word) > 4 and word.endswith("ed") and word not in PARTICIPLES_NOT


cdef str plain_line(str line, bint json):
    # In lower case, without what says nothing but that all went well.
    line = line.lower().replace("\u2019", "'")
    if "output" in line:
        line = re.sub(result_words.SILENCE, "", line)
    if json or any([word in line for word in WELL]):
        line = re.sub(result_words.ZERO, " done ", line)
    if json:
        line = re.sub(result_words.NULLS, "", line).translate(JSON_MARKS)
    return line


cdef bint acknowledges(str line) except -1:
    cdef Py_ssize_t names = 0, numbers = 0
    cdef bint done = False, json
    if len(line) > SHORT:
        line = first_sentence(line)
    if not line or not line.isprintable() or "?" in line or "=" in line:
        return False
    json = line[0] == "{"
    if (line[0] == "[" and not line.lower().startswith("[exit")) or (json and "[" in line):
        return False
    for word in plain_line(line, json).split():
        word = word.strip(PUNCTUATION)
        if word in DONE or (word.isascii() and is_participle(word) and word not in NOT_DONE):
            done = True
        elif word in NOT_DONE or word.endswith("n't"):
            return False
        elif not word or word in BESIDE:
            continue
        elif word.isdecimal():
            numbers += 1
            if not int(word):
                return False
        elif word.isascii():
            if json or not (word.islower() or word.replace(".", "", 1).isdecimal()):
                return False
            names += 1
        elif any([part in word for part in result_words.NOT_DONE_PARTS]):
            return False
        elif any([part in word for part in result_words.DONE_PARTS]):
            done = True
        else:
            names += 1
    return done and names <= NAMES and numbers <= NUMBERS


# --- Silence --------------------------------------------------------------------------------------
cdef object WORDS_OF_NAME = re.compile("[A-Z]?[a-z]+|[A-Z]+").findall
cdef object COMMAND = re.compile(result_words.COMMAND).match
cdef object WRITES = re.compile(result_words.WRITES).search
cdef frozenset CHANGES = result_words.CHANGES
cdef frozenset COMMANDS = result_words.COMMANDS
cdef tuple COMMAND_KEYS = result_words.COMMAND_KEYS


def changes_something(str tool not None, arguments):
    """Whether a call that came back with nothing did its work in silence.

    So it is by a tool whose name says that it changes something, or by a command that does.
    """
    for word in WORDS_OF_NAME(tool[:SHORT]):
        if word.lower() in CHANGES:
            return True
    if type(arguments) is dict:
        arguments = next(
            ((<dict> arguments)[key] for key in COMMAND_KEYS if key in <dict> arguments), None
        )
    if type(arguments) is not str:
        return False
    text = (<str> arguments)[:LONG]
    command = COMMAND(text)
    if command is not None and command[1].lower() in COMMANDS:
        return True
    return WRITES(text) is not None
