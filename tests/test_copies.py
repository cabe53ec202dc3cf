"""What is copied or pickled works as before, or says why it cannot be."""

import copy
import inspect
import pickle
from pathlib import Path

import numpy as np
import pytest
from conftest import COLUMNS, same_bits

import cellium_fast
from cellium_fast import (
    Action,
    CelliumError,
    Fleet,
    HardConstraintRenderer,
    InputError,
    JournalError,
    MissingColumnError,
    Policy,
    PolicyError,
    Posterior,
    Round,
    RoundBatch,
    SnapshotError,
    ToolCall,
    UnknownNameError,
    UserCodeError,
    errors,
    kernels,
    traces,
)

WAYS = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{
        f"pickle {protocol}": lambda value, protocol=protocol: pickle.loads(
            pickle.dumps(value, protocol)
        )
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)    # older ones know no slots
    },
}
SEARCHES = [ToolCall("search", {"q": "a"}, "boom", error=True)]


@pytest.fixture(params=WAYS)
def again(request):
    """What makes the same again of an object."""
    return WAYS[request.param]


# --- exceptions ----------------------------------------------------------------------------------
EXCEPTIONS = [
    one for _, one in inspect.getmembers(errors, inspect.isclass)
    if issubclass(one, CelliumError)
]  # fmt: skip
MADE = {
    PolicyError: lambda: PolicyError("gamma: wanted less", [("gamma", "too large")]),
    UnknownNameError: lambda: UnknownNameError("pool", "x", ["a", "b"]),
    SnapshotError: lambda: SnapshotError("a/fleet", "altered", "its checksum differs"),
    JournalError: lambda: JournalError("a/log", "not an entry", 4_096),
    UserCodeError: lambda: UserCodeError("stuck", "mine.py", 12, "raised ValueError: no"),
}


@pytest.mark.parametrize("kind", EXCEPTIONS)
def test_every_exception_arrives_with_message_and_attributes(kind, again):
    error = MADE.get(kind, lambda: kind("what is wrong"))()
    error.add_note("seen in a worker")
    found = again(error)
    assert type(found) is kind
    assert str(found) == str(error) != ""
    assert found.args == error.args
    assert vars(found) == vars(error)


def test_every_exception_of_the_package_is_tested():
    public = [getattr(cellium_fast, name) for name in cellium_fast.__all__]
    raised = {one for one in public if inspect.isclass(one) and issubclass(one, Exception)}
    assert raised == set(EXCEPTIONS)
    with_own_constructor = {one for one in EXCEPTIONS if "__init__" in vars(one)}
    assert with_own_constructor == set(MADE)


def raised_by(call):
    with pytest.raises(CelliumError) as caught:
        call()
    return caught.value


@pytest.mark.parametrize("make", [
    lambda: Policy(gamma=3, n_step="x"),
    lambda: Policy.preset("none"),
    lambda: Fleet().open(-1),
    lambda: Fleet().step([5], [Round()]),
    lambda: Fleet().step([], [], want=["action"]).features,
    lambda: RoundBatch.from_rounds([Round([3])]),
])
def test_exceptions_as_they_are_raised(make, again):
    error = raised_by(make)
    found = again(error)
    assert (type(found), str(found), vars(found)) == (type(error), str(error), vars(error))


# --- decisions -----------------------------------------------------------------------------------
def in_words(decision):
    """All that a decision says."""
    return (
        decision.action, decision.candidates, decision.rules, decision.tiebreak, decision.reward,
        decision.features, decision.draws, decision.bias, decision.scores, decision.cause,
        decision.stop_cause, decision.evidence, decision.advice_age, decision.prompt,
        decision.explain(), repr(decision),
    )  # fmt: skip


def told():
    """A fleet of two policies, ids under both, and rounds that lead to a constraint."""
    fleet = Fleet(seed=4, policies={"default": Policy(), "cellium": "cellium"})
    ids = np.concatenate([fleet.open(2, policy=name) for name in fleet.policies])
    for _ in range(4):
        decisions = fleet.step(ids, [Round(SEARCHES)] * 4)
    assert set(decisions.action.tolist()) > {Action.CONTINUE} or decisions.tiebreak.any()
    return fleet, ids, decisions


def test_a_decision_says_the_same_again(again):
    fleet = Fleet(seed=4)
    session = fleet.session("a", context_limit=100, tools=["search", "read"])
    assert in_words(again(session.decision)) == in_words(session.decision)
    for _ in range(5):
        decision = session.step(Round(SEARCHES, context_tokens=90))
        assert in_words(again(decision)) == in_words(decision)
    assert decision.prompt or decision.rules


