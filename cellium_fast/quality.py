"""How good decisions are on recorded runs: failing runs caught, successful runs disturbed.

A detector fires in a round if that round speaks for stepping in. It has caught a failing run, or
disturbed a successful one, if it fires in any of its rounds. The detectors judged side by side:

=================================  ================================================================
`POLICY`, `CELLIUM`                redirect or terminate is among the candidates, of the policy
                                   under test and of the preset `cellium`
`POLICY_CHOSEN`, `CELLIUM_CHOSEN`  redirect or terminate is chosen
`EQUAL_CALLS_3`, `EQUAL_CALLS_5`   a call of the round is at least the 3rd, 5th in a row with the
                                   same signature (tool and arguments)
`ERRORS_5`                         a call of the round is at least the 5th in a row with an error
=================================  ================================================================

Calls in a row are counted in the order they were made, parallel ones too; rounds without a call do
not end a row, a user message does.

Recorded rounds do not react: a detector goes on counting after it fired, and rounds after a
terminate count like any. All runs of a policy share a pool: what is chosen in a tie depends on the
seed and on the other runs. Candidates do not, but for what an earlier choice leaves behind (a
redirect restarts the stuck counter).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cellium_fast import _records
from cellium_fast.action import Action, mask_of
from cellium_fast.cause import all_rules, names_of, rules_in
from cellium_fast.fleet import Fleet
from cellium_fast.lockstep import DecidedRows, Driver, Group
from cellium_fast.policy import Policy
from cellium_fast.replay import replay
from cellium_fast.traces.packed import PackedRuns, RunName
from cellium_fast.traces.runs import Problem, RecordedRun

__all__ = [
    "FIGURES",
    "FIRED",
    "Detector",
    "Judge",
    "JudgedRuns",
    "Quality",
    "Share",
    "effects",
    "judge",
]

Z_95 = 1.959963984540054        # standard normal quantile of 0.975

MASKS = np.array([action.mask for action in Action], np.uint8)      # by code
STEPPING_IN = mask_of((Action.REDIRECT, Action.TERMINATE))

# Where a detector fired in a run: in which round, from 1, first (0: never); in how many rounds;
# which rules fired in the first of them (a mask; 0 for detectors without rules).
FIRED = np.dtype([("first", np.int64), ("rounds", np.int64), ("rules", np.uint64)])


class Detector(StrEnum):
    """What is judged, see the module."""

    POLICY = "policy"
    POLICY_CHOSEN = "policy_chosen"
    CELLIUM = "cellium"
    CELLIUM_CHOSEN = "cellium_chosen"
    EQUAL_CALLS_3 = "equal_calls_3"
    EQUAL_CALLS_5 = "equal_calls_5"
    ERRORS_5 = "errors_5"


@dataclass(slots=True, frozen=True)
class Share:
    """A part of a whole, summed over runs, with a 95 % interval of the share.

    Parameters
    ----------
    count, total
        The part and the whole: of runs, or of rounds.
    observations
        To how many equal runs these runs amount: (sum of w)² / (sum of w²) for runs that have w
        of the whole (Kish, Survey Sampling, 1965). The rounds of a run hang together, so a run is
        one observation, however long it is. Of runs it is the number of runs.

    Examples
    --------
    >>> share = Share.over_runs([1, 0, 0, 1], [1, 1, 1, 1])
    >>> share.share, [round(end, 3) for end in share.interval]
    (0.5, [0.15, 0.85])
    """

    count: int
    total: int
    observations: float

    @classmethod
    def over_runs(cls, counts: ArrayLike, totals: ArrayLike) -> Self:
        """Sum the part and the whole of each run, (runs,) integers."""
        weights = np.asarray(totals, np.int64)
        total = int(weights.sum())
        squares = int((weights * weights).sum())
        return cls(int(np.sum(counts, dtype=np.int64)), total, total**2 / squares if total else 0.0)

    @property
    def share(self) -> float | None:
        """The part in [0, 1]; None of nothing."""
        return self.count / self.total if self.total else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Score interval of a proportion (Wilson, JASA 22, 1927) with 95 % confidence.

        Unlike an interval of mean and deviation it stays inside [0, 1] and says something of a
        detector that never fired: [0, 3.84 / (n + 3.84)]. None of nothing.
        """
        if not self.total:
            return None
        p, n, z = self.count / self.total, self.observations, Z_95
        centre = p + z**2 / (2 * n)
        margin = z * math.sqrt(p * (1 - p) / n + (z / (2 * n)) ** 2)
        scale = 1 + z**2 / n
        low = 0.0 if self.count == 0 else (centre - margin) / scale
        high = 1.0 if self.count == self.total else (centre + margin) / scale
        return low, high


