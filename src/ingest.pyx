# cython: language_level=3, boundscheck=True
"""Packing `Round` and `ToolCall` objects: hashing, flags, and the checks of their values.

Hashes are XXH3 (64 bits) of the texts that cellium_fast.stable_text makes.
"""

from cpython.bytes cimport (
    PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE,
)
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.unicode cimport PyUnicode_AsUTF8String, PyUnicode_DATA
from libc.math cimport INFINITY, NAN, isnan
from libc.stdint cimport int8_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy
from records cimport (
    CALL_ACKNOWLEDGED, CALL_EMPTY, CALL_ERROR, CALL_TRANSIENT, EVENT_NONE, Round,
)
from fields cimport Keys, hidden, know
from ingest cimport CallRecord
from sketch cimport LATIN, normal, sketch_of_str
from slots cimport Slot, read, slot_of
from text cimport holds_long_number, holds_null, is_json, masked

from collections.abc import Mapping, Sequence

import numpy as np
import orjson
from xxhash import xxh3_64_intdigest

from cellium_fast import result_words, stable_text
from cellium_fast._results import changes_something, is_acknowledgement, is_transient
from cellium_fast.errors import InputError, shown
from cellium_fast.rounds import Round as RoundObject
from cellium_fast.rounds import ToolCall
from cellium_fast.stable_text import (
    argument_forms,
    canonical,
    encode,
    plain,
)

cdef extern from "Python.h":
    bint PyUnicode_IS_ASCII(str text)

cdef enum:
    MAX_KNOWN = 10_000      # tools, and errors, that a packer knows again
    ERROR_TEXT_KEPT = 200

cdef object INT8 = np.dtype(np.int8)
cdef object INT64 = np.dtype(np.int64)
cdef object UINT8 = np.dtype(np.uint8)
cdef object UINT32 = np.dtype(np.uint32)
cdef object UINT64 = np.dtype(np.uint64)
cdef object FLOAT32 = np.dtype(np.float32)
cdef object dumps = orjson.dumps
cdef object loads = orjson.loads
cdef object OPTIONS = stable_text.OPTIONS
cdef frozenset JSON_STARTS = stable_text.JSON_STARTS
cdef frozenset JSON_WORDS = frozenset(["true", "false", "null"])
cdef int64_t MAX_PLAIN = <int64_t> 1 << 62
cdef object MISSING = object()
cdef frozenset VOLATILE_NAMES = frozenset([key.encode() for key in stable_text.VOLATILE_KEYS])
cdef Keys VOLATILE_KEYS
for _key in VOLATILE_NAMES:
    know(&VOLATILE_KEYS, _key)
cdef tuple PAYLOAD_KEYS = ("output", "content", "result", "data", "text")
cdef tuple CODE_KEYS = ("status", "status_code", "code")
cdef Py_ssize_t SHORT_TEXT = result_words.LONG + 20      # some of it white space around


cdef Slot TOOL = slot_of(ToolCall, "tool")
cdef Slot ARGUMENTS = slot_of(ToolCall, "arguments")
cdef Slot RESULT = slot_of(ToolCall, "result")
cdef Slot ERROR = slot_of(ToolCall, "error")
cdef Slot SIGNATURE = slot_of(ToolCall, "signature")
cdef Slot CALLS = slot_of(RoundObject, "calls")
cdef Slot TEXT = slot_of(RoundObject, "text")
cdef Slot CONTEXT_TOKENS = slot_of(RoundObject, "context_tokens")
cdef Slot CONTEXT_LIMIT = slot_of(RoundObject, "context_limit")
cdef Slot PROGRESS = slot_of(RoundObject, "progress")
cdef Slot REWARD = slot_of(RoundObject, "reward")
cdef Slot SUCCESS = slot_of(RoundObject, "success")


cdef uint64_t hash_bytes(bytes text) except 0:
    # 0 stands for "none".
    cdef uint64_t digest = xxh3_64_intdigest(text)
    return digest if digest != 0 else 1


