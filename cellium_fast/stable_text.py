"""Text forms of tool arguments and results that do not change from run to run.

JSON where JSON can say it (keys sorted, no white space); else a form of our own, so that bytes,
sets, objects, cycles and numbers beyond JSON are told apart and never raise.

Some fields of arguments only label the call: they change from call to call while the call stays the
same. They are told by their keys alone, and a second form of the arguments hides their values.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Set
from contextlib import suppress
from typing import Any

import orjson
from xxhash import xxh3_128_hexdigest

OPTIONS = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS

# orjson reads an integer beyond 64 bits as a float: two such numbers would look the same.
LONG_NUMBER = re.compile(r"\d{19}")
ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
LONG = 1_000        # characters from which a part of a description stands as its digest

# In lower case, without _ and -: requestId, request_id and Request-ID are one key. A key belongs
# here if its value does not say what the call is about: to go through different ids, uuids, dates,
# seeds, paths or pages is work.
_VOLATILE_KEYS = """
    requestid reqid xrequestid clientrequestid callid toolcallid tooluseid invocationid
    traceid traceparent spanid parentspanid correlationid xcorrelationid
    idempotencykey xidempotencykey clienttoken clientrequesttoken nonce random cachebuster cachebust
    timestamp ts now currenttime currenttimestamp requestedat requesttime requesttimestamp sentat
    attempt attemptnumber attemptcount retry retrycount retrynumber retryattempt
"""
VOLATILE_KEYS = frozenset(_VOLATILE_KEYS.split())
HIDDEN = "#"        # stands for a value; no value reads like it

Join = Callable[[list[str]], str]

JSON_STARTS = frozenset('{["-0123456789tfn')


def canonical(value: Any) -> bytes:
    """One text for equal values: key order and white space do not matter.

    >>> canonical({"b": 1, "a": [2.5, None]})
    b'{"a":[2.5,null],"b":1}'
    >>> canonical({1, 2}) == canonical({2, 1})
    True
    """
    text = _json(value)
    return encode(_describe(value, _Fields())) if text is None else text


def canonical_arguments(value: Any) -> bytes:
    """As `canonical`; text that holds JSON equals the value it holds.

    >>> canonical_arguments('{"b": 1, "a": 2}') == canonical_arguments({"a": 2, "b": 1})
    True
    >>> canonical_arguments("ls -l")
    b'ls -l'
    """
    return argument_forms(value)[0]


def argument_forms(value: Any) -> tuple[bytes, bytes | None]:
    """As `canonical_arguments`, and the same with the values of volatile fields hidden.

    The second is None if the first is JSON, in which they can be told.

    >>> argument_forms({"ts": 1})
    (b'{"ts":1}', None)
    >>> argument_forms({"ts": 1, "data": b"x"})
    (b'{"data":bytes(78),"ts":1}', b'{"data":bytes(78),"ts":#}')
    """
    if not issubclass(type(value), str):
        return _forms(value)
    value = plain(value)
    if value.lstrip()[:1] in JSON_STARTS:
        with suppress(ValueError, RecursionError):
            return _forms(_parse(value))
    text = encode(value)
    return text, text


def _forms(value: Any) -> tuple[bytes, bytes | None]:
    text = _json(value)
    if text is not None:
        return text, None
    fields = _Fields()
    text = encode(_describe(value, fields))
    return text, encode(_describe(value, _Fields(hide=True))) if fields.found else text


def _json(value: Any) -> bytes | None:
    try:
        text = orjson.dumps(value, option=OPTIONS)
        # orjson writes NaN and the infinities as null.
        if b"null" not in text or not _holds_no_number(value):
            return text
    except Exception:  # what JSON cannot express, or objects that fail when looked at
        pass
    return None


def plain(text: str) -> str:
    """A subclass of str as the text it holds, whatever its methods say."""
    return text if type(text) is str else str.__str__(text)


def encode(text: str) -> bytes:
    """UTF-8 that also takes lone surrogates."""
    return text.encode("utf-8", "surrogatepass")


def _parse(text: str) -> Any:
    if LONG_NUMBER.search(text):
        return json.loads(text, parse_constant=_refuse)
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        # An escaped lone surrogate is JSON that orjson refuses.
        if "\\u" in text:
            return json.loads(text, parse_constant=_refuse)
        raise


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def _holds_no_number(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(_holds_no_number, value.values())) or any(map(_holds_no_number, value))
    return isinstance(value, list | tuple) and any(map(_holds_no_number, value))


class _Fields:
    """Volatile fields while a value is described: whether they are hidden, and were found."""

    __slots__ = ("found", "hide")

    def __init__(self, *, hide: bool = False) -> None:
        self.hide = hide
        self.found = False

    def text_of(self, key: str, text: str) -> str:
        """The text of a field's value, or what stands for it."""
        if key.isascii() and key.lower().replace("_", "").replace("-", "") in VOLATILE_KEYS:
            self.found = True
            return HIDDEN if self.hide else text
        return text


