"""Stage 2 on its own: reference features packed into records, evaluated by the compiled rules."""

import math

import numpy as np
import pytest
import reference
from conftest import mask, random_policy, reference_policy

from cellium_fast import Decisions, Policy, PolicyError, _records, _rules
from cellium_fast.decision import CAUSES, rules_in
from cellium_fast.explain import EVIDENCE

CONTINUE, RETRY, REDIRECT, COMPRESS, TERMINATE = range(5)
PRESETS = ("cellium", "default")


def features(**changes):
    """The opening's features with some changed, as the reference has them."""
    unknown = set(changes) - set(reference.opening_features())
    assert not unknown, unknown
    if "context_ratio" in changes:
        changes.setdefault("context_known", True)
    return {**reference.opening_features(), **changes}


def packed(rows):
    """The same features as records."""
    records = np.zeros(len(rows), _records.FEATURES)
    for record, row in zip(records, rows, strict=True):
        for name in set(row) & set(_records.FEATURES.names):
            record[name] = row[name]
        limit = row["round_limit"]
        record["rounds_left"] = -1 if limit is None else max(limit - row["round"], 0)
        record["context_saturation"] = min(row["context_ratio"], 1.0)
    return records


def evaluate(policy, rows):
    """(candidates, rules) masks of the compiled stage."""
    sessions = np.zeros(len(rows), _records.SESSION)
    decisions = Decisions(len(rows), np.zeros(len(rows), np.uint16), [])
    decisions.features[:] = packed(rows)
    batch = _records.Batch()
    batch.set_memory(
        sessions=sessions, policies=policy.record(), pools=np.zeros(1, _records.POOL), key=0
    )
    batch.set_input(slots=np.arange(len(rows)))
    batch.set_output(**decisions.columns())
    _rules.evaluate(batch.address, 0, len(rows))
    return decisions.candidates, decisions.rules


def fired(policy, **changes):
    """Names of the rules that fire on one row of features."""
    return rules_in(int(evaluate(policy, [features(**changes)])[1][0]))


def candidates(policy, **changes):
    """The candidate codes on one row of features."""
    found = int(evaluate(policy, [features(**changes)])[0][0])
    return [code for code in range(5) if found >> code & 1]


def on(**rules):
    """A policy with only these rules switched on."""
    parameters = {name: {"enabled": False} for name in _rules.RULES}
    parameters.update({name: {"enabled": True, **given} for name, given in rules.items()})
    return Policy(rules=parameters)


def test_bits_are_the_rows_of_the_table():
    assert _rules.RULES == reference.RULES
    assert _rules.RULES[: _rules.FIRST_PROPOSING] == reference.FORCING


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_those_of_the_page(name):
    assert reference_policy(Policy.preset(name)) == reference.policy(name)


