"""Explanations: the evidence of every rule, what was compared, and words that stay harmless."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellium_fast import (
    Action,
    Cause,
    Decision,
    Decisions,
    Fleet,
    Policy,
    Round,
    RoundBatch,
    ToolCall,
    _records,
    _rules,
)
from cellium_fast.decision import Setting
from cellium_fast.explain import EVIDENCE, REASONS, evidence, explain, safe_text
from cellium_fast.names import Names

USER_FEATURES = [
    "progress_score", "progress_trend", "stuck_iterations",
    "context_saturation", "repetition_score", "error_rate",
]
SUCCESS = re.compile("complet|done|finish|success|achiev|accomplish|fulfil", re.IGNORECASE)


def decide(rules: list[str], policy: Policy | None = None, **features: object) -> Decision:
    """A decision as a step packs it, with the tools 1 = a, 2 = b, 3 = c and the error 4."""
    names = Names()
    names.learn({1: "a", 2: "b", 3: "c"}, {4: "timeout\n[after] 30 s"})
    decisions = Decisions(1, np.zeros(1, np.uint16), [Setting(policy or Policy(), names)])
    for column in decisions.columns().values():
        column[:] = np.zeros(1, column.dtype)
    for name, value in features.items():
        decisions.features[name] = value
    decisions.rules[0] = sum(1 << _rules.RULES.index(rule) for rule in rules)
    return decisions[0]


def mixed(*numbers: int) -> list[int]:
    return [_records.mix(number) for number in numbers]


def test_every_rule_has_a_sentence():
    assert tuple(EVIDENCE) == _rules.RULES
    assert set(REASONS) == set(Cause)


@pytest.mark.parametrize(("rule", "features", "sentence"), [
    ("output_loop", {"output_repeats": 5}, "same answer text 5 times"),
    ("output_loop", {"output_repeats": 10}, "same answer text 10 or more times"),
    ("context_exhausted", {"context_saturation": 0.956}, "context 96 % full"),
    ("round_limit", {"round": 30}, "round limit reached: 30 rounds"),
    ("failure_wall", {"stuck_iterations": 11, "failures_in_row": 8, "progress_trend": -0.31},
     "stuck for 11 rounds, progress trend -0.31, 8 failures in a row"),
    ("true_stagnation", {"stuck_iterations": 6, "progress_trend": -0.16},
     "stuck for 6 rounds, progress trend -0.16"),
    ("bad_cycle", {"cycle": 2, "recent_tools": mixed(2, 1, 2), "result_quality": 0.31},
     "calls alternate: a, b; result quality 0.31"),
    ("context_high", {"context_saturation": 0.868}, "context 87 % full"),
    ("context_critical", {"context_saturation": 0.9}, "context 90 % full"),
    ("failure_chain", {"failures_in_row": 4, "error_result": mixed(4)[0]},
     "4 failures in a row: timeout (after) 30 s"),
    ("failure_chain", {"failures_in_row": 10, "error_result": 99}, "10+ failures in a row"),
    ("prolonged_stagnation", {"stuck_iterations": 6}, "stuck for 6 rounds"),
    ("tool_cycle", {"cycle": 3, "recent_tools": mixed(3, 2, 1)}, "calls alternate: a, b, c"),
    ("tool_cycle", {"cycle": 3, "run_length": 6, "run_tool": mixed(1)[0]}, "same call 6 times: a"),
    ("tool_repetition", {"run_length": 4, "run_tool": mixed(2)[0]}, "same call 4 times: b"),
    ("tool_repetition", {"run_length": 5, "run_tool": 0xBEEF}, "same call 5 times: #0000beef"),
    ("mild_stagnation", {"stuck_iterations": 1}, "stuck for 1 round"),
    ("moderate_stagnation", {"stuck_iterations": 3, "context_saturation": 0.6},
     "stuck for 3 rounds, context 60 % full"),
    ("slow_progress", {"progress_score": 0.4, "progress_trend": 0.05, "stuck_iterations": 2},
     "progress score 0.40, trend +0.05, stuck for 2 rounds"),
    ("progressing", {"making_progress": True}, "making progress"),
    ("progressing", {"progress_score": 0.6}, "progress score 0.60, stuck for 0 rounds"),
])
def test_evidence_of_each_rule(rule, features, sentence):
    decision = decide([rule], **features)
    assert evidence(decision) == {rule: sentence}
    assert sentence in explain(decision)


def test_the_opening_decision():
    text = explain(Fleet().session("x", context_limit=100).decision)
    assert text.splitlines()[0] == "Before the first round: continue"
    assert "Rules that fired: none" in text
    assert "context_saturation unknown" in text
    assert evidence(Fleet().session("x").decision) == {}


def test_a_loop_through_a_session_tells_tool_count_and_cause():
    session = Fleet(seed=1).session("x", context_limit=1000)
    for _ in range(5):
        session.step(Round([ToolCall("search", {"q": 1}, "same")], context_tokens=870))
    decision = session.decision
    text = decision.explain()
    assert "tool_repetition" in decision.rules
    assert evidence(decision)["tool_repetition"] == "same call 5 times: search"
    assert text.startswith(f"Round 5: compress (cause: {decision.cause}, ")
    assert text.endswith("Only candidate: compress (context_critical overrules the others)")
    assert "context_saturation 0.87, repetition_score 0.75, error_rate 0.00" in text
    for feature in USER_FEATURES:
        assert feature in text
    for rule, sentence in evidence(decision).items():
        assert re.search(rf"^  {rule} +{re.escape(sentence)}$", text, re.MULTILINE)
    assert list(evidence(decision)) == list(decision.rules)


def test_failures_tell_the_error():
    session = Fleet(seed=1).session("x")
    for number in range(4):
        error = f"connection refused, attempt {number} " + "x" * 500
        session.step(Round([ToolCall("fetch", {"n": number}, error=error)]))
    sentence = evidence(session.decision)["failure_chain"]
    assert sentence.startswith("4 failures in a row: connection refused, attempt ")
    assert len(sentence) < 120


@pytest.mark.parametrize(("tie_break", "word"), [("thompson", "draw"), ("greedy", "mean")])
def test_candidates_with_numbers_and_the_winner(tie_break, word):
    session = failing_session(tie_break)
    decision = session.decision
    text = explain(decision)
    assert len(decision.candidates) > 1
    for action in decision.candidates:
        line = next(line for line in text.splitlines() if line.startswith(f"  {action} "))
        numbers = [decision.draws[action], decision.bias[action], decision.scores[action]]
        shown = [float(number) for number in re.findall(r"[-+]?\d\.\d{3}", line)]
        assert shown == pytest.approx(numbers, abs=0.0006)
        assert word in line and "bias" in line and "score" in line
    best = max(decision.scores, key=decision.scores.__getitem__)
    assert f"Highest score: {best}" in text and best == decision.action


def test_first_candidate_has_no_numbers():
    decision = failing_session("first").decision
    text = explain(decision)
    assert "Candidates: retry, redirect" in text
    assert "First candidate: retry" in text
    assert "score" not in text.split("Candidates:")[1]


def failing_session(tie_break):
    session = Fleet(seed=1, policies={"x": Policy(tie_break=tie_break)}).session("x")
    for number in range(4):
        session.step(Round([ToolCall("fetch", {"n": number}, error="refused")]))
    return session


def test_a_single_candidate_and_a_forced_action():
    session = Fleet(seed=1).session("x")
    session.step(Round([ToolCall("search", 1, "found")]))
    assert explain(session.decision).endswith("Only candidate: continue")
    for _ in range(5):
        session.step(Round(text="the same"))
    assert session.done
    text = explain(session.decision)
    assert text.endswith("Forced by output_loop: terminate")
    assert "same answer text 5 times" in text
    assert "(cause: output_loop, the same answer text again and again)" in text


@pytest.mark.parametrize("rule", _rules.RULES)
@pytest.mark.parametrize("action", Action)
def test_a_stop_is_never_worded_as_success(rule, action):
    policy = Policy(rules={rule: {"actions": [str(action)]}})
    decision = decide([rule, "progressing"], policy, stuck_iterations=3, round=7)
    decisions = Decisions(1, np.zeros(1, np.uint16), [decision.setting])
    for column in decisions.columns().values():
        column[:] = np.zeros(1, column.dtype)
    decisions.action[0] = action
    decisions.rules[0] = decision._record.rules
    assert not SUCCESS.search(explain(decisions[0]))
    assert not SUCCESS.search(explain(decision))


def test_it_fits_a_screen_even_when_every_rule_fires():
    names = mixed(1, 2, 3)
    text = explain(decide(list(_rules.RULES), cycle=3, recent_tools=names, run_tool=names[0]))
    assert len(text.splitlines()) <= 24
    assert max(map(len, text.splitlines())) <= 120


def test_a_batch_explains_too():
    fleet = Fleet(seed=1)
    ids = fleet.open(2, context_limit=100)
    decisions = fleet.step(ids, RoundBatch(context_tokens=np.array([10, 96])))
    assert "Only candidate: continue" in explain(decisions[0])
    assert evidence(decisions[1])["context_exhausted"] == "context 96 % full"


# --- outside text --------------------------------------------------------------------------------
ANYTHING = st.text() | st.text(
    alphabet=st.characters(categories=["Cs", "Cc", "Cf", "Zl", "Zp", "Zs", "Ps", "Pe"])
)


@settings(max_examples=300, deadline=None)
@given(text=ANYTHING, length=st.integers(1, 60))
def test_safe_text_is_short_printable_and_cannot_open_a_section(text, length):
    safe = safe_text(text, length)
    assert len(safe) <= length
    assert safe.isprintable() and not set("[]") & set(safe)
    assert len(safe.splitlines()) <= 1
    safe.encode()
    assert safe_text(safe, length) == safe


def test_safe_text_keeps_plain_names_and_tames_the_rest():
    assert safe_text("read_file", 40) == "read_file"
    assert safe_text("Grüße_読む", 40) == "Grüße_読む"
    assert safe_text("a\r\n\tb\x00\u2028c\u202ed\ud800e", 40) == "a b c d e"
    assert safe_text("[x] \uff3by\uff3d \u3010z\u3011", 40) == "(x) (y) (z)"
    assert safe_text("x" * 10**6, 10) == "x" * 9 + "…"
    assert safe_text("\u200b" * 10**6 + "x", 10) == "…"


@settings(max_examples=100, deadline=None)
@given(name=ANYTHING, error=ANYTHING)
def test_names_and_errors_add_no_lines(name, error):
    names = Names()
    names.learn({1: name}, {2: error})
    decision = decide(["failure_chain", "tool_repetition"], run_length=4, failures_in_row=4,
                      run_tool=mixed(1)[0], error_result=mixed(2)[0])
    hostile = Decision(decision._record, Setting(Policy(), names))
    text = explain(hostile)
    text.encode()
    assert len(text.splitlines()) == len(explain(decision).splitlines())
