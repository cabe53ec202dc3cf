"""Stage 2 on its own: reference features packed into records, evaluated by the compiled rules."""

import math

import numpy as np
import pytest
import reference
from conftest import mask, random_policy, reference_policy
from reference_evidence import compression_failed
from reference_policies import LOOP_RULES
from reference_rules import compress_is_ready
from rule_tables import BROUGHT, CYCLE, EDGES, EFFECTS, FALLS, NEAR

from cellium_fast import Decisions, Policy, PolicyError, _records, _rules
from cellium_fast.cause import CAUSES, rules_in
from cellium_fast.explain import EVIDENCE

CONTINUE, RETRY, REDIRECT, COMPRESS, TERMINATE = range(5)
PRESETS = ("cellium", "default")


def features(**changes):
    """The opening's features with some changed, as the reference has them."""
    unknown = set(changes) - set(reference.opening_features())
    assert not unknown, unknown
    if "context_ratio" in changes:
        changes.setdefault("context_known", True)
        # A context that is exhausted has been so for long, unless said otherwise.
        exhausted = changes["context_known"] and changes["context_ratio"] >= 0.95
        changes.setdefault("exhausted_rounds", 9 * exhausted)
    return {**reference.opening_features(), **changes}


def packed(policy, rows):
    """The same features as records, with what of them is worked out before the rules."""
    records, same = np.zeros(len(rows), _records.FEATURES), reference_policy(policy)
    for record, row in zip(records, rows, strict=True):
        for name in set(row) - {"round_limit"}:
            record[name] = row[name]
        record["compress_ready"] = compress_is_ready(row, same)
        known, ratio = row["context_known"], row["context_ratio"]
        record["compression_failed"] = compression_failed(known, ratio, row, same)
        limit = row["round_limit"]
        record["rounds_left"] = -1 if limit is None else max(limit - row["round"], 0)
        record["context_saturation"] = min(row["context_ratio"], 1.0)
    return records


def evaluate(policy, rows):
    """(candidates, rules) masks of the compiled stage."""
    sessions = np.zeros(len(rows), _records.SESSION)
    decisions = Decisions(len(rows), np.zeros(len(rows), np.uint16), [])
    decisions.features[:] = packed(policy, rows)
    batch = _records.Batch()
    batch.set_memory(
        sessions=sessions, policies=policy.record(), pools=np.zeros(1, _records.POOL), key=0
    )
    batch.set_input(slots=np.arange(len(rows)))
    batch.set_output(**decisions.columns())
    _rules.evaluate(batch, 0, len(rows))
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
    assert sum(1 << _rules.RULES.index(name) for name in reference.FORCING) == _rules.FORCING
    assert sum(1 << _rules.RULES.index(name) for name in LOOP_RULES) == _rules.LOOP_RULES


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_those_of_the_page(name):
    assert reference_policy(Policy.preset(name)) == reference.policy(name)


# --- Each rule at its threshold ------------------------------------------------------------------
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("edge", EDGES, ids=[f"{edge[0]}-{edge[1]}-{edge[3]}" for edge in EDGES])
def test_threshold(edge, preset):
    rule, feature, of_cellium, of_default, rest, expected = edge
    threshold = of_cellium if preset == "cellium" else of_default
    value = next(one for one in (threshold, of_default, of_cellium) if one is not None)
    around = (value - 1, value, value + 1)
    if isinstance(value, float):
        around = (math.nextafter(value, -9), value, math.nextafter(value, 9))
    policy = Policy.preset(preset)
    for moved, fires in zip(around, expected, strict=len(expected) == 3):
        row = features(**{**rest, feature: moved})
        found = int(evaluate(policy, [row])[1][0])
        fires = bool(fires)
        if threshold is None:
            fires = preset == "cellium" and fires_without(rule, feature)
        assert (rule in rules_in(found)) == fires, (feature, moved, rules_in(found))
        assert found == reference.evaluate_rules(row, reference.policy(preset))[1]


def fires_without(rule, feature):
    """Whether a rule of `cellium` does not look at this feature, and the rest makes it fire."""
    later = {
        "unheeded_redirects", "information", "idle_rounds", "own_limit", "compress_tries",
        "compress_wait",
    }  # fmt: skip
    return rule in reference.RULES[:8] and feature in later


@pytest.mark.parametrize("line", BROUGHT, ids=[f"{line[0]}-{i}" for i, line in enumerate(BROUGHT)])
def test_in_which_rounds_a_rule_may_fire(line):
    rule, row, expected = line
    policy = on(**{rule: {}})
    found = {code for code in range(5) if rule in fired(policy, **row, information=code)}
    assert found == expected
    same = reference_policy(policy)
    for code in range(5):
        rules = reference.evaluate_rules(features(**row, information=code), same)[1]
        assert (rule in rules_in(rules)) == (code in expected)


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
        for tries in (0, 9):
            found = fired(
                Policy.preset(preset), context_ratio=2.0, context_known=False, stuck_iterations=3,
                compress_tries=tries,
            )
            assert set(found) == {"mild_stagnation"}


