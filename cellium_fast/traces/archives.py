"""The JSON files in a zip archive that hold runs: the samples of an Inspect AI `.eval` log."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from importlib import import_module
from typing import Any, BinaryIO, NamedTuple

START = b"PK\x03\x04"
"""How a zip archive begins."""

LARGEST_MEMBER = 1 << 30
"""Bytes of a member after unpacking. Members are read one by one, each as a whole."""

LARGEST_RATIO = 200
"""Bytes that one packed byte may become, beyond `UNSUSPECTED`; packed logs come to some ten."""

UNSUSPECTED = 16 << 20
"""Bytes of a member that are unpacked in any case."""

_FOLDER = "samples/"
_ZSTD = 93
# The other methods are not used for logs, and Python may unpack them without a bound.
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, _ZSTD)
_NO_ZSTD = "packed with zstd, for which Python before 3.14 needs the package backports.zstd"


class Member(NamedTuple):
    """A file in an archive: its bytes, or what is wrong with it. No name: with the archive."""

    name: str
    data: bytes
    fault: str | None = None


def read_members(file: BinaryIO) -> Iterator[Member]:
    """Yield the samples of an archive, in its order. What cannot be unpacked is told."""
    try:
        size = file.seek(0, os.SEEK_END)
        archive = _zipfile().ZipFile(file)
    except Exception as error:      # as many kinds as bytes to be wrong
        yield Member("", b"", f"a broken zip archive ({error})")
        return
    with archive:
        members = [info for info in archive.infolist() if _is_sample(info.filename)]
        if not members:
            why = f"a zip archive without {_FOLDER}*.json: no Inspect AI log, or none with samples"
            yield Member("", b"", why)
        for info in members:
            yield _read_member(archive, info, size)


def _zipfile() -> Any:
    """Return the module `zipfile`, in a version that unpacks zstd if there is one."""
    try:
        return import_module("backports.zstd.zipfile")
    except ImportError:
        return zipfile


def _is_sample(name: str) -> bool:
    return name.startswith(_FOLDER) and name.endswith(".json")


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, size: int) -> Member:
    fault = _refusal(info, size)
    if fault is not None:
        return Member(info.filename, b"", fault)
    try:
        with archive.open(info) as file:
            # What the archive says of the size may be a lie: no more is unpacked.
            return Member(info.filename, file.read(info.file_size + 1))
    except Exception as error:      # these depend on how it is packed
        no_zstd = info.compress_type == _ZSTD and isinstance(error, NotImplementedError)
        why = _NO_ZSTD if no_zstd else f"cannot be unpacked ({error})"
        return Member(info.filename, b"", why)


def _refusal(info: zipfile.ZipInfo, size: int) -> str | None:
    """Why a member of an archive of `size` bytes is not unpacked, if it is not.

    A few bytes can become more than memory holds. The numbers in an archive may be lies.
    """
    if info.compress_type not in _METHODS:
        return "packed by a method that is not used for logs; pack it with deflate"
    packed = min(info.compress_size, size)
    most = min(max(LARGEST_RATIO * packed, UNSUSPECTED), LARGEST_MEMBER)
    if info.file_size > most:
        told, limit = info.file_size >> 20, most >> 20
        return f"unpacks to {told:,} MiB, more than {limit:,} MiB; unpack it first if you trust it"
    return None
