"""Snapshots: a `FleetState` in one safetensors file, and back.

docs/durability.md says what is in the file. Three keys of its metadata stay the same in every
version: ``format``, ``format_version``, and ``xxh3_128``, the checksum of all other bytes.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cellium_fast import _records, _step, whole_file
from cellium_fast.errors import PolicyError, SnapshotError, shown
from cellium_fast.policy import Policy, Posterior
from cellium_fast.state import FleetState, HandleState, impossible

FORMAT = "cellium-fast snapshot"
VERSION = 1
CHECKSUM = b'"xxh3_128":"'          # what stands before it
CHECKSUM_LENGTH = 32                # hexadecimal digits
LENGTH_BYTES = 8                    # a safetensors file begins with the length of its header
HEAD = b'{"__metadata__":{"format":"' + FORMAT.encode()
LOOKED_AT = 4096                    # bytes in which a snapshot says what it is
WRITTEN_AT_ONCE = 2**26             # bytes

Tensors = dict[str, NDArray[Any]]

# The tensors that hold records.
LAYOUTS = {
    "sessions": _records.SESSION,
    "posteriors": _records.POOL,
    "outcomes": _step.OUTCOME,
}


@dataclass(slots=True)
class Content:
    """A snapshot as it stands in the file."""

    metadata: dict[str, str]
    tensors: Tensors


# What makes the content of a file of version v one of version v + 1. Each says what the older one
# lacks and what it is filled with; there is none yet.
MIGRATIONS: dict[int, Callable[[Content], Content]] = {}


class Refused(Exception):
    """A reason of SnapshotError, and in words what is wrong."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


# --- writing -------------------------------------------------------------------------------------
def write(path: str | os.PathLike[str], state: FleetState) -> None:
    """Replace a file by a snapshot of this state; the one before is kept, as ``<path>.bak``.

    When it returns, the snapshot is on the disk.

    Raises
    ------
    SnapshotError
        The system refused ("unwritable"); the old file is as it was.
    """
    path = Path(path)
    parts = _packed(_content_of(state))
    try:
        whole_file.replace(path, lambda descriptor: _write_all(descriptor, parts))
    except OSError as error:
        raise SnapshotError(
            path, "unwritable",
            f"cannot be written: {error.strerror or error}; what was there before is untouched",
        ) from error


def _content_of(state: FleetState) -> Content:
    handles, former = _of_handles(state.handles)
    return Content(
        {
            "format": FORMAT,
            "format_version": str(VERSION),
            "xxh3_128": "0" * CHECKSUM_LENGTH,      # until it is known
            "package_version": _package_version(),
            "byte_order": sys.byteorder,
            "length": "0",                          # of the tensors, until it is known
            "seed": str(state.seed),
            "opened": str(state.opened),
            "forgotten": str(state.forgotten),
            "layouts": json.dumps({name: _table_of(dtype) for name, dtype in LAYOUTS.items()}),
        },
        {
            "free": np.ascontiguousarray(state.free, "<i8"),
            "sessions": _as_bytes("sessions", state.sessions),
            "posteriors": _as_bytes("posteriors", state.posteriors),
            "outcomes": _as_bytes("outcomes", state.outcomes()),
            "policies": _as_json(_dumped(state.policies)),
            "pools": _as_json(_dumped(state.pools)),
            "tools": _as_json(list(state.tools.items())),
            "errors": _as_json(list(state.errors.items())),
            "handles": _as_json(handles),
            "former_policies": _as_json([policy.model_dump() for policy in former]),
        },
    )


def _dumped(table: Mapping[str, Policy | Posterior]) -> dict[str, dict[str, Any]]:
    """All parameters by name: what a later version has as defaults does not matter."""
    return {name: parameters.model_dump() for name, parameters in table.items()}