class _Frame:
    """A container or object while the texts of its parts are made."""

    __slots__ = ("container", "join", "parts", "texts")

    def __init__(self, container: Any, parts: list[Any], join: Join) -> None:
        self.container = container
        self.parts = parts
        self.join = join
        self.texts: list[str] = []


def _describe(value: Any, fields: _Fields) -> str:
    # With a stack of its own: nesting has no limit, and Python's recursion has. Each object is
    # described once, and a long description stands as its digest in others, so that a graph takes
    # no longer than its objects, and objects that are shared read as equal ones that are not.
    finished: dict[int, tuple[str, Any]] = {}   # with the object, so that its id stays its own
    inside: set[int] = set()
    stack = [_Frame(None, [value], "".join)]
    while True:
        frame = stack[-1]
        if len(frame.texts) < len(frame.parts):
            part = frame.parts[len(frame.texts)]
            text = _simple_or_kind(part) or finished.get(id(part), ("",))[0]
            if text or id(part) in inside:
                frame.texts.append(text or "(cycle)")
            else:
                inside.add(id(part))
                stack.append(_frame_of(part, fields))
            continue
        text = frame.join(frame.texts)
        stack.pop()
        if not stack:
            return text
        if len(stack) > 1 and len(text) > LONG:
            text = f"#{xxh3_128_hexdigest(encode(text))}"
        finished[id(frame.container)] = text, frame.container
        inside.discard(id(frame.container))
        stack[-1].texts.append(text)


def _simple_or_kind(value: Any) -> str:
    try:
        return _simple(value)
    except Exception:  # a user's own class may do anything; its kind still tells it apart
        return _kind(value)


def _simple(value: Any) -> str:
    """Text of what has no parts; empty for what has."""
    kind = type(value)
    if value is None or kind is bool:
        return orjson.dumps(value).decode()
    if issubclass(kind, float):
        number = float.__float__(value)
        return orjson.dumps(number).decode() if math.isfinite(number) else repr(number)
    if issubclass(kind, int):
        # Python does not print an integer of thousands of digits.
        return int.__repr__(value) if int.bit_length(value) < 1000 else hex(int.__index__(value))
    if issubclass(kind, str):
        return _text_value(plain(value))
    if issubclass(kind, bytes | bytearray):
        return f"bytes({bytes.hex(value) if issubclass(kind, bytes) else bytearray.hex(value)})"
    if issubclass(kind, type):
        return f"class {value.__module__}.{value.__qualname__}"
    return ""


def _text_value(text: str) -> str:
    try:
        return orjson.dumps(text).decode()
    except TypeError:       # a lone surrogate
        return json.dumps(text)


def _kind(value: Any) -> str:
    kind = type(value)
    try:
        return f"{kind.__module__}.{kind.__qualname__}"
    except Exception:  # a class of a user's own kind of classes
        return "object"


def _frame_of(value: Any, fields: _Fields) -> _Frame:
    try:
        return _Frame(value, *_parts(value, fields))
    except Exception:  # as in _simple_or_kind
        return _Frame(value, [_kind(value)], "".join)


def _parts(value: Any, fields: _Fields) -> tuple[list[Any], Join]:
    """What a container or object consists of, and how the texts of that make its own."""
    if isinstance(value, Mapping):
        items = list(value.items())
        keys = [key for key, _ in items]
        return keys + [part for _, part in items], lambda texts: _mapping_text(keys, texts, fields)
    if isinstance(value, memoryview):
        return [bytes(value)], "".join
    if isinstance(value, list | tuple):
        return list(value), lambda texts: f"[{','.join(texts)}]"
    if isinstance(value, Set):
        return list(value), lambda texts: f"set({','.join(sorted(texts))})"
    return _object_parts(value)


def _mapping_text(keys: list[Any], texts: list[str], fields: _Fields) -> str:
    # As in JSON, where the key 1 is the key "1", and keys are sorted before they are quoted.
    items = [
        (plain(key) if isinstance(key, str) else text, part)
        for key, text, part in zip(keys, texts, texts[len(keys) :], strict=False)
    ]
    items.sort()
    members = [f"{_text_value(key)}:{fields.text_of(key, part)}" for key, part in items]
    return f"{{{','.join(members)}}}"


def _object_parts(value: Any) -> tuple[list[Any], Join]:
    """An object as what it would be rebuilt from, or else its repr without addresses."""
    kind = _kind(value)
    try:
        rebuilt = value.__reduce_ex__(2)
    except Exception:  # functions, locks, open files: nothing to rebuild them from
        own: object = type(value).__repr__
        text = "" if own is object.__repr__ else ADDRESS.sub("0x", repr(value))
        return [text], lambda texts: kind + texts[0]
    if isinstance(rebuilt, str):
        return [rebuilt], lambda texts: f"{kind}.{texts[0]}"
    parts = [list(part) if hasattr(part, "__next__") else part for part in rebuilt[1:]]
    return parts, lambda texts: f"{kind}({','.join(texts)})"
