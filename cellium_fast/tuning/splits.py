"""Which runs a search sees, and which it is judged on: whole sources, never parts of one.

A source is what recorded the runs, a directory of them or a file, as `by` says. Either some sources
are held out by name; or, in a rotation, every source is held out once, a few at a time: each time
another search does without them. Its figures say what such a search is worth on sources it never
saw, and all runs count in the policy that comes out.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

import numpy as np
import xxhash

from cellium_fast.errors import InputError
from cellium_fast.rounds import CALL_COLUMNS, ROUND_COLUMNS
from cellium_fast.traces.packed import PackedRuns, RunName, call_offsets

__all__ = ["Source", "held_out", "labelled", "rotation", "sources"]

By = Literal["source", "folder", "file"]
BY: tuple[By, ...] = ("source", "folder", "file")


def labelled(names: Iterable[RunName], by: By) -> dict[RunName, str]:
    """The source that each run is of: its format, or its directory or file below all the runs'."""
    names = list(names)
    if by == "source":
        return {name: name.source for name in names}
    paths = {name: os.path.abspath(name.path) for name in names}
    if by == "folder":
        paths = {name: os.path.dirname(path) for name, path in paths.items()}
    root = os.path.commonpath(paths.values()) if paths else ""
    return {
        name: os.path.relpath(path, root).replace(os.sep, "/") if path != root
        else os.path.basename(root)
        for name, path in paths.items()
    }


@dataclass(slots=True, frozen=True)
class Source:
    """What a source has: runs by outcome, rounds, and a hash of all of it.

    Parameters
    ----------
    content
        XXH3 of the names, outcomes and packed rounds of its runs, 64 bits in hexadecimal digits.
        Where the files lie does not matter.
    """

    runs: int
    failed: int
    succeeded: int
    rounds: int
    content: str


def sources(chunks: Iterable[PackedRuns], of: Mapping[RunName, str]) -> dict[str, Source]:
    """What each source has, by name in their order; runs that `of` does not have are left out."""
    hashes: dict[str, Any] = {}
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for chunk in chunks:
        for place, run in enumerate(chunk.runs):
            if run.name not in of:
                continue
            source = of[run.name]
            state = hashes.setdefault(source, xxhash.xxh3_64())
            rounds = chunk.part(place, place + 1).rounds
            facts = (run.name.run, run.success, run.context_limit, run.length)
            state.update(repr(facts).encode())
            state.update(np.diff(call_offsets(rounds)).astype("<i8").tobytes())
            for column in (*CALL_COLUMNS, *ROUND_COLUMNS):
                state.update(np.ascontiguousarray(getattr(rounds, column)).tobytes())
            counts[source].update(
                runs=1, failed=int(run.success is False), succeeded=int(run.success is True),
                rounds=run.length,
            )
    return {
        name: Source(**counts[name], content=hashes[name].hexdigest()) for name in sorted(counts)
    }


def held_out(known: Collection[str], patterns: Sequence[str]) -> frozenset[str]:
    """The sources that one of the patterns names; ``*`` stands for anything.

    Raises
    ------
    InputError
        A pattern names none.
    """
    found: set[str] = set()
    for pattern in patterns:
        named = {name for name in known if name == pattern or fnmatchcase(name, pattern)}
        if not named:
            raise InputError(
                f"holdout: wanted sources of the runs or patterns of them, got {pattern!r}; there "
                f"is {', '.join(map(repr, sorted(known)))}"
            )
        found |= named
    return frozenset(found)


def rotation(known: Mapping[str, Source], folds: int) -> list[frozenset[str]]:
    """The sources that are held out together, so that failing runs are spread over the folds.

    The largest source goes first, each to the fold that has the fewest failing runs. There are as
    many folds as wanted, or as sources.
    """
    count = min(folds, len(known))
    members: list[set[str]] = [set() for _ in range(count)]
    failed = [0] * count
    for name in sorted(known, key=lambda name: (-known[name].failed, name)):
        # Of those with as few failing runs, the one with fewest members: none stays empty.
        fold = min(range(count), key=lambda place: (failed[place], len(members[place]), place))
        members[fold].add(name)
        failed[fold] += known[name].failed
    return [frozenset(fold) for fold in members]
