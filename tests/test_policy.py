"""`Policy`: its numbers, presets, files, refusals, and the record that kernels read."""

import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel

from cellium_fast import Action, Policy, PolicyError, Posterior, UnknownNameError, _records, _rules
from cellium_fast._ingest import hash_tool


def flat(values: dict[str, Any], before: str = "") -> dict[str, Any]:
    """The leaves of nested dicts by dotted path."""
    found = {}
    for name, value in values.items():
        path = f"{before}{name}"
        found.update(flat(value, f"{path}.") if isinstance(value, dict) else {path: value})
    return found


def nested(path: str, value: Any) -> dict[str, Any]:
    for name in reversed(path.split(".")):
        value = {name: value}
    return value


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


def refused(words: tuple[str, ...], **parameters: Any) -> None:
    with pytest.raises(PolicyError) as caught:
        Policy(**parameters)
    for word in words:
        assert word in str(caught.value)


PROPOSING = _rules.RULES[_rules.FIRST_PROPOSING : -1]


# --- the numbers themselves -----------------------------------------------------------------------
CONTINUE, RETRY, REDIRECT, COMPRESS, TERMINATE = ((action,) for action in Action)

DEFAULT = {
    "ema_alpha": 0.3, "empty_is_unproductive": False, "stale_is_unproductive": True,
    "match_results": True, "newest_run_only": True, "count_failures": "rounds",
    "frequent_tools": (), "tie_break": "thompson", "n_step": 3, "gamma": 1.0,
    "credit": "forward", "update": "both", "learn_from": "tiebreak",
    "rules.output_loop.actions": TERMINATE, "rules.output_loop.repeats": 5,
    "rules.context_exhausted.actions": TERMINATE, "rules.context_exhausted.saturation": 0.95,
    "rules.round_limit.actions": TERMINATE,
    "rules.failure_wall.actions": TERMINATE, "rules.failure_wall.failures": 8,
    "rules.failure_wall.trend": -0.3, "rules.failure_wall.stuck": 10,
    "rules.true_stagnation.actions": TERMINATE, "rules.true_stagnation.stuck": 5,
    "rules.true_stagnation.pause_from": 12, "rules.true_stagnation.pause_to": 15,
    "rules.true_stagnation.trend": -0.15, "rules.true_stagnation.confidence": 0.5,
    "rules.bad_cycle.actions": TERMINATE, "rules.bad_cycle.quality": 0.4,
    "rules.bad_cycle.stuck": 2,
    "rules.context_high.actions": COMPRESS, "rules.context_high.saturation": 0.75,
    "rules.context_critical.actions": COMPRESS, "rules.context_critical.saturation": 0.85,
    "rules.failure_chain.actions": RETRY + REDIRECT, "rules.failure_chain.failures": 4,
    "rules.prolonged_stagnation.actions": REDIRECT, "rules.prolonged_stagnation.stuck": 5,
    "rules.tool_cycle.actions": REDIRECT, "rules.tool_cycle.compress_from": 0.5,
    "rules.tool_repetition.actions": REDIRECT, "rules.tool_repetition.repetition": 0.7,
    "rules.tool_repetition.compress_from": 0.5,
    "rules.mild_stagnation.actions": RETRY, "rules.mild_stagnation.stuck": 1,
    "rules.moderate_stagnation.actions": COMPRESS, "rules.moderate_stagnation.stuck": 3,
    "rules.moderate_stagnation.saturation": 0.5,
    "rules.slow_progress.actions": RETRY, "rules.slow_progress.trend": 0.3,
    "rules.slow_progress.progress": 0.5, "rules.slow_progress.stuck": 1,
    "rules.progressing.actions": CONTINUE, "rules.progressing.progress": 0.5,
    "rules.progressing.yields": True,
    "bias.redirect_repetition": 0.03, "bias.redirect_stuck": 0.04, "bias.retry_stuck": 0.02,
    "bias.retry_slow": 0.01, "bias.compress_saturation": 0.03, "bias.compress_stuck": 0.02,
    "bias.continue_progress": 0.02, "bias.continue_unstuck": 0.03,
    "bias.cold_start_factor": 5.0, "bias.cold_start_updates": 5,
    "feedback.round_cost": 0.1, "feedback.saturation_cost": 0.2,
    "feedback.saturation_from": 0.8, "feedback.failure_reward": 0.3,
    "posterior.alpha": 2.0, "posterior.beta": 2.0, "posterior.decay": 0.99,
    "posterior.decay_every": 50, "posterior.decay_target": "prior",
} | {f"rules.{rule}.enabled": True for rule in _rules.RULES} | {
    f"rules.{rule}.alone": rule == "context_critical" for rule in PROPOSING
}

