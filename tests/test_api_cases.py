"""What callers of agent controllers have complained about, case by case, through the public API."""

import math
from itertools import pairwise
from typing import Any

import pytest

from cellium_fast import (
    Action,
    Cause,
    Decision,
    Fleet,
    HardConstraintRenderer,
    Policy,
    Posterior,
    Round,
    Session,
    StopCause,
    ToolCall,
)

SUCCESS = ("complet", "done", "finish", "succe", "achiev", "accomplish", "fulfil")
STOPPING = (Action.REDIRECT, Action.TERMINATE)


def click(number: int) -> Round:
    """A click without effect, round after round."""
    return Round([ToolCall("click", {"id": 9}, "nothing happened")],
                 text=f"Clicking again {number}",
                 context_tokens=6_000 + 900 * number, context_limit=200_000)


def verify(number: int) -> Round:
    """A test run that is repeated for no reason."""
    return Round([ToolCall("run_tests", {"cmd": "make check"}, "24 tests passed in 0.31 s")],
                 text=f"Let me verify once more ({number}).",
                 context_tokens=6_000 + 900 * number, context_limit=200_000)


def work(number: int) -> Round:
    """A round that brings something new."""
    return Round([ToolCall("read_file", {"path": f"part_{number}.txt"}, f"chapter {number}: text")],
                 text=f"On to part {number + 1}, now that part {number} is read.",
                 context_tokens=6_000 + 900 * number, context_limit=200_000)


def only_repeated_rounds(count: int) -> Policy:
    """Nothing but equal rounds in a row trips."""
    rules: dict[str, Any] = {
        name: {"enabled": False} for name, _ in Policy().rules if name != "progressing"
    }
    rules["repeated_round"] = {"enabled": True, "repeats": count}
    return Policy(rules=rules)


def driven_to_a_stop(rounds: Any = click, **how: Any) -> tuple[Session, Decision]:
    session = Fleet(seed=3).session(**how)
    for number in range(30):
        decision = session.step(rounds(number))
        if decision.action == Action.TERMINATE:
            return session, decision
    raise AssertionError("it went on for thirty rounds")


# --- B43: a stop says why, and is no success -----------------------------------------------------
@pytest.mark.parametrize(("rounds", "tool"), [(click, "click"), (verify, "run_tests")])
def test_a_loop_stop_says_what_was_seen_and_claims_no_success(rounds: Any, tool: str) -> None:
    session, decision = driven_to_a_stop(rounds)
    assert decision.stop_cause is StopCause.LOOP
    assert decision.stop_cause == "loop"
    assert decision.cause is Cause.IGNORED
    seen = decision.evidence
    assert seen is not None
    assert (seen.rule, seen.tool, seen.error) == ("repeated_round", tool, None)
    assert seen.count == seen.rounds == decision.features.round_repeats > 5
    assert seen.unheeded_redirects == 5
    assert f"5 redirects ignored; same round {seen.count} times in a row: {tool}" in (
        decision.explain())
    for text in (decision.prompt, decision.explain()):
        assert tool in text
        assert not [word for word in SUCCESS if word in text.lower()]
    assert "Reason: redirects were ignored (5): calls repeat." in decision.prompt
    session.close(success=True)     # which is another question


def test_a_stop_after_failures_tells_the_error() -> None:
    def declined(number: int) -> Round:
        call = ToolCall("shell", {"cmd": "rm -r cache"}, "user declined this command", error=True)
        return Round([call], text=f"I need to clear the cache ({number}).")

    session, decision = driven_to_a_stop(declined)
    assert decision.stop_cause in (StopCause.LOOP, StopCause.FAILURES)
    assert decision.evidence and decision.evidence.error == "user declined this command"
    assert "Error: “user declined this command”." in decision.prompt
    session = Fleet(seed=3).session(tools=["shell", "ask_user"])
    for number in range(4):
        decision = session.step(declined(number))
        if decision.action == Action.REDIRECT:
            break
    assert 'Do not call "shell" with these arguments again.' in decision.prompt


@pytest.mark.parametrize(("cause", "how", "rounds"), [
    (StopCause.ROUNDS, {"round_limit": 3}, work),
    (StopCause.CONTEXT, {}, lambda number: Round(context_tokens=990, context_limit=1_000)),
    (StopCause.STAGNATION, {}, lambda number: Round(
        [ToolCall("search", {"page": number}, "The requested page has nothing on this subject.")]
    )),
])
def test_stop_causes(cause: StopCause, how: Any, rounds: Any) -> None:
    _, decision = driven_to_a_stop(rounds, **how)
    assert decision.stop_cause is cause


