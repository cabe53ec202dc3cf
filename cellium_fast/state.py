"""`FleetState`: everything a fleet is, in memory, and what such a state must be like.

Kernels trust the records they work on. `impossible` asks a state for all that they trust, so that a
state from a file can be told from one that a fleet was in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cellium_fast import _choice, _records, _step
from cellium_fast._memory import LAST_GENERATION
from cellium_fast._names import CAPACITY
from cellium_fast.arguments import AUTO, MAX_CHOICES, MAX_TABLE
from cellium_fast.errors import LearnedStateError, shown
from cellium_fast.policy import Policy, Posterior
from cellium_fast.pool_history import PoolHistory

ARMS = len(_records.ACTIONS)
ROUNDING = 1e-9         # a mean of numbers up to 1 can be above 1 by that
MAX_BIAS = 100.0        # a bias of at most 1 times a cold-start factor
SLOT_BITS = 32          # of an id; above them, how often the slot was closed before


@dataclass(frozen=True, slots=True)
class HandleState:
    """A `Session` of an open session.

    Attributes
    ----------
    id, name, tools
        As it was opened with.
    used_tools
        Those of `tools` that were called.
    decided_under
        The policy that its newest decision was taken under; None: the one the session is under.
    outcome
        That decision, packed: a record of `_step.OUTCOME`.
    """

    id: int
    name: str
    tools: tuple[str, ...]
    used_tools: frozenset[str]
    decided_under: Policy | None
    outcome: bytes


@dataclass(slots=True)
class FleetState:
    """What a fleet is: of two with equal states, the same calls get the same decisions.

    Attributes
    ----------
    seed
        Key of the random numbers.
    opened
        Sessions opened so far; the uid of the next one.
    sessions
        (S,) records of the slots used so far, `_records.SESSION`.
    free
        (F,) int64, slots of closed sessions, the last one to be used first.
    policies
        Policies by name; a session's record holds the place of its policy.
    pools
        Prior and decay of the pools by name; likewise.
    posteriors
        (P,) what the pools have learned, `_records.POOL`.
    tools, errors
        Names of tools and error texts by their mixed hash, in the order they came in.
    forgotten
        Names that had to go so far.
    handles
        The `Session` objects of open sessions.
    histories
        Where the evidence in the pools came from, by the pools' names.
    max_sessions
        How many may be open; None: any number.
    calls, evicted
        Calls so far that opened or stepped sessions, and sessions that were closed for others; 0
        without `max_sessions`.
    last_use
        (S,) uint64, the newest of the calls for each slot; None without `max_sessions`.
    choices
        (P, K) what is known of each of the K policies in each pool, `_records.CHOICE`; None: no
        policy was ever chosen for a session.
    trials
        (S,) what the session in each slot will say of the policy that was chosen for it,
        `_records.TRIAL`; likewise.
    """

    seed: int
    opened: int
    sessions: NDArray[Any]
    free: NDArray[np.int64]
    policies: dict[str, Policy]
    pools: dict[str, Posterior]
    posteriors: NDArray[Any]
    tools: dict[int, str]
    errors: dict[int, str]
    forgotten: int
    handles: list[HandleState]
    histories: dict[str, PoolHistory]
    max_sessions: int | None
    calls: int
    evicted: int
    last_use: NDArray[np.uint64] | None
    choices: NDArray[Any] | None
    trials: NDArray[Any] | None

    def outcomes(self) -> NDArray[Any]:
        """(H,) the newest decisions of the handles, `_step.OUTCOME`."""
        packed = b"".join(handle.outcome for handle in self.handles)
        outcomes = np.zeros(len(self.handles), _step.OUTCOME)
        _copy_fields(np.frombuffer(packed, _step.OUTCOME), outcomes)
        return outcomes


def _copy_fields(found: NDArray[Any], to: NDArray[Any]) -> None:
    """Copy records without what lies between their fields, which is whatever was in memory."""
    for name in to.dtype.names or ():
        if to.dtype[name].names:
            _copy_fields(found[name], to[name])
        else:
            to[name] = found[name]


# Fields of records that may not hold everything their type can: least and greatest value. Those of
# a session hold while it is open.
Bounds = dict[str, tuple[float, float]]
SESSION_BOUNDS: Bounds = {
    "context_limit": (0, 2**63 - 1),
    "context_tokens": (-1, 2**63 - 1),
    "trend": (-1 - ROUNDING, 1 + ROUNDING),
    "progress": (0, 1),
    "same_call": (0, 2**30 - 1),
    "same_signature": (0, 2**30 - 1),
    "window_count": (0, _records.WINDOW),
    "history_count": (1, _records.HISTORY),
    "output_run": (0, _records.RUN_WINDOW),
    "failed_rounds": (0, _records.RUN_WINDOW),
    "flags": (_records.SESSION_OPEN, _records.SESSION_FLAGS),
    "repeated_tools": (0, 0b1111),
    "generation": (0, LAST_GENERATION - 1),
    "updates_since_decay": (0, 2**16 - 2),
    "history": (0, 1),
    "reward": (0, 2**31),
    "advice": (0, ARMS * (_records.RULES + _records.MAX_USER_RULES + 1)),
}
POOL_BOUNDS: Bounds = {"closed": (0, 2**63 - 1)}
OUTCOME_BOUNDS: Bounds = {
    "action": (0, ARMS - 1),
    "candidates": (1, 2**ARMS - 1),
    "rules": (0, 2**_records.RULES - 1),
    "user_rules": (0, 2**_records.MAX_USER_RULES - 1),
    "tiebreak": (0, 1),
}
FEATURE_BOUNDS: Bounds = {
    "progress_score": (0, 1),
    "progress_trend": (-1 - ROUNDING, 1 + ROUNDING),
    "progress_trend_raw": (-1, 1),
    "trend_confidence": (0, 1),
    "context_saturation": (0, 1),
    "context_ratio": (0, 2**63),
    "repetition_score": (0, 1),
    "error_rate": (0, 1),
    "empty_rate": (0, 1),
    "result_quality": (0, 1 + ROUNDING),
    "rounds_left": (-1, 2**31 - 1),
    "stuck_iterations": (0, 2**16 - 1),
    "run_length": (0, _records.RUN_WINDOW),
    "cycle": (0, _records.ROUND_HASHES),
    "output_repeats": (0, _records.RUN_WINDOW),
    "failures_in_row": (0, _records.RUN_WINDOW),
    "information": (0, len(_records.INFORMATION) - 1),
    "call_repeats": (0, _records.WINDOW),
    "result_repeats": (0, _records.WINDOW),
    "recent_failures": (0, _records.WINDOW),
    "slight": (0, 1),
    "compress_ready": (0, 1),
    "compression_failed": (0, 1),
    "context_known": (0, 1),
    "plateau": (0, 1),
    "making_progress": (0, 1),
}


def impossible(state: FleetState) -> str | None:
    """What of a state no fleet can be: the first thing found, in words; None if all is well.

    The types of the fields are right: this is about their values.
    """
    checks = (
        _of_fleet, _of_slots, _of_uses, _of_sessions, _of_pools, _of_histories, _of_names,
        _of_handles, _of_outcomes, _of_choices,
    )
    return next((problem for check in checks for problem in check(state)), None)


def _of_fleet(state: FleetState) -> Iterator[str]:
    if not 0 <= state.seed < 2**64:
        yield f"seed: wanted a number in [0, 2**64), got {state.seed}"
    if not 0 <= state.opened < 2**63:
        yield f"opened: wanted a number in [0, 2**63), got {state.opened}"
    if AUTO in state.policies:
        yield (
            f"policies: {AUTO!r} is no name of one since format version 3, but asks the fleet to "
            "choose one; go on with the package that wrote this, or export there what the pools "
            "learned, and import it here into a new fleet"
        )
    for kind, table in (("policies", state.policies), ("pools", state.pools)):
        if not 0 < len(table) <= MAX_TABLE:
            yield f"{kind}: wanted 1 to {MAX_TABLE:,}, got {len(table):,}"


def _of_slots(state: FleetState) -> Iterator[str]:
    """Which slots are free, and what identifies the sessions."""
    sessions, free = state.sessions, state.free
    flags, generation, uid = (sessions[name] for name in ("flags", "generation", "uid"))
    closed = flags == 0
    if ((free < 0) | (free >= len(sessions))).any():
        yield f"free slots: wanted slots below {len(sessions)}, got {free.min()} to {free.max()}"
        return
    is_free = np.zeros(len(sessions), np.bool_)
    is_free[free] = True
    if np.count_nonzero(is_free) != len(free):
        yield "free slots: one stands twice"
    yield from _first(
        "session", is_free == (closed & (generation < LAST_GENERATION)), flags,
        "slots to be free where their session is closed, and only there; flags",
    )
    yield from _first("session", ~closed | (generation > 0), generation,
                      "a slot that was used; times closed")
    yield from _first("session", uid < state.opened, uid, f"below {state.opened} sessions; uid")
    if len(np.unique(uid)) != len(uid):
        yield "sessions: two have the same uid"
    opened = int(generation.sum(dtype=np.uint64)) + len(sessions) - int(np.count_nonzero(closed))
    if opened != state.opened:
        yield f"opened: {state.opened} sessions, but the slots were used {opened} times"


def _of_uses(state: FleetState) -> Iterator[str]:
    """Who has to go when there are too many sessions."""
    most, last_use = state.max_sessions, state.last_use
    if not 0 <= state.calls < 2**64:
        yield f"calls: wanted a number in [0, 2**64), got {state.calls}"
    if most is None or last_use is None:
        if most is not None or last_use is not None:
            yield "last_use: wanted it with max_sessions, and only then"
        if state.calls or state.evicted:
            yield f"calls, evicted: wanted 0 without max_sessions, got {state.calls}, " \
                  f"{state.evicted}"
        return
    if not 1 <= most < 2**31:
        yield f"max_sessions: wanted a number in [1, 2**31), got {most}"
    open_count = int(np.count_nonzero(state.sessions["flags"]))
    if open_count > most:
        yield f"sessions: {open_count} are open, with max_sessions {most}"
    if not 0 <= state.evicted <= state.opened - open_count:
        yield f"evicted: wanted at most {state.opened - open_count}, as are closed, " \
              f"got {state.evicted}"
    if len(last_use) != len(state.sessions):
        yield f"last_use: wanted {len(state.sessions)}, one a slot, got {len(last_use)}"
        return
    yield from _first("session", (last_use > 0) & (last_use <= state.calls), last_use,
                      f"1 to {state.calls} calls; last_use")


def _of_sessions(state: FleetState) -> Iterator[str]:
    sessions = state.sessions
    closed = sessions["flags"] == 0
    bounds = {
        **SESSION_BOUNDS,
        "policy": (0, len(state.policies) - 1),
        "pool": (0, len(state.pools) - 1),
    }
    yield from _out_of_bounds("session", sessions, bounds, closed)
    yield from _no_shapes("session", sessions, closed)
    yield from _first("session", (sessions["flags"] & _records.SESSION_OPEN != 0) | closed,
                      sessions["flags"], "an open session; flags")
    for total in ("errors", "empties"):
        yield from _first("session", (sessions[total] <= sessions["calls"]) | closed,
                          sessions[total], f"no more than there were calls; {total}")
    for place in range(4):
        twin = sessions["twins"] >> 4 * place & 15
        yield from _first("session", (twin < _records.WINDOW) | closed, twin,
                          "a distance within the window; twins")
        action = sessions["pending"] >> 4 * place & 15
        yield from _first("session", (action < ARMS) | (action == _records.NOT_LEARNING) | closed,
                          action, "an action, or none; pending")


def _of_pools(state: FleetState) -> Iterator[str]:
    posteriors = state.posteriors
    if len(posteriors) != len(state.pools):
        yield f"pools: wanted {len(state.pools)} posteriors, got {len(posteriors)}"
        return
    wanted = np.zeros(len(posteriors), posteriors.dtype["prior"])
    for row, settings in zip(wanted, state.pools.values(), strict=True):
        settings.fill(row)
    for name in wanted.dtype.names or ():
        found = posteriors["prior"][name]
        yield from _first("pool", found == wanted[name], found, f"what its settings say; {name}")
    nowhere = np.zeros(len(posteriors), np.bool_)
    yield from _no_shapes("pool", posteriors, nowhere)
    yield from _out_of_bounds("pool", posteriors, POOL_BOUNDS, nowhere)


def _of_histories(state: FleetState) -> Iterator[str]:
    """What the pools have learned since they began is what can be learned."""
    from cellium_fast.learned import LearnedPosterior

    if [*state.histories] != [*state.pools]:
        yield f"histories: wanted those of {shown([*state.pools])}, " \
              f"got {shown([*state.histories])}"
        return
    sources = {history.source for history in state.histories.values()}
    if len(sources) != len(state.histories):
        yield "histories: two pools are the same source"
    for (name, settings), record in zip(state.pools.items(), state.posteriors, strict=True):
        history = state.histories[name]
        if history.start is not None and history.start.settings != settings:
            yield f"histories: {shown(name)} began with {history.start.settings!r}, but is " \
                  f"{settings!r}"
        try:
            LearnedPosterior.of_pool("", settings, record, history)
        except LearnedStateError as error:
            yield f"histories: {shown(name)}: {error}"


def _of_names(state: FleetState) -> Iterator[str]:
    if not 0 <= state.forgotten < 2**63:
        yield f"names: wanted a number forgotten in [0, 2**63), got {state.forgotten}"
    for kind, table in (("tools", state.tools), ("errors", state.errors)):
        if len(table) > CAPACITY:
            yield f"names: wanted at most {CAPACITY:,} {kind}, got {len(table):,}"
        for digest in table:
            if not 0 <= digest < 2**32:
                yield f"names: wanted hashes of {kind} in [0, 2**32), got {digest}"


def _of_handles(state: FleetState) -> Iterator[str]:
    """Each stands for an open session of its own."""
    ids = [handle.id for handle in state.handles]
    if len(set(ids)) != len(ids):
        yield "handles: two are of the same session"
    for handle in state.handles:
        slot, generation = handle.id & 2**SLOT_BITS - 1, handle.id >> SLOT_BITS
        if (
            slot >= len(state.sessions)
            or state.sessions["generation"][slot] != generation
            or not state.sessions["flags"][slot]
        ):
            yield f"handles: {handle.name!r:.80} is of session {handle.id}, which is not open"
        if not handle.used_tools <= set(handle.tools):
            yield f"handles: {handle.name!r:.80} used tools that it does not have"


def _of_outcomes(state: FleetState) -> Iterator[str]:
    """The newest decisions of the handles."""
    outcomes = state.outcomes()
    nowhere = np.zeros(len(outcomes), np.bool_)
    yield from _out_of_bounds("decision", outcomes, OUTCOME_BOUNDS, nowhere)
    yield from _out_of_bounds("decision", outcomes["features"], FEATURE_BOUNDS, nowhere)
    chosen = outcomes["candidates"] >> outcomes["action"] & 1
    yield from _first("decision", chosen == 1, outcomes["action"], "one of its candidates; action")
    for name, least, most in (
        ("reward", 0, 1), ("draws", 0, 1), ("bias", -1, MAX_BIAS), ("propensity", 0, 1)
    ):
        values = outcomes[name]
        good = np.isnan(values) | ((values >= least) & (values <= most))
        yield from _first("decision", good, values, f"{least} to {most:g}, or NaN; {name}")


def _of_choices(state: FleetState) -> Iterator[str]:
    """What was learned of policies that were chosen, and the sessions that are still to say."""
    choices, trials = state.choices, state.trials
    if choices is None or trials is None:
        if choices is not None or trials is not None:
            yield "choices, trials: wanted both or none"
        return
    shape = len(state.pools), len(state.policies)
    if choices.shape != shape or choices.size > MAX_CHOICES:
        yield f"choices: wanted {shape}, pools and policies, got {choices.shape}"
        return
    if len(trials) != len(state.sessions):
        yield f"trials: wanted {len(state.sessions)}, one a slot, got {len(trials)}"
        return
    opened, learned, won = (choices[name] for name in ("opened", "learned", "won"))
    most = np.uint64(_choice.MOST_LEARNED)
    yield from _first("choices", learned <= most, learned, f"at most {most}; learned")
    yield from _first("choices", won <= np.minimum(learned, most) << np.uint64(31), won,
                      "at most 2**31 for each session learned from; won")
    yield from _of_trials(state, choices, trials)
    total = sum(opened.ravel().tolist())
    if not 0 < total <= state.opened:
        yield f"choices: wanted 1 to {state.opened} sessions opened, got {total}"


def _of_trials(
    state: FleetState, choices: NDArray[Any], trials: NDArray[Any]
) -> Iterator[str]:
    sessions = state.sessions
    chosen, rounds, reward = (trials[name] for name in ("chosen", "rounds", "reward"))
    on_trial = chosen > 0
    under = sessions["policy"].astype(np.uint32) + np.uint32(1)
    yield from _first("trial", ~on_trial | ((sessions["flags"] > 0) & (chosen == under)), chosen,
                      "an open session that is under the policy chosen for it; chosen")
    yield from _first("trial", rounds == np.where(on_trial, sessions["round"], 0), rounds,
                      "the rounds of the session; rounds")
    yield from _first("trial", reward <= rounds.astype(np.uint64) << np.uint64(31), reward,
                      "at most 2**31 for each round; reward")
    going_on = np.zeros(choices.shape, np.uint64)
    np.add.at(going_on, (sessions["pool"][on_trial], sessions["policy"][on_trial]), np.uint64(1))
    yield from _first("choices", choices["opened"] >= choices["learned"] + going_on,
                      choices["opened"], "no fewer than were learned from or go on; opened")


def _out_of_bounds(
    kind: str, records: NDArray[Any], bounds: Bounds, spared: NDArray[np.bool_]
) -> Iterator[str]:
    for name, (least, most) in bounds.items():
        values = records[name]
        good = (values >= least) & (values <= most)
        yield from _first(kind, _with_spared(good, spared), values, f"{least} to {most}; {name}")


def _no_shapes(kind: str, records: NDArray[Any], spared: NDArray[np.bool_]) -> Iterator[str]:
    for name in ("alpha", "beta"):
        values = records[name]
        good = (values > 0) & np.isfinite(values)
        yield from _first(kind, _with_spared(good, spared), values, f"finite, above 0; {name}")


def _with_spared(good: NDArray[np.bool_], spared: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return _of_rows(good) | spared


def _of_rows(good: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return np.asarray(good.all(axis=tuple(range(1, good.ndim))))


def _first(
    kind: str, good: NDArray[np.bool_], values: NDArray[Any], wanted: str
) -> Iterator[str]:
    """In words, the first of the values that are not good, if there is one."""
    rows = _of_rows(good)
    if not rows.all():
        row = int(np.argmin(rows))
        yield f"{kind} {row}: wanted {wanted} is {shown(values[row])}"