CELLIUM = {
    "empty_is_unproductive": True,
    "stale_is_unproductive": False,
    "match_results": False,
    "newest_run_only": False,
    "count_failures": "calls",
    "rules.round_limit.enabled": False,
    "rules.true_stagnation.trend": -0.3,
    "rules.context_high.saturation": 0.5,
    "rules.context_critical.actions": REDIRECT,
    "rules.context_critical.alone": False,
    "rules.tool_cycle.compress_from": None,
    "rules.tool_repetition.compress_from": None,
    "rules.moderate_stagnation.enabled": False,
    "rules.slow_progress.enabled": False,
    "rules.progressing.progress": None,
    "rules.progressing.yields": False,
    "feedback.failure_reward": 0.0,
    "credit": "newest",
    "update": "one_side",
    "posterior.decay_target": 1.0,
}


def test_default_has_the_numbers_of_the_spec():
    assert flat(Policy().model_dump()) == DEFAULT


def test_cellium_differs_from_default_in_what_the_spec_says_and_nothing_else():
    default, cellium = flat(Policy().model_dump()), flat(Policy.preset("cellium").model_dump())
    assert {path: cellium[path] for path in cellium if cellium[path] != default[path]} == CELLIUM
    assert cellium.keys() == default.keys()


def test_preset_default_is_the_plain_policy():
    assert Policy.preset("default") == Policy()


def test_rules_stand_in_the_order_of_their_bits():
    assert tuple(Policy().rules.model_dump()) == tuple(_rules.RULES)


def test_defaults_are_made_without_a_check_but_would_pass_it():
    assert Policy.defaults() == Policy() == Policy(**Policy.defaults().model_dump())
    assert Policy.defaults().model_fields_set == set()


def test_one_thread_at_a_time_builds_the_validators(monkeypatch):
    inside, most = [], []

    def build(cls, **options):
        inside.append(threading.get_ident())
        most.append(len(inside))
        time.sleep(0.001)
        inside.pop()

    monkeypatch.setattr(BaseModel, "model_rebuild", classmethod(build))
    with ThreadPoolExecutor(4) as threads:
        for _ in range(20):
            threads.submit(Policy.model_rebuild)
    assert most == [1] * 20


# --- merging -------------------------------------------------------------------------------------
def test_sections_merge_over_the_default():
    policy = Policy(rules={"output_loop": {"repeats": 4}}, feedback={"round_cost": 0.2})
    changed = {"rules.output_loop.repeats": 4, "feedback.round_cost": 0.2}
    assert flat(policy.model_dump()) == DEFAULT | changed


def test_overrides_merge_over_a_preset():
    policy = Policy.preset("cellium", rules={"tool_cycle": {"compress_from": 0.4}}, n_step=2)
    changed = {"rules.tool_cycle.compress_from": 0.4, "n_step": 2}
    assert flat(policy.model_dump()) == DEFAULT | CELLIUM | changed


def test_overriding_a_preset_leaves_the_preset_as_it_was():
    Policy.preset("cellium", rules={"context_high": {"saturation": 0.9}}, credit="forward")
    assert flat(Policy.preset("cellium").model_dump()) == DEFAULT | CELLIUM


def test_replace_merges_and_leaves_the_original():
    first = Policy.preset("cellium")
    second = first.replace(bias={"retry_slow": 0.5}).replace(rules={"bad_cycle": {"stuck": 9}})
    changed = {"bias.retry_slow": 0.5, "rules.bad_cycle.stuck": 9}
    assert flat(second.model_dump()) == DEFAULT | CELLIUM | changed
    assert first == Policy.preset("cellium")


def test_replace_with_nothing_gives_an_equal_policy():
    policy = Policy.preset("cellium", frequent_tools=("ls", "cat"))
    assert policy.replace() == policy


def test_a_section_may_be_a_model():
    policy = Policy.preset("cellium", posterior=Posterior(alpha=3.0, decay_target=1.0))
    assert flat(policy.model_dump()) == DEFAULT | CELLIUM | {"posterior.alpha": 3.0}


def test_actions_may_be_names_codes_or_actions():
    given = [["retry", "compress"], [1, 3], (Action.RETRY, Action.COMPRESS)]
    policies = [Policy(rules={"tool_cycle": {"actions": actions}}) for actions in given]
    assert policies[0] == policies[1] == policies[2]
    assert policies[0].rules.tool_cycle.actions == (Action.RETRY, Action.COMPRESS)


