"""What stands in a journal for each call that changes a fleet, and the way back.

An entry's body is a length, JSON of that length, and arrays: ``[facts, {name: [dtype, length]}]``,
then the arrays in that order, each padded to eight bytes. The entry of a single round is packed by
`_journal.Journal.append_round`.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cellium_fast import _journal, _journal_names, _journal_reader, _records
from cellium_fast.arguments import AUTO, CHOOSE
from cellium_fast.errors import CelliumError, JournalError, UserCodeError
from cellium_fast.policy import Policy
from cellium_fast.rounds import RoundBatch
from cellium_fast.user_calls import not_found

if TYPE_CHECKING:
    from cellium_fast.changes import Rows
    from cellium_fast.fleet import Fleet
    from cellium_fast.pool_history import PoolHistory
    from cellium_fast.session import Session

Arrays = dict[str, NDArray[Any]]
Entry = tuple[int, list[Any]]

LENGTH_BYTES = 8            # the body begins with the length of its JSON
ALIGNMENT = 8
ROUNDS_AT_ONCE = 10_000     # replayed between two looks at the progress

DTYPES = frozenset(np.dtype(code).str for code in "bBhHiIlLqQfd")     # that an array can have
SESSIONS_A_LIMIT = 2**12    # that one number stands for, where all have the same

# What a call raises that nobody can have made.
IMPOSSIBLE = (
    CelliumError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError,
    RecursionError,
)


class FunctionNotFound(Exception):
    """A policy in an entry has a function of a user's that cannot be imported."""


class Kind(IntEnum):
    """Kinds of entries; the numbers stay as they are."""

    ROUND = _journal.KIND_ROUND
    OPEN = 2
    CLOSE = 3
    STEP = 4
    USER_MESSAGE = 5
    COMPACTED = 6
    SET_POLICY = 7
    USE_POLICY = 8
    ATTACH = 9
    SET_POOL = 10
    OPEN_CHOSEN = 11


# --- packing -------------------------------------------------------------------------------------
class FleetJournal(_journal.Journal):
    """A journal, and the entries of a fleet's calls, whose arguments were checked."""

    def entry_of_open(
        self, context_limit: NDArray[np.int64], round_limit: NDArray[np.uint32], rows: Rows,
        policies: NDArray[np.uint16], handles: list[Session],
    ) -> Entry:
        """Sessions were opened; `handles` is the `Session` of the only one, or empty.

        Policies that were chosen for them stand in the entry: nobody has to choose again.
        """
        facts: dict[str, Any] = {
            "count": len(context_limit), "pool": rows.pool, "private": rows.private,
        }
        arrays: Arrays = {
            "context_limit": _once(context_limit), "round_limit": _once(round_limit),
        }
        kind = Kind.OPEN
        if rows.policy == CHOOSE:
            kind, arrays["policies"] = Kind.OPEN_CHOSEN, policies
        else:
            facts["policy"] = rows.policy
        if handles:
            facts["name"], facts["tools"] = handles[0].name, handles[0].decision.setting.tools
        return packed(kind, facts, arrays)

    def entry_of_close(self, ids: NDArray[np.int64], outcomes: NDArray[np.int8]) -> Entry:
        """Sessions were closed."""
        return packed(Kind.CLOSE, {}, {"ids": ids, "outcomes": outcomes})

    def entry_of_step(
        self, ids: NDArray[np.int64], columns: Mapping[str, NDArray[Any]],
        tools: dict[int, str], errors: dict[int, str],
    ) -> Entry:
        """Sessions were stepped, and names learned, which come by their mixed hashes."""
        arrays = {"ids": ids, **columns}
        if tools or errors:
            arrays["names"] = np.frombuffer(_journal_names.pack_names(tools, errors), np.uint8)
        return packed(Kind.STEP, {}, arrays)

    def entry_of_user_message(self, ids: NDArray[np.int64]) -> Entry:
        """User messages arrived."""
        return packed(Kind.USER_MESSAGE, {}, {"ids": ids})

    def entry_of_compacted(self, ids: NDArray[np.int64]) -> Entry:
        """Contexts were compacted."""
        return packed(Kind.COMPACTED, {}, {"ids": ids})

    def entry_of_set_policy(self, name: str, policy: Policy) -> Entry:
        """A policy was replaced."""
        facts = {"name": name, "policy": policy.as_json()}
        return packed(Kind.SET_POLICY, facts, {})

    def entry_of_use_policy(self, ids: NDArray[np.int64], row: int) -> Entry:
        """Sessions went on under another policy."""
        return packed(Kind.USE_POLICY, {"policy": row}, {"ids": ids})

    def entry_of_attach(self, session_id: int) -> Entry:
        """A session that was opened without one got a `Session`."""
        return packed(Kind.ATTACH, {"id": session_id}, {})

    def entry_of_set_pool(self, row: int, record: NDArray[Any], history: PoolHistory) -> Entry:
        """What a pool has learned was replaced by what its history starts with."""
        return packed(Kind.SET_POOL, {"pool": row, "history": history.as_json()}, {})