@dataclass(slots=True, frozen=True)
class Quality:
    """What a detector, or a policy, is worth on some runs; it steps in where it fires.

    Parameters
    ----------
    caught
        Failing runs in which it fired, of the failing runs.
    disturbed
        Successful runs in which it fired, of the successful runs.
    saved
        Rounds recorded after the first one in which it fired, of all rounds of failing runs.
    lost
        The same of successful runs.
    flagged
        Rounds in which it fired, of all rounds, those of unlabelled runs too.
    """

    caught: Share
    disturbed: Share
    saved: Share
    lost: Share
    flagged: Share


# The figures of labelled runs: of runs with which outcome, and what is counted, see `effects`.
FIGURES = {
    "caught": (0, "runs"), "disturbed": (1, "runs"), "saved": (0, "rounds"), "lost": (1, "rounds"),
}


def effects(
    first: NDArray[np.int64], rounds: NDArray[np.int64]
) -> dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """What each run adds to the part and to the whole of a figure.

    Parameters
    ----------
    first
        (..., runs) int64: the first round, from 1, that stepped in; 0: none did.
    rounds
        (runs,) int64: rounds recorded.

    Returns
    -------
    dict
        "runs": whether any round stepped in, (..., runs), of 1 each, (runs,); "rounds": the rounds
        recorded after the first that did, of those recorded.

    Examples
    --------
    >>> parts = effects(np.array([0, 3]), np.array([8, 5]))
    >>> parts["runs"][0], parts["rounds"][0]
    (array([0, 1]), array([0, 2]))
    """
    hit = first > 0
    return {
        "runs": (hit.astype(np.int64), np.ones(len(rounds), np.int64)),
        "rounds": (np.where(hit, rounds - first, 0), rounds),
    }


