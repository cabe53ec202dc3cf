"""Snapshots: a `FleetState` in one safetensors file, and back.

docs/durability.md says what is in the file. Three keys of its metadata stay the same in every
version: ``format``, ``format_version``, and ``xxh3_128``, the checksum of all other bytes.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cellium_fast import checks, whole_file
from cellium_fast.errors import SnapshotError, shown
from cellium_fast.snapshot_content import (
    Content,
    Refused,
    add_fields,
    add_parameters,
    begin_histories,
    content_of,
    number_in,
    state_of,
    whole_number,
)
from cellium_fast.state import FleetState, impossible

FORMAT = "cellium-fast snapshot"
VERSION = 3
CHECKSUM = b'"xxh3_128":"'          # what stands before it
CHECKSUM_LENGTH = 32                # hexadecimal digits
LENGTH_BYTES = 8                    # a safetensors file begins with the length of its header
HEAD = b'{"__metadata__":{"format":"' + FORMAT.encode()
LOOKED_AT = 4096                    # bytes in which a snapshot says what it is
MOST_OF_HEADER = 10**8              # bytes; a snapshot's is some thousands
WRITTEN_AT_ONCE = 2**26             # bytes


# --- writing -------------------------------------------------------------------------------------
def write(path: str | os.PathLike[str], state: FleetState) -> None:
    """Replace a file by a snapshot of this state; the one before is kept, as ``<path>.bak``.

    When it returns, the snapshot is on the disk.

    Raises
    ------
    SnapshotError
        The system refused ("unwritable"). The old file is as it was, unless only the last step
        failed, to bring the directory to the disk: then the message says that the new one is
        there.
    """
    path = checks.file_path("path", path)
    content = content_of(state)
    content.metadata = {
        "format": FORMAT,
        "format_version": str(VERSION),
        "xxh3_128": "0" * CHECKSUM_LENGTH,      # until it is known
        "package_version": _package_version(),
        "byte_order": sys.byteorder,
        "length": "0",                          # of the tensors, until it is known
        **content.metadata,
    }
    parts = _packed(content)
    try:
        whole_file.replace(path, lambda descriptor: _write_all(descriptor, parts))
    except whole_file.DirectoryNotSynced as error:
        raise SnapshotError(path, "unwritable", f"{error.strerror}") from error
    except OSError as error:
        raise SnapshotError(
            path, "unwritable",
            f"cannot be written: {error.strerror or error}; what was there before is untouched",
        ) from error


def _packed(content: Content) -> list[memoryview]:
    """The bytes of the file, in parts.

    safetensors' own writer would copy all of it first, and other threads would wait for that.
    """
    import xxhash

    length = str(sum(tensor.nbytes for tensor in content.tensors.values()))
    described: dict[str, Any] = {"__metadata__": {**content.metadata, "length": length}}
    kinds = {np.dtype("<i8"): "I64", np.dtype("<u8"): "U64", np.dtype(np.uint8): "U8"}
    end = 0
    for name, tensor in content.tensors.items():
        begin, end = end, end + tensor.nbytes
        described[name] = {
            "dtype": kinds[tensor.dtype], "shape": tensor.shape, "data_offsets": [begin, end],
        }
    header = json.dumps(described, separators=(",", ":")).encode("ascii")
    header += b" " * (-len(header) % LENGTH_BYTES)
    first = bytearray(len(header).to_bytes(LENGTH_BYTES, "little") + header)
    others = [tensor.data.cast("B") for tensor in content.tensors.values() if tensor.size]
    place = first.index(CHECKSUM) + len(CHECKSUM)
    digest = xxhash.xxh3_128(first[:place] + first[place + CHECKSUM_LENGTH :])
    for part in others:
        digest.update(part)
    first[place : place + CHECKSUM_LENGTH] = digest.hexdigest().encode("ascii")
    return [memoryview(first), *others]


def _write_all(descriptor: int, parts: list[memoryview]) -> None:
    for part in parts:
        while part:
            part = part[os.write(descriptor, part[:WRITTEN_AT_ONCE]) :]


# --- reading -------------------------------------------------------------------------------------
def read(path: str | os.PathLike[str]) -> FleetState:
    """The state in a snapshot, of this version or an older one.

    Raises
    ------
    SnapshotError
        The file is not there, not whole, not a snapshot, of a newer version, or says what no fleet
        can be; `reason` says which, the message what to do. The file is as it was.
    """
    path = checks.file_path("path", path)
    try:
        return _read(path)
    except Refused as refused:
        hint = "" if refused.reason == "newer" else _about_backup(whole_file.backup_of(path))
        raise SnapshotError(path, refused.reason, f"{refused}{hint}") from refused.__cause__


def _read(path: Path) -> FleetState:
    content = _migrated(_unpacked(_bytes_of(path)))
    state = state_of(content)
    problem = impossible(state)
    if problem is not None:
        raise Refused("impossible", f"says what no fleet can be: {problem}")
    return state


def _about_backup(backup: Path) -> str:
    """What to say of the snapshot that was kept when a bad one took its place."""
    if not backup.exists():
        return ""
    try:
        _read(backup)
    except Refused as refused:
        return f"; the one before it, {backup}, is {refused.reason} too"
    return f"; the one before it, {backup}, is good: load that"


def _bytes_of(path: Path) -> bytes:
    """All of a file, once its beginning and its size are those of a snapshot."""
    try:
        with whole_file.opened(path) as file:
            start = file.read(LOOKED_AT)
            if _is_snapshot(start):
                length = int.from_bytes(start[:LENGTH_BYTES], "little")
                start += file.read(min(length, MOST_OF_HEADER))
            _check_start(start, os.fstat(file.fileno()).st_size)
            file.seek(0)
            return file.readall()
    except FileNotFoundError:
        raise Refused("missing", "there is no such file") from None
    except OSError as error:
        raise Refused("unreadable", f"cannot be read: {error.strerror or error}") from error


def _unpacked(data: bytes) -> Content:
    """What is in the bytes of a file, if they are as they were written, by a version known here."""
    from safetensors import SafetensorError, deserialize

    metadata = _header_of(data).get("__metadata__", {})
    version = number_in(metadata.get("format_version", ""))
    newer = version is not None and version > VERSION
    if not _has_its_checksum(data, or_none=newer):
        raise Refused("altered", "is not as it was written: its checksum differs")
    if newer:
        raise Refused(
            "newer",
            f"is of format version {version}, and this package ({_package_version()}) reads "
            f"versions up to {VERSION}: use the package that wrote it "
            f"({metadata.get('package_version')}), or a later one",
        )
    if not version:
        raise Refused("impossible", f"has no format version, but "
                      f"{shown(metadata.get('format_version'))}")
    if metadata.get("byte_order") != sys.byteorder:
        raise Refused(
            "foreign",
            f"was written on a machine with {metadata.get('byte_order')}-endian numbers; this one "
            f"has {sys.byteorder}-endian ones",
        )
    try:
        found: list[tuple[str, Any]] = deserialize(data)  # type: ignore[no-untyped-call]
        tensors = {name: _tensor(**described) for name, described in found}
    except (SafetensorError, KeyError, ValueError) as error:
        raise Refused("impossible", f"does not hold what a snapshot holds: {error}") from error
    return Content(metadata, tensors)


def _tensor(dtype: str, shape: list[int], data: bytearray) -> NDArray[Any]:
    return np.frombuffer(data, {"I64": "<i8", "U64": "<u8", "U8": "u1"}[dtype]).reshape(shape)


def _is_snapshot(data: bytes) -> bool:
    """Whether it was one, were it even cut off or altered in one place since."""
    start = data[LENGTH_BYTES:LOOKED_AT]
    marks = (FORMAT.encode(), b'"format_version"', CHECKSUM)
    return HEAD.startswith(start[: len(HEAD)]) or sum(mark in start for mark in marks) > 1


def _header_of(data: bytes) -> dict[str, Any]:
    """The header of the file; an empty one if it is not whole, or not as it was written."""
    length = min(int.from_bytes(data[:LENGTH_BYTES], "little"), MOST_OF_HEADER)
    try:
        header = json.loads(data[LENGTH_BYTES : LENGTH_BYTES + length])
    except (ValueError, RecursionError):
        return {}
    whole = (
        isinstance(header, dict)
        and isinstance(header.get("__metadata__", {}), dict)
        and all(isinstance(described, dict) for described in header.values())
        and all(isinstance(text, str) for text in header.get("__metadata__", {0: 0}).values())
    )
    return header if whole else {}


def _check_start(start: bytes, size: int) -> None:
    """Refused if a file of this size that starts like this, with its header, is no whole snapshot.

    It may still be altered.
    """
    if not _is_snapshot(start):
        raise Refused("foreign", "is no snapshot of a fleet")
    end = LENGTH_BYTES + int.from_bytes(start[:LENGTH_BYTES], "little")
    header = _header_of(start)
    cut_off = Refused("truncated", f"ends too early, after {size:,} bytes")
    if header:
        stated = header.get("__metadata__", {}).get("length", "")
        length = number_in(stated)
        ends = [str(described.get("data_offsets")) for described in header.values()]
        if length is None or not any(there.endswith(f", {stated}]") for there in ends):
            return      # the checksum tells
        if size < end + length:
            raise cut_off
        if size > end + length:
            raise Refused("altered", f"is not as it was written: it has {size:,} bytes, wanted "
                          f"{end + length:,}")
        return
    try:
        json.JSONDecoder().raw_decode(start[LENGTH_BYTES:end].decode("ascii", "replace"))
    except (ValueError, RecursionError) as error:
        if isinstance(error, ValueError) and size < end:
            raise cut_off from None
    # The header is there: it is its length that was altered, or what is in it.
    raise Refused("altered", "is not as it was written: its header is damaged")


def _has_its_checksum(data: bytes, *, or_none: bool) -> bool:
    """Whether the checksum is that of the data; `or_none`, whether it may have none."""
    import xxhash

    place = data.find(CHECKSUM, 0, LOOKED_AT) + len(CHECKSUM)
    if place < len(CHECKSUM):
        return or_none
    whole = memoryview(data)
    digest = xxhash.xxh3_128(whole[:place])
    digest.update(whole[place + CHECKSUM_LENGTH :])
    return digest.hexdigest().encode("ascii") == whole[place : place + CHECKSUM_LENGTH]


# --- versions ------------------------------------------------------------------------------------
def _migrated(content: Content) -> Content:
    """The content as this version writes it."""
    for version in range(whole_number(content, "format_version"), VERSION):
        content = MIGRATIONS[version](content)
    return content


def _from_version_1(content: Content) -> Content:
    """Any number of sessions; what the pools had learned is what they begin with."""
    content.metadata |= {"calls": "0", "evicted": "0"}
    begin_histories(content)
    return content


def _from_version_2(content: Content) -> Content:
    """No functions of users in a policy, and no decision that says how probable it was."""
    add_fields(content, "outcomes", user_rules=np.uint32(0), propensity=np.float64("nan"))
    add_parameters(content, user_rules=[], user_reward=None, user_bias=[], propensities=False)
    return content


# What makes the content of a file of version v one of version v + 1. Each says what the older one
# lacks and what it is filled with.
MIGRATIONS: dict[int, Callable[[Content], Content]] = {1: _from_version_1, 2: _from_version_2}


def _package_version() -> str:
    from cellium_fast import __version__

    return __version__
