"""Looking for the best policy: ask for many, drive the runs under all of them at once, tell many.

First comes the base policy, then each of its parameters moved alone, then the preset `cellium` as
far as the space goes. A parameter that changes nothing when moved alone is left as it is from then
on: most of a policy's rules never fire in a given set of runs. Of the policies after that,

* one in four is proposed by a tree-structured Parzen estimator (J. Bergstra, R. Bardenet,
  Y. Bengio, B. Kégl, "Algorithms for hyper-parameter optimization", NIPS 2011), as optuna has it;
* the others are one of the best four so far with a few parameters drawn anew, since good policies
  differ from the base policy in few parameters, and an estimator of many finds that out slowly.

At last the best one is simplified: changes are taken back as long as it is no worse for it.

A batch depends on the search's seed, its own first number and what was told before it began, and on
nothing else. So a search that goes on where another one ended gives the policies of one that was
never interrupted, and a longer search begins with those of a shorter one. Another size of batches
makes another search.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from cellium_fast.errors import InputError, PolicyError
from cellium_fast.policy import Policy
from cellium_fast.tuning.objective import Score
from cellium_fast.tuning.space import Parameter, Space, Value

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial, Trial

__all__ = ["Candidate", "Search"]

Scoring = Callable[[Sequence[Policy], Sequence[int]], list[Score]]
"""Scores policies, given how many changes each of them has."""

SCORE = "score"     # of a trial, as optuna keeps it
ESTIMATED = 4       # one in so many is proposed by the estimator
PARENTS = 4         # the best so far, of which the others are made
GO_ON = 0.6         # probability that one more parameter is drawn anew


@dataclass(slots=True, frozen=True)
class Candidate:
    """A policy that was scored: what it has in place of the base policy's values, and the score."""

    changes: Mapping[str, Value]
    score: Score

    @property
    def rank(self) -> tuple[int, float, int]:
        """Rises with how good it is; of two that are worth the same, the simpler one is better."""
        return *self.score.rank, -len(self.changes)


