"""Whether a durable fleet goes on exactly where it was shut, in the same files.

If not, it may have had a future that its directory does not know: entries that were lost with the
machine or put aside, or the original of a copy. What it learned there may be in a file, told by the
same sources; so from now on it has to be told by others.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

from cellium_fast.directory import SHUT, Directory

log = logging.getLogger(__name__)


def note_shut(directory: Directory, journal: Path) -> None:
    """Note that a fleet was shut, with this last journal, which is closed."""
    try:
        (directory.path / SHUT).write_text(json.dumps(_identity_of(journal)), "ascii")
    except OSError as error:
        log.warning(
            "%s: it could not be noted that the fleet was shut; when it is opened again, its pools "
            "begin new sources: %s", directory.path, error,
        )


def goes_on(directory: Directory, journal: Path) -> bool:
    """Whether the fleet with this last journal was shut, and nothing happened to the journal since.

    Asked once: when this returns, the note is gone, on the disk too. Raises OSError.
    """
    path = directory.path / SHUT
    try:
        noted = path.read_bytes()
    except FileNotFoundError:
        return False
    path.unlink()
    directory.sync()
    try:
        return bool(json.loads(noted) == _identity_of(journal))
    except (ValueError, RecursionError):    # a crash left a part of it, or it was altered
        return False


def _identity_of(journal: Path) -> dict[str, Any]:
    """What a copy of the file has not, nor the same file once it was written to."""
    found = os.stat(journal)
    return {
        "journal": journal.name, "device": found.st_dev, "file": found.st_ino,
        "bytes": found.st_size, "changed": found.st_ctime_ns,
    }