def test_a_plateau_holds_back_the_stagnation_rules():
    policy = Policy(rules={"true_stagnation": {"enabled": True, "after_redirect": False}})
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
    }  # each forces another action than those next to it, so that the winner shows
    everything = {
        "output_repeats": 9, "context_ratio": 1.5, "round": 5, "round_limit": 5,
        "failures_in_row": 9, "stuck_iterations": 11, "cycle": 2, "repetition_score": 1.0, **FALLS,
        "unheeded_redirects": 5, "information": 1,
    }  # fmt: skip
    others = {"context_critical": {"alone": False}}
    for place, name in enumerate(reference.FORCING):
        rules_on = {
            later: {"enabled": reference.FORCING.index(later) >= place, **rules[later]}
            for later in reference.FORCING
        }
        policy = Policy(rules={**rules_on, **others})
        assert candidates(policy, **everything) == [place % 5], name
        expected = set(reference.FORCING[place:]) | {"context_high", "tool_cycle"}
        assert expected <= set(fired(policy, **everything))
        assert not set(reference.FORCING[:place]) & set(fired(policy, **everything))


@pytest.mark.parametrize("rule", _rules.RULES)
def test_a_rule_switched_off_neither_fires_nor_acts(rule):
    row = next(effect[1] for effect in EFFECTS if effect[0] == rule)
    fires = (*NEEDED.get(rule, ()), rule)
    assert fired(on(**{key: {} for key in fires}), **row) == fires
    assert fired(on(**{key: {} for key in fires[:-1]}), **row) == fires[:-1]
    assert fired(on(), **row) == ()
    assert candidates(on(), **row) == [CONTINUE], "with nothing proposed it goes on"


# A rule that looks at what others propose.
NEEDED = {"redirects_ignored": ("failure_chain",)}


@pytest.mark.parametrize("rule", _rules.RULES)
def test_loop_detection_switches_the_rules_for_repetition_and_stagnation(rule):
    row = next(effect[1] for effect in EFFECTS if effect[0] == rule)
    fires = (*NEEDED.get(rule, ()), rule)
    policy = on(**{key: {} for key in fires}).replace(loop_detection=False)
    assert (rule in fired(policy, **row)) == (rule not in LOOP_RULES)
    expected = reference.evaluate_rules(features(**row), reference_policy(policy))[1]
    assert fired(policy, **row) == rules_in(expected)


@pytest.mark.parametrize("rule", _rules.RULES)
def test_changed_actions(rule):
    row = next(effect[1] for effect in EFFECTS if effect[0] == rule)
    for actions in ([TERMINATE], [RETRY]) if rule in reference.FORCING else ([RETRY, TERMINATE],):
        needed = {key: {} for key in NEEDED.get(rule, ())}
        policy = on(**needed, **{rule: {"actions": actions}})
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
            other: {"actions": [CONTINUE], "alone": False},
        }
        assert candidates(on(**given), **row) == expected, alone


def test_rules_that_are_alone_share_the_field():
    policy = on(
        failure_chain={"alone": True}, idle={"actions": ["compress"], "alone": True},
        mild_stagnation={"actions": ["terminate"]}, progressing={},
    )  # fmt: skip
    row = {"failures_in_row": 5, "idle_rounds": 8, "stuck_iterations": 1, "progress_score": 0.9}
    assert candidates(policy, **row) == [REDIRECT, COMPRESS]


def test_alone_does_not_hold_back_a_forcing_rule():
    row = {"context_ratio": 0.9, "output_repeats": 5, "unheeded_redirects": 1, "information": 1}
    assert candidates(Policy(), **row) == [TERMINATE]


# --- Compress, when it is ready ------------------------------------------------------------------
@pytest.mark.parametrize(("rule", "row"), [
    ("tool_cycle", CYCLE), ("tool_repetition", {"repetition_score": 0.9}),
])  # fmt: skip
@pytest.mark.parametrize("alone", [True, False])
def test_a_loop_adds_compress_in_a_full_context_while_it_is_ready(rule, row, alone):
    policy = on(**{rule: {"compress_from": 0.5, "alone": alone}})
    ready = {"compress_wait": 3, "compress_tries": 1}
    assert candidates(policy, **row, **ready, context_ratio=0.5) == [REDIRECT, COMPRESS]
    assert candidates(policy, **row, **ready, context_ratio=0.49) == [REDIRECT]
    for unready in ({"compress_wait": 2}, {"compress_tries": 2}):
        assert candidates(policy, **row, **{**ready, **unready}, context_ratio=0.5) == [REDIRECT]
    never = on(**{rule: {"compress_from": None, "alone": alone}})
    assert candidates(never, **row, **ready, context_ratio=5.0) == [REDIRECT]