# --- Each rule at its threshold ------------------------------------------------------------------
# rule, feature that moves, the thresholds of `cellium` and `default`, what else is needed, and
# whether it fires just below, at and just above the threshold.
FALLS = {"progress_trend": -0.5, "trend_confidence": 0.9}
BELOW, NOT_ABOVE, FROM, ABOVE = (1, 0, 0), (1, 1, 0), (0, 1, 1), (0, 0, 1)
EDGES = [
    ("output_loop", "output_repeats", 5, 5, {}, FROM),
    ("context_exhausted", "context_ratio", 0.95, 0.95, {}, FROM),
    ("round_limit", "round", None, 20, {"round_limit": 20}, FROM),
    ("failure_wall", "failures_in_row", 8, 8, {"progress_trend": -0.31}, FROM),
    ("failure_wall", "progress_trend", -0.3, -0.3, {"failures_in_row": 8}, BELOW),
    ("failure_wall", "stuck_iterations", 10, 10, {"failures_in_row": 8}, FROM),
    ("true_stagnation", "stuck_iterations", 5, 5, FALLS, FROM),
    ("true_stagnation", "stuck_iterations", 12, 12, FALLS, BELOW),
    ("true_stagnation", "stuck_iterations", 15, 15, FALLS, FROM),
    ("true_stagnation", "progress_trend", -0.3, -0.15,
     {"stuck_iterations": 6, "trend_confidence": 0.9}, BELOW),
    ("true_stagnation", "trend_confidence", 0.5, 0.5,
     {"stuck_iterations": 6, "progress_trend": -0.5}, ABOVE),
    ("bad_cycle", "result_quality", 0.4, 0.4, {"cycle": 2, "progress_trend": -0.1}, BELOW),
    ("bad_cycle", "progress_trend", 0.0, 0.0, {"cycle": 3, "result_quality": 0.3}, BELOW),
    ("bad_cycle", "stuck_iterations", 2, 2, {"cycle": 2, "result_quality": 0.3}, FROM),
    ("context_high", "context_ratio", 0.5, 0.75, {}, FROM),
    ("context_critical", "context_ratio", 0.85, 0.85, {}, FROM),
    ("failure_chain", "failures_in_row", 4, 4, {}, FROM),
    ("prolonged_stagnation", "stuck_iterations", 5, 5, {}, FROM),
    ("tool_repetition", "repetition_score", 0.7, 0.7, {}, ABOVE),
    ("mild_stagnation", "stuck_iterations", 1, 1, {}, FROM),
    ("moderate_stagnation", "stuck_iterations", None, 3, {"context_ratio": 0.5}, FROM),
    ("moderate_stagnation", "context_ratio", None, 0.5, {"stuck_iterations": 3}, FROM),
    ("slow_progress", "progress_trend", None, 0.0, {"stuck_iterations": 1}, ABOVE),
    ("slow_progress", "progress_trend", None, 0.3, {"stuck_iterations": 1}, BELOW),
    ("slow_progress", "progress_score", None, 0.5,
     {"stuck_iterations": 1, "progress_trend": 0.01}, NOT_ABOVE),
    ("slow_progress", "stuck_iterations", None, 1, {"progress_trend": 0.01}, FROM),
    ("progressing", "progress_score", None, 0.5, {"context_ratio": 0.9}, ABOVE),
]  # fmt: skip


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("edge", EDGES, ids=[f"{edge[0]}-{edge[1]}-{edge[3]}" for edge in EDGES])
def test_threshold(edge, preset):
    rule, feature, of_cellium, of_default, rest, expected = edge
    threshold = of_cellium if preset == "cellium" else of_default
    if isinstance(of_default, int):
        values = [of_default - 1, of_default, of_default + 1]
    else:
        value = of_default if threshold is None else threshold
        values = [math.nextafter(value, -9), value, math.nextafter(value, 9)]
    policy = Policy.preset(preset)
    for value, fires in zip(values, expected, strict=True):
        row = features(**{**rest, feature: value})
        found = int(evaluate(policy, [row])[1][0])
        fires = bool(fires) and threshold is not None
        assert (rule in rules_in(found)) == fires, (feature, value, rules_in(found))
        assert found == reference.evaluate_rules(row, reference.policy(preset))[1]


def test_every_rule_has_an_edge():
    assert {edge[0] for edge in EDGES} | {"tool_cycle"} == set(_rules.RULES)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_cycle_of_either_length_fires_its_own_rule_alone(preset):
    policy = Policy.preset(preset)
    for length, expected in ((0, False), (2, True), (3, True)):
        found = fired(policy, cycle=length, result_quality=0.9)
        assert ("tool_cycle" in found) == expected
        assert "tool_repetition" not in found, "the bit of a rule is set by that rule only"


def test_an_unknown_context_fires_no_context_rule():
    for preset in PRESETS:
        found = fired(
            Policy.preset(preset), context_ratio=2.0, context_known=False, stuck_iterations=3
        )
        assert set(found) == {"mild_stagnation"}


def test_a_plateau_holds_back_the_stagnation_rules():
    policy = Policy()
    held = {"prolonged_stagnation", "true_stagnation"}
    assert held <= set(fired(policy, stuck_iterations=9, **FALLS))
    assert not held & set(fired(policy, stuck_iterations=9, plateau=True, **FALLS))


def test_making_progress_holds_back_mild_stagnation():
    assert "mild_stagnation" in fired(Policy(), stuck_iterations=1)
    assert "mild_stagnation" not in fired(Policy(), stuck_iterations=1, making_progress=True)


def test_no_round_limit_is_never_reached():
    assert "round_limit" not in fired(Policy(), round=1_000_000)
    assert "round_limit" in fired(Policy(), round=3, round_limit=3)


