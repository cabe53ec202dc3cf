"""`Block`: sessions of a fleet that code compiled by Numba steps, with columns in and out.

`docs/programming.md` shows how; the functions for such code are in `cellium_fast.nopython`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cellium_fast import _block, _records, arguments, checks, pipeline, user_calls
from cellium_fast.decision import COLUMNS
from cellium_fast.errors import BlockError, InputError, SessionError
from cellium_fast.rounds import CALL_COLUMNS, ROUND_COLUMNS, WANTED

if TYPE_CHECKING:
    from cellium_fast.fleet import Fleet


class RoundColumns(NamedTuple):
    """What a block's sessions are to take in: the columns of a `RoundBatch`, to be written to.

    N is the number of sessions, M what there is room for in calls. A column that the block was not
    asked for is None. At first no round tells anything.
    """

    call_offsets: NDArray[np.int64]
    """(N + 1,): the calls of row i are [call_offsets[i], call_offsets[i + 1]), of M; all 0."""
    call_tool: NDArray[np.uint64]
    """(M,)"""
    call_signature: NDArray[np.uint64]
    """(M,)"""
    call_shape: NDArray[np.uint64]
    """(M,)"""
    call_result: NDArray[np.uint64]
    """(M,)"""
    call_flags: NDArray[np.uint8]
    """(M,), 0"""
    call_size: NDArray[np.uint32]
    """(M,)"""
    text: NDArray[np.uint64]
    """(N,), 0"""
    text_sketch: NDArray[np.uint64]
    """(N,), 0"""
    context_tokens: NDArray[np.int64]
    """(N,), -1"""
    context_limit: NDArray[np.int64]
    """(N,), -1"""
    progress: NDArray[np.float32]
    """(N,), NaN"""
    reward: NDArray[np.float32]
    """(N,), NaN"""
    success: NDArray[np.int8]
    """(N,), -1"""
    event: NDArray[np.uint8]
    """(N,), 0"""


class DecisionColumns(NamedTuple):
    """What a block's sessions decided: the columns of `Decisions`, zeros before the first step.

    A column that the block was not asked for is None.
    """

    action: NDArray[np.uint8]
    """(N,)"""
    candidates: NDArray[np.uint8]
    """(N,)"""
    rules: NDArray[np.uint32]
    """(N,)"""
    tiebreak: NDArray[np.bool_]
    """(N,)"""
    reward: NDArray[np.float32]
    """(N,)"""
    features: NDArray[Any]
    """(N,), structured"""
    draws: NDArray[np.float64]
    """(N, 5)"""
    bias: NDArray[np.float64]
    """(N, 5)"""
    advice_age: NDArray[np.uint8]
    """(N,)"""
    user_rules: NDArray[np.uint32]
    """(N,)"""
    propensity: NDArray[np.float64]
    """(N,)"""


# Presets that say "not told", where 0 does not.
UNTOLD = {
    "context_tokens": -1, "context_limit": -1, "progress": np.nan, "reward": np.nan, "success": -1,
}
# Columns that say something in any case, so that they are there only on request.
ON_REQUEST = frozenset({"call_shape", "call_result", "call_size", "text_sketch"})
MOST_CALLS = 1_000_000


class Block(_block.BlockBase):
    """Sessions of a fleet in rows, to be stepped many times; `Fleet.block` makes one.

    Inside its ``with`` the block has the fleet's turn: calls of the fleet from other threads wait,
    those of this thread raise ReentryError. Inside code compiled by Numba,
    ``cellium_fast.nopython.step(block.address, start, stop)`` steps rows; outside, `step` does.

    Everything that `rounds` says is checked at each step, in compiled code: of what makes no sense
    nothing is stepped. One thread at a time steps a block.

    Examples
    --------
    >>> from cellium_fast import Fleet
    >>> fleet = Fleet(seed=7)
    >>> with fleet.block(fleet.open(3, context_limit=100), want=["rules"]) as block:
    ...     block.rounds.context_tokens[:] = 10, 50, 99
    ...     block.step()
    ...     block.decisions.action
    array([0, 0, 3], dtype=uint8)
    """

    def __init__(
        self, fleet: Fleet, ids: NDArray[np.int64], calls: int, given: frozenset[str],
        wanted: frozenset[str],
    ) -> None:
        self._fleet = fleet
        self._ids = ids
        self._calls = calls
        self._given = given
        self._wanted = wanted
        self._slots = self._uids = np.empty(0, np.int64)
        self._rounds: dict[str, NDArray[Any]] = {}
        self._decisions: dict[str, NDArray[Any]] = {}
        self.set_turn(fleet._lock)

    def prepare(self) -> None:
        """Find the sessions and make the columns, in the fleet's turn."""
        memory = self._fleet._memory
        ids = self._ids.copy()      # rows are moved
        slots = memory.slots_of(ids)
        watched = memory.places_watched(slots)
        if watched:
            raise SessionError(
                f"ids[{watched[0]}]: session {ids[watched[0]]} has a `Session` object, which "
                "would not see the decisions of a block; open the sessions of a block by `open`"
            )
        uids = memory.sessions["uid"][slots]
        rounds = _round_columns(len(slots), self._calls, self._given)
        decisions = {
            name: np.zeros((len(slots), *shape), dtype)
            for name, (dtype, shape) in COLUMNS.items() if name in self._wanted
        }
        offsets = rounds.get("call_offsets")
        checked = None if offsets is None else offsets.copy()
        read = rounds if checked is None else {**rounds, "call_offsets": checked}
        batch = memory.batch(slots, read)
        batch.set_output(**decisions)
        scratch = pipeline.scratch(batch, min(pipeline.CHUNK, len(slots)))
        fallible = self._fleet._is_fallible(self._fleet._setting_rows(slots))
        self.set_up(
            memory=memory,
            batch=batch.with_scratch(**scratch, increments=self._fleet._increments),
            stages=pipeline.STAGES, size=len(slots), chunk=pipeline.CHUNK,
            kept=np.empty(len(slots), _records.SESSION) if fallible else None,
            offsets=offsets, checked_offsets=checked, call_capacity=len(slots) * self._calls,
            moved=(
                slots, ids, uids, *(rounds[name] for name in ROUND_COLUMNS if name in rounds),
                *decisions.values(),
            ),
        )
        self._slots, self._ids, self._uids = slots, ids, uids
        self._rounds, self._decisions = rounds, decisions

    @property
    def ids(self) -> NDArray[np.int64]:
        """(N,) int64, the session of each row."""
        return self._ids[: len(self)].copy()

    @property
    def uids(self) -> NDArray[np.uint64]:
        """(N,) uint64, the number of each row's session in opening order: for random numbers."""
        return self._uids[: len(self)].astype(np.uint64)

    @property
    def rounds(self) -> RoundColumns:
        """The columns in. They stay as they are written, from step to step."""
        size = len(self)
        lengths = dict.fromkeys(ROUND_COLUMNS, size) | {"call_offsets": size + 1}
        return RoundColumns(*(
            cast("NDArray[Any]", _beginning(self._rounds.get(name), lengths.get(name)))
            for name in RoundColumns._fields
        ))

    @property
    def decisions(self) -> DecisionColumns:
        """The columns out, of each row's newest step in this block."""
        size = len(self)
        return DecisionColumns(*(
            cast("NDArray[Any]", _beginning(self._decisions.get(name), size))
            for name in DecisionColumns._fields
        ))

    def step(self, start: int = 0, stop: int | None = None) -> None:
        """One round of each session in the rows [start, stop), all by default.

        As `Fleet.step` of these sessions: the same decisions, the same learning.

        Raises
        ------
        InputError
            There are no such rows, or a column makes no sense; nothing was stepped.
        UserCodeError
            A rule, reward or bias of a user failed; nothing was stepped, but the decisions of
            these rows are overwritten.
        BlockError
            The block is not open, or another thread is stepping it.
        """
        start = checks.whole_number("start", start, 0, len(self))
        stop = len(self) if stop is None else checks.whole_number("stop", stop, start, len(self))
        self.check(self.run(start, stop))

    def check(self, code: int) -> None:
        """Raise what a code says that `cellium_fast.nopython.step` returned; nothing for 0.

        Raises
        ------
        InputError, UserCodeError, BlockError
            As `step`.
        """
        code = checks.whole_number("code", code, -(2**31), 2**31 - 1)
        if code == 0:
            return
        if code == _block.NOT_OPEN:
            raise BlockError("the block is not open: it is stepped inside its `with`")
        if code == _block.BUSY:
            raise BlockError("another thread is stepping this block; one at a time can")
        if code == _block.WRONG_ROWS:
            raise InputError(f"start, stop: wanted rows in order from 0 to {len(self)}")
        failure = self.failure
        if code > 0 and failure is not None:
            raise user_calls.error_of(self._fleet._settings[failure.policy].policy, failure)
        column = _block.WRONG_COLUMNS.get(code)
        if column is None:
            raise InputError(f"code: wanted one that a step returned, got {code}")
        wanted = WANTED[column]
        if column == "call_offsets":
            wanted = f"{wanted}, and from 0 to {len(self._rounds['call_tool'])}"
        found = self._rounds[column][self.wrong_at]
        raise InputError(f"{column}[{self.wrong_at}]: wanted {wanted}, got {found}")

    def close(self, rows: ArrayLike, success: ArrayLike | None = None) -> NDArray[np.int64]:
        """Close the sessions in some rows; the others move up, in their order.

        With a session move its row of the decisions and of the columns of rounds; `call_offsets`
        and the columns of calls stay where they are. `rounds` and `decisions` are to be taken anew.

        Parameters
        ----------
        rows
            (K,) of the block, none twice.
        success
            As in `Fleet.close`.

        Returns
        -------
        (N - K,) int64: the former row of each row, for columns of your own.

        Raises
        ------
        InputError
            There is no such row, it stands twice, or `success` is wrong; nothing was closed.
        BlockError
            The block is not open, or another thread is stepping it.

        Examples
        --------
        >>> from cellium_fast import Fleet
        >>> fleet = Fleet()
        >>> with fleet.block(fleet.open(4)) as block:
        ...     block.close([1], success=True), block.ids
        (array([0, 2, 3]), array([0, 2, 3]))
        """
        if not self.is_open:
            self.check(_block.NOT_OPEN)
        rows = checks.array("rows", rows, np.int64, (None,))
        good = (rows >= 0) & (rows < len(self))
        checks.every("rows", good, rows, f"a row from 0 to {len(self) - 1}")
        outcomes = arguments.outcomes(success, len(rows))
        stays = np.ones(len(self), np.bool_)
        stays[rows] = False
        kept = np.flatnonzero(stays)
        if len(kept) + len(rows) != len(self):
            raise InputError("rows: wanted each row once, got one twice")
        slots = self._slots[rows]
        self.close_rows(
            self._fleet._closing(slots), slots, outcomes, self._fleet._handles, kept
        )
        return kept

    def __repr__(self) -> str:
        state = "open" if self.is_open else "not open"
        return f"<Block of {len(self)} sessions, {state}>"


