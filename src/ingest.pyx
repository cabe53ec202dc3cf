# cython: language_level=3, boundscheck=True
"""Packing `Round` and `ToolCall` objects: hashing, flags, and the checks of their values.

Hashes are XXH3 (64 bits) of the texts that cellium_fast.stable_text makes.
"""

from cpython.unicode cimport PyUnicode_AsUTF8String
from libc.math cimport INFINITY, NAN, isnan
from libc.stdint cimport int8_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from records cimport CALL_EMPTY, CALL_ERROR, EVENT_NONE, Round
from ingest cimport CallRecord

from collections.abc import Mapping, Sequence

import numpy as np
from xxhash import xxh3_64_intdigest

from cellium_fast.errors import InputError, shown
from cellium_fast.rounds import Round as RoundObject
from cellium_fast.rounds import ToolCall
from cellium_fast.stable_text import (
    canonical,
    canonical_arguments,
    encode,
    mask_volatile,
    plain,
)

cdef enum:
    MAX_CACHED_TOOLS = 10_000
    ERROR_TEXT_KEPT = 200

cdef object MISSING = object()
cdef object MAX_PLAIN = 1 << 62
cdef tuple PAYLOAD_KEYS = ("output", "content", "result", "data", "text")


cdef uint64_t hash_bytes(bytes text) except 0:
    # 0 stands for "none".
    cdef uint64_t digest = xxh3_64_intdigest(text)
    return digest if digest != 0 else 1


cdef bytes utf8(str text):
    try:
        return PyUnicode_AsUTF8String(text)
    except UnicodeEncodeError:
        return encode(text)


cdef uint64_t hash_call(str tool, arguments) except 0:
    return hash_bytes(utf8(tool) + b"\0" + canonical_arguments(arguments))


def hash_tool(str name):
    """Hash of a tool name, as in the column ``call_tool``."""
    return hash_bytes(utf8(name))


def hash_signature(str tool, arguments):
    """Hash of a tool name and its canonical arguments, as in ``call_signature``."""
    return hash_call(tool, arguments)


def hash_text(text):
    """Hash of a model's output text, as in ``text``: 0 for None and blank text."""
    if text is None:
        return 0
    stripped = plain(text).strip()
    return hash_bytes(utf8(stripped)) if stripped else 0


cdef bint is_true(value):
    try:
        return value is not MISSING and bool(value)
    except Exception:  # an array, say: something is there
        return True


cdef value_of(mapping, str key):
    try:
        return mapping[key]
    except Exception:  # not there, or a user's own mapping that fails
        return MISSING


cdef bint is_blank_text(str text):
    return not text or text.isspace()


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


cdef bint is_error(call) except -1:
    error = call.error
    result = call.result
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


cdef str result_text(call, bint failed):
    result = call.result
    if not failed and type(result) is str:
        return result
    if failed and isinstance(call.error, str) and is_blank(result):
        return plain(call.error)
    if is_text(result):
        return plain(result)
    if result is None:
        return ""
    return canonical(result).decode("utf-8", "surrogatepass")


cdef uint64_t signature_of(call, str tool) except? 0:
    signature = call.signature
    if signature is None:
        return hash_call(tool, call.arguments)
    if isinstance(signature, (int, np.integer)) and not isinstance(signature, bool):
        if not 0 <= signature < 1 << 64:
            raise InputError(
                f"signature: wanted an integer in [0, 2**64) or any other value, "
                f"got {shown(signature)}"
            )
        return signature
    return hash_bytes(canonical(signature))


cdef int64_t tokens_of(value, str name) except -2:
    # -1: not told
    cdef double number
    if value is None:
        return -1
    if type(value) is int and 0 <= value < MAX_PLAIN:
        return value
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


