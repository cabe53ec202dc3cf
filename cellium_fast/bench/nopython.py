"""Measures of stepping from inside code that Numba compiled, against the batch call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

from cellium_fast import nopython
from cellium_fast.bench.measures import Result, Sizes
from cellium_fast.bench.populations import WANTED, Herd, Population
from cellium_fast.bench.timing import Contender, interleaved
from cellium_fast.rounds import CALL_COLUMNS, ROUND_COLUMNS, RoundBatch

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """The function under Numba, which keeps its types to itself."""
    return cast(Function, njit(function))


@compiled
def _step(block: int, size: int) -> int:
    return int(nopython.step(block, 0, size))


@compiled
def _step_singly(block: int, size: int) -> int:
    wrong = 0
    for row in range(size):
        wrong |= nopython.step_session(block, row)
    return wrong


def batch_step(sizes: Sizes) -> Result:
    """A block stepped by compiled code, against `Fleet.step` of the same sessions and rounds."""
    plain, herd = (Herd(Population("usual", sizes.fleet)) for _ in range(2))
    size, given = sizes.fleet, _columns_of(herd.rounds)
    with herd.fleet.block(herd.ids, given=given, want=WANTED) as block:

        def prepare() -> None:
            herd.prepare()
            for name in given:
                column = getattr(herd.rounds, name)
                getattr(block.rounds, name)[: len(column)] = column

        def in_compiled_code() -> None:
            block.check(_step(block.address, size))

        def singly() -> None:
            block.check(_step_singly(block.address, size))

        taken = interleaved(
            {
                "block": Contender(in_compiled_code, prepare, size),
                "batch": Contender(plain.step, plain.prepare, size),
            },
            sizes.repeats, clock=sizes.clock,
        )
        _require_the_same(plain, block.decisions.action)
        alone = interleaved(
            {"alone": Contender(singly, prepare, size)}, max(sizes.repeats // 3, 1),
            clock=sizes.clock,
        )["alone"]
    return Result(
        taken["block"], taken["batch"],
        note=f"{size:,} sessions, the columns of their rounds already filled; one by one "
             f"{alone.median * 1e9:,.0f} ns ({alone.low * 1e9:,.0f} to {alone.high * 1e9:,.0f})",
    )


def _columns_of(rounds: RoundBatch) -> list[str]:
    names = ("call_offsets", *CALL_COLUMNS, *ROUND_COLUMNS)
    return [name for name in names if getattr(rounds, name) is not None]


def _require_the_same(plain: Herd, action: NDArray[np.uint8]) -> None:
    assert plain.decisions is not None
    if not np.array_equal(plain.decisions.action, action):
        raise AssertionError("the two were not given the same, or do not do the same")
