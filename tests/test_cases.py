"""Sessions after public bug reports: what the `default` policy must do, and must not, whatever the
seed.

They are kept outside this repository: CELLIUM_CASES may name the file with them, else they are
looked for in `shared/cases` beside it. A case is a list of rounds with what is expected of the
decisions after them; replay is open loop. What an expectation can say is `problems` below.
"""

import json
import math
import operator
import os
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from cellium_fast import Decision, Fleet, Round, ToolCall

SEEDS = range(20)
BESIDE = Path(__file__).parent.parent.parent / "shared" / "cases" / "cases.json"
FILE = Path(os.environ.get("CELLIUM_CASES") or BESIDE)
CASES = json.loads(FILE.read_text("utf-8")) if FILE.is_file() else []
COMPARED = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt,
            "==": operator.eq}
KINDS = {"forbid", "require", "max_count", "max_consecutive", "finite", "no_exception", "features",
         "flags"}

needs_cases = pytest.mark.skipif(
    not CASES, reason="CELLIUM_CASES names no file of cases, and there is none beside this folder"
)
every_case = pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])


def call_of(entry: dict[str, Any]) -> ToolCall:
    return ToolCall(entry["tool"], entry["args"], entry["result"], error=entry["is_error"])


def round_of(entry: dict[str, Any]) -> Round:
    """The round as a caller would tell it."""
    calls = entry.get("calls") or ([entry] if entry["tool"] else [])
    size = {name: math.nan if entry[name] == "NaN" else entry[name]
            for name in ("tokens_used", "token_budget")}
    return Round([call_of(call) for call in calls], text=entry["llm_output"],
                 context_tokens=size["tokens_used"], context_limit=size["token_budget"])


def decide(case: dict[str, Any], seed: int) -> list[Decision]:
    """The decision after each round, of as many sessions as the case has."""
    fleet = Fleet(seed=seed)
    sessions: dict[str, Any] = {}
    decisions = []
    for entry in case["rounds"]:
        key = entry.get("session", "")
        session = sessions.get(key) or sessions.setdefault(key, fleet.session(key))
        if entry.get("event") == "user_message":
            session.user_message()
        elif entry.get("event") == "compacted":
            session.compacted()
        decisions.append(session.step(round_of(entry)))
    return decisions


def numbers(decision: Decision) -> dict[str, Any]:
    return {**decision.features._asdict(), "reward": decision.reward}


def problems(expected: dict[str, Any], decisions: list[Decision]) -> Iterator[str]:
    """What is not as expected; rounds count from 1, `to` and `by` are included."""
    assert expected.keys() <= KINDS
    actions = [str(decision.action) for decision in decisions]
    for rule in expected.get("forbid", ()):
        for round in range(rule["from"], (rule["to"] or len(actions)) + 1):
            if actions[round - 1] in rule["actions"]:
                yield f"round {round}: {actions[round - 1]} is forbidden"
    for rule in expected.get("require", ()):
        if not set(actions[rule["from"] - 1:rule["by"]]) & set(rule["actions"]):
            yield f"rounds {rule['from']} to {rule['by']}: none of {rule['actions']}"
    for action, most in expected.get("max_count", {}).items():
        if actions.count(action) > most:
            yield f"{action} {actions.count(action)} times, at most {most}"
    runs = [(action, len(list(run))) for action, run in groupby(actions)]
    for action, most in expected.get("max_consecutive", {}).items():
        if any(run > most for which, run in runs if which == action):
            yield f"{action} more than {most} times in a row"
    for feature in expected.get("features", ()):
        found = numbers(decisions[feature["round"] - 1])[feature["name"]]
        if not COMPARED[feature["op"]](found, feature["value"]):
            yield f"round {feature['round']}: {feature['name']} is {found}"


@needs_cases
@every_case
def test_the_case_holds_for_every_seed(case: dict[str, Any]) -> None:
    for seed in SEEDS:
        decisions = decide(case, seed)
        found = list(problems(case["expect"], decisions))
        assert not found, (seed, case["title"], found, [str(one.action) for one in decisions])


@needs_cases
@every_case
def test_numbers_are_finite_and_rewards_in_range(case: dict[str, Any]) -> None:
    for decision in decide(case, seed=0):
        assert all(math.isfinite(value) for value in numbers(decision).values()
                   if isinstance(value, float))
        assert 0 <= (decision.reward or 0) <= 1


@needs_cases
def test_usage_that_is_always_zero_is_unknown() -> None:
    case = next(case for case in CASES if case["id"] == "B52")
    assert case["expect"]["flags"] == ["usage_unknown after <=5 rounds"]
    assert not any(decision.features.context_known for decision in decide(case, seed=0))


@needs_cases
@every_case
def test_texts_of_every_case_are_short_and_claim_nothing(case: dict[str, Any]) -> None:
    for decision in decide(case, seed=0):
        assert len(decision.prompt) <= 600
        assert "complet" not in decision.prompt.lower()
        assert (decision.stop_cause is None) == (str(decision.action) != "terminate")


def test_the_judge_sees_each_kind_of_problem() -> None:
    session = Fleet().session(context_limit=100)
    decisions = [
        session.step(Round([ToolCall("read", tokens, f"all that stands on page {tokens}")],
                           context_tokens=tokens))
        for tokens in (10, 90, 12)
    ]
    assert [str(decision.action) for decision in decisions] == ["continue", "compress", "continue"]
    for expected in (
        {"forbid": [{"actions": ["compress"], "from": 2, "to": None}]},
        {"require": [{"actions": ["terminate"], "from": 1, "by": 3}]},
        {"max_count": {"continue": 1}},
        {"max_consecutive": {"compress": 0}},
        {"features": [{"round": 2, "name": "context_ratio", "op": "<", "value": 0.5}]},
    ):
        assert len(list(problems(expected, decisions))) == 1, expected
    for expected in (
        {"forbid": [{"actions": ["compress"], "from": 1, "to": 1}]},
        {"require": [{"actions": ["compress"], "from": 2, "by": 2}]},
        {"max_count": {"continue": 2}, "max_consecutive": {"continue": 1}},
        {"features": [{"round": 3, "name": "reward", "op": "<=", "value": 1}]},
    ):
        assert not list(problems(expected, decisions)), expected
