"""Stage 4: what a round is worth, what a decision leaves behind."""

import math

import numpy as np
import pytest
from conftest import call, pack

from cellium_fast import Fleet, InputError, Policy, Round, RoundBatch, ToolCall

CELLIUM, DEFAULT = Policy.preset("cellium"), Policy()
STRICT = Policy(rules={"context_exhausted": {"rounds": 1}})     # terminates at once


def rewards(rounds, policy=DEFAULT, **limits):
    fleet = Fleet(policies={"only": policy})
    ids = fleet.open(1, **limits)
    return [float(fleet.step(ids, pack([described])).reward[0]) for described in rounds]


def reward(described, policy=DEFAULT, **limits):
    return rewards([described], policy, **limits)[0]


GOOD, BAD = call(), call(error=True)


# --- Success -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("described", "success"),
    [
        ({}, True),
        ({"calls": [GOOD]}, True),
        ({"calls": [BAD]}, False),
        ({"calls": [BAD, GOOD]}, True),
        ({"calls": [GOOD, BAD]}, False),
        ({"calls": [call(empty=True)]}, True),
        ({"calls": [BAD], "success": True}, True),
        ({"calls": [GOOD], "success": False}, False),
        ({"success": False}, False),
    ],
)
def test_success(described, success):
    assert reward(described, CELLIUM) == (1.0 if success else 0.0)
    assert reward(described, DEFAULT) == pytest.approx(1.0 if success else 0.3)


def test_calls_without_flags_are_no_errors():
    one = np.ones(1, np.uint64)
    batch = RoundBatch(call_offsets=np.array([0, 1]), call_tool=one, call_signature=one)
    fleet = Fleet()
    assert fleet.step(fleet.open(1), batch).reward[0] == 1.0


# --- Costs ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("tokens", "expected"),
    [(0, 1.0), (80, 1.0), (90, 0.9), (100, 0.8), (150, 0.3), (180, 0.0), (10_000, 0.0)],
)
def test_context_cost(tokens, expected):
    # The raw ratio counts, beyond 1 too.
    found = reward({"context_tokens": tokens}, context_limit=100)
    assert found == pytest.approx(expected, abs=1e-7)


def test_unknown_context_costs_nothing():
    assert reward({"context_tokens": 10**9}) == 1.0
    assert reward({}, context_limit=100) == 1.0


def test_the_context_is_that_after_the_round():
    described = [{"context_tokens": 100}, {"context_tokens": 50}, {"context_limit": 50}]
    assert rewards(described, context_limit=100) == pytest.approx([0.8, 1.0, 0.8])


def test_round_cost():
    assert rewards([{}] * 3, round_limit=2) == pytest.approx([0.95, 0.9, 0.85])
    assert rewards([{}] * 3) == [1.0] * 3


def test_cost_parameters():
    policy = Policy(feedback={"round_cost": 0.5, "saturation_cost": 0.4, "saturation_from": 0.5})
    found = reward({"context_tokens": 75}, policy, context_limit=100, round_limit=10)
    assert found == pytest.approx(1 - 0.05 - 0.4 * 0.5)


# --- Failure -------------------------------------------------------------------------------------
def test_failure_is_worth_less_the_longer_the_decision_saw_it_stuck():
    # Two failures in a row: stuck 1 from round 2 on. The decision before round 2 saw stuck 0.
    rules = {name: {"enabled": False} for name, _ in DEFAULT.rules}
    policy = Policy(rules=rules, feedback={"failure_reward": 0.3})
    described = [{"calls": [call(k, error=True)], "progress": 0.0} for k in range(9)]
    stuck = [0, 0, 1, 2, 3, 4, 5, 6, 7]
    expected = [0.3 * (1 - min(seen / 5, 1)) for seen in stuck]
    assert rewards(described, policy) == pytest.approx(expected, abs=1e-7)
    assert rewards(described, Policy(rules=rules, feedback={"failure_reward": 0.0})) == [0.0] * 9


def test_the_stuck_a_redirect_saw_counts_though_it_restarts():
    off = {name: {"enabled": False} for name, _ in DEFAULT.rules}
    rules = {**off, "mild_stagnation": {"actions": ["redirect"]}}
    described = [{"calls": [call(k, error=True)], "progress": 0.0} for k in range(4)]
    # stuck seen by the decisions before each round: 0, 0, 1, 1 (restarted each time)
    assert rewards(described, Policy(rules=rules)) == pytest.approx([0.3, 0.3, 0.24, 0.24])


def test_a_user_message_leaves_the_decision_as_it_was():
    rules = {name: {"enabled": False} for name, _ in DEFAULT.rules}
    described = [{"calls": [call(k, error=True)], "progress": 0.0} for k in range(5)]
    described.append({"calls": [call(9, error=True)], "event": 1})
    found = rewards(described, Policy(rules=rules))
    assert found[-1] == pytest.approx(0.3 * (1 - 4 / 5))


# --- Given rewards -------------------------------------------------------------------------------
@pytest.mark.parametrize("given", [0.0, 0.25, 1.0])
def test_a_given_reward_is_taken_as_it_is(given):
    described = {"reward": given, "calls": [BAD], "context_tokens": 10_000}
    assert reward(described, context_limit=100, round_limit=1) == given


def test_nan_is_no_reward():
    assert reward({"reward": math.nan}) == 1.0


@pytest.mark.parametrize("given", [-0.1, 1.1, math.inf])
def test_a_reward_outside_the_unit_interval_is_refused(given):
    fleet = Fleet()
    ids = fleet.open(1)
    with pytest.raises(InputError, match="reward"):
        fleet.step(ids, pack([{"reward": given}]))
    with pytest.raises(InputError, match="reward"):
        fleet.session("s").step(Round(reward=given))


def test_rewards_of_objects_and_columns_are_equal():
    session = Fleet().session("s", context_limit=100, round_limit=30)
    failed = ToolCall("read", error="no such file")
    described = {"calls": [call(error=True)], "context_tokens": 90}
    expected = rewards([described, {**described, "success": True}], context_limit=100,
                       round_limit=30)  # fmt: skip
    assert session.step(Round([failed], context_tokens=90)).reward == expected[0]
    assert session.step(Round([failed], context_tokens=90, success=True)).reward == expected[1]


# --- What a decision leaves ----------------------------------------------------------------------
def test_terminate_marks_the_session_done_until_a_user_message():
    fleet = Fleet(policies={"strict": STRICT})
    ids = fleet.open(2, context_limit=100)
    assert fleet.done(ids).tolist() == [False, False]
    fleet.step(ids, pack([{"context_tokens": 99}, {"context_tokens": 9}]))
    assert fleet.done(ids).tolist() == [True, False]
    fleet.step(ids, pack([{"context_tokens": 9}] * 2))
    assert fleet.done(ids).tolist() == [True, False], "it stays done"
    fleet.user_message(ids[:1])
    assert fleet.done(ids).tolist() == [False, False]
    fleet.step(ids, pack([{"context_tokens": 99}] * 2))
    fleet.compacted(ids)
    assert fleet.done(ids).tolist() == [True, True]
    fleet.step(ids, pack([{"context_tokens": 9, "event": 1}, {"context_tokens": 9, "event": 2}]))
    assert fleet.done(ids).tolist() == [False, True]


def test_a_done_session_steps_on():
    fleet = Fleet(policies={"strict": STRICT})
    ids = fleet.open(1, context_limit=100)
    for t in range(3):
        decisions = fleet.step(ids, pack([{"context_tokens": 99}]))
        assert decisions.features["round"][0] == t + 1
        assert decisions.action[0] == 4