@pytest.mark.parametrize("rounds", [
    lambda number: Round(),
    lambda number: Round(text=" ".join(chr(97 + number * k % 26) * 4 for k in range(3, 12))),
    lambda number: Round([ToolCall("search", {"page": number}, "")]),
])
def test_what_is_only_slow_is_never_stopped(rounds: Any) -> None:
    session = Fleet(seed=3).session()
    actions = {session.step(rounds(number)).action for number in range(60)}
    assert Action.REDIRECT in actions
    assert Action.TERMINATE not in actions


def test_nothing_but_a_stop_has_a_stop_cause() -> None:
    session = Fleet(seed=3).session()
    actions = set()
    for number in range(6):
        decision = session.step(verify(number))
        actions.add(decision.action)
        assert decision.stop_cause is None
        assert (decision.evidence is None) == (decision.action == Action.CONTINUE)
    assert actions == {Action.CONTINUE, Action.RETRY, Action.REDIRECT}


# --- B44: going on after a stop ------------------------------------------------------------------
def test_a_user_message_after_a_stop_opens_a_new_task() -> None:
    session, _ = driven_to_a_stop(private=True)
    fleet = session._fleet
    learned = [
        {name: values.tolist() for name, values in posterior.items()}
        for posterior in (fleet.posterior(), fleet.private_posterior(session.id))
    ]
    session.user_message()
    assert not session.done and session.prompt == ""
    assert learned == [
        {name: values.tolist() for name, values in posterior.items()}
        for posterior in (fleet.posterior(), fleet.private_posterior(session.id))
    ]
    decision = session.step(work(1))
    features = decision.features
    assert decision.action == Action.CONTINUE and decision.prompt == ""
    assert (features.round_repeats, features.run_length, features.call_repeats) == (1, 1, 1)
    assert features.no_information == features.unheeded_redirects == features.text_repeats == 0
    assert features.stuck_iterations == features.failures_in_row == features.cycle == 0


# --- B45: advice does not fill the context it should save ----------------------------------------
def test_twenty_rounds_in_a_full_context_say_little() -> None:
    for seed in range(20):
        session = Fleet(seed=seed).session(context_limit=10_000)
        prompts = []
        for number in range(20):
            call = ToolCall("read", {"part": number}, f"part {number} of the book")
            session.step(Round([call], context_tokens=9_000))
            prompts.append(session.prompt)
        assert any("COMPRESS" in prompt for prompt in prompts)
        assert max(map(len, prompts)) <= 600
        said = [prompt for prompt in prompts if prompt]
        assert sum(map(len, said)) <= 600 * 20 / 2
        # Never the same text twice running, and compress is not asked for when it cannot help.
        assert not [one for one, two in pairwise(prompts) if one and one == two]
        assert sum("Action: COMPRESS" in prompt for prompt in prompts) <= 3


def test_unchanged_advice_is_given_once_in_so_many_rounds() -> None:
    policy = only_repeated_rounds(3).replace(repeat_interval=3)
    session = Fleet(seed=1, policies={"x": policy}).session()
    decisions = [session.step(verify(number)) for number in range(14)]
    assert [decision.advice_age for decision in decisions] == [0, 0, *range(12)]
    assert [decision.prompt != "" for decision in decisions] == [
        False, False, *[True, False, False] * 4
    ]
    always = HardConstraintRenderer()
    assert all(always.render(decision, repeat=True) for decision in decisions[2:])


def test_a_constraint_that_is_obeyed_disappears() -> None:
    session = Fleet(seed=1).session()
    for number in range(6):
        session.step(click(number))
    assert session.decision.action == Action.REDIRECT
    session.step(work(1))
    session.step(work(2))
    assert session.decision.action == Action.CONTINUE and session.prompt == ""


# --- B46: switching detection off, or tuning it for a tool, while a loop goes on -----------------
OFF = [
    Policy(loop_detection=False),
    Policy(tool_limits={"run_tests": "exempt"}),
    Policy(tool_limits={"run_tests": "poll"}),
]


@pytest.mark.parametrize("policy", OFF, ids=["off", "exempt", "poll"])
@pytest.mark.parametrize("way", ["replaced", "moved", "moved by the session"])
def test_detection_ends_with_the_round_after_it_is_switched_off(policy: Policy, way: str) -> None:
    for seed in range(20):
        fleet = Fleet(seed=seed, policies={"default": Policy(), "own": policy})
        session = fleet.session()
        for number in range(8):
            latched = session.step(verify(number))
        assert latched.action in STOPPING and latched.features.unheeded_redirects > 0
        if way == "replaced":
            fleet.set_policy("default", policy)
        elif way == "moved":
            fleet.use_policy([session.id], "own")
        else:
            session.use_policy("own")
        for number in range(8, 20):
            decision = session.step(verify(number))
            assert decision.action not in STOPPING, (seed, number, decision)
        assert latched.evidence is not None and latched.evidence.rule == "repeated_round"


