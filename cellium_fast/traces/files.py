"""From paths to JSON values: which files to read, and the records in them, broken ones included."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from cellium_fast.traces import archives
from cellium_fast.traces.reader import Record
from cellium_fast.traces.runs import Problem

SUFFIXES = (".json", ".jsonl", ".ndjson", ".traj", ".eval")

# Read at once: a line of a recording is easily longer than the few KiB Python would take.
_BUFFER = 1 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_NOT_JSON = (
    (b"\x1f\x8b", "compressed with gzip; unpack it first"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd; unpack it first"),
    (b"\xff\xfe", "UTF-16 text; convert it to UTF-8"),
    (b"\xfe\xff", "UTF-16 text; convert it to UTF-8"),
)
_LONE_SURROGATES = re.compile("[\ud800-\udfff]")
_WHITE_SPACE = re.compile(r"[ \t\r\n]*")
_BAD_UTF8 = "bytes that are not UTF-8 were replaced by U+FFFD"
_TOO_DEEP = "nested too deeply"


def find_files(
    paths: Iterable[str | os.PathLike[str]],
    on_passed_over: Callable[[Path], None] | None = None,
) -> list[Path]:
    """Return the files to read: those named, and those with a known suffix below directories.

    Directories are walked in sorted order; hidden files and directories in them are skipped,
    links to directories are not followed, and pipes, sockets and devices in them are not read.
    What does not exist or cannot be looked into is returned as it is, so that reading it says
    so. Each file is returned once. `on_passed_over` is called with each file of a directory that
    is not among them.
    """
    found: dict[Path, None] = {}

    def unreadable(error: OSError) -> None:
        found[Path(error.filename)] = None

    for path in map(Path, paths):
        if not os.path.isdir(path):
            found[path] = None
            continue
        for folder, folders, names in os.walk(path, onerror=unreadable):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in sorted(names):
                file = Path(folder, name)
                if _is_looked_at(file):
                    found[file] = None
                elif on_passed_over is not None:
                    on_passed_over(file)
    return list(found)


def _is_looked_at(file: Path) -> bool:
    if file.name.startswith(".") or not file.name.lower().endswith(SUFFIXES):
        return False
    try:
        # Opening a named pipe would wait for someone to write.
        return stat.S_ISREG(file.stat().st_mode)
    except OSError:
        return True     # reading it says why


def read_records(path: Path) -> Iterator[Record | Problem]:
    """Yield the JSON values of a file, in order, and a problem for each part that is none.

    JSON Lines are told from one JSON value by content: the first line is a value of its own and
    more follows. They are read line by line, split at line feeds only: the other line ends of
    Unicode may stand unescaped in a JSON text. The records of a zip archive are its samples, one
    at a time. An unreadable file is a problem, too.
    """
    try:
        with path.open("rb", _BUFFER) as file:
            yield from _records(path, file)
    except OSError as error:
        yield Problem(path, None, f"cannot be read: {error.strerror or error}")


def _records(path: Path, file: BinaryIO) -> Iterator[Record | Problem]:
    numbered = ((number, line) for number, line in enumerate(file, 1) if not line.isspace())
    number, line = next(numbered, (0, b""))
    if line.startswith(archives.START):
        yield from _members(path, file)
        return
    for start, why in _NOT_JSON:
        if line.startswith(start):
            yield Problem(path, None, why)
            return
    line = line.removeprefix(_BYTE_ORDER_MARK)
    if number == 0 or not line.strip():
        number, line = next(numbered, (0, b""))
    if number == 0:
        yield Problem(path, None, "empty: no runs in it")
        return

    value, fault = parse(line)
    if not _has_value(fault):
        # The line feeds before the first line keep the line numbers of parse errors right.
        rest = b"\n" * (number - 1) + line + file.read()
        yield from _whole_file(path, rest)
        return
    second = next(numbered, None)
    if second is None:
        if fault is not None:
            yield Problem(path, number, fault)
        yield Record(value)
        return
    yield from _found(path, number, value, fault)
    for number, line in chain((second,), numbered):
        value, fault = parse(line)
        if fault is None:
            yield Record(value, number)
        else:
            yield from _found(path, number, value, fault)


def _members(path: Path, file: BinaryIO) -> Iterator[Record | Problem]:
    for member, data, fault in archives.read_members(file):
        value = None
        if fault is None:
            value, fault = parse(data)
        if fault is not None:
            yield Problem(path, None, f"{member}: {fault}" if member else fault)
        if _has_value(fault):
            yield Record(value)


def _found(path: Path, line: int, value: Any, fault: str | None) -> Iterator[Record | Problem]:
    if fault is not None:
        yield Problem(path, line, fault)
    if _has_value(fault):
        yield Record(value, line)


def _whole_file(path: Path, data: bytes) -> Iterator[Record | Problem]:
    value, fault = parse(data)
    if _has_value(fault):
        if fault is not None:
            yield Problem(path, None, fault)
        yield Record(value)
        return
    assert fault is not None
    lines = data.split(b"\n")
    if any(map(_is_line_of_json, lines)):
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield from _found(path, number, *parse(line))
        return
    text = data.decode("utf-8", "replace")
    part, end = _complete_part(text)
    line_number = text.count("\n", 0, end) + 1
    if not part:
        yield Problem(path, line_number, fault)
        return
    yield Problem(path, line_number, f"{fault}; what is complete before it was read")
    yield Record(part, partial=True)


def _is_line_of_json(line: bytes) -> bool:
    # Inside an indented JSON value no line but an empty container starts at the margin and is
    # complete: a full container there marks JSON Lines whose first line is broken.
    if not line.startswith((b"{", b"[")):
        return False
    value, fault = parse(line)
    return bool(value) and _has_value(fault)


def _has_value(fault: str | None) -> bool:
    return fault is None or fault == _BAD_UTF8


def parse(data: bytes) -> tuple[Any, str | None]:
    """Return the JSON value in the bytes and what was wrong with them, if anything.

    What orjson refuses but is often met is accepted: NaN and Infinity, escapes of lone
    surrogates (replaced by U+FFFD, as no UTF-8 text can hold them) and bytes that are not
    UTF-8 (replaced as well; the value is returned beside the fault).
    """
    try:
        return orjson.loads(data), None
    except orjson.JSONDecodeError:
        pass
    try:
        text, fault = data.decode("utf-8"), None
    except UnicodeDecodeError:
        text, fault = data.decode("utf-8", "replace"), _BAD_UTF8
    try:
        return _without_surrogates(json.loads(text)), fault
    except json.JSONDecodeError as error:
        return None, f"not JSON: {error.msg} (column {error.colno})"
    except ValueError as error:
        return None, f"not JSON: {error}"
    except RecursionError:
        return None, _TOO_DEEP


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return _LONE_SURROGATES.sub("\ufffd", value)
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    return value


def _complete_part(text: str) -> tuple[Any, int]:
    """Return the complete members of a list or object that breaks off, and where it does."""
    start = _after_white_space(text, 0)
    part: list[Any] | dict[str, Any] = {} if text.startswith("{", start) else []
    closing = "}" if isinstance(part, dict) else "]"
    scan = json.JSONDecoder().raw_decode
    position = start + 1
    try:
        while not text.startswith(closing, _after_white_space(text, position)):
            value, end = scan(text, _after_white_space(text, position))
            if isinstance(part, dict):
                key, end = value, _after_white_space(text, end)
                if not isinstance(key, str) or not text.startswith(":", end):
                    break
                value, end = scan(text, _after_white_space(text, end + 1))
                part[key] = _without_surrogates(value)
            else:
                part.append(_without_surrogates(value))
            position = _after_white_space(text, end)
            if not text.startswith(",", position):
                break
            position += 1
    except (ValueError, RecursionError):
        pass
    return part, position


def _after_white_space(text: str, position: int) -> int:
    match = _WHITE_SPACE.match(text, position)
    return match.end() if match else position