def test_a_critical_context_waits_for_compress_only_if_it_proposes_it():
    for actions, fires in ((["redirect"], True), (["compress", "redirect"], False)):
        policy = on(context_critical={"actions": actions})
        for unready in ({"compress_wait": 2}, {"compress_tries": 2}):
            found = fired(policy, context_ratio=0.9, **unready)
            assert ("context_critical" in found) == fires


def test_compress_never_given_up_does_not_fail():
    row = {"context_ratio": 0.9, "compress_tries": 255}
    assert "compression_failed" in fired(on(compression_failed={}), **row)
    patient = on(compression_failed={}).replace(compress_tries=None)
    assert "compression_failed" not in fired(patient, **row)
    assert "context_high" in fired(on(context_high={}).replace(compress_tries=None), **row)


# --- Rules that look at other rules --------------------------------------------------------------
def test_redirects_ignored_needs_redirect_among_what_is_left_to_propose():
    row = {"unheeded_redirects": 5, "stuck_iterations": 5, "context_ratio": 0.9}
    redirecting = {"prolonged_stagnation": {"actions": ["redirect"]}, "redirects_ignored": {}}
    assert candidates(on(**redirecting), **row) == [TERMINATE]
    dropped = on(**redirecting, context_critical={"alone": True})
    assert candidates(dropped, **row) == [COMPRESS]
    assert "redirects_ignored" not in fired(dropped, **row)
    progress = on(progressing={"actions": ["redirect"]}, redirects_ignored={})
    assert candidates(progress, unheeded_redirects=5) == [REDIRECT]


@pytest.mark.parametrize("rule", ["compression_failed", "little_information", "idle"])
def test_redirects_of_a_mild_rule_are_never_ignored(rule):
    row = next(effect[1] for effect in EFFECTS if effect[0] == rule)
    row = {**row, "unheeded_redirects": 255}
    mild = on(**{rule: {}}, redirects_ignored={})
    assert fired(mild, **row) == (rule,)
    assert candidates(mild, **row) == [REDIRECT]
    assert candidates(Policy(), **row) == [REDIRECT]
    # Another rule beside it asks for the same.
    both = mild.replace(rules={"tool_repetition": {"enabled": True}})
    assert candidates(both, **row, repetition_score=0.7) == [REDIRECT]
    assert candidates(both, **row, repetition_score=0.71) == [TERMINATE]
    dropped = both.replace(rules={"tool_repetition": {"alone": False}})
    assert candidates(dropped, **row, repetition_score=0.71) == [REDIRECT]


def test_repetition_is_none_while_the_rule_for_what_may_pass_waits():
    waiting, row = on(tool_repetition={}, transient_failure={}), {"repetition_score": 0.9}
    for rounds, expected in ((0, True), (1, False), (5, False), (6, False), (255, False)):
        found = fired(waiting, **row, transient_rounds=rounds)
        assert ("tool_repetition" in found) == expected, rounds
        assert "tool_repetition" in fired(on(tool_repetition={}), **row, transient_rounds=rounds)
        # It is a round of thought after them that is looked at.
        assert "tool_repetition" in fired(waiting, **row, transient_rounds=rounds, idle_rounds=1)


@pytest.mark.parametrize("rule", [rule for rule in reference.PROPOSING if rule != "loop_suspected"])
def test_a_loop_is_only_suspected_while_no_rule_redirects_or_terminates(rule):
    row = {**next(effect[1] for effect in EFFECTS if effect[0] == rule), "idle_rounds": 9}
    for action in range(5):
        policy = on(**{rule: {"actions": [action], "alone": False}, "loop_suspected": {}})
        suspected = "loop_suspected" in fired(policy, **row)
        assert suspected == (action not in (REDIRECT, TERMINATE)), action
    assert "loop_suspected" in fired(on(loop_suspected={}), **row)


def test_progressing_does_not_count_beside_a_loop_unless_it_is_told_to():
    row = {"making_progress": True, "repetition_score": 0.9}
    for yields, expected in ((True, [REDIRECT]), (False, [CONTINUE, REDIRECT])):
        policy = on(tool_repetition={"alone": False}, progressing={"yields": yields})
        assert candidates(policy, **row) == expected
    # A rule that may not fire does not hold it back either.
    policy = on(tool_repetition={"alone": False}, progressing={}, mild_stagnation={"alone": False})
    assert "progressing" in fired(policy, **row, own_limit=9)


# --- Against the reference -----------------------------------------------------------------------
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
