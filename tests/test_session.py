"""`Session`: the handle of one agent run."""

import copy

import numpy as np
import pytest

from cellium_fast import (
    Action,
    Cause,
    Decision,
    Fleet,
    Policy,
    Round,
    Session,
    SessionError,
    ToolCall,
)
from cellium_fast.bench.numpy_fleet import SIXTEEN_RULES
from cellium_fast.decision import Setting
from cellium_fast.names import Names

FAILED = Round([ToolCall("search", {"q": 1}, "x", error=True)])
FINE = Round([ToolCall("read", {"q": 2}, "found it")])


def random_rounds(count: int) -> list[Round]:
    chance = np.random.default_rng(8)
    return [
        Round(
            [ToolCall("ab"[chance.integers(2)], int(chance.integers(2)), "r",
                      error=bool(chance.random() < 0.6))],
            text=f"text {chance.integers(4)}", context_tokens=int(chance.integers(80_000)),
        )
        for _ in range(count)
    ]


def numbers(decision: Decision) -> tuple[object, ...]:
    return (decision.action, decision.candidates, decision.rules, decision.reward, decision.draws,
            decision.bias, decision.features)


def outcome(fleet: Fleet) -> list[list[float]]:
    return [values.tolist() for values in fleet.posterior().values()]


# --- opening --------------------------------------------------------------------------------------
def test_a_new_session_continues_and_says_nothing():
    session = Fleet().session("ticket", context_limit=100, round_limit=5, tools=["a"])
    decision = session.decision
    assert (session.name, session.id, session.prompt, session.done) == ("ticket", 0, "", False)
    assert (decision.action, decision.candidates) == (Action.CONTINUE, (Action.CONTINUE,))
    assert (decision.rules, decision.tiebreak, decision.cause) == ((), False, Cause.NONE)
    assert decision.reward is None
    assert decision.draws == decision.bias == decision.scores == {}
    assert (decision.features.round, decision.features.rounds_left) == (0, 5)
    assert repr(session).startswith("<Session ticket: <Decision continue round=0")


def test_names_need_not_be_unique_or_given():
    fleet = Fleet()
    ids = [fleet.session("x").id, fleet.session("x").id, fleet.session().id]
    assert ids == [0, 1, 2]
    assert repr(fleet.session()).startswith("<Session 3: ")


def test_a_session_picks_its_policy():
    fleet = Fleet(policies={"a": "default", "b": Policy(tie_break="first")})
    assert fleet.session().decision.setting.policy == Policy()
    assert fleet.session(policy="b").decision.setting.policy.tie_break == "first"


# --- closing --------------------------------------------------------------------------------------
def test_a_context_manager_closes_without_an_outcome():
    fleet, twin = Fleet(seed=1), Fleet(seed=1)
    other = twin.session()
    with fleet.session() as session:
        for _ in range(6):
            session.step(FAILED)
            other.step(FAILED)
    other.close(None)
    assert len(fleet) == 0
    assert outcome(fleet) == outcome(twin)
    with pytest.raises(SessionError, match="closed"):
        session.step(FAILED)


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_a_context_manager_closes_on_an_exception_too_and_lets_it_through(kind):
    fleet = Fleet()
    with pytest.raises(kind), fleet.session():
        assert len(fleet) == 1
        raise kind
    assert len(fleet) == 0


@pytest.mark.parametrize("success", [True, False, np.True_])
def test_an_explicit_close_within_the_context_manager_counts(success):
    fleet, twin = Fleet(seed=1), Fleet(seed=1)
    ids = twin.open(1)
    with fleet.session() as session:
        for _ in range(6):
            session.step(FAILED)
            twin.step(ids, [FAILED])
        session.close(success=success)
        assert len(fleet) == 0
    twin.close(ids, bool(success))
    assert outcome(fleet) == outcome(twin)


def test_a_session_closed_by_the_fleet_leaves_its_context_manager_in_peace():
    fleet = Fleet()
    with fleet.session() as session:
        fleet.close([session.id])
        other = fleet.open(1)   # in the same slot
    assert len(fleet) == 1
    fleet.step(other, [FINE])


