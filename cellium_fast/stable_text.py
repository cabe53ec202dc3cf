"""Text forms of tool arguments and results that do not change from run to run.

JSON where JSON can say it (keys sorted, no white space); else a form of our own, so that bytes,
sets, objects, cycles and numbers beyond JSON are told apart and never raise.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Set
from enum import Enum
from typing import Any

import orjson

OPTIONS = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS
MAX_DEPTH = 200

# orjson reads an integer beyond 64 bits as a float: two such numbers would look the same.
LONG_NUMBER = re.compile(r"\d{19}")
ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
VOLATILE = re.compile(
    r"0x[0-9a-f]+"
    r"|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"
    r"|\b(?=[a-f]*\d)[0-9a-f]{7,}\b"
    r"|\d+",
    re.IGNORECASE,
)
JSON_STARTS = frozenset('{["-0123456789tfn')


def canonical(value: Any) -> bytes:
    """One text for equal values: key order and white space do not matter.

    >>> canonical({"b": 1, "a": [2.5, None]})
    b'{"a":[2.5,null],"b":1}'
    >>> canonical({1, 2}) == canonical({2, 1})
    True
    """
    try:
        return orjson.dumps(value, option=OPTIONS)
    except (TypeError, RecursionError):
        return encode(_describe(value, (), 0))


def canonical_arguments(value: Any) -> bytes:
    """As `canonical`; text that holds JSON equals the value it holds.

    >>> canonical_arguments('{"b": 1, "a": 2}') == canonical_arguments({"a": 2, "b": 1})
    True
    >>> canonical_arguments("ls -l")
    b'ls -l'
    """
    if not isinstance(value, str):
        return canonical(value)
    start = value.lstrip()[:1]
    if start in JSON_STARTS:
        try:
            return canonical(_parse(value))
        except (ValueError, RecursionError):
            return encode(value)
    return encode(value)


def encode(text: str) -> bytes:
    """UTF-8 that also takes lone surrogates."""
    return text.encode("utf-8", "surrogatepass")


def mask_volatile(text: str) -> str:
    """Fold numbers, hexadecimal ids and white space, which change from error to error.

    >>> mask_volatile("pid 4711 died at 0x7ffe12,\\n 12:30:01")
    'pid # died at #, #:#:#'
    """
    return " ".join(VOLATILE.sub("#", text).split())


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


def _describe(value: Any, parents: tuple[int, ...], depth: int) -> str:
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return f"bytes({bytes(value).hex()})"
    if id(value) in parents:
        return "(cycle)"
    if depth > MAX_DEPTH:
        return "(deep)"
    return _describe_parts(value, (*parents, id(value)), depth + 1)


def _describe_parts(value: Any, parents: tuple[int, ...], depth: int) -> str:
    if isinstance(value, Mapping):
        items = (
            f"{_describe(key, parents, depth)}:{_describe(part, parents, depth)}"
            for key, part in value.items()
        )
        return "{" + ",".join(sorted(items)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_describe(part, parents, depth) for part in value) + "]"
    if isinstance(value, Set):
        return "set(" + ",".join(sorted(_describe(part, parents, depth) for part in value)) + ")"
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, Enum):
        return f"{kind}.{value.name}"
    return f"{kind}({_describe_object(value, parents, depth)})"


def _describe_object(value: Any, parents: tuple[int, ...], depth: int) -> str:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name, None)
                  for field in dataclasses.fields(value)}
        return _describe(fields, parents, depth)
    if type(value).__repr__ is not object.__repr__:
        try:
            return ADDRESS.sub("0x", repr(value))
        except Exception:  # a user's own __repr__ may do anything; the kind still tells it apart
            return ""
    return _describe(getattr(value, "__dict__", None), parents, depth)