class Search:
    """A search of a space.

    Parameters
    ----------
    space, score
        What is searched, and what says how good a policy is.
    seed
        Seed of the samplers.
    batch
        How many policies are asked for at once.
    kept
        A study on disk, to which all that is told is added, and whose trials were told before.
        None: nothing is kept.
    """

    def __init__(
        self, space: Space, score: Scoring, *, seed: int, batch: int, kept: Study | None = None
    ) -> None:
        import optuna

        self._space = space
        self._score = score
        self._seed = seed
        self._batch = batch
        self._kept = kept
        self._distributions = {one.path: one.distribution() for one in space.parameters}
        self._starts = list(_starts(space))
        self._study = optuna.create_study(direction="maximize")
        self._told: list[FrozenTrial] = [] if kept is None else kept.get_trials(deepcopy=False)
        self._candidates = [self._candidate(trial) for trial in self._told]

    @property
    def told(self) -> int:
        """How many policies have been told."""
        return len(self._told)

    @property
    def candidates(self) -> list[Candidate]:
        """The policies that were told, but for values that make none together."""
        return [*filter(None, self._candidates)]

    @property
    def best(self) -> Candidate:
        """The best one that was told; of equals the first."""
        return max(self.candidates, key=lambda candidate: candidate.rank)

    def run(self, trials: int, on_batch: Callable[[Search], None] | None = None) -> None:
        """Go on until so many have been told."""
        while self.told < trials:
            start, end = self._batch_of(self.told)
            self._go_back_to(start)
            asked = self._ask(start, min(end, trials))
            scores = self._scores([self._changes(trial) for trial in asked])
            for trial, score in zip(asked, scores, strict=True):
                self._tell(trial, score)
            self._keep()
            if on_batch is not None:
                on_batch(self)

    def simplified(self) -> Candidate:
        """The best one with those changes taken back that it is not worse without.

        One after the other, the change first without which it is best.
        """
        best = self.best
        while best.changes:
            fewer = [
                {path: value for path, value in best.changes.items() if path != left_out}
                for left_out in best.changes
            ]
            scored = zip(fewer, self._scores(fewer), strict=True)
            found = max(
                (Candidate(changes, score) for changes, score in scored if score is not None),
                key=lambda candidate: candidate.rank, default=best,
            )
            if found.rank <= best.rank:
                break
            best = found
        return best

    def _batch_of(self, place: int) -> tuple[int, int]:
        """Start and end of the batch in which a trial is, by its number; starts have their own."""
        starts = len(self._starts)
        first = 0 if place < starts else starts
        start = place - (place - first) % self._batch
        end = start + self._batch
        return start, min(end, starts) if place < starts else end

    def _go_back_to(self, start: int) -> None:
        """Have the study as it was when the batch began.

        What is left of a batch that was not finished is asked for once more.
        """
        import optuna

        if len(self._study.get_trials(deepcopy=False)) != start:
            self._study = optuna.create_study(direction="maximize")
            self._study.add_trials(self._told[:start])

    def _ask(self, start: int, end: int) -> list[Trial]:
        """Ask for the trials of these numbers, which are those of one batch or its beginning."""
        from optuna.samplers import TPESampler

        if start < len(self._starts):
            return [self._ask_for(values) for values in self._starts[start:end]]
        random = np.random.default_rng([self._seed, start])
        self._study.sampler = TPESampler(seed=int(random.integers(2**32)))
        before = filter(None, self._candidates[:start])
        parents = heapq.nlargest(PARENTS, before, key=lambda candidate: candidate.rank)
        felt = self._felt()
        drawn_from = {parameter.path: self._distributions[parameter.path] for parameter in felt}
        return [
            self._study.ask(drawn_from) if place % ESTIMATED == 0
            else self._ask_for(self._varied(parents, felt, random))
            for place in range(end - start)
        ]

    def _ask_for(self, values: Mapping[str, Value]) -> Trial:
        self._study.enqueue_trial(dict(values))
        return self._study.ask({path: self._distributions[path] for path in values})

    def _felt(self) -> list[Parameter]:
        """The parameters that change something when moved alone; all of them if none does."""
        base, *others = filter(None, self._candidates[: len(self._starts)])
        felt = {
            path for other in others if len(other.changes) == 1 for path in other.changes
            if not other.score.same_runs(base.score)
        }
        parameters = self._space.parameters
        return [parameter for parameter in parameters if parameter.path in felt or not felt]

    def _varied(
        self, parents: Sequence[Candidate], felt: Sequence[Parameter], random: np.random.Generator
    ) -> dict[str, Value]:
        """The values of one of the parents, a few of them drawn anew."""
        parent = parents[int(random.integers(len(parents)))].changes
        values = {one.path: parent.get(one.path, one.base) for one in felt}
        count = min(1 + int(random.geometric(1 - GO_ON)), len(felt))
        for place in random.choice(len(felt), count, replace=False):
            values[felt[place].path] = felt[place].draw(random)
        return values

    def _scores(self, several: Sequence[Mapping[str, Value]]) -> list[Score | None]:
        """Score several policies at once; None where the values make no policy together."""
        made = [_made(self._space, changes) for changes in several]
        sound = [place for place, policy in enumerate(made) if policy is not None]
        scores: list[Score | None] = [None] * len(several)
        if sound:
            policies = [policy for policy in made if policy is not None]
            found = self._score(policies, [len(several[place]) for place in sound])
            for place, score in zip(sound, found, strict=True):
                scores[place] = score
        return scores

    def _tell(self, trial: Trial, score: Score | None) -> None:
        from optuna.trial import TrialState

        if score is None:
            told = self._study.tell(trial, state=TrialState.FAIL)
        else:
            trial.set_user_attr(SCORE, asdict(score))
            trial.set_constraint("budget", score.excess)
            told = self._study.tell(trial, score.value)
        if trial.number == len(self._told):
            self._told.append(told)
            self._candidates.append(self._candidate(told))
            return
        known = self._told[trial.number]
        if told.params != known.params or told.values != known.values:
            raise InputError(
                f"study: its trial {known.number} would come out differently now; it was made by "
                "another version of this package or of optuna. Begin a new one"
            )

    def _keep(self) -> None:
        """Add what was told to the study on disk."""
        if self._kept is None:
            return
        count = len(self._kept.get_trials(deepcopy=False))
        if count > self.told:
            raise InputError("study: another process goes on with it; one at a time can")
        for trial in self._told[count:]:
            self._kept.add_trial(trial)

    def _candidate(self, trial: FrozenTrial) -> Candidate | None:
        score = trial.user_attrs.get(SCORE)
        return None if score is None else Candidate(self._changes(trial), Score(**score))

    def _changes(self, trial: Trial | FrozenTrial) -> dict[str, Value]:
        return self._space.changes(self._space.values(trial.params))


def _starts(space: Space) -> Iterator[dict[str, Value]]:
    base = space.base_values()
    yield base
    yield from space.alone()
    yield space.near(Policy.preset("cellium"))


def _made(space: Space, changes: Mapping[str, Value]) -> Policy | None:
    try:
        return space.policy(changes)
    except PolicyError:     # each value may be right, and not beside another
        return None
