"""The engine of replay: lockstep over groups, against one session after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cellium_fast import Action, Decisions, Fleet, InputError, Policy, Round, ToolCall, lockstep
from cellium_fast import replay as engine
from cellium_fast.bench.numpy_fleet import SIXTEEN_RULES
from cellium_fast.replay import ReplayedRun, RunName, replay, summarise
from cellium_fast.traces import COMPACTION, NO_EVENT, USER_MESSAGE, Problem, RecordedRun
from cellium_fast.traces.packed import pack_together

FILE = Path("runs.json")
# No tie-break is drawn, so that no run depends on another; redirect is often the only candidate.
FIRST = Policy(tie_break="first", rules={"mild_stagnation": {"enabled": False}})


def same_call(count: int) -> list[Round]:
    return [Round([ToolCall("search", {"q": "x"}, "nothing")]) for _ in range(count)]


def same_text(count: int) -> list[Round]:
    return [Round(text="I am done.") for _ in range(count)]


def errors(count: int) -> list[Round]:
    return [
        Round([ToolCall("open", {"n": number}, f"no file {number}", error=True)])
        for number in range(count)
    ]


def run(
    name: str, rounds: list[Round], events: list[int] | None = None, **fields: Any
) -> RecordedRun:
    events = [NO_EVENT] * len(rounds) if events is None else events
    return RecordedRun("made-up", FILE, name, rounds, events, **fields)


def mixed_runs(count: int, seed: int = 3) -> list[RecordedRun]:
    chance = np.random.default_rng(seed)
    makers: Sequence[Callable[[int], list[Round]]] = (same_call, same_text, errors)
    runs = []
    for number in range(count):
        rounds = [
            one for _ in range(3)
            for one in makers[chance.integers(3)](int(chance.integers(0, 7)))
        ]
        events = [int(event) for event in chance.choice(3, len(rounds), p=[0.9, 0.05, 0.05])]
        success = (None, True, False)[chance.integers(3)]
        runs.append(run(str(number), rounds, events, success=success))
    return runs


def one_by_one(recorded: RecordedRun, policy: Policy) -> list[int]:
    session = Fleet(policies={"p": policy}).session(context_limit=recorded.context_limit)
    actions = []
    for round, event in zip(recorded.rounds, recorded.events, strict=True):
        if event == USER_MESSAGE:
            session.user_message()
        if event == COMPACTION:
            session.compacted()
        actions.append(int(session.step(round).action))
    return actions


def test_lockstep_decides_as_one_session_after_the_other() -> None:
    runs = mixed_runs(60)
    result = replay(runs, FIRST)
    assert [str(one.name) for one in result.runs] == [f"runs.json:{n}" for n in range(60)]
    for recorded, replayed in zip(runs, result.runs, strict=True):
        assert replayed.actions.tolist() == one_by_one(recorded, FIRST)
    assert result.rounds == sum(len(one.rounds) for one in runs)
    assert {int(code) for one in result.runs for code in one.actions} >= {0, 1, 2, 4}


def test_size_of_groups_changes_nothing_without_tie_breaks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = mixed_runs(40)
    whole = replay(runs, FIRST)
    for group, chunk in ((1, 1), (30, 1), (30, 16), (1_000, 7)):
        with monkeypatch.context() as patch:
            patch.setattr(lockstep, "GROUP_SIZE", group)
            patch.setattr(lockstep, "CHUNK_SIZE", chunk)
            parts = replay(runs, FIRST)
        assert same(parts.runs) == same(whole.runs)


def same(runs: Sequence[ReplayedRun]) -> list[tuple[Any, ...]]:
    return [
        (one.name, one.success, one.actions.tolist(), one.rounds_after_terminate,
         one.rounds_after_redirect)
        for one in runs
    ]


def test_without_tie_breaks_a_run_decides_alone_as_among_others() -> None:
    runs = mixed_runs(50)
    assert same(replay(runs[30:], FIRST).runs) == same(replay(runs, FIRST).runs)[30:]


def test_same_seed_same_decisions_and_another_seed_others() -> None:
    runs = mixed_runs(200)
    assert same(replay(runs, seed=5).runs) == same(replay(runs, seed=5).runs)
    assert same(replay(runs, seed=5).runs) != same(replay(runs, seed=6).runs)


def test_outcomes_teach_the_pool() -> None:
    def posterior(success: bool | None) -> float:
        fleet = Fleet(policies={"tying": SIXTEEN_RULES})
        runs = [run(str(number), same_call(6), success=success) for number in range(20)]
        lockstep.Driver(fleet).drive(lockstep.Group(list(pack_together(runs))))
        return float(fleet.posterior()["alpha"].sum())

    assert posterior(True) > posterior(None) > posterior(False)


def test_sessions_are_closed_as_their_runs_end(monkeypatch: pytest.MonkeyPatch) -> None:
    open_sessions = []
    fleets: list[Fleet] = []

    def watched(**settings: Any) -> Fleet:
        fleets.append(Fleet(**settings))
        return fleets[0]

    monkeypatch.setattr(engine, "Fleet", watched)
    runs = [run("a", same_call(1)), run("b", []), run("c", same_call(3))]
    replay(runs, on_decisions=lambda names, decisions: open_sessions.append(len(fleets[0])))
    assert open_sessions == [1, 1, 0]


def test_context_limit_of_a_run_is_used_and_its_round_limit_is_not() -> None:
    full = [Round(text=str(n), context_tokens=990) for n in range(3)]
    result = replay([
        run("full", full, context_limit=1000), run("unknown", full),
        run("nonsense", full, context_limit=-4), run("limited", same_call(2), round_limit=1),
    ])
    terminated = [Action.TERMINATE in one.actions for one in result.runs]
    assert terminated == [True, False, False, False]


def test_on_decisions_gets_every_round_once_in_lockstep() -> None:
    runs = [run("a", same_call(2)), run("b", []), run("c", errors(3))]
    seen: list[tuple[int, str]] = []
    actions: dict[str, list[int]] = {}

    def take(names: Sequence[RunName], decisions: Decisions) -> None:
        for name, decision in zip(names, decisions, strict=True):
            seen.append((decision.features.round, name.run))
            actions.setdefault(name.run, []).append(decision.action)

    result = replay(runs, on_decisions=take)
    assert seen == [(1, "a"), (1, "c"), (2, "a"), (2, "c"), (3, "c")]
    assert actions == {one.name.run: one.actions.tolist() for one in result.runs if one.rounds}


def test_explanations_know_names_and_errors_of_their_round() -> None:
    words: list[dict[str, str]] = []

    def take(names: Sequence[RunName], decisions: Decisions) -> None:
        from cellium_fast.explain import evidence

        words.extend(evidence(decision) for decision in decisions)

    rounds = [
        Round([ToolCall("open", n, f"{word} is missing", error=True)])
        for n, word in enumerate(["bread", "salt", "oil", "rice", "tea"])
    ]
    replay([run("a", rounds)], on_decisions=take)
    assert "tea is missing" in words[4]["failure_chain"]


def test_rounds_after_count_until_the_next_user_message() -> None:
    events = [NO_EVENT] * 14
    events[8] = USER_MESSAGE
    policy = Policy(rules={"output_loop": {"after_redirect": False}})
    result = replay([run("a", same_text(14), events), run("b", same_text(7))], policy)
    actions = [one.actions.tolist() for one in result.runs]
    # The fourth round without a call is a reason for retry. The fifth equal text terminates, and
    # so does each one more, until the user speaks.
    assert actions[0] == [0, 0, 0, 1, 4, 4, 4, 4, 0, 0, 0, 1, 4, 4]
    assert [one.rounds_after_terminate for one in result.runs] == [3 + 1, 2]
    assert [one.first_intervention for one in result.runs] == [4, 4]


def test_came_before_against_a_plain_loop() -> None:
    chance = np.random.default_rng(1)
    for _ in range(200):
        chosen = chance.random(12) < 0.3
        first = chance.random(12) < 0.2
        first[0] = True
        expected, before = [], False
        for is_chosen, is_first in zip(chosen, first, strict=True):
            before = before and not is_first
            expected.append(before)
            before = before or bool(is_chosen)
        assert engine._came_before(chosen, first).tolist() == expected


def test_problems_are_counted_told_and_skipped() -> None:
    told: list[Problem] = []
    found = [
        Problem(FILE, 3, "not JSON"), run("left", same_call(5)),
        run("wrong", [Round(progress=7)]), run("events", same_call(2), [NO_EVENT]),
        run("right", same_call(2)),
    ]
    result = replay(found, on_problem=told.append)
    assert result.problems == 3
    assert [str(one) for one in told] == [
        "runs.json:3: not JSON",
        "runs.json: run 'wrong': rounds[0]: progress: wanted a number in [0, 1] or None, got 7",
        "runs.json: run 'events': events: wanted shape (2), got (1,)",
    ]
    assert [(one.name.run, one.rounds) for one in result.runs] == [("left", 5), ("right", 2)]


def test_nothing_to_replay() -> None:
    result = replay([])
    assert (result.runs, result.rounds, result.problems) == ([], 0, 0)
    assert summarise(result.runs) == engine.Summary()
    assert summarise(result.runs).median_first_intervention is None
    assert replay([run("empty", [])]).runs[0].rounds == 0


def test_seed_out_of_range_is_refused() -> None:
    with pytest.raises(InputError, match="seed"):
        replay([], seed=-1)


def test_summary_against_a_hand_count() -> None:
    def replayed(actions: list[int], success: bool | None, source: str = "x") -> ReplayedRun:
        codes = np.array(actions, np.uint8)
        return ReplayedRun(RunName(source, FILE, "r"), success, codes, 1, 2)

    runs = [
        replayed([0, 1, 0, 1], True), replayed([0, 0], False), replayed([], None),
        replayed([0, 0, 0, 0, 4, 3], False), replayed([2], True, "b"),
    ]
    summary = summarise(runs)
    assert summary == engine.Summary(
        runs=5, rounds=13, succeeded=2, failed=2, unlabelled=1,
        runs_with=Counter({Action.CONTINUE: 3, **dict.fromkeys(engine.INTERVENTIONS, 1)}),
        decisions=Counter({
            Action.CONTINUE: 8, Action.RETRY: 2, Action.REDIRECT: 1, Action.COMPRESS: 1,
            Action.TERMINATE: 1,
        }),
        first_interventions=Counter([1, 2, 5]),
        rounds_after_terminate=5, rounds_after_redirect=10,
    )
    assert summary.median_first_intervention == 2
    by_source = engine.ReplayResult(runs, 13, 0, 0.1, 0.2).by_source()
    assert {name: one.runs for name, one in by_source.items()} == {"b": 1, "x": 4}
    assert list(by_source) == ["b", "x"]