def test_a_closed_session_shows_so_and_keeps_its_last_decision():
    session = Fleet().session("mine", context_limit=100)
    decision = session.step(Round(context_tokens=80))
    session.close()
    assert repr(session) == "<Session mine: closed>"
    assert session.decision is decision
    assert "COMPRESS" in session.prompt
    assert (decision.action, decision.features.round) == (Action.COMPRESS, 1)


# --- stepping -------------------------------------------------------------------------------------
@pytest.mark.parametrize("private", [True, False])
def test_mixing_the_session_s_step_and_the_fleet_s_equals_either_alone(private):
    rounds = random_rounds(80)
    decided, learned = [], []
    for way in (lambda k: True, lambda k: False, lambda k: k % 2, lambda k: k % 3 == 0):
        fleet = Fleet(seed=3, policies={"tying": SIXTEEN_RULES})
        session = fleet.session(context_limit=100_000, round_limit=100, private=private)
        decided.append([
            numbers(session.step(round) if way(place) else fleet.step([session.id], [round])[0])
            for place, round in enumerate(rounds)
        ])
        read = fleet.private_posterior(session.id) if private else fleet.posterior()
        learned.append({name: values.tolist() for name, values in read.items()})
    assert all(one == decided[0] for one in decided)
    assert all(one == learned[0] for one in learned)
    assert sum(len(draws) > 1 for *_, draws, _, _ in decided[0]) > 10
    assert sum(learned[0]["updates"]) > 10


def test_decision_and_prompt_are_the_newest_of_step():
    session = Fleet().session(context_limit=100)
    decision = session.step(Round(context_tokens=80))
    assert session.decision is decision
    assert session.prompt == decision.prompt
    assert "Action: COMPRESS" in session.prompt


def test_done_by_the_fleet_s_step():
    fleet = Fleet(policies={"x": SIXTEEN_RULES})
    session = fleet.session(context_limit=100)
    fleet.step([session.id], [Round(context_tokens=99)])
    assert session.done
    assert session.decision.action == Action.TERMINATE
    assert "Action: TERMINATE" in session.prompt
    fleet.user_message([session.id])
    assert not session.done
    assert session.decision.action == Action.CONTINUE
    assert session.prompt == ""


def test_the_fleet_s_step_says_that_one_round_is_left():
    fleet = Fleet()
    others, session = fleet.open(3), fleet.session(round_limit=2, tools=["a"])
    fleet.step([*others, session.id], [Round()] * 4)
    assert "One round is left" in session.prompt
    assert session.decision.setting.tools == ("a",)


def test_a_user_message_opens_a_new_task():
    session = Fleet(policies={"x": SIXTEEN_RULES}).session(context_limit=100)
    session.step(Round(context_tokens=99))
    assert session.done
    assert "TERMINATE" in session.prompt
    session.user_message()
    assert not session.done
    assert session.prompt == ""
    assert session.decision.action == Action.CONTINUE
    assert session.decision.features.round == 1
    assert session.decision.features.context_ratio == 0.99


def test_a_compaction_changes_nothing():
    session = Fleet(policies={"x": SIXTEEN_RULES}).session(context_limit=100)
    decision = session.step(Round(context_tokens=99))
    session.compacted()
    assert session.done
    assert session.decision is decision
    assert session.step(Round(context_tokens=20)).features.context_ratio == 0.2


def test_an_old_decision_does_not_change():
    session = Fleet().session(context_limit=100)
    first = session.step(FAILED)
    kept, prompt = numbers(first), first.prompt
    for _ in range(20):
        session.step(FAILED)
    session.close()
    assert numbers(first) == kept
    assert first.prompt == prompt


def test_a_closed_session_does_not_say_whether_it_is_done():
    fleet = Fleet()
    session = fleet.session()
    assert session.done is False
    session.close()
    fleet.open(1)       # in the same slot
    with pytest.raises(SessionError, match="session 0 is closed"):
        _ = session.done


def test_a_session_that_no_fleet_opened():
    with pytest.raises(TypeError):
        Session.__new__(Session)
    for made in (
        Session.__new__(Session, Fleet(), 5),
        Session.__new__(Session, Fleet(), 2**62),
        Session(Fleet(), 5, "", (), Setting(Policy(), Names())),
    ):
        with pytest.raises(SessionError, match=r"there is no session \d+"):
            made.step(Round())
        with pytest.raises(SessionError, match=r"there is no session \d+"):
            _ = made.done


