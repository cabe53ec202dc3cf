"""A study on disk: what a search was told, so that another process can go on with it.

It is a journal of optuna's (`optuna.storages.JournalStorage`), one line of JSON a trial, and can be
looked at with optuna's own tools. One file has one study for each search of a tuning. What a search
was made for (its runs, space, seed, ...) stands in the study; a search of anything else is refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cellium_fast.errors import InputError

if TYPE_CHECKING:
    from optuna import Study
    from optuna.storages import BaseStorage

__all__ = ["kept_study", "open_storage"]

MADE_FOR = "made for"       # attribute of a study
FIRST_KEY = "op_code"       # in every line of optuna's journals


def open_storage(path: str | os.PathLike[str]) -> BaseStorage:
    """Open a journal of optuna's, or begin one.

    A line that a crash left without its end is cut off.

    Raises
    ------
    InputError
        The file is something else, is damaged, or cannot be read or written.
    """
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

    path = Path(path)
    try:
        _cut_torn_line(path)
        # Windows lets few users make the links that are locks elsewhere.
        lock = JournalFileOpenLock(str(path)) if os.name == "nt" else None
        return JournalStorage(JournalFileBackend(str(path), lock))
    except OSError as error:
        raise InputError(f"study: {path}: {error.strerror or error}") from None
    except (ValueError, KeyError, AssertionError) as error:
        raise InputError(f"study: {path}: it is damaged ({error}); begin another one") from None


def _cut_torn_line(path: Path) -> None:
    if not path.exists():
        return
    with path.open("r+b") as file:
        first = file.readline()
        if first and not _is_of_optuna(first):
            raise InputError(
                f"study: {path} is no journal of optuna's; wanted one, or a new file"
            )
        file.seek(0)
        data = file.read()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            file.truncate(whole)


def _is_of_optuna(line: bytes) -> bool:
    try:
        value = json.loads(line)
    except ValueError:
        return not line.endswith(b"\n") and line.startswith(b'{"' + FIRST_KEY.encode())
    return isinstance(value, dict) and FIRST_KEY in value


def kept_study(storage: BaseStorage, name: str, made_for: Mapping[str, Any]) -> Study:
    """The study of this name in a storage, begun if there is none.

    Raises
    ------
    InputError
        It was made for something else; the message says in what they differ.
    """
    import optuna

    wanted = json.loads(json.dumps(made_for))
    if name in optuna.get_all_study_names(storage):
        study = optuna.load_study(study_name=name, storage=storage)
    else:
        study = optuna.create_study(storage=storage, study_name=name, direction="maximize")
    if MADE_FOR not in study.user_attrs:
        study.set_user_attr(MADE_FOR, wanted)
    found = study.user_attrs[MADE_FOR]
    different = [
        key for key in sorted(wanted.keys() | found.keys()) if wanted.get(key) != found.get(key)
    ]
    if different:
        raise InputError(
            f"study: it was made for another tuning: {', '.join(different)} differ; give what it "
            "was begun with, or begin another study"
        )
    return study