cdef class Packer:
    """Packs rounds one at a time into buffers that it owns and uses again.

    `new_tools` and `new_errors` collect texts by their hash; whoever packs empties them.
    """

    cdef dict tool_hashes
    cdef readonly dict new_tools
    cdef readonly dict new_errors
    cdef long long forgotten    # by the table of names, when tools were last named to it
    cdef Round round
    cdef uint64_t* tool
    cdef uint64_t* signature
    cdef uint64_t* result
    cdef uint32_t* size
    cdef uint8_t* flags
    cdef Py_ssize_t capacity
    cdef readonly size_t address

    def __cinit__(self):
        self.tool_hashes = {}
        self.new_tools = {}
        self.new_errors = {}
        self.address = <size_t> &self.round

    def __dealloc__(self):
        free(self.tool)
        free(self.signature)
        free(self.result)
        free(self.size)
        free(self.flags)

    cdef int reserve(self, Py_ssize_t calls) except -1:
        cdef Py_ssize_t capacity = max(calls, 16)
        if calls <= self.capacity:
            return 0
        self.tool = <uint64_t*> grown(self.tool, capacity * sizeof(uint64_t))
        self.signature = <uint64_t*> grown(self.signature, capacity * sizeof(uint64_t))
        self.result = <uint64_t*> grown(self.result, capacity * sizeof(uint64_t))
        self.size = <uint32_t*> grown(self.size, capacity * sizeof(uint32_t))
        self.flags = <uint8_t*> grown(self.flags, capacity)
        self.capacity = capacity
        return 0

    cdef uint64_t tool_hash(self, str tool) except? 0:
        cached = self.tool_hashes.get(tool)
        if cached is not None:
            return cached
        digest = hash_bytes(utf8(tool))
        if len(self.tool_hashes) >= MAX_CACHED_TOOLS:
            self.tool_hashes.clear()
        self.tool_hashes[tool] = digest
        self.new_tools[digest] = tool
        return digest

    cdef int pack_call(self, call, Py_ssize_t place, CallRecord* record) except -1:
        try:
            return self.pack_checked(call, record)
        except InputError as error:
            problem = str(error)
        raise InputError(f"calls[{place}]: {problem}")

    cdef int pack_checked(self, call, CallRecord* record) except -1:
        cdef bint failed
        cdef str tool, text
        if not isinstance(call.tool, str):
            raise InputError(f"tool: wanted a name, got {shown(call.tool)}")
        tool = plain(call.tool)
        failed = is_error(call)
        text = result_text(call, failed)
        record.tool = self.tool_hash(tool)
        record.signature = signature_of(call, tool)
        record.size = <uint32_t> min(len(text), <Py_ssize_t> 0xFFFFFFFFu)
        record.flags = 0
        if failed:
            record.flags = CALL_ERROR
            record.result = hash_bytes(utf8(mask_volatile(text)))
            self.new_errors[record.result] = text[:ERROR_TEXT_KEPT]
        else:
            record.result = hash_bytes(utf8(text))
            if is_empty(call.result):
                record.flags = CALL_EMPTY
        return 0

    cdef int pack_scalars(self, round, Round* packed) except -1:
        if round.text is not None and not isinstance(round.text, str):
            raise InputError(f"text: wanted a text or None, got {type(round.text).__name__}")
        packed.text = hash_text(round.text)
        packed.context_tokens = tokens_of(round.context_tokens, "context_tokens")
        packed.context_limit = limit_of(round.context_limit)
        packed.progress = fraction_of(round.progress, "progress")
        packed.reward = fraction_of(round.reward, "reward")
        packed.success = outcome_of(round.success)
        packed.event = EVENT_NONE
        return 0

    def pack(self, round):
        """Pack one round; the packed form stands at `address` until the next call.

        Returns its calls, as they were packed.
        """
        cdef tuple calls = calls_of(round)
        cdef CallRecord record
        cdef Py_ssize_t k
        self.reserve(len(calls))
        for k in range(len(calls)):
            self.pack_call(calls[k], k, &record)
            self.tool[k] = record.tool
            self.signature[k] = record.signature
            self.result[k] = record.result
            self.size[k] = record.size
            self.flags[k] = record.flags
        self.pack_scalars(round, &self.round)
        self.round.calls = len(calls)
        self.round.tool = self.tool
        self.round.signature = self.signature
        self.round.result = self.result
        self.round.size = self.size
        self.round.flags = self.flags
        return calls

    def keep_up_with(self, long long forgotten):
        """Name every tool anew, in `new_tools`, if the table of names forgot some since."""
        if forgotten != self.forgotten:
            self.forgotten = forgotten
            self.tool_hashes.clear()

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
        offsets = np.cumsum([0] + [len(of_round) for of_round in calls], dtype=np.int64)
        columns = empty_columns(len(given), int(offsets[len(given)]))
        columns["call_offsets"] = offsets
        cdef uint64_t[::1] tool = columns["call_tool"]
        cdef uint64_t[::1] signature = columns["call_signature"]
        cdef uint64_t[::1] result = columns["call_result"]
        cdef uint8_t[::1] flags = columns["call_flags"]
        cdef uint32_t[::1] size = columns["call_size"]
        cdef uint64_t[::1] text = columns["text"]
        cdef int64_t[::1] context_tokens = columns["context_tokens"]
        cdef int64_t[::1] context_limit = columns["context_limit"]
        cdef float[::1] progress = columns["progress"]
        cdef float[::1] reward = columns["reward"]
        cdef int8_t[::1] success = columns["success"]
        for i in range(len(given)):
            try:
                self.pack_scalars(given[i], &packed)
                for place, call in enumerate(calls[i]):
                    self.pack_call(call, place, &record)
                    tool[k] = record.tool
                    signature[k] = record.signature
                    result[k] = record.result
                    flags[k] = record.flags
                    size[k] = record.size
                    k += 1
            except InputError as error:
                raise InputError(f"rounds[{i}]: {error}") from None
            text[i] = packed.text
            context_tokens[i] = packed.context_tokens
            context_limit[i] = packed.context_limit
            progress[i] = packed.progress
            reward[i] = packed.reward
            success[i] = packed.success
        return columns