cdef bytes joined(bytes first, bytes last):
    cdef Py_ssize_t size = PyBytes_GET_SIZE(first)
    cdef bytes both = PyBytes_FromStringAndSize(NULL, size + PyBytes_GET_SIZE(last))
    memcpy(PyBytes_AS_STRING(both), PyBytes_AS_STRING(first), size)
    memcpy(PyBytes_AS_STRING(both) + size, PyBytes_AS_STRING(last), PyBytes_GET_SIZE(last))
    return both


cdef bytes utf8(str text):
    if PyUnicode_IS_ASCII(text):
        return PyBytes_FromStringAndSize(<char*> PyUnicode_DATA(text), len(text))
    try:
        return PyUnicode_AsUTF8String(text)
    except UnicodeEncodeError:
        return encode(text)


cdef bytes signature_prefix(str tool):
    return utf8(tool) + b"\0"


cdef bytes quick_json(value):
    """`canonical(value)` if JSON says it in full, else None."""
    cdef bytes text
    try:
        text = dumps(value, None, OPTIONS)      # by place: a keyword would take a dict a call
    except Exception:  # what JSON cannot express, or objects that fail when looked at
        return None
    return text if not holds_null(text) or is_json(value) else None


cdef bytes json_of(value):
    cdef bytes text = quick_json(value)
    return canonical(value) if text is None else text


cdef bytes quick_arguments(value, bint* json):
    """`canonical_arguments(value)` and whether it is JSON; None: not to be had at once."""
    cdef str text
    json[0] = True
    if not isinstance(value, str):
        return quick_json(value)
    if type(value) is not str:
        return None
    text = value
    if text and may_be_json(text):
        if holds_long_number(text):
            return None
        try:
            return quick_json(loads(text))
        except ValueError:      # no JSON, or an escaped surrogate
            if "\\u" in text:
                return None
    json[0] = False
    return utf8(text)


cdef int hash_arguments(bytes prefix, arguments, CallRecord* record) except -1:
    cdef bytes text, shape
    cdef bint json
    text = quick_arguments(arguments, &json)
    if text is None:
        text, shape = argument_forms(arguments)
        json = shape is None
    else:
        shape = text
    record.signature = record.shape = hash_bytes(joined(prefix, text))
    if json:
        shape = hidden(text, &VOLATILE_KEYS, VOLATILE_NAMES)
    if shape is not text:
        record.shape = hash_bytes(joined(prefix, shape))
    return 0


cdef object arguments_parsed(arguments):
    # JSON text as what it says; anything else, broken JSON too, as it is.
    if type(arguments) is str and (<str> arguments).lstrip()[:1] == "{":
        try:
            return loads(arguments)
        except ValueError:
            pass
    return arguments


cdef bint may_be_json(str text):
    if text[0] in "{[":
        return True
    if text[0] in "tfn":    # a word, and most are commands
        return text.rstrip() in JSON_WORDS
    return text.lstrip()[:1] in JSON_STARTS


def hash_tool(str name):
    """Hash of a tool name, as in the column ``call_tool``."""
    return hash_bytes(utf8(name))


def hash_signature(str tool, arguments):
    """Hash of a tool name and its canonical arguments, as in ``call_signature``."""
    cdef CallRecord record
    hash_arguments(signature_prefix(tool), arguments, &record)
    return record.signature


def hash_shape(str tool, arguments):
    """As `hash_signature`, blind to volatile fields, as in ``call_shape``."""
    cdef CallRecord record
    hash_arguments(signature_prefix(tool), arguments, &record)
    return record.shape


def mask_volatile(str text):
    """Fold numbers, hexadecimal ids and white space, which change from error to error."""
    return masked(text)


def hash_text(text):
    """Hash of a model's output text, as in ``text``: 0 for None and blank text."""
    return hash_of_text(text)


def sketch_of_text(text):
    """Sketch of a model's output text, as in ``text_sketch``: 0 for None and short text."""
    return sketch_of_given(text)


# Latin letters of one byte stay such in lower case.
cdef uint8_t[LATIN] NORMAL_LATIN
for _code in range(LATIN):
    NORMAL_LATIN[_code] = <uint8_t> normal(_code)


cdef uint64_t sketch_of_given(text) except? 0:
    if text is None:
        return 0
    return sketch_of_str(plain(text) if type(text) is not str else text, NORMAL_LATIN)


