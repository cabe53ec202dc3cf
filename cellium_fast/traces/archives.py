"""The JSON files in a zip archive that hold runs: the samples of an Inspect AI `.eval` log."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from importlib import import_module
from typing import Any, BinaryIO, NamedTuple

START = b"PK\x03\x04"
"""How a zip archive begins."""

LARGEST_MEMBER = 1 << 30
"""Bytes of a member after unpacking. Members are read one by one, each as a whole."""

_FOLDER = "samples/"
_ZSTD = 93
_NO_ZSTD = "packed with zstd, for which Python before 3.14 needs the package backports.zstd"


class Member(NamedTuple):
    """A file in an archive: its bytes, or what is wrong with it. No name: with the archive."""

    name: str
    data: bytes
    fault: str | None = None


def read_members(file: BinaryIO) -> Iterator[Member]:
    """Yield the samples of an archive, in its order. What cannot be unpacked is told."""
    try:
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
            yield _read_member(archive, info)


def _zipfile() -> Any:
    """Return the module `zipfile`, in a version that unpacks zstd if there is one."""
    try:
        return import_module("backports.zstd.zipfile")
    except ImportError:
        return zipfile


def _is_sample(name: str) -> bool:
    return name.startswith(_FOLDER) and name.endswith(".json")


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Member:
    if info.file_size > LARGEST_MEMBER:
        size, limit = info.file_size >> 20, LARGEST_MEMBER >> 20
        return Member(info.filename, b"", f"unpacks to {size:,} MiB, more than {limit:,} MiB")
    try:
        return Member(info.filename, archive.read(info))
    except Exception as error:      # these depend on how it is packed
        no_zstd = info.compress_type == _ZSTD and isinstance(error, NotImplementedError)
        why = _NO_ZSTD if no_zstd else f"cannot be unpacked ({error})"
        return Member(info.filename, b"", why)