cdef tuple calls_of(round):
    # A copy that stays as it is while user code runs, taken one by one: a sequence may say any
    # length.
    cdef list calls = []
    if not isinstance(round, RoundObject):
        raise InputError(f"round: wanted a Round, got {type(round).__name__}")
    given = round.calls
    plain_sequence = type(given) is list or type(given) is tuple
    if not plain_sequence and (isinstance(given, (str, bytes)) or not isinstance(given, Sequence)):
        raise InputError(f"calls: wanted a sequence of ToolCall, got {type(given).__name__}")
    for call in given:
        if not isinstance(call, ToolCall):
            raise InputError(f"calls[{len(calls)}]: wanted a ToolCall, got {type(call).__name__}")
        calls.append(call)
    return tuple(calls)


cdef void* grown(void* memory, size_t size) except NULL:
    memory = realloc(memory, size)
    if memory == NULL:
        raise MemoryError
    return memory


def empty_columns(Py_ssize_t rounds, Py_ssize_t calls):
    """Uninitialised columns of a `RoundBatch`, all but ``call_offsets`` and ``event``."""
    return {
        "call_tool": np.empty(calls, np.uint64),
        "call_signature": np.empty(calls, np.uint64),
        "call_result": np.empty(calls, np.uint64),
        "call_flags": np.empty(calls, np.uint8),
        "call_size": np.empty(calls, np.uint32),
        "text": np.empty(rounds, np.uint64),
        "context_tokens": np.empty(rounds, np.int64),
        "context_limit": np.empty(rounds, np.int64),
        "progress": np.empty(rounds, np.float32),
        "reward": np.empty(rounds, np.float32),
        "success": np.empty(rounds, np.int8),
    }