@dataclass(slots=True, frozen=True)
class JudgedRuns:
    """Recorded runs, and where each detector fired in them.

    Parameters
    ----------
    names
        Where the runs were recorded, in the order they were read.
    success
        (runs,) int8: 1, 0, or -1 if the recording does not say.
    rounds
        (runs,) int64: rounds recorded.
    fired
        For each detector, or for each policy by its label, (runs,) `FIRED`.
    user_rules
        By the same labels: names of the rules of users in the policy; none where it is left out.
    """

    names: list[RunName]
    success: NDArray[np.int8]
    rounds: NDArray[np.int64]
    fired: dict[str, NDArray[Any]]
    user_rules: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.names)

    def outcomes(self) -> dict[bool | None, int]:
        """How many runs succeeded (True), failed (False), or are unlabelled (None)."""
        return {
            outcome: int((self.success == code).sum())
            for outcome, code in ((True, 1), (False, 0), (None, -1))
        }

    def quality(self, detector: str) -> Quality:
        """What a detector is worth on these runs."""
        fired = self.fired[detector]
        parts = effects(fired["first"], self.rounds)
        shares = {}
        for name, (outcome, counted) in FIGURES.items():
            part, whole = parts[counted]
            chosen = self.success == outcome
            shares[name] = Share.over_runs(part[chosen], whole[chosen])
        return Quality(flagged=Share.over_runs(fired["rounds"], self.rounds), **shares)

    def first_rules(self, detector: str, success: bool) -> Counter[str]:
        """By rule: runs with this outcome in whose first flagged round it fired.

        A run counts for each of the rules that fired in this round.
        """
        fired = self.fired[detector][(self.success == success)]
        masks, counts = np.unique(fired["rules"][fired["first"] > 0], return_counts=True)
        rules: Counter[str] = Counter()
        names = self.user_rules.get(detector, ())
        for mask, count in zip(masks.tolist(), counts.tolist(), strict=True):
            rules.update(dict.fromkeys(rules_in(mask, names), count))
        return rules

    def part(self, chosen: NDArray[np.bool_]) -> JudgedRuns:
        """The runs that are chosen, by a (runs,) bool."""
        return JudgedRuns(
            [self.names[place] for place in np.flatnonzero(chosen)], self.success[chosen],
            self.rounds[chosen], {name: fired[chosen] for name, fired in self.fired.items()},
            self.user_rules,
        )

    def by_source(self) -> dict[str, JudgedRuns]:
        """The runs of each format, in the order of their names."""
        sources = np.array([name.source for name in self.names], object)
        return {name: self.part(sources == name) for name in sorted(set(sources.tolist()))}


class Judge:
    """Judges runs while `replay` drives them, as its ``on_group``.

    It drives them once more, by the preset `cellium`.

    Parameters
    ----------
    seed
        Seed of the fleet with the preset.
    policy
        The policy that `replay` drives them by, for the names of its own rules; None: `default`.

    Examples
    --------
    >>> from cellium_fast.traces import find_files
    >>> from cellium_fast.replay import read_files
    >>> judge = Judge()
    >>> result = replay(read_files(find_files(["examples/runs"])), on_group=judge)
    >>> judge.judged().quality(Detector.POLICY).caught.count
    3
    """

    def __init__(self, seed: int = 0, policy: Policy | None = None) -> None:
        self._user_rules = names_of(policy) if policy is not None else ()
        self._cellium = Driver(Fleet(seed=seed, policies={"cellium": "cellium"}))
        self._groups: list[JudgedRuns] = []

    def __call__(self, group: Group, decided: DecidedRows) -> None:
        """Judge the runs of one more group."""
        equal_calls = _longest_in_row(group, _runs_of(group, group.column("call_signature")))
        errors = (group.column("call_flags") & _records.CALL_ERROR) > 0
        errors_in_row = _longest_in_row(group, np.where(errors, _runs_of(group, errors), 0))
        (preset,) = self._cellium.drive(group)
        fired: dict[str, NDArray[Any]] = {
            Detector.EQUAL_CALLS_3: _fired(group, equal_calls >= 3),
            Detector.EQUAL_CALLS_5: _fired(group, equal_calls >= 5),
            Detector.ERRORS_5: _fired(group, errors_in_row >= 5),
        }
        for rows, among_candidates, chosen in (
            (decided, Detector.POLICY, Detector.POLICY_CHOSEN),
            (preset, Detector.CELLIUM, Detector.CELLIUM_CHOSEN),
        ):
            fired[among_candidates] = fired_by_candidates(group, rows)
            fired[chosen] = fired_by_choice(group, rows)
        self._groups.append(JudgedRuns(
            names=[run.name for run in group.runs],
            success=np.array([-1 if run.success is None else run.success for run in group.runs],
                             np.int8),
            rounds=group.lengths, fired=fired,
        ))

    def judged(self) -> JudgedRuns:
        """All runs judged so far."""
        groups = self._groups
        return JudgedRuns(
            names=[name for group in groups for name in group.names],
            success=np.concatenate([np.empty(0, np.int8), *(group.success for group in groups)]),
            rounds=np.concatenate([np.empty(0, np.int64), *(group.rounds for group in groups)]),
            fired={
                name: np.concatenate([np.empty(0, FIRED), *(group.fired[name] for group in groups)])
                for name in Detector
            },
            user_rules=dict.fromkeys(
                (Detector.POLICY, Detector.POLICY_CHOSEN), self._user_rules
            ),
        )