# --- frozen --------------------------------------------------------------------------------------
@pytest.mark.parametrize("path", ["n_step", "rules", "rules.output_loop.repeats",
                                  "bias.retry_slow", "posterior.alpha", "feedback.round_cost"])
def test_policies_are_frozen(path):
    policy = Policy()
    *sections, name = path.split(".")
    part: Any = policy
    for section in sections:
        part = getattr(part, section)
    with pytest.raises(PolicyError, match=f"{name}: parameters are frozen"):
        setattr(part, name, getattr(part, name))
    assert policy == Policy()


def test_policies_cannot_gain_attributes():
    with pytest.raises(ValueError):
        Policy().threshold = 3


# --- refusals ------------------------------------------------------------------------------------
NONSENSE = [
    ("ema_alpha", [0, -0.1, 1.01, math.nan, math.inf, "x", None, []]),
    ("empty_is_unproductive", ["maybe", None, 2]),
    ("count_failures", ["tools", None, 1]),
    ("frequent_tools", ["ls", [1], ["a"] * 17, None]),
    ("tie_break", ["ucb", None]),
    ("n_step", [0, 5, -1, 1.5, math.nan, "x", None]),
    ("gamma", [0, 1.1, math.nan]),
    ("credit", ["backward"]),
    ("update", ["none"]),
    ("learn_from", ["some"]),
    ("rules", [5, None, []]),
    ("rules.output_loop.repeats", [0, 11, 2.5, math.nan]),
    ("rules.output_loop.enabled", ["perhaps"]),
    ("rules.context_exhausted.saturation", [0, -1, math.nan, math.inf]),
    ("rules.failure_wall.failures", [0, 11]),
    ("rules.failure_wall.trend", [-1.1, 1.1, math.nan]),
    ("rules.failure_wall.stuck", [0, 65536]),
    ("rules.true_stagnation.confidence", [-0.1, 1.1, math.nan]),
    ("rules.bad_cycle.quality", [-0.1, 1.1]),
    ("rules.tool_cycle.compress_from", [0, math.inf, "x"]),
    ("rules.tool_repetition.repetition", [1.5, math.nan]),
    ("rules.slow_progress.progress", [2, math.nan]),
    ("rules.failure_chain.actions", ["retry", 5, None, [9], ["jump"], [None]]),
    ("bias.retry_slow", [-0.1, 1.5, math.nan]),
    ("bias.cold_start_factor", [-1, 101, math.inf]),
    ("bias.cold_start_updates", [-1, 256, 1.5]),
    ("feedback.round_cost", [-0.1, 1.1, math.nan]),
    ("feedback.saturation_from", [1, -0.1]),
    ("posterior.alpha", [0, -1, 1e7, math.nan, math.inf]),
    ("posterior.beta", [0, math.inf]),
    ("posterior.decay", [0, 1.1, math.nan]),
    ("posterior.decay_every", [-1, 65536, 0.5]),
    ("posterior.decay_target", ["mean", 0, math.nan, math.inf]),
]


@pytest.mark.parametrize(
    ("path", "value"), [(path, value) for path, values in NONSENSE for value in values]
)
def test_nonsense_is_refused_with_field_and_value(path, value):
    words = (path,) if isinstance(value, list) else (path, repr(value))
    refused(words, **nested(path, value))


@pytest.mark.parametrize("path", ["n_step", "ema_alpha", "rules.output_loop.repeats",
                                  "posterior.alpha"])
def test_a_bool_is_no_number(path):
    refused((path, "True"), **nested(path, True))


@pytest.mark.parametrize("path", [
    "treshold", "rules.output_lop", "rules.output_loop.repeat", "bias.terminate", "posterior.gamma",
    "feedback.cost", "name",
])
def test_unknown_keys_are_named(path):
    refused((f"{path}: there is no such parameter",), **nested(path, 1))


@pytest.mark.parametrize("name", ["self", "cls"])
def test_unknown_keys_that_are_python_words_are_named_too(name):
    refused((name, "no such parameter"), **{name: 1})


def test_all_that_is_wrong_is_told_at_once():
    refused(("n_step", "gamma", "rules.x"), n_step=9, gamma=9, rules={"x": 1})


@pytest.mark.parametrize(("rule", "wrong"), [
    ("tool_cycle", {"alone": True, "actions": []}),
    ("true_stagnation", {"pause_from": 20}),
])
def test_what_is_wrong_with_a_section_as_a_whole_is_told_at_its_path(rule, wrong):
    with pytest.raises(PolicyError) as caught:
        Policy(rules={rule: wrong})
    assert [field for field, _ in caught.value.problems] == [f"rules.{rule}"]