def packed(kind: int, facts: Mapping[str, Any], arrays: Arrays) -> Entry:
    """An entry, as `_journal.Journal.append` takes it."""
    described = {name: [array.dtype.str, len(array)] for name, array in arrays.items()}
    text = json.dumps([facts, described], separators=(",", ":")).encode("ascii")
    return int(kind), [len(text).to_bytes(LENGTH_BYTES, sys.byteorder) + text, *arrays.values()]


def unpacked(body: memoryview) -> tuple[dict[str, Any], Arrays]:
    """Facts and arrays of an entry's body, the arrays where they lie; ValueError if it is none."""
    length = int.from_bytes(body[:LENGTH_BYTES], sys.byteorder)
    facts, described = json.loads(bytes(body[LENGTH_BYTES : LENGTH_BYTES + length]))
    place = _aligned(LENGTH_BYTES + length)
    arrays = {}
    for name, (dtype, count) in described.items():
        if dtype not in DTYPES or type(count) is not int or not 0 <= count <= len(body):
            raise ValueError(f"{name}: {count} of {dtype}")
        arrays[name] = np.frombuffer(body, dtype, count, place) if count else np.empty(0, dtype)
        place = _aligned(place + arrays[name].nbytes)
    if place != len(body):
        raise ValueError(f"it has {len(body):,} bytes, and speaks of {place:,}")
    return facts, arrays


def _once(values: NDArray[Any]) -> NDArray[Any]:
    """Values that are all the same as fewer.

    Not as one: what an entry makes a fleet do, and how much memory that takes, is to be in
    proportion to its bytes, even if someone made it up.
    """
    if len(values) and (values == values[0]).all():
        return values[: math.ceil(len(values) / SESSIONS_A_LIMIT)]
    return values


def _each(values: NDArray[Any], count: int) -> NDArray[Any]:
    """What `_once` had, so many of them; ValueError if they cannot be so many."""
    if len(values) == count:
        return values
    if len(values) != math.ceil(count / SESSIONS_A_LIMIT) or (values != values[0]).any():
        raise ValueError(f"{count:,} sessions with {len(values):,} limits")
    return np.broadcast_to(values[0], (count,))


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


# --- replaying -----------------------------------------------------------------------------------
def replay(
    fleet: Fleet, entries: _journal_reader.Entries, on_progress: Callable[[int], None] | None = None
) -> str | None:
    """Take all good entries of a journal into a fleet that has none yet.

    `on_progress` gets the place in the file, now and then.

    Returns
    -------
    None, or what is wrong with the newest entry, in words: it is as it was written, and says what
    no fleet can have been told. The fleet took those before it.

    Raises
    ------
    JournalError
        An entry is of a kind that this package does not know, or a function of a policy is not
        there, or not what it was.
    """
    replayed = _replayer(fleet)
    try:
        while True:
            while entries.replay_rounds(replayed, ROUNDS_AT_ONCE) == ROUNDS_AT_ONCE:
                if on_progress is not None:
                    on_progress(entries.end)
            entry = next(entries, None)
            if entry is None:
                return None
            kind, body = entry
            if kind not in CALLS:
                raise _of_a_newer_version(entries, kind)
            CALLS[kind](fleet, *unpacked(body))
            if on_progress is not None:
                on_progress(entries.end)
    except JournalError:
        raise
    except (UserCodeError, FunctionNotFound) as error:
        raise JournalError(
            entries.path, f"entry {entries.number} cannot be taken again: {error}. A function of "
            "a policy is not there, or not what it was. Nothing was changed", entries.start,
        ) from error
    except IMPOSSIBLE as error:
        # Its checksum is right: someone wrote it so.
        return f"entry {entries.number} says what no fleet can have been told: {error}"


def _of_a_newer_version(entries: _journal_reader.Entries, kind: int) -> JournalError:
    return JournalError(
        entries.path,
        f"entry {entries.number} is of kind {kind}, which this package does not know: use the "
        "package that wrote it, or a later one. Nothing was changed", entries.start,
    )


def _replayer(fleet: Fleet) -> Callable[[int, _journal_reader.Entries], None]:
    handles, names = fleet._handles, fleet._names

    def take(session_id: int, round: _journal_reader.Entries) -> None:
        handle, used = handles[session_id], round.used
        if used and not used <= handle._unused:
            raise ValueError("tools are used for the first time that are not unused")
        tables = _names(round.new_tools, round.new_errors) if round.taught else None
        handle._replay(round, used)
        if tables is not None:
            names.add(*tables)

    return take