def judge(
    found: Iterable[RecordedRun | PackedRuns | Problem],
    policy: Policy | None = None,
    *,
    seed: int = 0,
    on_problem: Callable[[Problem], None] | None = None,
) -> JudgedRuns:
    """Judge a policy on recorded runs, beside the other detectors.

    Parameters
    ----------
    found
        What `read_files` yields, or `cellium_fast.traces.read` of one file.
    policy, seed
        The policy of all runs, None: `default`; seed of the fleets.
    on_problem
        Called with each problem.

    Examples
    --------
    >>> from pathlib import Path
    >>> from cellium_fast import Round, ToolCall
    >>> rounds = [Round([ToolCall("search", {"q": "x"}, "nothing")]) for _ in range(9)]
    >>> run = RecordedRun("made-up", Path("runs.json"), "1", rounds, [0] * 9, success=False)
    >>> quality = judge([run], seed=7).quality(Detector.EQUAL_CALLS_3)
    >>> quality.caught.count, quality.saved.count, quality.flagged.share
    (1, 6, 0.7777777777777778)
    """
    judging = Judge(seed, policy)
    replay(found, policy, seed=seed, on_group=judging, on_problem=on_problem)
    return judging.judged()


def _runs_of(group: Group, values: NDArray[Any]) -> NDArray[np.int64]:
    """For each call, how many calls up to it, since its task began, have its value in a row."""
    task = np.cumsum(group.first_of_task)[group.call_row]
    place = np.arange(len(values))
    begins = np.ones(len(values), bool)
    begins[1:] = (values[1:] != values[:-1]) | (task[1:] != task[:-1])
    return place - np.maximum.accumulate(np.where(begins, place, 0)) + 1


def _longest_in_row(group: Group, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each round the largest of its calls' numbers, 0 without a call."""
    longest = np.zeros(len(group.run), np.int64)
    np.maximum.at(longest, group.call_row, lengths)
    return longest


def fired_by_candidates(group: Group, decided: DecidedRows) -> NDArray[Any]:
    """Where stepping in was among the candidates in each run, (runs,) `FIRED`."""
    return _fired(group, (decided.candidates & STEPPING_IN) > 0, _rules_of(decided))


def fired_by_choice(
    group: Group, decided: DecidedRows, actions: int = STEPPING_IN
) -> NDArray[Any]:
    """Where stepping in, or one of these actions (a mask), was chosen, (runs,) `FIRED`."""
    return _fired(group, (MASKS[decided.action] & actions) > 0, _rules_of(decided))


def _rules_of(decided: DecidedRows) -> NDArray[np.uint64]:
    """All rules that fired, those of users too, as masks."""
    built_in, of_users = (
        column.astype(np.uint64) for column in (decided.rules, decided.user_rules)
    )
    rules: NDArray[np.uint64] = all_rules(built_in, of_users)
    return rules


def _fired(
    group: Group, flagged: NDArray[np.bool_], rules: NDArray[np.uint64] | None = None
) -> NDArray[Any]:
    """Sum up for each run the rows in which a detector fired."""
    rows = np.flatnonzero(flagged)
    of = group.run[rows]
    fired = np.zeros(len(group.runs), FIRED)
    fired["rounds"] = np.bincount(of, minlength=len(group.runs))
    # Rows stand run after run.
    first = rows[np.flatnonzero(np.diff(of, prepend=-1))]
    runs = group.run[first]
    fired["first"][runs] = first - group.starts[runs] + 1
    if rules is not None:
        fired["rules"][runs] = rules[first]
    return fired