def _of_handles(handles: list[HandleState]) -> tuple[list[list[Any]], list[Policy]]:
    """The handles as JSON values, and the policies that they refer to by their places."""
    places: dict[int, int] = {}
    former: list[Policy] = []
    rows = []
    for handle in handles:
        policy, place = handle.decided_under, None
        if policy is not None:
            place = places.setdefault(id(policy), len(former))
            if place == len(former):
                former.append(policy)
        tools, used = list(handle.tools), sorted(handle.used_tools)
        rows.append([handle.id, handle.name, tools, used, place])
    return rows, former


def _as_json(value: Any) -> NDArray[np.uint8]:
    # Text in ASCII: the standard library's JSON holds any Python text, lone surrogates too.
    return np.frombuffer(json.dumps(value, separators=(",", ":")).encode("ascii"), np.uint8)


def _as_bytes(name: str, records: NDArray[Any]) -> NDArray[np.uint8]:
    dtype = LAYOUTS[name]
    flat = np.ascontiguousarray(records, dtype)
    return flat.view(np.uint8).reshape(len(records), dtype.itemsize)


def _packed(content: Content) -> list[memoryview]:
    """The bytes of the file, in parts.

    safetensors' own writer would copy all of it first, and other threads would wait for that.
    """
    import xxhash

    length = str(sum(tensor.nbytes for tensor in content.tensors.values()))
    described: dict[str, Any] = {"__metadata__": {**content.metadata, "length": length}}
    kinds = {np.dtype("<i8"): "I64", np.dtype(np.uint8): "U8"}
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
    path = Path(path)
    try:
        return _read(path)
    except Refused as refused:
        hint = "" if refused.reason == "newer" else _about_backup(whole_file.backup_of(path))
        raise SnapshotError(path, refused.reason, f"{refused}{hint}") from refused.__cause__


def _read(path: Path) -> FleetState:
    content = _migrated(_unpacked(_bytes_of(path)))
    state = _state_of(content)
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
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise Refused("missing", "there is no such file") from None
    except OSError as error:
        raise Refused("unreadable", f"cannot be read: {error.strerror or error}") from error


def _unpacked(data: bytes) -> Content:
    """What is in the bytes of a file, if they are as they were written, by a version known here."""
    from safetensors import SafetensorError, deserialize

    if not _is_snapshot(data):
        raise Refused("foreign", "is no snapshot of a fleet")
    header = _header_of(data)
    if _is_cut_off(data, header):
        raise Refused("truncated", f"ends too early, after {len(data):,} bytes")
    metadata = header.get("__metadata__", {})
    version = metadata.get("format_version", "")
    newer = version.isdecimal() and int(version) > VERSION
    if not _has_its_checksum(data, or_none=newer):
        raise Refused("altered", "is not as it was written: its checksum differs")
    if newer:
        raise Refused(
            "newer",
            f"is of format version {version}, and this package ({_package_version()}) reads "
            f"versions up to {VERSION}: use the package that wrote it "
            f"({metadata.get('package_version')}), or a later one",
        )
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
    return np.frombuffer(data, {"I64": "<i8", "U8": "u1"}[dtype]).reshape(shape)


def _is_snapshot(data: bytes) -> bool:
    """Whether it was one, were it even cut off or altered in one place since."""
    start = data[LENGTH_BYTES:LOOKED_AT]
    marks = (FORMAT.encode(), b'"format_version"', CHECKSUM)
    return HEAD.startswith(start[: len(HEAD)]) or sum(mark in start for mark in marks) > 1


def _header_of(data: bytes) -> dict[str, Any]:
    """The header of the file; an empty one if it is not whole, or not as it was written."""
    length = int.from_bytes(data[:LENGTH_BYTES], "little")
    try:
        header = json.loads(data[LENGTH_BYTES : LENGTH_BYTES + length])
    except ValueError:
        return {}
    whole = (
        isinstance(header, dict)
        and all(isinstance(described, dict) for described in header.values())
        and all(isinstance(text, str) for text in header.get("__metadata__", {0: 0}).values())
    )
    return header if whole else {}


