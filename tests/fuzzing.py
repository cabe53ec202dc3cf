"""Damage to files, one place at a time: cut off, bits flipped, JSON values replaced.

Every function takes `offsets` (or `places`): left out, all of them are damaged; `some_of` draws a
few for the short form of a test. A test shows `Damaged.what` when it fails:

>>> [damaged.what for damaged in every_flip(b"ab", masks=(0x80,))]
['byte 0 xor 0x80', 'byte 1 xor 0x80']
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from random import Random
from typing import Any, NamedTuple

# Flips of the lowest bit, of the bit that takes ASCII out of ASCII, of case, and of all.
MASKS = (0x01, 0x80, 0x20, 0xFF)

STRANGE = (
    None, True, 0, -1.5, 1e300, 10**400, float("nan"), "", "text", "C", "-1", [], {}, [None],
    [[5]], {"role": 5}, {"type": []},
)  # fmt: skip


class Damaged(NamedTuple):
    """A damaged file, and what was done to it."""

    what: str
    data: bytes


def some_of(rng: Random, size: int, most: int) -> list[int]:
    """At most so many of the numbers below `size`, in order; the first and the last among them."""
    if size <= most:
        return list(range(size))
    return sorted({0, size - 1, *rng.sample(range(size), most - 2)})


def every_truncation(data: bytes, offsets: Iterable[int] | None = None) -> Iterator[Damaged]:
    """The file cut off before each byte; offset 0 leaves nothing."""
    for offset in range(len(data)) if offsets is None else offsets:
        yield Damaged(f"cut off at byte {offset} of {len(data)}", data[:offset])


def every_flip(
    data: bytes, masks: Sequence[int] = MASKS, offsets: Iterable[int] | None = None
) -> Iterator[Damaged]:
    """The file with each byte changed by each mask."""
    for offset in range(len(data)) if offsets is None else offsets:
        for mask in masks:
            flipped = bytearray(data)
            flipped[offset] ^= mask
            yield Damaged(f"byte {offset} xor {mask:#04x}", bytes(flipped))


def nodes(value: Any) -> list[tuple[Any, ...]]:
    """The way to every value inside a JSON value, as the keys that lead there."""
    found: list[tuple[Any, ...]] = []
    waiting: list[tuple[tuple[Any, ...], Any]] = [((), value)]
    while waiting:
        way, here = waiting.pop()
        inside = (
            here.items() if isinstance(here, dict)
            else enumerate(here) if isinstance(here, list) else ()
        )
        for key, item in inside:
            found.append((*way, key))
            waiting.append(((*way, key), item))
    return found


def every_replacement(
    value: Any, strange: Sequence[Any] = STRANGE, places: Iterable[int] | None = None
) -> Iterator[tuple[str, Any]]:
    """The JSON value with each value in it taken out, and replaced by each strange one.

    `places` are those in `nodes(value)`. What comes is valid until the next one is asked for.
    """
    ways = nodes(value)
    changed = copy.deepcopy(value)
    for place in range(len(ways)) if places is None else places:
        *way, key = ways[place]
        holder = changed
        for step in way:
            holder = holder[step]
        kept = copy.copy(holder)
        where = "/".join(map(str, ways[place]))
        del holder[key]
        yield f"{where} taken out", changed
        for one in strange:
            _restore(holder, kept)
            holder[key] = copy.deepcopy(one)
            yield f"{where} = {one!r:.40}", changed
        _restore(holder, kept)


def _restore(holder: Any, kept: Any) -> None:
    if isinstance(holder, dict):
        holder.clear()
        holder.update(kept)
    else:
        holder[:] = kept