def test_a_tool_limit_of_its_own_takes_effect_from_the_next_round() -> None:
    fleet = Fleet(seed=1)
    session = fleet.session()
    for number in range(2):
        session.step(verify(number))
    fleet.set_policy("default", Policy(tool_limits={"run_tests": 6}))
    actions = [session.step(verify(number)).action for number in range(2, 8)]
    assert [action in STOPPING for action in actions] == [False] * 3 + [True] * 3


# --- B47: thresholds are exact -------------------------------------------------------------------
BEFORE = ["at the start", "after a user message", "after other rounds"]


def begun(session: Session, before: str) -> Session:
    if before == "after other rounds":
        for number in range(4):
            session.step(work(number))
    if before == "after a user message":
        for number in range(4):
            session.step(verify(number))
        session.user_message()
    return session


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_exactly_the_nth_equal_round_trips(count: int, before: str) -> None:
    fleet = Fleet(seed=1, policies={"x": only_repeated_rounds(count)})
    session = begun(fleet.session(), before)
    decisions = [session.step(verify(number)) for number in range(count + 2)]
    assert [decision.action == Action.REDIRECT for decision in decisions] == (
        [False] * (count - 1) + [True] * 3)
    assert decisions[count - 1].cause is Cause.LOOP
    assert decisions[count - 1].evidence and decisions[count - 1].evidence.count == count


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_exactly_the_nth_equal_round_trips_the_limit_of_a_tool(count: int, before: str) -> None:
    policy = Policy(tool_limits={"run_tests": count})
    session = begun(Fleet(seed=1, policies={"x": policy}).session(), before)
    fired = ["repeated_round" in session.step(verify(number)).rules for number in range(count + 1)]
    assert fired == [False] * (count - 1) + [True] * 2


@pytest.mark.parametrize("limit", [1, 10])
def test_the_last_round_is_allowed_and_ends_the_session(limit: int) -> None:
    session = Fleet().session(round_limit=limit)
    for number in range(1, limit + 1):
        decision = session.step(work(number))
        assert (decision.action == Action.TERMINATE) == (number == limit) == session.done
    assert decision.features.round == limit
    assert decision.stop_cause is StopCause.ROUNDS and decision.cause is Cause.ROUND_LIMIT


# --- B48: limits that make no sense --------------------------------------------------------------
@pytest.mark.parametrize("limit", [0, -1, 2.5, math.nan, -math.inf, "5", True])
def test_a_round_limit_that_makes_no_sense_is_refused(limit: Any) -> None:
    fleet = Fleet()
    for opened in (fleet.session, lambda **how: fleet.open(2, **how)):
        with pytest.raises(ValueError, match=r"round_limit: wanted .*, got "):
            opened(round_limit=limit)
    assert len(fleet) == 0


@pytest.mark.parametrize("limit", [None, math.inf])
def test_no_round_limit(limit: Any) -> None:
    session = Fleet().session(round_limit=limit)
    for number in range(50):
        assert session.step(work(number)).action == Action.CONTINUE
    assert session.decision.features.rounds_left == -1


@pytest.mark.parametrize(("parameters", "field"), [
    ({"rules": {"repeated_round": {"repeats": value}}}, "rules.repeated_round.repeats")
    for value in (0, -1, 2.5, math.nan)
] + [
    ({"rules": {"context_high": {"saturation": value}}}, "rules.context_high.saturation")
    for value in (-0.1, math.nan)
] + [
    ({"repeat_interval": value}, "repeat_interval") for value in (0, -1, 2.5, math.nan)
] + [
    ({"posterior": {"decay": value}}, "posterior.decay") for value in (0, 1.5, -1, math.nan)
])
def test_a_threshold_that_makes_no_sense_is_refused(parameters: Any, field: str) -> None:
    with pytest.raises(ValueError, match=field.replace(".", r"\.")):
        Policy(**parameters)


@pytest.mark.parametrize("decay", [0, 1.5, math.nan])
def test_a_decay_that_makes_no_sense_is_refused(decay: Any) -> None:
    with pytest.raises(ValueError, match="decay"):
        Posterior(decay=decay)


# --- B49: a hard limit does not throw away the work ----------------------------------------------
def test_the_round_before_the_limit_asks_for_the_answer() -> None:
    session = Fleet().session(round_limit=5)
    decisions = [session.step(work(number)) for number in range(1, 7)]
    assert [decision.prompt != "" for decision in decisions[:3]] == [False] * 3
    assert "One round is left: the final answer MUST come in this round." in decisions[3].prompt
    assert decisions[3].action == Action.CONTINUE
    assert decisions[4].action == Action.TERMINATE
    assert decisions[4].stop_cause is StopCause.ROUNDS
    assert "round limit reached: 5 rounds" in decisions[4].explain()
    assert "Give a summary of the findings and the next steps." in decisions[4].prompt
    assert decisions[5].action == Action.TERMINATE      # and no exception