cdef uint64_t hash_of_text(text) except? 0:
    cdef str stripped
    if text is None:
        return 0
    stripped = plain(text) if type(text) is not str else text
    if stripped and (stripped[0].isspace() or stripped[len(stripped) - 1].isspace()):
        stripped = stripped.strip()
    return hash_bytes(utf8(stripped)) if stripped else 0


cdef bint is_true(value):
    try:
        return value is not MISSING and bool(value)
    except Exception:  # an array, say: something is there
        return True


cdef value_of(mapping, str key):
    try:
        if type(mapping) is dict:
            return (<dict> mapping).get(key, MISSING)
        return mapping[key]
    except Exception:  # not there, or a user's own mapping that fails
        return MISSING


cdef bint is_blank_text(str text):
    return not text or (text[0].isspace() and text.isspace())


cdef bint is_blank(value):
    try:
        if value is None:
            return True
        if isinstance(value, str):
            return is_blank_text(plain(value))
        return len(value) == 0
    except Exception:  # a number, or another thing without a length that can be told
        return False


cdef bint is_text(value):
    try:
        return isinstance(value, str)
    except Exception:
        return False


cdef bint is_mapping(value):
    if type(value) is dict:
        return True
    try:
        return isinstance(value, Mapping)
    except Exception:  # an object that fails when asked for its class
        return False


cdef bint is_empty(result):
    if type(result) is str:
        return is_blank_text(result)
    if not is_mapping(result) or is_blank(result):
        return is_blank(result)
    found = [value_of(result, key) for key in PAYLOAD_KEYS]
    present = [value for value in found if value is not MISSING]
    return len(present) > 0 and all([is_blank(value) for value in present])


cdef bint is_error(result, error) except -1:
    if error is False:
        return False
    if error is None:
        if type(result) is str or not is_mapping(result):
            return False
        status = value_of(result, "status")
        success = value_of(result, "success")
        return (
            is_true(value_of(result, "error"))
            or (is_text(status) and plain(status) == "error")
            or is_true(value_of(result, "is_error"))
            or (type(success) in (bool, np.bool_) and not success)
        )
    if isinstance(error, str):
        return len(plain(error)) > 0
    if isinstance(error, (bool, np.bool_)):
        return bool(error)
    raise InputError(
        f"error: wanted a bool, a text (str(error) of an exception) or None, got "
        f"{type(error).__name__}"
    )


cdef str result_text(result, error, bint failed):
    if not failed and type(result) is str:
        return result
    if failed and isinstance(error, str) and is_blank(result):
        return plain(error)
    if is_text(result):
        return plain(result)
    if result is None:
        return ""
    return json_of(result).decode("utf-8", "surrogatepass")


cdef bint is_transient_error(result, error, str text) except -1:
    if is_transient(text) or (isinstance(error, str) and is_transient(plain(error))):
        return True
    if is_mapping(result):
        for key in CODE_KEYS:
            code = value_of(result, key)
            if type(code) is int and code in result_words.TRANSIENT_CODES:
                return True
    return False


cdef uint64_t own_signature(signature) except? 0:
    if isinstance(signature, (int, np.integer)) and not isinstance(signature, bool):
        if not 0 <= signature < 1 << 64:
            raise InputError(
                f"signature: wanted an integer in [0, 2**64) or any other value, "
                f"got {shown(signature)}"
            )
        return signature
    return hash_bytes(json_of(signature))


cdef int64_t tokens_of(value, str name) except -2:
    # -1: not told
    cdef double number
    cdef int overflow = 0
    cdef int64_t tokens
    if value is None:
        return -1
    if type(value) is int:
        tokens = PyLong_AsLongLongAndOverflow(value, &overflow)
        if not overflow and 0 <= tokens < MAX_PLAIN:
            return tokens
    number = number_of(value, name, "a number of tokens below 2**63")
    if isnan(number) or number < 0:
        return -1
    if number >= 9.2e18:
        raise InputError(f"{name}: wanted a number of tokens below 2**63, got {shown(value)}")
    return int(value) if isinstance(value, (int, np.integer)) else <int64_t> number


