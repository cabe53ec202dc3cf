"""A tuning: its runs, its searches, and what came out of them."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from cellium_fast import checks
from cellium_fast.errors import CelliumError, InputError, shown
from cellium_fast.evaluate import RESAMPLES, Comparison, compare
from cellium_fast.experiment import Experiment
from cellium_fast.policy import Policy
from cellium_fast.quality import JudgedRuns
from cellium_fast.traces.packed import PackedRuns, RunFacts, RunName, packed
from cellium_fast.traces.runs import Problem, RecordedRun
from cellium_fast.tuning.kept import kept_study, open_storage
from cellium_fast.tuning.objective import Objective, Score
from cellium_fast.tuning.search import Candidate, Search
from cellium_fast.tuning.space import Space, Value
from cellium_fast.tuning.splits import BY, By, Source, held_out, labelled, rotation, sources

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

__all__ = ["Figures", "Fold", "Tuning", "TuningResult"]

TRIALS = 600
BATCH = 32
FOLDS = 5
CHANGE_COST = 0.002
BASE, TUNED, CELLIUM = "base", "tuned", "cellium"


@dataclass(slots=True, frozen=True)
class Figures:
    """Policies side by side on some runs: `base`, `tuned`, `cellium`; differences are from `base`.

    In a rotation, `tuned` is in every source the policy of the search that did not see it.
    """

    total: dict[str, Comparison]
    sources: dict[str, dict[str, Comparison]]


@dataclass(slots=True, frozen=True)
class Fold:
    """A search, the sources it did not see, and what it found: changes from the base policy."""

    held_out: frozenset[str]
    changes: dict[str, Value]
    score: Score


@dataclass(slots=True, frozen=True)
class TuningResult:
    """What a tuning came to.

    Parameters
    ----------
    policy
        The policy found.
    base
        The policy the search began with.
    changes
        The values it has in place of the base policy's, by dotted name.
    score, base_score
        What both are worth on the runs that were tuned on.
    allowed
        How many successful runs of those may be disturbed.
    trials
        How many policies were tried for it.
    complete
        Whether all the trials asked for were made, in all searches.
    trained
        Figures on the runs that were tuned on: they flatter the policy.
    judged
        Figures on runs that the searches did not see; None if there were none such.
    folds
        The searches of a rotation that are done; of none with sources held out by name.
    sources
        The runs, by source.
    held_out
        The sources held out by name.
    settings
        What the tuning was asked for.
    """

    policy: Policy
    base: Policy
    changes: dict[str, Value]
    score: Score
    base_score: Score
    allowed: int
    trials: int
    complete: bool
    trained: Figures
    judged: Figures | None
    folds: list[Fold]
    sources: dict[str, Source]
    held_out: frozenset[str]
    settings: dict[str, Any]


class _Split:
    """One search: the runs it sees, and those it does not."""

    def __init__(self, tuning: Tuning, name: str, held: frozenset[str]) -> None:
        self.held = held
        experiment = tuning.experiment(lambda source: source not in held)
        (base,) = experiment.react([tuning.base], seed=tuning.seed)
        of = [tuning.source_of[run] for run in experiment.names]
        self.objective = Objective(
            of, experiment.success, experiment.rounds, base,
            tuning.settings["budget"], tuning.settings["change_cost"],
        )

        def score(policies: Sequence[Policy], changes: Sequence[int]) -> list[Score]:
            reactions = experiment.react(policies, seed=tuning.seed)
            return self.objective.scores(reactions, changes)

        kept = None
        if tuning.storage is not None:
            kept = kept_study(tuning.storage, name, tuning.made_for(held))
        self.search = Search(
            tuning.space, score, seed=tuning.seed, batch=tuning.settings["batch"], kept=kept
        )
        self.experiment = experiment


class Tuning:
    """A search for the policy that catches failing runs early and disturbs few successful ones.

    Parameters
    ----------
    found
        What `read_files` yields, or `cellium_fast.traces.read` of one file. Runs that do not say
        how they ended are left out.
    base
        The policy to begin with, or the name of a preset.
    by
        What counts as one source: ``"source"``, the format of the recording; ``"folder"`` or
        ``"file"``, where it lies.
    holdout
        Names of sources, or patterns with ``*``, that the search does not see and the policy is
        judged on. Empty: a rotation.
    folds
        Searches of the rotation, 2 to 20; 0: no rotation, so no figures but those of the runs that
        were tuned on.
    only
        Names of parameters or sections; nothing else is searched. Empty: everything in the space,
        see `cellium_fast.tuning.space`.
    budget
        Share of successful runs that may be disturbed, in [0, 1]; None: in each source as many as
        under the base policy.
    change_cost
        What every parameter that is changed costs of the objective, in [0, 1].
    seed
        Of the search, of the fleets and of the intervals, in [0, 2**32).
    batch
        Policies asked for and driven at once, from 1.
    study
        A file that keeps what was tried: if it is there, the tuning goes on where it ended.
    on_problem
        Called with each problem.

    Raises
    ------
    InputError
        An argument does not make sense; there is no failing run to tune on; the study was made for
        another tuning.
    NoRunsError
        No run says how it ended.
    MissingPackageError
        optuna is not installed.

    Examples
    --------
    >>> from cellium_fast.replay import read_files
    >>> from cellium_fast.traces import find_files
    >>> tuning = Tuning(
    ...     read_files(find_files(["examples/runs"])), holdout=["openai-chat"],
    ...     only=["rules.repeated_round", "rules.repeated_call"],
    ... )
    >>> tuning.run(trials=20)
    >>> result = tuning.result()
    >>> result.score.saved >= result.base_score.saved, result.score.excess
    (True, 0)
    """

    def __init__(
        self,
        found: Iterable[RecordedRun | PackedRuns | Problem],
        base: Policy | str = "default",
        *,
        by: By = "source",
        holdout: Sequence[str] = (),
        folds: int = FOLDS,
        only: Sequence[str] = (),
        budget: float | None = None,
        change_cost: float = CHANGE_COST,
        seed: int = 0,
        batch: int = BATCH,
        study: str | os.PathLike[str] | None = None,
        on_problem: Callable[[Problem], None] | None = None,
    ) -> None:
        if importlib.util.find_spec("optuna") is None:
            raise MissingPackageError("tuning needs optuna: pip install 'cellium-fast[tune]'")
        self.seed = checks.whole_number("seed", seed, 0, 2**32 - 1)
        self.base = Policy.preset(base) if isinstance(base, str) else _checked_base(base)
        self.settings = _settings(
            base, by, holdout, folds, only, budget, change_cost, self.seed, batch
        )
        self.space = Space(self.base, only)
        self._chunks, self.problems = _packed(found, on_problem)
        runs = [run for chunk in self._chunks for run in chunk.runs]
        known = [run.name for run in runs if run.success is not None]
        self.left_out = len(runs) - len(known)
        if not known:
            raise NoRunsError(
                f"none of the {len(runs):,} runs says how it ended" if runs
                else "no run could be read"
            )
        self.source_of: dict[RunName, str] = labelled(known, by)
        self.sources = sources(self._chunks, self.source_of)
        self.held_out = held_out(self.sources, holdout)
        self.storage: BaseStorage | None = None
        with _quiet_optuna():
            if study is not None:
                self.storage = open_storage(study)
            splits = self._splits(folds)
            for held in splits.values():
                self._check_failing(held)
            # The one that makes the policy comes first: an interrupt leaves at least that.
            self._searches = [_Split(self, name, held) for name, held in splits.items()]
        self._wanted = 0

    def _splits(self, folds: int) -> dict[str, frozenset[str]]:
        splits = {"all" if not self.held_out else "without the held out": self.held_out}
        if not self.held_out and folds and len(self.sources) > 1:
            held = rotation(self.sources, folds)
            splits |= {f"fold {number}": fold for number, fold in enumerate(held, 1)}
        return splits

    def _check_failing(self, held: Collection[str]) -> None:
        if any(
            run.success is False and run.length and self.source_of[run.name] not in held
            for chunk in self._chunks for run in chunk.runs
        ):
            return
        without = f" without {', '.join(sorted(held))}" if held else ""
        raise InputError(
            f"there is no failing run to tune on{without}; wanted runs of which some failed, or "
            "another way to tell sources apart (by), or no rotation (folds=0)"
        )

    @property
    def searches(self) -> int:
        """How many searches there are: one for the policy, and one for each fold of a rotation."""
        return len(self._searches)

    @property
    def tried(self) -> int:
        """How many policies were tried by the search for the policy."""
        return len(self._searches[0].search.candidates)

    def experiment(self, chosen: Callable[[str], bool]) -> Experiment:
        """The runs of some sources."""
        def keep(run: RunFacts) -> bool:
            return run.name in self.source_of and chosen(self.source_of[run.name])

        return Experiment(self._chunks, keep=keep)

    def made_for(self, held: frozenset[str]) -> dict[str, Any]:
        """What a search is made for: one for anything else would come to something else."""
        seen = {name: one.content for name, one in self.sources.items() if name not in held}
        settings = {
            name: self.settings[name] for name in ("budget", "change_cost", "seed", "batch")
        }
        return {
            **settings, "base": self.base.as_json(), "runs": seen,
            "space": [asdict(parameter) for parameter in self.space.parameters],
        }

    def run(
        self, trials: int = TRIALS, on_batch: Callable[[int, Search], None] | None = None
    ) -> None:
        """Make searches go on until each has tried so many policies.

        Ctrl-C leaves what was told, here and in the study; `result` and `run` can follow.

        Parameters
        ----------
        trials
            Policies of each search, from 1; what an earlier call or the study has counts.
        on_batch
            Called after each batch with the place of the search, from 0, and the search.
        """
        self._wanted = checks.whole_number("trials", trials, 1, 1_000_000)
        with _quiet_optuna():
            for place, split in enumerate(self._searches):
                def told(search: Search, place: int = place) -> None:
                    if on_batch is not None:
                        on_batch(place, search)

                split.search.run(trials, told)

    def result(self, resamples: int = RESAMPLES) -> TuningResult:
        """What the searches have come to so far.

        Raises
        ------
        InputError
            No policy was tried yet.
        """
        first = self._searches[0]
        if not self.tried:
            raise InputError("nothing was tried yet: call run() first")
        best = first.search.simplified()
        done = [split for split in self._searches if split.search.told >= self._wanted > 0]
        folds = [
            (split, split.search.simplified()) for split in self._searches[1:] if split in done
        ]
        judged = self._judged(best, folds, resamples)
        return TuningResult(
            policy=self.space.policy(best.changes),
            base=self.base,
            changes=dict(best.changes),
            score=best.score,
            base_score=first.search.candidates[0].score,
            allowed=first.objective.allowed,
            trials=first.search.told,
            complete=len(done) == len(self._searches),
            trained=self._figures([(first.experiment, best)], resamples),
            judged=judged,
            folds=[Fold(split.held, dict(fold.changes), fold.score) for split, fold in folds],
            sources=self.sources,
            held_out=self.held_out,
            settings={**self.settings, "trials": self._wanted},
        )

    def _judged(
        self, best: Candidate, folds: Sequence[tuple[_Split, Candidate]], resamples: int
    ) -> Figures | None:
        """The figures of runs that the searches did not see; None without them, or not yet."""
        if self.held_out:
            unseen = self.experiment(lambda source: source in self.held_out)
            return self._figures([(unseen, best)], resamples)
        if not folds or len(folds) < len(self._searches) - 1:
            return None
        return self._figures(
            [(self.experiment(split.held.__contains__), found) for split, found in folds],
            resamples,
        )

    def _figures(
        self, found: Sequence[tuple[Experiment, Candidate]], resamples: int
    ) -> Figures:
        """Compare policies on the runs of each experiment, and take these together."""
        reactions = [
            experiment.react(
                [self.base, self.space.policy(candidate.changes), Policy.preset(CELLIUM)],
                seed=self.seed,
            )["chosen"]
            for experiment, candidate in found
        ]
        runs = JudgedRuns(
            # By the sources of this tuning, which may be folders or files.
            [replace(name, source=self.source_of[name]) for one, _ in found for name in one.names],
            np.concatenate([experiment.success for experiment, _ in found]),
            np.concatenate([experiment.rounds for experiment, _ in found]),
            dict(zip((BASE, TUNED, CELLIUM), np.concatenate(reactions, axis=1), strict=True)),
        )
        return Figures(*compare(runs, seed=self.seed, resamples=resamples))


def tune(
    found: Iterable[RecordedRun | PackedRuns | Problem],
    base: Policy | str = "default",
    *,
    trials: int = TRIALS,
    **settings: Any,
) -> TuningResult:
    """Search for a better policy and judge it; `Tuning` explains the arguments.

    Examples
    --------
    >>> from cellium_fast.replay import read_files
    >>> from cellium_fast.traces import find_files
    >>> found = read_files(find_files(["examples/runs"]))
    >>> tune(found, trials=20, only=["rules.repeated_round"], folds=0).score.excess
    0
    """
    tuning = Tuning(found, base, **settings)
    tuning.run(trials)
    return tuning.result()


class NoRunsError(InputError):
    """There is no run that says how it ended."""


class MissingPackageError(CelliumError, ImportError):
    """A package that an extra brings is not installed."""


def _settings(
    base: Policy | str, by: str, holdout: Sequence[str], folds: int, only: Sequence[str],
    budget: float | None, change_cost: float, seed: int, batch: int,
) -> dict[str, Any]:
    if by not in BY:
        raise InputError(f"by: wanted one of {', '.join(BY)}, got {shown(by)}")
    for name, several in (("holdout", holdout), ("only", only)):
        if isinstance(several, str) or not all(isinstance(one, str) for one in several):
            raise InputError(f"{name}: wanted a list of names, got {shown(several)}")
    if checks.whole_number("folds", folds, 0, 20) == 1:
        raise InputError("folds: wanted at least 2, or 0 for no rotation, got 1")
    return {
        "base": base if isinstance(base, str) else "a policy of its own",
        "by": by,
        "holdout": list(holdout),
        "folds": 0 if holdout else folds,
        "only": list(only),
        "budget": None if budget is None else checks.number("budget", budget, 0, 1),
        "change_cost": checks.number("change_cost", change_cost, 0, 1),
        "seed": seed,
        "batch": checks.whole_number("batch", batch, 1, 10_000),
    }


def _checked_base(base: object) -> Policy:
    if not isinstance(base, Policy):
        raise InputError(f"base: wanted a Policy or the name of a preset, got {shown(base)}")
    return base


def _packed(
    found: Iterable[RecordedRun | PackedRuns | Problem],
    on_problem: Callable[[Problem], None] | None,
) -> tuple[list[PackedRuns], int]:
    """The runs, packed, and how many problems there were."""
    chunks = []
    problems = 0
    for one in packed(found):
        if isinstance(one, Problem):
            problems += 1
            if on_problem is not None:
                on_problem(one)
        else:
            chunks.append(one)
    return chunks, problems


@contextmanager
def _quiet_optuna() -> Iterator[None]:
    """Keep optuna from writing to stderr what it does, which it does on its own."""
    from optuna import logging

    before = logging.get_verbosity()
    logging.set_verbosity(logging.WARNING)
    try:
        yield
    finally:
        logging.set_verbosity(before)
