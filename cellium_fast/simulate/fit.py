"""Rates of the built-in population, as recorded runs show them.

Recordings show what agents do, not why, and they do not react. So of the tables only those entries
are fitted that a round of a recording shows: how often each trouble begins and ends if nobody steps
in, single errors, rounds without a call, the lengths of runs without trouble, and how many runs
that end by themselves are right. docs/simulator.md says which of the numbers these are.

A round shows a trouble by its calls, beside those of the last round with a call (rounds without one
are passed over):

==================  ===========================================================================
`FAILING`           every call failed
`LOOPING_SAME`      the same calls with the same results
`POLLING`           the same calls with other results
`LOOPING_CHANGING`  other calls of the same tools, with the same results, which say something
==================  ===========================================================================

So a trouble shows from its second round on, a failing one from its first; the last round of a run
that ended by itself is its end, and shows none. An *episode* is as many rounds of a kind in a row.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from cellium_fast import _records
from cellium_fast.rounds import RoundBatch
from cellium_fast.simulate.tables import GOALS
from cellium_fast.traces.packed import call_offsets
from cellium_fast.traces.runs import RecordedRun

CHARACTERS_A_TOKEN = 4
TOKENS_BESIDE_RESULT = 150      # of a round: the call, and what the model says
EM_STEPS = 200
TINY = 1e-9
SAYS_NOTHING = _records.CALL_EMPTY | _records.CALL_ACKNOWLEDGED     # results that any call may have


class Shown(IntEnum):
    """What a round shows."""

    SOUND = 0
    TALK = 1            # no call
    FAILING = 2
    LOOPING_SAME = 3
    POLLING = 4
    LOOPING_CHANGING = 5


TROUBLES = (Shown.FAILING, Shown.LOOPING_SAME, Shown.POLLING, Shown.LOOPING_CHANGING)


@dataclass(frozen=True, slots=True)
class Episode:
    """Rounds in a row that show a trouble.

    Parameters
    ----------
    length
        Rounds of the trouble, the first one, which need not show it, included; >= 2.
    left
        Whether the run went on without it.
    gave_up
        Whether the run ended by itself with it. Neither: the run was cut off.
    """

    length: int
    left: bool
    gave_up: bool


@dataclass(slots=True)
class Observed:
    """What runs show, summed up; `add` takes one more run.

    Attributes
    ----------
    rounds, talk, single_errors, work
        Rounds; of these those without a call; errors that are no episode; rounds in no episode.
    episodes
        By trouble.
    goals
        Sound rounds, talk included, of the runs that reached their goal (where no run says so, of
        those that ended by themselves).
    right
        For each labelled run that ended by itself whether it reached its goal.
    growth
        Tokens that rounds added to a context, where told.
    characters
        Of the results of each round.
    """

    rounds: int = 0
    talk: int = 0
    single_errors: int = 0
    work: int = 0
    episodes: dict[Shown, list[Episode]] = field(
        default_factory=lambda: {trouble: [] for trouble in TROUBLES}
    )
    goals: list[int] = field(default_factory=list)
    right: list[bool] = field(default_factory=list)
    growth: list[int] = field(default_factory=list)
    characters: list[int] = field(default_factory=list)

    def add(self, run: RecordedRun, *, is_task: bool = True) -> None:
        """Take in a run; one that is no task tells nothing about goals."""
        if not run.rounds:
            return
        batch = RoundBatch.from_rounds(run.rounds)
        shown = shown_by(batch)
        cut_off = run.round_limit is not None and len(run.rounds) >= run.round_limit
        if not cut_off and shown[-1] not in (Shown.TALK, Shown.FAILING):
            shown[-1] = Shown.SOUND
        self.rounds += len(shown)
        self.talk += shown.count(Shown.TALK)
        in_trouble = self._add_episodes(shown, cut_off)
        self.work += len(shown) - in_trouble
        if is_task and not cut_off:
            if run.success is not None:
                self.right.append(run.success)
            if run.success is not False:
                self.goals.append(len(shown) - in_trouble - self._single(shown))
        self._add_sizes(batch)

    def _add_episodes(self, shown: list[Shown], cut_off: bool) -> int:
        """Note the episodes of a run; return how many rounds they have in all."""
        called = [one for one in shown if one != Shown.TALK]
        in_trouble = start = 0
        while start < len(called):
            kind, end = called[start], start
            while end < len(called) and called[end] == kind:
                end += 1
            # The round before the first that shows it belongs to it, unless that fails.
            length = end - start + (kind != Shown.FAILING)
            if kind in TROUBLES and length >= 2:
                last = end == len(called)
                self.episodes[kind].append(Episode(length, not last, last and not cut_off))
                in_trouble += end - start
            elif kind == Shown.FAILING:
                self.single_errors += 1
            start = end
        return in_trouble

    @staticmethod
    def _single(shown: list[Shown]) -> int:
        called = [Shown.SOUND, *(one for one in shown if one != Shown.TALK), Shown.SOUND]
        return sum(
            one == Shown.FAILING and Shown.FAILING not in (before, after)
            for before, one, after in zip(called, called[1:], called[2:], strict=False)
        )

    def _add_sizes(self, batch: RoundBatch) -> None:
        assert batch.context_tokens is not None and batch.call_size is not None
        told = batch.context_tokens[batch.context_tokens > 0]
        self.growth += [step for step in np.diff(told).tolist() if step > 0]
        offsets = call_offsets(batch)
        sizes = np.concatenate([[0], np.cumsum(batch.call_size)])
        self.characters += np.diff(sizes[offsets]).tolist()


def shown_by(batch: RoundBatch) -> list[Shown]:
    """What each round of a run shows, see the module."""
    offsets = call_offsets(batch)
    shown: list[Shown] = []
    before = None
    for start, end in pairwise(offsets):
        if start == end:
            shown.append(Shown.TALK)
            continue
        flags, *now = (
            getattr(batch, name)[start:end]
            for name in ("call_flags", "call_signature", "call_result", "call_tool")
        )
        if (flags & _records.CALL_ERROR).all():
            shown.append(Shown.FAILING)
        else:
            shown.append(_beside(before, now, says_something=not (flags & SAYS_NOTHING).any()))
        before = now
    return shown


def _beside(
    before: list[NDArray[np.uint64]] | None, now: list[NDArray[np.uint64]], says_something: bool
) -> Shown:
    if before is None:
        return Shown.SOUND
    calls, results, tools = map(np.array_equal, before, now)
    if calls:
        return Shown.LOOPING_SAME if results else Shown.POLLING
    return Shown.LOOPING_CHANGING if results and tools and says_something else Shown.SOUND


@dataclass(frozen=True, slots=True)
class Ending:
    """How a trouble ends if nobody steps in: chances a round, of getting out and of giving up.

    They are the same in each round (a geometric law), from the second round on: of an episode that
    ends after the first one nothing shows.
    """

    out: float
    gives_up: float

    @property
    def stays(self) -> float:
        """Chance that it goes on."""
        return 1.0 - self.out - self.gives_up


@dataclass(frozen=True, slots=True)
class Mixture:
    """Episodes of a kind: those that soon end, those that last, and the share of these."""

    short: Ending
    lasting: Ending
    share_that_lasts: float


def mixture_of(episodes: Iterable[Episode], laws: Mixture | None = None) -> Mixture:
    """Split episodes into short and lasting ones, by expectation maximisation.

    With `laws`, only the share is new. Dempster, Laird, Rubin, "Maximum likelihood from incomplete
    data via the EM algorithm", JRSS B 39, 1977.
    """
    known = [*episodes]
    if not known:
        return laws or Mixture(Ending(0.0, 0.0), Ending(0.0, 0.0), 0.0)
    stayed, left, gave_up = (
        np.array(values, float) for values in zip(
            *((one.length - 2, one.left, one.gave_up) for one in known), strict=True
        )
    )
    could_end = stayed + left + gave_up
    share, short, lasting = 0.5, Ending(0.5, 0.02), Ending(0.1, 0.1)
    if laws is not None:
        short, lasting = laws.short, laws.lasting
    for _ in range(EM_STEPS):
        likely = [
            law.stays**stayed * np.where(left > 0, law.out, np.where(gave_up > 0, law.gives_up, 1))
            for law in (short, lasting)
        ]
        lasts = share * likely[1] / ((1 - share) * likely[0] + share * likely[1])
        share = float(lasts.mean())
        if laws is None:
            short, lasting = (
                Ending(float(weights @ left / (weights @ could_end)),
                       float(weights @ gave_up / (weights @ could_end)))
                for weights in (1 - lasts, lasts)
            )
    return Mixture(short, lasting, share)


def begun_of(observed: Observed, trouble: Shown, laws: Mixture) -> tuple[float, float]:
    """Chances a round at work that a short and that a lasting episode begins.

    Those that end before they show are counted in. Half an episode is added to those seen, so that
    a trouble that few rounds show none of is not taken for impossible (the mean of a Poisson law
    under the prior of Jeffreys, Proceedings of the Royal Society A 186, 1946).
    """
    episodes = observed.episodes[trouble]
    share = mixture_of(episodes, laws).share_that_lasts
    short, lasting = (
        (len(episodes) * part + 0.5) / max(law.stays, TINY) / observed.work
        for part, law in ((1.0 - share, laws.short), (share, laws.lasting))
    )
    return short, lasting


def goals_of(observed: Observed) -> list[int]:
    """The values below which 5, 15, ... 95 % of the goals lie, at least 1."""
    places = (np.arange(GOALS) + 0.5) / GOALS
    values: NDArray[np.float64] = np.quantile(observed.goals, places)
    return [max(round(value), 1) for value in values.tolist()]


def tokens_of(observed: Observed, enough: int = 50) -> float:
    """Tokens that a round adds to the context: as told, or by the characters of its results."""
    if len(observed.growth) >= enough:
        return float(np.mean(observed.growth))
    return TOKENS_BESIDE_RESULT + float(np.mean(observed.characters)) / CHARACTERS_A_TOKEN