cdef double number_of(value, str name, str wanted) except? -1:
    try:
        if not isinstance(value, (bool, np.bool_)):
            return value
    except (TypeError, ValueError, OverflowError):
        pass
    raise InputError(f"{name}: wanted {wanted}, got {shown(value)}")


cdef int64_t limit_of(value) except -2:
    if isinstance(value, float) and value == INFINITY:
        return 0        # no limit is none that is known
    return tokens_of(value, "context_limit")


cdef float fraction_of(value, str name) except? -1:
    cdef double number
    if value is None:
        return NAN
    number = number_of(value, name, "a number in [0, 1]")
    if not 0.0 <= number <= 1.0:
        raise InputError(f"{name}: wanted a number in [0, 1] or None, got {shown(value)}")
    return <float> number


cdef int8_t outcome_of(value) except -2:
    if value is None:
        return -1
    if isinstance(value, (bool, np.bool_)):
        return 1 if value else 0
    raise InputError(f"success: wanted True, False or None, got {shown(value)}")


cdef class _Tool:
    """What is hashed of a tool's name."""

    cdef uint64_t digest
    cdef bytes prefix       # what its signatures begin with


cdef class Packer:
    """Packs rounds one at a time into buffers that it owns and uses again.

    `new_tools` and `new_errors` collect texts by their hash; whoever packs clears them.
    """

    cdef dict known_tools
    cdef set known_errors
    cdef readonly dict new_tools
    cdef readonly dict new_errors
    cdef long long forgotten    # by the table of names, when tools were last named to it
    cdef Round round
    cdef uint64_t* tool
    cdef uint64_t* signature
    cdef uint64_t* shape
    cdef uint64_t* result
    cdef uint32_t* size
    cdef uint8_t* flags
    cdef Py_ssize_t capacity
    cdef readonly size_t address

    def __cinit__(self):
        self.known_tools = {}
        self.known_errors = set()
        self.new_tools = {}
        self.new_errors = {}
        self.address = <size_t> &self.round

    def __dealloc__(self):
        free(self.tool)
        free(self.signature)
        free(self.shape)
        free(self.result)
        free(self.size)
        free(self.flags)

    cdef int reserve(self, Py_ssize_t calls) except -1:
        cdef Py_ssize_t capacity = max(calls, 16)
        if calls <= self.capacity:
            return 0
        self.tool = <uint64_t*> grown(self.tool, capacity * sizeof(uint64_t))
        self.signature = <uint64_t*> grown(self.signature, capacity * sizeof(uint64_t))
        self.shape = <uint64_t*> grown(self.shape, capacity * sizeof(uint64_t))
        self.result = <uint64_t*> grown(self.result, capacity * sizeof(uint64_t))
        self.size = <uint32_t*> grown(self.size, capacity * sizeof(uint32_t))
        self.flags = <uint8_t*> grown(self.flags, capacity)
        self.capacity = capacity
        return 0

    cdef _Tool tool_of(self, str name):
        cdef _Tool tool
        known = self.known_tools.get(name)
        if known is not None:
            return <_Tool> known
        tool = _Tool.__new__(_Tool)
        tool.digest = hash_bytes(utf8(name))
        tool.prefix = signature_prefix(name)
        if len(self.known_tools) >= MAX_KNOWN:
            self.known_tools.clear()
        self.known_tools[name] = tool
        self.new_tools[tool.digest] = name
        return tool

    cdef int know_error(self, uint64_t digest, str text) except -1:
        if digest in self.known_errors:
            return 0
        if len(self.known_errors) >= MAX_KNOWN:
            self.known_errors.clear()
        self.known_errors.add(digest)
        self.new_errors[digest] = text[:ERROR_TEXT_KEPT]
        return 0

    cdef int pack_call(self, call, Py_ssize_t place, CallRecord* record) except -1:
        try:
            return self.pack_checked(call, record)
        except InputError as error:
            problem = str(error)
        raise InputError(f"calls[{place}]: {problem}")

    cdef int pack_checked(self, call, CallRecord* record) except -1:
        cdef bint failed
        cdef str text
        cdef _Tool tool
        name, result, error = read(&TOOL, call), read(&RESULT, call), read(&ERROR, call)
        signature = read(&SIGNATURE, call)
        if not isinstance(name, str):
            raise InputError(f"tool: wanted a name, got {shown(name)}")
        failed = is_error(result, error)
        text = result_text(result, error, failed)
        tool = self.tool_of(name if type(name) is str else plain(name))
        record.tool = tool.digest
        if signature is None:
            hash_arguments(tool.prefix, read(&ARGUMENTS, call), record)
        else:
            record.signature = record.shape = own_signature(signature)
        record.size = <uint32_t> min(len(text), <Py_ssize_t> 0xFFFFFFFFu)
        record.flags = 0
        if failed:
            record.flags = CALL_ERROR
            if is_transient_error(result, error, text):
                record.flags |= CALL_TRANSIENT
            record.result = hash_bytes(utf8(masked(text)))
            self.know_error(record.result, text)
        else:
            record.result = hash_bytes(utf8(text))
            if is_empty(result):
                record.flags = CALL_EMPTY
                if changes_something(name, arguments_parsed(read(&ARGUMENTS, call))):
                    record.flags |= CALL_ACKNOWLEDGED
            elif len(text) <= SHORT_TEXT and is_acknowledgement(text):
                record.flags = CALL_ACKNOWLEDGED
        return 0

    cdef int pack_scalars(self, round, Round* packed) except -1:
        text = read(&TEXT, round)
        if text is not None and not isinstance(text, str):
            raise InputError(f"text: wanted a text or None, got {type(text).__name__}")
        packed.text = hash_of_text(text)
        packed.sketch = sketch_of_given(text)
        packed.context_tokens = tokens_of(read(&CONTEXT_TOKENS, round), "context_tokens")
        packed.context_limit = limit_of(read(&CONTEXT_LIMIT, round))
        packed.progress = fraction_of(read(&PROGRESS, round), "progress")
        packed.reward = fraction_of(read(&REWARD, round), "reward")
        packed.success = outcome_of(read(&SUCCESS, round))
        packed.event = EVENT_NONE
        return 0

    def pack(self, round, long long forgotten):
        """Pack one round; the packed form stands at `address` until the next call.

        `forgotten` says how many names the table of names forgot so far: if some since the last
        call, tools and errors are named anew. Returns the round's calls, as packed.
        """
        cdef tuple calls = calls_of(round)
        cdef CallRecord record
        cdef Py_ssize_t k
        if forgotten != self.forgotten:
            self.forgotten = forgotten
            self.known_tools.clear()
            self.known_errors.clear()
        self.reserve(len(calls))
        for k in range(len(calls)):
            self.pack_call(calls[k], k, &record)
            self.tool[k] = record.tool
            self.signature[k] = record.signature
            self.shape[k] = record.shape
            self.result[k] = record.result
            self.size[k] = record.size
            self.flags[k] = record.flags
        self.pack_scalars(round, &self.round)
        self.round.calls = len(calls)
        self.round.tool = self.tool
        self.round.signature = self.signature
        self.round.shape = self.shape
        self.round.result = self.result
        self.round.size = self.size
        self.round.flags = self.flags
        return calls

    @property
    def has_names(self):
        """Whether there are new tools or errors."""
        return len(self.new_tools) > 0 or len(self.new_errors) > 0

    def clear_names(self):
        """Empty the new tools and errors."""
        self.new_tools.clear()
        self.new_errors.clear()

    def pack_columns(self, rounds):
        """Pack a sequence of rounds into the columns of a `RoundBatch`, by name."""
        cdef list given = []
        cdef list calls = []
        cdef Py_ssize_t i, k = 0
        cdef Py_ssize_t place
        cdef Round packed
        cdef CallRecord record
        for round in rounds:
            try:
                calls.append(calls_of(round))
            except InputError as error:
                raise InputError(f"rounds[{len(given)}]: {error}") from None
            given.append(round)
        offsets = np.empty(len(given) + 1, INT64)
        cdef int64_t* end = <int64_t*> data_of(offsets)
        end[0] = 0
        for i in range(len(given)):
            end[i + 1] = end[i] + len(<tuple> calls[i])
        columns = empty_columns(len(given), end[len(given)])
        columns["call_offsets"] = offsets
        cdef uint64_t* tool = <uint64_t*> data_of(columns["call_tool"])
        cdef uint64_t* signature = <uint64_t*> data_of(columns["call_signature"])
        cdef uint64_t* shape = <uint64_t*> data_of(columns["call_shape"])
        cdef uint64_t* result = <uint64_t*> data_of(columns["call_result"])
        cdef uint8_t* flags = <uint8_t*> data_of(columns["call_flags"])
        cdef uint32_t* size = <uint32_t*> data_of(columns["call_size"])
        cdef uint64_t* text = <uint64_t*> data_of(columns["text"])
        cdef uint64_t* sketch = <uint64_t*> data_of(columns["text_sketch"])
        cdef int64_t* context_tokens = <int64_t*> data_of(columns["context_tokens"])
        cdef int64_t* context_limit = <int64_t*> data_of(columns["context_limit"])
        cdef float* progress = <float*> data_of(columns["progress"])
        cdef float* reward = <float*> data_of(columns["reward"])
        cdef int8_t* success = <int8_t*> data_of(columns["success"])
        for i in range(len(given)):
            try:
                self.pack_scalars(given[i], &packed)
                for place, call in enumerate(calls[i]):
                    self.pack_call(call, place, &record)
                    tool[k] = record.tool
                    signature[k] = record.signature
                    shape[k] = record.shape
                    result[k] = record.result
                    flags[k] = record.flags
                    size[k] = record.size
                    k += 1
            except InputError as error:
                raise InputError(f"rounds[{i}]: {error}") from None
            text[i] = packed.text
            sketch[i] = packed.sketch
            context_tokens[i] = packed.context_tokens
            context_limit[i] = packed.context_limit
            progress[i] = packed.progress
            reward[i] = packed.reward
            success[i] = packed.success
        return columns