def _names(*tables: dict[int, str]) -> Iterable[dict[int, str]]:
    if any(mixed >= 2**32 for table in tables for mixed in table):
        raise ValueError("names: a hash has more than 32 bits")
    return tables


def _open_chosen(fleet: Fleet, facts: dict[str, Any], arrays: Arrays) -> None:
    chosen = arrays["policies"]
    if chosen.dtype != np.uint16 or len(chosen) != facts["count"]:
        raise ValueError(f"{facts['count']} sessions with {len(chosen):,} policies")
    if (chosen >= len(fleet.policies)).any():
        raise ValueError(f"there is no row {chosen.max()}")
    _open(fleet, facts, arrays, chosen)


def _open(
    fleet: Fleet, facts: dict[str, Any], arrays: Arrays, chosen: NDArray[np.uint16] | None = None
) -> None:
    count = facts["count"]
    if type(count) is not int or count < 0:
        raise ValueError(f"{count} sessions")
    limits: dict[str, Any] = {}
    for name, none in (("context_limit", 0), ("round_limit", np.inf)):
        values = _each(arrays[name], count)
        limits[name] = values if values.all() else np.where(values == 0, none, values)
    settings = {
        "policy": _name_of(fleet.policies, facts["policy"]) if chosen is None else AUTO,
        "pool": _name_of(fleet.pools, facts["pool"]),
        "private": facts["private"],
    }
    if "name" not in facts:
        fleet._lock.run(fleet._open, *fleet._opening(count, **limits, **settings), chosen)
        return
    one = {name: values.item() for name, values in limits.items()}
    session = fleet._opening_session(facts["name"], facts["tools"], **one, **settings)
    fleet._lock.run(fleet._open_session, *session, chosen)


def _name_of(table: Mapping[str, object], row: Any) -> str:
    """The name in a row of a table."""
    if type(row) is not int or not 0 <= row < len(table):
        raise ValueError(f"there is no row {row}")
    return list(table)[row]


def _close(fleet: Fleet, facts: dict[str, Any], arrays: Arrays) -> None:
    fleet.close(arrays["ids"], arrays["outcomes"])


def _step(fleet: Fleet, facts: dict[str, Any], arrays: Arrays) -> None:
    names = arrays.pop("names", None)
    tables = None if names is None else _names(*_journal_names.unpack_names(names)[:2])
    ids = arrays.pop("ids")
    columns: dict[str, Any] = arrays
    fleet.step(ids, RoundBatch(**columns), want=())
    if tables is not None:
        fleet._names.add(*tables)


def _user_message(fleet: Fleet, facts: dict[str, Any], arrays: Arrays) -> None:
    fleet.user_message(arrays["ids"])


def _compacted(fleet: Fleet, facts: dict[str, Any], arrays: Arrays) -> None:
    fleet.compacted(arrays["ids"])


def _set_policy(fleet: Fleet, facts: dict[str, Any], arrays: Arrays) -> None:
    problem = not_found(facts["policy"])
    if problem is not None:
        raise FunctionNotFound(problem)
    fleet.set_policy(facts["name"], Policy(**facts["policy"]))


def _use_policy(fleet: Fleet, facts: dict[str, Any], arrays: Arrays) -> None:
    fleet.use_policy(arrays["ids"], _name_of(fleet.policies, facts["policy"]))


def _attach(fleet: Fleet, facts: dict[str, Any], arrays: Arrays) -> None:
    session_id = facts["id"]
    if type(session_id) is not int or session_id in fleet._handles:
        raise ValueError(f"session {session_id} got a Session")
    fleet.attach(session_id)


def _set_pool(fleet: Fleet, facts: dict[str, Any], arrays: Arrays) -> None:
    from cellium_fast.pool_history import PoolHistory

    history = PoolHistory.from_json(facts["history"])
    pool = _name_of(fleet.pools, facts["pool"])
    if history.start is None or history.start.settings != fleet.pools[pool]:
        raise ValueError("a pool was set to what was learned under other settings")
    record = np.zeros(1, _records.POOL)
    history.start.fill(record[0])
    fleet._lock.run(fleet._set_pool, facts["pool"], record, history)


CALLS: dict[int, Callable[[Fleet, dict[str, Any], Arrays], None]] = {
    Kind.OPEN: _open,
    Kind.CLOSE: _close,
    Kind.STEP: _step,
    Kind.USER_MESSAGE: _user_message,
    Kind.COMPACTED: _compacted,
    Kind.SET_POLICY: _set_policy,
    Kind.USE_POLICY: _use_policy,
    Kind.ATTACH: _attach,
    Kind.SET_POOL: _set_pool,
    Kind.OPEN_CHOSEN: _open_chosen,
}