def _is_cut_off(data: bytes, header: dict[str, Any]) -> bool:
    """Whether the file's end is missing."""
    length = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "little")
    if header:
        stated = header["__metadata__"].get("length", "")
        ends = [str(described.get("data_offsets")) for described in header.values()]
        believed = stated.isdecimal() and any(end.endswith(f", {stated}]") for end in ends)
        return believed and len(data) < length + int(stated)
    try:
        json.JSONDecoder().raw_decode(data[LENGTH_BYTES:length].decode("ascii", "replace"))
    except ValueError:
        return len(data) < length
    return False        # the header is there: it is its length that was altered


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


# --- from the content to a state -----------------------------------------------------------------
def _migrated(content: Content) -> Content:
    """The content as this version writes it."""
    for version in range(_whole_number(content, "format_version"), VERSION):
        content = MIGRATIONS[version](content)
    return content


def _state_of(content: Content) -> FleetState:
    layouts = _json(content.metadata, "layouts", dict)
    return FleetState(
        seed=_whole_number(content, "seed"),
        opened=_whole_number(content, "opened"),
        sessions=_records_of(content, "sessions", layouts),
        free=_tensor_of(content, "free", "<i8", 1).astype(np.int64),
        policies=_parameters(content, "policies", Policy),
        pools=_parameters(content, "pools", Posterior),
        posteriors=_records_of(content, "posteriors", layouts),
        tools=_texts(content, "tools"),
        errors=_texts(content, "errors"),
        forgotten=_whole_number(content, "forgotten"),
        handles=_handles(content, _records_of(content, "outcomes", layouts)),
    )


def _whole_number(content: Content, name: str) -> int:
    text = content.metadata.get(name, "")
    if not (text.isascii() and text.isdecimal() and len(text) <= 20):
        raise Refused("impossible", f"{name}: wanted a number, got {shown(text)}")
    return int(text)


def _tensor_of(content: Content, name: str, dtype: str, dimensions: int) -> NDArray[Any]:
    tensor = content.tensors.get(name)
    if tensor is None or tensor.dtype != dtype or tensor.ndim != dimensions:
        raise Refused("impossible", f"{name}: wanted a tensor {dtype} of {dimensions} dimensions")
    return tensor


def _json(texts: Mapping[str, str], name: str, kind: type) -> Any:
    try:
        value = json.loads(texts.get(name, ""))
    except (ValueError, RecursionError) as error:
        raise Refused("impossible", f"{name}: wanted JSON, {error}") from error
    if not isinstance(value, kind):
        raise Refused("impossible", f"{name}: wanted a {kind.__name__}, got {shown(value)}")
    return value


def _json_tensor(content: Content, name: str, kind: type) -> Any:
    text = _tensor_of(content, name, "u1", 1).tobytes().decode("ascii", "replace")
    return _json({name: text}, name, kind)


def _texts(content: Content, name: str) -> dict[int, str]:
    pairs = _json_tensor(content, name, list)
    for pair in pairs:
        if not (isinstance(pair, list) and list(map(type, pair)) == [int, str]):
            raise Refused("impossible", f"{name}: wanted a hash and a text, got {shown(pair)}")
    return dict(pairs)


def _handles(content: Content, outcomes: NDArray[Any]) -> list[HandleState]:
    former = [
        _parameters_from(f"former_policies {place}", given, Policy)
        for place, given in enumerate(_json_tensor(content, "former_policies", list))
    ]
    rows = _json_tensor(content, "handles", list)
    if len(rows) != len(outcomes):
        raise Refused("impossible", f"handles: {len(rows)}, but {len(outcomes)} decisions")
    return [
        _handle(row, former, outcome.tobytes())
        for row, outcome in zip(rows, outcomes, strict=True)
    ]


def _handle(row: Any, former: list[Policy], outcome: bytes) -> HandleState:
    kinds = (int, str, list, list)
    good = (
        isinstance(row, list) and len(row) == 5 and tuple(map(type, row[:4])) == kinds
        and all(isinstance(tool, str) for tool in row[2] + row[3])
        and (row[4] is None or (type(row[4]) is int and 0 <= row[4] < len(former)))
    )
    if not good:
        raise Refused("impossible", f"handles: wanted id, name, tools, got {shown(row)}")
    policy = None if row[4] is None else former[row[4]]
    return HandleState(row[0], row[1], tuple(row[2]), frozenset(row[3]), policy, outcome)