cdef tuple calls_of(round):
    # A copy that stays as it is while user code runs, taken one by one: a sequence may say any
    # length.
    cdef tuple calls
    cdef Py_ssize_t place
    if not isinstance(round, RoundObject):
        raise InputError(f"round: wanted a Round, got {type(round).__name__}")
    given = read(&CALLS, round)
    if type(given) is list or type(given) is tuple:
        calls = tuple(given)
        for place in range(len(calls)):
            check_call(calls[place], place)
        return calls
    if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
        raise InputError(f"calls: wanted a sequence of ToolCall, got {type(given).__name__}")
    taken = []
    for call in given:
        check_call(call, len(taken))
        taken.append(call)
    return tuple(taken)


cdef int check_call(call, Py_ssize_t place) except -1:
    if not isinstance(call, ToolCall):
        raise InputError(f"calls[{place}]: wanted a ToolCall, got {type(call).__name__}")
    return 0


cdef void* grown(void* memory, size_t size) except NULL:
    memory = realloc(memory, size)
    if memory == NULL:
        raise MemoryError
    return memory


def empty_columns(Py_ssize_t rounds, Py_ssize_t calls):
    """Uninitialised columns of a `RoundBatch`, all but ``call_offsets`` and ``event``."""
    return {
        "call_tool": np.empty(calls, UINT64),
        "call_signature": np.empty(calls, UINT64),
        "call_shape": np.empty(calls, UINT64),
        "call_result": np.empty(calls, UINT64),
        "call_flags": np.empty(calls, UINT8),
        "call_size": np.empty(calls, UINT32),
        "text": np.empty(rounds, UINT64),
        "text_sketch": np.empty(rounds, UINT64),
        "context_tokens": np.empty(rounds, INT64),
        "context_limit": np.empty(rounds, INT64),
        "progress": np.empty(rounds, FLOAT32),
        "reward": np.empty(rounds, FLOAT32),
        "success": np.empty(rounds, INT8),
    }


cdef void* data_of(column) except? NULL:
    # Of an array that is kept alive and is not resized.
    cdef Py_buffer view
    PyObject_GetBuffer(column, &view, PyBUF_SIMPLE)
    PyBuffer_Release(&view)
    return view.buf