# --- Effects -------------------------------------------------------------------------------------
# What one rule alone gives, beside nothing else.
EFFECTS = [
    ("output_loop", {"output_repeats": 5}, [TERMINATE], [TERMINATE]),
    ("context_exhausted", {"context_ratio": 0.96}, [TERMINATE], [TERMINATE]),
    ("round_limit", {"round": 9, "round_limit": 9}, None, [TERMINATE]),
    ("failure_wall", {"failures_in_row": 8, "stuck_iterations": 10}, [TERMINATE], [TERMINATE]),
    ("true_stagnation", {"stuck_iterations": 6, **FALLS}, [TERMINATE], [TERMINATE]),
    ("bad_cycle", {"cycle": 2, "stuck_iterations": 2}, [TERMINATE], [TERMINATE]),
    ("context_high", {"context_ratio": 0.8}, [COMPRESS], [COMPRESS]),
    ("context_critical", {"context_ratio": 0.9}, [REDIRECT, COMPRESS], [COMPRESS]),
    ("failure_chain", {"failures_in_row": 4}, [RETRY, REDIRECT], [RETRY, REDIRECT]),
    ("prolonged_stagnation", {"stuck_iterations": 5, "making_progress": True},
     [CONTINUE, REDIRECT], [REDIRECT]),
    ("tool_cycle", {"cycle": 3, "result_quality": 1.0}, [REDIRECT], [REDIRECT]),
    ("tool_cycle", {"cycle": 3, "result_quality": 1.0, "context_ratio": 0.5},
     [REDIRECT, COMPRESS], [REDIRECT, COMPRESS]),
    ("tool_cycle", {"cycle": 3, "result_quality": 1.0, "context_ratio": 0.49},
     [REDIRECT], [REDIRECT]),
    ("tool_repetition", {"repetition_score": 0.75}, [REDIRECT], [REDIRECT]),
    ("tool_repetition", {"repetition_score": 0.75, "context_ratio": 0.5},
     [REDIRECT, COMPRESS], [REDIRECT, COMPRESS]),
    ("mild_stagnation", {"stuck_iterations": 1}, [RETRY], [RETRY]),
    ("moderate_stagnation", {"stuck_iterations": 3, "context_ratio": 0.5}, None,
     [RETRY, COMPRESS]),
    ("slow_progress", {"stuck_iterations": 1, "progress_trend": 0.1, "making_progress": True},
     None, [CONTINUE, RETRY]),
    ("progressing", {}, [CONTINUE], [CONTINUE]),
    ("progressing", {"failures_in_row": 4, "making_progress": True},
     [CONTINUE, RETRY, REDIRECT], [CONTINUE, RETRY, REDIRECT]),
    ("progressing", {"failures_in_row": 4, "progress_score": 0.6}, None,
     [CONTINUE, RETRY, REDIRECT]),
]  # fmt: skip


@pytest.mark.parametrize("effect", EFFECTS, ids=[f"{one[0]}-{i}" for i, one in enumerate(EFFECTS)])
def test_effect(effect):
    rule, row, of_cellium, of_default = effect
    for preset, expected in (("cellium", of_cellium), ("default", of_default)):
        if expected is not None:
            policy = Policy.preset(preset)
            assert rule in fired(policy, **row), preset
            assert candidates(policy, **row) == expected, preset


def test_forcing_rules_go_in_their_order_and_all_are_recorded():
    rules = {
        name: {"actions": [place % 5]} for place, name in enumerate(reference.FORCING)
    }  # each forces another action, so that the winner shows
    everything = {
        "output_repeats": 9, "context_ratio": 1.5, "round": 5, "round_limit": 5,
        "failures_in_row": 9, "stuck_iterations": 11, "cycle": 2, "repetition_score": 1.0, **FALLS,
    }  # fmt: skip
    for place, name in enumerate(reference.FORCING):
        rules_on = {
            later: {"enabled": reference.FORCING.index(later) >= place, **rules[later]}
            for later in reference.FORCING
        }
        policy = Policy(rules=rules_on)
        assert candidates(policy, **everything) == [place % 5], name
        expected = set(reference.FORCING[place:]) | {"context_high", "tool_cycle"}
        assert expected <= set(fired(policy, **everything))


