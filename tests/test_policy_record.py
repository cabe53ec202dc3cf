"""The packed record of a policy, which kernels read."""

import math
from typing import Any

import numpy as np
import pytest
import rules_of_users
from policy_tables import ALONE, DEFAULT, LAST_RESORTS, PROPOSING, REDIRECT, nested

from cellium_fast import Action, Policy, _records, _rules
from cellium_fast._ingest import hash_tool


def record_leaves(record: np.void, before: str = "") -> dict[str, Any]:
    """Every number of a packed record by path."""
    found: dict[str, Any] = {}
    for name in record.dtype.names:
        value = record[name]
        path = f"{before}{name}"
        if isinstance(value, np.void):
            found.update(record_leaves(value, f"{path}."))
        elif np.ndim(value):
            found.update({f"{path}[{place}]": one for place, one in enumerate(value.tolist())})
        else:
            found[path] = value.item()
    return found


OTHER_WORD = {
    "count_failures": "calls", "count_cycles": "calls", "tie_break": "first", "credit": "newest",
    "update": "one_side", "learn_from": "all", "posterior.decay_target": 3.0,
    "frequent_tools": ("ls",), "tool_limits": (("ls", 3),),
    "rules.tool_cycle.compress_from": 0.25,
    "rules.tool_repetition.compress_from": 0.25,
    "user_rules": (rules_of_users.every_third,), "user_reward": rules_of_users.halved,
    "user_bias": (rules_of_users.never,),
}
RENAMED = {
    "count_failures": ("count_failed_rounds",),
    "count_cycles": ("count_round_cycles",),
    "loop_detection": ("rules_enabled",),
    "frequent_tools": ("frequent_tool_count", "frequent_tools[0]"),
    "tool_limits": ("limited_tool_count", "limited_tools[0]", "tool_limits[0]"),
    "credit": ("backward_credit",),
    "update": ("threshold_update",),
    "learn_from": ("learn_from_all",),
    # Functions are in a record of their own.
    "user_rules": ("user_action_rules[2]",), "user_reward": (), "user_bias": (),
    "posterior.alpha": ("prior.alpha", "prior.target_alpha"),
    "posterior.beta": ("prior.beta", "prior.target_beta"),
    "posterior.decay_target": ("prior.target_alpha", "prior.target_beta"),
    "bias.cold_start_factor": ("cold_start_factor",),
    "bias.cold_start_updates": ("cold_start_updates",),
}


def another(path: str, value: Any) -> Any:
    """A value that is not this parameter's default."""
    if path in OTHER_WORD:
        return OTHER_WORD[path]
    if isinstance(value, bool):
        return not value
    if isinstance(value, tuple):
        return (Action((value[0] + 2) % len(Action)),)
    return value + 1 if isinstance(value, int) else value / 2


def places(path: str) -> tuple[str, ...]:
    """Where the record keeps a parameter; of actions, those between the default and `another`."""
    if path in RENAMED:
        return RENAMED[path]
    section, _, name = path.rpartition(".")
    if section.startswith("rules."):
        if name == "actions":
            moved = set(DEFAULT[path]) ^ set(another(path, DEFAULT[path]))
            return tuple(f"action_rules[{int(action)}]" for action in moved)
        rule = section.removeprefix("rules.")
        return ({"enabled": "rules_enabled", "alone": "rules_alone",
                 "after_redirect": "rules_after_redirect"}.get(name, f"{rule}_{name}"),)
    return ({"bias": f"bias_{name}", "posterior": f"prior.{name}"}.get(section, name),)


@pytest.mark.parametrize("path", DEFAULT)
def test_every_parameter_changes_its_place_of_the_record_and_no_other(path):
    value = another(path, DEFAULT[path])
    before = record_leaves(Policy().record()[0])
    after = record_leaves(Policy(**nested(path, value)).record()[0])
    assert {name for name in before if before[name] != after[name]} == set(places(path))


@pytest.mark.parametrize(
    "path", [path for path, value in DEFAULT.items() if type(value) in (int, float)]
)
def test_the_record_holds_the_very_number(path):
    value = another(path, DEFAULT[path])
    record = record_leaves(Policy(**nested(path, value)).record()[0])
    assert all(record[place] == value for place in places(path))