@pytest.mark.parametrize("rule", _rules.RULES[:6])
@pytest.mark.parametrize("actions", [[], ["retry", "terminate"]])
def test_a_forcing_rule_forces_exactly_one_action(rule, actions):
    refused((rule, "exactly one"), rules={rule: {"actions": actions}})


@pytest.mark.parametrize("rule", _rules.RULES[6:])
def test_an_action_stands_once_in_a_rule(rule):
    refused((rule, "twice"), rules={rule: {"actions": ["retry", "retry"]}})


@pytest.mark.parametrize("rule", _rules.RULES[:6])
def test_a_forcing_rule_may_force_another_action(rule):
    policy = Policy(rules={rule: {"actions": ["compress"]}})
    assert getattr(policy.rules, rule).actions == (Action.COMPRESS,)


@pytest.mark.parametrize("name", ["Default", "", "thompson", None, 5])
def test_unknown_presets_are_refused(name):
    with pytest.raises(UnknownNameError, match="preset") as caught:
        Policy.preset(name)
    assert repr(name) in str(caught.value)
    assert "'default', 'cellium'" in str(caught.value)


@pytest.mark.parametrize(("name", "value"), [
    ("alpha", -1), ("beta", math.nan), ("decay", 2), ("decay_every", -1), ("decay_target", "x"),
    ("gamma", 1),
])
def test_a_posterior_of_its_own_is_checked_with_our_exception(name, value):
    with pytest.raises(PolicyError) as caught:
        Posterior(**{name: value})
    assert name in str(caught.value)


# --- files ---------------------------------------------------------------------------------------
FILES = {
    "p.toml": 'preset = "cellium"\nn_step = 2\n[rules.output_loop]\nrepeats = 3\n'
              '[rules.failure_chain]\nactions = ["retry"]\n',
    "p.yaml": "preset: cellium\nn_step: 2\nrules:\n  output_loop: {repeats: 3}\n"
              "  failure_chain:\n    actions: [retry]\n",
    "p.yml": "{preset: cellium, n_step: 2, rules: {output_loop: {repeats: 3}, "
             "failure_chain: {actions: [retry]}}}",
    "p.json": '{"preset": "cellium", "n_step": 2, "rules": {"output_loop": {"repeats": 3}, '
              '"failure_chain": {"actions": ["retry"]}}}',
}


@pytest.fixture
def written(tmp_path):
    def write(name: str, content: str | bytes):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


@pytest.mark.parametrize("name", FILES)
def test_every_kind_of_file_gives_the_same_policy(written, name):
    expected = Policy.preset("cellium", n_step=2, rules={
        "output_loop": {"repeats": 3}, "failure_chain": {"actions": ["retry"]},
    })
    path = written(name, FILES[name])
    assert Policy.from_file(path) == expected
    assert Policy.from_file(str(path)) == expected


@pytest.mark.parametrize(("name", "content"), [
    ("a.toml", "n_step = 1"), ("a.yaml", "n_step: 1"), ("a.json", '{"n_step": 1}'),
    ("A.JSON", '{"n_step": 1}'), ("a.json", '{"preset": "default", "n_step": 1}'),
])
def test_a_file_without_preset_lies_over_the_default(written, name, content):
    assert Policy.from_file(written(name, content)) == Policy(n_step=1)


def test_what_a_policy_dumps_as_json_reads_back(written):
    policy = Policy.preset("cellium", frequent_tools=["ls"], posterior={"alpha": 0.1})
    assert Policy.from_file(written("p.json", policy.model_dump_json())) == policy


@pytest.mark.parametrize(("name", "content", "word"), [
    ("a.toml", "n_step =", "Invalid value"),
    ("a.toml", b"\xff", "decode"),
    ("a.yaml", "a: [", "while parsing"),
    ("a.yaml", "!!python/object/apply:os.getcwd []", "python/object"),
    ("a.yaml", "- n_step", "wanted a table"),
    ("a.json", "{", "end of data"),
    ("a.json", b"\xff\xfe", ""),
    ("a.json", "[1]", "wanted a table"),
    ("a.json", '"cellium"', "wanted a table"),
    ("a.json", '{"n_step": 9}', "n_step"),
    ("a.json", '{"rules": {"output_loop": {"repeat": 9}}}', "rules.output_loop.repeat"),
    ("a.json", '{"unheard": 9}', "unheard"),
    ("a.json", '{"preset": "nope"}', "'nope'"),
    ("a.yaml", "preset: [cellium]", "preset"),
    ("a.yaml", "1: 2", "1: there is no such parameter"),
    ("a.yaml", "rules: {1: 2}", "rules.1"),
    ("a.yaml", "rules:", "rules"),
    ("a.ini", "n_step = 2", "wanted a .toml, .yaml or .json file, got .ini"),
    ("policy", "n_step: 2", "wanted a .toml, .yaml or .json file, got no ending"),
])
def test_a_bad_file_is_refused_with_its_path_and_what_is_wrong(written, name, content, word):
    path = written(name, content)
    with pytest.raises(PolicyError) as caught:
        Policy.from_file(path)
    assert str(path) in str(caught.value)
    assert word in str(caught.value)