def test_growth_does_not_touch_a_session():
    fleet = Fleet()
    session = fleet.session()
    for place in range(5):
        assert session.step(FAILED).features.round == place + 1
        fleet.open(10_000)


def test_a_copied_decision_says_the_same():
    decision = Fleet().session(context_limit=100).step(Round(context_tokens=80))
    assert numbers(copy.copy(decision)) == numbers(decision)
    assert copy.copy(decision).prompt == decision.prompt


# --- policies -------------------------------------------------------------------------------------
def test_a_session_goes_on_under_another_policy_from_its_next_round():
    off = Policy(loop_detection=False)
    fleet = Fleet(seed=1, policies={"usual": Policy(), "off": off})
    session, other = fleet.session(tools=["search", "read"]), fleet.session()
    again = Round([ToolCall("search", {"q": 1}, "one and the same long result")])
    for _ in range(4):
        before = session.step(again)
    assert before.action == Action.REDIRECT
    session.use_policy("off")
    assert session.decision is before and before.setting.policy == Policy()
    after = session.step(again)
    assert after.action != Action.REDIRECT
    assert (after.setting.policy, after.setting.tools) == (off, ("search", "read"))
    assert used(session) == {"search"}
    assert other.step(again).setting.policy == Policy()
    # A policy that is replaced reaches the handles of its sessions, and of no others.
    fleet.set_policy("usual", "cellium")
    assert other.step(again).setting.policy == Policy.preset("cellium")
    assert session.step(again).setting.policy == off
    assert fleet.step([other.id], [again])[0].setting.policy == Policy.preset("cellium")
    assert other.decision.setting.policy == Policy.preset("cellium")
    other.close()
    fleet.set_policy("usual", "default")    # with a handle of a closed session around
    with pytest.raises(SessionError, match="closed"):
        other.use_policy("off")


# --- tools ----------------------------------------------------------------------------------------
def used(session) -> set[str]:
    return set(session.decision.setting.used_tools)


def test_tools_used_so_far_go_with_a_decision():
    session = Fleet().session(tools=["search", "read", "edit"])
    assert session.decision.setting.tools == ("search", "read", "edit")
    assert used(session) == set()
    first = session.step(FAILED)
    assert used(session) == {"search"}
    session.step(Round([ToolCall("read"), ToolCall("edit"), ToolCall("other")]))
    assert used(session) == {"search", "read", "edit"}
    session.step(Round())
    assert used(session) == {"search", "read", "edit"}
    assert first.setting.used_tools == {"search"}


def test_tools_used_outlive_a_user_message():
    session = Fleet().session(tools=["search", "read"])
    session.step(FAILED)
    session.user_message()
    assert used(session) == {"search"}


def test_tools_do_not_change_a_decision():
    fleet, twin = Fleet(seed=1), Fleet(seed=1)
    left, right = fleet.session(tools=["a", "b"]), twin.session()
    for round in random_rounds(40):
        assert numbers(left.step(round)) == numbers(right.step(round))


@pytest.mark.parametrize("tools", [["a", "b"], ("a", "b"), np.array(["a", "b"])])
def test_tools_may_be_any_sequence(tools):
    session = Fleet().session(tools=tools)
    assert session.step(Round([ToolCall("b")])).setting.used_tools == {"b"}


def test_an_iterator_of_tools_is_not_lost():
    session = Fleet().session(tools=iter(["a", "b"]))
    assert session.decision.setting.tools == ("a", "b")


def test_tools_not_used_yet_are_hinted_at_when_the_agent_is_to_change():
    session = Fleet(seed=1).session(tools=["search", "glance"])
    for _ in range(8):
        decision = session.step(Round([ToolCall("search", {"q": "x"}, "nothing new")]))
        if decision.action == Action.REDIRECT:
            break
    assert decision.action == Action.REDIRECT
    assert "search" in decision.prompt
    assert "glance" in decision.prompt
    assert decision.cause == Cause.LOOP