def test_no_field_of_the_record_is_left_out():
    reached = {place for path in DEFAULT for place in places(path)}
    fields = set(record_leaves(np.zeros(1, _records.POLICY)[0]))
    tables = ("frequent_tools", "limited_tools", "tool_limits")
    of_lists = {f"{table}[{place}]" for table in tables for place in range(1, 16)}
    # tests/test_user_rules.py has what becomes of these.
    of_users = {f"user_action_rules[{action}]" for action in range(5)} | {"user_forcing"}
    assert fields - reached - of_users == of_lists


@pytest.mark.parametrize(("bit", "rule"), list(enumerate(_rules.RULES)))
def test_rule_switches_and_masks_stand_at_the_rule_s_bit(bit, rule):
    other = "retry" if DEFAULT[f"rules.{rule}.actions"] == REDIRECT else "redirect"
    parameters = {"enabled": not DEFAULT[f"rules.{rule}.enabled"], "actions": [other]}
    if rule in PROPOSING:
        parameters["alone"] = rule not in ALONE
    if rule in LAST_RESORTS:
        parameters["after_redirect"] = False
    record = Policy(rules={rule: parameters}).record()[0]
    plain = Policy().record()[0]
    assert record["rules_enabled"] == plain["rules_enabled"] ^ (1 << bit)
    assert record["rules_alone"] == plain["rules_alone"] ^ ((rule in PROPOSING) << bit)
    waits = rule in LAST_RESORTS
    assert record["rules_after_redirect"] == plain["rules_after_redirect"] ^ (waits << bit)
    has = [action for action in Action if record["action_rules"][action] >> bit & 1]
    assert has == [Action.parse(other)]


def test_choices_in_the_record():
    default, cellium = Policy().record()[0], Policy.preset("cellium").record()[0]
    for name, of_default, of_cellium in [
        ("count_failed_rounds", 1, 0), ("backward_credit", 0, 1), ("threshold_update", 0, 1),
        ("learn_from_all", 0, 0), ("tool_cycle_compress_from", math.inf, math.inf),
        ("tool_repetition_compress_from", math.inf, math.inf),
        ("progressing_progress", 0.5, math.inf), ("compress_tries", 2, 256),
        ("count_round_cycles", 1, 0), ("limited_tool_count", 0, 0), ("repeat_interval", 5, 1),
    ]:
        assert (default[name], cellium[name]) == (of_default, of_cellium), name
    assert default["prior"]["target_alpha"] == 2.0
    assert cellium["prior"]["target_alpha"] == 1.0


@pytest.mark.parametrize(("word", "code"), [("thompson", 0), ("greedy", 1), ("first", 2)])
def test_tie_breaks_have_the_codes_of_the_kernels(word, code):
    assert Policy(tie_break=word).record()["tie_break"][0] == code


def test_frequent_tools_are_kept_as_mixed_hashes():
    names = [f"tool{place}" for place in range(16)]
    record = Policy(frequent_tools=names).record()[0]
    assert record["frequent_tool_count"] == 16
    assert record["frequent_tools"].tolist() == [_records.mix(hash_tool(name)) for name in names]


def test_limits_of_tools_are_kept_as_mixed_hashes_with_numbers():
    limits = {"poll": "poll", "free": "exempt", "one": 1, "most": 254}
    record = Policy(tool_limits=limits).record()[0]
    assert record["limited_tool_count"] == 4
    hashes = [_records.mix(hash_tool(name)) for name in limits]
    assert record["limited_tools"].tolist() == hashes + [0] * 12
    assert record["tool_limits"].tolist() == [60, 255, 1, 254] + [0] * 12


def test_as_many_tools_as_the_record_holds_have_a_limit():
    limits = {f"tool{place}": place + 1 for place in range(16)}
    record = Policy(tool_limits=limits).record()[0]
    assert record["tool_limits"].tolist() == list(range(1, 17))


def test_loop_detection_switches_rules_in_the_record_only():
    assert Policy(loop_detection=False).rules == Policy().rules
    off = [0, 4, 5, 9, 10, 11, 20, 21, 22, 23, 24, 25, 27, 28, 29]
    bits = ~sum(1 << bit for bit in off)
    for given in ({}, {"rules": {"true_stagnation": {"enabled": True}}}):
        before = int(Policy(**given).record()["rules_enabled"][0])
        assert Policy(loop_detection=False, **given).record()["rules_enabled"][0] == before & bits
