"""What agents did between two decisions: `Round` and `ToolCall` objects, `RoundBatch` columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cellium_fast import _columns, _records
from cellium_fast.checks import all_good, array
from cellium_fast.errors import InputError, shown


@dataclass(slots=True)
class ToolCall:
    """One tool call of a round.

    Parameters
    ----------
    tool
        Name of the tool.
    arguments
        Any JSON-like value, or the same value as JSON text. Key order and JSON white space do
        not matter. Values that JSON cannot express are hashed by a stable text form.
    result
        What the tool returned: text as it is, anything else as canonical JSON.
    error
        ``True`` or a non-empty text marks an error, ``False`` is your word that there is none.
        ``None`` leaves it to the result: a mapping with a truthy ``error``,
        ``status == "error"``, ``is_error`` true or ``success`` false.
    id
        Your own id of the call; kept for you, not used.
    signature
        Your own notion of "the same call", instead of tool and arguments: an integer in
        [0, 2**64) is taken as the hash itself, anything else is hashed.
    """

    tool: str
    arguments: Any = None
    result: Any = None
    error: bool | str | None = None
    id: str | None = None
    signature: Any = None


@dataclass(slots=True)
class Round:
    """One round: zero or more tool calls, at most one model text, the context size after it.

    Parameters
    ----------
    calls
        The tool calls, in order.
    text
        The model's output text of this round. ``None`` or blank: there was none.
    context_tokens
        Tokens in the context now (not summed over rounds; cached tokens are part of them, not
        extra: see `cellium_fast.context_tokens`). ``None``, NaN or a negative number: not told, the
        last one told stands.
    context_limit
        Size of the context window from this round on; 0 or infinity: unknown. ``None``, NaN or a
        negative number: not told, as before.
    progress
        Your own estimate of the progress, in [0, 1], instead of the computed one.
    reward
        Your own reward of this round, in [0, 1] (a verifier's score), instead of the computed one.
    success
        Your word whether the round succeeded, instead of "its last call is no error".
    """

    calls: Sequence[ToolCall] = ()
    text: str | None = None
    context_tokens: float | None = None
    context_limit: float | None = None
    progress: float | None = None
    reward: float | None = None
    success: bool | None = None


CALL_COLUMNS = {
    "call_tool": np.uint64,
    "call_signature": np.uint64,
    "call_shape": np.uint64,
    "call_result": np.uint64,
    "call_flags": np.uint8,
    "call_size": np.uint32,
}
ROUND_COLUMNS = {
    "text": np.uint64,
    "text_sketch": np.uint64,
    "context_tokens": np.int64,
    "context_limit": np.int64,
    "progress": np.float32,
    "reward": np.float32,
    "success": np.int8,
    "event": np.uint8,
}
# What the values of a column shall be.
WANTED = {
    "call_offsets": "no fall",
    "call_flags": (
        "a sum of 1 (error), 2 (empty), 4 (transient, only with 1) and 8 (acknowledged, not with 1)"
    ),
    "progress": "a number in [0, 1], or NaN for not given",
    "reward": "a number in [0, 1], or NaN for not given",
    "success": "1, 0, or -1 for not given",
    "event": "0, 1 or 2",
}


@dataclass(slots=True, eq=False)
class RoundBatch:
    """Rounds of N sessions as columns, with M tool calls in all; a column left out is not given.

    Parameters
    ----------
    call_offsets
        (N + 1,) int64: the calls of round i are [call_offsets[i], call_offsets[i + 1]).
        Left out: no round has a call.
    call_tool, call_signature
        (M,) uint64: hash of the tool name; hash of the name and the arguments. Needed if M > 0.
    call_shape
        (M,) uint64: as `call_signature`, but blind to fields that only label the call itself, such
        as ``request_id``. Left out: the signatures stand in.
    call_result
        (M,) uint64: hash of the result text (of an error: of its masked text).
    call_flags
        (M,) uint8, a sum: 1 error; 2 empty (no text); 4 transient, an error that waiting may cure
        (only with 1); 8 acknowledged, a result that says nothing but that something was done (not
        with 1).
    call_size
        (M,) uint32: characters of the result text. Left out: 0, but no result is slight.
    text
        (N,) uint64: hash of the model's output text, 0 = none.
    text_sketch
        (N,) uint64: 16 numbers of four bits, most of which are equal for texts that are nearly
        equal; 0 = no text, or one too short to tell. Left out: the hashes in `text` stand in.
    context_tokens, context_limit
        (N,) int64, tokens; negative = not told.
    progress, reward
        (N,) float32 in [0, 1]; NaN = not given.
    success
        (N,) int8: 1, 0, or -1 = not given.
    event
        (N,) uint8: 1 = a user message came before this round, 2 = a compaction.

    Raises
    ------
    InputError
        When the batch is stepped: a wrong dtype, shape or value; the message names the column.

    Examples
    --------
    >>> batch = RoundBatch(
    ...     call_offsets=np.array([0, 1, 1]),
    ...     call_tool=np.array([7], np.uint64),
    ...     call_signature=np.array([42], np.uint64),
    ...     text=np.array([1, 2], np.uint64),
    ... )
    >>> batch.size
    2
    """

    call_offsets: NDArray[np.int64] | None = None
    call_tool: NDArray[np.uint64] | None = None
    call_signature: NDArray[np.uint64] | None = None
    call_shape: NDArray[np.uint64] | None = None
    call_result: NDArray[np.uint64] | None = None
    call_flags: NDArray[np.uint8] | None = None
    call_size: NDArray[np.uint32] | None = None
    text: NDArray[np.uint64] | None = None
    text_sketch: NDArray[np.uint64] | None = None
    context_tokens: NDArray[np.int64] | None = None
    context_limit: NDArray[np.int64] | None = None
    progress: NDArray[np.float32] | None = None
    reward: NDArray[np.float32] | None = None
    success: NDArray[np.int8] | None = None
    event: NDArray[np.uint8] | None = None
    tools: dict[int, str] = field(default_factory=dict, repr=False)
    errors: dict[int, str] = field(default_factory=dict, repr=False)

    @classmethod
    def from_rounds(
        cls, rounds: Sequence[Round], events: Sequence[int] | None = None
    ) -> RoundBatch:
        """Pack `Round` objects, and optionally the event before each; texts are hashed.

        Raises
        ------
        InputError
            A round or call holds a value of a wrong kind; the message names it.

        Examples
        --------
        >>> batch = RoundBatch.from_rounds([Round([ToolCall("ls", "-l", "a.txt")]), Round()])
        >>> batch.call_offsets
        array([0, 1, 1])
        """
        from cellium_fast import _ingest

        if not isinstance(rounds, Sequence):
            raise InputError(f"rounds: wanted a sequence of Round, got {type(rounds).__name__}")
        packer = _ingest.Packer()
        columns = packer.pack_columns(rounds)
        event = None if events is None else array("events", events, np.uint8, (len(rounds),))
        return cls(**columns, event=event, tools=packer.new_tools, errors=packer.new_errors)

    @property
    def size(self) -> int:
        """N, the number of rounds; 0 if no column tells."""
        if self.call_offsets is not None:
            return max(int(np.size(self.call_offsets)) - 1, 0)
        given = (getattr(self, name) for name in ROUND_COLUMNS)
        return next((int(np.size(column)) for column in given if column is not None), 0)

    def checked(self, size: int) -> dict[str, NDArray[Any]]:
        """The columns given, ready for kernels, for a step of `size` sessions."""
        for name, table in (("tools", self.tools), ("errors", self.errors)):
            _check_names(name, table)
        columns = self._checked_calls(size)
        for name, dtype in ROUND_COLUMNS.items():
            column = getattr(self, name)
            if column is not None:
                columns[name] = array(name, column, dtype, (size,))
        for name in ("progress", "reward"):
            if name in columns:
                where = _columns.first_no_fraction(columns[name])
                all_good(name, where, columns[name], WANTED[name])
        if "success" in columns:
            where = _columns.first_outside(columns["success"], -1, 1)
            all_good("success", where, columns["success"], WANTED["success"])
        if "event" in columns:
            where = _columns.first_above(columns["event"], _records.EVENT_COMPACTION)
            all_good("event", where, columns["event"], WANTED["event"])
        return columns

    def _checked_calls(self, size: int) -> dict[str, NDArray[Any]]:
        columns: dict[str, NDArray[Any]] = {}
        total = 0
        if self.call_offsets is not None:
            # A copy: it is read as positions, and must be what was checked.
            offsets = array("call_offsets", self.call_offsets, np.int64, (size + 1,)).copy()
            if offsets[0] != 0:
                raise InputError(f"call_offsets[0]: wanted 0, got {offsets[0]}")
            where = _columns.first_fall(offsets)
            all_good("call_offsets", where, offsets, WANTED["call_offsets"])
            total = int(offsets[-1])
            columns["call_offsets"] = offsets
        for name, dtype in CALL_COLUMNS.items():
            column = getattr(self, name)
            if column is None:
                continue
            column = array(name, column, dtype, (None,))
            if len(column) != total:
                raise InputError(
                    f"{name}: wanted {total} calls, as call_offsets says, got {len(column)}"
                )
            columns[name] = column
        for name in ("call_tool", "call_signature"):
            if total and name not in columns:
                raise InputError(f"{name}: wanted for the {total} calls, got None")
        if "call_flags" in columns:
            flags = columns["call_flags"]
            where = _columns.first_bad_flags(flags)
            all_good("call_flags", where, flags, WANTED["call_flags"])
        return columns

    def __repr__(self) -> str:
        given = [f.name for f in fields(self) if f.repr and getattr(self, f.name) is not None]
        return f"<RoundBatch of {self.size}: {', '.join(given)}>"


def _check_names(name: str, table: object) -> None:
    if not isinstance(table, Mapping):
        raise InputError(f"{name}: wanted texts by hash, got {shown(table)}")
    for digest, text in table.items():
        if not isinstance(digest, int) or not 0 <= digest < 1 << 64 or not isinstance(text, str):
            raise InputError(
                f"{name}: wanted texts by hash, got {shown(digest)}: {shown(text)}"
            )
