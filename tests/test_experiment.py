"""Runs under many policies side by side, against each policy alone in a fleet of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cellium_fast import (
    Action,
    Fleet,
    InputError,
    Policy,
    Round,
    ToolCall,
    experiment,
    lockstep,
)
from cellium_fast.cause import rules_in
from cellium_fast.experiment import REACTION, Experiment
from cellium_fast.traces import USER_MESSAGE, Problem, RecordedRun
from cellium_fast.traces.packed import packed

OUTCOMES = {None: -1, False: 0, True: 1}
STEPPING_IN = {Action.REDIRECT, Action.TERMINATE}
# They learn at different speeds and draw often, so that a shared pool or draw would show.
POLICIES = (
    Policy(),
    Policy.preset("cellium"),
    Policy(posterior={"alpha": 1.0, "beta": 3.0, "decay_every": 3}, n_step=1),
    Policy.preset("cellium", learn_from="all", bias={"cold_start_factor": 0.0}),
    Policy(rules={"tool_repetition": {"repetition": 0.3}}),
)


def made_runs(count: int, seed: int = 11) -> list[RecordedRun]:
    """Runs that repeat themselves and fail here and there, some without a round."""
    chance = np.random.default_rng(seed)
    runs = []
    for number in range(count):
        length = int(chance.integers(0, 25))
        rounds = [
            Round(
                [ToolCall("look", "ab"[int(chance.random() < 0.15)], f"{number}",
                          error=bool(chance.random() < number % 3 / 3))
                 for _ in range(int(chance.choice(3, p=[0.1, 0.7, 0.2])))],
                context_tokens=place * 90,
            )
            for place in range(length)
        ]
        events = [int(place and chance.random() < 0.05) * USER_MESSAGE for place in range(length)]
        success = (None, True, False)[chance.integers(3)]
        runs.append(RecordedRun(
            "xyz"[number % 3], Path("runs.json"), str(number), rounds, events, success=success,
            context_limit=2_000,
        ))
    return runs


Seen = dict[str, list[tuple[set[Action], Action, tuple[str, ...]]]]


def alone(parts: Sequence[Sequence[RecordedRun]], policy: Policy, seed: int) -> Seen:
    """What is decided in the rounds of each run in a fleet of its own, part after part."""
    fleet = Fleet(seed=seed, policies={"alone": policy})
    seen: Seen = {}
    for part in parts:
        opened = fleet.open(len(part), context_limit=[run.context_limit or 0 for run in part])
        running = list(zip(opened.tolist(), part, strict=True))
        seen |= {run.run: [] for run in part}
        number = 0
        while running:
            over = [(one, run) for one, run in running if len(run.rounds) == number]
            fleet.close([one for one, _ in over], [OUTCOMES[run.success] for _, run in over])
            running = [(one, run) for one, run in running if len(run.rounds) > number]
            fleet.user_message([
                one for one, run in running if run.events[number] == USER_MESSAGE
            ])
            ids = [one for one, _ in running]
            decisions = fleet.step(ids, [run.rounds[number] for _, run in running])
            for (_, run), one in zip(running, decisions, strict=True):
                seen[run.run].append((set(one.candidates), one.action, one.rules))
            number += 1
    return seen


def plain_reactions(
    parts: Sequence[Sequence[RecordedRun]], policy: Policy, seed: int
) -> list[Any]:
    """Per run what `REACTION` has, from decisions one after the other."""
    seen = alone(parts, policy, seed)
    reactions = []
    for taken in seen.values():
        fired = [
            [bool(candidates & STEPPING_IN) for candidates, _, _ in taken],
            [action in STEPPING_IN for _, action, _ in taken],
        ]
        ends = [action == Action.TERMINATE for _, action, _ in taken]
        firsts = [flags.index(True) + 1 if any(flags) else 0 for flags in fired]
        reactions.append((
            *((first, sum(flags), taken[first - 1][2] if first else ())
              for first, flags in zip(firsts, fired, strict=True)),
            ends.index(True) + 1 if any(ends) else 0,
        ))
    return reactions


def as_plain(reactions: Any) -> list[Any]:
    return [
        (*((int(one[by]["first"]), int(one[by]["rounds"]), rules_in(int(one[by]["rules"])))
           for by in ("candidates", "chosen")), int(one["terminated"]))
        for one in reactions
    ]


def test_each_policy_decides_as_it_would_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = made_runs(90)
    monkeypatch.setattr(lockstep, "GROUP_SIZE", 400)    # several groups, and pools go on
    monkeypatch.setattr(lockstep, "CHUNK_SIZE", 50)
    named = {run.run: run for run in runs}
    parts = [
        [named[one.name.run] for one in group.runs]
        for group in lockstep.groups(packed(runs)) if isinstance(group, lockstep.Group)
    ]
    assert len(parts) > 2
    together = Experiment(runs).react(POLICIES, seed=9)
    assert together.shape == (len(POLICIES), len(runs)) and together.dtype == REACTION
    for policy, reactions in zip(POLICIES, together, strict=True):
        assert as_plain(reactions) == plain_reactions(parts, policy, 9)
    # The policies do differ, in what they choose and not only in what they consider.
    assert len({bytes(side["chosen"].tobytes()) for side in together}) == len(POLICIES)
    assert (together["chosen"]["first"] != together["candidates"]["first"]).any()


def test_size_of_blocks_and_former_policies_change_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = made_runs(60)
    whole = Experiment(runs)
    expected = whole.react(POLICIES, seed=2)
    for name, size in (("MOST_SESSIONS", 1), ("MOST_SESSIONS", 130), ("MOST_ROUNDS", 1)):
        with monkeypatch.context() as patch:
            patch.setattr(experiment, name, size)
            assert (Experiment(packed(runs)).react(POLICIES, seed=2) == expected).all()
    assert (whole.react(POLICIES[::-1], seed=2)[::-1] == expected).all()
    assert (whole.react(POLICIES[1:2], seed=2)[0] == expected[1]).all()
    assert (whole.react(POLICIES, seed=3) != expected).any()


def test_the_same_policy_twice_reacts_twice_the_same() -> None:
    one, other = Experiment(made_runs(50)).react([POLICIES[1]] * 2, seed=4)
    assert (one == other).all() and one["chosen"]["first"].any()


def test_what_is_known_of_the_runs_and_which_are_kept() -> None:
    runs = made_runs(40)
    broken = Problem(Path("other.json"), 3, "cut off")
    told: list[Problem] = []
    every = Experiment([*runs[:7], broken, *runs[7:]], on_problem=told.append)
    assert told == [broken] and every.problems == 1 and every.left_out == 0
    assert [name.run for name in every.names] == [run.run for run in runs]
    assert every.rounds.tolist() == [len(run.rounds) for run in runs]
    assert every.success.tolist() == [OUTCOMES[run.success] for run in runs]
    kept = [run for run in runs if run.success is not None and run.source != "y"]
    some = Experiment(
        packed(runs), keep=lambda run: run.success is not None and run.name.source != "y"
    )
    assert [name.run for name in some.names] == [run.run for run in kept]
    assert len(some) == len(kept) and some.left_out == len(runs) - len(kept) > 0
    alone = Experiment(kept).react(POLICIES[:2], seed=1)
    assert (some.react(POLICIES[:2], seed=1) == alone).all()


def test_progress_is_told_in_runs_and_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "MOST_SESSIONS", 2 * 30)
    one = Experiment(made_runs(30))
    told: list[int] = []
    one.react(POLICIES, on_runs=told.append)
    assert told == [60, 120, 150]
    assert one.seconds > 0


def test_no_runs_and_runs_without_rounds() -> None:
    none = Experiment([])
    assert len(none) == 0 and none.react(POLICIES).shape == (len(POLICIES), 0)
    empty = Experiment([RecordedRun("x", Path("x"), "1", [], [])]).react(POLICIES[:2])
    assert (empty == np.zeros((2, 1), REACTION)).all()


def test_what_is_refused() -> None:
    one = Experiment(made_runs(3))
    with pytest.raises(InputError, match="policies: wanted a list of policies"):
        one.react([])
    with pytest.raises(InputError, match=r"policies\[1\]: wanted a Policy, got 'cellium'"):
        one.react([Policy(), "cellium"])  # type: ignore[list-item]
    with pytest.raises(InputError, match="seed"):
        one.react([Policy()], seed=-1)