def columns_given(given: Collection[str] | None) -> frozenset[str]:
    """The columns in that a block has; where there is one of calls, all that calls need."""
    there = {*CALL_COLUMNS, *ROUND_COLUMNS}
    if given is None:
        return frozenset(there | {"call_offsets"}) - ON_REQUEST
    names = frozenset(arguments.given_names("given", given))
    unknown = sorted(names - there - {"call_offsets"})
    if unknown:
        raise InputError(
            f"given: there is no column {unknown[0]!r}; there is {', '.join(RoundColumns._fields)}"
        )
    if any(name.startswith("call_") for name in names):
        names |= {"call_offsets", "call_tool", "call_signature"}
    return names


def _round_columns(
    size: int, calls: int, given: Collection[str]
) -> dict[str, NDArray[Any]]:
    columns: dict[str, NDArray[Any]] = {
        "call_offsets": np.zeros(size + 1, np.int64),
        **{name: np.zeros(size * calls, dtype) for name, dtype in CALL_COLUMNS.items()},
        **{
            name: np.full(size, UNTOLD.get(name, 0), dtype)
            for name, dtype in ROUND_COLUMNS.items()
        },
    }
    return {name: column for name, column in columns.items() if name in given}


def _beginning(column: NDArray[Any] | None, length: int | None) -> NDArray[Any] | None:
    return None if column is None else column[:length]