def test_decisions_say_the_same_again_and_share_nothing(again):
    fleet, ids, decisions = told()
    found = again(decisions)
    for name in COLUMNS:
        left, right = getattr(decisions, name), getattr(found, name)
        assert same_bits(left, right), name
        assert not np.shares_memory(left, right), name
    assert [in_words(one) for one in found] == [in_words(one) for one in decisions]
    before = [in_words(one) for one in decisions]
    fleet.step(ids, [Round()] * 4, out=found)
    assert [in_words(one) for one in decisions] == before
    assert [in_words(one) for one in found] != before
    renderer = again(HardConstraintRenderer(500, 300))
    made = HardConstraintRenderer(500, 300).render_many(decisions, repeat=True)
    assert renderer.render_many(again(decisions), repeat=True) == made
    assert any(made)


def test_decisions_with_missing_columns_still_miss_them(again):
    fleet, ids, _ = told()
    found = again(fleet.step(ids, [Round()] * 4, want=["reward"]))
    assert set(found.columns()) == {"action", "candidates", "reward"}
    with pytest.raises(MissingColumnError, match="want="):
        _ = found.draws
    assert fleet.step(ids, [Round()] * 4, out=found) is found


def test_no_decisions_at_all(again):
    found = again(Fleet().step([], []))
    assert (len(found), list(found)) == (0, [])


def test_names_that_are_learned_meanwhile_do_not_reach_a_copy(again):
    fleet, _, _ = told()
    found = again(fleet.names)
    fleet.session().step(Round([ToolCall("late")]))
    assert "late" in fleet.names._tools.values()
    assert "late" not in found._tools.values()
    assert found._tools.items() <= fleet.names._tools.items()
    assert found._errors == fleet.names._errors != {}


# --- fleets and sessions -------------------------------------------------------------------------
def test_a_fleet_is_no_value_to_be_copied(again):
    fleet, ids, _ = told()
    with pytest.raises(TypeError, match="use its save, and Fleet"):
        again(fleet)
    assert len(fleet.step(ids, [Round()] * 4)) == 4


def test_a_session_is_a_name_of_one_in_its_fleet(again):
    session = Fleet().session("a")
    if again is copy.copy:
        assert again(session) is session
    else:
        with pytest.raises(TypeError, match="stands for one in its fleet"):
            again(session)


# --- what is given -------------------------------------------------------------------------------
GIVEN = {
    "call": SEARCHES[0],
    "round": Round(SEARCHES, "text", 5, 10, 0.5, 0.25, True),
    "policy": Policy(tool_limits={"ls": 3}, rules={"idle": {"enabled": False}}),
    "posterior": Posterior(alpha=3.0),
    "action": Action.COMPRESS,
    "run": traces.RecordedRun("x", Path("a"), "1", [Round(SEARCHES)], [0], True),
    "problem": traces.Problem(Path("a"), 3, "broken"),
}


@pytest.mark.parametrize("name", GIVEN)
def test_what_is_given_is_equal_again(name, again):
    assert again(GIVEN[name]) == GIVEN[name]


def test_a_policy_is_checked_again_where_it_is_used(again):
    policy = again(Policy())
    policy.__dict__["gamma"] = 7.0      # as a pickle from elsewhere can be
    with pytest.raises(InputError, match="gamma"):
        Fleet(policies={"only": policy})


def test_a_batch_of_rounds_steps_the_same_again(again):
    batch = RoundBatch.from_rounds([Round(SEARCHES, "text", 5, 10)] * 2, events=[0, 1])
    found = again(batch)
    left, right = Fleet(seed=1), Fleet(seed=1)
    left_said, right_said = (
        fleet.step(fleet.open(2), rounds) for fleet, rounds in ((left, batch), (right, found))
    )
    for name in COLUMNS:
        assert same_bits(getattr(left_said, name), getattr(right_said, name)), name
    assert (found.tools, found.errors) == (batch.tools, batch.errors)
    assert left.names._errors == right.names._errors != {}


@pytest.mark.parametrize("name", [
    name for name, one in vars(kernels).items()
    if inspect.isfunction(one) and one.__module__ == kernels.__name__ and name[0] != "_"
])
def test_kernels_are_functions_of_their_module(name, again):
    assert again(getattr(kernels, name)) is getattr(kernels, name)