def _parameters(content: Content, name: str, kind: type[Any]) -> Any:
    table = _json_tensor(content, name, dict)
    return {
        one: _parameters_from(f"{name} {shown(one)}", given, kind) for one, given in table.items()
    }


def _parameters_from(what: str, given: Any, kind: type[Any]) -> Any:
    """Checked parameters; none may be missing: what it was is not what is the default now."""
    if not isinstance(given, dict):
        raise Refused("impossible", f"{what}: wanted parameters by name, got {shown(given)}")
    try:
        parameters = kind(**given)
    except PolicyError as error:
        raise Refused("impossible", f"{what}: {error}") from error
    missing = next(_missing(given, parameters.model_dump()), None)
    if missing is not None:
        raise Refused("impossible", f"{what}: {missing}: is missing")
    return parameters


def _missing(given: Any, complete: Any, path: str = "") -> Iterator[str]:
    """Paths of what `complete` has and `given` has not."""
    if isinstance(complete, dict):
        for name, value in complete.items():
            if name not in given:
                yield f"{path}{name}"
            else:
                yield from _missing(given[name], value, f"{path}{name}.")


# --- layouts of records --------------------------------------------------------------------------
def _fields(
    dtype: np.dtype[Any], prefix: str = "", start: int = 0
) -> Iterator[tuple[str, str, int]]:
    """Name, format and offset of every field; those of a record within are ``record.field``."""
    for name in dtype.names or ():
        kind, offset = dtype.fields[name][:2]       # type: ignore[index]
        if kind.names:
            yield from _fields(kind, f"{prefix}{name}.", start + offset)
        else:
            shape = str(kind.shape) if kind.shape else ""
            yield f"{prefix}{name}", f"{shape}{kind.base.str}", start + offset


def _table_of(dtype: np.dtype[Any]) -> dict[str, Any]:
    """A layout of records as JSON values."""
    return {
        "itemsize": dtype.itemsize,
        "fields": {name: [kind, offset] for name, kind, offset in _fields(dtype)},
    }


def _records_of(content: Content, name: str, layouts: dict[str, Any]) -> NDArray[Any]:
    """Records of the package's own layout, each field by its name."""
    dtype = LAYOUTS[name]
    raw = _tensor_of(content, name, "u1", 2)
    table = layouts.get(name)
    theirs, ours = _flat(name, table), _flat(name, _table_of(dtype))
    if raw.shape[1] != theirs.itemsize:
        raise Refused(
            "impossible", f"{name}: wanted {theirs.itemsize} bytes each, got {raw.shape[1]}"
        )
    if theirs == ours:
        return raw.reshape(-1).view(dtype)
    for what, one, other in (("there is no such field", theirs, ours),
                             ("is missing", ours, theirs)):
        for field in one.names or ():
            if field not in (other.names or ()):
                raise Refused("impossible", f"{name}: {field}: {what}")
            if one[field] != other[field]:
                raise Refused(
                    "impossible", f"{name}: {field}: wanted {ours[field]}, got {theirs[field]}"
                )
    records = np.zeros(len(raw), ours)
    found = raw.reshape(-1).view(theirs)
    for field in ours.names or ():
        records[field] = found[field]
    return records.view(dtype)


def _flat(name: str, table: Any) -> np.dtype[Any]:
    """The dtype that a table says, with the fields of inner records among its own."""
    try:
        kinds = {field: np.dtype(kind) for field, (kind, _) in table["fields"].items()}
        if any(kind.base.kind not in "iuf" for kind in kinds.values()):
            raise ValueError("wanted numbers")
        offsets = [offset for _, offset in table["fields"].values()]
        return np.dtype({
            "names": list(kinds), "formats": list(kinds.values()), "offsets": offsets,
            "itemsize": table["itemsize"],
        })
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise Refused("impossible", f"{name}: has no table of fields: {error}") from error


def _package_version() -> str:
    from cellium_fast import __version__

    return __version__