@pytest.mark.parametrize("name", ["name", "cls", "self"])
def test_an_unknown_key_in_a_file_is_refused_whatever_its_name(written, name):
    path = written("a.json", f'{{"{name}": "mine"}}')
    with pytest.raises(PolicyError) as caught:
        Policy.from_file(path)
    assert str(path) in str(caught.value)
    assert name in str(caught.value).removeprefix(str(path))


def test_a_file_nested_too_deep_is_refused(written):
    path = written("a.yaml", "[" * 5000)
    with pytest.raises(PolicyError) as caught:
        Policy.from_file(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_and_a_directory_are_refused(tmp_path):
    (tmp_path / "folder.toml").mkdir()
    for name in ("none.toml", "folder.toml"):
        with pytest.raises(PolicyError) as caught:
            Policy.from_file(tmp_path / name)
        assert str(tmp_path / name) in str(caught.value)


# --- the record ----------------------------------------------------------------------------------
OTHER_WORD = {
    "count_failures": "calls", "tie_break": "first", "credit": "newest", "update": "one_side",
    "learn_from": "all", "posterior.decay_target": 3.0, "frequent_tools": ("ls",),
}
RENAMED = {
    "count_failures": ("count_failed_rounds",),
    "frequent_tools": ("frequent_tool_count", "frequent_tools[0]"),
    "credit": ("backward_credit",),
    "update": ("threshold_update",),
    "learn_from": ("learn_from_all",),
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
    """Where the record keeps a parameter."""
    if path in RENAMED:
        return RENAMED[path]
    section, _, name = path.rpartition(".")
    if section.startswith("rules."):
        rule = section.removeprefix("rules.")
        bit = _rules.RULES.index(rule)
        return ({"enabled": "rules_enabled", "alone": "rules_alone",
                 "actions": f"rule_actions[{bit}]"}.get(name, f"{rule}_{name}"),)
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
    assert fields - reached == {f"frequent_tools[{place}]" for place in range(1, 16)}


@pytest.mark.parametrize(("bit", "rule"), list(enumerate(_rules.RULES)))
def test_rule_switches_and_masks_stand_at_the_rule_s_bit(bit, rule):
    parameters = {"enabled": False, "actions": ["redirect"]}
    if rule in PROPOSING:
        parameters["alone"] = rule != "context_critical"
    record = Policy(rules={rule: parameters}).record()[0]
    plain = Policy().record()[0]
    assert record["rules_enabled"] == plain["rules_enabled"] ^ (1 << bit)
    assert record["rules_alone"] == plain["rules_alone"] ^ ((rule in PROPOSING) << bit)
    assert record["rule_actions"][bit] == Action.REDIRECT.mask


def test_choices_in_the_record():
    default, cellium = Policy().record()[0], Policy.preset("cellium").record()[0]
    for name, of_default, of_cellium in [
        ("count_failed_rounds", 1, 0), ("backward_credit", 0, 1), ("threshold_update", 0, 1),
        ("learn_from_all", 0, 0), ("tool_cycle_compress_from", 0.5, math.inf),
        ("tool_repetition_compress_from", 0.5, math.inf), ("progressing_progress", 0.5, math.inf),
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


@pytest.mark.parametrize("rule", [rule for rule in _rules.RULES if rule not in PROPOSING])
def test_alone_is_no_parameter_of_a_rule_that_it_could_not_change(rule):
    with pytest.raises(PolicyError, match=rf"rules.{rule}.alone: there is no such parameter"):
        Policy(rules={rule: {"alone": True}})


def test_a_rule_alone_proposes_something():
    with pytest.raises(PolicyError, match=r"rules.context_critical.*alone: wanted at least one"):
        Policy(rules={"context_critical": {"actions": []}})


def test_a_pause_is_a_range():
    with pytest.raises(PolicyError, match=r"true_stagnation.*pause_from: wanted no more than"):
        Policy(rules={"true_stagnation": {"pause_from": 16}})


def test_an_empty_file_is_the_default(written):
    assert Policy.from_file(written("a.yaml", "")) == Policy()
    assert Policy.from_file(written("a.toml", "")) == Policy()