@pytest.mark.parametrize("rule", _rules.RULES)
def test_a_rule_switched_off_neither_fires_nor_acts(rule):
    row = next(effect[1] for effect in EFFECTS if effect[0] == rule)
    policy = on(**{rule: {}})
    assert fired(policy, **row) == (rule,)
    assert fired(on(), **row) == ()
    assert candidates(on(), **row) == [CONTINUE], "with nothing proposed it goes on"


@pytest.mark.parametrize("rule", _rules.RULES)
def test_changed_actions(rule):
    row = next(effect[1] for effect in EFFECTS if effect[0] == rule)
    for actions in ([TERMINATE], [RETRY]) if rule in reference.FORCING else ([RETRY, TERMINATE],):
        policy = on(**{rule: {"actions": actions}})
        assert candidates(policy, **row) == actions


def test_a_forcing_rule_forces_exactly_one_action():
    for actions in ([], [RETRY, TERMINATE]):
        with pytest.raises(PolicyError, match="bad_cycle"):
            Policy(rules={"bad_cycle": {"actions": actions}})


@pytest.mark.parametrize("rule", reference.PROPOSING)
def test_a_rule_alone_replaces_every_other_proposal(rule):
    row = next(effect[1] for effect in EFFECTS if effect[0] == rule)
    other = "prolonged_stagnation" if rule != "prolonged_stagnation" else "failure_chain"
    row = {**row, "stuck_iterations": 9, "failures_in_row": 9}
    for alone, expected in ((False, [CONTINUE, TERMINATE]), (True, [TERMINATE])):
        given = {
            rule: {"actions": [TERMINATE], "alone": alone},
            other: {"actions": [CONTINUE]},
        }
        assert candidates(on(**given), **row) == expected, alone


def test_alone_does_not_hold_back_a_forcing_rule():
    row = {"context_ratio": 0.9, "output_repeats": 5}
    assert candidates(Policy(), **row) == [TERMINATE]


# --- Against the reference -----------------------------------------------------------------------
NEAR = {
    "progress_score": [0.0, 0.3, 0.5, 0.51, 0.7, 0.8, 1.0],
    "stuck_iterations": [0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 15, 20],
    "progress_trend": [-0.5, -0.31, -0.3, -0.15, -0.1, -0.05, 0.0, 0.02, 0.1, 0.29, 0.3, 0.5],
    "trend_confidence": [0.0, 0.05, 0.3, 0.5, 0.51, 0.9],
    "context_ratio": [0.0, 0.2, 0.3, 0.5, 0.6, 0.75, 0.85, 0.9, 0.95, 1.2, 3.0],
    "context_known": [True, True, False],
    "repetition_score": [0.0, 0.2, 0.25, 0.5, 0.7, 0.75, 1.0],
    "result_quality": [0.0, 0.39, 0.4, 0.5, 0.6, 0.9],
    "cycle": [0, 0, 2, 3],
    "output_repeats": [0, 0, 1, 2, 3, 5, 8],
    "plateau": [False, False, True],
    "making_progress": [False, True],
    "failures_in_row": [0, 0, 2, 3, 4, 5, 8],
    "round": [1, 5, 9, 10],
    "round_limit": [None, 10],
}


def test_random_features_and_policies_equal_the_reference(rng):
    seen = set()
    for place in range(30):
        preset = rng.choice(PRESETS)
        policy = Policy.preset(preset) if place < 4 else random_policy(rng, preset)
        rows = [
            features(**{name: rng.choice(choices) for name, choices in NEAR.items()})
            for _ in range(300)
        ]
        masks, fired_rules = evaluate(policy, rows)
        same = reference_policy(policy)
        for row, found, rules in zip(rows, masks, fired_rules, strict=True):
            expected, expected_rules = reference.evaluate_rules(row, same)
            assert rules_in(int(rules)) == rules_in(expected_rules), row
            assert found == mask(expected), row
            seen.update(rules_in(expected_rules))
    assert seen == set(_rules.RULES)


def test_every_rule_is_known_everywhere():
    rules = list(_rules.RULES)
    assert list(type(Policy().rules).model_fields) == rules, "policy.Rules has the rules in order"
    assert set(CAUSES) == set(rules) - {"progressing"}, "decision.CAUSES"
    assert set(EVIDENCE) == set(rules), "explain.EVIDENCE"
    assert list(reference.RULES) == rules, "reference_policies"
