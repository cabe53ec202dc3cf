"""Explanations: the evidence of every rule, what was compared, and words that stay harmless."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellium_fast import (
    Action,
    Cause,
    Decision,
    Decisions,
    Evidence,
    Fleet,
    Policy,
    Round,
    RoundBatch,
    StopCause,
    ToolCall,
    _records,
    _rules,
)
from cellium_fast.cause import CAUSES, COUNTED, STOPS
from cellium_fast.decision import Setting
from cellium_fast.explain import EVIDENCE, REASONS, evidence, explain, safe_text
from cellium_fast.names import Names

USER_FEATURES = [
    "progress_score", "progress_trend", "stuck_iterations",
    "context_saturation", "repetition_score", "error_rate",
]
ALONE = {name for name, rule in Policy().rules if getattr(rule, "alone", False)}
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
    ("output_loop", {"output_repeats": 1}, "same answer text 1 time"),
    ("output_loop", {"output_repeats": 10}, "same answer text 10 or more times"),
    ("context_exhausted", {"context_saturation": 0.956}, "context 96 % full"),
    ("context_exhausted", {"context_saturation": 0.97, "exhausted_rounds": 3},
     "context 97 % full, 3 rounds in a row"),
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
    ("tool_cycle", {"cycle": 5, "recent_tools": mixed(3, 2, 1)}, "calls alternate: a, b, c, ..."),
    ("redirects_ignored", {"unheeded_redirects": 5}, "5 redirects ignored"),
    ("compression_failed", {"context_saturation": 0.92, "compress_tries": 2},
     "context 92 % full, compressed 2 times without help"),
    ("transient_failure", {"transient_rounds": 1, "error_result": mixed(4)[0]},
     "1 round failed in a way that may pass: timeout (after) 30 s"),
    ("transient_persists", {"transient_rounds": 6}, "6 rounds failed in a way that may pass"),
    ("repeated_round", {"round_repeats": 14, "recent_tools": mixed(1, 2, 3)},
     "same round 14 times in a row: a"),
    ("repeated_call", {"call_repeats": 4, "no_information": 3, "recent_tools": mixed(1, 2, 3)},
     "same call and result 4 times: a, 3 rounds without news"),
    ("repeated_result", {"result_repeats": 5, "no_information": 3, "recent_tools": mixed(1, 2, 3)},
     "same result 5 times: a, 3 rounds without news"),
    ("repeated_error",
     {"error_repeats": 3, "recent_tools": mixed(1, 2, 3), "error_result": mixed(4)[0]},
     "same error in 3 rounds: a: timeout (after) 30 s"),
    ("no_information", {"no_information": 5, "recent_tools": mixed(1, 2, 3)},
     "5 rounds without news: a"),
    ("little_information", {"little_information": 8, "recent_tools": mixed(1, 2, 3)},
     "8 rounds with little news or none: a"),
    ("mostly_failing", {"recent_failures": 9, "no_information": 2, "error_result": mixed(4)[0]},
     "9 of the last 12 calls failed, 2 rounds without news: timeout (after) 30 s"),
    ("repeated_text", {"text_repeats": 5}, "nearly the same text 5 times"),
    ("idle", {"idle_rounds": 8}, "8 rounds without a tool call"),
    ("idle", {"idle_rounds": 8, "blank_rounds": 5},
     "8 rounds without a tool call, 5 without a text"),
    ("loop_suspected", {"information": 1, "round_repeats": 2, "recent_tools": mixed(1, 2, 3)},
     "first signs; same round 2 times in a row: a"),
    ("loop_suspected", {"idle_rounds": 4}, "first signs; 4 rounds without a tool call"),
])
def test_evidence_of_each_rule(rule, features, sentence):
    decision = decide([rule], **features)
    assert evidence(decision) == {rule: sentence}
    assert sentence in explain(decision)


def test_a_conclusion_tells_what_it_rests_on():
    decision = decide(["redirects_ignored", "repeated_round", "no_information"],
                      unheeded_redirects=5, round_repeats=8, recent_tools=mixed(1, 1, 1))
    assert evidence(decision)["redirects_ignored"] == (
        "5 redirects ignored; same round 8 times in a row: a"
    )


# --- for machines --------------------------------------------------------------------------------
def acting(action: Action, rules: list[str], policy: Policy | None = None, **features) -> Decision:
    decision = decide(rules, policy, **features)
    decisions = Decisions(1, np.zeros(1, np.uint16), [decision.setting])
    for name, column in decisions.columns().items():
        column[:] = np.zeros(1, column.dtype)
        if name == "rules":
            column[:] = decision._record.rules
    for name, value in features.items():
        decisions.features[name] = value
    decisions.action[0] = action
    return decisions[0]


def test_every_rule_but_progressing_has_a_cause_and_every_cause_a_stop_cause():
    assert set(CAUSES) == set(_rules.RULES) - {"progressing"}
    assert set(STOPS) == set(Cause) and set(STOPS.values()) == set(StopCause)
    assert set(COUNTED) == set(CAUSES) - {
        "context_high", "context_critical", "loop_suspected",   # by the rule it points to
    }


def test_the_page_has_the_causes_in_their_order():
    page = (Path(__file__).parent.parent / "docs" / "semantics.md").read_text("utf-8")
    rows = page.partition("| rules, in this order |")[2].partition("\n\n")[0].splitlines()[2:]
    written = []
    for row in rows:
        rules, cause, stop = (cell.strip() for cell in row.strip("|").split("|"))
        for rule in re.findall(r"`(\w+)`", rules):
            written.append((rule, cause))
            assert stop in ("as below", STOPS[Cause(cause)]), row
    assert written == list(CAUSES.items())


def test_a_rule_that_forces_goes_before_one_that_stands_alone():
    policy = Policy(rules={"idle": {"actions": ["terminate"]}})
    assert acting(Action.TERMINATE, ["round_limit", "idle"], policy).cause == Cause.ROUND_LIMIT
    assert acting(Action.TERMINATE, ["idle"], policy).cause == Cause.IDLE


@pytest.mark.parametrize(("rules", "cause", "stop"), [
    (["output_loop", "round_limit"], "output_loop", "loop"),
    (["context_exhausted"], "context", "context"),
    (["round_limit", "redirects_ignored", "repeated_round"], "round_limit", "rounds"),
    (["failure_wall"], "failures", "failures"),
    (["true_stagnation"], "stagnation", "stagnation"),
    (["bad_cycle"], "loop", "loop"),
    (["redirects_ignored", "repeated_round", "no_information"], "ignored", "loop"),
    (["redirects_ignored", "repeated_error"], "ignored", "failures"),
    (["redirects_ignored", "no_information"], "ignored", "stagnation"),
    (["redirects_ignored", "compression_failed"], "ignored", "context"),
    (["redirects_ignored", "transient_persists"], "ignored", "failures"),
    (["redirects_ignored", "idle"], "ignored", "stagnation"),
    (["redirects_ignored", "repeated_text"], "ignored", "loop"),
    (["redirects_ignored"], "ignored", "loop"),
    (["progressing"], "none", "policy"),
])
def test_stop_causes(rules, cause, stop):
    decision = acting(Action.TERMINATE, rules)
    assert (decision.cause, decision.stop_cause) == (cause, stop)
    assert acting(Action.REDIRECT, rules).stop_cause is None


def test_evidence_names_tool_count_rounds_and_error():
    seen = acting(
        Action.REDIRECT, ["repeated_call"], recent_tools=mixed(2, 1, 1), call_repeats=4,
        no_information=3, failures_in_row=0, error_result=mixed(4)[0], unheeded_redirects=2,
    ).evidence
    assert seen == Evidence("repeated_call", "b", 4, 3, None, 2)
    seen = acting(
        Action.REDIRECT, ["tool_repetition"], recent_tools=mixed(2, 1, 1), run_tool=mixed(1)[0],
        run_length=5, failures_in_row=5, error_result=mixed(4)[0],
    ).evidence
    assert seen == Evidence("tool_repetition", "a", 5, 0, "timeout\n[after] 30 s", 0)
    seen = acting(Action.COMPRESS, ["context_high"], recent_tools=[9, 9, 9]).evidence
    assert seen == Evidence("context_high", None, None, None, None, 0)
    assert acting(Action.CONTINUE, ["progressing"]).evidence is None
    assert acting(Action.RETRY, ["progressing"]).evidence is None


def test_evidence_of_a_conclusion_is_that_of_the_rule_behind_it():
    seen = acting(
        Action.TERMINATE, ["redirects_ignored", "idle"], idle_rounds=13, unheeded_redirects=5
    ).evidence
    assert seen == Evidence("idle", None, 13, 13, None, 5)
    seen = acting(Action.TERMINATE, ["redirects_ignored"], unheeded_redirects=5).evidence
    assert seen == Evidence("redirects_ignored", None, 5, 5, None, 5)
    seen = acting(Action.RETRY, ["loop_suspected"], information=1, error_repeats=2).evidence
    assert seen == Evidence("repeated_error", None, 2, 2, None, 0)


def test_the_opening_decision():
    text = explain(Fleet().session("x", context_limit=100).decision)
    assert text.splitlines()[0] == "Before the first round: continue"
    assert "Rules that fired: none" in text
    assert "context_saturation unknown" in text
    assert evidence(Fleet().session("x").decision) == {}


def test_a_loop_through_a_session_tells_tool_count_and_cause():
    session = Fleet(seed=1).session("x", context_limit=1000)
    for _ in range(5):
        session.step(Round([ToolCall("search", {"q": 1}, "same")], context_tokens=770))
    decision = session.decision
    text = decision.explain()
    assert "tool_repetition" in decision.rules
    assert evidence(decision)["tool_repetition"] == "same call 5 times: search"
    assert text.startswith("Round 5: redirect (cause: loop, calls repeat)")
    alone = [rule for rule in decision.rules if rule in ALONE]
    assert text.endswith(f"Only candidate: redirect ({' and '.join(alone)} overrules the others)")
    assert "context_saturation 0.77, repetition_score 0.75, error_rate 0.00" in text
    for feature in USER_FEATURES:
        assert feature in text
    for rule, sentence in evidence(decision).items():
        assert re.search(rf"^  {rule} +{re.escape(sentence)}$", text, re.MULTILINE)
    assert list(evidence(decision)) == list(decision.rules)


def test_failures_tell_the_error():
    session = Fleet(seed=1).session("x")
    for number in range(5):
        error = f"no such column, attempt {number} " + "x" * 500
        session.step(Round([ToolCall("fetch", {"n": number}, error=error)]))
    sentence = evidence(session.decision)["failure_chain"]
    assert sentence.startswith("5 failures in a row: no such column, attempt ")
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
    policy = Policy(tie_break=tie_break, rules={
        "failure_chain": {"actions": ["retry", "redirect"], "alone": False, "failures": 4},
        **{rule: {"enabled": False} for rule in _rules.RULES[16:]},
    })
    session = Fleet(seed=1, policies={"x": policy}).session("x")
    for number in range(4):
        session.step(Round([ToolCall("fetch", {"n": number}, error="refused")]))
    return session


def test_a_single_candidate_and_a_forced_action():
    session = Fleet(seed=1).session("x")
    session.step(Round([ToolCall("search", 1, "found")]))
    assert explain(session.decision).endswith("Only candidate: continue")
    session = Fleet(seed=1, policies={"x": Policy.preset("cellium")}).session("x")
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
    assert len(text.splitlines()) <= len(_rules.RULES) + 6
    assert max(map(len, text.splitlines())) <= 120


def test_a_batch_explains_too():
    fleet = Fleet(seed=1)
    ids = fleet.open(2, context_limit=100)
    for text in range(1, 4):
        decisions = fleet.step(ids, RoundBatch(
            context_tokens=np.array([10, 96]), text=np.full(2, text, np.uint64)
        ))
    assert "Only candidate: continue" in explain(decisions[0])
    assert evidence(decisions[1])["context_exhausted"] == "context 96 % full, 3 rounds in a row"


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
